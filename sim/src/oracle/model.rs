//! A map to compare with: for one client, whose operations follow one another and which alone writes.
//!
//! After a write of unknown outcome the map cannot know its key any more: the write may take effect at any later time.
//! From then on it believes everything about that key.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;

use thiserror::Error;

use super::linearizable::Claim;
use super::scan::{ScanFault, ScanName, check_shape, covered};
use super::{Pairs, Shown};
use crate::history::{Op, Operation, Outcome, Scanned};

/// A key and its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// The map, and the keys that it cannot know.
#[derive(Clone, Debug, Default)]
pub struct ModelMap {
    pairs: Pairs,
    unsure: BTreeSet<Vec<u8>>,
}

/// An answer that the map would not have given.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// Of an operation on one key.
    #[error("key {}: {seen}, but a map says {expected} {}", Shown(key), ShownValue(expected_value.as_deref()))]
    Point {
        /// The key.
        key: Vec<u8>,
        /// The index's answer.
        seen: Box<Claim>,
        /// The map's answer.
        expected: Outcome,
        /// And the value it has.
        expected_value: Option<Vec<u8>>,
    },
    /// A scan that is wrong whatever is in the map.
    #[error("{scan} {fault}")]
    Shape {
        /// Which scan.
        scan: ScanName,
        /// The mistake in it.
        fault: ScanFault,
    },
    /// A scan with an entry that is not in the map, or without one that is.
    #[error("{scan}: entry {at} is {}, but a map says {}", ShownPair(seen), ShownPair(expected))]
    Entry {
        /// Which scan.
        scan: ScanName,
        /// Which of its entries, from 0; keys that the map cannot know are not counted.
        at: usize,
        /// The entry returned.
        seen: Option<Pair>,
        /// The map's entry there.
        expected: Option<Pair>,
    },
}

impl ModelMap {
    /// Makes a map with these pairs in it.
    pub fn new(pairs: Pairs) -> Self {
        ModelMap { pairs, unsure: BTreeSet::new() }
    }

    /// Yields the pairs of the map.
    pub fn pairs(&self) -> &Pairs {
        &self.pairs
    }

    /// Yields the keys that had a write of unknown outcome.
    pub fn unsure(&self) -> &BTreeSet<Vec<u8>> {
        &self.unsure
    }

    /// Does the operation and compares what it says with the answer. After a mismatch the map is as if it had been
    /// right.
    ///
    /// # Errors
    /// If the answer is not the map's.
    pub fn check(&mut self, operation: &Operation<'_>) -> Result<(), Mismatch> {
        match &operation.scan {
            Some(scan) => self.check_scan(operation, scan),
            None => self.check_point(operation),
        }
    }

    fn check_point(&mut self, operation: &Operation<'_>) -> Result<(), Mismatch> {
        let Operation { event, key, value, .. } = *operation;
        if event.outcome == Outcome::Unknown {
            if event.op != Op::Get {
                self.unsure.insert(key.to_vec());
            }
            return Ok(());
        }
        if self.unsure.contains(key) {
            return Ok(());
        }
        let before = self.pairs.get(key).cloned();
        let expected = match (event.op, before.is_some()) {
            (Op::Get, true) => Outcome::Found,
            (Op::Insert, true) => Outcome::Exists,
            (Op::Get | Op::Update | Op::Remove, false) => Outcome::Absent,
            _ => Outcome::Ok,
        };
        if expected == Outcome::Ok {
            match value.filter(|_| event.op != Op::Remove) {
                Some(value) => self.pairs.insert(key.to_vec(), value.to_vec()),
                None => self.pairs.remove(key),
            };
        }
        if event.outcome == expected && (expected != Outcome::Found || value == before.as_deref()) {
            return Ok(());
        }
        let seen = Box::new(Claim { event, value: value.map(<[u8]>::to_vec) });
        Err(Mismatch::Point { key: key.to_vec(), seen, expected, expected_value: before })
    }

    fn check_scan(&self, operation: &Operation<'_>, scan: &Scanned<'_>) -> Result<(), Mismatch> {
        let name = || ScanName::new(operation, scan);
        check_shape(scan).map_err(|fault| Mismatch::Shape { scan: name(), fault })?;
        let range = covered(scan, operation.event.outcome);
        let expected = range.into_iter().flat_map(|range| self.pairs.range::<[u8], _>(range));
        let mut expected = expected.filter(|(key, _)| !self.unsure.contains(*key));
        let mut seen = scan.entries.filter(|(key, _)| !self.unsure.contains(*key));
        for at in 0.. {
            let (seen, expected) = (seen.next(), expected.next());
            if seen != expected.map(|(key, value)| (key.as_slice(), value.as_slice())) {
                let seen = seen.map(|(key, value)| (key.to_vec(), value.to_vec()));
                let expected = expected.map(|(key, value)| (key.clone(), value.clone()));
                return Err(Mismatch::Entry { scan: name(), at, seen, expected });
            }
            if seen.is_none() {
                break;
            }
        }
        Ok(())
    }
}

struct ShownValue<'a>(Option<&'a [u8]>);

impl fmt::Display for ShownValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(value) => write!(f, "and has {}", Shown(value)),
            None => f.write_str("and has nothing"),
        }
    }
}

struct ShownPair<'a>(&'a Option<Pair>);

impl fmt::Display for ShownPair<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some((key, value)) => write!(f, "{} = {}", Shown(key), Shown(value)),
            None => f.write_str("none"),
        }
    }
}
