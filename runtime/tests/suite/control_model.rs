//! Sessions of the control service without sockets, against a model: nothing that is sent to one, however damaged,
//! makes it panic, disturbs another or leaves the service's state inconsistent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use farwood_runtime::ControlError;
use farwood_runtime::control::frame;
use farwood_runtime::control::greeting::greeting;
use farwood_runtime::control::nodes::{NodeBatch, NodeClass, Waits, WantedNodes};
use farwood_runtime::control::wire::{Census, Reply, Request};
use farwood_runtime::service::{Close, ServiceCore};
use farwood_runtime::sweep::Step;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::control_kit::{
    CHUNK_BYTES, Client, INSTANCE, KEY, chunk_of, core, create, create_of, free_of, join_of, opening,
};

/// An act of one of several clients.
#[derive(Clone, Debug)]
enum Act {
    Ask(Request),
    /// A request whose bytes are damaged on the way.
    Damaged(Request, Damage),
    /// The end of the connection, and a new one.
    Anew,
}

#[derive(Clone, Debug)]
enum Damage {
    Flip(usize, u8),
    Truncate(usize),
    Length(u32),
    Number(u32),
    Insert(Vec<u8>),
}

fn census() -> impl Strategy<Value = Census> {
    (any::<u64>(), vec(any::<u64>(), 0..5)).prop_map(|(newest, open)| Census { newest, open })
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![9 => "[abc]", 1 => any::<String>()]
}

fn request() -> impl Strategy<Value = Request> {
    let index = || prop_oneof![9 => 0..6u32, 1 => any::<u32>()];
    let join = (vec(prop_oneof![Just(INSTANCE), any::<u128>()], 0..3), any::<u16>(), name());
    prop_oneof![
        4 => index().prop_map(chunk_of),
        6 => give_back(),
        3 => (name(), "[a-z]{0,40}", vec(any::<u8>(), 0..50))
            .prop_map(|(name, kind, config)| create_of(name, &kind, config)),
        3 => name().prop_map(|name| Request::Open { name }),
        3 => name().prop_map(|name| Request::BeginDrop { name }),
        3 => index().prop_map(free_of),
        1 => census().prop_map(Request::Fence),
        1 => Just(Request::Census),
        1 => (0..4u32).prop_map(|after| Request::Dead { after }),
        3 => (name(), index()).prop_map(|(name, index)| Request::FinishDrop { name, index }),
        1 => Just(Request::Admit),
        1 => Just(Request::Agree),
        1 => proptest::option::of(name()).prop_map(|after| Request::List { after }),
        1 => (index(), any::<u64>(), 0..64u32)
            .prop_map(|(index, from, bits)| Request::Holdings { index, from: from >> bits }),
        3 => take_back(),
        6 => give_nodes(),
        4 => take_nodes(),
        1 => Just(Request::Usage),
        1 => any::<Option<u64>>().prop_map(|after| Request::Nodes { after }),
        1 => Just(Request::Ping),
        1 => (any::<(u64, u32, bool, u64)>(), 0..4u64).prop_map(|((oldest, fenced, waits, flush), noting)| {
            Request::Epoch { oldest, fenced, waits, flush, noting }
        }),
        2 => sweep(),
        1 => Just(Request::Goodbye),
        1 => Just(Request::Hello),
        1 => (0..6u64, any::<u128>()).prop_map(|(connection, pass)| Request::Resume { connection, pass }),
        1 => join.prop_map(|(members, position, name)| join_of(&members, position, 1, &name)),
    ]
}

/// Generates pieces of the five chunks, mostly up to the end of one, as allocators return them.
fn give_back() -> impl Strategy<Value = Request> {
    let inside = (0..5u64, 0..20u64, 0..20u64, any::<bool>()).prop_map(|(chunk, from, pages, to_end)| {
        let bytes = if to_end { CHUNK_BYTES.saturating_sub(from * 4096 + 64) } else { pages * 4096 };
        (18 * 4096 + chunk * CHUNK_BYTES + from * 4096 + 64, bytes)
    });
    let piece = prop_oneof![20 => inside, 1 => any::<(u64, u64)>()];
    (0..6u32, piece).prop_map(|(index, (offset, bytes))| Request::GiveBack { index, offset, bytes })
}

/// Generates a piece of one of the chunks, as a repair takes it back: refused, unless its client is alone; or as a
/// sweep does.
fn take_back() -> impl Strategy<Value = Request> {
    let bytes =
        prop_oneof![(1..16u64).prop_map(|pages| pages * 4096), (1..4u64).prop_map(|nodes| nodes * 1024)];
    (0..6u32, proptest::option::weighted(0.9, 0..20u64), 0..5u64, 0..16u64, bytes).prop_map(
        |(index, joins, chunk, from, bytes)| {
            let extents = vec![(18 * 4096 + chunk * CHUNK_BYTES + from * 4096, bytes)];
            Request::TakeBack { index, joins, extents }
        },
    )
}

/// Generates steps of a sweep, of any client and in any order.
fn sweep() -> impl Strategy<Value = Request> {
    let pieces = vec((any::<u64>(), any::<u64>()), 0..4);
    (0..5, 0..6u32, 0..4u64, pieces, any::<bool>()).prop_map(|(kind, index, sweep, pieces, bit)| match kind {
        0 => Request::BeginSweep { index },
        1 => Request::SweepStep { sweep, step: if bit { Step::Notes } else { Step::Lists } },
        2 => Request::TellLists { sweep, pieces, is_last: bit },
        3 => Request::SweptLists { sweep, from: u64::from(bit) << 63 },
        _ => Request::EndSweep { sweep: bit.then_some(sweep) },
    })
}

fn class() -> impl Strategy<Value = NodeClass> {
    (1..3u64, any::<bool>()).prop_map(|(lines, of_kind)| NodeClass { bytes: lines * 1024, of_kind })
}

/// Generates free nodes, mostly of one of the chunks, each of them mostly as no other.
fn give_nodes() -> impl Strategy<Value = Request> {
    let node = (0..5u64, 0..64u64).prop_map(|(chunk, node)| 18 * 4096 + chunk * CHUNK_BYTES + node * 1024);
    let node = prop_oneof![50 => node, 1 => any::<u64>()].prop_map(|node| (node, None));
    (0..6u32, class(), vec(node, 0..4)).prop_map(|(index, class, nodes)| Request::GiveNodes {
        index,
        batch: NodeBatch { class, waits: Waits::Epoch(3), nodes },
    })
}

fn take_nodes() -> impl Strategy<Value = Request> {
    let known = (0..12u64, any::<bool>());
    (0..6u32, class(), known).prop_map(|(index, class, (epoch, last_resort))| Request::TakeNodes {
        index,
        seal: KEY.seal(),
        wanted: WantedNodes { class, epoch, flushed: 0, last_resort },
    })
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        (any::<usize>(), 0..8u8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        any::<usize>().prop_map(Damage::Truncate),
        prop_oneof![0..70_000u32, any::<u32>()].prop_map(Damage::Length),
        any::<u32>().prop_map(Damage::Number),
        vec(any::<u8>(), 1..40).prop_map(Damage::Insert),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        12 => request().prop_map(Act::Ask),
        2 => (request(), damage()).prop_map(|(request, damage)| Act::Damaged(request, damage)),
        1 => Just(Act::Anew),
    ]
}

fn damaged(client: &mut Client, request: &Request, damage: &Damage) -> Vec<u8> {
    let mut bytes = client.frame(request.clone());
    match damage {
        Damage::Flip(at, bit) => {
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
        }
        Damage::Truncate(at) => bytes.truncate(at % bytes.len()),
        Damage::Length(length) => bytes[..4].copy_from_slice(&length.to_le_bytes()),
        Damage::Number(number) => {
            bytes.clear();
            frame::put(&(*number, request), &mut bytes);
        }
        Damage::Insert(more) => bytes.extend(more),
    }
    bytes
}

/// Lists the lines of an extent.
fn lines(offset: u64, bytes: u64) -> impl Iterator<Item = u64> {
    (offset..offset + bytes).step_by(64)
}

/// The truth about the service for any requests: which client owns which chunk, and which indexes it has open.
#[derive(Default)]
struct Model {
    chunks: BTreeMap<u64, u32>,
    /// Extents that may be returned: the client, the beginning, the end, the index.
    taken: Vec<(usize, u64, u64, u32)>,
    /// Extents that were returned and not handed out again: the beginning, the length, the index.
    rests: BTreeSet<(u64, u64, u32)>,
    /// Lines of free nodes that were given, each with the index, the class, and the epoch from which on they are free.
    given: BTreeMap<u64, (u32, NodeClass, u64)>,
    open: BTreeSet<(usize, u32)>,
    names: BTreeMap<String, u32>,
}

impl Model {
    fn note(&mut self, who: usize, request: &Request, reply: &Result<Reply, ControlError>) {
        match (request, reply) {
            (Request::Chunk { index, .. }, Ok(Reply::Chunk { offset, bytes })) => {
                assert!(self.names.values().any(|id| id == index));
                if self.rests.iter().any(|(_, _, of)| of == index) {
                    assert!(
                        self.rests.remove(&(*offset, *bytes, *index)),
                        "a rest is there, and is not handed out"
                    );
                } else {
                    assert!(offset.is_multiple_of(4096) && *bytes == CHUNK_BYTES);
                    assert_eq!(self.chunks.insert(*offset, *index), None, "a chunk was handed out twice");
                }
                self.taken.push((who, *offset, offset + bytes, *index));
            }
            (Request::Chunk { index, .. }, Err(ControlError::OutOfMemory { .. })) => {
                assert!(self.rests.iter().all(|(_, _, of)| of != index), "a rest is there");
            }
            (Request::GiveBack { index, offset, bytes }, reply) => {
                let right = self.give_back(who, *index, *offset, *bytes);
                let usable = !matches!(
                    reply,
                    Err(ControlError::NoSuchIndex { .. } | ControlError::BeingDropped { .. })
                );
                assert_eq!(reply.is_ok(), right && usable, "{reply:?}");
                if right && reply.is_ok() {
                    self.rests.insert((*offset, *bytes, *index));
                }
            }
            (Request::Holdings { index, from: 0 }, Ok(Reply::Holdings { pieces, .. })) => {
                self.compare(*index, pieces);
            }
            (Request::TakeBack { index, extents, .. }, Ok(Reply::Freed { .. })) => {
                extents.iter().for_each(|&(offset, bytes)| self.take_back(*index, offset, bytes));
            }
            (Request::GiveNodes { index, batch }, reply) => self.note_given(*index, batch, reply),
            (Request::TakeNodes { index, wanted, .. }, Ok(Reply::Batch(batch))) => {
                self.note_taken(*index, wanted, batch.as_ref());
            }
            (Request::Create { name, .. }, Ok(Reply::Entry(entry))) => {
                assert_eq!(self.names.insert(name.clone(), entry.id), None);
                self.open.insert((who, entry.id));
            }
            (Request::Open { name }, Ok(Reply::Entry(entry))) => {
                assert_eq!(self.names.get(name), Some(&entry.id));
                self.open.insert((who, entry.id));
            }
            (Request::BeginDrop { .. }, Ok(Reply::Dropping { index, .. })) => {
                assert!(self.open.iter().all(|(user, open)| user == &who || open != index), "it is in use");
            }
            (Request::Free { index, .. }, Ok(Reply::Freed { bytes })) => {
                let before = self.chunks.len();
                self.freed(*index);
                assert_eq!(*bytes, (before - self.chunks.len()) as u64 * CHUNK_BYTES);
            }
            (Request::FinishDrop { name, index }, Ok(_)) => {
                assert_eq!(self.names.remove(name), Some(*index));
                self.freed(*index);
                self.open.retain(|(_, open)| open != index);
            }
            (_, Err(ControlError::Protocol { .. })) => panic!("a whole request in turn breaks no protocol"),
            _ => {}
        }
    }

    fn compare(&self, index: u32, pieces: &[(u64, u64, bool)]) {
        let rests = pieces.iter().filter(|(.., is_rest)| *is_rest);
        let of = self.rests.iter().filter(|(_, _, of)| *of == index);
        let given = self.given.iter().filter(|(_, (of, ..))| *of == index).map(|(line, _)| *line);
        let free: BTreeSet<_> = of.flat_map(|(at, bytes, _)| lines(*at, *bytes)).chain(given).collect();
        assert!(rests.flat_map(|(at, bytes, _)| lines(*at, *bytes)).eq(free));
        let bytes: u64 = pieces.iter().map(|(_, bytes, _)| bytes).sum();
        let chunks = self.chunks.values().filter(|owner| **owner == index).count() as u64;
        assert_eq!(bytes, chunks * CHUNK_BYTES);
    }

    fn note_given(&mut self, index: u32, batch: &NodeBatch, reply: &Result<Reply, ControlError>) {
        let can_be = self.can_be_given(index, batch);
        match reply {
            Ok(_) => assert!(can_be, "{batch:?}"),
            Err(ControlError::NotFree { .. }) => return assert!(!can_be, "{batch:?}"),
            Err(_) => return,
        }
        for &(node, _) in &batch.nodes {
            self.cut(node, batch.class.bytes);
            let of = (index, batch.class, 6);
            lines(node, batch.class.bytes).for_each(|line| _ = self.given.insert(line, of));
        }
    }

    fn note_taken(&mut self, index: u32, wanted: &WantedNodes, batch: Option<&NodeBatch>) {
        let WantedNodes { class, epoch, last_resort, .. } = *wanted;
        let fits = |&(of, given, since): &(u32, NodeClass, u64)| {
            let divides = last_resort && !class.of_kind && !given.of_kind;
            of == index && (given == class && (last_resort || epoch >= since) || divides)
        };
        assert_eq!(batch.is_some(), self.given.values().any(fits));
        let Some(batch) = batch else { return };
        for line in batch.nodes.iter().flat_map(|(node, _)| lines(*node, batch.class.bytes)) {
            assert!(self.given.remove(&line).is_some_and(|of| fits(&of)), "{line} is handed out");
        }
    }

    /// Makes an extent a rest, or a free node, which is no client's any more.
    fn take_back(&mut self, index: u32, offset: u64, bytes: u64) {
        self.cut(offset, bytes);
        assert!(lines(offset, bytes).all(|line| !self.given.contains_key(&line)));
        if bytes >= 4096 {
            self.rests.insert((offset, bytes, index));
            return;
        }
        let node = (index, NodeClass { bytes, of_kind: false }, 3);
        lines(offset, bytes).for_each(|line| _ = self.given.insert(line, node));
    }

    /// Tells whether these are free nodes of the index's chunks, as far as a server can know.
    fn can_be_given(&self, index: u32, batch: &NodeBatch) -> bool {
        let bytes = batch.class.bytes;
        let of_index = |line: &u64| {
            let chunk = self.chunks.range(..=line).next_back();
            chunk.is_some_and(|(at, of)| *of == index && line - at < CHUNK_BYTES)
        };
        let is_rest = |line: &u64| self.rests.iter().any(|(at, bytes, _)| (*at..at + bytes).contains(line));
        let mut all = BTreeSet::new();
        !batch.nodes.is_empty()
            && batch.nodes.iter().all(|&(node, _)| {
                node.is_multiple_of(64)
                    && node.checked_add(bytes).is_some()
                    && lines(node, bytes).all(|line| {
                        let is_free = !self.given.contains_key(&line) && !is_rest(&line);
                        is_free && of_index(&line) && all.insert(line)
                    })
            })
    }

    /// Lets no client give the extent back as what it has taken.
    fn cut(&mut self, offset: u64, bytes: u64) {
        let (end, taken) = (offset + bytes, std::mem::take(&mut self.taken));
        let cut = taken
            .into_iter()
            .flat_map(|(by, from, to, of)| [(by, from, to.min(offset), of), (by, from.max(end), to, of)]);
        self.taken.extend(cut.filter(|(_, from, to, _)| from < to));
    }

    /// Removes an extent from what `who` has taken; tells whether it was there.
    fn give_back(&mut self, who: usize, index: u32, offset: u64, bytes: u64) -> bool {
        let Some(end) = offset.checked_add(bytes) else { return false };
        if bytes < 4096 || !offset.is_multiple_of(64) || !bytes.is_multiple_of(64) {
            return false;
        }
        let around = |&(by, from, to, of): &(usize, u64, u64, u32)| {
            by == who && of == index && from <= offset && end <= to
        };
        let Some(place) = self.taken.iter().position(around) else { return false };
        let (_, from, to, _) = self.taken.remove(place);
        self.taken.extend([(who, from, offset, index), (who, end, to, index)]);
        true
    }

    fn freed(&mut self, index: u32) {
        self.chunks.retain(|_, owner| *owner != index);
        self.taken.retain(|(_, _, _, of)| *of != index);
        self.rests.retain(|(_, _, of)| *of != index);
        self.given.retain(|_, (of, ..)| *of != index);
    }

    fn ended(&mut self, who: usize) {
        self.open.retain(|(user, _)| *user != who);
        self.taken.retain(|(by, _, _, _)| *by != who);
    }

    fn check(&self, core: &ServiceCore) {
        let usage = core.usage();
        assert_eq!(usage.chunk_bytes, self.chunks.len() as u64 * CHUNK_BYTES);
        assert_eq!(usage.indexes as usize, self.names.len());
    }
}

/// Tells whether a request is out of turn, so that it ends the conversation, as it should.
fn ends(request: &Request) -> bool {
    matches!(request, Request::Hello | Request::Join { .. } | Request::Resume { .. } | Request::Goodbye)
}

fn drop_all(core: &Arc<ServiceCore>, model: &mut Model) {
    let mut last = Client::alone(core);
    for (name, index) in model.names.clone() {
        for request in [
            Request::BeginDrop { name: name.clone() },
            free_of(index),
            Request::FinishDrop { name: name.clone(), index },
        ] {
            let reply = last.ask(request.clone());
            assert!(reply.is_ok(), "{request:?}: {reply:?}");
            model.note(usize::MAX, &request, &reply);
        }
    }
}

/// Removes what is random from replies.
fn without_secrets(
    mut replies: Vec<(u32, Result<Reply, ControlError>)>,
) -> Vec<(u32, Result<Reply, ControlError>)> {
    for (_, reply) in &mut replies {
        match reply {
            Ok(Reply::Entry(entry)) => entry.seal = KEY.seal(),
            Ok(Reply::Page { entries, .. }) => entries.iter_mut().for_each(|entry| entry.seal = KEY.seal()),
            Ok(Reply::Dropping { key, .. }) => *key = KEY,
            Ok(Reply::Welcome(welcome)) => welcome.pass = 0,
            _ => {}
        }
    }
    replies
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Several clients at a time, of which some send damaged requests: every reply is right, and at the end everything
    /// can be dropped, and nothing is left.
    #[test]
    fn state_stays_consistent(acts in vec((0..4usize, act()), 1..120)) {
        let core = core(5);
        let mut model = Model::default();
        let mut clients: Vec<Client> = (0..4).map(|_| Client::alone(&core)).collect();
        for (who, act) in &acts {
            let alive = match act {
                Act::Ask(request) if !ends(request) => {
                    let reply = clients[*who].ask(request.clone());
                    model.note(*who, request, &reply);
                    true
                }
                Act::Ask(request) => {
                    prop_assert!(clients[*who].send_frame(request.clone()).1.is_err());
                    false
                }
                Act::Damaged(request, damage) => {
                    let bytes = damaged(&mut clients[*who], request, damage);
                    let before = core.usage();
                    let (mut replies, ended) = clients[*who].send(&bytes);
                    if matches!(damage, Damage::Insert(_)) && !ends(request) {
                        // The request itself is whole.
                        model.note(*who, request, &replies.remove(0).1);
                    }
                    // Damaged bytes may still be a request, of which the model does not know.
                    let before = if matches!(damage, Damage::Insert(_)) { core.usage() } else { before };
                    if replies.iter().any(|(_, reply)| reply.is_ok()) || core.usage() != before {
                        return Ok(());
                    }
                    if let Err(close) = ended {
                        prop_assert_ne!(close, Close::Ended);
                    }
                    false
                }
                Act::Anew => false,
            };
            if !alive {
                clients[*who] = Client::alone(&core);
                model.ended(*who);
            }
            model.check(&core);
            prop_assert_eq!(core.nodes().len(), clients.len());
        }
        drop(clients);
        model.open.clear();
        drop_all(&core, &mut model);
        model.check(&core);
        prop_assert_eq!((core.usage().chunk_bytes, core.usage().indexes, core.nodes().len()), (0, 0, 0));
    }

    /// Random bytes, also after a good beginning, in pieces of random lengths.
    #[test]
    fn random_bytes_disturb_no_client(
        bytes in vec(any::<u8>(), 0..400),
        beginning in 0..4usize,
        cuts in vec(1..64usize, 1..20),
    ) {
        let core = core(5);
        let mut steady = Client::alone(&core);
        let entry = create(&mut steady, "steady").unwrap();
        let mut stream = match beginning {
            0 => vec![],
            1 => greeting().to_vec(),
            2 => opening(&[INSTANCE], &[]),
            _ => opening(&[INSTANCE], &[Request::Admit, Request::Usage, Request::Open { name: "steady".into() }]),
        };
        stream.extend(&bytes);
        let mut random = Client::silent(&core);
        let (mut left, mut over) = (&stream[..], false);
        for cut in cuts.iter().cycle() {
            if left.is_empty() {
                break;
            }
            let (piece, rest) = left.split_at(left.len().min(*cut));
            left = rest;
            let mut out = Vec::new();
            let received = random.session.receive(piece, &mut out);
            prop_assert!(!over || received == Err(Close::Ended));
            over |= received.is_err();
        }
        prop_assert_eq!(steady.ask(Request::Ping), Ok(Reply::Done));
        prop_assert_eq!(steady.ask(Request::Open { name: "steady".into() }), Ok(Reply::Entry(entry)));
        drop(random);
        prop_assert_eq!(core.nodes().len(), 1);
    }

    /// The replies do not depend on how the stream is cut.
    #[test]
    fn pieces_do_not_matter(requests in vec(request(), 0..20), cuts in vec(1..40usize, 1..10)) {
        let stream = opening(&[INSTANCE], &requests);
        let mut whole = Client::silent(&core(5));
        let expected = whole.send(&stream);
        let mut pieces = Client::silent(&core(5));
        let (mut left, mut found, mut ended) = (&stream[..], Vec::new(), Ok(()));
        for cut in cuts.iter().cycle() {
            if left.is_empty() || ended.is_err() {
                break;
            }
            let (piece, rest) = left.split_at(left.len().min(*cut));
            left = rest;
            let (replies, taken) = pieces.send(piece);
            found.extend(replies);
            ended = taken;
        }
        // Seconds and instance numbers are the same: both services are new, and the number is fixed.
        prop_assert_eq!((without_secrets(found), ended), (without_secrets(expected.0), expected.1));
    }
}
