//! Marks the memory that a radix tree reaches, while clients work. How lost memory is found then is not known here
//! (`shell/sweep.rs`).
//!
//! A node's position and the bytes before it never change, nor does a leaf's key, and a symbol has one slot. So the
//! walk goes by *regions*: the keys that begin with some bytes. Below the slot that led to a region is, at any time,
//! the topmost node of it or one above, which was put in between; and what is in the tree all the while is below that
//! all the while.
//!
//! ```text
//!   node of "a", slots b, c    ──>  regions "ab", "ac"
//!   "ab" later: root ─> "a" ─> what its slot b leads to by then   marked, with the leaves below; regions for others
//! ```

use farwood_runtime::{Chain, Meter, RemotePtr, Verbs};

use super::Tree;
use crate::check::in_lines;
use crate::error::AccessError;
use crate::layout::Bytes;
use crate::layout::radix::{InnerView, Link, Slot, Symbol};
use crate::memory::Marks;
use crate::step::Budget;

/// Inner nodes that are read in one epoch, before the next one is looked for from the root again.
const NODES_OF_ONE_PIN: usize = 256;
/// Leaves that are read in parallel: few, since others wait for the same queue pairs.
const LEAVES_AT_ONCE: usize = 16;

/// Times that a region is looked for which nodes have come above meanwhile.
const VAIN_MAX: u32 = 1_000;

/// A region that is still to be marked.
struct Ahead {
    path: Bytes,
    vain: u32,
}

/// This node begins behind the bytes that have led to it: another one was put in above, meanwhile.
struct Moved(RemotePtr);

/// A slot, and the key bytes that lead to it.
type Region = (Slot, Bytes);

/// Marks all nodes and leaves ([`Algorithm::mark`](crate::shell::Algorithm::mark)).
pub(super) async fn mark<V: Verbs>(
    tree: &Tree<V>,
    meter: &Meter,
    marks: &mut Marks,
) -> Result<bool, AccessError> {
    let mut ahead = vec![Ahead { path: Bytes::new(), vain: 0 }];
    while let Some(Ahead { path, vain }) = ahead.pop() {
        let _pin = tree.verbs.pins().pin();
        let walk = Walk { tree, meter, budget: tree.budget(), marks };
        if let Err(Moved(node)) = walk.region(&path, &mut ahead).await? {
            if vain == VAIN_MAX {
                let what = format!("its header begins behind {path:?}, which leads there");
                return Err(AccessError::corrupt(node, what));
            }
            tracing::debug!(name: "smart.mark.again", %node, "a node has come in between, and is looked for");
            ahead.push(Ahead { path, vain: vain + 1 });
        }
    }
    Ok(true)
}

/// A walk over one region, within one epoch.
struct Walk<'t, V: Verbs> {
    tree: &'t Tree<V>,
    meter: &'t Meter,
    budget: Budget,
    marks: &'t mut Marks,
}

/// An inner node, as far as it leads somewhere.
struct Inner {
    /// The key bytes that all keys below it begin with.
    path: Bytes,
    slots: Vec<Slot>,
}

impl<V: Verbs> Walk<'_, V> {
    /// Marks what is below the keys that begin with `path`, and adds regions of it that are still to be marked.
    async fn region(mut self, path: &[u8], ahead: &mut Vec<Ahead>) -> Result<Result<(), Moved>, AccessError> {
        let top = match self.find(path).await? {
            Ok(Some(top)) => top,
            found => return Ok(found.map(drop)),
        };
        let (mut regions, mut nodes) = (vec![top], 0);
        while let Some((slot, path)) = regions.pop() {
            if slot.is_leaf() {
                self.leaves(&[slot]).await?;
                continue;
            }
            if nodes == NODES_OF_ONE_PIN {
                ahead.push(Ahead { path, vain: 0 });
                continue;
            }
            nodes += 1;
            let inner = match self.inner(slot, &path).await? {
                Ok(inner) => inner,
                Err(moved) => return Ok(Err(moved)),
            };
            let (leaves, below): (Vec<Slot>, Vec<Slot>) = inner.slots.iter().partition(|slot| slot.is_leaf());
            for some in leaves.chunks(LEAVES_AT_ONCE) {
                self.leaves(some).await?;
            }
            regions.extend(below.into_iter().map(|slot| (slot, below_of(&inner.path, slot))));
        }
        Ok(Ok(()))
    }

    /// Finds what leads to the topmost node of a region, from the root word on; none if nothing is there. Marks the
    /// nodes on the way, too.
    async fn find(&mut self, path: &[u8]) -> Result<Result<Option<Region>, Moved>, AccessError> {
        let root = self.tree.shared.entry.root;
        let word = self.tree.read_word(self.meter, root, &mut self.budget).await?;
        let (mut slot, mut so_far) = (Slot::from_bits(word).thawed(), Bytes::new());
        loop {
            if slot.child().is_none() {
                return Ok(Ok(None));
            }
            if slot.is_leaf() || so_far.len() >= path.len() {
                return Ok(Ok(Some((slot, so_far))));
            }
            let inner = match self.inner(slot, &so_far).await? {
                Ok(inner) => inner,
                Err(moved) => return Ok(Err(moved)),
            };
            if inner.path.len() >= path.len() {
                return Ok(Ok(Some((slot, so_far))));
            }
            let symbol = Symbol::Byte(path[inner.path.len()]);
            let next = inner.slots.iter().find(|slot| slot.symbol() == symbol);
            let Some(next) = next else { return Ok(Ok(None)) };
            (slot, so_far) = (*next, below_of(&inner.path, *next));
        }
    }

    /// Reads an inner node to which `path` has led, and marks it. Where it has moved down what it leads to is not known
    /// of this region.
    async fn inner(&mut self, slot: Slot, path: &[u8]) -> Result<Result<Inner, Moved>, AccessError> {
        let (types, node) = (self.tree.types(), slot.child().expect("it leads somewhere").ptr());
        let mut class = slot.class().max(1);
        loop {
            let image = self.tree.read(self.meter, node, types.read_bytes(class), &mut self.budget).await?;
            let view = match InnerView::new(&image, types) {
                Ok(view) => view,
                Err(rejection) => {
                    self.budget.spend(self.meter, node, Some(rejection))?;
                    continue;
                }
            };
            if !view.is_whole() {
                class = view.header.node_type;
                continue;
            }
            self.marks.reach(node, in_lines(types.node_bytes(view.header.node_type)));
            let depth = usize::from(view.header.depth);
            let Some(before) = path.get(..depth) else { return Ok(Err(Moved(node))) };
            let mut path = Bytes::from_slice(before);
            path.extend_from_slice(view.header.prefix());
            let slots = view.claimed().map(|(_, slot)| slot.thawed()).filter(|slot| slot.child().is_some());
            return Ok(Ok(Inner { path, slots: slots.collect() }));
        }
    }

    /// Marks the leaves to which slots lead, and those that have taken their places: a round trip for all, and one for
    /// each that has moved.
    async fn leaves(&mut self, slots: &[Slot]) -> Result<(), AccessError> {
        let tree = self.tree;
        self.meter.round_trip();
        let post = |slot: &Slot| {
            let leaf = slot.child().expect("it leads somewhere").ptr();
            let mut chain = Chain::with_buffer(leaf.server(), tree.verbs.lease(8));
            chain.read(leaf, 0..8);
            (leaf, slot.class(), tree.verbs.post(self.meter, chain))
        };
        let posted: Vec<_> = slots.iter().map(post).collect();
        for (leaf, class, read) in posted {
            let image = match read.await {
                Ok(done) => done.into_buf(),
                Err(_) => tree.read(self.meter, leaf, 8, &mut self.budget).await?,
            };
            self.leaf(leaf, class, link_of(&image)).await?;
        }
        Ok(())
    }

    async fn leaf(&mut self, leaf: RemotePtr, class: u8, link: Option<Link>) -> Result<(), AccessError> {
        let (mut leaf, mut class, mut link) = (leaf, class, link);
        loop {
            self.marks.reach(leaf, in_lines(self.tree.leaf().leaf_bytes(class.max(1))));
            let Some(Link::Moved { to, class: of }) = link else { return Ok(()) };
            self.budget.spend(self.meter, leaf, None)?;
            (leaf, class) = (to.ptr(), of);
            link = link_of(&self.tree.read(self.meter, leaf, 8, &mut self.budget).await?);
        }
    }
}

/// Yields the key bytes that lead to what is below a slot.
fn below_of(path: &[u8], slot: Slot) -> Bytes {
    let mut below = Bytes::from_slice(path);
    if let Symbol::Byte(byte) = slot.symbol() {
        below.push(byte);
    }
    below
}

/// Yields the link with which an image begins.
fn link_of(image: &[u8]) -> Option<Link> {
    Link::from_bits(u64::from_le_bytes(image[..8].try_into().expect("eight bytes"))).ok()
}
