//! Every order of the verbs, completions, failures and drops of a few clients on two shards that share a lock, and one
//! that has it alone: none works beside the other, no bit is left or lost, and all come to an end.
//!
//! Verbs of a shard are executed in the order in which they were posted; nothing else is in order.

use std::collections::{HashMap, VecDeque};

use super::*;

const KEY: u64 = 64;
/// The shard of each client.
const SHARD_OF: [usize; 3] = [0, 0, 1];

#[derive(Clone, Copy, PartialEq, Debug)]
enum Verb {
    /// Adds the shard's bit, or takes it off.
    Faa(bool),
    Read,
    /// A write-back.
    Write,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Chain {
    Go(Move),
    Read,
    Write,
    /// The write-back of the last client of a shard.
    Leave,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Client {
    New,
    Waiting,
    Lead(Own),
    Flying {
        chain: Chain,
        own: Own,
        ends: Option<bool>,
    },
    /// It has read the node, and relies on that.
    In,
    /// Its janitor clears the bit.
    Settle(Own),
    Over,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Alone {
    New,
    Locked,
    In,
    Over,
}

#[derive(Clone, Debug)]
struct World {
    word: bool,
    bits: u64,
    queues: [VecDeque<(usize, Verb)>; 2],
    shards: [Presences; 2],
    clients: [Client; 3],
    /// The words that each client has read last.
    seen: [(bool, u64); 3],
    dropped: [bool; 3],
    alone: Alone,
    failures_left: u32,
    drops_left: u32,
    /// The mistake of the negative control: to look before the bit is set.
    looks_first: bool,
    is_broken: bool,
}

impl World {
    /// Makes a world of those of the clients.
    fn new(all: &[usize], failures_left: u32, drops_left: u32) -> Self {
        let client = |i| if all.contains(&i) { Client::New } else { Client::Over };
        World {
            word: false,
            bits: 0,
            queues: Default::default(),
            shards: Default::default(),
            clients: [0, 1, 2].map(client),
            seen: [(false, 0); 3],
            dropped: [false; 3],
            alone: Alone::New,
            failures_left,
            drops_left,
            looks_first: false,
            is_broken: false,
        }
    }

    fn next(&self) -> Vec<World> {
        let mut next = Vec::new();
        let mut add = |step: &dyn Fn(&mut World) -> bool| {
            let mut world = self.clone();
            if step(&mut world) {
                next.push(world);
            }
        };
        add(&World::step_alone);
        for shard in 0..2 {
            add(&|world| world.execute(shard));
        }
        for i in 0..SHARD_OF.len() {
            add(&|world| world.step(i));
            add(&|world| world.fail(i));
            add(&|world| world.drop(i));
        }
        next
    }

    fn step_alone(&mut self) -> bool {
        let next = match self.alone {
            Alone::New => Alone::Locked,
            Alone::Locked if self.bits == 0 => Alone::In,
            Alone::In => Alone::Over,
            Alone::Locked | Alone::Over => return false,
        };
        self.is_broken |= next == Alone::In && self.clients.contains(&Client::In);
        (self.word, self.alone) = (matches!(next, Alone::Locked | Alone::In), next);
        true
    }

    fn execute(&mut self, shard: usize) -> bool {
        let Some((i, verb)) = self.queues[shard].pop_front() else { return false };
        let bit = 1 << shard;
        match verb {
            Verb::Faa(true) => self.bits = self.bits.wrapping_add(bit),
            Verb::Faa(false) => self.bits = self.bits.wrapping_sub(bit),
            Verb::Read => self.seen[i] = (self.word, self.bits),
            Verb::Write => self.is_broken |= self.alone == Alone::In,
        }
        // A bit that is added twice, or taken twice, carries into another's, or beyond.
        self.is_broken |= self.bits > 3;
        if !self.queues[shard].iter().any(|(other, _)| *other == i) {
            self.end(i, true);
        }
        true
    }

    fn fail(&mut self, i: usize) -> bool {
        let Client::Flying { ends: None, .. } = self.clients[i] else { return false };
        if self.failures_left == 0 {
            return false;
        }
        self.failures_left -= 1;
        self.queues[SHARD_OF[i]].retain(|(other, _)| *other != i);
        self.end(i, false);
        true
    }

    fn end(&mut self, i: usize, well: bool) {
        if let Client::Flying { ends, .. } = &mut self.clients[i] {
            *ends = Some(well);
        }
    }

    fn drop(&mut self, i: usize) -> bool {
        let presences = &mut self.shards[SHARD_OF[i]];
        let next = match self.clients[i] {
            _ if self.dropped[i] || self.drops_left == 0 => return false,
            Client::New | Client::Settle(_) | Client::Over => return false,
            Client::Waiting => {
                presences.leave_queue(KEY, i as u32);
                Client::Over
            }
            Client::Lead(own) => Client::Settle(own),
            Client::In if presences.depart(KEY) => Client::Settle(Own::Set),
            Client::In => Client::Over,
            flying @ Client::Flying { .. } => flying,
        };
        (self.drops_left, self.dropped[i], self.clients[i]) = (self.drops_left - 1, true, next);
        true
    }

    /// Takes the next step of a client, or of its janitor.
    fn step(&mut self, i: usize) -> bool {
        let presences = &mut self.shards[SHARD_OF[i]];
        match self.clients[i] {
            Client::New => match presences.arrive(KEY) {
                Some(part) => self.take_part(i, part),
                None => {
                    presences.wait(KEY, i as u32);
                    self.clients[i] = Client::Waiting;
                }
            },
            Client::Lead(own) => match next_move(own, self.seen[i].0) {
                Move::Stay => self.has_entered(i, false),
                next => self.post(i, Chain::Go(next), own),
            },
            Client::Flying { chain, own, ends: Some(well) } => self.ended(i, chain, own, well),
            Client::In if presences.is_last(KEY) => {
                presences.depart(KEY);
                self.post(i, Chain::Leave, Own::Set);
            }
            Client::In => {
                presences.depart(KEY);
                self.post(i, Chain::Write, Own::Set);
            }
            Client::Settle(Own::Clear) => self.lay_down(i),
            Client::Settle(own) => {
                let next = if own == Own::Set { Move::Retreat } else { Move::Look };
                self.post(i, Chain::Go(next), own);
                self.dropped[i] = true;
            }
            Client::Waiting | Client::Flying { .. } | Client::Over => return false,
        }
        true
    }

    fn post(&mut self, i: usize, chain: Chain, own: Own) {
        let verbs = match chain {
            Chain::Go(Move::Enter) if self.looks_first => &[Verb::Read, Verb::Faa(true)][..],
            Chain::Go(Move::Enter) => &[Verb::Faa(true), Verb::Read],
            Chain::Go(Move::Retreat) => &[Verb::Faa(false)],
            Chain::Go(_) | Chain::Read => &[Verb::Read],
            Chain::Write => &[Verb::Write],
            Chain::Leave => &[Verb::Write, Verb::Faa(false)],
        };
        self.queues[SHARD_OF[i]].extend(verbs.iter().map(|verb| (i, *verb)));
        self.clients[i] = Client::Flying { chain, own, ends: None };
    }

    fn ended(&mut self, i: usize, chain: Chain, own: Own, well: bool) {
        let (taken, bits) = self.seen[i];
        let own = match chain {
            Chain::Read if self.dropped[i] => {
                let is_last = self.shards[SHARD_OF[i]].depart(KEY);
                self.clients[i] = if is_last { Client::Settle(Own::Set) } else { Client::Over };
                return;
            }
            Chain::Read if well => return self.is_in(i),
            Chain::Read => return self.post(i, Chain::Read, own),
            Chain::Write => {
                self.clients[i] = Client::Over;
                return;
            }
            Chain::Go(Move::Look) if well && bits >> SHARD_OF[i] & 1 == 1 => Own::Set,
            Chain::Go(Move::Look) if well => Own::Clear,
            Chain::Go(Move::Look) => own,
            Chain::Go(Move::Enter) if well => Own::Set,
            Chain::Go(Move::Retreat) | Chain::Leave if well => Own::Clear,
            Chain::Go(_) | Chain::Leave => Own::Unknown,
        };
        if chain == Chain::Leave || self.dropped[i] {
            self.clients[i] = Client::Settle(own);
        } else if chain == Chain::Go(Move::Enter) && well && !taken {
            self.has_entered(i, true);
        } else {
            self.clients[i] = Client::Lead(own);
        }
    }

    fn has_entered(&mut self, i: usize, has_read: bool) {
        let shard = SHARD_OF[i];
        self.shards[shard].entered(KEY);
        if has_read {
            self.is_in(i);
        } else {
            self.post(i, Chain::Read, Own::Set);
        }
        while let Some(token) = self.shards[shard].next_joiner(KEY) {
            self.take_part(token as usize, Part::Join);
        }
    }

    fn is_in(&mut self, i: usize) {
        if self.seen[i].0 {
            self.shards[SHARD_OF[i]].close(KEY);
        }
        self.is_broken |= self.alone == Alone::In;
        self.clients[i] = Client::In;
    }

    fn lay_down(&mut self, i: usize) {
        self.clients[i] = Client::Over;
        if let Some(token) = self.shards[SHARD_OF[i]].lay_down(KEY, Own::Clear) {
            self.take_part(token as usize, Part::Lead(Own::Clear));
        }
    }

    fn take_part(&mut self, i: usize, part: Part) {
        match part {
            Part::Lead(own) => self.clients[i] = Client::Lead(own),
            Part::Join => self.post(i, Chain::Read, Own::Set),
        }
    }

    fn is_over(&self) -> bool {
        self.alone == Alone::Over && self.clients.iter().all(|client| *client == Client::Over)
    }
}

/// Goes through all states that can be reached. Yields how many there are, and whether any is broken.
fn explore(first: World) -> (usize, bool) {
    let key = |world: &World| format!("{world:?}");
    let (mut places, mut worlds, mut before) = (HashMap::new(), vec![first], vec![Vec::new()]);
    places.insert(key(&worlds[0]), 0);
    let (mut at, mut is_broken) = (0, false);
    while at < worlds.len() {
        let world = worlds[at].clone();
        is_broken |= world.is_broken;
        for next in world.next() {
            let place = *places.entry(key(&next)).or_insert(worlds.len());
            if place == worlds.len() {
                worlds.push(next);
                before.push(Vec::new());
            }
            before[place].push(at);
        }
        at += 1;
    }
    // From each state there is a way to the end, and at the end nothing is left.
    let mut todo: Vec<usize> = (0..worlds.len()).filter(|&at| worlds[at].is_over()).collect();
    for world in todo.iter().map(|&at| &worlds[at]).filter(|_| !is_broken) {
        assert!(
            world.bits == 0 && !world.word && world.shards.iter().all(|shard| shard.len() == 0),
            "{world:?}"
        );
    }
    let mut ends = vec![false; worlds.len()];
    while let Some(at) = todo.pop() {
        if !std::mem::replace(&mut ends[at], true) {
            todo.extend(&before[at]);
        }
    }
    let stuck = ends.iter().position(|ends| !ends);
    assert!(is_broken || stuck.is_none(), "{:?}", stuck.map(|at| &worlds[at]));
    (worlds.len(), is_broken)
}

#[test]
fn every_order_of_three_sharers_and_one_alone() {
    let (states, is_broken) = explore(World::new(&[0, 1, 2], 0, 0));
    assert!(!is_broken && states > 50_000, "{states} states");
}

#[test]
fn every_order_of_two_sharers_and_one_alone_with_failures_and_drops() {
    for (clients, failures, drops) in [([0, 1], 1, 1), ([0, 2], 1, 1), ([0, 1], 2, 0), ([0, 2], 0, 2)] {
        let (states, is_broken) = explore(World::new(&clients, failures, drops));
        assert!(!is_broken && states > 5_000, "{states} states");
    }
}

#[test]
fn looking_before_the_bit_is_set_is_noticed() {
    let (_, is_broken) = explore(World { looks_first: true, ..World::new(&[0, 2], 0, 0) });
    assert!(is_broken);
}
