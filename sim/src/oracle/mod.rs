//! Oracles: they name the first thing that must hold of a run and does not.
//!
//! - [`linearizable`]: each key's operations can be put in an order that explains what all clients saw.
//! - [`scan`]: scans are in order and in bounds, and say nothing of a key that it was not during the scan.
//! - [`model`]: for one client, whose operations are in order anyway: what a map would have answered.
//!
//! An oracle never accuses wrongly. What it could not decide within its budget, it says so of. It sees histories and
//! nothing else.

pub mod linearizable;
pub mod model;
pub mod scan;
mod shown;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Bound;

use thiserror::Error;

use crate::history::{Event, History, Operation, Outcome, Scanned};
use linearizable::{Contradiction, KeyHistory, STEPS_MAX, Verdict};
use model::{Mismatch, ModelMap};
use scan::{ScanFault, ScanName};
use shown::Shown;

/// Keys and their values.
pub type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Bounds of keys.
pub type KeyRange<'k> = (Bound<&'k [u8]>, Bound<&'k [u8]>);

/// A mistake that an index made, or may have made.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Violation {
    /// The operations on one key have no order.
    #[error("not linearizable: {0}")]
    Point(Box<Contradiction>),
    /// They have one, but none in which a scan saw what it returned, or left out.
    #[error("a scan saw what was not there: {0}")]
    Scan(Box<Contradiction>),
    /// A scan that is wrong whatever was there.
    #[error("{scan} {fault}")]
    Shape {
        /// Which scan.
        scan: ScanName,
        /// The mistake in it.
        fault: ScanFault,
    },
    /// A lone client was answered as by no map.
    #[error("{0}")]
    Model(#[from] Mismatch),
    /// Not known to be wrong: the search for an order was given up.
    #[error("key {}: the search for an order was given up after {steps_max} steps", Shown(key))]
    Undecided {
        /// The key.
        key: Vec<u8>,
        /// The length of the search.
        steps_max: u64,
    },
}

/// Checks the history of a run on an index that held `initial` before it: that every key is linearizable, and what
/// scans promise.
///
/// # Errors
/// The first thing that is wrong; only if nothing is, what could not be decided.
pub fn check_history(history: &History, initial: &Pairs) -> Result<(), Violation> {
    check_history_within(history, initial, STEPS_MAX)
}

/// Runs [`check_history`] with at most so many steps of the search for each key.
///
/// # Errors
/// As [`check_history`].
pub fn check_history_within(history: &History, initial: &Pairs, steps_max: u64) -> Result<(), Violation> {
    let mut keys = Keys { initial, rest: history.rest(), changing: BTreeMap::new(), steps_max };
    for operation in history.iter().filter(|operation| operation.scan.is_none()) {
        keys.add(&operation);
    }
    for operation in history.iter() {
        if let Some(scan) = &operation.scan {
            keys.add_scan(&operation, scan)?;
        }
    }
    let mut undecided = Ok(());
    for key in keys.changing.values() {
        match check_key(key, steps_max) {
            Err(violation @ Violation::Undecided { .. }) => undecided = undecided.and(Err(violation)),
            verdict => verdict?,
        }
    }
    undecided
}

/// Checks a history of one client, alone with an index that held `initial` before it: that a map would have said the
/// same. Its operations must have been added in their order.
///
/// # Errors
/// The first answer that is wrong.
pub fn check_one_client(history: &History, initial: Pairs) -> Result<(), Violation> {
    let mut model = ModelMap::new(initial);
    history.iter().try_for_each(|operation| Ok(model.check(&operation)?))
}

fn check_key(history: &KeyHistory<'_>, steps_max: u64) -> Result<(), Violation> {
    let contradiction = match linearizable::check(history, steps_max) {
        Verdict::Linearizable => return Ok(()),
        Verdict::Contradicts(contradiction) => contradiction,
        Verdict::Undecided => return Err(Violation::Undecided { key: history.key().to_vec(), steps_max }),
    };
    if !contradiction.has_scan() {
        return Err(Violation::Point(contradiction.into()));
    }
    // The scan is not to blame if there is no order without it either.
    match linearizable::check(&history.without_scans(), steps_max) {
        Verdict::Contradicts(without) => Err(Violation::Point(without.into())),
        _ => Err(Violation::Scan(contradiction.into())),
    }
}

/// Histories of keys, collected.
struct Keys<'h> {
    initial: &'h Pairs,
    rest: Option<u64>,
    /// Keys that point operations name. All others stay as they are; there are many, and they cost little.
    changing: BTreeMap<&'h [u8], KeyHistory<'h>>,
    steps_max: u64,
}

impl<'h> Keys<'h> {
    fn initial(&self, key: &[u8]) -> Option<&'h [u8]> {
        self.initial.get(key).map(Vec::as_slice)
    }

    fn add(&mut self, operation: &Operation<'h>) {
        let Operation { event, key, value, .. } = *operation;
        let (initial, rest) = (self.initial, self.rest);
        let history = self.changing.entry(key);
        let history =
            history.or_insert_with(|| KeyHistory::new(key, initial.get(key).map(Vec::as_slice), rest));
        history.push(event, value);
    }

    /// Takes what a scan says of single keys for reads of them.
    fn add_scan(&mut self, operation: &Operation<'h>, scan: &Scanned<'h>) -> Result<(), Violation> {
        scan::check_shape(scan)
            .map_err(|fault| Violation::Shape { scan: ScanName::new(operation, scan), fault })?;
        let event = operation.event;
        let found = Event { outcome: Outcome::Found, ..event };
        for (key, value) in scan.entries {
            self.claim(found, key, Some(value))?;
        }
        let Some(range) = scan::covered(scan, event.outcome) else { return Ok(()) };
        let absent = Event { outcome: Outcome::Absent, ..event };
        let mut returned = scan.entries.map(|(key, _)| key).peekable();
        for (key, history) in self.changing.range_mut::<[u8], _>(range) {
            while returned.next_if(|returned| returned < key).is_some() {}
            if returned.peek() != Some(key) {
                history.push(absent, None);
            }
        }
        let mut returned = scan.entries.map(|(key, _)| key).peekable();
        for key in self.initial.range::<[u8], _>(range).map(|(key, _)| key.as_slice()) {
            while returned.next_if(|returned| *returned < key).is_some() {}
            if returned.peek() != Some(&key) && !self.changing.contains_key(key) {
                self.claim(absent, key, None)?;
            }
        }
        Ok(())
    }

    fn claim(&mut self, event: Event, key: &'h [u8], value: Option<&'h [u8]>) -> Result<(), Violation> {
        if let Some(history) = self.changing.get_mut(key) {
            history.push(event, value);
            return Ok(());
        }
        let initial = self.initial(key);
        if initial == value {
            return Ok(());
        }
        let mut history = KeyHistory::new(key, initial, self.rest);
        history.push(event, value);
        check_key(&history, self.steps_max)
    }
}

/// Yields the bounds, if there may be keys between them: `BTreeMap` panics at others.
fn key_range<'k>(start: Bound<&'k [u8]>, end: Bound<&'k [u8]>) -> Option<KeyRange<'k>> {
    let is_empty = match (start, end) {
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Included(start) | Bound::Excluded(start), Bound::Included(end) | Bound::Excluded(end)) => {
            start >= end
        }
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
    };
    (!is_empty).then_some((start, end))
}
