//! Why there is no order of a key's operations, in few lines: the ones that contradict each other, without the rest.
//!
//! A history remains linearizable if a read is forgotten, or a write is taken for one that may have happened or not.
//! So if after that there still is no order, the others are to blame. First the end is cut off after the operation
//! that made it impossible, then everything that is not needed for that is let go, in halves, quarters, and so on
//! down to single operations (Zeller's delta debugging). What remains cannot do without any of its operations, as
//! long as the budget reaches.

use std::fmt;

use super::search::{Found, State, Step, search};
use super::{KeyHistory, Seen};
use crate::history::{Event, Op, Outcome};
use crate::oracle::Shown;

/// Operations on one key that cannot be put in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// The key.
    pub key: Vec<u8>,
    /// Its value before all operations.
    pub initial: Option<Vec<u8>>,
    /// The operations that contradict each other, in the order of their starts.
    pub core: Vec<Claim>,
    /// Further operations that wrote a value that one of those read.
    pub writers: Vec<Claim>,
    /// The number of other operations on the key. Whatever they did, there is no order.
    pub others: usize,
}

/// An operation on a key, with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The operation. A scan's outcome is what it says of the key.
    pub event: Event,
    /// The value that it wrote or read.
    pub value: Option<Vec<u8>>,
}

pub(super) fn explain(
    history: &KeyHistory<'_>,
    initial: State,
    steps: &[Step],
    budget: &mut u64,
) -> Contradiction {
    let mut blamed: Vec<(usize, Step)> = steps.iter().copied().enumerate().collect();
    let contradicts = |steps: &[(usize, Step)], budget: &mut u64| {
        let steps: Vec<Step> = steps.iter().map(|(_, step)| *step).collect();
        // Copying costs something too.
        *budget = budget.saturating_sub(steps.len() as u64);
        search(initial, &steps, history.rest, budget) == Found::NoOrder
    };
    cut_end(&mut blamed, |steps| contradicts(steps, budget));
    thin_out(&mut blamed, |steps| contradicts(steps, budget));
    let mut core: Vec<usize> = blamed.iter().filter(|(_, step)| step.sure).map(|(at, _)| *at).collect();
    core.sort_by_key(|at| steps[*at].start);
    let read: Vec<_> = core.iter().map(|at| &history.seen[*at]).filter(|seen| is_read(seen)).collect();
    let wrote = |seen: &Seen<'_>| !is_read(seen) && read.iter().any(|read| read.value == seen.value);
    let writers = (0..steps.len()).filter(|at| !core.contains(at) && wrote(&history.seen[*at]));
    let claims = |at: usize| {
        let Seen { event, value } = history.seen[at];
        Claim { event, value: value.map(<[u8]>::to_vec) }
    };
    let writers: Vec<Claim> = writers.map(claims).collect();
    Contradiction {
        key: history.key.to_vec(),
        initial: history.initial.map(<[u8]>::to_vec),
        others: steps.len() - core.len() - writers.len(),
        core: core.into_iter().map(claims).collect(),
        writers,
    }
}

fn is_read(seen: &Seen<'_>) -> bool {
    seen.event.outcome == Outcome::Found
}

/// Finds the first end at which there was no order any more, and forgets what was not over then.
fn cut_end(blamed: &mut Vec<(usize, Step)>, mut contradicts: impl FnMut(&[(usize, Step)]) -> bool) {
    let until = |tick: u64| -> Vec<(usize, Step)> {
        let begun = blamed.iter().filter(|(_, step)| step.start <= tick);
        begun
            .filter_map(|&(at, step)| if step.end <= tick { Some((at, step)) } else { let_go(at, step) })
            .collect()
    };
    let mut ends: Vec<u64> = blamed.iter().filter(|(_, step)| step.sure).map(|(_, step)| step.end).collect();
    ends.sort_unstable();
    // Once there is none there never is one again, and at the last end there is none.
    let first = ends.partition_point(|&tick| !contradicts(&until(tick)));
    if let Some(&tick) = ends.get(first) {
        *blamed = until(tick);
    }
}

/// Yields the step as one that proves nothing; `None` if nothing is left of it.
fn let_go(at: usize, step: Step) -> Option<(usize, Step)> {
    step.leaves.map(|_| (at, Step { sure: false, ..step }))
}

/// Lets go of everything that is not needed: of reads first, since a write says more than those that read it.
fn thin_out(blamed: &mut Vec<(usize, Step)>, mut contradicts: impl FnMut(&[(usize, Step)]) -> bool) {
    let is_read = |step: &Step| step.leaves.is_none();
    let is_write = |step: &Step| step.leaves.is_some();
    for is_kind in [&is_read as &dyn Fn(&Step) -> bool, &is_write] {
        let mut size = blamed.len() / 2;
        while size > 0 {
            let kind = blamed.iter().filter(|(_, step)| step.sure && is_kind(step));
            let kind: Vec<usize> = kind.map(|(at, _)| *at).collect();
            for part in kind.chunks(size) {
                let without = blamed.iter().filter_map(|&(at, step)| {
                    if part.binary_search(&at).is_ok() { let_go(at, step) } else { Some((at, step)) }
                });
                let without: Vec<_> = without.collect();
                if contradicts(&without) {
                    *blamed = without;
                }
            }
            size /= 2;
        }
    }
}

impl Contradiction {
    /// Tells whether it takes a scan to contradict.
    pub fn has_scan(&self) -> bool {
        self.core.iter().any(|claim| claim.event.op == Op::Scan)
    }
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = self.initial.as_deref();
        write!(f, "key {}, {} before all of it: ", Shown(&self.key), ShownState(before))?;
        write!(f, "no order explains these operations, whatever the {} others on the key did", self.others)?;
        for claim in &self.core {
            write!(f, "\n  {claim}")?;
        }
        if !self.writers.is_empty() {
            write!(f, "\nThe values read were written by")?;
        }
        for claim in &self.writers {
            write!(f, "\n  {claim}")?;
        }
        Ok(())
    }
}

struct ShownState<'a>(Option<&'a [u8]>);

impl fmt::Display for ShownState<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(value) => Shown(value).fmt(f),
            None => f.write_str("absent"),
        }
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { process, client, op, outcome, start, end, .. } = self.event;
        write!(f, "[{start:>6} .. {end:>6}] node {process} client {client:<3} {op:<6} ")?;
        match &self.value {
            Some(value) if outcome == Outcome::Found => write!(f, "-> {}", Shown(value)),
            Some(value) => write!(f, "{} -> {outcome}", Shown(value)),
            None => write!(f, "-> {outcome}"),
        }
    }
}
