//! Operations that are dropped after every possible number of polls, among others that are not: whatever was
//! under way has taken effect or has not, and nothing stays behind.

mod kit;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use farwood::{OpKind, Options, RangeIndex, Sherman, Techniques};
use futures::TryStreamExt;
use futures::executor::block_on;
use kit::cancel::{Drops, after_polls};
use kit::{Parties, Party, TINY, key, with_parties, with_parties_on};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Beyond this many polls every operation is done, but a few that wait long for locks: those are tried at
/// random.
const POLLS_MAX: usize = 14;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a dropped operation was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Point(OpKind),
    MultiGet,
}

const KINDS: [Kind; 7] = [
    Kind::Point(OpKind::Get),
    Kind::Point(OpKind::Put),
    Kind::Point(OpKind::Insert),
    Kind::Point(OpKind::Update),
    Kind::Point(OpKind::Remove),
    Kind::Point(OpKind::Scan),
    Kind::MultiGet,
];

/// A client whose keys nobody else touches: it knows what must be there.
struct Client {
    party: Party,
    model: Model,
    rng: SmallRng,
    me: u64,
    clients: u64,
    written: u64,
}

impl Client {
    fn new(party: Party, me: u64, clients: u64) -> Self {
        let rng = SmallRng::seed_from_u64(me);
        Client { party, model: Model::new(), rng, me, clients, written: 0 }
    }

    /// One of its keys, between those of all other clients.
    fn some_key(&mut self) -> Vec<u8> {
        key(self.rng.random_range(0..24) * self.clients + self.me).to_vec()
    }

    fn new_value(&mut self) -> Vec<u8> {
        self.written += 1;
        key(self.me << 32 | self.written).to_vec()
    }

    /// An operation that runs to its end.
    async fn operate(&mut self) {
        let (key, value) = (self.some_key(), self.new_value());
        let index = self.party.index.clone();
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

    /// An operation that is dropped after `polls` polls. Yields whether it was done by then.
    async fn cancel(&mut self, kind: Kind, polls: usize, drops: Drops) -> bool {
        let (key, value) = (self.some_key(), self.new_value());
        let index = self.party.index.clone();
        let old = self.model.get(&key).cloned();
        let (done, new) = match kind {
            Kind::Point(OpKind::Get) => {
                let found = after_polls(index.get(&key), polls, drops).await;
                if let Some(found) = &found {
                    assert_eq!(found.as_ref().unwrap().as_deref(), old.as_deref());
                }
                (found.is_some(), old.clone())
            }
            Kind::Point(OpKind::Put) => {
                let put = after_polls(index.put(&key, &value), polls, drops).await;
                (put.map(Result::unwrap).is_some(), Some(value))
            }
            Kind::Point(OpKind::Insert) => {
                let inserted =
                    after_polls(index.insert(&key, &value), polls, drops).await.map(Result::unwrap);
                assert!(inserted.is_none_or(|inserted| inserted == old.is_none()));
                (inserted.is_some(), old.clone().or(Some(value)))
            }
            Kind::Point(OpKind::Update) => {
                let updated = after_polls(index.update(&key, &value), polls, drops).await.map(Result::unwrap);
                assert!(updated.is_none_or(|updated| updated == old.is_some()));
                (updated.is_some(), old.as_ref().map(|_| value))
            }
            Kind::Point(OpKind::Remove) => {
                let removed = after_polls(index.remove(&key), polls, drops).await.map(Result::unwrap);
                assert!(removed.is_none_or(|removed| removed == old.is_some()));
                (removed.is_some(), None)
            }
            Kind::Point(OpKind::Scan) => {
                let scan = index.scan(&key[..].., Some(20)).try_collect::<Vec<_>>();
                let pairs = after_polls(scan, polls, drops).await.map(Result::unwrap);
                if let Some((first, found)) = pairs.iter().flatten().next()
                    && first[..] == key[..]
                {
                    assert_eq!(Some(found.as_slice()), old.as_deref());
                }
                (pairs.is_some(), old.clone())
            }
            Kind::MultiGet => {
                let keys: Vec<_> = (0..5).map(|_| self.some_key()).collect();
                let values = after_polls(index.multi_get(&keys), polls, drops).await.map(Result::unwrap);
                for (key, value) in keys.iter().zip(values.iter().flatten()) {
                    assert_eq!(value.as_deref(), self.model.get(key).map(Vec::as_slice));
                }
                (values.is_some(), old.clone())
            }
        };
        // Behind the dropped operation's chain on the same queue pair: it has taken effect by now, or never
        // will.
        let found = index.get(&key).await.unwrap().map(|value| value.to_vec());
        assert!(
            if done { found == new } else { found == old || found == new },
            "{kind:?} after {polls} polls ({drops:?}, done: {done}): {old:?} became {found:?}, not {new:?}"
        );
        match found {
            Some(value) => self.model.insert(key, value),
            None => self.model.remove(&key),
        };
        done
    }
}

/// Everybody works among everybody; at the end nothing is left behind and every key is where it should be.
async fn cancel_among_others(party: Party, cancellers: usize, others: usize, rounds: usize) {
    let clients = (2 * (cancellers + others)) as u64;
    let dropped = Rc::new(Cell::new(0));
    let models: Rc<RefCell<Model>> = Rc::default();
    let running = Rc::new(Cell::new(cancellers));
    party.meet().await;
    party
        .clients(cancellers + others, |c| {
            let mut client = Client::new(party.clone(), (2 * c + party.place) as u64, clients);
            let (dropped, models, running) = (Rc::clone(&dropped), Rc::clone(&models), Rc::clone(&running));
            async move {
                if c >= cancellers {
                    while running.get() > 0 {
                        client.operate().await;
                    }
                } else {
                    for _ in 0..rounds {
                        for kind in KINDS {
                            for polls in 0..POLLS_MAX {
                                let polls = if polls + 1 == POLLS_MAX {
                                    client.rng.random_range(polls..60)
                                } else {
                                    polls
                                };
                                for drops in [Drops::AtOnce, Drops::WhenWoken] {
                                    let done = client.cancel(kind, polls, drops).await;
                                    dropped.set(dropped.get() + u32::from(!done));
                                }
                            }
                        }
                    }
                    running.set(running.get() - 1);
                }
                models.borrow_mut().append(&mut client.model);
            }
        })
        .await;
    assert!(dropped.get() > 100, "hardly anything was dropped: {}", dropped.get());
    party.rest().await;
    let model = models.borrow().clone();
    for (key, value) in &model {
        assert_eq!(party.index.get(key).await.unwrap().as_deref(), Some(&value[..]));
    }
    let found = kit::tree::read(&party.shard, kit::NAME, TINY).await;
    assert_eq!(found.orphans, 0, "separators that a dropped split owed are missing");
    let mine = |key: &&Vec<u8>| kit::number(key) % clients % 2 == party.place as u64;
    assert!(found.pairs.keys().filter(mine).eq(model.keys()), "keys that should be gone, or are");
    assert_eq!(party.index.survey().await.unwrap().keys, found.pairs.len() as u64);
    party.rest().await;
}

#[test]
fn every_operation_dropped_after_every_number_of_polls() {
    for parties in Parties::BOTH {
        for options in kit::option_mixes() {
            with_parties(parties, TINY, options, |party| cancel_among_others(party, 3, 5, 4));
        }
    }
}

/// Hardly any keys, so that everybody waits for the same few locks, and locks are handed over to clients that
/// are gone.
#[test]
fn waiters_that_leave_the_queue() {
    const CLIENTS: usize = 40;
    for parties in [Parties::Shards(2), Parties::Shards(3), Parties::Nodes(2)] {
        for techniques in kit::technique_mixes() {
            let options = Options { techniques, ..Options::default() };
            with_parties(parties, TINY, options, |party| async move {
                if party.place == 0 {
                    for n in 0..3 {
                        party.index.put(&key(n), b"").await.unwrap();
                    }
                }
                party.meet().await;
                let ended = party
                    .clients(CLIENTS, |c| {
                        let party = party.clone();
                        async move {
                            let mut rng = SmallRng::seed_from_u64((party.place * CLIENTS + c) as u64);
                            let mut ended = 0;
                            for i in 0..40u64 {
                                let (own, value) = (key(rng.random_range(0..3)), key(i));
                                let put = party.index.put(&own, &value);
                                if c % 4 == 0 {
                                    put.await.unwrap();
                                    ended += 1;
                                } else {
                                    let polls = rng.random_range(0..6);
                                    let drops = if rng.random() { Drops::AtOnce } else { Drops::WhenWoken };
                                    let done = after_polls(put, polls, drops).await.map(Result::unwrap);
                                    ended += usize::from(done.is_some());
                                }
                            }
                            ended
                        }
                    })
                    .await;
                assert!(ended.iter().step_by(4).all(|ended| *ended == 40));
                party.rest().await;
                for n in 0..3 {
                    party.index.put(&key(n), b"end").await.unwrap();
                }
                party.rest().await;
            });
        }
    }
}

/// First writes that are dropped give the leaf back that they would have planted.
#[test]
fn an_empty_tree_does_not_leak_leaves() {
    let cluster = farwood::Cluster::embedded(farwood::EmbeddedConfig {
        bytes_per_server: 160 << 10,
        chunk_bytes: 8 << 10,
        locks_per_server: 64,
        ..Default::default()
    })
    .unwrap();
    with_parties_on(&cluster, Parties::Shards(1), TINY, Options::default(), |party| async move {
        // Polls: the root word's READ, the leaf's WRITE, the root word's CAS.
        for i in 0..3000 {
            let drops = if i % 2 == 0 { Drops::AtOnce } else { Drops::WhenWoken };
            let put = after_polls(party.index.put(b"k", b"v"), 2, drops).await;
            assert!(put.is_none(), "the memory is all gone: {put:?}");
        }
        assert!(party.index.get(b"k").await.unwrap().is_none());
        party.index.put(b"k", b"v").await.unwrap();
        party.rest().await;
    });
}

/// A bulk load shows all of its pairs or none, also to those who look while it runs, and leaves a usable
/// index.
#[test]
fn bulk_loads_that_are_dropped() {
    const KEYS: u64 = 60;
    for techniques in [Techniques::ALL, Techniques::NONE] {
        let options = Options { techniques, ..Options::default() };
        for polls in 0..60 {
            for drops in [Drops::AtOnce, Drops::WhenWoken] {
                let done = with_parties(Parties::Shards(1), TINY, options, move |party| async move {
                    let running = Rc::new(Cell::new(true));
                    let load = {
                        let (index, running) = (party.index.clone(), Rc::clone(&running));
                        party.shard.spawn(async move {
                            let pairs = (0..KEYS).map(|n| (key(n), key(!n)));
                            let done = after_polls(index.bulk_load(pairs, 1.0), polls, drops).await;
                            running.set(false);
                            done.map(Result::unwrap).is_some()
                        })
                    };
                    party
                        .clients(3, |c| {
                            let (index, running) = (party.index.clone(), Rc::clone(&running));
                            async move {
                                let mut seen = false;
                                while running.get() {
                                    for n in (c as u64..KEYS).step_by(7) {
                                        let found = index.get(&key(n)).await.unwrap().is_some();
                                        assert!(
                                            found || !seen,
                                            "a pair of the load is there and another is not"
                                        );
                                        seen |= found;
                                    }
                                }
                            }
                        })
                        .await;
                    let done = load.await;
                    party.rest().await;
                    let pairs = kit::all_pairs(&party.index).await;
                    assert!(
                        pairs.len() as u64 == KEYS || (pairs.is_empty() && !done),
                        "{} pairs",
                        pairs.len()
                    );
                    let mut expected: Model = pairs.into_iter().collect();
                    for n in 0..KEYS {
                        let found = party.index.get(&key(n)).await.unwrap();
                        assert_eq!(found.as_deref(), expected.get(&key(n)[..]).map(Vec::as_slice), "key {n}");
                    }
                    for n in (0..2 * KEYS).step_by(2) {
                        party.index.put(&key(n), b"later").await.unwrap();
                        expected.insert(key(n).to_vec(), b"later".to_vec());
                    }
                    kit::tree::holds_exactly(&party.shard, &party.index, TINY, &expected).await;
                    party.rest().await;
                    done
                });
                assert!(polls > 0 || !done[0]);
            }
        }
    }
}

/// A bulk load that loses to a writer, or has no input that it can use, leaves nothing that others could
/// find.
#[test]
fn bulk_loads_that_fail() {
    with_parties(Parties::Shards(1), TINY, Options::default(), |party| async move {
        let load = {
            let index = party.index.clone();
            party
                .shard
                .spawn(async move { index.bulk_load((0..500).map(|n| (key(2 * n), key(n))), 1.0).await })
        };
        let writer = {
            let index = party.index.clone();
            party.shard.spawn(async move {
                for n in 0..100 {
                    assert!(index.insert(&key(2 * n + 1), b"").await.unwrap());
                    assert!(index.get(&key(2 * n + 1)).await.unwrap().is_some());
                }
            })
        };
        writer.await;
        let loaded = load.await;
        let mut expected: Model = (0..100).map(|n| (key(2 * n + 1).to_vec(), Vec::new())).collect();
        match loaded {
            Ok(count) => {
                assert_eq!(count, 500);
                expected.extend((0..500).map(|n| (key(2 * n).to_vec(), key(n).to_vec())));
            }
            Err(error) => assert_eq!(error, farwood::IndexError::NotEmpty),
        }
        party.rest().await;
        kit::tree::holds_exactly(&party.shard, &party.index, TINY, &expected).await;
    });
}

/// Creating and opening are dropped like everything else.
#[test]
fn opening_can_be_given_up() {
    let cluster = kit::cluster();
    let node = kit::node(&cluster, 1);
    assert!(
        block_on(after_polls(Sherman::create(&node, "t", TINY, Options::default()), 0, Drops::AtOnce))
            .is_none()
    );
    block_on(Sherman::create(&node, "t", TINY, Options::default())).unwrap();
}
