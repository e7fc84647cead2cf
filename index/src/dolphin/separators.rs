//! Separators in inner nodes: which slot a key belongs to, what a new separator changes in a node on its way, and where
//! a full leaf is best divided. Pure.
//!
//! The slot of symbol `s` in the node of the prefix `p` leads to an inner node, for the keys that begin with `p` and
//! `s`; or to a leaf that begins at `p` and `s` or before, for these keys and those up to the next slot. So a leaf may
//! be that of many symbols, and every key that begins with `p` has a leaf in the node, since its slot for the end of
//! keys ([`Symbol::End`]) leads to one. In the root alone leaves are for their symbol only: a leaf's keys share their
//! first byte.
//!
//! ```text
//!   leaf [a, b) is split at axm:      root          root
//!                                     a -> leaf     a -> 1   end -> leaf   x -> 2   y -> right
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

/// Yields the slot that is for `symbol` in the node about the key byte at `position`.
pub(super) fn covering(slots: &[Slot], symbol: Symbol, position: usize) -> Option<Slot> {
    let exact = slots.iter().find(|slot| slot.is_of(symbol));
    let before = || slots.iter().filter(|slot| position > 0 && slot.is_leaf() && slot.symbol() < symbol);
    exact.or_else(|| before().max_by_key(|slot| slot.symbol())).copied()
}

/// The leaf that was split off from `left`: it begins at `key`, and ends at `high`, as far as is known.
///
/// ```text
///   leaf [a, axm) is split at abc:   a -> 1  |  1   end -> left   b -> 3   c -> right    x -> 2
///                                               2   end -> right  m -> the leaf behind
///                                               3   end -> left   c -> right
/// ```
///
/// So there are nodes on two ways to be changed: to `key`, and to `high`, where the ends of prefixes led to the left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Separator {
    pub(super) key: Bytes,
    pub(super) left: Child,
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

/// The change that a separator makes to a node on its way.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Plan {
    /// Slots that are to lead to the right leaf, by their indices: they led to the left one.
    pub(super) repoint: SmallVec<[(usize, Slot); 4]>,
    pub(super) next: Next,
}

/// The rest of a separator's way, after a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// It is in.
    Done,
    /// It goes on in this inner node.
    Down(Slot),
    /// Its last symbol is to have a slot here.
    Put(Symbol),
    /// It takes nodes below this symbol's slot.
    Branch {
        symbol: Symbol,
        /// The leaf for the keys below the symbol that are before the separator.
        below: Child,
        /// The symbol behind, where it has no slot yet: it gets one, since the new nodes are not for its keys.
        beside: Option<Symbol>,
    },
}

impl Separator {
    /// Plans what it changes on that way in a node with these slots, about the key byte at `position`.
    pub(super) fn plan(&self, way: Way, slots: &[Slot], position: usize) -> Plan {
        let to = if way == Way::Key { &self.key } else { self.high.as_ref().unwrap_or(&self.key) };
        let symbol = Symbol::of(to, position);
        let is_right = |slot: &Slot| match slot.symbol() {
            Symbol::End => to[..position.min(to.len())] >= self.key[..],
            Symbol::Byte(byte) => to[..position.min(to.len())].iter().chain([&byte]).ge(&self.key[..]),
        };
        let led_left = |slot: &Slot| slot.is_leaf() && slot.child() == Some(self.left) && is_right(slot);
        let repoint = slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| position > 0 && led_left(slot))
            .map(|(index, slot)| (index, leaf_slot(slot.symbol(), self.right)))
            .collect();
        let is_last = position + 1 >= to.len();
        let next = match slots.iter().find(|slot| slot.is_of(symbol)) {
            Some(inner) if inner.is_inner() => Next::Down(*inner),
            _ if way == Way::High => Next::Done,
            Some(leaf) if is_last && leaf.child() == Some(self.right) => Next::Done,
            _ if is_last => Next::Put(symbol),
            _ => match covering(slots, symbol, position).and_then(Slot::child) {
                Some(below) => Next::Branch { symbol, below, beside: self.beside(slots, position) },
                None => Next::Done,
            },
        };
        Plan { repoint, next }
    }

    /// Yields the slot in which the way to `high` leaves that to `key`, in a node on both, if it leads to a node.
    pub(super) fn fork(&self, slots: &[Slot], position: usize) -> Option<Slot> {
        let high = self.high.as_ref().filter(|high| high.get(..position) == self.key.get(..position))?;
        let symbol = Symbol::of(high, position);
        let slot = slots.iter().find(|slot| slot.is_of(symbol) && slot.is_inner())?;
        (symbol != Symbol::of(&self.key, position)).then_some(*slot)
    }

    fn beside(&self, slots: &[Slot], position: usize) -> Option<Symbol> {
        let next = Symbol::Byte(self.key.get(position)?.checked_add(1)?);
        (position > 0 && !slots.iter().any(|slot| slot.is_of(next))).then_some(next)
    }

    /// Yields the slots of the new node about the key byte at `position`, which leads on to `child`, if it is not the
    /// last.
    pub(super) fn node(&self, position: usize, below: Child, child: Option<Slot>) -> SmallVec<[Slot; 3]> {
        let byte = self.key[position];
        let mut slots = SmallVec::new();
        slots.push(leaf_slot(Symbol::End, below));
        slots.push(child.unwrap_or(leaf_slot(Symbol::Byte(byte), self.right)));
        if let (Some(_), Some(beside)) = (child, byte.checked_add(1)) {
            slots.push(leaf_slot(Symbol::Byte(beside), self.right));
        }
        slots
    }
}

impl Plan {
    /// Tells whether the node stays as it is.
    pub(super) fn changes_nothing(&self) -> bool {
        self.repoint.is_empty() && matches!(self.next, Next::Done | Next::Down(_))
    }

    /// Yields what is to be in which slot, those behind the others in order; `new` is for the separator's symbol, if
    /// that is to have another one.
    pub(super) fn changes(
        &self,
        slots: &[Slot],
        right: Child,
        new: Option<Slot>,
    ) -> SmallVec<[(usize, Slot); 4]> {
        let mut changes = self.repoint.clone();
        let mut free = slots.len()..;
        let beside = if let Next::Branch { beside, .. } = self.next { beside } else { None };
        for slot in beside.map(|symbol| leaf_slot(symbol, right)).into_iter().chain(new) {
            let place = slots.iter().position(|old| old.is_of(slot.symbol()));
            changes.push((place.or_else(|| free.next()).expect("there is no end"), slot));
        }
        changes
    }
}

/// Yields the type of the smallest node with so many slots that has no room for more: a node keeps its type until it
/// moves. `None` for more than there are symbols.
pub(super) fn type_for(types: &NodeTypes, slots: usize) -> Option<u8> {
    (1..=types.largest()).find(|of| types.slots(*of) == types.room(*of) && types.slots(*of) >= slots)
}

/// Yields the shortest key that is above `left` and not above `right`.
pub(super) fn shortest(left: &[u8], right: &[u8]) -> Bytes {
    let shared = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    Bytes::from_slice(&right[..shared + 1])
}

/// Chooses where to divide the ascending keys of a full leaf, of which the one at `new` comes in addition: the first
/// index of the right part. Keys that come in order leave full leaves behind. Otherwise both parts get a third at
/// least, such that the separator is as short as can be.
pub(super) fn divide(keys: &[&[u8]], new: usize) -> usize {
    let count = keys.len();
    if new + 1 == count {
        return new;
    }
    let third = (count / 3).max(1);
    let cost = |at: &usize| (shortest(keys[*at - 1], keys[*at]).len(), (2 * at).abs_diff(count));
    (third..=count - third).min_by_key(cost).expect("there are two keys at least")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn child(n: u64) -> Child {
        Child::of(n + 1).unwrap()
    }

    /// A tree of inner nodes in memory, by position and prefix; leaves are named by where they begin.
    #[derive(Default)]
    struct Nodes {
        nodes: BTreeMap<u64, Vec<Slot>>,
        leaves: Vec<Bytes>,
    }

    impl Nodes {
        const ROOT: u64 = 1000;

        fn new(first: &[u8]) -> Self {
            let mut nodes = Nodes { leaves: vec![Bytes::from_slice(first)], ..Nodes::default() };
            nodes.nodes.insert(Self::ROOT, vec![leaf_slot(Symbol::of(first, 0), child(0))]);
            nodes
        }

        fn route(&self, key: &[u8]) -> Child {
            let (mut node, mut position) = (Self::ROOT, 0);
            loop {
                let slot = covering(&self.nodes[&node], Symbol::of(key, position), position).unwrap();
                let to = slot.child().unwrap();
                if slot.is_leaf() {
                    return to;
                }
                assert!(slot.is_of(Symbol::of(key, position)));
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
                let plan = separator.plan(way, &slots, position);
                let child =
                    separator.fork(&slots, position).filter(|_| way == Way::Key).and_then(Slot::child);
                fork = fork.or(child.map(|child| (child.bits(), position + 1)));
                let new = match plan.next {
                    Next::Put(symbol) => Some(leaf_slot(symbol, separator.right)),
                    Next::Branch { symbol, below, .. } => {
                        Some(self.branch(separator, symbol, below, position))
                    }
                    Next::Done | Next::Down(_) => None,
                };
                let mut changed = slots.clone();
                for (index, slot) in plan.changes(&slots, separator.right, new) {
                    if index == changed.len() { changed.push(slot) } else { changed[index] = slot }
                }
                assert!(!plan.changes_nothing() || changed == slots);
                self.nodes.insert(node, changed);
                let Next::Down(slot) = plan.next else { return fork };
                (node, position) = (slot.child().unwrap().bits(), position + 1);
            }
        }

        fn branch(&mut self, separator: &Separator, symbol: Symbol, below: Child, position: usize) -> Slot {
            let mut child = None;
            for at in (position + 1..separator.key.len()).rev() {
                let slots = separator.node(at, below, child);
                let node = Self::ROOT + self.nodes.len() as u64;
                self.nodes.insert(node, slots.to_vec());
                let symbol = if at == position + 1 { symbol } else { Symbol::Byte(separator.key[at - 1]) };
                child = Some(Slot::inner(symbol, Child::of(node).unwrap(), 1));
            }
            child.unwrap()
        }
    }

    /// All keys over two bytes up to length four, split off in many orders: each key is led to its leaf, at once and
    /// whichever separators are missing never beyond it.
    #[test]
    fn keys_are_led_to_their_leaves() {
        let mut keys: Vec<Vec<u8>> = vec![vec![5]];
        for from in 0.. {
            let Some(key) = keys.get(from).cloned() else { break };
            keys.extend(
                [0, 5, 255].map(|byte| [&key[..], &[byte]].concat()).into_iter().filter(|key| key.len() < 5),
            );
        }
        keys.sort();
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
                let key = Bytes::from_slice(&keys[cut]);
                let left = (0..nodes.leaves.len()).filter(|&i| nodes.leaves[i] < key);
                let left = child(left.max_by_key(|&i| nodes.leaves[i].clone()).unwrap() as u64);
                let right = child(nodes.leaves.len() as u64);
                nodes.leaves.push(key.clone());
                let high = nodes.leaves.iter().filter(|low| **low > key).min().cloned();
                let separator = Separator { key, left, right, high };
                // One in eight gets lost.
                random = random.rotate_left(7).wrapping_add(11);
                let is_lost = round % 2 == 1 && random.is_multiple_of(8);
                if !is_lost {
                    nodes.add(&separator);
                    nodes.add(&separator);
                }
                for key in &keys {
                    let led = &nodes.leaves[nodes.route(key).bits() as usize - 1];
                    let right = nodes.leaves.iter().filter(|low| low[..] <= key[..]).max().unwrap();
                    assert!(led <= right, "{key:?} is led to {led:?}, beyond {right:?}");
                    assert!(round % 2 == 1 || led == right, "{key:?} is led to {led:?}, not {right:?}");
                }
            }
        }
    }

    #[test]
    fn separators_are_short() {
        for (left, right, separator) in
            [("ab", "abc", "abc"), ("abc", "abx", "abx"), ("aaaa", "bzz", "b"), ("", "a", "a")]
        {
            assert_eq!(*shortest(left.as_bytes(), right.as_bytes()), *separator.as_bytes());
        }
    }

    #[test]
    fn leaves_are_divided_where_separators_are_short() {
        let keys = ["a1", "a2", "a3", "b1", "b2", "b3", "b4"].map(str::as_bytes);
        assert_eq!(divide(&keys, 2), 3);
        assert_eq!(divide(&keys, 6), 6, "the last one is new");
        assert_eq!(divide(&keys[..2], 0), 1);
        assert_eq!(divide(&["a1", "a2", "a3", "a4"].map(str::as_bytes), 0), 2);
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
