//! Filling an empty tree from sorted pairs: inner nodes are closed as the keys leave their prefixes, from the bottom
//! up, then the root word.
//!
//! A node is written when its parent is closed, since its link names the parent. A node's children lie on its server,
//! one behind the other, as inserts would place them. Nothing can be read before the root word is redirected, so
//! readers see all pairs or none; the cache, which is shown the nodes as they are written, hears of the root after that
//! only. A load that fails, is dropped, or loses the CAS to a writer gives its nodes back.

use std::rc::Rc;

use farwood_runtime::{ServerId, Verbs};

use super::new_node::{Lead, Redirect, child_at};
use super::{SmartAlgorithm, Tree};
use crate::error::{LoadError, WriteError};
use crate::layout::Bytes;
use crate::layout::radix::{
    Child, Header, InnerView, Link, PREFIX_BYTES_MAX, Parent, Slot, Symbol, build_inner,
};
use crate::shell::bulk::BulkWriter;

/// Loads `pairs`; yields how many.
pub(super) async fn run<V: Verbs, K: AsRef<[u8]>, U: AsRef<[u8]>>(
    tree: &Rc<Tree<V>>,
    pairs: &mut dyn Iterator<Item = Result<(K, U), LoadError>>,
    fill: f64,
) -> Result<u64, LoadError> {
    let mut budget = tree.budget();
    let mut loader = Loader { tree, fill, open: Vec::new(), writer: BulkWriter::new(tree) };
    if tree.read_root(&loader.writer.meter, &mut budget).await?.slot != Slot::EMPTY {
        return Err(LoadError::NotEmpty);
    }
    let (count, root) = loader.load(pairs).await?;
    let Some(root) = root else { return Ok(0) };
    let at = tree.shared.entry.root;
    let (node, slot) = loader.place(root, at.server(), Symbol::Byte(0), Parent::Root).await?;
    loader.writer.drain(0).await?;
    let redirect = Redirect::new(at, 0, Lead::Slot(slot), node, Link::Live(Parent::Root));
    // The redirect may take effect even if this future is dropped meanwhile: better lose the nodes than share them.
    let nodes = loader.writer.publish();
    if tree.redirect(&loader.writer.meter, &redirect, &mut budget).await?.is_err() {
        loader.writer.withdraw(nodes);
        return Err(LoadError::NotEmpty);
    }
    tree.cache().set_root(slot.bits());
    Ok(count)
}

/// A node that was not placed yet: its parent is not known.
enum Pending {
    Leaf { key: Bytes, value: Bytes },
    Inner(Closed),
}

/// An inner node all of whose children are known and placed.
struct Closed {
    at: Child,
    header: Header,
    slots: Vec<Slot>,
}

/// An inner node that more children may come to.
struct Open {
    /// The key byte that its slots are about.
    position: usize,
    /// A key below it: its first bytes are the node's.
    key: Bytes,
    children: Vec<(Symbol, Pending)>,
}

struct Loader<'t, V: Verbs> {
    tree: &'t Rc<Tree<V>>,
    fill: f64,
    /// From the top; positions ascend.
    open: Vec<Open>,
    writer: BulkWriter<'t, SmartAlgorithm, V>,
}

impl<V: Verbs> Drop for Loader<'_, V> {
    fn drop(&mut self) {
        if !self.writer.is_empty() {
            // It was shown some of them, at addresses that others will get.
            self.tree.cache().clear();
        }
    }
}

impl<V: Verbs> Loader<'_, V> {
    /// Places everything but the root, which it yields.
    async fn load<K: AsRef<[u8]>, U: AsRef<[u8]>>(
        &mut self,
        pairs: &mut dyn Iterator<Item = Result<(K, U), LoadError>>,
    ) -> Result<(u64, Option<Pending>), LoadError> {
        let mut count = 0;
        let mut last: Option<(Bytes, Bytes)> = None;
        for pair in pairs {
            let (key, value) = pair?;
            let (key, value) = (key.as_ref(), value.as_ref());
            let pair = (Bytes::from_slice(key), Bytes::from_slice(value));
            if let Some((before, its_value)) = last.replace(pair) {
                let parting = before.iter().zip(key).take_while(|(a, b)| a == b).count();
                self.add(before, its_value, parting).await?;
            }
            count += 1;
        }
        let Some((key, value)) = last else { return Ok((0, None)) };
        let mut rest = Pending::Leaf { key: key.clone(), value };
        while let Some(mut node) = self.open.pop() {
            node.children.push((Symbol::of(&key, node.position), rest));
            let above = self.open.last().map(|above| above.position);
            rest = self.close(node, above).await?;
        }
        Ok((count, Some(rest)))
    }

    /// Adds a pair, from which the next key parts at byte `parting`: all nodes below that are closed.
    async fn add(&mut self, key: Bytes, value: Bytes, parting: usize) -> Result<(), WriteError> {
        let mut child = Pending::Leaf { key: key.clone(), value };
        while let Some(mut node) = self.open.pop_if(|node| node.position > parting) {
            node.children.push((Symbol::of(&key, node.position), child));
            // Its parent is the next one that is open, or the one that the next key calls for.
            let above = self.open.last().map_or(parting, |above| above.position.max(parting));
            child = self.close(node, Some(above)).await?;
        }
        let symbol = Symbol::of(&key, parting);
        match self.open.last_mut().filter(|node| node.position == parting) {
            Some(node) => node.children.push((symbol, child)),
            None => self.open.push(Open { position: parting, key, children: vec![(symbol, child)] }),
        }
        Ok(())
    }

    /// Places a node's children, and makes it a child of the node whose slots are about byte `above`, or of the root
    /// word. Bytes in between that do not fit into its header take nodes of their own above it.
    async fn close(&mut self, node: Open, above: Option<usize>) -> Result<Pending, WriteError> {
        let Open { position, key, children } = node;
        let from = above.map_or(0, |above| above + 1);
        let spans: Vec<(usize, usize)> = super::split::prefixes(from, position).collect();
        let mut spans = spans.into_iter().rev();
        let (begin, _) = spans.next().expect("there is at least one");
        let mut closed = self.inner(begin, &key[begin..position], children).await?;
        for (begin, end) in spans {
            debug_assert!(end - begin <= PREFIX_BYTES_MAX);
            let only = vec![(Symbol::Byte(key[end]), Pending::Inner(closed))];
            closed = self.inner(begin, &key[begin..end], only).await?;
        }
        Ok(Pending::Inner(closed))
    }

    /// Makes an inner node with these children, which are placed behind it.
    async fn inner(
        &mut self,
        depth: usize,
        prefix: &[u8],
        children: Vec<(Symbol, Pending)>,
    ) -> Result<Closed, WriteError> {
        let slots = ((children.len() as f64 / self.fill).ceil() as usize).clamp(children.len(), 257);
        let node_type = self.tree.types().for_slots(slots);
        let at = self.allocate(None, self.tree.types().node_bytes(node_type)).await?;
        let mut slots = Vec::with_capacity(children.len());
        for (symbol, child) in children {
            let placed = self.place(child, at.ptr().server(), symbol, Parent::Node(at)).await?;
            slots.push(placed.1);
        }
        Ok(Closed { at, header: Header::new(depth, node_type, prefix), slots })
    }

    /// Writes a node whose parent is known; yields the slot that leads to it.
    async fn place(
        &mut self,
        node: Pending,
        server: ServerId,
        symbol: Symbol,
        parent: Parent,
    ) -> Result<(Child, Slot), WriteError> {
        let tree = self.tree;
        match node {
            Pending::Leaf { key, value } => {
                let class = tree.leaf().class_for(key.len(), value.len());
                let bytes = tree.leaf().leaf_bytes(class);
                let at = self.allocate(Some(server), bytes).await?;
                let mut buf = tree.verbs.lease(bytes);
                tree.leaf().build(&mut buf, Link::Live(parent), &key, &value);
                self.writer.write(at.ptr(), buf).await?;
                Ok((at, Slot::leaf(symbol, at, class)))
            }
            Pending::Inner(Closed { at, header, slots }) => {
                let mut buf = tree.verbs.lease(tree.types().node_bytes(header.node_type));
                build_inner(&mut buf, Link::Live(parent), &header, slots);
                // Nothing leads there as long as the cache knows no root.
                tree.cache_node(at, &InnerView::new(&buf, tree.types()).expect("it was built here"));
                self.writer.write(at.ptr(), buf).await?;
                Ok((at, Slot::inner(symbol, at, header.node_type)))
            }
        }
    }

    async fn allocate(&mut self, near: Option<ServerId>, bytes: usize) -> Result<Child, WriteError> {
        Ok(child_at(self.writer.allocate(near, bytes).await?)?)
    }
}
