//! Splits (Sherman figure 7, lines 18 to 39; Lehman and Yao's B-link tree): the right half of a full node moves to a
//! new sibling, then a separator for it goes into the parent, and so on upwards. One lock at a time.
//!
//! Between the two, and for as long as the separator is missing, the right half is reached over the left one's
//! sibling pointer. So an operation that is dropped after its split has taken effect leaves a correct tree; the
//! separator is then put in by the janitor. If its client has died, or there was no memory for an inner node, others
//! put it in later (`repair.rs`).

use std::rc::Rc;

use farwood_cache::Root;
use farwood_lock::Held;
use farwood_runtime::{Buf, Chain, Meter, RemotePtr, Verbs};

use super::Tree;
use super::descend::{Target, Via};
use crate::error::IndexError;
use crate::layout::{Bytes, InnerLayout, LeafView, Malformed, NodeHeader, NodeVersion, Position, Rejection};
use crate::step::Budget;

/// A child that its parent does not know yet.
#[derive(Clone, Debug)]
pub(super) struct Separator {
    /// The level of the parent.
    pub(super) level: u8,
    pub(super) key: Bytes,
    pub(super) child: RemotePtr,
}

/// The outcome of putting a separator in.
enum Put {
    /// It was there already.
    Before,
    /// It is in.
    Now,
    /// It is in, and its node was split for it, which owes this one to the level above.
    Owing(Separator),
}

/// Sees to it that a separator gets in also if the operation that owes it is dropped.
pub(super) struct Owed<V: Verbs> {
    pub(super) tree: Rc<Tree<V>>,
    /// The node that was split.
    pub(super) node: RemotePtr,
    pub(super) separator: Option<Separator>,
}

impl<V: Verbs> Owed<V> {
    /// Puts the separator in, and those that it makes the levels above owe; false if it was there.
    ///
    /// An error goes to the caller and nothing is tried again: it would meet the same error. Later visitors will
    /// (`repair.rs`).
    pub(super) async fn pay(mut self, meter: &Meter) -> Result<bool, IndexError> {
        let mut budget = self.tree.budget();
        let mut was_missing = false;
        while let Some(separator) = self.separator.clone() {
            let put = self.tree.insert_one(meter, &separator, &mut budget).await;
            self.separator = None;
            match put? {
                Put::Before => {}
                Put::Now => was_missing = true,
                Put::Owing(above) => {
                    was_missing = true;
                    self.separator = Some(above);
                }
            }
        }
        Ok(was_missing)
    }

    /// Pays for an operation that was dropped, maybe while the split itself was in flight, or whose split the janitor
    /// has to complete. The split releases the node's lock last, so a client that has had that lock may lead others to
    /// the sibling.
    async fn pay_later(mut self) -> Result<(), IndexError> {
        let meter = Meter::default();
        // Not owed while it waits: an error would be met again and again.
        let separator = self.separator.take();
        let mut held = self.tree.locks.acquire(&meter, self.node).await?;
        held.lock(&meter).await?;
        self.tree.unlock(&meter, held).await?;
        self.separator = separator;
        self.pay(&meter).await.map(drop)
    }
}

impl<V: Verbs> Drop for Owed<V> {
    fn drop(&mut self) {
        let Some(separator) = self.separator.take() else { return };
        let (tree, node) = (Rc::clone(&self.tree), self.node);
        self.tree.verbs.defer(async move {
            // Owed from when this runs. A node that has stopped drops it before, which would lead back here for ever.
            tracing::debug!(name: "sherman.separator.owed", %node, "a dropped split has its separator put in");
            let owed = Owed { tree, node, separator: Some(separator) };
            if let Err(error) = owed.pay_later().await {
                separator_is_missing(&error);
            }
        });
    }
}

/// Says that a separator could not be put in.
pub(super) fn separator_is_missing(error: &IndexError) {
    tracing::warn!(name: "sherman.separator.missing", %error, "a node stays reachable over its neighbour only");
}

/// A node that was allocated and that nothing refers to yet. Goes back to the allocator if it is dropped.
pub(super) struct Unpublished<'t, V: Verbs> {
    tree: &'t Tree<V>,
    pub(super) node: RemotePtr,
    bytes: usize,
    published: bool,
}

impl<V: Verbs> Unpublished<'_, V> {
    /// From here on others may find it: it never goes back.
    pub(super) fn publish(mut self) -> RemotePtr {
        self.published = true;
        self.node
    }
}

impl<V: Verbs> Drop for Unpublished<'_, V> {
    fn drop(&mut self) {
        // A WRITE to it may still be in flight: whoever gets it next writes behind that, on the same queue pair.
        if !self.published {
            self.tree.allocator.give_back(self.node, self.bytes as u64);
        }
    }
}

/// How the entries of a full node are divided.
struct Halves<T> {
    left: Vec<T>,
    right: Vec<T>,
}

/// Puts the larger half left; either half has an entry.
fn halve<T>(mut entries: Vec<T>) -> Halves<T> {
    let right = entries.split_off(entries.len().div_ceil(2));
    Halves { left: entries, right }
}

/// The pairs of a full leaf and the new one, ascending.
fn leaf_pairs(leaf: &LeafView<'_>, key: &[u8], value: &[u8]) -> Result<Vec<(Bytes, Bytes)>, Rejection> {
    let mut pairs = leaf.sorted_pairs()?;
    match pairs.binary_search_by(|(found, _)| found.as_slice().cmp(key)) {
        // It was looked for in vain, and a leaf that is full has other keys.
        Ok(_) => return Err(Malformed::KeyOrder.into()),
        Err(_) if pairs.is_empty() => return Err(Malformed::Count.into()),
        Err(place) => pairs.insert(place, (Bytes::from_slice(key), Bytes::from_slice(value))),
    }
    Ok(pairs)
}

/// What a separator does to the inner node that answers for it.
#[derive(Debug, PartialEq)]
enum InnerPlan {
    /// The node with these entries.
    Rewrite(Vec<(Bytes, RemotePtr)>),
    /// More entries than fit.
    Split(Vec<(Bytes, RemotePtr)>),
    /// It is there already.
    Nothing,
    MoveRight(RemotePtr),
    /// It is not this node's, or no node.
    Restart(Option<Rejection>),
}

fn plan_separator(layout: &InnerLayout, image: &[u8], separator: &Separator) -> InnerPlan {
    let view = match layout.view(image) {
        Ok(view) if view.header().level() == separator.level => view,
        Ok(_) => return InnerPlan::Restart(None),
        Err(rejection) => return InnerPlan::Restart(Some(rejection)),
    };
    match view.header().position(&separator.key) {
        Position::Here => {}
        Position::Left => return InnerPlan::Restart(None),
        Position::Right => match view.header().right() {
            Ok(sibling) => return InnerPlan::MoveRight(sibling),
            Err(rejection) => return InnerPlan::Restart(Some(rejection)),
        },
    }
    let mut entries = match view.sorted_entries() {
        Ok(entries) => entries,
        Err(rejection) => return InnerPlan::Restart(Some(rejection)),
    };
    match entries.binary_search_by(|(key, _)| key.cmp(&separator.key)) {
        Ok(_) => InnerPlan::Nothing,
        Err(place) => {
            entries.insert(place, (separator.key.clone(), separator.child));
            if entries.len() <= layout.slots() {
                InnerPlan::Rewrite(entries)
            } else {
                InnerPlan::Split(entries)
            }
        }
    }
}

fn borrowed(entries: &[(Bytes, RemotePtr)]) -> impl Iterator<Item = (&[u8], RemotePtr)> {
    entries.iter().map(|(key, child)| (key.as_slice(), *child))
}

impl<V: Verbs> Tree<V> {
    /// Splits the full leaf in `image`, which is locked, for the new pair, and tells the parents.
    pub(super) async fn split_leaf(
        self: &Rc<Self>,
        meter: &Meter,
        held: Held<V>,
        image: Buf,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), IndexError> {
        let node = held.node();
        let parsed = self.leaf().view(&image);
        let parsed = parsed.and_then(|leaf| Ok((leaf_pairs(&leaf, key, value)?, OldNode::of(leaf.header()))));
        let (pairs, old) = match parsed {
            Ok(parsed) => parsed,
            Err(rejection) => {
                self.unlock(meter, held).await?;
                return Err(IndexError::Corrupt { node, what: rejection.to_string() });
            }
        };
        tracing::debug!(name: "sherman.leaf.split", %node, "a leaf is split");
        let halves = halve(pairs);
        let bytes = self.leaf().node_bytes();
        let sibling = match self.new_node(bytes).await {
            Ok(sibling) => sibling,
            Err(error) => {
                self.unlock(meter, held).await?;
                return Err(error);
            }
        };
        let middle = halves.right[0].0.clone();
        let mut buf = self.verbs.lease(2 * bytes);
        let (left_image, right_image) = buf.split_at_mut(bytes);
        let pairs = |half: &[(Bytes, Bytes)], image: &mut [u8], header: &NodeHeader<'_>| {
            self.leaf().build(
                image,
                header,
                half.iter().map(|(key, value)| (key.as_slice(), value.as_slice())),
            );
        };
        pairs(&halves.left, left_image, &old.left(&middle, sibling.node));
        pairs(&halves.right, right_image, &old.right(&middle, self.verbs.random() as u32));
        let separator = Separator { level: 1, key: middle, child: sibling.node };
        let owed = self.publish_split(meter, held, sibling, buf, separator).await?;
        if let Err(error) = owed.pay(meter).await {
            // The pair is in and the tree whole: a missing separator costs readers a step, not the writer its
            // success.
            separator_is_missing(&error);
        }
        Ok(())
    }

    /// Writes sibling and node and unlocks the node: one round trip where `combine` can put them in one chain.
    async fn publish_split(
        self: &Rc<Self>,
        meter: &Meter,
        mut held: Held<V>,
        sibling: Unpublished<'_, V>,
        mut buf: Buf,
        separator: Separator,
    ) -> Result<Owed<V>, IndexError> {
        let node = held.node();
        let bytes = sibling.bytes;
        let together = self.techniques.combine && node.server() == sibling.node.server();
        if !together {
            // If this fails nothing refers to the sibling: it goes back, and the janitor unlocks the node, which is
            // whole.
            buf = self.write_new(meter, sibling.node, buf, bytes..2 * bytes).await?;
        }
        let mut chain = Chain::with_buffer(node.server(), buf);
        if together {
            chain.write(sibling.node, bytes..2 * bytes);
        }
        chain.write(node, 0..bytes);
        if together {
            // Every line of the node changes: its version does.
            held.begins_with_new(1);
        }
        // From here on the split may take effect whatever happens to this future.
        sibling.publish();
        let owed = Owed { tree: Rc::clone(self), node, separator: Some(separator) };
        if let Err(error) = held.release(meter, chain, self.techniques.combine).await {
            // Redoing it was in vain; the janitor goes on. The separator is put in once the node's lock can be had
            // again: then the split has taken effect.
            tracing::debug!(name: "sherman.split.unknown", %node, %error, "a split may have taken effect, or will");
            return Err(error.into());
        }
        Ok(owed)
    }

    /// Puts one separator in.
    async fn insert_one(
        self: &Rc<Self>,
        meter: &Meter,
        separator: &Separator,
        budget: &mut Budget,
    ) -> Result<Put, IndexError> {
        let bytes = self.inner().node_bytes();
        let mut at = loop {
            if let Some(ptr) = self.reader().node_of(separator.level, &separator.key) {
                break Target { ptr, level: separator.level, via: Via::Nothing };
            }
            match self.locate_from_root(meter, &separator.key, separator.level, budget).await? {
                Some(target) => break target,
                None if self.grow(meter, separator).await? => return Ok(Put::Now),
                None => budget.spend(meter, separator.child, None)?,
            }
        };
        loop {
            let mut held = self.locks.acquire(meter, at.ptr).await?;
            let buf = self.verbs.lease(bytes);
            let image = held.lock_and_read(meter, buf, bytes, self.techniques.fused).await?.into_buf();
            match plan_separator(self.inner(), &image, separator) {
                InnerPlan::Nothing => {
                    self.unlock(meter, held).await?;
                    return Ok(Put::Before);
                }
                InnerPlan::Rewrite(entries) => {
                    self.rewrite_inner(meter, held, image, &entries).await?;
                    return Ok(Put::Now);
                }
                InnerPlan::Split(entries) => {
                    let above = self.split_inner(meter, held, image, entries, separator.level).await?;
                    return Ok(Put::Owing(above));
                }
                InnerPlan::MoveRight(sibling) => {
                    self.unlock(meter, held).await?;
                    budget.spend(meter, at.ptr, None)?;
                    self.cache().invalidate(at.level, at.ptr, &separator.key);
                    at = Target { ptr: sibling, ..at };
                }
                InnerPlan::Restart(last) => {
                    self.unlock(meter, held).await?;
                    budget.spend(meter, at.ptr, last)?;
                    self.cache().invalidate(at.level, at.ptr, &separator.key);
                    let root = self.restart(meter, at.ptr).await?;
                    at = self.descend(meter, &separator.key, separator.level, root, budget).await?;
                }
            }
        }
    }

    async fn rewrite_inner(
        &self,
        meter: &Meter,
        held: Held<V>,
        image: Buf,
        entries: &[(Bytes, RemotePtr)],
    ) -> Result<(), IndexError> {
        let node = held.node();
        let old = OldNode::of(self.inner().view(&image).expect("it was parsed for the plan").header());
        let mut buf = image;
        self.inner().build(&mut buf, &old.same(), borrowed(entries));
        let bytes = buf.len();
        let mut chain = Chain::with_buffer(node.server(), buf);
        chain.write(node, 0..bytes);
        if let Some(buf) = held.release(meter, chain, self.techniques.combine).await? {
            self.show_cache(node, &buf);
        }
        Ok(())
    }

    async fn split_inner(
        self: &Rc<Self>,
        meter: &Meter,
        held: Held<V>,
        image: Buf,
        entries: Vec<(Bytes, RemotePtr)>,
        level: u8,
    ) -> Result<Separator, IndexError> {
        let node = held.node();
        let old = OldNode::of(self.inner().view(&image).expect("it was parsed for the plan").header());
        let bytes = self.inner().node_bytes();
        let sibling = match self.new_node(bytes).await {
            Ok(sibling) => sibling,
            Err(error) => {
                self.unlock(meter, held).await?;
                return Err(error);
            }
        };
        tracing::debug!(name: "sherman.inner.split", %node, level, "an inner node is split");
        let halves = halve(entries);
        let middle = halves.right[0].0.clone();
        let mut buf = self.verbs.lease(2 * bytes);
        let (left_image, right_image) = buf.split_at_mut(bytes);
        let right_header = old.right(&middle, self.verbs.random() as u32);
        self.inner().build(left_image, &old.left(&middle, sibling.node), borrowed(&halves.left));
        self.inner().build(right_image, &right_header, borrowed(&halves.right));
        let images = (left_image.to_vec(), right_image.to_vec());
        let sibling_node = sibling.node;
        let separator = Separator { level: level + 1, key: middle, child: sibling_node };
        let mut owed = self.publish_split(meter, held, sibling, buf, separator).await?;
        self.show_cache(node, &images.0);
        self.show_cache(sibling_node, &images.1);
        Ok(owed.separator.take().expect("a split owes its separator"))
    }

    /// Puts a new root above the current one, for a separator of a level that the tree does not have. False if the
    /// tree has grown meanwhile.
    async fn grow(&self, meter: &Meter, separator: &Separator) -> Result<bool, IndexError> {
        let Some(old) = self.read_root(meter).await?.filter(|root| root.level + 1 == separator.level) else {
            return Ok(false);
        };
        let bytes = self.inner().node_bytes();
        let node = self.new_node(bytes).await?;
        let header = NodeHeader {
            level: separator.level,
            low: b"",
            high: None,
            sibling: RemotePtr::NULL,
            incarnation: self.verbs.random() as u32,
            node_version: NodeVersion::default(),
        };
        let mut buf = self.verbs.lease(bytes);
        let entries = [(&b""[..], old.ptr), (&separator.key[..], separator.child)];
        self.inner().build(&mut buf, &header, entries);
        let buf = self.write_new(meter, node.node, buf, 0..bytes).await?;
        let root = Root { ptr: node.publish(), level: separator.level };
        let grown = self.swap_root(meter, Some(old), root, vec![(root.ptr, bytes as u64)]).await?;
        if grown {
            tracing::debug!(name: "sherman.root.grown", level = separator.level, "the tree has a new root");
            self.show_cache(root.ptr, &buf);
        }
        Ok(grown)
    }

    pub(super) async fn new_node(&self, bytes: usize) -> Result<Unpublished<'_, V>, IndexError> {
        let node = self.allocator.allocate(bytes as u64).await?;
        Ok(Unpublished { tree: self, node, bytes, published: false })
    }
}

/// What the images that replace a node take over from it.
struct OldNode {
    level: u8,
    low: Bytes,
    high: Option<Bytes>,
    sibling: RemotePtr,
    incarnation: u32,
    next_version: NodeVersion,
}

impl OldNode {
    fn of(header: &crate::layout::Header<'_>) -> Self {
        OldNode {
            level: header.level(),
            low: header.low(),
            high: header.high(),
            sibling: header.sibling(),
            incarnation: header.incarnation(),
            next_version: header.node_version().next(),
        }
    }

    /// The same node with other entries.
    fn same(&self) -> NodeHeader<'_> {
        NodeHeader {
            level: self.level,
            low: &self.low,
            high: self.high.as_deref(),
            sibling: self.sibling,
            incarnation: self.incarnation,
            node_version: self.next_version,
        }
    }

    /// The same node, ending at `middle`.
    fn left<'a>(&'a self, middle: &'a [u8], sibling: RemotePtr) -> NodeHeader<'a> {
        NodeHeader { high: Some(middle), sibling, ..self.same() }
    }

    /// A new node from `middle` on.
    fn right<'a>(&'a self, middle: &'a [u8], incarnation: u32) -> NodeHeader<'a> {
        NodeHeader { low: middle, incarnation, node_version: NodeVersion::default(), ..self.same() }
    }
}
