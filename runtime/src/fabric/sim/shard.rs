//! A simulated shard, as the code above the fabric contract sees it.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::host_core::HostCore;
use crate::buffer::Buf;
use crate::chain::{Chain, Op};
use crate::control::Control;
use crate::engine::SlotKey;
use crate::message::{Envelope, Message, Port, ShardId};
use crate::meter::Meter;
use crate::shard::{ClientPool, JoinHandle};
use crate::verbs::{Capabilities, Completion, Failed, Handler, Verbs};
use crate::waiter::Waiter;

/// A handle to a simulated shard. Clones are cheap.
#[derive(Clone)]
pub struct SimShard(pub(super) Rc<HostCore>);

impl SimShard {
    /// Runs `client` as one of the shard's clients. It runs to its end also if the handle is dropped, unless its node
    /// stops or the simulation ends.
    ///
    /// ```
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// # let simulation = Simulation::new(&SimConfig::default()).unwrap();
    /// let mut client = simulation.shard(0, 0).spawn(async { 7 });
    /// assert_eq!(simulation.run(1_000_000, || false), Err(farwood_runtime::sim::Stop::Idle));
    /// assert_eq!(futures::FutureExt::now_or_never(&mut client), Some(7));
    /// ```
    pub fn spawn<T: 'static>(&self, client: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        let (task, handle) = JoinHandle::around(client);
        self.0.clients.spawn(task);
        self.0.request_turn();
        handle
    }

    /// Lets the core compute for `ns` nanoseconds: what a client does beside posting and waiting.
    ///
    /// ```
    /// # use farwood_runtime::Verbs;
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// # let simulation = Simulation::new(&SimConfig::default()).unwrap();
    /// # let shard = simulation.shard(0, 0);
    /// let me = shard.clone();
    /// let took = simulation.block_on(&shard, 1_000_000, async move {
    ///     let before = me.now();
    ///     me.work(5_000);
    ///     me.pause(0).await;
    ///     me.now() - before
    /// });
    /// assert!(took.unwrap() >= 5_000);
    /// ```
    pub fn work(&self, ns: u64) {
        self.0.work(ns);
    }

    /// Returns the compute node's place in the simulation.
    ///
    /// ```
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// let simulation = Simulation::new(&SimConfig { nodes: 2, ..Default::default() }).unwrap();
    /// assert_eq!(simulation.shard(1, 0).node(), 1);
    /// ```
    pub fn node(&self) -> u16 {
        self.0.node
    }

    /// Tells whether its compute node has stopped.
    ///
    /// ```
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// # let simulation = Simulation::new(&SimConfig::default()).unwrap();
    /// let shard = simulation.shard(0, 0);
    /// assert!(!shard.is_dead());
    /// simulation.stop_node(0);
    /// assert!(shard.is_dead());
    /// ```
    pub fn is_dead(&self) -> bool {
        self.0.is_dead()
    }

    /// Chains that were submitted so far. Where one client has the shard to itself and posts nothing in parallel, they
    /// are its round trips.
    ///
    /// ```
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// # use farwood_runtime::{Meter, Verbs};
    /// # let simulation = Simulation::new(&SimConfig::default()).unwrap();
    /// # let shard = simulation.shard(0, 0);
    /// let at = shard.control().servers()[0].locks.base;
    /// let read = shard.read(&Meter::default(), at, 64);
    /// assert!(simulation.block_on(&shard, 1_000_000, read).unwrap().is_ok());
    /// assert_eq!(shard.chains_posted(), 1);
    /// ```
    pub fn chains_posted(&self) -> u64 {
        self.0.posted.get()
    }

    /// Counts the payload bytes that those chains write, unlocks included.
    ///
    /// ```
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// # use farwood_runtime::{Meter, Verbs};
    /// # let simulation = Simulation::new(&SimConfig::default()).unwrap();
    /// # let shard = simulation.shard(0, 0);
    /// let at = shard.control().servers()[0].locks.base;
    /// let write = shard.submit_built(&Meter::default(), at.server(), None, |chain| {
    ///     chain.write_word(at, 7);
    /// });
    /// assert!(simulation.block_on(&shard, 1_000_000, write).unwrap().is_ok());
    /// assert_eq!(shard.bytes_written(), 8);
    /// ```
    pub fn bytes_written(&self) -> u64 {
        self.0.written.get()
    }
}

impl ClientPool for SimShard {
    fn spawn<T: 'static>(&self, client: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        SimShard::spawn(self, client)
    }

    fn buffers_leased(&self) -> usize {
        self.0.buffers.leased()
    }

    fn chains_in_flight(&self) -> usize {
        self.0.engine().in_flight()
    }

    fn clients_alive(&self) -> usize {
        self.0.clients.alive()
    }
}

impl Verbs for SimShard {
    type Submission = SimSubmission;
    type Pause = SimPause;

    fn shard(&self) -> ShardId {
        self.0.shard
    }

    fn shards(&self) -> usize {
        self.0.shards
    }

    fn node_id(&self) -> u16 {
        self.0.node_id
    }

    fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    fn control(&self) -> &Arc<dyn Control> {
        &self.0.control
    }

    fn lease(&self, bytes: usize) -> Buf {
        self.0.buffers.lease(bytes)
    }

    fn post(&self, meter: &Meter, chain: Chain) -> SimSubmission {
        meter.verbs(chain.verbs());
        self.0.posted.set(self.0.posted.get() + 1);
        self.0.written.set(self.0.written.get() + written_by(&chain));
        let slot = self.0.engine().submit(chain);
        SimSubmission { core: Rc::clone(&self.0), slot: Some(slot) }
    }

    fn now(&self) -> u64 {
        self.0.tell_time()
    }

    fn random(&self) -> u64 {
        self.0.random()
    }

    fn pause(&self, ns: u64) -> SimPause {
        // At least a nanosecond: a client that waits for the clock in a loop gets there.
        SimPause {
            core: Rc::clone(&self.0),
            until_ns: self.0.tell_time().saturating_add(ns.max(1)),
            timer: None,
        }
    }

    fn waiter(&self, cx: &mut Context<'_>) -> Waiter {
        self.0.waiter(cx)
    }

    fn wake(&self, waiter: Waiter) {
        self.0.wake(waiter);
    }

    fn defer(&self, task: impl Future<Output = ()> + 'static) {
        // A stopped node cleans nothing up.
        if self.0.world.is_over() || self.0.is_dead() {
            return;
        }
        self.0.clients.spawn(Box::pin(task));
        self.0.request_turn();
    }

    fn send(&self, to: ShardId, port: Port, message: Message) {
        if !self.0.world.is_over() {
            self.0.world.send(&self.0, to, Envelope { port, message });
        }
    }

    fn listen(&self, port: Port, handler: Handler) {
        self.0.ports.listen(port, handler, None);
    }
}

fn written_by(chain: &Chain) -> u64 {
    let bytes = chain.verbs().iter().map(|verb| match verb.op {
        Op::Write { len, .. } => u64::from(len),
        Op::WriteWord { .. } => 8,
        _ => 0,
    });
    bytes.sum()
}

/// A posted chain of a [`SimShard`].
pub struct SimSubmission {
    core: Rc<HostCore>,
    slot: Option<SlotKey>,
}

impl Future for SimSubmission {
    type Output = Result<Completion, Failed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let slot = this.slot.expect("a submission is not polled after it was ready");
        let outcome = this.core.engine().take(slot, || this.core.waiter(cx));
        if outcome.is_ready() {
            this.slot = None;
        }
        outcome
    }
}

impl Drop for SimSubmission {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.core.engine().orphan(slot);
        }
    }
}

/// A wait of a [`SimShard`] until some moment of virtual time.
pub struct SimPause {
    core: Rc<HostCore>,
    until_ns: u64,
    timer: Option<u32>,
}

impl Future for SimPause {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.core.now() >= self.until_ns {
            return Poll::Ready(());
        }
        let waiter = self.core.waiter(cx);
        match self.timer {
            Some(timer) => self.core.replace_timer(timer, waiter),
            None => self.timer = Some(self.core.set_timer(self.until_ns, waiter)),
        }
        Poll::Pending
    }
}

impl Drop for SimPause {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            self.core.cancel_timer(timer);
        }
    }
}
