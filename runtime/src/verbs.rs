//! The fabric contract: all that an index, lock or cache may assume of the memory and the shard below it. [`Verbs`] is
//! the only seam under the trees.
//!
//! 1. **Order on one queue pair**, also across chains: whatever follows a WRITE takes effect after it. A READ that
//!    follows an atomic or a READ is executed after it. A WRITE or an atomic that follows a READ or an atomic may
//!    overtake it unless it is fenced ([`crate::chain::Chain::fence`]). Chains of one shard to one server share a queue
//!    pair; there is no order between queue pairs. (Over shared memory a chain of which only READs and
//!    atomics are left, and wait for a process that is stopped, may be executed after chains that follow it; once its
//!    submission is dropped it is not executed any more.)
//! 2. **Lines**: an access to one aligned 64-byte line is atomic. The lines of one READ may be read in any order and at
//!    any distance in time, bounded by [`Completion::span_ns`]. The lines of one WRITE become visible in increasing
//!    address order only with [`Capabilities::in_order_write`].
//! 3. **Atomics**: CAS and FAA are atomic against each other, and with [`Capabilities::atomic_writes`] against WRITEs
//!    to the same aligned word. Without it only atomics may change a word that others try to change by atomics. A
//!    masked CAS is a CAS, and what it brings is as it was at that moment.
//! 4. **Failure**: a chain that fails has an unknown outcome: any prefix of it may have taken effect, the last WRITE of
//!    the prefix in part. Nothing of it takes effect after its failure was reported, and nothing is replayed by the
//!    fabric. The chain comes back to the operation that awaited it ([`Failed`]), which knows whether it may be posted
//!    again.
//! 5. **Cancellation**: a submission that is dropped goes on: its chain is executed, or fails, and its buffer comes
//!    back by itself.
//!
//! Posting never waits: beyond the credits of a queue pair a chain waits in line inside the shard.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use futures::future::{Either, select};
use smallvec::SmallVec;
use thiserror::Error;

use crate::buffer::Buf;
use crate::chain::Chain;
use crate::clock::nanoseconds;
use crate::control::Control;
use crate::epoch::Pins;
use crate::message::{Message, Port, ShardId};
use crate::meter::Meter;
use crate::pointer::{RemotePtr, ServerId};
use crate::waiter::Waiter;

/// Capabilities of a fabric, reported when a node connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The fabric's name as the command line spells it.
    pub fabric: &'static str,
    /// True if lines of one WRITE become visible in increasing address order (PCIe without relaxed ordering).
    pub in_order_write: bool,
    /// True if CAS and FAA are atomic against WRITEs to the same word. Else one of them may store what it found, also a
    /// CAS that does not fit, over a WRITE that came in between.
    pub atomic_writes: bool,
    /// True if a CAS can have masks for 32 bytes ([`crate::chain::Chain::masked_cas`]).
    pub masked_atomic: bool,
    /// Bytes of on-chip (device) memory per server; 0 where there is none.
    pub device_memory: usize,
    /// The least time in ns between two writes of the same entry, each under its lock, apart from the time that reading
    /// the node takes before each: it bounds how fast a version can wrap around. A WRITE takes at least half of it,
    /// there and back, so a writer that reads nothing waits for the other half.
    pub write_interval_ns: u32,
}

/// A chain that was executed.
#[derive(Debug)]
pub struct Completion {
    /// The chain's buffer.
    pub buf: Option<Buf>,
    /// The words that the chain's atomics found, in posting order.
    pub atomics: SmallVec<[u64; 2]>,
    /// An upper bound in ns on the time between the first and the last line that the chain accessed.
    pub span_ns: u32,
}

impl Completion {
    /// Returns the buffer of a chain that was posted with one.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let at = shard.control().chunk(ServerId(0), IndexId(1)).await?.start;
    /// let done = shard.read(&Meter::default(), at, 64).await?;
    /// assert_eq!(done.into_buf()[..], [0; 64]);
    /// # Ok(()) }).unwrap();
    /// ```
    ///
    /// # Panics
    /// If the chain had none.
    pub fn into_buf(self) -> Buf {
        self.buf.expect("the chain was posted with a buffer")
    }
}

/// Failures of a chain. Its outcome is unknown: any prefix may have taken effect. The chain comes along in [`Failed`].
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum FabricError {
    /// An address outside the server's region: a corrupt pointer, or an index of another cluster.
    #[error("{len} bytes at {offset:#x} are outside the {region_bytes}-byte region of memory server {}", server.0)]
    #[expect(missing_docs, reason = "the message names the fields")]
    OutOfBounds { server: ServerId, offset: u64, len: u64, region_bytes: u64 },
    /// A server that the cluster does not have.
    #[error("there is no memory server {} in this cluster of {servers}", server.0)]
    #[expect(missing_docs, reason = "the message names the fields")]
    NoSuchServer { server: ServerId, servers: usize },
    /// The queue pair to a server broke while the chain was in flight. It is connected again for chains posted later.
    #[error("the queue pair to memory server {} failed; the outcome of what was in flight is unknown", server.0)]
    #[expect(missing_docs, reason = "the message names the field")]
    QueuePair { server: ServerId },
    /// A server does not answer any more.
    #[error(
        "memory server {} is gone: it has ended, and all that it held is lost; or it cannot be reached any more",
        server.0
    )]
    #[expect(missing_docs, reason = "the message names the field")]
    ServerGone { server: ServerId },
    /// Over shared memory: another process is stopped in the middle of a line (SIGSTOP, a frozen container, a
    /// debugger), so that the line is neither old nor new. Chains have waited for it for 5 s, this one or others. What
    /// the chain would have done to other lines may have been done.
    #[error(
        "process {process} is stopped in the middle of a line of memory server {}: let it go on \
         (kill -CONT {process}), or kill it: what it began is then finished for it", server.0
    )]
    #[expect(missing_docs, reason = "the message names the fields")]
    WriterStopped { server: ServerId, process: u32 },
    /// A chain of more verbs than a queue pair takes at once.
    #[error(
        "a chain of {verbs} verbs is too long: a queue pair takes {verbs_max}; post it in parts, or raise the credits"
    )]
    #[expect(missing_docs, reason = "the message names the fields")]
    ChainTooLong { verbs: usize, verbs_max: usize },
    /// A masked CAS on a fabric that has none ([`Capabilities::masked_atomic`]).
    #[error("the {fabric} fabric has no masked CAS")]
    #[expect(missing_docs, reason = "the message names the field")]
    NoMaskedCas { fabric: &'static str },
    /// This host's RDMA device refused something while it ran: memory for more buffers, or a new queue pair. The cause
    /// says what to do about it.
    #[error("the RDMA device of this host cannot go on: {cause}")]
    #[expect(missing_docs, reason = "the message names the field")]
    Device { cause: Box<str> },
}

impl FabricError {
    /// Tells whether the very next chain may succeed, so that a chain that only reads is simply posted again. The
    /// fabric has already waited for a server that is gone.
    ///
    /// ```
    /// # use farwood_runtime::{FabricError, ServerId};
    /// assert!(FabricError::QueuePair { server: ServerId(0) }.is_passing());
    /// assert!(!FabricError::ServerGone { server: ServerId(0) }.is_passing());
    /// ```
    pub fn is_passing(&self) -> bool {
        matches!(self, FabricError::QueuePair { .. })
    }

    /// Tells whether the request itself was wrong: it fails however often it is posted.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// let nowhere = RemotePtr::new(ServerId(0), 1 << 40);
    /// let failed = shard.read(&Meter::default(), nowhere, 64).await.unwrap_err();
    /// assert!(failed.cause().is_refusal());
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn is_refusal(&self) -> bool {
        use FabricError::{ChainTooLong, NoMaskedCas, NoSuchServer, OutOfBounds};
        matches!(self, OutOfBounds { .. } | NoSuchServer { .. } | ChainTooLong { .. } | NoMaskedCas { .. })
    }
}

/// A chain that failed: the cause, and the chain itself with its buffer, whose bytes are those that were posted except
/// where its READs may have arrived. One pointer: a completion that succeeds pays nothing for it.
///
/// Two things can be done with it. `?` keeps the cause and gives the buffer back. An operation that knows that no other
/// client can have touched what the chain writes (it holds the lock) may post it again if it is
/// [`Chain::is_idempotent`].
#[derive(Debug, Error)]
#[error("{}", .0.cause)]
pub struct Failed(Box<Failure>);

#[derive(Debug)]
struct Failure {
    cause: FabricError,
    chain: Chain,
}

// The result that every poll of a submission hands over stays within one cache line.
const _: () = assert!(size_of::<Result<Completion, Failed>>() <= 64);

impl Failed {
    /// Makes the failure of `chain`.
    ///
    /// ```
    /// # use farwood_runtime::{Chain, FabricError, Failed, ServerId};
    /// let broken = FabricError::QueuePair { server: ServerId(0) };
    /// let failed = Failed::new(broken.clone(), Chain::new(ServerId(0)));
    /// assert_eq!(failed.to_string(), broken.to_string());
    /// ```
    #[cold]
    pub fn new(cause: FabricError, chain: Chain) -> Self {
        Failed(Box::new(Failure { cause, chain }))
    }

    /// Returns the cause of the failure.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// let nowhere = RemotePtr::new(ServerId(7), 4096);
    /// let failed = shard.read(&Meter::default(), nowhere, 64).await.unwrap_err();
    /// assert_eq!(*failed.cause(), FabricError::NoSuchServer { server: ServerId(7), servers: 1 });
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn cause(&self) -> &FabricError {
        &self.0.cause
    }

    /// Returns the chain as it was posted.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// let nowhere = RemotePtr::new(ServerId(7), 4096);
    /// let failed = shard.read(&Meter::default(), nowhere, 64).await.unwrap_err();
    /// assert_eq!((failed.chain().server(), failed.chain().verbs().len()), (ServerId(7), 1));
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn chain(&self) -> &Chain {
        &self.0.chain
    }

    /// Returns the cause and the chain as it was posted.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// let nowhere = RemotePtr::new(ServerId(7), 4096);
    /// let failed = shard.read(&Meter::default(), nowhere, 64).await.unwrap_err();
    /// let (cause, chain) = failed.into_parts();
    /// assert!(!cause.is_passing(), "else the chain could be submitted again");
    /// assert_eq!(chain.into_buffer().map(|buf| buf.len()), Some(64));
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn into_parts(self) -> (FabricError, Chain) {
        let Failure { cause, chain } = *self.0;
        (cause, chain)
    }
}

impl From<Failed> for FabricError {
    #[cold]
    fn from(failed: Failed) -> Self {
        failed.0.cause
    }
}

/// Compares by the cause alone.
impl PartialEq<FabricError> for Failed {
    fn eq(&self, cause: &FabricError) -> bool {
        self.0.cause == *cause
    }
}

/// The error of an operation that has not ended in time and was dropped ([`Verbs::timeout`]). What it had posted may
/// have taken effect or not: the outcome of a write is unknown.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the operation has not ended within {limit:?} and was dropped; if it writes, its outcome is unknown")]
pub struct TimedOut {
    /// Time that the operation was given.
    pub limit: Duration,
}

/// The handler with which a shard receives the messages of a [`Port`].
pub type Handler = Rc<dyn Fn(ShardId, Message)>;

/// Tells whether an actor has nothing to do: it holds nothing for others, and waits for no answer.
pub type AtRest = Rc<dyn Fn() -> bool>;

/// A shard, as the code above it sees it: one-sided verbs, buffers, time, chance, messages, and a place for the remains
/// of a cancelled operation. Clones are handles to the same shard and stay on its thread.
pub trait Verbs: Clone + 'static {
    /// A posted chain. Dropping it orphans the chain, which is executed all the same.
    type Submission: Future<Output = Result<Completion, Failed>> + Unpin + 'static;

    /// A wait for a span of time.
    type Pause: Future<Output = ()> + Unpin + 'static;

    /// Returns this shard's place in its compute node.
    ///
    /// ```
    /// # use farwood_runtime::{ShardId, Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// assert_eq!(shard.shard(), ShardId(0));
    /// # Ok(()) }).unwrap();
    /// ```
    fn shard(&self) -> ShardId;

    /// Counts the shards of the compute node.
    ///
    /// ```
    /// # use farwood_runtime::{Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// assert_eq!(shard.shards(), 1);
    /// # Ok(()) }).unwrap();
    /// ```
    fn shards(&self) -> usize;

    /// Returns the compute node's id in the cluster, never 0: lock words name their owner by it.
    ///
    /// ```
    /// # use farwood_runtime::{Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// assert_ne!(shard.node_id(), 0);
    /// # Ok(()) }).unwrap();
    /// ```
    fn node_id(&self) -> u16;

    /// Returns the capabilities of the fabric.
    ///
    /// ```
    /// # use farwood_runtime::{Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// assert_eq!(shard.capabilities().fabric, "embedded");
    /// # Ok(()) }).unwrap();
    /// ```
    fn capabilities(&self) -> &Capabilities;

    /// Returns the memory servers' control services.
    ///
    /// ```
    /// # use farwood_runtime::{Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// let servers = shard.control().servers();
    /// assert_eq!((servers.len(), servers[0].region_bytes), (1, 4 << 20));
    /// # Ok(()) }).unwrap();
    /// ```
    fn control(&self) -> &Arc<dyn Control>;

    /// Yields the shard's pins: an operation that follows pointers holds one.
    ///
    /// ```
    /// # use farwood_runtime::{Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// let pin = shard.pins().pin();
    /// // READs, one after the other.
    /// drop(pin);
    /// # Ok(()) }).unwrap();
    /// ```
    fn pins(&self) -> &Rc<Pins>;

    /// Leases a registered buffer of `bytes` bytes.
    ///
    /// ```
    /// # use farwood_runtime::{Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// let mut buf = shard.lease(64);
    /// buf.fill(7);
    /// assert_eq!(buf.len(), 64);
    /// # Ok(()) }).unwrap();
    /// ```
    fn lease(&self, bytes: usize) -> Buf;

    /// Posts a chain without counting a round trip: for chains in parallel, of which the caller counts one.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let at = shard.control().chunk(ServerId(0), IndexId(1)).await?.start;
    /// let meter = Meter::default();
    /// let [first, second] = [at, at.add(64)].map(|word| {
    ///     let mut chain = Chain::new(word.server());
    ///     chain.faa(word, 1);
    ///     shard.post(&meter, chain)
    /// });
    /// futures::future::try_join(first, second).await?;
    /// assert_eq!((meter.usage().faa, meter.usage().round_trips), (2, 0));
    /// # Ok(()) }).unwrap();
    /// ```
    fn post(&self, meter: &Meter, chain: Chain) -> Self::Submission;

    /// Posts a chain and counts one round trip. The `.await` of what it returns is that round trip.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let at = shard.control().chunk(ServerId(0), IndexId(1)).await?.start;
    /// let meter = Meter::default();
    /// let mut chain = Chain::with_buffer(at.server(), shard.lease(64));
    /// chain.cas(at, 0, 7).read(at, 0..64);
    /// let done = shard.submit(&meter, chain).await?;
    /// assert_eq!((done.atomics[0], done.into_buf()[0]), (0, 7));
    /// assert_eq!(meter.usage().round_trips, 1);
    /// # Ok(()) }).unwrap();
    /// ```
    #[inline(always)]
    fn submit(&self, meter: &Meter, chain: Chain) -> Self::Submission {
        meter.round_trip();
        self.post(meter, chain)
    }

    /// Submits the chain to `server` that `build` makes, with `buf`, as [`Verbs::submit`] does. A fabric may build it
    /// where it stays: moving a chain costs as much as the rest of posting it.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let at = shard.control().chunk(ServerId(0), IndexId(1)).await?.start;
    /// # let meter = Meter::default();
    /// let added = shard.submit_built(&meter, at.server(), None, |chain| {
    ///     chain.write_word(at, 7).faa(at, 1);
    /// });
    /// assert_eq!(added.await?.atomics[..], [7]);
    /// # Ok(()) }).unwrap();
    /// ```
    #[inline]
    fn submit_built(
        &self,
        meter: &Meter,
        server: ServerId,
        buf: Option<Buf>,
        build: impl FnOnce(&mut Chain),
    ) -> Self::Submission {
        let mut chain = match buf {
            Some(buf) => Chain::with_buffer(server, buf),
            None => Chain::new(server),
        };
        build(&mut chain);
        self.submit(meter, chain)
    }

    /// READs `bytes` bytes at `at` into a fresh lease: one round trip.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let at = shard.control().chunk(ServerId(0), IndexId(1)).await?.start;
    /// let node = shard.read(&Meter::default(), at, 1024).await?.into_buf();
    /// assert_eq!(node[..], [0; 1024]);
    /// # Ok(()) }).unwrap();
    /// ```
    #[inline(always)]
    fn read(&self, meter: &Meter, at: RemotePtr, bytes: usize) -> Self::Submission {
        let buf = self.lease(bytes);
        self.submit_built(meter, at.server(), Some(buf), |chain| {
            chain.read(at, 0..bytes);
        })
    }

    /// Returns the nanoseconds since some fixed moment, monotonic.
    ///
    /// ```
    /// # use farwood_runtime::{Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// let before = shard.now();
    /// assert!(shard.now() >= before);
    /// # Ok(()) }).unwrap();
    /// ```
    fn now(&self) -> u64;

    /// Draws a random word from the shard's seeded generator.
    ///
    /// ```
    /// # use farwood_runtime::{Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// assert_ne!(shard.random(), shard.random());
    /// # Ok(()) }).unwrap();
    /// ```
    fn random(&self) -> u64;

    /// Waits for at least `ns` nanoseconds. The shard's other clients run in the meantime, however short it is.
    ///
    /// ```
    /// # use farwood_runtime::{Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// let before = shard.now();
    /// shard.pause(100_000).await;
    /// assert!(shard.now() - before >= 100_000);
    /// # Ok(()) }).unwrap();
    /// ```
    fn pause(&self, ns: u64) -> Self::Pause;

    /// Awaits `operation`, but no longer than `limit` from this call on: then it is dropped. That is safe at any time,
    /// and leaves no lock, buffer or waiter behind. A read that is dropped has no effect. A write may have taken effect
    /// or not, and what it had posted last may take effect within a round trip after the error: read before you decide
    /// whether to write again, or write what may be written twice.
    ///
    /// ```
    /// # use farwood_runtime::{Verbs, on_one_shard};
    /// # use std::{future::pending, time::Duration};
    /// # on_one_shard(async |shard| {
    /// let limit = Duration::from_millis(1);
    /// assert!(shard.timeout(limit, pending::<()>()).await.is_err());
    /// assert_eq!(shard.timeout(limit, async { "in time" }).await, Ok("in time"));
    /// # Ok(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// If the time is over. An operation that is ready at once has an outcome even if there is no time.
    fn timeout<T>(
        &self,
        limit: Duration,
        operation: impl Future<Output = T>,
    ) -> impl Future<Output = Result<T, TimedOut>> {
        let over = self.pause(nanoseconds(limit));
        async move {
            match select(pin!(operation), over).await {
                Either::Left((outcome, _)) => Ok(outcome),
                Either::Right(_) => Err(TimedOut { limit }),
            }
        }
    }

    /// Makes a handle with which the task that is being polled can be resumed.
    ///
    /// ```
    /// # use farwood_runtime::{Verbs, Waiter, on_one_shard};
    /// # use std::future::poll_fn;
    /// # use std::task::Poll;
    /// # on_one_shard(async |shard| {
    /// let me = shard.clone();
    /// let client = shard.spawn(poll_fn(move |cx| Poll::Ready(me.waiter(cx))));
    /// assert!(matches!(client.await, Waiter::Client(_)));
    /// # Ok(()) }).unwrap();
    /// ```
    fn waiter(&self, cx: &mut Context<'_>) -> Waiter;

    /// Resumes a waiter.
    ///
    /// ```
    /// # use farwood_runtime::{Verbs, on_one_shard};
    /// # use std::cell::Cell;
    /// # use std::future::poll_fn;
    /// # use std::task::Poll;
    /// # on_one_shard(async |shard| {
    /// let (done, waiter) = (Cell::new(false), Cell::new(None));
    /// let waits = poll_fn(|cx| {
    ///     waiter.set(Some(shard.waiter(cx)));
    ///     if done.get() { Poll::Ready("woken") } else { Poll::Pending }
    /// });
    /// let wakes = async {
    ///     done.set(true);
    ///     shard.wake(waiter.take().unwrap());
    /// };
    /// assert_eq!(futures::join!(waits, wakes).0, "woken");
    /// # Ok(()) }).unwrap();
    /// ```
    fn wake(&self, waiter: Waiter);

    /// Runs `task` on this shard, after and apart from the caller: the janitor, for what a cancelled operation leaves
    /// to do (`Drop` itself does no remote work). It pins the epoch that the operation has pinned.
    ///
    /// ```
    /// # use farwood_runtime::{Verbs, on_one_shard};
    /// # use futures::channel::oneshot;
    /// # on_one_shard(async |shard| {
    /// let (tells, hears) = oneshot::channel();
    /// shard.defer(async move { tells.send("tidied up").unwrap() });
    /// assert_eq!(hears.await, Ok("tidied up"));
    /// # Ok(()) }).unwrap();
    /// ```
    fn defer(&self, task: impl Future<Output = ()> + 'static) {
        self.attend(self.pins().leave(task));
    }

    /// Runs `task` as [`Verbs::defer`] does, and pins no epoch: it follows no pointers of an index, and may live for as
    /// long as clients wait.
    ///
    /// ```
    /// # use farwood_runtime::{Verbs, on_one_shard};
    /// # use futures::channel::oneshot;
    /// # on_one_shard(async |shard| {
    /// let (tells, hears) = oneshot::channel();
    /// shard.attend(async move { tells.send("looked after").unwrap() });
    /// assert_eq!(hears.await, Ok("looked after"));
    /// # Ok(()) }).unwrap();
    /// ```
    fn attend(&self, task: impl Future<Output = ()> + 'static);

    /// Sends a message to the actor at `port` of shard `to` (this one included). Never blocks; messages between two
    /// shards arrive in order, also before their receiver listens.
    ///
    /// ```
    /// # use farwood_runtime::{Message, Port, Verbs, on_one_shard};
    /// # use futures::{StreamExt, channel::mpsc};
    /// # use std::rc::Rc;
    /// # on_one_shard(async |shard| {
    /// let (tells, mut hears) = mpsc::unbounded();
    /// shard.send(shard.shard(), Port(0), Message([7, 0, 0])); // It waits for its receiver.
    /// shard.listen(Port(0), Rc::new(move |_from, message| tells.unbounded_send(message).unwrap()));
    /// assert_eq!(hears.next().await, Some(Message([7, 0, 0])));
    /// # Ok(()) }).unwrap();
    /// ```
    fn send(&self, to: ShardId, port: Port, message: Message);

    /// Tells whether shard `to` of this compute node has ended while others of it are at work, by an executor that
    /// returned without closing it, or by dropping it: messages to it are never answered.
    ///
    /// ```
    /// # use farwood_runtime::{Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// assert!(!shard.has_ended(shard.shard()));
    /// # Ok(()) }).unwrap();
    /// ```
    fn has_ended(&self, _to: ShardId) -> bool {
        false
    }

    /// Passes the messages that come to `port` of this shard to `handler`, those that came already first.
    ///
    /// ```
    /// # use farwood_runtime::{Message, Port, ShardId, Verbs, on_one_shard};
    /// # use futures::{StreamExt, channel::mpsc};
    /// # use std::rc::Rc;
    /// # on_one_shard(async |shard| {
    /// let (tells, mut hears) = mpsc::unbounded();
    /// shard.listen(Port(0), Rc::new(move |from, message| {
    ///     tells.unbounded_send((from, message.0[0])).unwrap();
    /// }));
    /// shard.send(shard.shard(), Port(0), Message([7, 0, 0]));
    /// assert_eq!(hears.next().await, Some((ShardId(0), 7)));
    /// # Ok(()) }).unwrap();
    /// ```
    fn listen(&self, port: Port, handler: Handler);

    /// Passes messages to an actor that may be removed when the lease of its port has gone
    /// ([`PortLease`](crate::message::PortLease)): it is removed when the actors of the port are at rest on all shards.
    /// A fabric whose shards do not live for long may keep it.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # use std::rc::Rc;
    /// # let config = NodeConfig { shards: 1, ..Default::default() };
    /// # let node = ComputeNode::new(Cluster::embedded(EmbeddedConfig::small())?, config)?;
    /// # let cloned = node.clone();
    /// # node.run(move |shard: Shard| { let node = cloned.clone(); async move {
    /// let lease = node.allocate_port();
    /// shard.listen_while_leased(lease.port(), Rc::new(|_from, _message| ()), Rc::new(|| true));
    /// assert_eq!(shard.actors(), 1);
    /// drop(lease);
    /// while node.ports_in_use() > 0 {
    ///     shard.pause(1_000).await;
    /// }
    /// assert_eq!(shard.actors(), 0);
    /// # } })?;
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    fn listen_while_leased(&self, port: Port, handler: Handler, _at_rest: AtRest) {
        self.listen(port, handler);
    }
}
