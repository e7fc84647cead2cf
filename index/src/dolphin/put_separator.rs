//! Putting a separator into the inner nodes, after the leaf was split: one node after the other, each under its lock in
//! the lock table, and never two at a time, nor a leaf's beside. What is not done yet, or never, costs others
//! round trips and nothing else (`separators.rs`).
//!
//! ```text
//!   a node with room         lock and read            WRITE slots, unlock
//!   new nodes below          lock and read   WRITE them, in parallel   WRITE slot, unlock
//!   a full node              lock and read   WRITE a larger one   WRITE link, unlock   lock above   WRITE slot, unlock
//! ```
//!
//! The link of a node that has moved leads to the one in its place for as long as a client may come there (`out.rs`). A
//! client that comes by with a separator puts that into the slot above, if the one that moved it has not; so it does
//! with the leaf in the place of a needless node (`lead_on.rs`), and goes on at the node above.
//!
//! A split looks for the nodes that change among the cached ones, and reads those on its way that are not: an outdated
//! copy may hide a change, so that a slot leads too far to the left still. The janitor reads them all.
//!
//! A client that is dropped, or that has died, may leave a separator out. The janitor puts in what its own shard owes;
//! else a client that comes to its key's leaf over its neighbour, from under a node that it has just read or for the
//! second time, leaves it to its janitor ([`Tree::arrived`]).

use std::cell::RefCell;
use std::rc::Rc;

use farwood_lock::Held;
use farwood_runtime::{Buf, Chain, Meter, Verbs};
use smallvec::SmallVec;

use super::descend::{Inner, Place, Successor, Unread};
use super::out::Leaving;
use super::separators::{Below, Change, Next, Separator, Way, fork_at, last, leaf_slot, put, type_for};
use super::{DolphinAlgorithm, Tree};
use crate::error::{AccessError, WriteError};
use crate::layout::Rejection;
use crate::layout::radix::{Child, Header, Link, Parent, Slot, Symbol, build_inner, slot_at};
use crate::shell::nodes::NewNodes;
use crate::smart::child_at;
use crate::step::Budget;

/// The shortest time before the janitor looks for a separator that may be missing, in ns; the longest is twice that.
const PAUSE_NS: u64 = 200_000;
/// Time in ns for which one that could not be put in is left alone.
const LEFT_ALONE_NS: u64 = 1_000_000_000;

/// The nodes that a way is planned by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Nodes {
    /// Cached copies, as far as there are some.
    Cached,
    /// READs.
    Read,
}

/// The inner nodes above one, from where the way down began.
pub(super) type Passed = SmallVec<[Unread; 8]>;

/// Leaves whose separators are missing or may be, and nodes that are gone, as far as one shard knows.
#[derive(Default)]
pub(super) struct Suspects {
    /// Those that the janitor sees to, and until when they are left alone.
    begun: RefCell<Vec<(Child, u64)>>,
    /// Those that operations came to over their neighbours, to which cached nodes had led.
    met: RefCell<Vec<Child>>,
}

impl Suspects {
    /// Maximum of leaves; others will be met again.
    const MOST: usize = 32;

    /// Notes that an operation came to `leaf` over its neighbour; false if it was noted before. A client that reads the
    /// node above for another key caches it again, so that no client would ever come by a copy that it has just read.
    fn is_news(&self, leaf: Child) -> bool {
        let mut met = self.met.borrow_mut();
        if met.contains(&leaf) {
            return false;
        }
        if met.len() >= Self::MOST {
            met.clear();
        }
        met.push(leaf);
        true
    }

    /// Notes that the janitor sees to `leaf`; false if it is to be left alone, or there are too many.
    fn begin(&self, leaf: Child, now: u64) -> bool {
        let mut leaves = self.begun.borrow_mut();
        leaves.retain(|(_, until)| *until > now);
        let is_new = leaves.len() < Self::MOST && !leaves.iter().any(|(other, _)| *other == leaf);
        if is_new {
            leaves.push((leaf, u64::MAX));
        }
        is_new
    }

    fn left_alone(&self, leaf: Child, until: u64) {
        self.begun
            .borrow_mut()
            .iter_mut()
            .filter(|(other, _)| *other == leaf)
            .for_each(|entry| entry.1 = until);
    }
}

/// A separator that a split owes: the janitor puts it in if this is dropped before.
#[must_use]
pub(super) struct Owed<V: Verbs> {
    tree: Rc<Tree<V>>,
    separator: Option<Separator>,
}

impl<V: Verbs> Owed<V> {
    pub(super) fn new(tree: &Rc<Tree<V>>, separator: Separator) -> Self {
        Owed { tree: Rc::clone(tree), separator: Some(separator) }
    }

    /// Puts it in. If that fails the leaf stays reachable over its neighbour, and the split has succeeded all the same.
    pub(super) async fn pay(mut self, meter: &Meter) {
        let separator = self.separator.clone().expect("it is paid once");
        let put = self.tree.put_separator(meter, &separator, Nodes::Cached).await;
        self.separator = None;
        if let Err(error) = put {
            is_missing(&error);
        }
    }
}

impl<V: Verbs> Drop for Owed<V> {
    fn drop(&mut self) {
        let Some(separator) = self.separator.take() else { return };
        let tree = Rc::clone(&self.tree);
        self.tree.verbs.defer(async move {
            tracing::debug!(name: "dolphin.separator.owed", "a dropped split has its separator put in");
            let meter = Meter::default();
            // Once the leaf's lock could be taken, the split has taken effect, or never will.
            let put = match tree.settle_leaf(&meter, separator.left).await {
                Ok(Some(end)) if end <= separator.key => {
                    tree.put_separator(&meter, &separator, Nodes::Read).await
                }
                Ok(_) => Ok(()),
                Err(error) => Err(error.into()),
            };
            if let Err(error) = put {
                is_missing(&error);
            }
        });
    }
}

/// Logs that a separator could not be put in.
fn is_missing(error: &WriteError) {
    tracing::debug!(name: "dolphin.separator.missing", %error, "a leaf stays reachable over its neighbour only");
}

impl<V: Verbs> Tree<V> {
    /// Notes that the leaf at `place` has answered for a key. If its neighbour's link led there its separator may be
    /// missing. Of leaves that an operation only passes nothing is noted: they may have slots for keys of their own.
    #[inline]
    pub(super) fn arrived(&self, place: Place) {
        if let Some(separator) = place.over {
            self.arrived_over(place.is_fresh, *separator);
        }
    }

    #[cold]
    fn arrived_over(&self, is_fresh: bool, separator: Separator) {
        if is_fresh || !self.state.suspects.is_news(separator.right) {
            self.suspect(separator);
        }
    }

    /// Leaves it to the janitor to put a separator in that is missing, or about to be put in.
    #[cold]
    fn suspect(&self, separator: Separator) {
        self.see_to_later(separator.right, async move |tree: &Self| {
            tree.put_suspected(separator).await.inspect_err(is_missing)
        });
    }

    /// Leaves it to the janitor to make the slot above an inner node that is gone lead to what took its place, if the
    /// client that has begun to does not.
    #[cold]
    pub(super) fn suspect_gone(&self, gone: Unread, successor: Successor) {
        self.see_to_later(gone.node, async move |tree: &Self| {
            tree.replace_child(&Meter::default(), gone, successor).await
        });
    }

    /// Leaves it to the janitor to see to a leaf or an inner node, in a while: mostly another client is about to. If
    /// that fails it is left alone for longer.
    #[cold]
    pub(super) fn see_to_later<E>(
        &self,
        node: Child,
        work: impl AsyncFnOnce(&Self) -> Result<(), E> + 'static,
    ) {
        let Some(tree) = self.me.upgrade() else { return };
        if !self.state.suspects.begin(node, self.verbs.now()) {
            return;
        }
        self.verbs.defer(async move {
            tree.verbs.pause(PAUSE_NS + tree.verbs.random() % PAUSE_NS).await;
            let until = match work(&tree).await {
                Ok(()) => 0,
                Err(_) => tree.verbs.now() + LEFT_ALONE_NS,
            };
            tree.state.suspects.left_alone(node, until);
        });
    }

    /// Puts a separator in, unless it is there, after a READ of the right leaf, which says where that ends.
    async fn put_suspected(&self, separator: Separator) -> Result<(), WriteError> {
        let (meter, right) = (Meter::default(), separator.right);
        // One that was merged meanwhile has no slot.
        let Ok(image) = self.read_leaf(&meter, right, &mut self.budget()).await? else { return Ok(()) };
        let view = self.leaf().parsed(&image);
        let (low, high) = view.bounds();
        if low != separator.key && view.is_reused() {
            return Ok(());
        }
        if low != separator.key {
            // The leaf before is damaged: no slot is to lead where its link does.
            let what = format!("it begins at {low:?}, and the leaf before ends at {:?}", separator.key);
            return Err(AccessError::corrupt(right.ptr(), what).into());
        }
        self.put_separator(&meter, &Separator { high, ..separator }, Nodes::Read).await
    }

    /// Tells whether a node, about the key byte at `position`, still needs a slot for a separator that may come late,
    /// by a READ of the right leaf. `None` if that is being written or merged: the node's lock is held, so nothing is
    /// waited for.
    async fn is_called_for(
        &self,
        meter: &Meter,
        (way, position): (Way, usize),
        separator: &Separator,
        budget: &mut Budget,
    ) -> Result<Option<bool>, AccessError> {
        let node = separator.right.ptr();
        let read = self.fetch_leaf(meter, node, budget).await?;
        let is_slow = self.is_slow(&read);
        match self.leaf().parse(&read.into_buf()) {
            Ok(view) if !is_slow => {
                let (low, high) = view.bounds();
                let is_in = way == Way::Key || !separator.is_beyond(position, high.as_deref());
                Ok(Some(is_in && low == separator.key))
            }
            Ok(_) | Err(Rejection::Torn | Rejection::Frozen) => Ok(None),
            Err(Rejection::Freed) => Ok(Some(false)),
            Err(rejection) => Err(AccessError::corrupt(node, rejection)),
        }
    }

    /// Puts a separator in, unless it is there.
    async fn put_separator(
        &self,
        meter: &Meter,
        separator: &Separator,
        nodes: Nodes,
    ) -> Result<(), WriteError> {
        let mut budget = self.budget();
        let budget = &mut budget;
        let Some(root) = self.read_root(meter, budget).await? else { return Ok(()) };
        let root = self.unread_root(root);
        let fork = self.go_down(meter, separator, Way::Key, (root, nodes), budget).await?;
        if let Some(fork) = fork {
            self.go_down(meter, separator, Way::High, (fork, nodes), budget).await?;
        }
        Ok(())
    }

    /// Goes down with a separator, and changes the nodes on its way. Yields where its other way begins.
    async fn go_down(
        &self,
        meter: &Meter,
        separator: &Separator,
        way: Way,
        (mut at, nodes): (Unread, Nodes),
        budget: &mut Budget,
    ) -> Result<Option<Unread>, WriteError> {
        let (mut fork, mut passed) = (None, Passed::new());
        loop {
            let cached = (nodes == Nodes::Cached).then(|| self.cached_inner(at)).flatten();
            let inner = match cached {
                Some(inner) => inner,
                None => self.read_and_cache(meter, at, budget).await?,
            };
            let below = |slot| at.below(inner.position, slot).expect("it leads to an inner node");
            if way == Way::Key {
                fork = fork.or(separator.fork(&inner.slots, inner.position).map(below));
            }
            let next = match next_of(&inner, separator, way) {
                Ok(next) => next,
                Err(_) => self.change_inner(meter, at, separator, way, budget).await?,
            };
            match next {
                Visit::Done => return Ok(fork),
                Visit::Again => budget.spend(meter, at.node.ptr(), None)?,
                Visit::Down(slot) => {
                    passed.push(at);
                    at = below(slot);
                }
                // If its other way began here, that has nothing to change now.
                Visit::Gone(successor) => {
                    match self.past_gone(meter, at, successor, &mut passed, budget).await? {
                        Some(on) => at = on,
                        None => return Ok(fork),
                    }
                }
            }
        }
    }

    /// Changes a node under its lock, as the separator calls for then.
    async fn change_inner(
        &self,
        meter: &Meter,
        at: Unread,
        separator: &Separator,
        way: Way,
        budget: &mut Budget,
    ) -> Result<Visit, WriteError> {
        let (bytes, fused) = (self.inner_bytes(at)?, self.techniques.fused);
        let (held, image) = self.lock_and_read(meter, at.node.ptr(), bytes, fused).await?;
        let inner = match self.judge_inner(at, &image) {
            Ok(inner) => inner,
            Err(error) => {
                held.unlock(meter).await?;
                return Err(error.into());
            }
        };
        let change = match next_of(&inner, separator, way) {
            Err(change) => change,
            Ok(visit) => {
                held.unlock(meter).await?;
                self.cache_unmoved(at, &inner);
                return Ok(visit);
            }
        };
        if separator.may_be_late(&inner.slots, change) {
            // Under the lock: a client that splits the right leaf from now on changes this node afterwards.
            tracing::debug!(name: "dolphin.separator.late", node = %at.node.ptr(), "a leaf is asked for its end");
            let is_called_for = self.is_called_for(meter, (way, inner.position), separator, budget).await;
            if !matches!(is_called_for, Ok(Some(true))) {
                held.unlock(meter).await?;
                if is_called_for?.is_none() {
                    self.suspect(separator.clone());
                }
                return Ok(Visit::Done);
            }
        }
        if change == Change::LeadOn {
            let prefix = separator.prefix(way, inner.position);
            self.lead_slots_on(meter, (held, inner), (at, prefix), Some(&separator.lead_on())).await?;
            return Ok(Visit::Again);
        }
        let mut nodes = self.new_nodes();
        let new = match self.new_slot(meter, &mut nodes, separator, (change, at, &inner), budget).await {
            Ok(new) => new,
            Err(error) => {
                held.unlock(meter).await?;
                return Err(error);
            }
        };
        let mut changed = inner;
        let place = put(&mut changed.slots, new);
        if changed.slots.len() > self.types().room(at.class) {
            return self.move_inner(meter, held, at, &changed, nodes, budget).await;
        }
        let mut chain = Chain::new(at.node.ptr().server());
        chain.write_word(at.node.ptr().add(slot_at(place)), new.bits());
        nodes.publish();
        held.release(meter, chain, true).await?;
        self.cache_node(at, &changed);
        Ok(match (way, next_of(&changed, separator, way)) {
            (_, Err(_)) => Visit::Again,
            (Way::Key, Ok(_)) => Visit::Done,
            (Way::High, Ok(visit)) => visit,
        })
    }

    /// Yields the slot that a node gets. Nodes below it are written first, all in one round trip: no client can come to
    /// one before the slot is there.
    async fn new_slot(
        &self,
        meter: &Meter,
        nodes: &mut NewNodes<'_, DolphinAlgorithm, V>,
        separator: &Separator,
        (change, at, inner): (Change, Unread, &Inner),
        budget: &mut Budget,
    ) -> Result<Slot, WriteError> {
        let (symbol, below) = match change {
            Change::Put(symbol) => return Ok(leaf_slot(symbol, separator.right)),
            Change::Branch { symbol, below } => (symbol, below),
            Change::LeadOn => unreachable!("it makes no slot"),
        };
        let below = match below {
            Below::Leaf(leaf) => leaf,
            Below::Last(slot) => self.last_leaf(meter, at.below(inner.position, slot), budget).await?,
        };
        tracing::debug!(name: "dolphin.node.new", position = inner.position + 1, "a leaf gets inner nodes of its own");
        let mut slot = leaf_slot(Symbol::of(&separator.key, separator.key.len() - 1), separator.right);
        let mut images = Vec::new();
        for position in (inner.position + 1..separator.key.len()).rev() {
            let (class, image) = self.inner_image(position, &fork_at(below, slot));
            let node = nodes.allocate(None, image.len()).await?;
            images.push((node, image));
            slot = Slot::inner(Symbol::Byte(separator.key[position - 1]), child_at(node)?, class);
        }
        nodes.write_all(meter, images, budget).await?;
        debug_assert!(slot.is_of(symbol));
        Ok(slot)
    }

    /// Finds the last leaf below a slot that leads to an inner node: a round trip for each level.
    async fn last_leaf(
        &self,
        meter: &Meter,
        below: Option<Unread>,
        budget: &mut Budget,
    ) -> Result<Child, WriteError> {
        let mut at = below.expect("it leads to an inner node");
        tracing::debug!(name: "dolphin.separator.last", node = %at.node.ptr(), "the leaf before has no slot yet");
        loop {
            let inner = self.read_inner(meter, at, budget).await?;
            if let Some(successor) = inner.successor {
                budget.spend(meter, at.node.ptr(), None)?;
                self.forget_gone(at);
                match successor {
                    Successor::Node(node, class) => at = Unread { node, class, ..at },
                    Successor::Leaf(leaf) => return Ok(leaf),
                }
                continue;
            }
            let slot = last(&inner.slots).and_then(|slot| Some((slot, at.below(inner.position, slot)?)));
            match slot {
                Some((slot, leaf)) if slot.is_leaf() => return Ok(leaf.node),
                Some((_, inner)) => at = inner,
                None => return Err(AccessError::corrupt(at.node.ptr(), "it has no slots").into()),
            }
        }
    }

    /// Writes a new inner node: one round trip. Yields its address and type.
    async fn write_inner(
        &self,
        meter: &Meter,
        nodes: &mut NewNodes<'_, DolphinAlgorithm, V>,
        position: usize,
        slots: &[Slot],
        budget: &mut Budget,
    ) -> Result<(Child, u8), WriteError> {
        let (class, image) = self.inner_image(position, slots);
        let node = nodes.write(meter, image, budget).await?;
        Ok((child_at(node)?, class))
    }

    /// Makes the type and the image of an inner node.
    fn inner_image(&self, position: usize, slots: &[Slot]) -> (u8, Buf) {
        let class = type_for(self.types(), slots.len()).expect("there is a type for all symbols");
        let mut image = self.verbs.lease(self.types().node_bytes(class));
        let header = Header::new(position, class, b"");
        build_inner(&mut image, Link::Live(Parent::Root), &header, slots.iter().copied());
        (class, image)
    }

    /// Writes a node into more room than it had, and leaves a link to it.
    async fn move_inner(
        &self,
        meter: &Meter,
        held: Held<V>,
        at: Unread,
        changed: &Inner,
        mut nodes: NewNodes<'_, DolphinAlgorithm, V>,
        budget: &mut Budget,
    ) -> Result<Visit, WriteError> {
        let written = self.write_inner(meter, &mut nodes, changed.position, &changed.slots, budget).await;
        let (node, class) = match written {
            Ok(written) => written,
            Err(error) => {
                held.unlock(meter).await?;
                return Err(error);
            }
        };
        tracing::debug!(name: "dolphin.node.grown", node = %at.node.ptr(), "an inner node moves to more room");
        let mut chain = Chain::new(at.node.ptr().server());
        let successor = Successor::Node(node, class);
        chain.write_word(at.node.ptr(), successor.link().bits());
        nodes.publish();
        held.release(meter, chain, true).await?;
        self.cache_node(Unread { node, class, ..at }, changed);
        Ok(Visit::Gone(successor))
    }

    /// Makes the slot above a node that is gone lead to what took its place. Yields the inner node to go on at: that
    /// one, or the last one that was passed. None if there is none.
    pub(super) async fn past_gone(
        &self,
        meter: &Meter,
        gone: Unread,
        successor: Successor,
        passed: &mut Passed,
        budget: &mut Budget,
    ) -> Result<Option<Unread>, AccessError> {
        budget.spend(meter, gone.node.ptr(), None)?;
        self.forget_gone(gone);
        self.replace_child(meter, gone, successor).await?;
        Ok(match successor {
            Successor::Node(node, class) => Some(Unread { node, class, ..gone }),
            Successor::Leaf(_) => passed.pop(),
        })
    }

    /// Makes the slot above a node that is gone lead to what took its place.
    async fn replace_child(
        &self,
        meter: &Meter,
        at: Unread,
        successor: Successor,
    ) -> Result<(), AccessError> {
        let Some(above) = at.above else { return Ok(()) };
        let (ptr, bytes) = (above.node.ptr(), self.types().node_bytes(above.class));
        let (held, image) = self.lock_and_read(meter, ptr, bytes, self.techniques.fused).await?;
        let inner = Inner::parse(self, &image).map_err(|wrong| AccessError::corrupt(ptr, wrong));
        let place = match &inner {
            Ok(inner) => inner.slots.iter().position(|slot| slot.is_inner() && slot.child() == Some(at.node)),
            Err(_) => None,
        };
        // If the node above is gone as well, this is left to the next client that comes by.
        let (Ok(mut inner), Some(index)) = (inner, place) else { return Ok(held.unlock(meter).await?) };
        if inner.successor.is_some() {
            return Ok(held.unlock(meter).await?);
        }
        inner.slots[index] = successor.slot(inner.slots[index].symbol());
        let mut chain = Chain::new(ptr.server());
        chain.write_word(ptr.add(slot_at(index)), inner.slots[index].bits());
        let leaving = Leaving::new(self, at, ptr);
        held.release(meter, chain, true).await?;
        leaving.retire();
        self.cache_node(Unread { node: above.node, class: above.class, above: None }, &inner);
        Ok(())
    }
}

/// Yields where a separator goes on after a node that it leaves as it is, or else how it changes it.
fn next_of(inner: &Inner, separator: &Separator, way: Way) -> Result<Visit, Change> {
    if let Some(successor) = inner.successor {
        return Ok(Visit::Gone(successor));
    }
    match separator.plan(way, &inner.slots, inner.position) {
        Next::Done => Ok(Visit::Done),
        Next::Down(slot) => Ok(Visit::Down(slot)),
        Next::Change(change) => Err(change),
    }
}

/// A separator's way after a node.
enum Visit {
    Done,
    /// On in the same node, which has changed.
    Again,
    /// On in this inner node.
    Down(Slot),
    /// The node is gone: on in what took its place.
    Gone(Successor),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_separator_is_seen_to_once_and_left_alone_after_a_failure() {
        let (suspects, leaf) = (Suspects::default(), |n: u64| Child::of(n + 1).unwrap());
        assert!(suspects.begin(leaf(0), 5) && !suspects.begin(leaf(0), 1 << 60));
        suspects.left_alone(leaf(0), 100);
        assert!(!suspects.begin(leaf(0), 99) && suspects.begin(leaf(0), 100));
        suspects.left_alone(leaf(0), 0);
        assert!((0..Suspects::MOST as u64).all(|n| suspects.begin(leaf(n), 101)));
        assert!(!suspects.begin(leaf(1000), 101), "there are too many");
    }

    #[test]
    fn what_was_met_is_met_again_and_makes_room() {
        let (suspects, leaf) = (Suspects::default(), |n: u64| Child::of(n + 1).unwrap());
        assert!(suspects.is_news(leaf(0)) && !suspects.is_news(leaf(0)));
        assert!((1..1000).all(|n| suspects.is_news(leaf(n))), "those before are forgotten");
        assert!(suspects.is_news(leaf(0)));
    }
}
