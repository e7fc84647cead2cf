//! The whole protocol, both halves, under every interleaving of small cases: clients on several shards that request,
//! cancel, hold and release, with messages delivered in every order that keeps them FIFO between two shards.

use std::collections::{HashSet, VecDeque};

use farwood_runtime::{RemotePtr, ServerId, ShardId};

use super::{Action, Home, WaiterId, passes_on};
use crate::hint::{Hint, LockSlots};
use crate::message::{Grant, LockMessage, MessageKind, Release};
use crate::slots::{Delivery, Slots};
use crate::word::{Claim, LockWord};

const HOME: usize = 0;

/// One lock at home on shard 0, the shards of its clients, and everything in between.
#[derive(Clone, Debug)]
struct World {
    handovers_max: u8,
    home: Home,
    slots: Vec<LockSlots<()>>,
    to_home: Vec<VecDeque<LockMessage>>,
    to_client: Vec<VecDeque<LockMessage>>,
    clients: Vec<Client>,
    /// The global word while it is taken, and what it carries while it is free.
    word: Option<LockWord>,
    carried: u64,
    /// Releases by clients that had taken the word: what it has to carry.
    content: u64,
    /// The claim that the home's janitor was told to clear.
    janitor: Option<Claim>,
    /// Waiters at home, first come first.
    arrived: VecDeque<WaiterId>,
    /// Holders since the last CAS that got the word from the one before.
    streak: u8,
}

#[derive(Clone, Debug)]
struct Client {
    shard: usize,
    rounds: u32,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Idle,
    Waiting { token: u32 },
    Holding { token: u32, grant: Grant, taken: Option<Claim> },
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Request(usize),
    Poll(usize),
    Cancel(usize),
    /// CAS on the global word.
    Take(usize),
    Release(usize),
    ToHome(usize),
    ToClient(usize),
    Janitor,
}

fn lock() -> RemotePtr {
    RemotePtr::new(ServerId(0), 64)
}

fn key() -> u64 {
    lock().to_bits()
}

impl World {
    fn new(handovers_max: u8, rounds: u32, shards_of_clients: &[usize]) -> Self {
        let shards = shards_of_clients.iter().max().map_or(1, |&last| last + 1);
        let client = |&shard: &usize| Client { shard, rounds, phase: Phase::Idle };
        World {
            handovers_max,
            home: Home::default(),
            slots: vec![LockSlots::new(); shards],
            to_home: vec![VecDeque::new(); shards],
            to_client: vec![VecDeque::new(); shards],
            clients: shards_of_clients.iter().map(client).collect(),
            word: None,
            carried: 0,
            content: 0,
            janitor: None,
            arrived: VecDeque::new(),
            streak: 0,
        }
    }

    fn enabled(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for (i, client) in self.clients.iter().enumerate() {
            match client.phase {
                Phase::Idle if client.rounds > 0 => events.push(Event::Request(i)),
                Phase::Idle => {}
                Phase::Waiting { token } => {
                    let granted = self.slots[client.shard].clone().poll(token, || ()).is_some();
                    events.extend(granted.then_some(Event::Poll(i)));
                    events.push(Event::Cancel(i));
                }
                Phase::Holding { taken, .. } => {
                    events.extend(taken.is_none().then_some(Event::Take(i)));
                    events.push(Event::Release(i));
                }
            }
        }
        for shard in 0..self.slots.len() {
            events.extend((!self.to_home[shard].is_empty()).then_some(Event::ToHome(shard)));
            events.extend((!self.to_client[shard].is_empty()).then_some(Event::ToClient(shard)));
        }
        events.extend(self.janitor.is_some().then_some(Event::Janitor));
        events
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Request(i) => self.request(i),
            Event::Poll(i) => self.poll(i),
            Event::Cancel(i) => self.cancel(i),
            Event::Take(i) => self.take(i),
            Event::Release(i) => self.release(i),
            Event::ToHome(shard) => {
                let message = self.to_home[shard].pop_front().expect("enabled");
                self.at_home(shard, message);
            }
            Event::ToClient(shard) => {
                let message = self.to_client[shard].pop_front().expect("enabled");
                self.at_client(shard, message);
            }
            Event::Janitor => {
                let kept = self.janitor.take().expect("enabled");
                assert_eq!(self.word, Some(kept.word), "the janitor clears the word that was kept");
                (self.word, self.carried) = (None, kept.vacant);
                let action = self.home.unlocked(key());
                self.perform(action);
            }
        }
        let holders = self.clients.iter().filter(|c| matches!(c.phase, Phase::Holding { .. })).count();
        assert!(holders + usize::from(self.janitor.is_some()) <= 1, "mutual exclusion");
        assert!(self.streak <= self.handovers_max, "hand-over limit");
    }

    fn request(&mut self, i: usize) {
        let shard = self.clients[i].shard;
        let token = self.slots[shard].open(Hint::none(key()));
        self.clients[i].rounds -= 1;
        self.clients[i].phase = Phase::Waiting { token };
        self.tell_home(shard, token, MessageKind::Request);
    }

    fn poll(&mut self, i: usize) {
        let client = &mut self.clients[i];
        let Phase::Waiting { token } = client.phase else { unreachable!("enabled") };
        let grant = self.slots[client.shard].poll(token, || ()).expect("enabled");
        let word = grant.kept.map(|claim| claim.word);
        assert_eq!(self.word, word, "a handed-over word is taken, any other free");
        if grant.kept.is_some() {
            self.streak += 1;
        }
        let carried = grant.kept.map_or(self.carried, |claim| claim.vacant);
        assert_eq!(carried, self.content, "a holder knows what the one before has left");
        client.phase = Phase::Holding { token, grant, taken: grant.kept };
    }

    fn cancel(&mut self, i: usize) {
        let shard = self.clients[i].shard;
        let Phase::Waiting { token } = self.clients[i].phase else { unreachable!("enabled") };
        self.clients[i].phase = Phase::Idle;
        let kind = match self.slots[shard].abandon(token) {
            None => MessageKind::Cancel,
            Some(grant) => MessageKind::Release(Release { kept: grant.kept, unused: true }),
        };
        self.tell_home(shard, token, kind);
    }

    fn take(&mut self, i: usize) {
        let Phase::Holding { taken, .. } = &mut self.clients[i].phase else { unreachable!("enabled") };
        assert_eq!(self.word, None, "no CAS can fail: one compute node");
        let word = LockWord::new(1, 0, i as u32);
        self.word = Some(word);
        self.streak = 0;
        *taken = Some(Claim { word, vacant: self.carried });
    }

    fn release(&mut self, i: usize) {
        let shard = self.clients[i].shard;
        let Phase::Holding { token, grant, taken } = self.clients[i].phase else { unreachable!("enabled") };
        self.clients[i].phase = Phase::Idle;
        let pass_on = passes_on(self.slots[shard].hinted(token), grant.depth, self.handovers_max);
        let taken = taken.map(|claim| {
            self.content += 1;
            Claim { vacant: self.content, ..claim }
        });
        let kept = taken.filter(|_| pass_on);
        if let (Some(claim), None) = (taken, kept) {
            (self.word, self.carried) = (None, claim.vacant);
        }
        self.slots[shard].close(token);
        self.tell_home(shard, token, MessageKind::Release(Release { kept, unused: false }));
    }

    fn tell_home(&mut self, shard: usize, token: u32, kind: MessageKind) {
        let message = LockMessage { lock: lock(), token, kind };
        match shard {
            HOME => self.at_home(HOME, message),
            _ => self.to_home[shard].push_back(message),
        }
    }

    fn at_home(&mut self, from: usize, message: LockMessage) {
        let waiter = WaiterId { shard: ShardId(from as u16), token: message.token };
        let action = match message.kind {
            MessageKind::Request => {
                self.arrived.push_back(waiter);
                self.home.request(key(), waiter)
            }
            MessageKind::Release(release) => self.home.release(key(), waiter, release),
            MessageKind::Cancel => self.home.cancel(key(), waiter),
            _ => unreachable!("said to a client"),
        };
        self.perform(action);
    }

    fn perform(&mut self, action: Action) {
        let (to, kind) = match action {
            Action::Nothing => return,
            Action::Unlock { kept } => {
                self.janitor = Some(kept);
                return;
            }
            Action::Grant { to, grant } => {
                assert_eq!(self.arrived.pop_front(), Some(to), "first come first served");
                (to, MessageKind::Grant(grant))
            }
            Action::Hint { to } => (to, MessageKind::Hint),
            Action::Cancelled { to } => {
                let at = self.arrived.iter().position(|&waiter| waiter == to);
                self.arrived.remove(at.expect("only a waiter is cancelled"));
                (to, MessageKind::Cancelled)
            }
        };
        let message = LockMessage { lock: lock(), token: to.token, kind };
        match usize::from(to.shard.0) {
            HOME => self.at_client(HOME, message),
            shard => self.to_client[shard].push_back(message),
        }
    }

    fn at_client(&mut self, shard: usize, message: LockMessage) {
        match message.kind {
            MessageKind::Grant(grant) => {
                if self.slots[shard].granted(message.token, grant) == Delivery::Gone {
                    let release = Release { kept: grant.kept, unused: true };
                    self.tell_home(shard, message.token, MessageKind::Release(release));
                }
            }
            MessageKind::Hint => self.slots[shard].hint(message.token, key()),
            MessageKind::Cancelled => self.slots[shard].cancelled(message.token),
            _ => unreachable!("said to a home"),
        }
    }

    fn check_rest(&self) {
        for client in &self.clients {
            assert!(client.rounds == 0 && client.phase == Phase::Idle, "a waiter was forgotten: {self:?}");
        }
        assert_eq!(self.home.len(), 0, "a local lock stays held");
        assert_eq!(self.slots.iter().map(Slots::len).sum::<usize>(), 0, "a slot is lost");
        assert_eq!(self.word, None, "the global lock stays held");
        assert_eq!(self.carried, self.content, "what the last holder left is lost");
    }
}

/// Visits every state that can be reached; yields their number and the longest run of hand-overs.
fn explore(first: World) -> (usize, u8) {
    let (mut seen, mut todo, mut streak) = (HashSet::new(), vec![first], 0);
    while let Some(world) = todo.pop() {
        streak = streak.max(world.streak);
        let events = world.enabled();
        if events.is_empty() {
            world.check_rest();
        }
        for event in events {
            let mut next = world.clone();
            next.step(event);
            if seen.insert(format!("{next:?}")) {
                todo.push(next);
            }
        }
    }
    (seen.len(), streak)
}

#[test]
fn three_waiters_on_any_shards() {
    for shards in [[0, 0, 0], [0, 0, 1], [0, 1, 1], [0, 1, 2], [1, 1, 1], [1, 1, 2], [1, 2, 3]] {
        let (states, streak) = explore(World::new(4, 1, &shards));
        assert!(states > 100 && streak == 2, "{shards:?}: {states} states, {streak} hand-overs");
    }
}

#[test]
fn tokens_are_reused() {
    for shards in [[0, 0], [0, 1], [1, 1], [1, 2]] {
        let (states, streak) = explore(World::new(4, 2, &shards));
        assert!(states > 100 && streak == 3, "{shards:?}: {states} states, {streak} hand-overs");
    }
}

#[test]
fn the_limit_ends_a_run_of_hand_overs() {
    for (handovers_max, shards) in [(0, [0, 1, 2]), (1, [0, 1, 2]), (1, [1, 1, 2]), (1, [0, 0, 0])] {
        let (_, streak) = explore(World::new(handovers_max, 1, &shards));
        assert_eq!(streak, handovers_max, "{shards:?}");
    }
    let (_, streak) = explore(World::new(2, 1, &[0, 0, 0, 1]));
    assert_eq!(streak, 2);
}
