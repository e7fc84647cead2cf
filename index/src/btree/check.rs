//! Walks a tree at rest, read-only: level by level from the root, along sibling pointers, one node per round trip. It
//! does the reading; `observed_node.rs` and the format of leaves judge a node by itself, `check/level.rs` by its
//! neighbours and parents.
//!
//! It neither uses nor fills the cache.

mod level;

use std::collections::BTreeSet;

use farwood_lock::LockWord;
use farwood_runtime::{Buf, FabricError, Meter, RemotePtr, Verbs};

use self::level::{Level, Step};
use super::observed_node::{Depth, ObservedNode};
use super::root::parse_root;
use super::{BTree, LeafFormat, WholeLeaf};
use crate::check::{AddressFault, AtRest, Broken, CheckOptions, CheckReport, Link, Violation, inside};
use crate::error::AccessError;
use crate::layout::{Glimpse, Kind, LINE_BYTES, Malformed, Rejection, glimpse, kind_of};
use crate::shell::handle::Local;
use crate::step::Budget;

/// Rereads of a torn node by a check. At rest one is enough, unless a READ took too long.
const REREADS: u32 = 8;

/// Walks over the tree ([`Algorithm::walk`](crate::shell::Algorithm::walk)): judges fences, levels, siblings, children
/// and versions.
pub(crate) async fn walk<A: BTree, V: Verbs>(
    tree: &Local<A, V>,
    meter: &Meter,
    at_rest: Option<AtRest<'_>>,
    report: &mut CheckReport,
    visit: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<(), AccessError> {
    let policy = match at_rest {
        Some(AtRest { exempt, options }) => {
            CheckPolicy { depth: Depth::Entries, rereads: REREADS, exempt, options: Some(options) }
        }
        // Writers may be at work: a torn node is read again for as long as the budget lasts.
        None => {
            CheckPolicy { depth: Depth::Shape, rereads: u32::MAX, exempt: BTreeSet::new(), options: None }
        }
    };
    Walk::new(tree, meter, policy, report).run(visit).await
}

/// Depth of a walk, and what it tolerates.
struct CheckPolicy<'t> {
    depth: Depth,
    /// Rereads of one torn node; those of all nodes together are bounded by the budget of an operation.
    rereads: u32,
    /// Lock words under which nodes may be torn.
    exempt: BTreeSet<RemotePtr>,
    /// Tolerance for locks within leaves; none if they do not matter.
    options: Option<&'t CheckOptions>,
}

/// A walk over all nodes.
struct Walk<'t, A: BTree, V: Verbs> {
    tree: &'t Local<A, V>,
    meter: &'t Meter,
    policy: CheckPolicy<'t>,
    budget: Budget,
    /// Bytes of blocks that leaves lead to.
    block_bytes: u64,
    /// All nodes that were read: none is read twice.
    visited: BTreeSet<RemotePtr>,
    report: &'t mut CheckReport,
}

/// Result of following a node's address.
enum Look {
    Seen(ObservedNode, Option<(usize, LockWord)>),
    Rejected(Rejection, Option<Glimpse>, Option<(usize, LockWord)>),
    Nowhere(AddressFault),
}

impl<'t, A: BTree, V: Verbs> Walk<'t, A, V> {
    fn new(
        tree: &'t Local<A, V>,
        meter: &'t Meter,
        policy: CheckPolicy<'t>,
        report: &'t mut CheckReport,
    ) -> Self {
        Walk { tree, meter, policy, budget: tree.budget(), block_bytes: 0, visited: BTreeSet::new(), report }
    }

    /// Walks, and adds to the report what it finds.
    async fn run(mut self, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), AccessError> {
        let mut next = self.root().await?;
        if let Some(root) = &next {
            self.report.survey.height = root.number().saturating_add(1);
        }
        while let Some(mut level) = next {
            loop {
                self.pass_over_freed(&mut level).await?;
                let Some(start) = level.next_start(&self.visited, self.report) else { break };
                let mut step = Some(start);
                while let Some(here) = step {
                    step = self.step(&mut level, &here, visit).await?;
                }
            }
            level.finish(&self.visited, self.report);
            next = level.into_below();
        }
        self.sum_up();
        Ok(())
    }

    /// Takes separators for missing ones that lead to freed nodes, or to frozen ones to which no neighbour leads: what
    /// is left of a merge whose client died. One round trip for each.
    async fn pass_over_freed(&mut self, level: &mut Level) -> Result<(), AccessError> {
        let number = level.number();
        for (separator, node) in level.open_claims(&self.visited) {
            if self.is_freed(number, node).await? {
                level.forget(&separator);
            }
        }
        Ok(())
    }

    /// Tells whether no node of the tree is there, but one of that level that was merged: its memory is not lost, since
    /// its parent leads there. One round trip.
    async fn is_freed(&mut self, level: u8, node: RemotePtr) -> Result<bool, AccessError> {
        let Ok((line, _)) = self.read(node, LINE_BYTES).await? else { return Ok(false) };
        let is_freed = matches!(kind_of(&line), Err(Rejection::Freed | Rejection::Frozen));
        if is_freed {
            tracing::debug!(name: "btree.check.freed", %node, "a freed node is still linked");
            self.report.led_to.add(node, self.tree.node_bytes(level) as u64);
        }
        Ok(is_freed)
    }

    /// Yields the level that the root word leads to; none if the tree has no node or the word leads nowhere.
    async fn root(&mut self) -> Result<Option<Level>, AccessError> {
        let at = self.tree.shared.entry.root;
        let word = self.tree.read_word(self.meter, at, &mut self.budget).await?;
        let Some(root) = parse_root(word) else { return Ok(None) };
        let image = match self.read(root.ptr, LINE_BYTES).await? {
            Ok((image, _)) => image,
            Err(fault) => {
                let broken = Broken::Address { link: Link::Root, to: root.ptr, fault };
                self.report.violations.push(Violation { node: at, level: None, broken });
                return Ok(None);
            }
        };
        // Going down from a level that the root is not of would find every node to be of a wrong one.
        let said =
            self.glimpse(root.level, &image).filter(|said| (said.level == 0) == (said.kind == Kind::Leaf));
        let level = said.map_or(root.level, |said| said.level);
        if level != root.level {
            let broken = Broken::RootLevel { word: root.level, found: level };
            self.report.violations.push(Violation { node: root.ptr, level: Some(level), broken });
        }
        Ok(Some(Level::top(level, at, root.ptr)))
    }

    /// Reads one node and judges it; yields the next one.
    async fn step(
        &mut self,
        level: &mut Level,
        step: &Step,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<Option<Step>, AccessError> {
        let (node, number) = (step.to, level.number());
        let look = self.look(number, node).await?;
        Ok(match look {
            Look::Nowhere(fault) => {
                level.astray(step, fault, self.report);
                None
            }
            Look::Rejected(rejection, glimpse, lock) => {
                let exempt = self.is_exempt(node, lock);
                self.visited.insert(node);
                self.report.reach(node, self.tree.node_bytes(number) as u64);
                if rejection == Rejection::Torn {
                    self.count(number, 0);
                }
                level.lost(step, (rejection, glimpse), exempt, &self.visited, self.report)
            }
            Look::Seen(seen, lock) => {
                let exempt = self.is_exempt(node, lock);
                self.visited.insert(node);
                self.report.reach(node, self.tree.node_bytes(number) as u64);
                seen.blocks.iter().for_each(|(block, bytes)| self.report.reach(*block, *bytes));
                self.count(number, seen.keys);
                self.block_bytes += seen.block_bytes;
                self.report_faults(number, node, &seen, exempt);
                seen.pairs.iter().for_each(|(key, value)| visit(key, value));
                if let Some(other) = level.claimed_instead(node, &seen.low)
                    && self.is_freed(number, other).await?
                {
                    level.forget(&seen.low);
                }
                level.meet(step, &seen, &self.visited, self.report)
            }
        })
    }

    /// Tells whether a dead client holds the node's lock, which may be within it.
    fn is_exempt(&mut self, node: RemotePtr, lock: Option<(usize, LockWord)>) -> bool {
        match (self.policy.options, lock) {
            (Some(options), Some((at, word))) => self.report.note_lock(options, node.add(at as u64), word),
            _ => self.policy.exempt.contains(&self.tree.locks.word_of(node)),
        }
    }

    /// Reads a node until it can be trusted, or the rereads are spent. One round trip per attempt.
    async fn look(&mut self, level: u8, node: RemotePtr) -> Result<Look, AccessError> {
        let bytes = self.tree.node_bytes(level);
        for attempt in 0.. {
            let (mut image, span_ns) = match self.read(node, bytes).await? {
                Ok(read) => read,
                Err(fault) => return Ok(Look::Nowhere(fault)),
            };
            let mut seen = self.tree.sight(level, &image, self.policy.depth);
            if let Err(Rejection::Frozen) = &seen {
                // Its left neighbour leads here, or the root word: it is one of the tree, and thaws when it is met.
                self.tree.format(level).thaw(&mut image);
                seen = self.tree.sight(level, &image, self.policy.depth);
            }
            if let (0, Ok(seen)) = (level, &mut seen) {
                self.look_into_blocks(&image, seen).await?;
            }
            let good =
                seen.as_ref().is_ok_and(|seen| !seen.has_torn_entry()) && self.is_timely(level, span_ns);
            let last = seen.as_ref().err().copied();
            let may_pass = matches!(last, None | Some(Rejection::Torn | Rejection::Malformed(_)));
            let again = !good && may_pass && attempt < self.policy.rereads;
            if !again || self.budget.spend(self.meter, node, last).is_err() {
                // A READ that took too long but fits together is taken as it is in the end: at rest there are no
                // writers.
                let lock = if level == 0 { self.tree.leaf().lock(&image) } else { None };
                return Ok(match seen {
                    Ok(seen) => Look::Seen(seen, lock),
                    Err(rejection) => Look::Rejected(rejection, self.glimpse(level, &image), lock),
                });
            }
        }
        unreachable!("patience ends")
    }

    /// Reads the blocks of a leaf's pairs, where these lie outside of it, and judges them: one round trip.
    async fn look_into_blocks(&mut self, image: &[u8], seen: &mut ObservedNode) -> Result<(), AccessError> {
        let tree = self.tree;
        let (Depth::Entries, Some(format)) = (self.policy.depth, tree.leaf().blocks()) else { return Ok(()) };
        let blocks = tree.leaf().view(image).and_then(|leaf| Ok((leaf.blocks()?, leaf)));
        let (mut blocks, leaf) = match blocks {
            Ok(found) => found,
            Err(rejection) => {
                seen.faults.push(Broken::Entry(rejection));
                return Ok(());
            }
        };
        let servers = tree.verbs.control().servers();
        blocks.retain(|(slot, block)| {
            let fault = inside(servers, block.address(), format.bytes(*block)).err();
            if fault.is_some() {
                let what = format!("the entry in slot {slot} leads to no block, but to {}", block.address());
                seen.faults.push(Broken::Rule { what });
            }
            fault.is_none()
        });
        seen.blocks =
            blocks.iter().map(|(_, block)| (block.address(), format.bytes(*block) as u64)).collect();
        let reads = tree.post_pairs(self.meter, &blocks);
        if !reads.is_empty() {
            self.meter.round_trip();
        }
        for (slot, pair) in
            tree.parse_blocks(self.meter, reads, &mut self.budget, |block| block.pair()).await?
        {
            match pair {
                Ok((key, _)) if !leaf.leads_to(slot, &key) => {
                    seen.faults.push(Broken::Entry(Malformed::BlockKey { slot }.into()));
                }
                Ok(pair) => seen.pairs.push(pair),
                Err(rejection) => seen.faults.push(Broken::Entry(rejection)),
            }
        }
        seen.judge_pairs();
        Ok(())
    }

    /// Reads what the first line alone says of a node that should be of that level.
    fn glimpse(&self, level: u8, image: &[u8]) -> Option<Glimpse> {
        let said = if level == 0 { self.tree.leaf().glimpse(image) } else { glimpse(image) };
        said.ok()
    }

    /// Tells whether a READ of that duration was too short for a version to wrap around.
    fn is_timely(&self, level: u8, span_ns: u32) -> bool {
        match self.policy.depth {
            Depth::Shape => self.tree.node_version_holds(level, span_ns),
            Depth::Entries => self.tree.entry_version_holds(level, span_ns),
        }
    }

    /// Reads `bytes` bytes at an address that may be wrong: one round trip.
    async fn read(
        &mut self,
        at: RemotePtr,
        bytes: usize,
    ) -> Result<Result<(Buf, u32), AddressFault>, AccessError> {
        if let Err(fault) = inside(self.tree.verbs.control().servers(), at, bytes) {
            return Ok(Err(fault));
        }
        match self.tree.fetch(self.meter, at, bytes, &mut self.budget).await {
            Ok(read) => {
                let span_ns = read.span_ns;
                Ok(Ok((read.into_buf(), span_ns)))
            }
            Err(AccessError::Fabric(FabricError::OutOfBounds { .. })) => Ok(Err(AddressFault::OutsideRegion)),
            Err(AccessError::Fabric(FabricError::NoSuchServer { .. })) => Ok(Err(AddressFault::NoSuchServer)),
            Err(error) => Err(error),
        }
    }

    fn report_faults(&mut self, level: u8, node: RemotePtr, seen: &ObservedNode, exempt: bool) {
        if exempt && seen.has_torn_entry() {
            self.report.torn.push(node);
        }
        for broken in &seen.faults {
            if !(exempt && *broken == Broken::Entry(Rejection::Torn)) {
                let broken = broken.clone();
                self.report.violations.push(Violation { node, level: Some(level), broken });
            }
        }
    }

    fn count(&mut self, level: u8, keys: u64) {
        let survey = &mut self.report.survey;
        match level {
            0 => survey.leaves += 1,
            _ => survey.inner_nodes += 1,
        }
        survey.keys += keys;
    }

    fn sum_up(&mut self) {
        let (leaf, inner) = (self.tree.leaf(), self.tree.inner());
        let survey = &mut self.report.survey;
        survey.used_bytes =
            survey.leaves * leaf.node_bytes() as u64 + survey.inner_nodes * inner.node_bytes() as u64;
        survey.used_bytes += self.block_bytes;
        if survey.leaves > 0 {
            survey.load_factor = survey.keys as f64 / (survey.leaves * leaf.slots() as u64) as f64;
        }
    }
}
