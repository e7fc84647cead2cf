//! Cells of `Arc`s as arc-swap promises them, out of loom's atomics: a load yields a value that was stored, and sees
//! all that its writer did before. How arc-swap does it is not modelled: values are never freed here.

use std::ops::Deref;
use std::sync::{Arc, Mutex as Shelf, PoisonError};

use super::atomics::{AtomicBool, AtomicUsize, Ordering};

/// A value, and a witness that orders nothing: a reader that finds it false need not see the value either.
type Kept<A> = Arc<(A, AtomicBool)>;

/// arc-swap's `ArcSwapAny`, of `Arc<T>` or `Option<Arc<T>>`.
pub(crate) struct Swap<A> {
    /// Which of the values it holds.
    current: AtomicUsize,
    /// All values ever. Its lock orders nothing: loom does not know it.
    values: Shelf<Vec<Kept<A>>>,
}

/// arc-swap's `ArcSwap`.
pub(crate) type ArcSwap<T> = Swap<Arc<T>>;

/// arc-swap's `ArcSwapOption`.
pub(crate) type ArcSwapOption<T> = Swap<Option<Arc<T>>>;

/// arc-swap's `Guard`: a value that was loaded.
pub(crate) struct Guard<A>(A);

/// arc-swap's `Cache`: a copy of what a cell held, looked after at each load without any ordering.
pub(crate) struct Cache<S, A> {
    source: S,
    seen: usize,
    cached: A,
}

impl<A> Deref for Guard<A> {
    type Target = A;

    fn deref(&self) -> &A {
        &self.0
    }
}

impl<A: Clone> Swap<A> {
    fn of(value: A) -> Self {
        let values = Shelf::new(vec![Arc::new((value, AtomicBool::new(true)))]);
        Swap { current: AtomicUsize::new(0), values }
    }

    fn value(&self, index: usize) -> A {
        let kept = Arc::clone(&self.values.lock().unwrap_or_else(PoisonError::into_inner)[index]);
        assert!(kept.1.load(Ordering::Relaxed), "a value that is not there yet");
        kept.0.clone()
    }

    /// Keeps a value that is not visible yet; yields its index.
    fn keep(&self, value: A) -> usize {
        let kept = Arc::new((value, AtomicBool::new(false)));
        kept.1.store(true, Ordering::Relaxed);
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        values.push(kept);
        values.len() - 1
    }

    pub(crate) fn load(&self) -> Guard<A> {
        Guard(self.load_full())
    }

    pub(crate) fn load_full(&self) -> A {
        self.value(self.current.load(Ordering::Acquire))
    }

    pub(crate) fn store(&self, value: A) {
        let index = self.keep(value);
        self.current.store(index, Ordering::Release);
    }

    pub(crate) fn swap(&self, value: A) -> A {
        let index = self.keep(value);
        self.value(self.current.swap(index, Ordering::AcqRel))
    }
}

impl<T> Swap<Arc<T>> {
    pub(crate) fn from_pointee(value: T) -> Self {
        Swap::of(Arc::new(value))
    }
}

impl<T> Swap<Option<Arc<T>>> {
    pub(crate) fn empty() -> Self {
        Swap::of(None)
    }
}

impl<S: Deref<Target = Swap<A>>, A: Clone> Cache<S, A> {
    pub(crate) fn new(source: S) -> Self {
        let seen = source.current.load(Ordering::Acquire);
        let cached = source.value(seen);
        Cache { source, seen, cached }
    }

    pub(crate) fn load(&mut self) -> &A {
        if self.source.current.load(Ordering::Relaxed) != self.seen {
            self.seen = self.source.current.load(Ordering::Acquire);
            self.cached = self.source.value(self.seen);
        }
        &self.cached
    }
}
