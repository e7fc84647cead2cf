//! Separators in inner nodes: which slot a key belongs to, and what a new separator changes in a node on its way. Pure.
//!
//! The slot of symbol `s` in the node of the prefix `p` leads to an inner node, for the keys that begin with `p` and
//! `s`, or to the leaf that begins with `p` and `s`. A key that begins with `p` and has no slot there belongs to the
//! last leaf before: that of the slot before its own, or below it that of the last slot. There is one, since the slot
//! for the end of keys ([`Symbol::End`]) leads to the leaf of `p` itself, which may begin before. So a leaf is that of
//! many symbols. In the root alone a slot is for its symbol only: a leaf's keys share their first byte.
//!
//! ```text
//!   leaf [a, b) is split at axm:      root          root
//!                                     a -> leaf     a -> 1   end -> leaf   x -> 2
//!                                                                          2   end -> leaf   m -> right
//! ```
//!
//! Slots never lead too far to the right, and seldom too far to the left: a client that meets a leaf that ends before
//! its key goes on to the leaf behind.
//!
//! A node whose slots all lead to the same leaf is *needless*: the slot that leads to the node may lead to that leaf,
//! and leads all keys where they went before. So a tree has inner nodes where leaves meet, and nowhere else: the
//! prefix of each is one of a leaf's first key.

use smallvec::SmallVec;

use crate::layout::Bytes;
use crate::layout::radix::{Child, NodeTypes, Slot, Symbol};

/// The size class that slots of leaves have: all leaves have one size.
const LEAF_CLASS: u8 = 1;

/// Slots of a node.
pub(super) type Slots = SmallVec<[Slot; 32]>;

/// Makes the slot that leads to a leaf.
pub(super) fn leaf_slot(symbol: Symbol, leaf: Child) -> Slot {
    Slot::leaf(symbol, leaf, LEAF_CLASS)
}

/// Yields the slot that a key with `symbol` goes on by in the node about the key byte at `position`: that of the
/// symbol, or else the last one before.
pub(super) fn covering(slots: &[Slot], symbol: Symbol, position: usize) -> Option<Slot> {
    let exact = slots.iter().find(|slot| slot.is_of(symbol)).copied();
    exact.or_else(|| {
        let before = slots.iter().filter(|slot| position > 0 && slot.symbol() < symbol);
        before.max_by_key(|slot| slot.symbol()).copied()
    })
}

/// Yields the slot of the last symbol.
pub(super) fn last(slots: &[Slot]) -> Option<Slot> {
    slots.iter().max_by_key(|slot| slot.symbol()).copied()
}

/// Yields the leaf to which all slots of the node about the key byte at `position` lead, if there is such a one: the
/// node is needless then. The root never is.
pub(super) fn only_leaf(slots: &[Slot], position: usize) -> Option<Child> {
    let first = slots.first().filter(|slot| slot.is_leaf() && position > 0)?;
    slots.iter().all(|slot| slot.leads_as(*first)).then_some(first.child()).flatten()
}

/// Slots that are to lead to another leaf: those for keys from `low` on that lead to one leaf, of which these keys are
/// not, or not any more.
///
/// Which nodes have such slots follows from where the leaves meet. Let the range of keys that goes from one leaf to the
/// other begin at `low` and end at `high`. A node between the ways to these two has a prefix whose keys are all in that
/// range, so it was needless, and is gone. So the nodes to be changed are on the way to `low` and on that to `high`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LeadOn {
    pub(super) low: Bytes,
    pub(super) from: Child,
    pub(super) to: Child,
    /// True if only the node that has the slot for `low` is to be changed, if that is: other slots may lead to the leaf
    /// because it is the right one for their keys.
    pub(super) is_for_one_node: bool,
}

impl LeadOn {
    /// Yields the places of the slots to be changed, in the node of that prefix.
    pub(super) fn places(&self, slots: &[Slot], prefix: &[u8]) -> impl Iterator<Item = usize> {
        let leads_there = |slot: &Slot| slot.is_leaf() && slot.child() == Some(self.from);
        let is_own = |slot: &Slot| leads_there(slot) && is_key_of(prefix, slot.symbol(), &self.low);
        let is_any = !self.is_for_one_node || slots.iter().any(is_own);
        let is_one =
            move |slot: &Slot| is_any && leads_there(slot) && !is_before(prefix, slot.symbol(), &self.low);
        slots.iter().enumerate().filter(move |(_, slot)| is_one(slot)).map(|(place, _)| place)
    }
}

/// Tells whether a slot is for `key`: it is the prefix of its node and its symbol.
fn is_key_of(prefix: &[u8], symbol: Symbol, key: &[u8]) -> bool {
    key.strip_prefix(prefix).is_some_and(|rest| match symbol {
        Symbol::End => rest.is_empty(),
        Symbol::Byte(byte) => *rest == [byte],
    })
}

/// Tells whether the key of a slot, which is the prefix of its node and its symbol, is before `low`.
fn is_before(prefix: &[u8], symbol: Symbol, low: &[u8]) -> bool {
    match low.get(..prefix.len()) {
        Some(begin) if begin == prefix => match symbol {
            Symbol::End => low.len() > prefix.len(),
            // Of the keys that begin with both this one is the first.
            Symbol::Byte(byte) => [byte][..] < low[prefix.len()..],
        },
        _ => prefix < low,
    }
}

/// The leaf that was split off from `left`: it begins at `key`, and ends at `high`, as far as is known.
///
/// ```text
///   leaf [a, axm) is split at abc:   a -> 1  |  1   end -> left   b -> 3   x -> 2
///                                               2   end -> right  m -> the leaf behind
///                                               3   end -> left   c -> right
/// ```
///
/// So there are nodes on two ways to be changed: to `key`, and to `high`, where the ends of prefixes led to the left.
/// So may slots there for keys in between, at which leaves began that were merged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Separator {
    pub(super) left: Child,
    /// The key that the left leaf begins at.
    pub(super) low: Bytes,
    pub(super) key: Bytes,
    pub(super) right: Child,
    pub(super) high: Option<Bytes>,
}

/// The key to which a separator goes down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// To where it begins, and gets a slot.
    Key,
    /// To where it ends.
    High,
}

/// The rest of a separator's way, from a node on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// It is in, or the root has no slot for its first symbol.
    Done,
    /// It goes on in this inner node.
    Down(Slot),
    /// This node changes.
    Change(Change),
}

/// The change that a separator makes to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// This symbol's slot is to lead to the right leaf.
    Put(Symbol),
    /// This symbol's slot is to lead to new nodes.
    Branch {
        symbol: Symbol,
        /// Says which leaf is for the keys below the symbol that are before the separator.
        below: Below,
    },
    /// Slots for keys of the right leaf that lead to the left one are to lead on ([`Separator::lead_on`]).
    LeadOn,
}

/// A leaf, as a node tells which one it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Below {
    /// This one.
    Leaf(Child),
    /// The last one below this slot.
    Last(Slot),
}

impl Separator {
    /// Plans what it changes on that way in a node with these slots, about the key byte at `position`.
    pub(super) fn plan(&self, way: Way, slots: &[Slot], position: usize) -> Next {
        let next = match way {
            Way::Key => self.plan_begin(slots, position),
            Way::High => self.plan_end(slots, position),
        };
        let is_done = !matches!(next, Next::Change(_));
        let leads_on = is_done && self.lead_on().places(slots, self.prefix(way, position)).next().is_some();
        if leads_on { Next::Change(Change::LeadOn) } else { next }
    }

    /// Yields the slots that lead to the left leaf, and are to lead to the right one.
    pub(super) fn lead_on(&self) -> LeadOn {
        LeadOn { low: self.key.clone(), from: self.left, to: self.right, is_for_one_node: false }
    }

    /// Yields the prefix of the node about the key byte at `position` on that way.
    pub(super) fn prefix(&self, way: Way, position: usize) -> &[u8] {
        let key = match way {
            Way::Key => &self.key,
            Way::High => self.high.as_ref().unwrap_or(&self.key),
        };
        &key[..position.min(key.len())]
    }

    fn plan_begin(&self, slots: &[Slot], position: usize) -> Next {
        let symbol = Symbol::of(&self.key, position);
        let slot = covering(slots, symbol, position);
        let own = slot.filter(|slot| slot.is_of(symbol));
        if let Some(inner) = own.filter(|slot| slot.is_inner()) {
            return Next::Down(inner);
        }
        if position + 1 >= self.key.len() {
            let is_in = own.and_then(Slot::child) == Some(self.right);
            return if is_in { Next::Done } else { Next::Change(Change::Put(symbol)) };
        }
        let below = match slot {
            Some(leaf) if leaf.is_leaf() => leaf.child().map(Below::Leaf),
            // Keys below the symbol are of the last leaf below the slot before. That is the left one, if they are after
            // its begin; else it has no slot yet.
            Some(_) if self.low[..] <= self.key[..=position] => Some(Below::Leaf(self.left)),
            inner => inner.map(Below::Last),
        };
        below.map_or(Next::Done, |below| Next::Change(Change::Branch { symbol, below }))
    }

    /// On the way to where the leaf ends are the nodes whose prefixes are in it: their ends led to the left.
    fn plan_end(&self, slots: &[Slot], position: usize) -> Next {
        let Some(high) = &self.high else { return Next::Done };
        let is_in = position > 0 && position < high.len() && high[..position] >= self.key[..];
        let leads_there = |end: &Slot| end.is_leaf() && end.child() == Some(self.right);
        if is_in && !slots.iter().any(|slot| slot.is_of(Symbol::End) && leads_there(slot)) {
            return Next::Change(Change::Put(Symbol::End));
        }
        let symbol = Symbol::of(high, position);
        let slot = slots.iter().find(|slot| slot.is_of(symbol) && slot.is_inner());
        slot.map_or(Next::Done, |slot| Next::Down(*slot))
    }

    /// Tells whether a slot leads to a leaf that may have been split off from the right one meanwhile, or made where
    /// that was merged, and that none but this slot may lead to: the right leaf is to be asked before the slot is
    /// changed.
    ///
    /// ```text
    ///   right [abc, b) is split at ax, whose separator is put in first      2   end -> [ax, b)  m -> ..
    ///   then that of [abc, b), which ended at b when it was made            2   end -> right: [ax, b) has no slot
    /// ```
    pub(super) fn may_be_late(&self, slots: &[Slot], change: Change) -> bool {
        let symbol = match change {
            Change::Put(symbol) => symbol,
            Change::Branch { .. } => return false,
            // The right leaf may have been merged into the left one again.
            Change::LeadOn => return true,
        };
        let led_to = slots.iter().find(|slot| slot.is_of(symbol)).and_then(|slot| slot.child());
        led_to.is_some_and(|leaf| leaf != self.left && leaf != self.right)
    }

    /// Tells whether the prefix of the node about the key byte at `position`, on the way to `high`, is beyond the right
    /// leaf, which ends at `end` now.
    pub(super) fn is_beyond(&self, position: usize, end: Option<&[u8]>) -> bool {
        let prefix = self.high.as_ref().map(|high| &high[..position.min(high.len())]);
        prefix.zip(end).is_some_and(|(prefix, end)| prefix >= end)
    }

    /// Yields the slot in which the way to `high` leaves that to `key`, in a node on both, if it leads to a node.
    pub(super) fn fork(&self, slots: &[Slot], position: usize) -> Option<Slot> {
        let high = self.high.as_ref().filter(|high| high.get(..position) == self.key.get(..position))?;
        let symbol = Symbol::of(high, position);
        let slot = slots.iter().find(|slot| slot.is_of(symbol) && slot.is_inner())?;
        (symbol != Symbol::of(&self.key, position)).then_some(*slot)
    }
}

/// Yields the slots of a new node on the way to a separator: for the keys before it, and on to it.
pub(super) fn fork_at(below: Child, on: Slot) -> [Slot; 2] {
    [leaf_slot(Symbol::End, below), on]
}

/// Puts a slot in the place of the one of its symbol, or behind the others; yields where it is.
pub(super) fn put(slots: &mut Slots, slot: Slot) -> usize {
    let place = slots.iter().position(|old| old.is_of(slot.symbol())).unwrap_or(slots.len());
    if place < slots.len() {
        slots[place] = slot
    } else {
        slots.push(slot)
    }
    place
}

/// Yields the type of the smallest node with so many slots that has no room for more: a node keeps its type until it
/// moves. `None` for more than there are symbols.
pub(super) fn type_for(types: &NodeTypes, slots: usize) -> Option<u8> {
    (1..=types.largest()).find(|of| types.slots(*of) == types.room(*of) && types.slots(*of) >= slots)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use rand::rngs::SmallRng;
    use rand::seq::{IndexedRandom, SliceRandom};
    use rand::{Rng, SeedableRng};

    use super::*;

    fn child(n: u64) -> Child {
        Child::of(n + 1).unwrap()
    }

    /// A tree of inner nodes in memory, by position and prefix; leaves are named by where they begin.
    #[derive(Default)]
    struct Nodes {
        nodes: BTreeMap<u64, Slots>,
        leaves: Vec<Bytes>,
        /// Those that were merged into others.
        merged: BTreeSet<usize>,
        made: u64,
    }

    impl Nodes {
        const ROOT: u64 = 1000;

        fn new(first: &[u8]) -> Self {
            let mut nodes = Nodes { leaves: vec![Bytes::from_slice(first)], ..Nodes::default() };
            nodes
                .nodes
                .insert(Self::ROOT, SmallVec::from_slice(&[leaf_slot(Symbol::of(first, 0), child(0))]));
            nodes
        }

        fn route(&self, key: &[u8]) -> Child {
            let (mut node, mut position, mut is_before) = (Self::ROOT, 0, false);
            loop {
                let (slots, symbol) = (&self.nodes[&node], Symbol::of(key, position));
                let slot = if is_before { last(slots) } else { covering(slots, symbol, position) }.unwrap();
                let to = slot.child().unwrap();
                if slot.is_leaf() {
                    return to;
                }
                is_before |= !slot.is_of(symbol);
                (node, position) = (to.bits(), position + 1);
            }
        }

        fn add(&mut self, separator: &Separator) {
            let fork = self.go(separator, Way::Key, (Self::ROOT, 0));
            if let Some(fork) = fork {
                self.go(separator, Way::High, fork);
            }
        }

        fn go(&mut self, separator: &Separator, way: Way, begin: (u64, usize)) -> Option<(u64, usize)> {
            let ((mut node, mut position), mut fork) = (begin, None);
            loop {
                let slots = self.nodes[&node].clone();
                let next = separator.plan(way, &slots, position);
                if let Next::Change(change) = next
                    && separator.may_be_late(&slots, change)
                {
                    let end = self.live().map(|(low, _)| low).filter(|low| *low > separator.key).min();
                    let is_beyond = way == Way::High && separator.is_beyond(position, end.as_deref());
                    let is_right = |(low, leaf)| leaf == separator.right && low == separator.key;
                    if is_beyond || !self.live().any(is_right) {
                        return fork;
                    }
                }
                let child =
                    separator.fork(&slots, position).filter(|_| way == Way::Key).and_then(Slot::child);
                fork = fork.or(child.map(|child| (child.bits(), position + 1)));
                let new = match next {
                    Next::Change(Change::Put(symbol)) => leaf_slot(symbol, separator.right),
                    Next::Change(Change::Branch { symbol, below }) => {
                        self.branch(separator, symbol, below, position)
                    }
                    Next::Change(Change::LeadOn) => {
                        self.lead_on(node, separator.prefix(way, position), &separator.lead_on());
                        continue;
                    }
                    Next::Down(slot) => {
                        (node, position) = (slot.child().unwrap().bits(), position + 1);
                        continue;
                    }
                    Next::Done => return fork,
                };
                let slots = self.nodes.get_mut(&node).unwrap();
                put(slots, new);
                let goes_on = matches!(separator.plan(way, slots, position), Next::Change(_));
                if way == Way::Key && !goes_on {
                    return fork;
                }
            }
        }

        /// Yields the leaves that were not merged, in order of nothing, by where they begin.
        fn live(&self) -> impl Iterator<Item = (Bytes, Child)> {
            let leaves = self.leaves.iter().enumerate().filter(|(place, _)| !self.merged.contains(place));
            leaves.map(|(place, low)| (low.clone(), child(place as u64)))
        }

        fn lead_on(&mut self, node: u64, prefix: &[u8], lead: &LeadOn) {
            let slots = self.nodes.get_mut(&node).unwrap();
            let places: Vec<usize> = lead.places(slots, prefix).collect();
            places.into_iter().for_each(|place| slots[place] = leaf_slot(slots[place].symbol(), lead.to));
        }

        /// Leads slots on on the way to a key, and takes out nodes that are needless.
        fn lead_way_on(&mut self, key: &[u8], lead: &LeadOn) {
            let (mut way, mut node) = (Vec::new(), Self::ROOT);
            loop {
                self.lead_on(node, &key[..way.len()], lead);
                way.push(node);
                let symbol = Symbol::of(key, way.len() - 1);
                let slot = self.nodes[&node].iter().find(|slot| slot.is_of(symbol) && slot.is_inner());
                let Some(below) = slot.and_then(|slot| slot.child()) else { break };
                node = below.bits();
            }
            for position in (1..way.len()).rev() {
                let Some(leaf) = only_leaf(&self.nodes[&way[position]], position) else { break };
                self.nodes.remove(&way[position]);
                let slots = self.nodes.get_mut(&way[position - 1]).unwrap();
                put(slots, leaf_slot(Symbol::of(key, position - 1), leaf));
            }
        }

        /// Merges a leaf with the one before, and leads all slots on that led to it.
        fn merge(&mut self, right: usize) {
            let low = self.leaves[right].clone();
            let left = self.live().filter(|(begin, _)| *begin < low).max().expect("it is not the first").1;
            let high = self.live().map(|(begin, _)| begin).filter(|begin| *begin > low).min();
            self.merged.insert(right);
            let (from, key) = (child(right as u64), low.clone());
            let lead = LeadOn { low, from, to: left, is_for_one_node: false };
            self.lead_way_on(&key, &lead);
            high.into_iter().for_each(|high| self.lead_way_on(&high, &lead));
        }

        /// Asserts that there are nodes on the ways to where leaves begin, and no others, nor a slot that leads to a
        /// leaf that was merged.
        fn has_no_more_than_needed(&self) {
            let needed: BTreeSet<Bytes> = self
                .live()
                .flat_map(|(low, _)| (1..low.len()).map(move |end| Bytes::from_slice(&low[..end])))
                .collect();
            assert_eq!(self.nodes.len(), 1 + needed.len(), "{:?}", self.nodes);
            for slot in self.nodes.values().flatten().filter(|slot| slot.is_leaf()) {
                let leaf = slot.child().unwrap().bits() as usize - 1;
                assert!(!self.merged.contains(&leaf), "{slot:?}");
            }
        }

        /// Splits a leaf at `key`, and yields the separator that it owes.
        fn split(&mut self, key: &[u8]) -> Separator {
            let key = Bytes::from_slice(key);
            let (low, left) =
                self.live().filter(|(low, _)| *low < key).max().expect("the first leaf is before it");
            let right = child(self.leaves.len() as u64);
            let high = self.live().map(|(low, _)| low).filter(|low| *low > key).min();
            self.leaves.push(key.clone());
            Separator { left, low, key, right, high }
        }

        fn last_leaf(&self, slot: Slot) -> Child {
            let to = slot.child().unwrap();
            if slot.is_leaf() { to } else { self.last_leaf(last(&self.nodes[&to.bits()]).unwrap()) }
        }

        /// Counts the keys that are led to the left of their leaves; none is led to the right.
        fn misled(&self, keys: &[Vec<u8>]) -> usize {
            let is_misled = |key: &&Vec<u8>| {
                let led = &self.leaves[self.route(key).bits() as usize - 1];
                let right = self.live().map(|(low, _)| low).filter(|low| low[..] <= key[..]).max().unwrap();
                assert!(*led <= right, "{key:?} is led to {led:?}, beyond {right:?}");
                *led < right
            };
            keys.iter().filter(is_misled).count()
        }

        /// Puts all separators in as janitors do: they know the leaf before, and what the leaf says of itself. One that
        /// is missing may be in the way of the one behind.
        fn repair(&mut self) {
            let mut leaves: Vec<(Bytes, Child)> = self.live().collect();
            leaves.sort_unstable();
            for place in 1..leaves.len() {
                let ((low, left), (key, right)) = (leaves[place - 1].clone(), leaves[place].clone());
                let high = leaves.get(place + 1).map(|(begin, _)| begin.clone());
                self.add(&Separator { left, low, key, right, high });
            }
        }

        fn branch(&mut self, separator: &Separator, symbol: Symbol, below: Below, position: usize) -> Slot {
            let below = match below {
                Below::Leaf(leaf) => leaf,
                Below::Last(slot) => self.last_leaf(slot),
            };
            let key = &separator.key;
            let mut slot = leaf_slot(Symbol::Byte(key[key.len() - 1]), separator.right);
            for at in (position + 1..key.len()).rev() {
                self.made += 1;
                let node = Self::ROOT + self.made;
                self.nodes.insert(node, SmallVec::from_slice(&fork_at(below, slot)));
                slot = Slot::inner(Symbol::Byte(key[at - 1]), Child::of(node).unwrap(), 1);
            }
            assert!(slot.is_of(symbol));
            slot
        }
    }

    /// Yields all keys up to length four that begin with 5 and go on with those bytes, in order.
    fn keys_of(bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = vec![vec![5]];
        for from in 0.. {
            let Some(key) = keys.get(from).cloned() else { break };
            keys.extend(bytes.iter().map(|byte| [&key[..], &[*byte]].concat()).filter(|key| key.len() < 5));
        }
        keys.sort();
        keys
    }

    /// All keys over three bytes up to length four, split off in many orders: each key is led to its leaf, at once and
    /// whichever separators are missing never beyond it.
    #[test]
    fn keys_are_led_to_their_leaves() {
        let keys = keys_of(&[0, 5, 255]);
        let mut random = 1_u64;
        for round in 0..200 {
            let mut nodes = Nodes::new(&keys[0]);
            let mut cuts: Vec<usize> = (1..keys.len()).collect();
            for i in (1..cuts.len()).rev() {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                cuts.swap(i, (random >> 33) as usize % (i + 1));
            }
            for cut in cuts.into_iter().take(1 + round % 40) {
                let separator = nodes.split(&keys[cut]);
                // One in eight gets lost.
                random = random.rotate_left(7).wrapping_add(11);
                let is_lost = round % 2 == 1 && random.is_multiple_of(8);
                if !is_lost {
                    nodes.add(&separator);
                    nodes.add(&separator);
                }
                let misled = nodes.misled(&keys);
                assert!(round % 2 == 1 || misled == 0, "{misled} keys are led to the left of their leaves");
            }
            nodes.repair();
            assert_eq!(nodes.misled(&keys), 0, "all separators were put in again");
        }
    }

    /// The leaf [axm, ..) is split at axq. It has no slot yet: what the slot before leads to is before axq.
    #[test]
    fn a_leaf_before_that_has_no_slot_yet_is_looked_for() {
        let symbol = Symbol::Byte(b'x');
        let before = Slot::inner(Symbol::Byte(b'b'), child(9), 1);
        let slots = [leaf_slot(Symbol::End, child(0)), before];
        for (low, below) in [("axm", Below::Last(before)), ("ax", Below::Leaf(child(1)))] {
            let [low, key] = [low, "axq"].map(|key| Bytes::from_slice(key.as_bytes()));
            let separator = Separator { left: child(1), low, key, right: child(2), high: None };
            let plan = separator.plan(Way::Key, &slots, 1);
            assert_eq!(plan, Next::Change(Change::Branch { symbol, below }));
        }
    }

    /// Leaves are split and merged in any order, and the nodes above follow: each key is led to its leaf at once, and
    /// all nodes are needed. In the end all leaves are merged into the first, and the root alone is left.
    #[test]
    fn nodes_go_that_merges_leave_needless() {
        for (bytes, seed) in [(&[0, 5, 255][..], 1), (&[0, 5], 2)] {
            let (keys, mut random) = (keys_of(bytes), SmallRng::seed_from_u64(seed));
            for round in 0..300 {
                let mut nodes = Nodes::new(&keys[0]);
                for _ in 0..60 {
                    let cut = &keys[random.random_range(1..keys.len())];
                    let live: Vec<usize> =
                        (1..nodes.leaves.len()).filter(|n| !nodes.merged.contains(n)).collect();
                    if random.random_range(0..20) < live.len() {
                        nodes.merge(*live.choose(&mut random).expect("there are some"));
                    } else if nodes.live().all(|(low, _)| low[..] != cut[..]) {
                        let separator = nodes.split(cut);
                        nodes.add(&separator);
                    }
                    assert_eq!(nodes.misled(&keys), 0, "round {round}");
                    nodes.has_no_more_than_needed();
                }
                for right in 1..nodes.leaves.len() {
                    if !nodes.merged.contains(&right) {
                        nodes.merge(right);
                    }
                }
                assert_eq!((nodes.nodes.len(), nodes.misled(&keys)), (1, 0));
            }
        }
    }

    #[test]
    fn a_node_is_needless_if_all_its_slots_lead_to_one_leaf() {
        let [end, x, y] = [Symbol::End, Symbol::Byte(b'x'), Symbol::Byte(b'y')];
        let leads =
            |leaves: [u64; 3]| [(end, 0), (x, 1), (y, 2)].map(|(of, n)| leaf_slot(of, child(leaves[n])));
        assert_eq!(only_leaf(&leads([4, 4, 4]), 1), Some(child(4)));
        assert_eq!(only_leaf(&leads([4, 4, 4])[..1], 1), Some(child(4)));
        assert_eq!(only_leaf(&leads([4, 4, 4]), 0), None, "it is the root");
        assert_eq!(only_leaf(&[], 1), None);
        for others in [[3, 4, 4], [4, 3, 4], [4, 4, 3]] {
            assert_eq!(only_leaf(&leads(others), 1), None, "{others:?}");
        }
        let below = Slot::inner(y, child(4), 1);
        assert_eq!(
            only_leaf(&[leads([4; 3])[0], below], 1),
            None,
            "an inner node may be at the leaf's address"
        );
        assert_eq!(only_leaf(&[below], 1), None);
    }

    #[test]
    fn slots_before_the_first_key_lead_where_they_did() {
        let slots = [Symbol::End, Symbol::Byte(1), Symbol::Byte(2), Symbol::Byte(3)]
            .map(|of| leaf_slot(of, child(7)));
        let places = |prefix: &[u8], low: &[u8], is_for_one_node| {
            let lead = LeadOn { low: Bytes::from_slice(low), from: child(7), to: child(8), is_for_one_node };
            lead.places(&slots, prefix).collect::<Vec<_>>()
        };
        for (prefix, low, all, of_one) in [
            (&[5][..], &[5][..], &[0, 1, 2, 3][..], &[0, 1, 2, 3][..]),
            (&[5], &[5, 2], &[2, 3], &[2, 3]),
            (&[5], &[5, 2, 0], &[3], &[]),
            (&[5], &[5, 4], &[], &[]),
            (&[5], &[4, 9], &[0, 1, 2, 3], &[]),
            (&[5, 5], &[5], &[0, 1, 2, 3], &[]),
            (&[5, 5], &[6], &[], &[]),
        ] {
            assert_eq!((&places(prefix, low, false)[..], &places(prefix, low, true)[..]), (all, of_one));
        }
    }

    /// Separators are put in some splits later, in any order: each leaf has a slot, and no key is led beyond its leaf.
    #[test]
    fn separators_that_come_late_take_no_slot_from_leaves_behind() {
        let keys = keys_of(&[0, 5]);
        let mut random = SmallRng::seed_from_u64(1);
        for _ in 0..2000 {
            let mut nodes = Nodes::new(&keys[0]);
            let mut late: Vec<Separator> = Vec::new();
            let mut cuts: Vec<usize> = (1..keys.len()).collect();
            cuts.shuffle(&mut random);
            cuts.truncate(random.random_range(1..12));
            while !(cuts.is_empty() && late.is_empty()) {
                if !late.is_empty() && (cuts.is_empty() || random.random()) {
                    let separator = late.swap_remove(random.random_range(0..late.len()));
                    nodes.add(&separator);
                } else {
                    late.push(nodes.split(&keys[cuts.pop().expect("there are more")]));
                }
                nodes.misled(&keys);
            }
            let slots = || nodes.nodes.values().flatten().filter_map(|slot| slot.child());
            for (place, low) in nodes.leaves.iter().enumerate() {
                assert!(slots().any(|leaf| leaf == child(place as u64)), "{low:?} has no slot");
            }
        }
    }

    #[test]
    fn nodes_have_types_without_room_for_more() {
        for types in [&NodeTypes::LINES, &NodeTypes::TINY] {
            for slots in 1..=257 {
                let of = type_for(types, slots).unwrap();
                assert!(types.room(of) >= slots && types.slots(of) == types.room(of));
            }
            assert_eq!(type_for(types, 300), None);
        }
    }
}
