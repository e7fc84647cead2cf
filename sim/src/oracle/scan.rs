//! The promises of scans: keys strictly ascending, inside the bounds, at most as many as asked for; every key that was
//! present during the whole scan exactly once; each value current at some moment of the scan.
//!
//! The first three are seen from the scan alone. The others are about keys that change while the scan runs, and are
//! turned into reads of single keys, over the whole time of the scan:
//!
//! - A key returned with a value: at some moment of the scan it held that value. This is a get that found it.
//! - A key not returned, in the part that the scan covered: it was not present during the whole scan, that is, at
//!   some moment of the scan it was absent. This is a get that did not find it.
//!
//! Both ways this is what is promised, no more and no less. These reads are checked together with the key's other
//! operations for one order that explains all: the order in which the key really went through its states is such an
//! order if the index kept its promises, so nothing is accused wrongly. Intervals reckoned beforehand, in which a key
//! "surely" was present or a value current, would see less: they cannot combine what several reads say, nor decide
//! which of two concurrent writes was last from what was read much later.
//!
//! The part that a scan covered goes from its start to its end bound; if it reached its limit, failed, or was dropped,
//! only to the last key that it returned. Entries were all received between the scan's start and its end, also those of
//! a scan that failed.

use std::fmt;
use std::ops::{Bound, RangeBounds};

use crate::history::{Operation, Outcome, ScanRange, Scanned};
use crate::oracle::{KeyRange, Shown, key_range};

/// A mistake in a scan that is one whatever the keys went through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScanFault {
    /// A key that is not greater than the one before.
    NotAscending {
        /// The key before.
        before: Vec<u8>,
        /// The key.
        key: Vec<u8>,
    },
    /// A key outside of the bounds.
    OutOfBounds {
        /// The key.
        key: Vec<u8>,
    },
    /// More entries than asked for.
    OverLimit {
        /// The number of entries asked for.
        limit: usize,
        /// The number of entries returned.
        entries: usize,
    },
}

/// Checks what a scan alone can be wrong about.
pub fn check_shape(scan: &Scanned<'_>) -> Result<(), ScanFault> {
    let bounds = (scan.range.start, scan.range.end);
    let mut last: Option<&[u8]> = None;
    for (key, _) in scan.entries {
        if let Some(before) = last.filter(|before| *before >= key) {
            return Err(ScanFault::NotAscending { before: before.to_vec(), key: key.to_vec() });
        }
        if !RangeBounds::<[u8]>::contains(&bounds, key) {
            return Err(ScanFault::OutOfBounds { key: key.to_vec() });
        }
        last = Some(key);
    }
    let entries = scan.entries.len();
    match scan.range.limit {
        Some(limit) if entries > limit => Err(ScanFault::OverLimit { limit, entries }),
        _ => Ok(()),
    }
}

/// Yields the bounds of the part of the key space that a scan says everything about; `None` if it is empty.
pub fn covered<'h>(scan: &Scanned<'h>, outcome: Outcome) -> Option<KeyRange<'h>> {
    let ScanRange { start, end, limit, ended } = scan.range;
    let whole = ended && outcome == Outcome::Ok && limit.is_none_or(|limit| scan.entries.len() < limit);
    let end = if whole { end } else { Bound::Included(scan.entries.last()?.0) };
    key_range(start, end)
}

/// A scan, for a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanName(Box<str>);

impl ScanName {
    /// Yields the name of an operation that is a scan.
    pub fn new(operation: &Operation<'_>, scan: &Scanned<'_>) -> Self {
        let event = &operation.event;
        let bound = |bound: Bound<&[u8]>, open: &str, closed: &str| match bound {
            Bound::Included(key) => (Shown(key).to_string(), closed.to_owned()),
            Bound::Excluded(key) => (Shown(key).to_string(), open.to_owned()),
            Bound::Unbounded => (String::new(), open.to_owned()),
        };
        let (from, opens) = bound(scan.range.start, "(", "[");
        let (to, closes) = bound(scan.range.end, ")", "]");
        let limit = scan.range.limit.map(|limit| format!(", at most {limit}")).unwrap_or_default();
        let name = format!(
            "the scan of {opens}{from} .. {to}{closes}{limit} by node {} client {}, ticks {} .. {}",
            event.process, event.client, event.start, event.end
        );
        ScanName(name.into())
    }
}

impl fmt::Display for ScanName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for ScanFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScanFault::NotAscending { before, key } if before == key => {
                write!(f, "returned {} twice", Shown(key))
            }
            ScanFault::NotAscending { before, key } => {
                write!(f, "returned {} after {}", Shown(key), Shown(before))
            }
            ScanFault::OutOfBounds { key } => write!(f, "returned {}, out of its bounds", Shown(key)),
            ScanFault::OverLimit { limit, entries } => {
                write!(f, "returned {entries} entries, and was asked for {limit}")
            }
        }
    }
}
