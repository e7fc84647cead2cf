//! Decides whether what clients saw of a key is linearizable: whether there is one order of the operations that took
//! effect, in which each is placed between its start and its end, and sees what the ones before it left.
//!
//! Each key is an object of its own, so a history is linearizable if that of every key is (Herlihy and Wing's
//! locality; Horn and Kroening, "Faster linearizability checking via P-compositionality", 2015).
//!
//! Reads of unknown outcome say nothing and are not looked at. A write of unknown outcome may be anywhere from its
//! start on, also after its end, or nowhere; if it was given up before everything came to rest, it is before that or
//! nowhere. Equal ticks order nothing.
//!
//! Written here because no crate fits (November 2026). `porcupine-rs` 0.3 and `todc-utils` 0.1 have the general
//! search: bounded by wall time or not at all, so not the same verdict twice; nothing for writes of unknown outcome,
//! which double their work each; no short reason for a refusal. `stateright`'s testers enumerate, without memory.
//!
//! Knows one key at a time, and nothing of scans but what [`Claim`]s they make about it.

mod contradiction;
mod search;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use contradiction::{Claim, Contradiction};

use crate::history::{Event, Op, Outcome};
use search::{ABSENT, FIRST_VALUE, Found, Needs, State, Step, search};

/// Steps of the search that suffice for all histories but the most awkward, such as those of 36 clients on one key. So
/// many take about a second.
pub const STEPS_MAX: u64 = 40_000_000;

/// The operations on one key.
#[derive(Clone, Debug)]
pub struct KeyHistory<'h> {
    key: &'h [u8],
    initial: Option<&'h [u8]>,
    /// When everything came to rest.
    rest: Option<u64>,
    seen: Vec<Seen<'h>>,
}

/// An operation on the key, or what a scan says of it: a scan that [`Outcome::Found`] it with its value, or found
/// it [`Outcome::Absent`].
#[derive(Clone, Copy, Debug)]
struct Seen<'h> {
    event: Event,
    value: Option<&'h [u8]>,
}

/// The checker's verdict on a key.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// There is an order.
    Linearizable,
    /// There is none. The reason is short.
    Contradicts(Contradiction),
    /// The steps did not suffice to tell. This is no pass.
    Undecided,
}

impl<'h> KeyHistory<'h> {
    /// Makes the history of `key`, which held `initial` before any operation began. At tick `rest` nothing was under
    /// way: what was given up by then has taken effect then, or never will.
    pub fn new(key: &'h [u8], initial: Option<&'h [u8]>, rest: Option<u64>) -> Self {
        KeyHistory { key, initial, rest, seen: Vec::new() }
    }

    /// Adds an operation. A scan's outcome is what it says of this key: found, with a value, or absent.
    pub fn push(&mut self, event: Event, value: Option<&'h [u8]>) {
        let says_nothing = event.outcome == Outcome::Unknown && matches!(event.op, Op::Get | Op::Scan);
        if !says_nothing {
            self.seen.push(Seen { event, value });
        }
    }

    /// Yields the key.
    pub fn key(&self) -> &'h [u8] {
        self.key
    }

    /// Yields the key's history without what scans say.
    pub(super) fn without_scans(&self) -> Self {
        let seen = self.seen.iter().filter(|seen| seen.event.op != Op::Scan).copied().collect();
        KeyHistory { seen, ..*self }
    }

    fn to_steps(&self) -> (State, Vec<Step>) {
        let mut numbers = BTreeMap::new();
        let mut number = |value: Option<&'h [u8]>| {
            let Some(value) = value else { return ABSENT };
            let next = FIRST_VALUE + numbers.len() as State;
            *numbers.entry(value).or_insert(next)
        };
        let initial = number(self.initial);
        let steps = self.seen.iter().map(|Seen { event, value }| {
            let (needs, leaves) = match (event.op, event.outcome) {
                (Op::Get | Op::Scan, Outcome::Found) => (Needs::Exactly(number(*value)), None),
                (Op::Put, _) => (Needs::Anything, Some(number(*value))),
                (Op::Insert, Outcome::Exists) => (Needs::Present, None),
                (Op::Insert, _) => (Needs::Exactly(ABSENT), Some(number(*value))),
                (Op::Get | Op::Scan | Op::Update | Op::Remove, Outcome::Absent) => {
                    (Needs::Exactly(ABSENT), None)
                }
                (Op::Update, _) => (Needs::Present, Some(number(*value))),
                (Op::Remove, _) => (Needs::Present, Some(ABSENT)),
                (Op::Get | Op::Scan, outcome) => unreachable!("a read of one key that ended as {outcome}"),
            };
            Step {
                start: event.start,
                end: event.end,
                needs,
                leaves,
                sure: event.outcome != Outcome::Unknown,
            }
        });
        (initial, steps.collect())
    }
}

/// Checks one key. The search takes at most `steps_max` steps, and as many again for the reason if it finds no order.
pub fn check(history: &KeyHistory<'_>, steps_max: u64) -> Verdict {
    let (initial, steps) = history.to_steps();
    match search(initial, &steps, history.rest, &mut { steps_max }) {
        Found::Order => Verdict::Linearizable,
        Found::NoOrder => {
            Verdict::Contradicts(contradiction::explain(history, initial, &steps, &mut { steps_max }))
        }
        Found::Nothing => Verdict::Undecided,
    }
}
