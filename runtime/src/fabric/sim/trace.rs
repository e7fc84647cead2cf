//! The trace of a run, as one number and, where it is wanted, as the last few lines of text. The number covers every
//! access to memory, every completion and every message with its time: two runs with the same one did the same.

use std::collections::VecDeque;

/// Kinds of events that a trace tells apart.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub(super) enum Mark {
    Access = 1,
    Atomic = 2,
    Completed = 3,
    Broken = 4,
    Message = 5,
    Caller = 6,
}

/// The trace of a simulation so far.
pub(super) struct Trace {
    hash: u64,
    notes: VecDeque<String>,
    notes_max: usize,
}

impl Trace {
    pub(super) fn new() -> Self {
        Trace { hash: 0xcbf2_9ce4_8422_2325, notes: VecDeque::new(), notes_max: 0 }
    }

    #[inline]
    pub(super) fn mark(&mut self, now: u64, mark: Mark, a: u64, b: u64) {
        self.mix(now << 3 | mark as u64);
        self.mix(a);
        self.mix(b);
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    /// Keeps the last `most` notes from now on.
    pub(super) fn keep_notes(&mut self, most: usize) {
        self.notes_max = most;
    }

    #[inline]
    pub(super) fn note(&mut self, now: u64, note: impl FnOnce() -> String) {
        if self.notes_max == 0 {
            return;
        }
        if self.notes.len() == self.notes_max {
            self.notes.pop_front();
        }
        self.notes.push_back(format!("{now:>12} ns  {}", note()));
    }

    pub(super) fn notes(&self) -> impl Iterator<Item = &str> {
        self.notes.iter().map(String::as_str)
    }

    #[inline]
    fn mix(&mut self, word: u64) {
        self.hash = (self.hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_depends_on_everything_and_notes_are_few() {
        let hash = |marks: &[(u64, Mark, u64, u64)]| {
            let mut trace = Trace::new();
            marks.iter().for_each(|&(now, mark, a, b)| trace.mark(now, mark, a, b));
            trace.hash()
        };
        let base = [(1, Mark::Access, 2, 3), (4, Mark::Atomic, 5, 6)];
        let others = [
            [base[1], base[0]],
            [(2, Mark::Access, 2, 3), base[1]],
            [(1, Mark::Completed, 2, 3), base[1]],
            [base[0], (4, Mark::Atomic, 5, 7)],
        ];
        assert!(others.iter().all(|other| hash(other) != hash(&base)));
        let mut trace = Trace::new();
        trace.note(1, || unreachable!("no notes are kept"));
        trace.keep_notes(2);
        (0..3).for_each(|i| trace.note(i, || format!("note {i}")));
        let notes: Vec<&str> = trace.notes().map(str::trim_start).collect();
        assert_eq!(notes, ["1 ns  note 1", "2 ns  note 2"]);
    }
}
