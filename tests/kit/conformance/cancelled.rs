//! Operations that are dropped after every possible number of polls, among others that are not: whatever was
//! under way has taken effect or has not, and nothing stays behind.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use farwood::runtime::ClientPool;
use farwood::{IndexKind, OpKind, RangeIndex};
use futures::TryStreamExt;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{Fabric, in_every_setting, on_index};
use crate::kit::cancel::{Drops, after_polls};
use crate::kit::cluster::{Model, Parties, TestCluster};
use crate::kit::kind::{Mixes, Shape};
use crate::kit::{key, number};

/// Beyond this many polls every operation is done, but a few that wait long for locks: those are tried at
/// random.
const POLLS_MAX: usize = 14;

/// The operations that are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dropped {
    Point(OpKind),
    MultiGet,
}

const DROPPED: [Dropped; 7] = [
    Dropped::Point(OpKind::Get),
    Dropped::Point(OpKind::Put),
    Dropped::Point(OpKind::Insert),
    Dropped::Point(OpKind::Update),
    Dropped::Point(OpKind::Remove),
    Dropped::Point(OpKind::Scan),
    Dropped::MultiGet,
];

/// A client whose keys no other client touches: it knows what must be there.
struct Client<V: ClientPool> {
    cluster: TestCluster<V>,
    model: Model,
    rng: SmallRng,
    me: u64,
    clients: u64,
    written: u64,
}

impl<V: ClientPool> Client<V> {
    fn new(cluster: TestCluster<V>, me: u64, clients: u64) -> Self {
        let rng = SmallRng::seed_from_u64(me);
        Client { cluster, model: Model::new(), rng, me, clients, written: 0 }
    }

    /// Draws one of its keys, between those of all other clients.
    fn some_key(&mut self) -> Vec<u8> {
        key(self.rng.random_range(0..24) * self.clients + self.me).to_vec()
    }

    fn new_value(&mut self) -> Vec<u8> {
        self.written += 1;
        key(self.me << 32 | self.written).to_vec()
    }

    /// Runs an operation to its end.
    async fn operate(&mut self) {
        let (key, value) = (self.some_key(), self.new_value());
        let index = self.cluster.index.clone();
        let present = self.model.contains_key(&key);
        match self.rng.random_range(0..6) {
            0 => {
                index.put(&key, &value).await.unwrap();
                self.model.insert(key, value);
            }
            1 | 2 => {
                assert_eq!(index.insert(&key, &value).await.unwrap(), !present);
                self.model.entry(key).or_insert(value);
            }
            3 => {
                assert_eq!(index.update(&key, &value).await.unwrap(), present);
                self.model.entry(key).and_modify(|old| *old = value);
            }
            4 => assert_eq!(index.remove(&key).await.unwrap(), self.model.remove(&key).is_some()),
            _ => {
                assert_eq!(index.get(&key).await.unwrap().as_deref(), self.model.get(&key).map(Vec::as_slice))
            }
        }
    }

    /// Drops an operation after `polls` polls. Yields whether it was done by then.
    async fn cancel(&mut self, what: Dropped, polls: usize, drops: Drops) -> bool {
        let (key, value) = (self.some_key(), self.new_value());
        let (old, written) = (self.model.get(&key).cloned(), value.clone());
        let (done, new) = match what {
            Dropped::Point(op) => self.cancel_point(op, (&key, value), polls, drops).await,
            Dropped::MultiGet => {
                let keys: Vec<_> = (0..5).map(|_| self.some_key()).collect();
                let values = after_polls(self.cluster.index.multi_get(&keys), polls, drops).await;
                let values = values.map(Result::unwrap);
                for (key, value) in keys.iter().zip(values.iter().flatten()) {
                    assert_eq!(value.as_deref(), self.model.get(key).map(Vec::as_slice));
                }
                (values.is_some(), old.clone())
            }
        };
        // Behind the dropped operation's chain on the same queue pair: it has taken effect by now, or never will, but
        // for what goes on with others.
        let found = self.cluster.index.get(&key).await.unwrap().map(|value| value.to_vec());
        assert!(
            if done { found == new } else { found == old || found == new },
            "{what:?} of {written:?} after {polls} polls ({drops:?}, done: {done}): \
             {old:?} became {found:?}, not {new:?}"
        );
        match found {
            Some(value) => self.model.insert(key.clone(), value),
            None => self.model.remove(&key),
        };
        if !done && self.cluster.index.kind().trial().finishes_what_was_dropped {
            self.settled(key, &[old, new]).await;
        }
        done
    }

    /// Looks again when all that was posted is executed and the janitor is done: what is there then stays, whatever
    /// others do to keys beside it.
    async fn settled(&mut self, key: Vec<u8>, either: &[Option<Vec<u8>>]) {
        self.cluster.shard.pause(100_000).await;
        let found = self.cluster.index.get(&key).await.unwrap().map(|value| value.to_vec());
        assert!(either.contains(&found), "{key:?} became {found:?}, and not one of {either:?}");
        match found {
            Some(value) => self.model.insert(key, value),
            None => self.model.remove(&key),
        };
    }

    /// Yields also what is there if it takes effect.
    async fn cancel_point(
        &self,
        op: OpKind,
        (key, value): (&[u8], Vec<u8>),
        polls: usize,
        drops: Drops,
    ) -> (bool, Option<Vec<u8>>) {
        let index = &self.cluster.index;
        let old = self.model.get(key);
        let ended = |done: Option<bool>, expected: bool| {
            assert!(
                done.is_none_or(|done| done == expected),
                "{op:?} of {key:?} said {done:?}: {old:?} is there"
            );
            done.is_some()
        };
        match op {
            OpKind::Get => {
                let found = after_polls(index.get(key), polls, drops).await.map(Result::unwrap);
                let found = found.map(|found| found.as_deref() == old.map(Vec::as_slice));
                (ended(found, true), old.cloned())
            }
            OpKind::Put => {
                let put = after_polls(index.put(key, &value), polls, drops).await;
                (put.map(Result::unwrap).is_some(), Some(value))
            }
            OpKind::Insert => {
                let inserted = after_polls(index.insert(key, &value), polls, drops).await;
                (ended(inserted.map(Result::unwrap), old.is_none()), old.cloned().or(Some(value)))
            }
            OpKind::Update => {
                let updated = after_polls(index.update(key, &value), polls, drops).await;
                (ended(updated.map(Result::unwrap), old.is_some()), old.map(|_| value))
            }
            OpKind::Remove => {
                let removed = after_polls(index.remove(key), polls, drops).await;
                (ended(removed.map(Result::unwrap), old.is_some()), None)
            }
            OpKind::Scan => {
                let scan = index.scan(key.., Some(20)).try_collect::<Vec<_>>();
                let pairs = after_polls(scan, polls, drops).await.map(Result::unwrap);
                if let Some((first, found)) = pairs.iter().flatten().next()
                    && first[..] == *key
                {
                    assert_eq!(Some(found.as_slice()), old.map(Vec::as_slice));
                }
                (pairs.is_some(), old.cloned())
            }
        }
    }

    /// Drops every operation after every number of polls, so many times; yields how many were not done by then.
    async fn cancel_everything(&mut self, rounds: usize) -> usize {
        let mut dropped = 0;
        for _ in 0..rounds {
            for what in DROPPED {
                for polls in 0..POLLS_MAX {
                    let last = polls + 1 == POLLS_MAX;
                    let polls = if last { self.rng.random_range(polls..60) } else { polls };
                    for drops in [Drops::AtOnce, Drops::WhenWoken] {
                        dropped += usize::from(!self.cancel(what, polls, drops).await);
                    }
                }
            }
        }
        dropped
    }
}

pub(crate) fn dropped_operations<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    let rounds = fabric.size().steps(2, 1);
    in_every_setting(fabric, kind, Shape::TINY, || {
        move |cluster: TestCluster<V>| cancel_among_others(cluster, 3, 5, rounds)
    });
}

/// Drops operations among those of other clients; at the end nothing is left behind and every key is in its place.
async fn cancel_among_others<V: ClientPool>(
    cluster: TestCluster<V>,
    cancellers: usize,
    others: usize,
    rounds: usize,
) {
    let clients = (2 * (cancellers + others)) as u64;
    let models: Rc<RefCell<Model>> = Rc::default();
    let running = Rc::new(Cell::new(cancellers));
    cluster.meet().await;
    let dropped = cluster
        .clients(cancellers + others, |c| {
            let mut client = Client::new(cluster.clone(), (2 * c + cluster.place) as u64, clients);
            let (models, running) = (Rc::clone(&models), Rc::clone(&running));
            async move {
                let mut dropped = 0;
                if c < cancellers {
                    dropped = client.cancel_everything(rounds).await;
                    running.set(running.get() - 1);
                }
                while running.get() > 0 {
                    client.operate().await;
                }
                models.borrow_mut().append(&mut client.model);
                dropped
            }
        })
        .await;
    let dropped: usize = dropped.into_iter().sum();
    assert!(dropped > 100, "hardly anything was dropped: {dropped}");
    cluster.rest().await;
    let model = models.borrow().clone();
    for (key, value) in &model {
        assert_eq!(cluster.index.get(key).await.unwrap().as_deref(), Some(&value[..]));
    }
    let all: Model = crate::kit::all_pairs(&cluster.index).await.into_iter().collect();
    let mine = |key: &Vec<u8>| number(key) % clients % 2 == cluster.place as u64;
    assert!(all.iter().filter(|(key, _)| mine(key)).eq(&model), "keys that should be gone, or are");
    // No duplicate, and no separator that a dropped split owed.
    cluster.holds(&all).await;
}

/// Uses few keys, so that all clients wait for the same few locks, and locks are handed over to clients that
/// are gone.
pub(crate) fn waiters_that_leave_the_queue<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    let (clients, puts) = (fabric.size().steps(40, 12), fabric.size().steps(40, 8) as u64);
    for parties in [Parties::Shards(2), Parties::Shards(3), Parties::Nodes(2)] {
        for mix in fabric.size().few(kind.mixes()) {
            on_index(fabric, parties, Shape::TINY.of(mix), || {
                move |cluster: TestCluster<V>| async move {
                    if cluster.place == 0 {
                        for n in 0..3 {
                            cluster.index.put(&key(n), b"").await.unwrap();
                        }
                    }
                    cluster.meet().await;
                    let ended = cluster.clients(clients, |c| wait_or_leave(cluster.clone(), c, puts)).await;
                    assert!(ended.iter().step_by(4).all(|ended| *ended == puts));
                    cluster.rest().await;
                    for n in 0..3 {
                        cluster.index.put(&key(n), b"end").await.unwrap();
                    }
                    cluster.rest().await;
                    cluster.holds(&(0..3).map(|n| (key(n).to_vec(), b"end".to_vec())).collect()).await;
                }
            });
        }
    }
}

/// Puts `puts` times; one client in four waits for each. Yields how many were done.
async fn wait_or_leave<V: ClientPool>(cluster: TestCluster<V>, client: usize, puts: u64) -> u64 {
    let mut rng = SmallRng::seed_from_u64((cluster.place * 1000 + client) as u64);
    let mut ended = 0;
    for i in 0..puts {
        let (own, value) = (key(rng.random_range(0..3)), key(i));
        let put = cluster.index.put(&own, &value);
        if client.is_multiple_of(4) {
            put.await.unwrap();
            ended += 1;
        } else {
            let polls = rng.random_range(0..6);
            let drops = if rng.random() { Drops::AtOnce } else { Drops::WhenWoken };
            let done = after_polls(put, polls, drops).await.map(Result::unwrap);
            ended += u64::from(done.is_some());
        }
    }
    ended
}
