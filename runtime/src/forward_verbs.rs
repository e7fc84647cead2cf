//! Forwards methods of [`Verbs`](crate::Verbs), for types that wrap a fabric and change some of them. Knows none.

/// Forwards the named methods of [`Verbs`](crate::Verbs), in an `impl` of it, to the fabric in a field. The type
/// defines the others itself, to change what the fabric does, or leaves them to the trait. Methods that post chains
/// cannot be named: they are why a type wraps a fabric.
///
/// ```
/// # use std::{cell::Cell, future::Future, rc::Rc};
/// # use farwood_runtime::*;
/// /// A shard that counts its chains.
/// #[derive(Clone)]
/// struct Counted<V> {
///     shard: V,
///     chains: Rc<Cell<u64>>,
/// }
///
/// impl<V: Verbs> Verbs for Counted<V> {
///     type Submission = V::Submission;
///     type Pause = V::Pause;
///
///     forward_verbs!(shard: shard, shards, node_id, capabilities, control, pins, lease, now, random, pause, waiter);
///     forward_verbs!(shard: wake, attend, send, has_ended, listen);
///
///     fn post(&self, meter: &Meter, chain: Chain) -> V::Submission {
///         self.chains.set(self.chains.get() + 1);
///         self.shard.post(meter, chain)
///     }
/// }
/// # on_one_shard(async |shard| {
/// # let at = shard.control().chunk(ServerId(0), IndexId(1)).await?.start;
/// let counted = Counted { shard, chains: Rc::default() };
/// counted.read(&Meter::default(), at, 64).await?;
/// assert_eq!(counted.chains.get(), 1);
/// # Ok(()) }).unwrap();
/// ```
#[macro_export]
macro_rules! forward_verbs {
    ($field:ident: $($method:ident),+ $(,)?) => {
        $($crate::forward_verbs!(@$method $field);)+
    };
    (@shard $field:ident) => {
        #[inline]
        fn shard(&self) -> $crate::ShardId {
            $crate::Verbs::shard(&self.$field)
        }
    };
    (@shards $field:ident) => {
        #[inline]
        fn shards(&self) -> usize {
            $crate::Verbs::shards(&self.$field)
        }
    };
    (@node_id $field:ident) => {
        #[inline]
        fn node_id(&self) -> u16 {
            $crate::Verbs::node_id(&self.$field)
        }
    };
    (@capabilities $field:ident) => {
        #[inline]
        fn capabilities(&self) -> &$crate::Capabilities {
            $crate::Verbs::capabilities(&self.$field)
        }
    };
    (@control $field:ident) => {
        #[inline]
        fn control(&self) -> &::std::sync::Arc<dyn $crate::Control> {
            $crate::Verbs::control(&self.$field)
        }
    };
    (@pins $field:ident) => {
        #[inline]
        fn pins(&self) -> &::std::rc::Rc<$crate::epoch::Pins> {
            $crate::Verbs::pins(&self.$field)
        }
    };
    (@lease $field:ident) => {
        #[inline]
        fn lease(&self, bytes: usize) -> $crate::Buf {
            $crate::Verbs::lease(&self.$field, bytes)
        }
    };
    (@now $field:ident) => {
        #[inline]
        fn now(&self) -> u64 {
            $crate::Verbs::now(&self.$field)
        }
    };
    (@random $field:ident) => {
        #[inline]
        fn random(&self) -> u64 {
            $crate::Verbs::random(&self.$field)
        }
    };
    (@pause $field:ident) => {
        #[inline]
        fn pause(&self, ns: u64) -> Self::Pause {
            $crate::Verbs::pause(&self.$field, ns)
        }
    };
    (@waiter $field:ident) => {
        #[inline]
        fn waiter(&self, cx: &mut ::std::task::Context<'_>) -> $crate::Waiter {
            $crate::Verbs::waiter(&self.$field, cx)
        }
    };
    (@wake $field:ident) => {
        #[inline]
        fn wake(&self, waiter: $crate::Waiter) {
            $crate::Verbs::wake(&self.$field, waiter)
        }
    };
    (@attend $field:ident) => {
        #[inline]
        fn attend(&self, task: impl ::std::future::Future<Output = ()> + 'static) {
            $crate::Verbs::attend(&self.$field, task)
        }
    };
    (@send $field:ident) => {
        #[inline]
        fn send(&self, to: $crate::ShardId, port: $crate::Port, message: $crate::Message) {
            $crate::Verbs::send(&self.$field, to, port, message)
        }
    };
    (@has_ended $field:ident) => {
        #[inline]
        fn has_ended(&self, to: $crate::ShardId) -> bool {
            $crate::Verbs::has_ended(&self.$field, to)
        }
    };
    (@listen $field:ident) => {
        #[inline]
        fn listen(&self, port: $crate::Port, handler: $crate::verbs::Handler) {
            $crate::Verbs::listen(&self.$field, port, handler)
        }
    };
    (@listen_while_leased $field:ident) => {
        fn listen_while_leased(
            &self,
            port: $crate::Port,
            handler: $crate::verbs::Handler,
            at_rest: $crate::verbs::AtRest,
        ) {
            $crate::Verbs::listen_while_leased(&self.$field, port, handler, at_rest)
        }
    };
}
