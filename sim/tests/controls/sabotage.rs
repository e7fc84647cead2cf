//! A fabric that breaks one of the rules that the index rests on: what steers shards of the simulated one. Production
//! code has no hooks; what is needed of node formats is in the diagrams of `farwood_index::layout`.

use std::cell::Cell;

use farwood_index::IndexSpec;
use farwood_index::layout::range_leaf::RangeLayout;
use farwood_index::layout::{Kind, LINE_BYTES, LeafLayout, kind_of};
use farwood_runtime::chain::{Op, Verb};
use farwood_runtime::message::Message;
use farwood_runtime::{Chain, Completion, FabricError, Failed, RemotePtr};
use farwood_sim::shard::{Ended, Forge, Steering};

use crate::hop::{Hop, Parts};
use crate::radix::{Joined, Radix, Ticket};

/// The parts that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Nothing.
    Nothing,
    /// Of an image's versions only those of the first and the last line are compared, of an entry's as well.
    Bookends,
    /// Versions have 4 bits, and no READ is ever too long.
    FourBits,
    /// The unlock goes before the write-back.
    UnlockFirst,
    /// One in so many grants of a lock by another shard is lost.
    LostGrant(u32),
    /// Scans see no low fence, so that they cannot notice a gap.
    NoLowFence,
    /// One in so many unlocks is lost.
    LostUnlock(u32),
    /// A chain that writes and fails with its queue pair is taken for done.
    NoRedo,
    /// Leaves of a radix tree have the right checksum, whatever moments their bytes are from.
    AnyChecksum,
    /// Nodes of a radix tree name the parent that a reader comes from.
    AnyLink,
    /// A READ gets what an earlier one of the same bytes brings that is under way: delegation as in the paper.
    EarlierRead,
    /// No READ is too long, and the hop bits of a home name the slots of the keys that were read, whatever moments
    /// these are from.
    AnyHops,
    /// No READ is too long, and the entries of a neighbourhood have the version of its replica.
    AnyReplica,
    /// A chain of READs reads the last one first: a leaf's values before its keys.
    ValuesFirst,
    /// WRITEs of single slots are in the other order: a key before its value.
    KeysFirst,
    /// A leaf is not marked while it is written whole.
    NoTornMark,
    /// Sharers of a lock do not show themselves.
    NoPresence,
    /// An intent goes behind the node that it is about.
    IntentLast,
}

/// The nodes of the tree that runs on the fabric.
#[derive(Clone)]
pub(crate) enum Nodes {
    BTree(LeafLayout),
    Radix(Radix),
    Hop(Hop),
    /// Leaves of ranges, whose bytes stay as they are.
    Range,
}

impl Nodes {
    pub(crate) fn of(spec: &IndexSpec) -> Self {
        match spec {
            IndexSpec::Sherman { geometry, .. } => {
                Nodes::BTree(geometry.layouts().expect("the scenario has a tree").0)
            }
            IndexSpec::Smart { geometry, .. } => Nodes::Radix(Radix::new(*geometry)),
            IndexSpec::Chime { geometry, .. } => Nodes::Hop(Hop::new(*geometry, spec)),
            IndexSpec::Dolphin { .. } => Nodes::Range,
            other => panic!("the controls know no nodes of {}", other.kind()),
        }
    }
}

/// The steering that breaks a shard's fabric.
pub(crate) struct Sabotage {
    node_id: u16,
    act: Act,
    nodes: Nodes,
    joined: Joined,
    random: Cell<u64>,
}

impl Sabotage {
    pub(crate) fn new(node_id: u16, act: Act, nodes: Nodes, number: u32) -> Self {
        let random = Cell::new(u64::from(number) + 1);
        Sabotage { node_id, act, nodes, joined: Joined::default(), random }
    }

    fn one_in(&self, one_in: u32) -> bool {
        self.random
            .set(self.random.get().wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f));
        (self.random.get() >> 33).is_multiple_of(u64::from(one_in))
    }

    fn tampered(&self, chain: Chain, is_of_scan: bool) -> Chain {
        if let Act::NoLowFence = self.act
            && !is_of_scan
        {
            return chain;
        }
        let marks = |verb: &Verb| matches!(verb.op, Op::WriteWord { word: RangeLayout::TORN, .. });
        let unlocks = |verb: &Verb| matches!(verb.op, Op::WriteWord { word: 0, .. });
        match self.act {
            Act::UnlockFirst => rebuilt(chain, |verbs| verbs.sort_by_key(|verb| !unlocks(verb))),
            Act::LostUnlock(one_in) if chain.verbs().iter().any(unlocks) && self.one_in(one_in) => {
                rebuilt(chain, |verbs| verbs.retain(|verb| !unlocks(verb)))
            }
            Act::ValuesFirst if chain.verbs().iter().all(|verb| matches!(verb.op, Op::Read { .. })) => {
                rebuilt(chain, |verbs| verbs.reverse())
            }
            Act::KeysFirst if !chain.verbs().iter().any(marks) => rebuilt(chain, |verbs| {
                let writes = |verb: &Verb| matches!(verb.op, Op::Write { .. });
                let begin = verbs.iter().take_while(|verb| writes(verb)).count();
                verbs[..begin].reverse();
            }),
            Act::NoTornMark => rebuilt(chain, |verbs| verbs.retain(|verb| !marks(verb))),
            Act::IntentLast => match self.intent_in(&chain) {
                Some(intent) => rebuilt(chain, |verbs| {
                    let writes = |verb: &Verb| matches!(verb.op, Op::Write { .. });
                    let last = verbs.iter().rposition(writes).expect("an intent is a WRITE");
                    verbs[intent..=last].rotate_left(1);
                }),
                None => chain,
            },
            Act::NoPresence => rebuilt(chain, |verbs| {
                for verb in verbs {
                    if let Op::Faa { add, .. } = &mut verb.op {
                        *add = 0;
                    }
                }
            }),
            _ => chain,
        }
    }

    /// Finds the WRITE of an intent: its second word is a lock word of this compute node, which says that there are
    /// intents.
    fn intent_in(&self, chain: &Chain) -> Option<usize> {
        let buf = chain.buffer()?;
        chain.verbs().iter().position(|verb| {
            let Op::Write { from, len, .. } = verb.op else { return false };
            let second = buf[from as usize..][..len as usize].get(8..16);
            second
                .and_then(|word| word.try_into().ok())
                .map(u64::from_le_bytes)
                .is_some_and(|word| word >> 48 == u64::from(self.node_id) && word >> 31 & 1 == 1)
        })
    }
}

impl Steering for Sabotage {
    /// Takes the chain for a scan's that is one of several in parallel.
    fn begin(&self, chain: Chain, is_counted: bool) -> (Chain, Forge) {
        let is_of_scan = !is_counted;
        let chain = self.tampered(chain, is_of_scan);
        let reads = chain.verbs().iter().filter_map(|verb| match verb.op {
            Op::Read { at, to, len } => {
                let (at, len) = (RemotePtr::new(chain.server(), at), len as usize);
                let ticket = (self.act == Act::EarlierRead).then(|| self.joined.begin(at, len));
                Some(Read { at, to: to as usize, len, ticket })
            }
            _ => None,
        });
        let reads = reads.collect();
        let (nodes, joined) = (self.nodes.clone(), self.joined.clone());
        let forgery = Forgery { act: self.act, nodes, joined, is_of_scan, reads };
        (chain, Box::new(move |ended| forgery.ended(ended)))
    }

    fn arrives(&self, message: &Message) -> bool {
        match self.act {
            Act::LostGrant(one_in) => !is_grant(message) || !self.one_in(one_in),
            _ => true,
        }
    }
}

/// A READ of a chain: what it reads, and where in the buffer it goes.
struct Read {
    at: RemotePtr,
    to: usize,
    len: usize,
    ticket: Option<Ticket>,
}

/// Yields the chain with other verbs.
fn rebuilt(chain: Chain, edit: impl FnOnce(&mut Vec<Verb>)) -> Chain {
    let (server, mut verbs) = (chain.server(), chain.verbs().to_vec());
    edit(&mut verbs);
    let mut new = match chain.into_buffer() {
        Some(buf) => Chain::with_buffer(server, buf),
        None => Chain::new(server),
    };
    let at = |offset| RemotePtr::new(server, offset);
    let local = |from: u32, len: u32| from as usize..(from + len) as usize;
    for verb in verbs {
        if verb.fenced {
            new.fence();
        }
        match verb.op {
            Op::Read { at: offset, to, len } => new.read(at(offset), local(to, len)),
            Op::Write { at: offset, from, len } => new.write(at(offset), local(from, len)),
            Op::WriteWord { at: offset, word } => new.write_word(at(offset), word),
            Op::Cas { at: offset, expected, desired } => new.cas(at(offset), expected, desired),
            Op::MaskedCas { at: offset, expected, desired, to } => {
                new.masked_cas(at(offset), expected, desired, to as usize)
            }
            Op::Faa { at: offset, add } => new.faa(at(offset), add),
        };
    }
    new
}

/// The changes to a chain that has ended.
struct Forgery {
    act: Act,
    nodes: Nodes,
    joined: Joined,
    is_of_scan: bool,
    reads: Vec<Read>,
}

impl Forgery {
    fn ended(&self, ended: Ended) -> Ended {
        match ended {
            Ok(mut done) => {
                if matches!(self.act, Act::FourBits | Act::AnyHops | Act::AnyReplica) {
                    done.span_ns = 0;
                }
                if let Some(buf) = &mut done.buf {
                    self.forge_parts(buf);
                    for read in &self.reads {
                        self.forge(read, &mut buf[read.to..read.to + read.len]);
                    }
                }
                Ok(done)
            }
            Err(failed) if self.act == Act::NoRedo => pretend(failed),
            Err(failed) => Err(failed),
        }
    }

    /// Changes what the READs of a chain have brought of a hopscotch leaf. Each goes to where it is in the leaf.
    fn forge_parts(&self, image: &mut [u8]) {
        let Nodes::Hop(hop) = &self.nodes else { return };
        let read: Vec<_> = self.reads.iter().map(|read| read.to..read.to + read.len).collect();
        let is_whole = read.iter().any(|read| read.len() == image.len());
        if image.len() != hop.node_bytes() || is_whole {
            return;
        }
        let leaf = &mut Parts { image, read };
        match self.act {
            Act::AnyHops => hop.put_bits_right(leaf),
            Act::AnyReplica => hop.put_versions_right(leaf),
            _ => {}
        }
    }

    /// Changes what a READ has brought.
    fn forge(&self, read: &Read, image: &mut [u8]) {
        match (&self.nodes, self.act) {
            (Nodes::BTree(leaf), _) => self.forge_node(leaf, image),
            (Nodes::Hop(_) | Nodes::Range, _) => {}
            // All nodes of a radix tree are longer.
            (Nodes::Radix(_), _) if image.len() < 24 => {}
            (Nodes::Radix(radix), Act::AnyChecksum) => radix.put_checksum_right(image),
            (Nodes::Radix(radix), Act::AnyLink) => radix.put_link_right(read.at, image),
            (Nodes::Radix(_), _) => {
                if let Some(ticket) = read.ticket {
                    self.joined.end(ticket, image);
                }
            }
        }
    }

    fn forge_node(&self, leaf: &LeafLayout, image: &mut [u8]) {
        if image.len() < LINE_BYTES {
            return;
        }
        let is_leaf = image.len() == leaf.node_bytes() && kind_of(image) == Ok(Kind::Leaf);
        match self.act {
            Act::Bookends => {
                let (first, last) = (control_word(image, 0), image.len() / LINE_BYTES - 1);
                for line in 1..last {
                    let word = control_word(image, line) & !NODE_VERSION | first & NODE_VERSION;
                    set_control_word(image, line, word);
                }
                if is_leaf {
                    forge_entries(leaf, image, |head, further| {
                        let inner = further.len().saturating_sub(1);
                        further[..inner].fill(*head & ENTRY_VERSION);
                    });
                }
            }
            Act::FourBits => {
                for line in 0..image.len() / LINE_BYTES {
                    set_control_word(image, line, control_word(image, line) & !(NODE_VERSION & !0xf));
                }
                if is_leaf {
                    forge_entries(leaf, image, |head, further| {
                        *head &= !0x10;
                        further.iter_mut().for_each(|version| *version &= 0xf);
                    });
                }
            }
            // The length of the low fence: minus infinity.
            Act::NoLowFence if is_leaf && self.is_of_scan => image[18..20].fill(0),
            _ => {}
        }
    }
}

/// Lets `forge` change the versions of every entry: in its head, and in the lines that it goes on in.
fn forge_entries(leaf: &LeafLayout, image: &mut [u8], forge: impl Fn(&mut u8, &mut [u8])) {
    let (max_key, max_value) = (leaf.max_key(), leaf.max_value());
    let entry_bytes = 1 + max_key + max_value;
    let entries = 20 + 2 * max_key + leaf.slots();
    for slot in 0..leaf.slots() {
        let (first, last) = (entries + slot * entry_bytes, entries + (slot + 1) * entry_bytes - 1);
        let lines = first / PAYLOAD + 1..last / PAYLOAD + 1;
        let mut further: Vec<u8> =
            lines.clone().map(|line| (control_word(image, line) >> 11) as u8).collect();
        let head = first / PAYLOAD * LINE_BYTES + 2 + first % PAYLOAD;
        forge(&mut image[head], &mut further);
        for (line, version) in lines.zip(further) {
            let word = control_word(image, line) & NODE_VERSION | u16::from(version) << 11;
            set_control_word(image, line, word);
        }
    }
}

const PAYLOAD: usize = LINE_BYTES - 2;
const NODE_VERSION: u16 = 0x7ff;
const ENTRY_VERSION: u8 = 0x1f;

fn control_word(image: &[u8], line: usize) -> u16 {
    u16::from_le_bytes([image[line * LINE_BYTES], image[line * LINE_BYTES + 1]])
}

fn set_control_word(image: &mut [u8], line: usize, word: u16) {
    image[line * LINE_BYTES..line * LINE_BYTES + 2].copy_from_slice(&word.to_le_bytes());
}

/// Says that a chain that only writes nodes has succeeded if it broke with its queue pair.
fn pretend(failed: Failed) -> Ended {
    let verbs = failed.chain().verbs();
    let writes_back = !verbs.is_empty() && verbs.iter().all(|verb| matches!(verb.op, Op::Write { .. }));
    if !writes_back || !matches!(failed.cause(), FabricError::QueuePair { .. }) {
        return Err(failed);
    }
    let (_, chain) = failed.into_parts();
    Ok(Completion { buf: chain.into_buffer(), atomics: Default::default(), span_ns: 0 })
}

/// Tells whether a message of the lock tables grants a lock: the lowest byte is its kind.
fn is_grant(Message([head, ..]): &Message) -> bool {
    *head as u8 == 4
}
