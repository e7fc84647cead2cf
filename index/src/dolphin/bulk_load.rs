//! Filling an empty tree from sorted pairs: leaves one after the other, then the inner nodes above them, from the
//! bottom up, then the root word.
//!
//! Nothing can be read before the root word is put, so readers see all pairs or none. A load that fails, is dropped, or
//! loses the CAS to a writer gives its nodes back.

use std::rc::Rc;

use farwood_runtime::Verbs;

use super::descend::{Inner, Unread};
use super::divide::shortest;
use super::leaf_plan::{Pairs, share_prefix};
use super::root::{begin_of, end_of};
use super::separators::{leaf_slot, type_for};
use super::sizes::per_leaf;
use super::{DolphinAlgorithm, Tree};
use crate::error::{LoadError, WriteError};
use crate::layout::radix::{Child, Header, Link, Parent, Slot, Symbol, build_inner};
use crate::layout::range_leaf::RangeHeader;
use crate::layout::{Bytes, NodeVersion};
use crate::shell::bulk::BulkWriter;
use crate::smart::child_at;

/// A leaf that was written: where it begins, and its address.
type Begin = (Bytes, Child);

/// Loads `pairs`; yields how many.
pub(super) async fn run<V: Verbs, K: AsRef<[u8]>, U: AsRef<[u8]>>(
    tree: &Rc<Tree<V>>,
    pairs: &mut dyn Iterator<Item = Result<(K, U), LoadError>>,
    fill: f64,
) -> Result<u64, LoadError> {
    let mut budget = tree.budget();
    let most = per_leaf(tree.leaf().slots(), fill) as usize;
    let spread = (most / 8).min(tree.leaf().slots() - most);
    let mut loader = Loader {
        tree,
        most,
        spread,
        open: None,
        leaves: Vec::new(),
        inner: Vec::new(),
        writer: BulkWriter::new(tree),
    };
    if tree.read_root(&loader.writer.meter, &mut budget).await?.is_some() {
        return Err(LoadError::NotEmpty);
    }
    let mut count = 0;
    for pair in pairs {
        let (key, value) = pair?;
        loader.add(key.as_ref(), value.as_ref()).await?;
        count += 1;
    }
    if count == 0 {
        return Ok(0);
    }
    loader.close(None).await?;
    let root = loader.inner_nodes().await?;
    loader.writer.drain(0).await?;
    // The CAS may take effect even if this future is dropped meanwhile: better lose the nodes than share them.
    let nodes = loader.writer.publish();
    if !tree.publish_root(&loader.writer.meter, root, &mut budget).await? {
        loader.writer.withdraw(nodes);
        return Err(LoadError::NotEmpty);
    }
    tree.cache().set_root(tree.root_slot(root).bits());
    loader.inner.iter().rev().for_each(|(at, inner)| tree.cache_node(*at, inner));
    Ok(count)
}

struct Loader<'t, V: Verbs> {
    tree: &'t Rc<Tree<V>>,
    /// Pairs of a leaf, and how many fewer or more a leaf may have for the sake of a short separator.
    most: usize,
    spread: usize,
    /// The leaf that pairs go to, and those that it has.
    open: Option<(Begin, Pairs)>,
    leaves: Vec<Begin>,
    /// The inner nodes that were written: the cache is shown them when clients can find them.
    inner: Vec<(Unread, Inner)>,
    writer: BulkWriter<'t, DolphinAlgorithm, V>,
}

impl<V: Verbs> Loader<'_, V> {
    async fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), WriteError> {
        let pair = (Bytes::from_slice(key), Bytes::from_slice(value));
        if let Some((_, pairs)) = &mut self.open {
            let last = &pairs.last().expect("a leaf is opened with a pair").0;
            let is_same = Symbol::of(last, 0) == Symbol::of(key, 0);
            if is_same && self.tree.techniques.deep_special && !share_prefix(last, key) {
                let begin = shortest(last, key);
                self.close(Some(begin)).await?;
                self.open.as_mut().expect("one behind was opened").1.push(pair);
                return Ok(());
            }
            if is_same {
                pairs.push(pair);
                if pairs.len() > self.most + self.spread {
                    let keys: Vec<&[u8]> = pairs.iter().map(|(key, _)| &key[..]).collect();
                    let at = cut(&keys, self.most, self.spread);
                    let begin = shortest(keys[at - 1], keys[at]);
                    let behind = pairs.split_off(at);
                    self.close(Some(begin)).await?;
                    self.open.as_mut().expect("one behind was opened").1 = behind;
                }
                return Ok(());
            }
            self.close(None).await?;
        }
        match &mut self.open {
            Some((_, pairs)) => pairs.push(pair),
            None => {
                let at = self.allocate().await?;
                self.open = Some(((begin_of(Symbol::of(key, 0)), at), vec![pair]));
            }
        }
        Ok(())
    }

    async fn allocate(&mut self) -> Result<Child, WriteError> {
        Ok(child_at(self.writer.allocate(None, self.tree.leaf().node_bytes()).await?)?)
    }

    /// Writes the leaf that is open, and opens the one behind, if there is one for keys with the same first byte.
    async fn close(&mut self, behind: Option<Bytes>) -> Result<(), WriteError> {
        let next = match behind {
            Some(begin) => Some((begin, self.allocate().await?)),
            None => None,
        };
        let ((low, at), pairs) = self.open.take().expect("a leaf is open");
        let high = match &next {
            Some((begin, _)) => Some(begin.clone()),
            None => end_of(Symbol::of(&low, 0)),
        };
        let mut image = self.tree.verbs.lease(self.tree.leaf().node_bytes());
        let header = RangeHeader {
            version: NodeVersion::default(),
            next: next.as_ref().map(|(_, next)| *next),
            low: &low,
            high: high.as_deref(),
            is_reused: false,
        };
        let pairs = pairs.iter().map(|(key, value)| (&key[..], &value[..]));
        self.tree.leaf().build(&mut image, &header, pairs);
        self.writer.write(at.ptr(), image).await?;
        self.leaves.push((low, at));
        self.open = next.map(|next| (next, Vec::new()));
        Ok(())
    }

    /// Writes the inner nodes above all leaves; yields the root.
    async fn inner_nodes(&mut self) -> Result<Child, WriteError> {
        let branches = branches(&std::mem::take(&mut self.leaves), 0, None);
        let slots = self.write_below(branches, 0).await?;
        let bytes = self.tree.root_bytes();
        let root = child_at(self.writer.allocate(None, bytes).await?)?;
        let mut image = self.tree.verbs.lease(bytes);
        self.tree.build_root(&mut image, &slots);
        self.writer.write(root.ptr(), image).await?;
        self.note(self.tree.unread_root(root), 0, &slots);
        Ok(root)
    }

    /// Writes the inner nodes below one about the key byte at `position`; yields its slots.
    async fn write_below(
        &mut self,
        node: Vec<(Symbol, Branch)>,
        position: usize,
    ) -> Result<Vec<Slot>, WriteError> {
        let mut slots = Vec::with_capacity(node.len());
        for (symbol, branch) in node {
            slots.push(match branch {
                Branch::Leaf(leaf) => leaf_slot(symbol, leaf),
                Branch::Node(below) => {
                    let below = Box::pin(self.write_below(below, position + 1)).await?;
                    let (child, class) = self.write_inner(position + 1, &below).await?;
                    Slot::inner(symbol, child, class)
                }
            });
        }
        Ok(slots)
    }

    async fn write_inner(&mut self, position: usize, slots: &[Slot]) -> Result<(Child, u8), WriteError> {
        let types = self.tree.types();
        let class = type_for(types, slots.len()).expect("there is a type for all symbols");
        let at = child_at(self.writer.allocate(None, types.node_bytes(class)).await?)?;
        let mut image = self.tree.verbs.lease(types.node_bytes(class));
        let header = Header::new(position, class, b"");
        build_inner(&mut image, Link::Live(Parent::Root), &header, slots.iter().copied());
        self.writer.write(at.ptr(), image).await?;
        self.note(Unread { node: at, class, above: None }, position, slots);
        Ok((at, class))
    }

    fn note(&mut self, at: Unread, position: usize, slots: &[Slot]) {
        let (class, slots) = (at.class, slots.iter().copied().collect());
        self.inner.push((at, Inner { position, class, slots, successor: None }));
    }
}

/// Chooses the number of pairs, `most` give or take `spread`, of a leaf with these ascending keys, which are one too
/// many: such that the separator behind them is as short as can be, and calls for as few inner nodes.
fn cut(keys: &[&[u8]], most: usize, spread: usize) -> usize {
    let cost = |at: &usize| (shortest(keys[*at - 1], keys[*at]).len(), at.abs_diff(most));
    ((most - spread).max(1)..=most + spread).min_by_key(cost).expect("there is a place at least")
}

/// A node of the tree above the leaves.
enum Branch {
    Leaf(Child),
    Node(Vec<(Symbol, Branch)>),
}

/// Makes the slots of the node about the key byte at `position` above these leaves, which all begin with the bytes
/// before; `below` is the leaf before them.
fn branches(leaves: &[Begin], position: usize, below: Option<Child>) -> Vec<(Symbol, Branch)> {
    let (mut slots, mut below, mut rest) = (Vec::new(), below, leaves);
    if position > 0 {
        if let [(low, leaf), others @ ..] = rest
            && low.len() == position
        {
            (below, rest) = (Some(*leaf), others);
        }
        slots.extend(below.map(|leaf| (Symbol::End, Branch::Leaf(leaf))));
    }
    while let [(low, leaf), ..] = rest {
        let symbol = Symbol::of(low, position);
        let count = rest.iter().take_while(|(low, _)| Symbol::of(low, position) == symbol).count();
        let (group, behind) = rest.split_at(count);
        let last = group[count - 1].1;
        if count == 1 && low.len() <= position + 1 {
            slots.push((symbol, Branch::Leaf(*leaf)));
        } else {
            slots.push((symbol, Branch::Node(branches(group, position + 1, below))));
        }
        (below, rest) = (Some(last), behind);
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::super::separators::{covering, last};
    use super::*;

    /// Leads a key down, through slots as they would be written.
    fn route(mut node: &[(Symbol, Branch)], key: &[u8]) -> Option<Child> {
        let mut is_before = false;
        for position in 0.. {
            let any = Child::of(1 << 40).unwrap();
            let slot = |(symbol, branch): &(Symbol, Branch)| match branch {
                Branch::Leaf(leaf) => leaf_slot(*symbol, *leaf),
                Branch::Node(_) => Slot::inner(*symbol, any, 1),
            };
            let slots: Vec<Slot> = node.iter().map(slot).collect();
            let symbol = Symbol::of(key, position);
            let found = if is_before { last(&slots) } else { covering(&slots, symbol, position) }?;
            is_before |= !found.is_of(symbol);
            match &node[slots.iter().position(|slot| *slot == found).unwrap()].1 {
                Branch::Leaf(leaf) => return Some(*leaf),
                Branch::Node(below) => node = below,
            }
        }
        None
    }

    #[test]
    fn leaves_end_where_separators_are_short() {
        let keys: [&[u8]; 5] = [b"aab", b"aac", b"ab", b"abb", b"abc"];
        for (most, spread, at) in [(1, 0, 1), (3, 0, 3), (3, 1, 2), (2, 2, 2), (4, 0, 4)] {
            assert_eq!(cut(&keys, most, spread), at, "{most} give or take {spread}");
        }
    }

    #[test]
    fn all_keys_are_led_to_their_leaves() {
        let mut keys: Vec<Vec<u8>> = vec![vec![]];
        for from in 0.. {
            let Some(key) = keys.get(from).cloned() else { break };
            keys.extend(
                [0, 5, 255].map(|byte| [&key[..], &[byte]].concat()).into_iter().filter(|key| key.len() < 5),
            );
        }
        keys.sort();
        for step in 1..30 {
            let mut leaves: Vec<Begin> = Vec::new();
            for (i, key) in keys.iter().enumerate() {
                if i % step == 0 || key.len() < 2 {
                    leaves.push((Bytes::from_slice(key), Child::of(leaves.len() as u64 + 1).unwrap()));
                }
            }
            let tree = branches(&leaves, 0, None);
            for key in &keys {
                let leaf = leaves.iter().rev().find(|(low, _)| low[..] <= key[..]).unwrap().1;
                assert_eq!(route(&tree, key), Some(leaf), "{key:?} of leaves from every {step}th key");
            }
            assert_eq!(route(&tree, &[7]), None, "the root leads to leaves of that first byte alone");
        }
    }
}
