//! Walks a tree at rest, read-only, in key order: windows of nodes in parallel, as a scan does. It judges every node by
//! the path that led to it: that prefixes continue the path's bytes, that no symbol has two slots, that keys lie where
//! they belong, that leaves are whole and no lock is taken.
//!
//! Links are not judged by the parent they name: they may be out of date, and cost a round trip then.
//!
//! It neither uses nor fills the cache.

use std::collections::{BTreeSet, VecDeque};

use farwood_lock::LockWord;
use farwood_runtime::{Buf, Chain, FabricError, Meter, RemotePtr, Verbs};

use super::Tree;
use crate::check::{AddressFault, AtRest, Broken, CheckReport, Link, Violation, in_lines, inside};
use crate::error::AccessError;
use crate::layout::radix::{InnerView, Link as NodeLink, Parent, Slot, Symbol};
use crate::layout::{Bytes, Malformed, Rejection};
use crate::range_index::Pair;
use crate::step::Budget;

/// Nodes that are read in parallel.
const WINDOW: usize = 64;
/// Times that a check reads a torn leaf again. At rest once is enough.
const REREADS: u32 = 8;

/// Walks over the tree ([`Algorithm::walk`](crate::shell::Algorithm::walk)). If writers may be at work a torn leaf is
/// read again for as long as the budget lasts.
pub(super) async fn walk<V: Verbs>(
    tree: &Tree<V>,
    meter: &Meter,
    at_rest: Option<AtRest<'_>>,
    report: &mut CheckReport,
    visit: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<(), AccessError> {
    let walk = Walk {
        tree,
        meter,
        budget: tree.budget(),
        rereads: if at_rest.is_some() { REREADS } else { u32::MAX },
        at_rest,
        visited: BTreeSet::new(),
        queue: VecDeque::new(),
        slots: (0, 0),
        report,
    };
    walk.run(visit).await
}

/// A slot whose node was not read yet.
#[derive(Clone, Debug)]
struct Ahead {
    slot: Slot,
    /// The node that it is of, or the root word.
    from: RemotePtr,
    /// The key bytes that lead there.
    path: Bytes,
    /// True if keys end there.
    ends: bool,
    /// Nodes above.
    depth: u8,
    vain: u32,
}

enum Item {
    Pair(Pair),
    Ahead(Ahead),
}

struct Walk<'t, V: Verbs> {
    tree: &'t Tree<V>,
    meter: &'t Meter,
    budget: Budget,
    rereads: u32,
    at_rest: Option<AtRest<'t>>,
    /// Inner nodes that were read: none is read twice.
    visited: BTreeSet<RemotePtr>,
    queue: VecDeque<Item>,
    /// Slots in use and slots that lead somewhere, of the inner nodes.
    slots: (u64, u64),
    report: &'t mut CheckReport,
}

impl<V: Verbs> Walk<'_, V> {
    async fn run(mut self, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), AccessError> {
        let from = self.tree.shared.entry.root;
        let slot = Slot::from_bits(self.tree.read_word(self.meter, from, &mut self.budget).await?);
        if slot.child().is_some() {
            let path = Bytes::new();
            self.queue.push_back(Item::Ahead(Ahead { slot, from, path, ends: false, depth: 0, vain: 0 }));
        } else if slot != Slot::EMPTY && slot != Slot::tombstone(Symbol::Byte(0)) {
            let rejection = Malformed::RadixSlot { word: slot.bits() }.into();
            self.violation(from, Broken::Unreadable { rejection, from });
        }
        while !self.queue.is_empty() {
            while let Some(Item::Pair(_)) = self.queue.front() {
                let Some(Item::Pair((key, value))) = self.queue.pop_front() else {
                    unreachable!("looked at")
                };
                visit(&key, &value);
            }
            self.read_window().await?;
        }
        if self.slots.0 > 0 {
            self.report.survey.load_factor = self.slots.1 as f64 / self.slots.0 as f64;
        }
        Ok(())
    }

    fn violation(&mut self, node: RemotePtr, broken: Broken) {
        self.report.violations.push(Violation { node, level: None, broken });
    }

    /// Reads the first slots of the queue that are ahead, in parallel: one round trip.
    async fn read_window(&mut self) -> Result<(), AccessError> {
        let (mut taken, mut window) = (Vec::new(), 0);
        while window < WINDOW
            && let Some(item) = self.queue.pop_front()
        {
            window += usize::from(matches!(item, Item::Ahead(_)));
            taken.push(item);
        }
        self.meter.round_trip();
        let posted: Vec<_> = taken.iter().map(|item| self.post(item)).collect();
        let mut items = Vec::with_capacity(taken.len());
        for (item, read) in taken.into_iter().zip(posted) {
            let ahead = match item {
                Item::Ahead(ahead) => ahead,
                Item::Pair(_) => {
                    items.push(item);
                    continue;
                }
            };
            let node = ahead.slot.child().expect("only slots that lead somewhere are ahead").ptr();
            let image = match read.expect("it was posted") {
                Ok((bytes, read)) => match read.await {
                    Ok(done) => Ok(done.into_buf()),
                    Err(failed) => self.fault_of(node, bytes, failed.into()).await?,
                },
                Err(fault) => Err(fault),
            };
            match image {
                Ok(image) => self.judge(ahead, node, &image, &mut items)?,
                Err(fault) => {
                    let broken = Broken::Address { link: Link::Child, to: node, fault };
                    self.violation(ahead.from, broken);
                }
            }
        }
        items.into_iter().rev().for_each(|item| self.queue.push_front(item));
        Ok(())
    }

    /// Posts the READ of a whole node, if one can be there.
    fn post(&self, item: &Item) -> Option<Result<(usize, V::Submission), AddressFault>> {
        let Item::Ahead(Ahead { slot, .. }) = item else { return None };
        let at = slot.child()?.ptr();
        let bytes = match slot.is_leaf() {
            // The lock as well. A class that is none is judged with what is there of it.
            true => self.tree.leaf().leaf_bytes(slot.class().max(1)),
            false => self.tree.types().read_bytes(slot.class().max(1)),
        };
        if let Err(fault) = inside(self.tree.verbs.control().servers(), at, bytes) {
            return Some(Err(fault));
        }
        let mut chain = Chain::with_buffer(at.server(), self.tree.verbs.lease(bytes));
        chain.read(at, 0..bytes);
        Some(Ok((bytes, self.tree.verbs.post(self.meter, chain))))
    }

    /// Reads again after a READ failed, or yields why nothing can be there.
    async fn fault_of(
        &mut self,
        at: RemotePtr,
        bytes: usize,
        cause: FabricError,
    ) -> Result<Result<Buf, AddressFault>, AccessError> {
        match cause {
            FabricError::OutOfBounds { .. } => Ok(Err(AddressFault::OutsideRegion)),
            FabricError::NoSuchServer { .. } => Ok(Err(AddressFault::NoSuchServer)),
            cause if cause.is_passing() => {
                self.tree.read(self.meter, at, bytes, &mut self.budget).await.map(Ok)
            }
            cause => Err(cause.into()),
        }
    }

    fn judge(
        &mut self,
        ahead: Ahead,
        node: RemotePtr,
        image: &[u8],
        items: &mut Vec<Item>,
    ) -> Result<(), AccessError> {
        let judged = match ahead.slot.is_leaf() {
            true => self.judge_leaf(&ahead, node, image, items),
            false => self.judge_inner(&ahead, node, image, items),
        };
        if let Err(rejection) = judged {
            let may_pass = matches!(rejection, Rejection::Torn);
            if may_pass && ahead.vain < self.rereads {
                self.budget.spend(self.meter, node, Some(rejection))?;
                items.push(Item::Ahead(Ahead { vain: ahead.vain + 1, ..ahead }));
            } else if may_pass && self.is_under_dead_lock(&ahead, node, image) {
                self.report.torn.push(node);
                self.report.reach(node, in_lines(self.tree.leaf().leaf_bytes(ahead.slot.class())));
            } else {
                self.violation(node, Broken::Unreadable { rejection, from: ahead.from });
            }
        }
        Ok(())
    }

    /// Tells whether a dead client holds the leaf's lock, and notes it if it is the leaf's own.
    fn is_under_dead_lock(&mut self, ahead: &Ahead, node: RemotePtr, image: &[u8]) -> bool {
        let Some(rest) = &self.at_rest else { return false };
        match self.rear_lock(ahead.slot, image) {
            Some(word) if rest.options.dead.contains(&word.owner()) => {
                let at = node.add(self.tree.leaf().lock_at(ahead.slot.class()) as u64);
                self.report.note_lock(rest.options, at, word)
            }
            Some(_) => false,
            None => rest.exempt.contains(&self.tree.locks.word_of(node)),
        }
    }

    fn rear_lock(&self, slot: Slot, image: &[u8]) -> Option<LockWord> {
        let at = self.tree.leaf().lock_at(slot.class());
        LockWord::from_bits(u64::from_le_bytes(image[at..at + 8].try_into().expect("eight bytes")))
    }

    fn judge_leaf(
        &mut self,
        ahead: &Ahead,
        node: RemotePtr,
        image: &[u8],
        items: &mut Vec<Item>,
    ) -> Result<(), Rejection> {
        let class = self.tree.leaf().class_of(ahead.slot)?;
        let view = self.tree.leaf().view(image)?;
        // Whatever became of it: the slot leads there.
        let bytes = in_lines(self.tree.leaf().leaf_bytes(class));
        match view.link {
            NodeLink::Removed { .. } => {
                self.report.reach(node, bytes);
                return Ok(());
            }
            NodeLink::Moved { to, class } => {
                self.report.reach(node, bytes);
                let slot = Slot::leaf(ahead.slot.symbol(), to, class);
                items.push(Item::Ahead(Ahead { slot, from: node, ..ahead.clone() }));
                return Ok(());
            }
            // A leaf that is new has come into the tree, since a slot leads there.
            NodeLink::Live(_) | NodeLink::New => {}
        }
        let key = view.key()?;
        let value = &image[view.value()?];
        // Once: a torn one is read again.
        self.report.reach(node, bytes);
        let survey = &mut self.report.survey;
        survey.keys += 1;
        survey.leaves += 1;
        survey.used_bytes += bytes;
        survey.height = survey.height.max(ahead.depth.saturating_add(1));
        let in_place = if ahead.ends { key == &ahead.path[..] } else { key.starts_with(&ahead.path) };
        if !in_place {
            let (found, path) = (Bytes::from_slice(key), ahead.path.clone());
            self.violation(node, Broken::OutOfPlace { found, path, from: ahead.from });
        }
        if let Some(rest) = &self.at_rest
            && self.tree.techniques.rear_lock
            && let Some(word) = self.rear_lock(ahead.slot, image)
        {
            let at = node.add(self.tree.leaf().lock_at(class) as u64);
            self.report.note_lock(rest.options, at, word);
        }
        items.push(Item::Pair((Bytes::from_slice(key), Bytes::from_slice(value))));
        Ok(())
    }

    fn judge_inner(
        &mut self,
        ahead: &Ahead,
        node: RemotePtr,
        image: &[u8],
        items: &mut Vec<Item>,
    ) -> Result<(), Rejection> {
        let view = InnerView::new(image, self.tree.types())?;
        let header = view.header;
        if !view.is_whole() {
            let slot = ahead.slot.with_class(header.node_type);
            items.push(Item::Ahead(Ahead { slot, ..ahead.clone() }));
            return Ok(());
        }
        if !self.visited.insert(node) {
            self.violation(node, Broken::ReachedTwice { from: ahead.from });
            return Ok(());
        }
        self.report.reach(node, in_lines(self.tree.types().node_bytes(header.node_type)));
        if view.is_frozen() || !matches!(view.link, NodeLink::Live(Parent::Root | Parent::Node(_))) {
            self.report.unfinished.push(node);
        }
        let (depth, next) = (usize::from(header.depth), ahead.path.len());
        if depth > next {
            self.violation(node, Broken::MissingBytes { depth, next, from: ahead.from });
            return Ok(());
        }
        let mut path = Bytes::from_slice(&ahead.path[..depth]);
        path.extend_from_slice(header.prefix());
        if !path.starts_with(&ahead.path) {
            let (found, path) = (path, ahead.path.clone());
            self.violation(node, Broken::OutOfPlace { found, path, from: ahead.from });
            return Ok(());
        }
        self.count_inner(&view);
        let slots = self.children(node, &view);
        let below = slots.into_iter().map(|slot| {
            let (mut path, symbol) = (path.clone(), slot.symbol());
            if let Symbol::Byte(byte) = symbol {
                path.push(byte);
            }
            let (ends, depth) = (symbol == Symbol::End, ahead.depth.saturating_add(1));
            Item::Ahead(Ahead { slot, from: node, path, ends, depth, vain: 0 })
        });
        items.extend(below);
        Ok(())
    }

    fn count_inner(&mut self, view: &InnerView<'_>) {
        let types = self.tree.types();
        self.report.survey.inner_nodes += 1;
        self.report.survey.used_bytes += in_lines(types.node_bytes(view.header.node_type));
        self.slots.0 += types.slots(view.header.node_type) as u64;
    }

    /// Yields the slots of a node that lead somewhere, ascending; reports those of one symbol.
    fn children(&mut self, node: RemotePtr, view: &InnerView<'_>) -> Vec<Slot> {
        let mut slots: Vec<(usize, Slot)> = view.claimed().map(|(i, slot)| (i, slot.thawed())).collect();
        slots.sort_by_key(|(_, slot)| slot.symbol());
        for pair in slots.windows(2) {
            let [(first, a), (second, b)] = pair else { unreachable!("windows of two") };
            if a.symbol() == b.symbol() {
                self.violation(node, Broken::SymbolTwice { first: *first, second: *second });
            }
        }
        let slots: Vec<Slot> =
            slots.into_iter().map(|(_, slot)| slot).filter(|slot| slot.child().is_some()).collect();
        self.slots.1 += slots.len() as u64;
        slots
    }
}
