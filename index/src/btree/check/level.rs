//! One level of a tree under check: what its nodes, met one after the other, say about each other, and what the level
//! above says about them. Pure: it is told what was read, and tells what to read next.
//!
//! ```text
//!   level above:   separator b ─> X      separator f ─> Y            (claims)
//!                               │                     │
//!   this level:    .. ─────> X [b, d) ──> Z [d, f) ──> Y [f, ..      Z: no claim, a missing separator
//! ```
//!
//! A level is walked along its sibling pointers from the leftmost node. Where that ends too early (a node that cannot
//! be read, a pointer to nowhere or back), the walk begins again at the next node that the level above claims. A node
//! is met once; so the walk ends.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use farwood_runtime::RemotePtr;

use crate::btree::observed_node::ObservedNode;
use crate::check::{AddressFault, Broken, CheckReport, Link, MissingSeparator, Violation};
use crate::layout::{Bytes, Glimpse, Rejection};

/// A node to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) to: RemotePtr,
    /// The node or word that holds the pointer.
    from: RemotePtr,
    link: Link,
    /// The low fence that the node must have, where that is known.
    expected: Option<Bytes>,
}

/// A separator and its child in the level above.
#[derive(Debug)]
struct Claim {
    child: RemotePtr,
    parent: RemotePtr,
    /// True once it was compared with the node that begins there.
    met: bool,
}

/// The level's state.
#[derive(Debug)]
pub(super) struct Level {
    level: u8,
    /// The kind of pointer that claims are made with.
    link: Link,
    /// By separator.
    claims: BTreeMap<Bytes, Claim>,
    /// The nodes above whose separators are all known: low fence, address, high fence.
    parents: BTreeMap<Bytes, (RemotePtr, Option<Bytes>)>,
    /// Nodes with which something is wrong that would show at their neighbours and parents too.
    blamed: BTreeSet<RemotePtr>,
    /// The last separator that the walk began at.
    began_at: Option<Bytes>,
    /// True once the walk along the siblings ended too early: that it does not lead to a node then means nothing.
    interrupted: bool,
    below: Option<Box<Level>>,
}

impl Level {
    /// Makes the level of the root.
    pub(super) fn top(level: u8, root_word: RemotePtr, root: RemotePtr) -> Self {
        let mut top = Level::new(level, Link::Root);
        top.claims.insert(Bytes::new(), Claim { child: root, parent: root_word, met: false });
        top.parents.insert(Bytes::new(), (root_word, None));
        top
    }

    fn new(level: u8, link: Link) -> Self {
        Level {
            level,
            link,
            claims: BTreeMap::new(),
            parents: BTreeMap::new(),
            blamed: BTreeSet::new(),
            began_at: None,
            interrupted: false,
            below: (level > 0).then(|| Box::new(Level::new(level - 1, Link::Child))),
        }
    }

    /// Yields the level's number.
    pub(super) fn number(&self) -> u8 {
        self.level
    }

    /// Yields the level below, when this one is done; none below the leaves, or if nothing is known of it.
    pub(super) fn into_below(self) -> Option<Level> {
        self.below.map(|below| *below).filter(|below| !below.claims.is_empty())
    }

    /// Lists the separators of which no node was met, with their children: none before the walk has begun.
    pub(super) fn open_claims(&self, visited: &BTreeSet<RemotePtr>) -> Vec<(Bytes, RemotePtr)> {
        let has_begun = self.began_at.is_some();
        let is_open = |claim: &Claim| has_begun && !claim.met && !visited.contains(&claim.child);
        let open = self.claims.iter().filter(|(_, claim)| is_open(claim));
        open.map(|(separator, claim)| (separator.clone(), claim.child)).collect()
    }

    /// Yields the child of that separator, if it is another one than the node that begins there.
    pub(super) fn claimed_instead(&self, node: RemotePtr, low: &Bytes) -> Option<RemotePtr> {
        self.claims.get(low).filter(|claim| !claim.met && claim.child != node).map(|claim| claim.child)
    }

    /// Forgets a separator that leads to no node of the level.
    pub(super) fn forget(&mut self, separator: &Bytes) {
        self.claims.remove(separator);
    }

    /// Yields where the walk begins, or begins anew; none if the level is done.
    pub(super) fn next_start(
        &mut self,
        visited: &BTreeSet<RemotePtr>,
        report: &mut CheckReport,
    ) -> Option<Step> {
        let after = self.began_at.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = self.claims.range::<Bytes, _>((after, Bound::Unbounded));
        let (low, claim) = rest.find(|(_, claim)| !claim.met && !visited.contains(&claim.child))?;
        let Claim { child, parent, .. } = *claim;
        let begins_anew = self.began_at.is_some();
        self.began_at = Some(low.clone());
        if begins_anew && !self.interrupted {
            self.report(report, child, Broken::OffChain { parent });
        }
        Some(Step { to: child, from: parent, link: self.link, expected: self.began_at.clone() })
    }

    /// Reports that `step` leads to an invalid address.
    pub(super) fn astray(&mut self, step: &Step, fault: AddressFault, report: &mut CheckReport) {
        self.interrupted = true;
        let broken = Broken::Address { link: step.link, to: step.to, fault };
        self.report_at_source(report, step, broken);
    }

    /// Reports that the node of `step` cannot be read; `exempt` if its lock's owner is dead. Yields the next step, if
    /// the node's first line shows it.
    pub(super) fn lost(
        &mut self,
        step: &Step,
        (rejection, glimpse): (Rejection, Option<Glimpse>),
        exempt: bool,
        visited: &BTreeSet<RemotePtr>,
        report: &mut CheckReport,
    ) -> Option<Step> {
        self.interrupted = true;
        self.blamed.insert(step.to);
        if rejection == Rejection::Torn && exempt {
            report.torn.push(step.to);
        } else {
            self.report(report, step.to, Broken::Unreadable { rejection, from: step.from });
        }
        let readable = matches!(rejection, Rejection::Torn | Rejection::Malformed(_));
        let glimpse = glimpse.filter(|glimpse| readable && glimpse.level == self.level)?;
        let sibling = glimpse.sibling;
        (!sibling.is_null() && !visited.contains(&sibling)).then_some(Step {
            to: sibling,
            from: step.to,
            link: Link::Sibling,
            expected: None,
        })
    }

    /// Judges `seen`, the node of `step`, by its neighbours and parents; yields its right neighbour.
    pub(super) fn meet(
        &mut self,
        step: &Step,
        seen: &ObservedNode,
        visited: &BTreeSet<RemotePtr>,
        report: &mut CheckReport,
    ) -> Option<Step> {
        if seen.level != self.level {
            self.report(report, step.to, Broken::Level { found: seen.level });
        }
        self.judge_low(step, seen, report);
        if !self.blamed.contains(&step.to) {
            self.judge_claim(step.to, &seen.low, report);
        }
        self.gather(step.to, seen);
        self.neighbour(step.to, seen, visited, report)
    }

    /// Reports claims that are still open when all nodes were met.
    pub(super) fn finish(&mut self, visited: &BTreeSet<RemotePtr>, report: &mut CheckReport) {
        let claims = std::mem::take(&mut self.claims);
        for (separator, Claim { child, parent, met }) in claims {
            if !met && visited.contains(&child) && !self.blamed.contains(&child) {
                self.report_above(report, parent, Broken::WrongChild { separator, child, begins: None });
            }
        }
    }

    /// Checks that the node begins where the pointer to it says. If not, the level above may tell which of the two is
    /// wrong.
    fn judge_low(&mut self, step: &Step, seen: &ObservedNode, report: &mut CheckReport) {
        let Some(expected) = step.expected.as_ref().filter(|expected| **expected != seen.low) else { return };
        let (low, expected) = (seen.low.clone(), expected.clone());
        let confirmed = self.claims.get(&low).is_some_and(|claim| claim.child == step.to);
        if !confirmed {
            self.blamed.insert(step.to);
            self.report(report, step.to, Broken::LowFence { low, expected, from: step.from });
        } else if step.link == Link::Sibling {
            self.report(report, step.from, Broken::HighFence { high: expected, sibling: step.to, low });
        } else {
            // Nodes between the one that should be here and this one are reached from above only.
            self.interrupted = true;
            self.claims.entry(expected.clone()).and_modify(|claim| claim.met = true);
            let broken = Broken::WrongChild { separator: expected, child: step.to, begins: None };
            self.report_at_source(report, step, broken);
        }
    }

    /// Checks that the level above leads to `node` for its low fence.
    fn judge_claim(&mut self, node: RemotePtr, low: &Bytes, report: &mut CheckReport) {
        let Some(claim) = self.claims.get_mut(low) else {
            if let Some(parent) = self.parent_of(low) {
                let (level, separator) = (self.level, low.clone());
                report.missing_separators.push(MissingSeparator { node, level, separator, parent });
            }
            return;
        };
        let Claim { child, parent, met } = *claim;
        claim.met = true;
        if child != node && !met {
            let broken = Broken::WrongChild { separator: low.clone(), child, begins: Some(node) };
            self.report_above(report, parent, broken);
        }
    }

    /// Remembers the node's claims about the level below.
    fn gather(&mut self, node: RemotePtr, seen: &ObservedNode) {
        let Some(below) = &mut self.below else { return };
        for (separator, child) in &seen.children {
            let claim = Claim { child: *child, parent: node, met: false };
            below.claims.entry(separator.clone()).or_insert(claim);
        }
        if seen.faults.is_empty() {
            below.parents.insert(seen.low.clone(), (node, seen.high.clone()));
        }
    }

    fn neighbour(
        &mut self,
        node: RemotePtr,
        seen: &ObservedNode,
        visited: &BTreeSet<RemotePtr>,
        report: &mut CheckReport,
    ) -> Option<Step> {
        let (sibling, high) = (seen.sibling, seen.high.clone());
        if sibling.is_null() {
            if let Some(high) = high {
                self.interrupted = true;
                self.report(report, node, Broken::NoSibling { high });
            }
            return None;
        }
        if high.is_none() {
            self.report(report, node, Broken::NoHighFence { sibling });
        }
        if !visited.contains(&sibling) {
            return Some(Step { to: sibling, from: node, link: Link::Sibling, expected: high });
        }
        // Where the walk began anew it may come to nodes that it has met on another way, but only to those that
        // begin where this one ends.
        let claim = high.and_then(|high| self.claims.get(&high));
        if claim.is_none_or(|claim| claim.child != sibling) {
            self.interrupted = true;
            self.report(report, node, Broken::Revisited { sibling });
        }
        None
    }

    /// Yields the node above that answers for `low`, if all of its separators are known.
    fn parent_of(&self, low: &Bytes) -> Option<RemotePtr> {
        let (_, (parent, high)) = self.parents.range::<Bytes, _>(..=low).next_back()?;
        high.as_ref().is_none_or(|high| low < high).then_some(*parent)
    }

    fn report(&self, report: &mut CheckReport, node: RemotePtr, broken: Broken) {
        report.violations.push(Violation { node, level: Some(self.level), broken });
    }

    /// Reports what is wrong with a parent's pointer; the root word is of no level.
    fn report_above(&self, report: &mut CheckReport, node: RemotePtr, broken: Broken) {
        let level = (self.link == Link::Child).then(|| self.level.saturating_add(1));
        report.violations.push(Violation { node, level, broken });
    }

    fn report_at_source(&self, report: &mut CheckReport, step: &Step, broken: Broken) {
        match step.link {
            Link::Sibling => self.report(report, step.from, broken),
            Link::Child | Link::Root => self.report_above(report, step.from, broken),
        }
    }
}

#[cfg(test)]
mod tests;
