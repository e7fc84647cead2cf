//! The operation for each line of a file, and what differs with it: the form of a line, and the words that say what
//! came of all. Pure; it knows neither files nor indexes.

use std::iter::Sum;

use farwood::Limits;

use super::rejects::Reason;
use crate::progress::Stage;

/// Operation that is done with each line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Stores the pair that the line is: key, TAB, value.
    Put,
    /// Removes the key that the line is.
    Remove,
}

impl Operation {
    /// Judges a line, without its newline. Yields the length of its key; behind that and a TAB is the value, if it is a
    /// pair.
    pub(super) fn judge(self, line: &[u8], limits: Limits) -> Result<usize, Reason> {
        let Limits { max_key, max_value } = limits;
        let tab = line.iter().position(|&byte| byte == b'\t');
        let (key_len, value_len) = match (self, tab) {
            (Operation::Put, Some(tab)) => (tab, line.len() - tab - 1),
            (Operation::Put, None) => return Err(Reason::NoTab),
            // The TAB may end the key or be in it (`load` stores no such key): what is removed by mistake is gone.
            (Operation::Remove, Some(_)) => return Err(Reason::Tab),
            (Operation::Remove, None) => (line.len(), 0),
        };
        if key_len > max_key {
            return Err(Reason::LongKey { max: max_key });
        }
        if value_len > max_value {
            return Err(Reason::LongValue { max: max_value });
        }
        Ok(key_len)
    }

    /// Returns the stage that the progress bar shows.
    pub(super) fn stage(self) -> Stage {
        match self {
            Operation::Put => Stage::Load,
            Operation::Remove => Stage::Remove,
        }
    }

    /// Names the counts, for the summary.
    pub(super) fn counted(self, Counts { changed, absent }: Counts) -> String {
        match self {
            Operation::Put => format!("stored {changed}"),
            Operation::Remove => format!("removed {changed}, absent {absent}"),
        }
    }

    /// Says what was done before an early end.
    pub(super) fn done(self, Counts { changed, absent }: Counts) -> String {
        match self {
            Operation::Put => format!("{changed} lines were stored"),
            Operation::Remove => format!("{changed} keys were removed, {absent} were absent"),
        }
    }

    /// Says what became of the lines that were not rejected.
    pub(super) fn of_the_others(self) -> &'static str {
        match self {
            Operation::Put => "all others are stored",
            Operation::Remove => "the keys of all others are gone",
        }
    }
}

/// Counts of the lines that were done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Lines that were stored, or whose keys were there and are removed.
    pub(super) changed: u64,
    /// Lines whose keys were not there to be removed.
    pub(super) absent: u64,
}

impl Counts {
    /// Counts a line.
    pub(super) fn add(&mut self, has_changed: bool) {
        self.changed += u64::from(has_changed);
        self.absent += u64::from(!has_changed);
    }

    /// Counts all of them.
    pub(super) fn total(self) -> u64 {
        self.changed + self.absent
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Counts>>(all: I) -> Self {
        all.fold(Counts::default(), |sum, counts| Counts {
            changed: sum.changed + counts.changed,
            absent: sum.absent + counts.absent,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { max_key: 4, max_value: 6 };
    type Judged = Result<usize, Reason>;

    const LONG_KEY: Judged = Err(Reason::LongKey { max: 4 });
    const LONG_VALUE: Judged = Err(Reason::LongValue { max: 6 });

    /// The limits are those of the index; any bytes but TAB and newline may be in a key, none is a key, too.
    #[test]
    fn a_pair_has_a_tab_and_a_key_to_remove_has_none() {
        let lines: [(&[u8], Judged, Judged); 12] = [
            (b"", Err(Reason::NoTab), Ok(0)),
            (b"a", Err(Reason::NoTab), Ok(1)),
            (b"abcd", Err(Reason::NoTab), Ok(4)),
            (b"abcde", Err(Reason::NoTab), LONG_KEY),
            (b" \xff\0\r", Err(Reason::NoTab), Ok(4)),
            (b"\t", Ok(0), Err(Reason::Tab)),
            (b"ab\t1", Ok(2), Err(Reason::Tab)),
            (b"ab\t", Ok(2), Err(Reason::Tab)),
            (b"ab\t1\t2", Ok(2), Err(Reason::Tab)),
            (b"abcd\t123456", Ok(4), Err(Reason::Tab)),
            (b"abcde\t1", LONG_KEY, Err(Reason::Tab)),
            (b"a\t1234567", LONG_VALUE, Err(Reason::Tab)),
        ];
        for (line, put, remove) in lines {
            let judged = [Operation::Put, Operation::Remove].map(|operation| operation.judge(line, LIMITS));
            assert_eq!(judged, [put, remove], "{}", line.escape_ascii());
        }
    }

    #[test]
    fn counts_are_named_by_what_was_done() {
        let mut counts = Counts::default();
        [true, true, false].into_iter().for_each(|has_changed| counts.add(has_changed));
        assert_eq!(counts.total(), 3);
        let sum = [counts, counts].into_iter().sum();
        assert_eq!(Operation::Put.counted(sum), "stored 4");
        assert_eq!(Operation::Remove.counted(sum), "removed 4, absent 2");
        assert_eq!(Operation::Remove.done(sum), "4 keys were removed, 2 were absent");
    }
}
