//! Lines that are not what the operation takes: counted, and the first of them kept with the reason.

use std::fmt;

/// Lines that are kept.
const KEPT_MAX: usize = 1000;

/// Reason of a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// It is no pair: there is no TAB in it.
    NoTab,
    /// It is longer than any line can be, and has no TAB up to there.
    NoTabWithin { bytes: usize },
    /// It is more than a key: there is a TAB in it.
    Tab,
    /// The key is longer than the index takes.
    LongKey { max: usize },
    /// The value is longer than the index takes.
    LongValue { max: usize },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NoTab => f.write_str("there is no TAB between key and value"),
            Reason::NoTabWithin { bytes } => {
                write!(f, "there is no TAB between key and value in its first {bytes} bytes")
            }
            Reason::Tab => f.write_str("there is a TAB in it: a line to remove is a key alone"),
            Reason::LongKey { max } => {
                write!(f, "the key is longer than the {max} bytes that this index takes")
            }
            Reason::LongValue { max } => {
                write!(f, "the value is longer than the {max} bytes that this index takes")
            }
        }
    }
}

/// Rejected lines, in the order of their numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Rejects {
    total: u64,
    first: Vec<(u64, Reason)>,
}

impl Rejects {
    /// Adds a line; lines come in their order.
    pub(super) fn push(&mut self, line: u64, reason: Reason) {
        self.total += 1;
        if self.first.len() < KEPT_MAX {
            self.first.push((line, reason));
        }
    }

    /// Counts the rejected lines.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Shows the first of them to the person at the terminal.
    pub(super) fn shown(&self) -> Vec<String> {
        self.first.iter().map(|(line, reason)| format!("line {line}: {reason}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ones_are_shown_and_all_are_counted() {
        let mut rejects = Rejects::default();
        let lines = 2 * KEPT_MAX as u64;
        (1..=lines).for_each(|line| rejects.push(line, Reason::NoTab));
        assert_eq!((rejects.total(), rejects.shown().len()), (lines, KEPT_MAX));
        assert!(rejects.shown()[9].starts_with("line 10: there is no TAB"));
    }
}
