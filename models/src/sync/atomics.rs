//! loom's atomics in place of the standard library's, for the files that are modelled: with orderings that a control
//! can weaken, and with stores at which a thread can die.

use std::cell::Cell;

pub use loom::sync::atomic::Ordering;

/// Orderings that a control takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weakening {
    /// All fences of that ordering.
    Fence(Ordering),
    /// Acquire of all loads.
    Acquire,
    /// Release of all stores.
    Release,
    /// Fences and orderings: nothing but Relaxed is left.
    All,
}

std::thread_local! {
    /// The weakening of the thread: loom runs all threads of a model on one.
    static WEAKENED: Cell<Option<Weakening>> = const { Cell::new(None) };
}

loom::thread_local! {
    static STORES_LEFT: Cell<Option<u32>> = Cell::new(None);
}

/// Runs `model` with that weakening.
pub fn weakened<T>(by: Weakening, model: impl FnOnce() -> T) -> T {
    /// Restores the orderings, also if the model panics, as it should.
    struct Strong;
    impl Drop for Strong {
        fn drop(&mut self) {
            WEAKENED.set(None);
        }
    }
    let _strong = Strong;
    WEAKENED.set(Some(by));
    model()
}

/// The panic of a thread that dies.
struct Death;

/// Runs `life`, which ends before its store number `stores`, counted from 0, if it comes so far. Tells whether it lived
/// to its end.
pub(crate) fn killed_at(stores: u32, life: impl FnOnce()) -> bool {
    STORES_LEFT.with(|left| left.set(Some(stores)));
    let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(life));
    STORES_LEFT.with(|left| left.set(None));
    match lived {
        Ok(()) => true,
        Err(cause) if cause.is::<Death>() => false,
        Err(cause) => std::panic::resume_unwind(cause),
    }
}

fn store_or_die() {
    STORES_LEFT.with(|left| match left.get() {
        Some(0) => std::panic::resume_unwind(Box::new(Death)),
        Some(stores) => left.set(Some(stores - 1)),
        None => {}
    });
}

fn of_load(order: Ordering) -> Ordering {
    match (WEAKENED.get(), order) {
        (Some(Weakening::Acquire | Weakening::All), _) => Ordering::Relaxed,
        _ => order,
    }
}

fn of_store(order: Ordering) -> Ordering {
    match (WEAKENED.get(), order) {
        (Some(Weakening::Release | Weakening::All), _) => Ordering::Relaxed,
        _ => order,
    }
}

fn of_change(order: Ordering) -> Ordering {
    match (WEAKENED.get(), order) {
        (Some(Weakening::All), _) => Ordering::Relaxed,
        (Some(Weakening::Acquire), Ordering::AcqRel) => Ordering::Release,
        (Some(Weakening::Acquire), Ordering::Acquire) => Ordering::Relaxed,
        (Some(Weakening::Release), Ordering::AcqRel) => Ordering::Acquire,
        (Some(Weakening::Release), Ordering::Release) => Ordering::Relaxed,
        _ => order,
    }
}

/// Issues a fence, unless a control has taken it away.
pub(crate) fn fence(order: Ordering) {
    match WEAKENED.get() {
        Some(Weakening::Fence(gone)) if gone == order => {}
        Some(Weakening::All) => {}
        _ => loom::sync::atomic::fence(order),
    }
}

/// Does nothing: program order is never changed here.
pub(crate) fn compiler_fence(_order: Ordering) {}

macro_rules! atomic {
    ($name:ident of $value:ty) => {
        #[doc = concat!("loom's `", stringify!($name), "`.")]
        #[derive(Debug)]
        pub(crate) struct $name(loom::sync::atomic::$name);

        #[allow(dead_code, reason = "all have the same functions")]
        impl $name {
            pub(crate) fn new(value: $value) -> Self {
                $name(loom::sync::atomic::$name::new(value))
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.0.load(of_load(order))
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                store_or_die();
                self.0.store(value, of_store(order));
            }

            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                store_or_die();
                self.0.swap(value, of_change(order))
            }

            pub(crate) fn compare_exchange(
                &self,
                found: $value,
                value: $value,
                set: Ordering,
                fetch: Ordering,
            ) -> Result<$value, $value> {
                store_or_die();
                self.0.compare_exchange(found, value, of_change(set), of_load(fetch))
            }

            /// Compares and exchanges; never fails spuriously, which would only make a caller try again.
            pub(crate) fn compare_exchange_weak(
                &self,
                found: $value,
                value: $value,
                set: Ordering,
                fetch: Ordering,
            ) -> Result<$value, $value> {
                store_or_die();
                self.0.compare_exchange(found, value, of_change(set), of_load(fetch))
            }
        }

        impl Default for $name {
            fn default() -> Self {
                $name::new(Default::default())
            }
        }
    };
}

macro_rules! number {
    ($name:ident of $value:ty) => {
        atomic!($name of $value);

        #[allow(dead_code, reason = "all have the same functions")]
        impl $name {
            pub(crate) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                store_or_die();
                self.0.fetch_add(value, of_change(order))
            }

            pub(crate) fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                store_or_die();
                self.0.fetch_max(value, of_change(order))
            }
        }
    };
}

atomic!(AtomicBool of bool);
number!(AtomicU8 of u8);
number!(AtomicU32 of u32);
number!(AtomicU64 of u64);
number!(AtomicUsize of usize);
