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

/// The leaf that was split off from `left`: it begins at `key`, and ends at `high`, as far as is known.
///
/// ```text
///   leaf [a, axm) is split at abc:   a -> 1  |  1   end -> left   b -> 3   x -> 2
///                                               2   end -> right  m -> the leaf behind
///                                               3   end -> left   c -> right
/// ```
///
/// So there are nodes on two ways to be changed: to `key`, and to `high`, where the ends of prefixes led to the left.
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
        match way {
            Way::Key => self.plan_begin(slots, position),
            Way::High => self.plan_end(slots, position),
        }
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
    pub(super) fn may_be_late(&self, slots: &[Slot], symbol: Symbol) -> bool {
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
    use std::collections::BTreeMap;

    use rand::rngs::SmallRng;
    use rand::seq::SliceRandom;
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
                if way == Way::High
                    && matches!(next, Next::Change(_))
                    && separator.may_be_late(&slots, Symbol::End)
                {
                    let end = self.leaves.iter().filter(|low| **low > separator.key).min();
                    if separator.is_beyond(position, end.map(|end| &end[..])) {
                        return None;
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
                    Next::Down(slot) => {
                        (node, position) = (slot.child().unwrap().bits(), position + 1);
                        continue;
                    }
                    Next::Done => return fork,
                };
                put(self.nodes.get_mut(&node).unwrap(), new);
                if way == Way::Key {
                    return fork;
                }
            }
        }

        /// Splits a leaf at `key`, and yields the separator that it owes.
        fn split(&mut self, key: &[u8]) -> Separator {
            let key = Bytes::from_slice(key);
            let left = (0..self.leaves.len()).filter(|&i| self.leaves[i] < key);
            let left = left.max_by_key(|&i| self.leaves[i].clone()).expect("the first leaf is before it");
            let (low, right) = (self.leaves[left].clone(), child(self.leaves.len() as u64));
            self.leaves.push(key.clone());
            let high = self.leaves.iter().filter(|low| **low > key).min().cloned();
            Separator { left: child(left as u64), low, key, right, high }
        }

        fn last_leaf(&self, slot: Slot) -> Child {
            let to = slot.child().unwrap();
            if slot.is_leaf() { to } else { self.last_leaf(last(&self.nodes[&to.bits()]).unwrap()) }
        }

        /// Counts the keys that are led to the left of their leaves; none is led to the right.
        fn misled(&self, keys: &[Vec<u8>]) -> usize {
            let is_misled = |key: &&Vec<u8>| {
                let led = &self.leaves[self.route(key).bits() as usize - 1];
                let right = self.leaves.iter().filter(|low| low[..] <= key[..]).max().unwrap();
                assert!(led <= right, "{key:?} is led to {led:?}, beyond {right:?}");
                led < right
            };
            keys.iter().filter(is_misled).count()
        }

        /// Puts all separators in as janitors do: they know the leaf before, and what the leaf says of itself. One that
        /// is missing may be in the way of the one behind.
        fn repair(&mut self) {
            let mut leaves: Vec<(Bytes, Child)> = self.leaves.iter().cloned().zip((0..).map(child)).collect();
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
                let node = Self::ROOT + self.nodes.len() as u64;
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
