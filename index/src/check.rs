//! Findings of a check of an index: violations that name a node and what is wrong with it, locks and nodes that dead
//! clients left behind, the index's shape, and the pairs that are in it.
//!
//! A check only reads. It is meant for an index at rest: a writer at work is reported by the intermediate state that it
//! leaves. It does not trust bytes from a memory server: whatever they are, the check ends and reports them. This file
//! knows no node format; `check.rs` of each index walks its nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Deref;

use farwood_lock::LockWord;
use farwood_runtime::{Extents, RemotePtr, ServerInfo};
use thiserror::Error;

use crate::error::AccessError;
use crate::layout::{Bytes, LINE_BYTES, Rejection};
use crate::memory::{MemoryFault, MemoryReport};
use crate::range_index::TreeShape;

/// Bytes of a key that a message shows.
const SHOWN_BYTES: usize = 32;

/// Tolerance of a check, and the number of findings that it keeps.
///
/// ```
/// # use farwood_index::CheckOptions;
/// # use std::collections::BTreeSet;
/// # farwood_doctest::index!(|index| {
/// let options = CheckOptions { dead: BTreeSet::from([3]), ..CheckOptions::default() };
/// assert!(index.check(&options).await?.is_intact());
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckOptions {
    /// Compute nodes that are gone for good. The locks that they hold are no violation, nor are torn nodes under them.
    pub dead: BTreeSet<u16>,
    /// Findings of each sort that are kept; the others are only counted.
    pub kept_max: usize,
}

impl Default for CheckOptions {
    fn default() -> Self {
        CheckOptions { dead: BTreeSet::new(), kept_max: 100 }
    }
}

/// Facts for a walk over an index at rest.
#[derive(Clone, Debug)]
pub struct AtRest<'c> {
    /// Tolerance of the check.
    pub options: &'c CheckOptions,
    /// Words of the lock tables that dead clients hold: nodes under them may be torn.
    pub exempt: BTreeSet<RemotePtr>,
}

/// Findings of a check.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CheckReport {
    /// The shape of what could be read.
    pub survey: TreeShape,
    /// Broken invariants. An intact index has none.
    pub violations: Kept<Violation>,
    /// Nodes that their parent does not know. No violation: a split failed or was interrupted before its separator was
    /// in, and the node is reached over its neighbour. Clients that take this way have the separator put in.
    pub missing_separators: Kept<MissingSeparator>,
    /// Inner nodes of a radix tree whose replacement was begun and not completed. No violation: the next writer there
    /// completes it.
    pub unfinished: Kept<RemotePtr>,
    /// Locks of dead compute nodes.
    pub orphaned: Kept<HeldLock>,
    /// Lock words that are held for other indexes, or by compute nodes that had died before this one was made. They
    /// guard nothing of it: no node under one is excused.
    pub leftovers: Kept<HeldLock>,
    /// Nodes under those locks that are torn. What is in them is not among the pairs that were found.
    pub torn: Kept<RemotePtr>,
    /// Accounts of the memory that was handed out for the index; none if the memory servers have not said which that
    /// is.
    pub memory: Option<MemoryReport>,
    /// Bytes of the nodes that were reached so far, if that is of interest.
    pub(crate) reached: Option<Extents>,
    /// Bytes in which there is no node, and which stay as they are: something leads there.
    pub(crate) led_to: Extents,
}

impl CheckReport {
    /// Makes the report of a check that has found nothing yet; it keeps so many findings of each sort.
    ///
    /// ```
    /// # use farwood_index::CheckReport;
    /// assert!(CheckReport::new(100).is_intact());
    /// ```
    pub fn new(kept_max: usize) -> Self {
        CheckReport {
            survey: TreeShape::default(),
            violations: Kept::new(kept_max),
            missing_separators: Kept::new(kept_max),
            unfinished: Kept::new(kept_max),
            orphaned: Kept::new(kept_max),
            leftovers: Kept::new(kept_max),
            torn: Kept::new(kept_max),
            memory: None,
            reached: None,
            led_to: Extents::default(),
        }
    }

    /// Notes that the index reaches the node at `at`, or a block of `bytes` bytes there: whatever is in it, something
    /// of the index leads there. Where another one has some of its bytes that is a violation. A walk notes each once,
    /// and all of them: what it does not note, a repair may give back ([`crate::shell::Index::give_back`]).
    ///
    /// ```
    /// # use farwood_index::CheckReport;
    /// # use farwood_runtime::RemotePtr;
    /// let mut report = CheckReport::new(100);
    /// report.reach(RemotePtr::from_bits(4096), 1000);
    /// assert!(report.is_intact());
    /// ```
    pub fn reach(&mut self, at: RemotePtr, bytes: u64) {
        let lines = bytes.next_multiple_of(LINE_BYTES as u64);
        if self.reached.as_mut().and_then(|reached| reached.add(at, lines)).is_some() {
            let broken = Broken::Memory(MemoryFault::Shared);
            self.violations.push(Violation { node: at, level: None, broken });
        }
    }

    /// Notes the locks that are held of an index at rest; yields those of the dead, under which nodes may be torn.
    ///
    /// ```
    /// # use farwood_index::{CheckOptions, CheckReport};
    /// # use farwood_lock::LockWord;
    /// # use farwood_runtime::RemotePtr;
    /// let options = CheckOptions { dead: [3].into(), ..CheckOptions::default() };
    /// let (alive, dead) = (RemotePtr::from_bits(64), RemotePtr::from_bits(72));
    /// let held = vec![(alive, LockWord::new(2, 1, 0)), (dead, LockWord::new(3, 1, 0))];
    /// let mut report = CheckReport::new(100);
    /// assert_eq!(report.note_locks(&options, held, |word| word.tag() != 1), [dead].into());
    /// assert_eq!((report.orphaned[0].at, report.violations[0].node), (dead, alive));
    /// ```
    pub fn note_locks(
        &mut self,
        options: &CheckOptions,
        held: Vec<(RemotePtr, LockWord)>,
        is_foreign: impl Fn(LockWord) -> bool,
    ) -> BTreeSet<RemotePtr> {
        let mut exempt = BTreeSet::new();
        for (at, word) in held {
            if is_foreign(word) {
                self.leftovers.push(HeldLock { at, word });
            } else if self.note_lock(options, at, word) {
                exempt.insert(at);
            }
        }
        exempt
    }

    /// Notes a lock of this index that is held at rest; yields whether its owner is dead.
    pub(crate) fn note_lock(&mut self, options: &CheckOptions, at: RemotePtr, word: LockWord) -> bool {
        let is_orphaned = options.dead.contains(&word.owner());
        if is_orphaned {
            self.orphaned.push(HeldLock { at, word });
        } else {
            self.violations.push(Violation { node: at, level: None, broken: Broken::LockHeld { word } });
        }
        is_orphaned
    }

    /// Yields the shape of an index that nothing is wrong with.
    ///
    /// ```
    /// # use farwood_index::{CheckOptions, RangeIndex};
    /// # farwood_doctest::index!(|index| {
    /// index.put(b"anna", b"1").await?;
    /// let shape = index.check(&CheckOptions::default()).await?.shape()?;
    /// assert_eq!(shape, index.survey().await?);
    /// # });
    /// ```
    ///
    /// # Errors
    /// The first violation: the shape of a damaged index means nothing.
    pub fn shape(self) -> Result<TreeShape, AccessError> {
        match self.violations.first() {
            None => Ok(self.survey),
            Some(Violation { node, broken, .. }) => {
                Err(AccessError::Corrupt { node: *node, what: broken.to_string() })
            }
        }
    }

    /// Tells whether no invariant is broken.
    ///
    /// ```
    /// # use farwood_index::CheckReport;
    /// # use farwood_index::check::{Broken, Violation};
    /// # use farwood_runtime::RemotePtr;
    /// let mut report = CheckReport::new(100);
    /// assert!(report.is_intact());
    /// let broken = Broken::Rule { what: "it is upside down".into() };
    /// report.violations.push(Violation { node: RemotePtr::from_bits(64), level: None, broken });
    /// assert!(!report.is_intact());
    /// ```
    pub fn is_intact(&self) -> bool {
        self.violations.is_empty()
    }
}

/// The first findings, as a slice, and the number of all.
///
/// ```
/// # use farwood_index::CheckReport;
/// # use farwood_runtime::RemotePtr;
/// let mut torn = CheckReport::new(2).torn;
/// (1..=5).for_each(|n| torn.push(RemotePtr::from_bits(n * 64)));
/// assert_eq!((torn.len(), torn.total()), (2, 5));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept<T> {
    first: Vec<T>,
    total: u64,
    max: usize,
}

impl<T> Kept<T> {
    pub(crate) fn new(max: usize) -> Self {
        Kept { first: Vec::new(), total: 0, max }
    }

    /// Adds one; it is kept if there is room, and counted.
    ///
    /// ```
    /// # use farwood_index::CheckReport;
    /// # use farwood_runtime::RemotePtr;
    /// let mut torn = CheckReport::new(100).torn;
    /// torn.push(RemotePtr::from_bits(64));
    /// assert_eq!(torn[..], [RemotePtr::from_bits(64)]);
    /// ```
    pub fn push(&mut self, found: T) {
        self.total += 1;
        if self.first.len() < self.max {
            self.first.push(found);
        }
    }

    /// Counts all findings, those that were not kept included.
    ///
    /// ```
    /// # use farwood_index::CheckReport;
    /// # use farwood_runtime::RemotePtr;
    /// let mut torn = CheckReport::new(0).torn;
    /// torn.push(RemotePtr::from_bits(64));
    /// assert_eq!((torn.total(), torn.len()), (1, 0));
    /// ```
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Tells whether there were none (with a `kept_max` of 0 the slice is always empty).
    ///
    /// ```
    /// # use farwood_index::CheckReport;
    /// # use farwood_runtime::RemotePtr;
    /// let mut torn = CheckReport::new(0).torn;
    /// assert!(torn.is_empty());
    /// torn.push(RemotePtr::from_bits(64));
    /// assert!(!torn.is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }
}

impl<T> Deref for Kept<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.first
    }
}

/// A finding: a broken invariant, and where. Displays as one line that names the node and what is wrong.
///
/// ```
/// # use farwood_index::check::{Broken, Violation};
/// # use farwood_runtime::{RemotePtr, ServerId};
/// let node = RemotePtr::new(ServerId(2), 0x1240);
/// let violation = Violation { node, level: Some(0), broken: Broken::Level { found: 1 } };
/// assert_eq!(violation.to_string(), "node 2:0x1240 at level 0: its header says level 1");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Where: the node whose bytes are wrong, as far as that can be told; the node (or root word) that holds a wrong
    /// pointer; for [`Broken::LockHeld`] the lock word.
    pub node: RemotePtr,
    /// The level at which the walk met the node, 0 for leaves; none for what is no node.
    pub level: Option<u8>,
    /// The broken invariant.
    pub broken: Broken,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { node, level, broken } = self;
        match level {
            Some(level) => write!(f, "node {node} at level {level}: {broken}"),
            None => write!(f, "word {node}: {broken}"),
        }
    }
}

/// A broken invariant of an index, with its details.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum Broken {
    /// The bytes at the node's address are not those of a whole node of the level.
    #[error("{rejection} (node {from} leads here)")]
    Unreadable { rejection: Rejection, from: RemotePtr },
    /// An entry of the node cannot be read: its lines are of different versions, or no writer leaves such an entry.
    #[error("one of its entries: {0}")]
    Entry(Rejection),
    /// A pointer to where no node can be.
    #[error("its {link} is {to}: {fault}")]
    Address { link: Link, to: RemotePtr, fault: AddressFault },
    /// The header has another level than the way to the node.
    #[error("its header says level {found}")]
    Level { found: u8 },
    /// The root word has another level than the root.
    #[error("the root word says that the root is of level {word}, the root itself says {found}")]
    RootLevel { word: u8, found: u8 },
    /// The low fence of the node is not where its left neighbour ends, or its parent says that it begins.
    #[error("its low fence is {}, but {from} leads here for keys from {} on", shown(.low), shown(.expected))]
    LowFence { low: Bytes, expected: Bytes, from: RemotePtr },
    /// The high fence of the node is not where its right neighbour begins (as their parent confirms).
    #[error("its high fence is {}, but its right neighbour {sibling} begins at {}", shown(.high), shown(.low))]
    HighFence { high: Bytes, sibling: RemotePtr, low: Bytes },
    /// A right neighbour of a node that answers for all keys from its low fence on.
    #[error("it has a right neighbour {sibling}, but no high fence")]
    NoHighFence { sibling: RemotePtr },
    /// The last node of its level, although it does not answer for the largest keys.
    #[error("it has no right neighbour, but a high fence, {}", shown(.high))]
    NoSibling { high: Bytes },
    /// The sibling pointer leads to a node that the walk has met before.
    #[error("its sibling pointer leads back to {sibling}")]
    Revisited { sibling: RemotePtr },
    /// A child pointer does not lead to the node that begins at its separator.
    #[error("its separator {} leads to node {child}, which does not begin there{}", shown(.separator), which(.begins))]
    WrongChild { separator: Bytes, child: RemotePtr, begins: Option<RemotePtr> },
    /// The parent knows the node, its left neighbours do not lead to it.
    #[error("no sibling pointer leads here, only the parent {parent}")]
    OffChain { parent: RemotePtr },
    /// An inner node's first separator is not its low fence.
    #[error("its first separator is {}, but its low fence {}", shown(.separator), shown(.low))]
    FirstSeparator { separator: Bytes, low: Bytes },
    /// A separator is not above the one before it.
    #[error("its separator {} is not above the one before it", shown(.separator))]
    SeparatorOrder { separator: Bytes },
    /// A separator outside its node's fences.
    #[error("its separator {} lies outside its fences", shown(.separator))]
    SeparatorOutside { separator: Bytes },
    /// A key outside its leaf's fences.
    #[error("its key {} lies outside its fences", shown(.key))]
    KeyOutside { key: Bytes },
    /// A key in a slot with another key's fingerprint.
    #[error("its key {} is in it, but no lookup finds it: its fingerprint is another key's", shown(.key))]
    Fingerprint { key: Bytes },
    /// A key twice in one leaf.
    #[error("its key {} is in it twice", shown(.key))]
    DuplicateKey { key: Bytes },
    /// A node of a radix tree that begins with key bytes behind those that lead to it.
    #[error("its header begins at key byte {depth}, but node {from} leads here for keys from byte {next} on")]
    MissingBytes { depth: usize, next: usize, from: RemotePtr },
    /// A node or leaf of a radix tree below a slot that is for other keys.
    #[error("its keys begin with {}, but node {from} leads here for those with {}", shown(.found), shown(.path))]
    OutOfPlace { found: Bytes, path: Bytes, from: RemotePtr },
    /// Two slots of a node for the same next key byte, or for the end of keys.
    #[error("its slots {first} and {second} are for the same symbol")]
    SymbolTwice { first: usize, second: usize },
    /// An inner node of a radix tree that two slots lead to.
    #[error("the walk was here before, and node {from} leads here again")]
    ReachedTwice { from: RemotePtr },
    /// A lock whose holder is not known to be dead.
    #[error("the lock is taken by compute node {}, index {}, nonce {:#x}", .word.owner(), .word.tag(), .word.nonce())]
    LockHeld { word: LockWord },
    /// Bytes where no node of the index can be, or not two.
    #[error("{0}")]
    Memory(MemoryFault),
    /// A rule that only one kind of index has.
    #[error("{what}")]
    Rule { what: String },
}

/// The sorts of pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// The root word.
    Root,
    /// From an inner node to a node of the level below.
    Child,
    /// From a node to its right neighbour.
    Sibling,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Link::Root => "root pointer",
            Link::Child => "child pointer",
            Link::Sibling => "sibling pointer",
        })
    }
}

/// Why no node can be at an address.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum AddressFault {
    /// The null pointer, where there must be a node.
    #[error("there must be a node")]
    Null,
    /// Nodes begin at lines.
    #[error("no node begins within a line")]
    Misaligned,
    /// A memory server that the cluster does not have.
    #[error("there is no such memory server")]
    NoSuchServer,
    /// The node would not lie inside the server's region.
    #[error("it is outside the memory server's region")]
    OutsideRegion,
}

/// A node that its parent does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingSeparator {
    /// The node.
    pub node: RemotePtr,
    /// The level at which it is.
    pub level: u8,
    /// Its low fence: the separator that is missing.
    pub separator: Bytes,
    /// The node above that answers for its keys, or the root word.
    pub parent: RemotePtr,
}

impl fmt::Display for MissingSeparator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MissingSeparator { node, level, separator, parent } = self;
        write!(f, "node {node} at level {level}: no separator {} in its parent {parent}", shown(separator))
    }
}

/// A lock that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// The lock word's address.
    pub at: RemotePtr,
    /// The word, which names its owner.
    pub word: LockWord,
}

/// Counts the bytes that a node of `bytes` bytes takes: whole lines.
pub(crate) fn in_lines(bytes: usize) -> u64 {
    bytes.next_multiple_of(LINE_BYTES) as u64
}

/// Checks whether `bytes` bytes of a node can be at `at`.
///
/// ```
/// # use farwood_index::check::{AddressFault, inside};
/// # farwood_doctest::run(async |node, _| {
/// use farwood_runtime::{NodeContext, RemotePtr, ServerId};
///
/// let control = node.control();
/// let at = |server, offset| inside(control.servers(), RemotePtr::new(ServerId(server), offset), 1024);
/// assert_eq!(at(0, 4096), Ok(()));
/// assert_eq!(at(0, 4097), Err(AddressFault::Misaligned));
/// assert_eq!(at(1, 4096), Err(AddressFault::NoSuchServer));
/// # Ok(()) });
/// ```
///
/// # Errors
/// Why they cannot.
pub fn inside(servers: &[ServerInfo], at: RemotePtr, bytes: usize) -> Result<(), AddressFault> {
    if at.is_null() {
        return Err(AddressFault::Null);
    }
    if !at.offset().is_multiple_of(LINE_BYTES as u64) {
        return Err(AddressFault::Misaligned);
    }
    let server = servers.get(usize::from(at.server().0)).ok_or(AddressFault::NoSuchServer)?;
    if at.offset() + bytes as u64 > server.region_bytes {
        return Err(AddressFault::OutsideRegion);
    }
    Ok(())
}

/// Pairs that a check came across, to be compared with what must be there.
///
/// A key among them is in the tree. Whether clients find it is another question: ask [`crate::RangeIndex::get`] of a
/// handle with a cold cache too, such as one from another `Sherman::open`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairs(BTreeMap<Bytes, Bytes>);

impl Pairs {
    /// Adds a pair. False, and no effect, if the key was there already.
    ///
    /// ```
    /// # use farwood_index::check::Pairs;
    /// let mut pairs = Pairs::default();
    /// assert!(pairs.insert(b"anna", b"1"));
    /// assert!(!pairs.insert(b"anna", b"2"));
    /// assert_eq!(pairs.get(b"anna"), Some(&b"1"[..]));
    /// ```
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> bool {
        use std::collections::btree_map::Entry;
        match self.0.entry(Bytes::from_slice(key)) {
            Entry::Vacant(place) => {
                place.insert(Bytes::from_slice(value));
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// Yields the value of `key`.
    ///
    /// ```
    /// # use farwood_index::check::Pairs;
    /// let mut pairs = Pairs::default();
    /// pairs.insert(b"anna", b"1");
    /// assert_eq!((pairs.get(b"anna"), pairs.get(b"berta")), (Some(&b"1"[..]), None));
    /// ```
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.0.get(key).map(|value| &value[..])
    }

    /// Yields those of `keys` that were not found.
    ///
    /// ```
    /// # use farwood_index::check::Pairs;
    /// let mut pairs = Pairs::default();
    /// pairs.insert(b"anna", b"1");
    /// assert_eq!(pairs.missing(["anna", "berta"]), ["berta"]);
    /// ```
    pub fn missing<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Vec<K> {
        keys.into_iter().filter(|key| !self.0.contains_key(key.as_ref())).collect()
    }

    /// Yields all pairs, ascending.
    ///
    /// ```
    /// # use farwood_index::check::Pairs;
    /// let mut pairs = Pairs::default();
    /// pairs.insert(b"berta", b"2");
    /// pairs.insert(b"anna", b"1");
    /// assert!(pairs.iter().map(|(key, _)| key).eq([&b"anna"[..], b"berta"]));
    /// assert_eq!((pairs.len(), pairs.is_empty()), (2, false));
    /// ```
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        self.0.iter().map(|(key, value)| (&key[..], &value[..]))
    }

    /// Counts the pairs.
    ///
    /// ```
    /// # use farwood_index::check::Pairs;
    /// let mut pairs = Pairs::default();
    /// pairs.insert(b"anna", b"1");
    /// assert_eq!(pairs.len(), 1);
    /// ```
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Tells whether there are no pairs.
    ///
    /// ```
    /// # use farwood_index::check::Pairs;
    /// assert!(Pairs::default().is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Shows a key in a message: in quotes, on one line, a long one cut off.
fn shown(key: &[u8]) -> String {
    let (begin, more) = match key.get(..SHOWN_BYTES) {
        Some(begin) if key.len() > SHOWN_BYTES => (begin, ".."),
        _ => (key, ""),
    };
    format!("\"{}\"{more}", begin.escape_ascii())
}

fn which(begins: &Option<RemotePtr>) -> String {
    begins.map(|node| format!("; {node} does")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use farwood_runtime::ServerId;

    use super::*;

    #[test]
    fn counts_what_it_does_not_keep() {
        let mut kept = Kept::new(2);
        assert!(kept.is_empty() && kept.total() == 0);
        (0..5).for_each(|n| kept.push(n));
        assert_eq!((&kept[..], kept.total()), (&[0, 1][..], 5));
        let mut none = Kept::new(0);
        none.push(1);
        assert!(!none.is_empty() && none.iter().count() == 0);
    }

    #[test]
    fn a_violation_is_one_line_that_names_the_node() {
        let key = |bytes: &[u8]| Bytes::from_slice(bytes);
        let node = RemotePtr::new(ServerId(2), 0x1240);
        let broken = Broken::LowFence { low: key(b"a\n"), expected: key(&[b'b'; 40]), from: node };
        let line = Violation { node, level: Some(0), broken }.to_string();
        let expected =
            r#"node 2:0x1240 at level 0: its low fence is "a\n", but 2:0x1240 leads here for keys from "#;
        assert!(line.starts_with(expected) && line.ends_with(r#"bb".. on"#), "{line}");
        let broken = Broken::LockHeld { word: LockWord::new(7, 1, 0xff) };
        let line = Violation { node, level: None, broken }.to_string();
        assert_eq!(line, "word 2:0x1240: the lock is taken by compute node 7, index 1, nonce 0xff");
        let broken = Broken::WrongChild { separator: key(b""), child: node, begins: Some(node) };
        let line = broken.to_string();
        assert_eq!(
            line,
            r#"its separator "" leads to node 2:0x1240, which does not begin there; 2:0x1240 does"#
        );
    }

    #[test]
    fn tells_what_is_missing() {
        let mut pairs = Pairs::default();
        assert!(pairs.insert(b"b", b"2") && pairs.insert(b"a", b"1") && !pairs.insert(b"a", b"3"));
        assert_eq!(pairs.missing([b"a", b"b", b"c"]), [b"c"]);
        assert_eq!((pairs.get(b"a"), pairs.get(b"c"), pairs.len()), (Some(&b"1"[..]), None, 2));
        assert!(pairs.iter().map(|(key, _)| key).eq([b"a", b"b"]));
    }
}
