//! The life of a chain inside a shard, from submission to completion, without any I/O: slots, credits and waiters.
//!
//! ```text
//!            credit left                     executed
//!  submit ───────────────> posted ─────────────────────────> done ──take──> slot free
//!     │                      ^                                 ^
//!     └── no credit ──> in line (FIFO per server)    orphaned: slot freed at once
//! ```
//!
//! A slot owns its chain, and the chain its buffer, until the device has executed it: a future that is dropped orphans
//! the slot and frees nothing under the device. What executes chains is a [`Device`]; it knows slots by their keys.

mod slots;

use std::collections::VecDeque;
use std::num::NonZero;
use std::task::Poll;

pub use self::slots::{Outcome, SlotKey, Slots};
use crate::buffer::{Buf, BufferPool};
use crate::chain::Chain;
use crate::epoch::Pin;
use crate::host::Host;
use crate::pointer::ServerId;
use crate::verbs::{Capabilities, Completion, Failed};
use crate::waiter::Waiter;

/// A device that executes posted chains: queue pairs, or mapped memory. Chains to one server take effect as the
/// fabric contract says of one queue pair.
pub trait Device: 'static {
    /// The host of shards with such a device.
    type Host: Host;

    /// Yields the device's capabilities.
    fn capabilities(&self) -> &Capabilities;
    /// Takes a chain over. Never waits; the engine keeps to the credits.
    fn post(&mut self, key: SlotKey, chain: &Chain);
    /// Makes progress and reports what was completed to [`Slots::complete`]; yields how many.
    fn poll(&mut self, slots: &mut Slots) -> usize;
    /// Yields the pool that the shard leases buffers from: memory that the device can reach.
    fn buffers(&self) -> BufferPool {
        BufferPool::new()
    }
    /// Tells whether the shard may sleep although chains are in flight: the device has promised to wake it when one of
    /// them is completed, and none has been since the last poll; or they wait for so long that it need not be polled
    /// more often than a shard does in its sleep. Most devices make progress only when they are polled.
    fn arm(&mut self) -> bool {
        false
    }
}

/// Slots, credits and a device: everything of a shard that chains go through.
pub struct Engine<D> {
    device: D,
    slots: Slots,
    credits: Vec<Credits>,
}

struct Credits {
    left: usize,
    line: VecDeque<SlotKey>,
}

impl<D: Device> Engine<D> {
    /// Makes an idle engine for `servers` queue pairs with `credits` chains in flight on each at most.
    pub fn new(device: D, servers: usize, credits: NonZero<usize>) -> Self {
        let credits = (0..servers).map(|_| Credits { left: credits.get(), line: VecDeque::new() }).collect();
        Engine { device, slots: Slots::default(), credits }
    }

    /// Yields the device's capabilities.
    pub fn capabilities(&self) -> &Capabilities {
        self.device.capabilities()
    }

    /// Takes a chain in: posts it if its queue pair has a credit left, else puts it in line.
    #[inline(always)]
    pub fn submit(&mut self, chain: Chain) -> SlotKey {
        let key = self.slots.insert(chain);
        self.post(key);
        key
    }

    /// Takes in a chain that `build` writes into its slot. `build` must not come back to the engine.
    #[inline(always)]
    pub fn submit_in_place(
        &mut self,
        server: ServerId,
        buf: Option<Buf>,
        build: impl FnOnce(&mut Chain),
    ) -> SlotKey {
        let key = self.slots.insert_in_place(server, buf, build);
        self.post(key);
        key
    }

    #[inline]
    fn post(&mut self, key: SlotKey) {
        let chain = self.slots.chain_mut(key);
        // A server that does not exist has no queue pair: the device says so.
        if let Some(credits) = self.credits.get_mut(usize::from(chain.server().0)) {
            if credits.left == 0 {
                credits.line.push_back(key);
                return;
            }
            credits.left -= 1;
        }
        self.device.post(key, chain);
    }

    /// Lets the device make progress, hands freed credits on in FIFO order, and passes the waiters of completed chains
    /// to `wake`. Yields the number of chains that were completed.
    pub fn poll(&mut self, wake: &mut impl FnMut(Waiter)) -> usize {
        let completed = self.device.poll(&mut self.slots);
        while let Some((server, waiter)) = self.slots.pop_completed() {
            self.return_credit(server as usize);
            if let Some(waiter) = waiter {
                wake(waiter);
            }
        }
        completed
    }

    /// Tells whether nothing will happen until the device wakes the shard ([`Device::arm`]), or a chain is submitted.
    pub fn may_sleep(&mut self) -> bool {
        self.slots.in_flight() == 0 || self.device.arm()
    }

    /// Lends the device to a fabric that has something to tell it.
    #[cfg(feature = "sim")]
    pub(crate) fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Lends the chains to a fabric that executes them apart from its device.
    #[cfg(feature = "sim")]
    pub(crate) fn slots_mut(&mut self) -> &mut Slots {
        &mut self.slots
    }

    /// Takes the outcome of a chain, or notes the waiter to resume when there is one.
    #[inline]
    pub fn take(
        &mut self,
        key: SlotKey,
        waiter: impl FnOnce() -> Waiter,
    ) -> Poll<Result<Completion, Failed>> {
        self.slots.take(key, waiter)
    }

    /// Notes that no future waits for this chain any more. It is executed all the same, under the epoch of `pin` if it
    /// was not yet.
    pub fn orphan(&mut self, key: SlotKey, pin: impl FnOnce() -> Pin) {
        self.slots.orphan(key, pin);
    }

    /// Chains that were submitted and not executed yet.
    pub fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    fn return_credit(&mut self, server: usize) {
        let Some(credits) = self.credits.get_mut(server) else { return };
        match credits.line.pop_front() {
            Some(next) => self.device.post(next, self.slots.chain_mut(next)),
            None => credits.left += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::clock::Clock;
    use crate::epoch::Pins;
    use crate::mapped::MappedDevice;
    use crate::pointer::RemotePtr;
    use crate::verbs::FabricError;

    /// Completes one chain per poll and keeps the order in which it was given them.
    #[derive(Default)]
    struct OneByOne {
        posted: VecDeque<SlotKey>,
        high_water: usize,
        fail: bool,
    }

    impl Device for OneByOne {
        type Host = Clock;

        fn capabilities(&self) -> &Capabilities {
            &MappedDevice::EMBEDDED
        }

        fn post(&mut self, key: SlotKey, _chain: &Chain) {
            self.posted.push_back(key);
            self.high_water = self.high_water.max(self.posted.len());
        }

        fn poll(&mut self, slots: &mut Slots) -> usize {
            let Some(key) = self.posted.pop_front() else { return 0 };
            let missing = FabricError::NoSuchServer { server: ServerId(0), servers: 0 };
            slots.complete(key, if self.fail { Err(missing) } else { Ok(()) }, 1);
            1
        }
    }

    fn client(key: u32) -> impl FnOnce() -> Waiter {
        move || Waiter::Client(key)
    }

    #[test]
    fn keeps_to_the_credits_in_fifo_order() {
        let mut engine = Engine::new(OneByOne::default(), 1, NonZero::new(2).unwrap());
        let keys: Vec<SlotKey> = (0..7).map(|_| engine.submit(Chain::new(ServerId(0)))).collect();
        for (i, &key) in keys.iter().enumerate() {
            assert!(engine.take(key, client(i as u32)).is_pending());
        }
        let mut woken = Vec::new();
        while engine.in_flight() > 0 {
            engine.poll(&mut |waiter| woken.push(waiter));
        }
        let order: Vec<u32> =
            woken.iter().map(|w| if let Waiter::Client(key) = w { *key } else { 99 }).collect();
        assert_eq!(order, [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(engine.device.high_water, 2);
        for key in keys {
            assert!(engine.take(key, client(0)).is_ready());
        }
        assert_eq!(engine.credits[0].left, 2);
    }

    #[test]
    fn an_orphan_keeps_its_buffer_until_it_is_executed() {
        let pool = BufferPool::new();
        for fail in [false, true] {
            let mut engine =
                Engine::new(OneByOne { fail, ..OneByOne::default() }, 1, NonZero::new(1).unwrap());
            let posted = engine.submit(Chain::with_buffer(ServerId(0), pool.lease(64)));
            let in_line = engine.submit(Chain::with_buffer(ServerId(0), pool.lease(64)));
            let pins = Pins::alone();
            engine.orphan(posted, || pins.pin());
            engine.orphan(in_line, || pins.pin());
            assert_eq!(Rc::strong_count(&pins), 3);
            assert_eq!(pool.leased(), 2);
            engine.poll(&mut |_| panic!("the chain is an orphan"));
            assert_eq!((pool.leased(), engine.in_flight()), (1, 1));
            engine.poll(&mut |_| panic!("the chain is an orphan"));
            assert_eq!((pool.leased(), engine.in_flight()), (0, 0));
            assert_eq!(Rc::strong_count(&pins), 1, "what it reached may go");
        }
    }

    #[test]
    fn a_failed_chain_comes_back_as_it_was_posted() {
        let pool = BufferPool::new();
        let mut engine =
            Engine::new(OneByOne { fail: true, ..OneByOne::default() }, 1, NonZero::new(1).unwrap());
        let at = RemotePtr::new(ServerId(0), 64);
        let mut chain = Chain::with_buffer(ServerId(0), pool.lease(64));
        chain.write(at, 0..64).write_word(at, 7);
        let verbs = chain.verbs().to_vec();
        let mut key = engine.submit(chain);
        for _ in 0..3 {
            engine.poll(&mut |_| {});
            let Poll::Ready(Err(failed)) = engine.take(key, client(0)) else { panic!("it failed") };
            assert_eq!(failed, FabricError::NoSuchServer { server: ServerId(0), servers: 0 });
            let (_, chain) = failed.into_parts();
            assert_eq!((chain.verbs(), chain.buffer().map(|buf| buf.len())), (&verbs[..], Some(64)));
            key = engine.submit(chain);
        }
        engine.device.fail = false;
        engine.poll(&mut |_| {});
        let Poll::Ready(Ok(done)) = engine.take(key, client(0)) else { panic!("it did not fail") };
        assert_eq!(done.into_buf().len(), 64);
        assert_eq!(pool.leased(), 0);
    }

    #[test]
    fn orphaning_a_finished_chain_frees_it() {
        let pool = BufferPool::new();
        let mut engine = Engine::new(OneByOne::default(), 1, NonZero::new(1).unwrap());
        let key = engine.submit(Chain::with_buffer(ServerId(0), pool.lease(64)));
        engine.poll(&mut |_| {});
        assert_eq!(pool.leased(), 1);
        engine.orphan(key, || panic!("it reaches nothing any more"));
        assert_eq!(pool.leased(), 0);
    }
}
