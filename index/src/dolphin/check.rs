//! Walks a tree at rest, read-only: the inner nodes first, then the leaves of each first byte, one after the other by
//! the links between them. It judges what readers rely on: that the leaves of a first byte cover all keys, in order;
//! and that no slot leads beyond the leaf of its keys. That one leads too far to the left costs round trips, and is no
//! violation. With `deep_special` the keys of a leaf share all but their last bytes.
//!
//! It neither uses nor fills the cache.

use std::collections::{BTreeMap, BTreeSet};

use farwood_lock::LockWord;
use farwood_lock::shared::LockWords;
use farwood_runtime::{Buf, Meter, RemotePtr, Verbs};

use super::Tree;
use super::descend::{Inner, Successor, Unread};
use super::leaf_plan::{Old, pairs_of, share_prefix};
use super::merge::is_gone;
use super::root::{begin_of, end_of};
use crate::check::{AtRest, Broken, CheckReport, Link, MissingSeparator, Violation, in_lines, inside};
use crate::error::AccessError;
use crate::layout::radix::{Child, Symbol};
use crate::layout::range_leaf::Standing;
use crate::layout::{Bytes, Rejection};
use crate::step::Budget;

/// Times that a check reads a torn leaf again. At rest once is enough.
const REREADS: u32 = 8;

/// Walks over the tree ([`Algorithm::walk`](crate::shell::Algorithm::walk)).
pub(super) async fn walk<V: Verbs>(
    tree: &Tree<V>,
    meter: &Meter,
    at_rest: Option<AtRest<'_>>,
    report: &mut CheckReport,
    visit: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<(), AccessError> {
    let mut budget = tree.budget();
    let Some(root) = tree.read_root(meter, &mut budget).await? else { return Ok(()) };
    let owners = match &at_rest {
        Some(_) => lane_owners(tree, meter, root, &mut budget).await?,
        None => Vec::new(),
    };
    // Behind the root, which is among the inner nodes, lies the directory.
    let root_node = tree.types().node_bytes(tree.types().largest());
    report.survey.used_bytes += in_lines(tree.root_bytes()) - in_lines(root_node);
    report.reach(root.ptr().add(in_lines(root_node)), in_lines(tree.root_bytes()) - in_lines(root_node));
    let mut walk = Walk {
        tree,
        meter,
        budget,
        at_rest,
        owners,
        visited: BTreeSet::new(),
        reused: BTreeSet::new(),
        gone: BTreeSet::new(),
        height: 0,
        report,
    };
    let families = walk.inner_nodes(tree.unread_root(root)).await?;
    let mut begins = Vec::new();
    for (symbol, slots) in &families {
        begins.push(walk.leaves(*symbol, slots, visit).await?);
    }
    // A slot may lead to a leaf of another first byte.
    for (slots, begins) in families.values().zip(&begins) {
        walk.judge_slots(slots, begins).await?;
    }
    let survey = &mut walk.report.survey;
    let slots = survey.leaves * tree.leaf().slots() as u64;
    survey.height = walk.height;
    survey.load_factor = if slots == 0 { 0.0 } else { survey.keys as f64 / slots as f64 };
    Ok(())
}

/// Reads who has each lane of the leaves' locks: one round trip, and one more for each queue pair that breaks.
async fn lane_owners<V: Verbs>(
    tree: &Tree<V>,
    meter: &Meter,
    root: Child,
    budget: &mut Budget,
) -> Result<Vec<Option<LockWord>>, AccessError> {
    loop {
        match tree.leaf_locks().lane_owners(meter).await {
            Ok(owners) => return Ok(owners),
            Err(cause) if cause.is_passing() => budget.spend(meter, root.ptr(), None)?,
            Err(cause) => return Err(cause.into()),
        }
    }
}

/// The slots that lead to leaves, by the keys that they are for, with the nodes that they are in.
type LeafSlots = Vec<(Bytes, Child, RemotePtr)>;

/// The leaves of a first byte that a walk has been at, and where they begin; `None` if that is not known.
#[derive(Default)]
struct Begins(BTreeMap<Child, Option<Bytes>>);

impl Begins {
    fn insert(&mut self, leaf: Child, begin: Option<Bytes>) {
        self.0.insert(leaf, begin);
    }

    fn knows(&self, leaf: Child) -> bool {
        self.0.contains_key(&leaf)
    }

    /// Yields where a leaf begins, if that is known.
    fn of(&self, leaf: Child) -> Option<&Bytes> {
        self.0.get(&leaf)?.as_ref()
    }

    fn known(&self) -> impl Iterator<Item = (&Child, &Bytes)> {
        self.0.iter().filter_map(|(leaf, begin)| Some((leaf, begin.as_ref()?)))
    }

    /// Tells whether a walk that comes to `leaf`, which is to begin at `expected`, goes on where it was before. Behind
    /// a torn leaf a walk goes on at some slot, which may lead beyond leaves that only the torn one leads to; a later
    /// slot that leads too far to the left may lead to those, and from there to where the walk has been.
    fn joins(&self, leaf: Child, expected: Option<&Bytes>) -> bool {
        match self.0.get(&leaf) {
            None => false,
            Some(None) => true,
            Some(begin) => begin.as_ref() == expected && self.0.values().any(Option::is_none),
        }
    }
}

struct Walk<'t, V: Verbs> {
    tree: &'t Tree<V>,
    meter: &'t Meter,
    budget: Budget,
    at_rest: Option<AtRest<'t>>,
    /// The words of those that have lanes.
    owners: Vec<Option<LockWord>>,
    /// Nodes that were read: none is read twice.
    visited: BTreeSet<RemotePtr>,
    /// Leaves where others were before, to which slots may lead that are none of theirs.
    reused: BTreeSet<Child>,
    /// Leaves that were merged, and to which slots lead still.
    gone: BTreeSet<Child>,
    height: u8,
    report: &'t mut CheckReport,
}

impl<V: Verbs> Walk<'_, V> {
    fn violation(&mut self, node: RemotePtr, broken: Broken) {
        self.report.violations.push(Violation { node, level: None, broken });
    }

    fn rule(&mut self, node: RemotePtr, what: impl Into<String>) {
        self.violation(node, Broken::Rule { what: what.into() });
    }

    /// Reads all inner nodes; yields the slots that lead to leaves, by their first symbol.
    async fn inner_nodes(&mut self, root: Unread) -> Result<BTreeMap<Symbol, LeafSlots>, AccessError> {
        let mut families: BTreeMap<Symbol, LeafSlots> = BTreeMap::new();
        let mut ahead = vec![(root, Bytes::new(), self.tree.shared.entry.root)];
        while let Some((at, path, from)) = ahead.pop() {
            let Some(inner) = self.inner_node(at, from).await? else { continue };
            let ptr = at.node.ptr();
            if let Some(successor) = inner.successor {
                self.report.unfinished.push(ptr);
                match successor {
                    Successor::Node(node, class) => ahead.push((Unread { node, class, ..at }, path, ptr)),
                    Successor::Leaf(leaf) => {
                        families.entry(Symbol::of(&path, 0)).or_default().push((path, leaf, ptr));
                    }
                }
                continue;
            }
            self.report.survey.inner_nodes += 1;
            self.report.survey.used_bytes += in_lines(self.tree.types().node_bytes(at.class));
            self.height = self.height.max((inner.position + 2).min(255) as u8);
            self.judge_symbols(ptr, &inner);
            for slot in &inner.slots {
                let mut below = path.clone();
                if let Symbol::Byte(byte) = slot.symbol() {
                    below.push(byte);
                }
                match at.below(inner.position, *slot) {
                    Some(leaf) if slot.is_leaf() => {
                        let family = Symbol::of(&below, 0);
                        families.entry(family).or_default().push((below, leaf.node, ptr));
                    }
                    Some(node) if slot.symbol() != Symbol::End => ahead.push((node, below, ptr)),
                    _ => self.rule(ptr, format!("its slot {slot:?} leads nowhere")),
                }
            }
        }
        families.values_mut().for_each(|slots| slots.sort_by(|one, other| one.0.cmp(&other.0)));
        Ok(families)
    }

    /// Reads an inner node, if one can be there that was not read before.
    async fn inner_node(&mut self, at: Unread, from: RemotePtr) -> Result<Option<Inner>, AccessError> {
        let ptr = at.node.ptr();
        let bytes = match self.tree.inner_bytes(at) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.rule(from, error.to_string());
                return Ok(None);
            }
        };
        if !self.is_new(ptr, bytes, from) {
            return Ok(None);
        }
        self.report.reach(ptr, in_lines(self.tree.types().node_bytes(at.class)));
        let image = self.tree.read(self.meter, ptr, bytes, &mut self.budget).await?;
        match self.tree.judge_inner(at, &image) {
            Ok(inner) => Ok(Some(inner)),
            Err(AccessError::Corrupt { node, what }) => {
                self.rule(node, what);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Tells whether a node can be there that was not read before; reports if not.
    fn is_new(&mut self, node: RemotePtr, bytes: usize, from: RemotePtr) -> bool {
        if let Err(fault) = inside(self.tree.verbs.control().servers(), node, bytes) {
            self.violation(from, Broken::Address { link: Link::Child, to: node, fault });
            return false;
        }
        if !self.visited.insert(node) {
            self.violation(node, Broken::ReachedTwice { from });
            return false;
        }
        true
    }

    fn judge_symbols(&mut self, node: RemotePtr, inner: &Inner) {
        let mut symbols: Vec<(Symbol, usize)> =
            inner.slots.iter().map(|slot| slot.symbol()).zip(0..).collect();
        symbols.sort_unstable();
        for pair in symbols.windows(2) {
            if pair[0].0 == pair[1].0 {
                self.violation(node, Broken::SymbolTwice { first: pair[0].1, second: pair[1].1 });
            }
        }
        let has_end = symbols.first().is_some_and(|(symbol, _)| *symbol == Symbol::End);
        if inner.position > 0 && !has_end {
            self.rule(node, "it has no slot for the end of keys");
        }
    }

    /// Walks over the leaves of keys that begin with `symbol`, to which these slots lead; yields where they begin.
    async fn leaves(
        &mut self,
        symbol: Symbol,
        slots: &LeafSlots,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<Begins, AccessError> {
        let mut begins = Begins::default();
        let (_, first, mut from) = slots[0];
        let (mut at, mut expected) = (Some(first), Some(begin_of(symbol)));
        let mut last = None;
        while let Some(leaf) = at.take() {
            let ptr = leaf.ptr();
            let read = if begins.joins(leaf, expected.as_ref()) {
                None
            } else if self.is_new(ptr, self.tree.leaf().node_bytes(), from) {
                self.report.reach(ptr, in_lines(self.tree.leaf().node_bytes()));
                self.report.survey.leaves += 1;
                self.report.survey.used_bytes += in_lines(self.tree.leaf().node_bytes());
                let read = self.leaf(ptr, from, expected.as_ref(), visit).await?;
                begins.insert(leaf, read.as_ref().map(|(old, _)| old.low.clone()));
                read
            } else {
                break;
            };
            let Some((old, next)) = read else {
                // What it holds and where it ends is not known: the next leaf that a slot leads to may be behind it.
                for (path, other, _) in slots {
                    let is_behind = Some(path) > last.as_ref() && !begins.knows(*other);
                    if is_behind && self.is_of(*other, symbol).await? {
                        (at, last) = (Some(*other), Some(path.clone()));
                        break;
                    }
                }
                expected = None;
                continue;
            };
            let end = end_of(symbol);
            if next.is_none() && old.high != end {
                let high = old.high.clone().unwrap_or_default();
                self.violation(ptr, Broken::NoSibling { high });
            }
            (at, expected, from, last) = (next, old.high, ptr, Some(old.low));
        }
        Ok(begins)
    }

    /// Tells whether a leaf is one of the tree, for keys that begin with `symbol`: a slot may lead to another one. One
    /// that is torn is taken for one.
    async fn is_of(&mut self, leaf: Child, symbol: Symbol) -> Result<bool, AccessError> {
        let image = self.tree.fetch_leaf(self.meter, leaf.ptr(), &mut self.budget).await?.into_buf();
        Ok(match self.tree.leaf().parse(&image) {
            Ok(view) => Symbol::of(&view.bounds().0, 0) == symbol,
            Err(rejection) => !is_gone(rejection),
        })
    }

    /// Judges the slots that lead to leaves, of which it is known where they begin.
    async fn judge_slots(&mut self, slots: &LeafSlots, begins: &Begins) -> Result<(), AccessError> {
        let mut unknown: BTreeMap<&Child, &Bytes> = begins.known().collect();
        for (path, leaf, node) in slots {
            unknown.remove(leaf);
            match begins.of(*leaf) {
                Some(begin) if begin > path && !self.reused.contains(leaf) => {
                    let (separator, begin) = (path.clone(), begin.clone());
                    let what =
                        format!("its slot for {separator:?} leads to {leaf:?}, which begins at {begin:?}");
                    self.rule(*node, what);
                }
                None if self.report.torn.is_empty() && !self.may_be_led_to(*leaf).await? => {
                    self.rule(
                        *node,
                        format!("its slot for {path:?} leads to {leaf:?}, which is not among the leaves"),
                    );
                }
                _ => {}
            }
        }
        let parent = slots.first().map_or(RemotePtr::NULL, |(.., node)| *node);
        for (leaf, separator) in unknown {
            let node = leaf.ptr();
            let separator = separator.clone();
            self.report.missing_separators.push(MissingSeparator { node, level: 0, separator, parent });
        }
        Ok(())
    }

    /// Tells whether a slot may lead to a leaf that is none of the slot's first byte, until a client comes by
    /// (`freed.rs`): to one that was merged, whose memory stays a leaf's, or one that was made there. A round trip.
    async fn may_be_led_to(&mut self, leaf: Child) -> Result<bool, AccessError> {
        let (ptr, bytes) = (leaf.ptr(), self.tree.leaf().node_bytes());
        if self.reused.contains(&leaf) {
            return Ok(true);
        }
        if self.visited.contains(&ptr) || inside(self.tree.verbs.control().servers(), ptr, bytes).is_err() {
            return Ok(self.gone.contains(&leaf));
        }
        let image = self.tree.fetch_leaf(self.meter, ptr, &mut self.budget).await?.into_buf();
        let is_gone = self.tree.leaf().parse(&image).err().is_some_and(is_gone);
        if is_gone {
            self.visited.insert(ptr);
            self.gone.insert(leaf);
            self.report.led_to.add(ptr, in_lines(bytes));
        }
        Ok(is_gone)
    }

    /// Reads a leaf, shows its pairs, and judges it; yields its bounds, and the leaf behind. `None` if it is torn or
    /// none.
    async fn leaf(
        &mut self,
        ptr: RemotePtr,
        from: RemotePtr,
        expected: Option<&Bytes>,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<Option<(Old, Option<Child>)>, AccessError> {
        let mut rereads = 0;
        let image = loop {
            let image = self.tree.fetch_leaf(self.meter, ptr, &mut self.budget).await?.into_buf();
            let is_torn = self.tree.leaf().parse(&image).err() == Some(Rejection::Torn);
            rereads += 1;
            if !is_torn || self.at_rest.is_some() && rereads > REREADS {
                break image;
            }
            self.budget.spend(self.meter, ptr, Some(Rejection::Torn))?;
        };
        let has_dead_owner = self.judge_lock(ptr, &image);
        let mut image = image;
        if self.tree.leaf().parse(&image).err() == Some(Rejection::Frozen) {
            // Its left neighbour leads here: it is one of the tree, and thaws when it is met.
            self.tree.leaf().set_standing(&mut image, Standing::Live);
        }
        let read = self.tree.leaf().parse(&image).and_then(|view| Ok((view, pairs_of(&view)?)));
        let (view, pairs) = match read {
            Ok(read) => read,
            Err(Rejection::Torn) if has_dead_owner => {
                self.report.torn.push(ptr);
                return Ok(None);
            }
            Err(rejection) => {
                self.violation(ptr, Broken::Unreadable { rejection, from });
                return Ok(None);
            }
        };
        let old = Old::of(&view);
        if let Some(expected) = expected.filter(|expected| **expected != old.low) {
            let (low, expected) = (old.low.clone(), expected.clone());
            self.violation(ptr, Broken::LowFence { low, expected, from });
        }
        for (place, (key, value)) in pairs.iter().enumerate() {
            if *key < old.low || old.high.as_ref().is_some_and(|high| key >= high) {
                self.violation(ptr, Broken::KeyOutside { key: key.clone() });
            }
            if place > 0 && pairs[place - 1].0 == *key {
                self.violation(ptr, Broken::DuplicateKey { key: key.clone() });
            }
            if place > 0 && self.tree.techniques.deep_special && !share_prefix(&pairs[place - 1].0, key) {
                self.rule(ptr, format!("it has {:?} and {key:?}, of different prefixes", pairs[place - 1].0));
            }
            visit(key, value);
        }
        self.report.survey.keys += pairs.len() as u64;
        if view.is_reused() {
            self.reused.extend(Child::new(ptr));
        }
        let next = view.next();
        Ok(Some((old, next)))
    }

    /// Judges the lock of a leaf; tells whether a dead client has it alone.
    fn judge_lock(&mut self, ptr: RemotePtr, image: &Buf) -> bool {
        let Some(options) = self.at_rest.as_ref().map(|rest| rest.options) else { return false };
        let at = self.tree.lock_of(ptr);
        let words = LockWords::new(&image[self.tree.leaf().lock()]);
        let mut has_dead_owner = false;
        if let Some(word) = words.holder() {
            has_dead_owner = self.report.note_lock(options, at, word);
        }
        let lanes: Vec<u16> = words.lanes().collect();
        for lane in lanes {
            match self.owners.get(usize::from(lane)).copied().flatten() {
                Some(word) => _ = self.report.note_lock(options, at, word),
                None => self.rule(ptr, format!("lane {lane}, which has no owner, shares its lock")),
            }
        }
        has_dead_owner
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_joins_another_only_behind_a_torn_leaf_and_where_it_belongs() {
        let leaf = |n: u64| Child::new(RemotePtr::from_bits(n * 64)).expect("an address of a line");
        let (a, b) = (Bytes::from_slice(b"a"), Bytes::from_slice(b"b"));
        let mut begins = Begins::default();
        begins.insert(leaf(1), Some(a.clone()));
        assert!(!begins.joins(leaf(1), Some(&a)), "no leaf is torn: it is reached twice");
        assert!(!begins.joins(leaf(2), Some(&b)), "it was not read yet");
        begins.insert(leaf(2), None);
        assert!(begins.joins(leaf(2), Some(&b)), "where a torn leaf belongs is not known");
        assert!(begins.joins(leaf(1), Some(&a)));
        assert!(!begins.joins(leaf(1), Some(&b)), "a link leads to the wrong leaf");
    }
}
