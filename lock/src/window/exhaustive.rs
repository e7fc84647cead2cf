//! The whole protocol, both halves, under every interleaving of small cases: clients on several shards that enter,
//! are cancelled, lead, act, finish and fail, with messages delivered in every order that keeps them FIFO between two
//! shards.
//!
//! The key is a register whose content counts the writes that took effect. So it can be seen whether a client was told
//! of a moment within its call: that content must be at least as new as what had been announced before it entered.

use std::collections::{HashSet, VecDeque};

use farwood_runtime::ShardId;

use super::config::Access;
use super::home::{Action, Home};
use super::key::KeyId;
use super::message::{Value, WindowMessage};
use super::table::Response;
use crate::handover::WaiterId;
use crate::slots::{Delivery, Slots};

const HOME: usize = 0;
const KEY: KeyId = KeyId::from_words(3, 5);
const READ: Access = Access::Read;
const PUT: Access = Access::Write(0);
const UPDATE: Access = Access::Write(1);

/// One key at home on shard 0, the shards of its clients, and everything in between.
#[derive(Clone, Debug)]
struct World {
    home: Home,
    slots: Vec<Slots<Response, ()>>,
    to_home: Vec<VecDeque<Envelope>>,
    to_client: Vec<VecDeque<Envelope>>,
    clients: Vec<Client>,
    /// Writes that took effect.
    content: u8,
    /// The newest content that a client was told of, or has written.
    announced: u8,
    /// Waiters at home, first come first, and whether they have joined the open window.
    arrived: VecDeque<(WaiterId, Access, bool)>,
    /// For the negative control.
    joins_open: bool,
    /// Answers that were not true.
    lies: u32,
    /// Groups of more than their leader that were told something.
    shared: u32,
}

/// A message, and with it the content that its pieces would bring, and what the leader's write made of it.
type Envelope = (WindowMessage, u8);

#[derive(Clone, Debug)]
struct Client {
    shard: usize,
    access: Access,
    rounds: u32,
    /// The content that had been announced when it entered.
    least: u8,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Idle,
    Waiting {
        token: u32,
    },
    Leading {
        readers: bool,
        /// The content that it has read or written, once it has.
        found: Option<u8>,
    },
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Enter(usize),
    Poll(usize),
    Cancel(usize),
    /// The leader's operation takes effect.
    Act(usize),
    Finish(usize),
    /// Before or after it took effect.
    Fail(usize),
    ToHome(usize),
    ToClient(usize),
}

impl World {
    fn new(clients: &[(usize, Access)], rounds: u32) -> Self {
        let shards = clients.iter().map(|&(shard, _)| shard + 1).max().unwrap_or(1);
        let client = |&(shard, access): &(usize, Access)| Client {
            shard,
            access,
            rounds,
            least: 0,
            phase: Phase::Idle,
        };
        World {
            home: Home::default(),
            slots: vec![Slots::new(); shards],
            to_home: vec![VecDeque::new(); shards],
            to_client: vec![VecDeque::new(); shards],
            clients: clients.iter().map(client).collect(),
            content: 0,
            announced: 0,
            arrived: VecDeque::new(),
            joins_open: false,
            lies: 0,
            shared: 0,
        }
    }

    fn enabled(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for (i, client) in self.clients.iter().enumerate() {
            match client.phase {
                Phase::Idle if client.rounds > 0 => events.push(Event::Enter(i)),
                Phase::Idle => {}
                Phase::Waiting { token } => {
                    let response = self.slots[client.shard].clone().poll(token, || ()).is_some();
                    events.extend(response.then_some(Event::Poll(i)));
                    events.push(Event::Cancel(i));
                }
                Phase::Leading { found, .. } => {
                    events.push(if found.is_none() { Event::Act(i) } else { Event::Finish(i) });
                    events.push(Event::Fail(i));
                }
            }
        }
        for shard in 0..self.slots.len() {
            events.extend((!self.to_home[shard].is_empty()).then_some(Event::ToHome(shard)));
            events.extend((!self.to_client[shard].is_empty()).then_some(Event::ToClient(shard)));
        }
        events
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Enter(i) => self.enter(i),
            Event::Poll(i) => self.poll(i),
            Event::Cancel(i) => self.cancel(i),
            Event::Act(i) => self.act(i),
            Event::Finish(i) => self.finish(i),
            Event::Fail(i) => {
                self.clients[i].phase = Phase::Idle;
                self.tell_home(self.clients[i].shard, WindowMessage::Fail { key: KEY }, 0);
            }
            Event::ToHome(shard) => {
                let (message, content) = self.to_home[shard].pop_front().expect("enabled");
                self.at_home(shard, message, content);
            }
            Event::ToClient(shard) => {
                let (message, content) = self.to_client[shard].pop_front().expect("enabled");
                self.at_client(shard, message, content);
            }
        }
        let leading = self.clients.iter().filter(|c| matches!(c.phase, Phase::Leading { .. })).count();
        assert!(leading <= 1, "one leader");
    }

    fn enter(&mut self, i: usize) {
        let announced = self.announced;
        let client = &mut self.clients[i];
        client.rounds -= 1;
        client.least = announced;
        let (shard, access) = (client.shard, client.access);
        if shard == HOME && self.home.open(KEY, ShardId(HOME as u16)) {
            self.clients[i].phase = Phase::Leading { readers: false, found: None };
            return;
        }
        let token = self.slots[shard].open(());
        self.clients[i].phase = Phase::Waiting { token };
        self.tell_home(shard, WindowMessage::Enter { key: KEY, token, access }, 0);
    }

    fn poll(&mut self, i: usize) {
        let Phase::Waiting { token } = self.clients[i].phase else { unreachable!("enabled") };
        let shard = self.clients[i].shard;
        let response = self.slots[shard].poll(token, || ()).expect("enabled");
        self.slots[shard].close(token);
        let client = &mut self.clients[i];
        client.phase = Phase::Idle;
        let found = match response {
            Response::Lead { readers } => {
                client.phase = Phase::Leading { readers, found: None };
                return;
            }
            Response::Read(Some(bytes)) => {
                assert_eq!(client.access, READ);
                bytes[0]
            }
            // The model's writes carry what they made of the content in the same place.
            Response::Written(true) => return assert_ne!(client.access, READ),
            other => unreachable!("the key is there and short: {other:?}"),
        };
        self.lies += u32::from(found < client.least);
        self.announced = self.announced.max(found);
    }

    fn cancel(&mut self, i: usize) {
        let Phase::Waiting { token } = self.clients[i].phase else { unreachable!("enabled") };
        let shard = self.clients[i].shard;
        self.clients[i].phase = Phase::Idle;
        match self.slots[shard].abandon(token) {
            None => self.tell_home(shard, WindowMessage::Cancel { key: KEY, token }, 0),
            Some(Response::Lead { .. }) => self.tell_home(shard, WindowMessage::Fail { key: KEY }, 0),
            Some(_) => {}
        }
    }

    fn act(&mut self, i: usize) {
        let client = &mut self.clients[i];
        let Phase::Leading { found, .. } = &mut client.phase else { unreachable!("enabled") };
        self.content += u8::from(client.access != READ);
        *found = Some(self.content);
    }

    fn finish(&mut self, i: usize) {
        let client = &self.clients[i];
        let Phase::Leading { readers, found: Some(found) } = client.phase else { unreachable!("enabled") };
        assert!(found >= client.least);
        let (shard, applied) = (client.shard, client.access != READ);
        let value = if shard == HOME || readers { Value::Sent } else { Value::Absent };
        self.announced = self.announced.max(found);
        self.clients[i].phase = Phase::Idle;
        self.tell_home(shard, WindowMessage::Finish { key: KEY, applied, value }, found);
    }

    fn tell_home(&mut self, shard: usize, message: WindowMessage, content: u8) {
        match shard {
            HOME => self.at_home(HOME, message, content),
            _ => self.to_home[shard].push_back((message, content)),
        }
    }

    fn at_home(&mut self, from: usize, message: WindowMessage, content: u8) {
        let shard = ShardId(from as u16);
        let action = match message {
            WindowMessage::Enter { token, access, .. } => {
                let waiter = WaiterId { shard, token };
                if self.home.open(KEY, shard) {
                    self.arrived.push_back((waiter, access, false));
                    Action::Lead { to: waiter, readers: false }
                } else {
                    self.arrived.push_back((waiter, access, self.joins_open));
                    self.home.wait(KEY, waiter, access);
                    if self.joins_open {
                        self.home.join_open_window();
                    }
                    Action::Nothing
                }
            }
            WindowMessage::Cancel { token, .. } => self.home.cancel(KEY, WaiterId { shard, token }),
            WindowMessage::Fail { .. } => {
                self.arrived.iter_mut().for_each(|(_, _, joined)| *joined = false);
                self.home.fail(KEY, shard)
            }
            WindowMessage::Finish { applied, value, .. } => {
                let mut group = Vec::new();
                let action = self.home.finish(KEY, shard, |waiter, access| group.push((waiter, access)));
                let joined = |&(_, _, joined): &(WaiterId, Access, bool)| joined;
                let expected: Vec<_> = self
                    .arrived
                    .iter()
                    .filter(|who| joined(who))
                    .map(|&(waiter, access, _)| (waiter, access))
                    .collect();
                assert_eq!(group, expected, "exactly the clients of the group");
                self.arrived.retain(|who| !joined(who));
                self.shared += u32::from(!group.is_empty());
                for (to, access) in group {
                    self.answer(to, access, applied, value, content);
                }
                action
            }
            _ => unreachable!("said to a client"),
        };
        self.perform(action);
    }

    fn answer(&mut self, to: WaiterId, access: Access, applied: bool, value: Value, content: u8) {
        // A write that is told to be done has to be at a moment within its call, as what is read has.
        let writer = |client: &&Client| match client.phase {
            Phase::Waiting { token } => token == to.token && client.shard == usize::from(to.shard.0),
            _ => false,
        };
        if access != READ
            && let Some(client) = self.clients.iter().find(writer)
        {
            assert!(applied || self.joins_open, "only writers lead writers");
            self.lies += u32::from(content <= client.least);
        }
        let message = match access {
            Access::Read => WindowMessage::Read { token: to.token, value },
            Access::Write(_) => WindowMessage::Written { token: to.token, applied: true },
        };
        self.tell_client(usize::from(to.shard.0), message, content);
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Nothing => {}
            Action::Cancelled { to } => {
                let at = self.arrived.iter().position(|&(waiter, ..)| waiter == to);
                self.arrived.remove(at.expect("only a waiter is cancelled"));
                self.tell_client(usize::from(to.shard.0), WindowMessage::Cancelled { token: to.token }, 0);
            }
            Action::Lead { to, readers } => {
                let others_read = self.check_start(to);
                assert_eq!(readers, others_read, "the leader is told whether there are readers");
                let message = WindowMessage::Lead { key: KEY, token: to.token, readers };
                self.tell_client(usize::from(to.shard.0), message, 0);
            }
        }
    }

    /// Checks the start of a window: all waiters that fit join, the last writer leads. Yields whether readers have
    /// joined.
    fn check_start(&mut self, leader: WaiterId) -> bool {
        let first_writer = self.arrived.iter().map(|&(_, access, _)| access).find(|&access| access != READ);
        let fits = |access: Access| access == READ || Some(access) == first_writer;
        let wanted = first_writer.unwrap_or(READ);
        let mut candidates =
            self.arrived.iter().filter(|&&(_, access, _)| access == wanted).map(|&(waiter, ..)| waiter);
        let expected = if wanted == READ { candidates.next() } else { candidates.next_back() };
        assert_eq!(Some(leader), expected, "the last writer leads, or the first reader");
        self.arrived.retain(|&(waiter, ..)| waiter != leader);
        let mut readers = false;
        for (_, access, joined) in &mut self.arrived {
            assert!(!*joined, "the window before has ended");
            *joined = fits(*access);
            readers |= *access == READ;
        }
        readers
    }

    fn tell_client(&mut self, shard: usize, message: WindowMessage, content: u8) {
        match shard {
            HOME => self.at_client(HOME, message, content),
            _ => self.to_client[shard].push_back((message, content)),
        }
    }

    fn at_client(&mut self, shard: usize, message: WindowMessage, content: u8) {
        let slots = &mut self.slots[shard];
        let delivery = match message {
            WindowMessage::Lead { token, readers, .. } => {
                let delivery = slots.tell(token, || Response::Lead { readers });
                if delivery == Delivery::Gone {
                    self.tell_home(shard, WindowMessage::Fail { key: KEY }, 0);
                }
                return;
            }
            WindowMessage::Read { token, value } => {
                assert!(value == Value::Sent || self.joins_open, "the leader knew of its readers");
                slots.tell(token, || Response::Read(Some(vec![content])))
            }
            WindowMessage::Written { token, applied } => slots.tell(token, || Response::Written(applied)),
            WindowMessage::Cancelled { token } => return slots.cancelled(token),
            _ => unreachable!("said to a home"),
        };
        assert!(matches!(delivery, Delivery::Waiting(_) | Delivery::Gone));
    }

    fn check_rest(&self) {
        for client in &self.clients {
            assert!(client.rounds == 0 && client.phase == Phase::Idle, "a client was forgotten: {self:?}");
        }
        assert_eq!(self.home.len(), 0, "a window stays open");
        assert_eq!(self.slots.iter().map(Slots::len).sum::<usize>(), 0, "a slot is lost");
        assert!(self.arrived.is_empty(), "a client still waits at home");
    }
}

/// Visits every state that can be reached; yields their number, and the most lies and shared groups of any.
fn explore(first: World) -> (usize, u32, u32) {
    let (mut seen, mut todo, mut lies, mut shared) = (HashSet::new(), vec![first], 0, 0);
    while let Some(world) = todo.pop() {
        lies = lies.max(world.lies);
        shared = shared.max(world.shared);
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
    (seen.len(), lies, shared)
}

fn honest(clients: &[(usize, Access)], rounds: u32) {
    let (states, lies, shared) = explore(World::new(clients, rounds));
    assert!(
        states > 50 && lies == 0 && shared > 0,
        "{clients:?}: {states} states, {lies} lies, {shared} groups"
    );
}

#[test]
fn three_clients_on_any_shards() {
    for shards in [[0, 0, 0], [0, 0, 1], [0, 1, 1], [1, 0, 1], [0, 1, 2], [1, 1, 1], [1, 1, 2], [1, 2, 3]] {
        for accesses in
            [[READ, READ, READ], [PUT, READ, READ], [PUT, PUT, READ], [PUT, PUT, PUT], [PUT, UPDATE, UPDATE]]
        {
            let clients = [0, 1, 2].map(|i| (shards[i], accesses[i]));
            honest(&clients, 1);
        }
    }
}

#[test]
fn tokens_are_reused() {
    for shards in [[0, 0], [0, 1], [1, 1], [1, 2]] {
        for accesses in [[READ, READ], [READ, PUT], [PUT, PUT], [PUT, UPDATE]] {
            let clients = [0, 1].map(|i| (shards[i], accesses[i]));
            let (states, lies, _) = explore(World::new(&clients, 2));
            assert!(states > 50 && lies == 0, "{clients:?}: {states} states, {lies} lies");
        }
    }
}

#[test]
fn four_clients_of_all_kinds_at_home() {
    honest(&[(0, READ), (0, PUT), (0, UPDATE), (0, PUT)], 1);
}

/// The paper's rule: clients join a window that is under way.
#[test]
fn joining_an_open_window_is_caught() {
    for (shards, accesses) in [([0, 0, 0], [READ, PUT, READ]), ([0, 1, 0], [PUT, PUT, READ])] {
        let clients = [0, 1, 2].map(|i| (shards[i], accesses[i]));
        let mut world = World::new(&clients, 1);
        world.joins_open = true;
        assert!(explore(world).1 > 0, "{clients:?}: a stale answer went unnoticed");
    }
}
