//! The shard that indexes run on in a simulation, which a negative control may steer. One type with steering and
//! without, since the trees are compiled once more for each type of shards.

use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use farwood_runtime::sim::SimShard;
use farwood_runtime::{
    Chain, ClientPool, Completion, Failed, JoinHandle, Message, Meter, Port, ShardId, Verbs, forward_verbs,
};

/// The end of a chain.
pub type Ended = Result<Completion, Failed>;

/// The change of a chain's end.
pub type Forge = Box<dyn FnOnce(Ended) -> Ended>;

/// The will of a control about one shard: about its chains and messages.
pub trait Steering {
    /// Changes a chain that is about to be posted, and yields what is to be made of its end. `is_counted` tells
    /// whether the chain counts its round trip by itself: one that does not is one of several in parallel.
    fn begin(&self, chain: Chain, is_counted: bool) -> (Chain, Forge);

    /// Tells whether a message arrives.
    fn arrives(&self, message: &Message) -> bool;
}

/// A simulated shard, and what steers it. Of the size of a shard: indexes count what their handles take.
#[derive(Clone)]
pub struct Steerable(Rc<Steered>);

/// The shard and the steering of a [`Steerable`].
pub struct Steered {
    shard: SimShard,
    by: Option<Rc<dyn Steering>>,
}

impl Deref for Steerable {
    type Target = Steered;

    fn deref(&self) -> &Steered {
        &self.0
    }
}

impl Steerable {
    /// Lets the shard be steered, by nothing if there is nothing to steer it.
    pub fn new(shard: SimShard, by: Option<Rc<dyn Steering>>) -> Self {
        Steerable(Rc::new(Steered { shard, by }))
    }

    /// Returns the simulated shard.
    pub fn simulated(&self) -> &SimShard {
        &self.shard
    }

    fn begun(
        &self,
        chain: Chain,
        is_counted: bool,
        post: impl FnOnce(&SimShard, Chain) -> <SimShard as Verbs>::Submission,
    ) -> Submission {
        match &self.by {
            None => Submission { chain: post(&self.shard, chain), forge: None },
            Some(by) => {
                let (chain, forge) = by.begin(chain, is_counted);
                Submission { chain: post(&self.shard, chain), forge: Some(forge) }
            }
        }
    }
}

impl From<SimShard> for Steerable {
    fn from(shard: SimShard) -> Self {
        Steerable::new(shard, None)
    }
}

impl Verbs for Steerable {
    type Submission = Submission;
    type Pause = <SimShard as Verbs>::Pause;

    forward_verbs!(shard: shard, shards, node_id, capabilities, control, pins, lease, now, random);
    forward_verbs!(shard: pause, waiter, wake, attend, has_ended, listen, listen_while_leased);

    fn post(&self, meter: &Meter, chain: Chain) -> Submission {
        self.begun(chain, false, |shard, chain| shard.post(meter, chain))
    }

    fn submit(&self, meter: &Meter, chain: Chain) -> Submission {
        self.begun(chain, true, |shard, chain| shard.submit(meter, chain))
    }

    fn send(&self, to: ShardId, port: Port, message: Message) {
        if self.by.as_ref().is_none_or(|by| by.arrives(&message)) {
            self.shard.send(to, port, message);
        }
    }
}

impl ClientPool for Steerable {
    fn spawn<T: 'static>(&self, client: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        self.shard.spawn(client)
    }

    fn buffers_leased(&self) -> usize {
        self.shard.buffers_leased()
    }

    fn chains_in_flight(&self) -> usize {
        self.shard.chains_in_flight()
    }

    fn clients_alive(&self) -> usize {
        self.shard.clients_alive()
    }
}

/// A posted chain of a [`Steerable`].
pub struct Submission {
    chain: <SimShard as Verbs>::Submission,
    forge: Option<Forge>,
}

impl Future for Submission {
    type Output = Ended;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Ended> {
        let ended = ready!(Pin::new(&mut self.chain).poll(cx));
        Poll::Ready(match self.forge.take() {
            None => ended,
            Some(forge) => forge(ended),
        })
    }
}
