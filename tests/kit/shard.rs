//! The shard that most tests run on: one of a node's executors, or a simulated one. What is tested is generic in its
//! shard, and compiling it takes most of the time of building tests, so that all fabrics share one type here.
#![allow(dead_code, clippy::allow_attributes, reason = "a program may steer no shard")]

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use farwood_runtime::epoch::Pins;
use farwood_runtime::sim::SimShard;
use farwood_runtime::verbs::{AtRest, Handler};
use farwood_runtime::{
    Buf, Capabilities, Chain, ClientPool, Completion, Control, Failed, JoinHandle, Message, Meter, Port,
    Shard, ShardId, Verbs, Waiter,
};
use futures::FutureExt;
use futures::future::LocalBoxFuture;

/// A shard of any fabric.
#[derive(Clone)]
pub(crate) enum TestShard {
    /// Of a compute node whose memory servers are in this process or behind sockets.
    Node(Shard),
    /// Of a simulation.
    Simulated(SimShard),
    /// One of these that a test steers.
    Steered(Rc<Steered>),
}

/// A shard, and what a test makes of it.
pub(crate) struct Steered {
    shard: TestShard,
    by: Rc<dyn Steering>,
}

/// The will of a test about a shard: about its chains, pauses and tasks.
pub(crate) trait Steering {
    /// Posts a chain, or does something else about it.
    fn post(&self, shard: &TestShard, meter: &Meter, chain: Chain) -> LocalBoxFuture<'static, Ended>;

    /// Notes that a client pauses.
    fn pauses(&self, _shard: &TestShard, _ns: u64) {}

    /// Runs a task apart, now or later.
    fn attend(&self, shard: &TestShard, task: LocalBoxFuture<'static, ()>) {
        shard.attend(task);
    }
}

/// The end of a chain.
pub(crate) type Ended = Result<Completion, Failed>;

impl TestShard {
    /// Lets a test steer the shard.
    pub(crate) fn steered(self, by: Rc<dyn Steering>) -> Self {
        TestShard::Steered(Rc::new(Steered { shard: self, by }))
    }

    /// Yields the simulated shard.
    ///
    /// # Panics
    /// If it is none.
    pub(crate) fn simulated(&self) -> &SimShard {
        let TestShard::Simulated(shard) = self else { panic!("the test runs in no simulation") };
        shard
    }

    /// Yields the shard of a compute node.
    ///
    /// # Panics
    /// If it is a simulated one.
    pub(crate) fn of_node(&self) -> &Shard {
        let TestShard::Node(shard) = self else { panic!("the test runs in a simulation") };
        shard
    }
}

/// Calls a method of either shard.
macro_rules! either {
    ($self:ident, $shard:ident => $call:expr) => {
        match $self {
            TestShard::Node($shard) => $call,
            TestShard::Simulated($shard) => $call,
            TestShard::Steered(steered) => {
                let $shard = &steered.shard;
                $call
            }
        }
    };
}

/// A chain of any shard.
pub(crate) enum Submission {
    Node(<Shard as Verbs>::Submission),
    Simulated(<SimShard as Verbs>::Submission),
    Steered(LocalBoxFuture<'static, Ended>),
}

impl Future for Submission {
    type Output = Ended;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Ended> {
        match self.get_mut() {
            Submission::Node(chain) => Pin::new(chain).poll(cx),
            Submission::Simulated(chain) => Pin::new(chain).poll(cx),
            Submission::Steered(chain) => chain.as_mut().poll(cx),
        }
    }
}

/// A pause of any shard.
pub(crate) enum Pause {
    Node(<Shard as Verbs>::Pause),
    Simulated(<SimShard as Verbs>::Pause),
}

impl Future for Pause {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.get_mut() {
            Pause::Node(pause) => Pin::new(pause).poll(cx),
            Pause::Simulated(pause) => Pin::new(pause).poll(cx),
        }
    }
}

impl Verbs for TestShard {
    type Submission = Submission;
    type Pause = Pause;

    fn shard(&self) -> ShardId {
        either!(self, shard => shard.shard())
    }

    fn shards(&self) -> usize {
        either!(self, shard => shard.shards())
    }

    fn node_id(&self) -> u16 {
        either!(self, shard => shard.node_id())
    }

    fn capabilities(&self) -> &Capabilities {
        either!(self, shard => shard.capabilities())
    }

    fn control(&self) -> &Arc<dyn Control> {
        either!(self, shard => shard.control())
    }

    fn pins(&self) -> &Rc<Pins> {
        either!(self, shard => shard.pins())
    }

    fn lease(&self, bytes: usize) -> Buf {
        either!(self, shard => shard.lease(bytes))
    }

    fn post(&self, meter: &Meter, chain: Chain) -> Submission {
        match self {
            TestShard::Node(shard) => Submission::Node(shard.post(meter, chain)),
            TestShard::Simulated(shard) => Submission::Simulated(shard.post(meter, chain)),
            TestShard::Steered(steered) => Submission::Steered(steered.by.post(&steered.shard, meter, chain)),
        }
    }

    fn now(&self) -> u64 {
        either!(self, shard => shard.now())
    }

    fn random(&self) -> u64 {
        either!(self, shard => shard.random())
    }

    fn pause(&self, ns: u64) -> Pause {
        match self {
            TestShard::Node(shard) => Pause::Node(shard.pause(ns)),
            TestShard::Simulated(shard) => Pause::Simulated(shard.pause(ns)),
            TestShard::Steered(steered) => {
                steered.by.pauses(&steered.shard, ns);
                steered.shard.pause(ns)
            }
        }
    }

    fn waiter(&self, cx: &mut Context<'_>) -> Waiter {
        either!(self, shard => shard.waiter(cx))
    }

    fn wake(&self, waiter: Waiter) {
        either!(self, shard => shard.wake(waiter));
    }

    fn attend(&self, task: impl Future<Output = ()> + 'static) {
        match self {
            TestShard::Node(shard) => shard.attend(task),
            TestShard::Simulated(shard) => shard.attend(task),
            TestShard::Steered(steered) => steered.by.attend(&steered.shard, task.boxed_local()),
        }
    }

    fn send(&self, to: ShardId, port: Port, message: Message) {
        either!(self, shard => shard.send(to, port, message));
    }

    fn has_ended(&self, to: ShardId) -> bool {
        either!(self, shard => shard.has_ended(to))
    }

    fn listen(&self, port: Port, handler: Handler) {
        either!(self, shard => shard.listen(port, handler));
    }

    fn listen_while_leased(&self, port: Port, handler: Handler, at_rest: AtRest) {
        either!(self, shard => shard.listen_while_leased(port, handler, at_rest));
    }
}

impl ClientPool for TestShard {
    fn spawn<T: 'static>(&self, client: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        match self {
            TestShard::Node(shard) => shard.spawn(client),
            TestShard::Simulated(shard) => shard.spawn(client),
            // In a box, or the type would grow without end.
            TestShard::Steered(steered) => steered.shard.spawn(client.boxed_local()),
        }
    }

    fn buffers_leased(&self) -> usize {
        either!(self, shard => shard.buffers_leased())
    }

    fn chains_in_flight(&self) -> usize {
        either!(self, shard => shard.chains_in_flight())
    }

    fn clients_alive(&self) -> usize {
        either!(self, shard => shard.clients_alive())
    }
}
