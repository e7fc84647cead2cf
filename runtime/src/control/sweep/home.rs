//! A sweep at the server that keeps the catalog: which processes note what passes through their lists, and which have
//! told what is in them. A pure state machine: it knows neither messages nor time.
//!
//! ```text
//!   a process     has joined ──noted──> notes ──told──> has told
//!                     │                    │                └─ ends: what it had is known
//!                     └────────────────────┴─ ends: the sweep is void, what it had is not known
//! ```

use std::collections::BTreeMap;

use super::{Step, Wanted};
use crate::control::IndexId;
use crate::extents::Extents;
use crate::pointer::RemotePtr;

/// Bounds the pieces that are told: some clients may tell anything.
const TOLD_MAX: usize = 1 << 24;

/// The sweep that is under way, if there is one: one of all indexes.
#[derive(Debug, Default)]
pub(crate) struct SweepHome {
    last: u64,
    under_way: Option<UnderWay>,
}

#[derive(Debug)]
struct UnderWay {
    number: u64,
    index: IndexId,
    /// The process that sweeps: the sweep ends with it.
    by: u64,
    processes: BTreeMap<u64, Done>,
    /// Set when all are to tell what is in their lists.
    tells: bool,
    told: Extents,
    is_void: bool,
}

/// The last step that a process has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Done {
    None,
    Notes,
    Told,
}

/// Why a sweep does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Another process sweeps, of that number.
    Other(u64),
    /// It has ended, or a process has ended before it had told what is in its lists.
    Void,
}

impl SweepHome {
    /// Begins a sweep of an index, of which those processes have compute nodes; yields its number.
    pub(crate) fn begin(
        &mut self,
        index: IndexId,
        by: u64,
        processes: impl IntoIterator<Item = u64>,
    ) -> Result<u64, Ended> {
        if let Some(UnderWay { by, .. }) = self.under_way {
            return Err(Ended::Other(by));
        }
        self.last += 1;
        self.under_way = Some(UnderWay {
            number: self.last,
            index,
            by,
            processes: processes.into_iter().map(|process| (process, Done::None)).collect(),
            tells: false,
            told: Extents::default(),
            is_void: false,
        });
        Ok(self.last)
    }

    /// Takes a process in that has its first compute node, and notes from its beginning on. Yields the sweep.
    pub(crate) fn join(&mut self, process: u64) -> Option<(u64, IndexId)> {
        let sweep = self.under_way.as_mut()?;
        sweep.processes.entry(process).or_insert(Done::Notes);
        Some((sweep.number, sweep.index))
    }

    /// Goes on without a process, which has ended.
    pub(crate) fn leave(&mut self, process: u64) {
        let Some(sweep) = &mut self.under_way else { return };
        if sweep.by == process {
            self.under_way = None;
        } else if sweep.processes.remove(&process).is_some_and(|done| done < Done::Told) {
            sweep.is_void = true;
        }
    }

    /// Returns the sweep that is under way, and what it wants of that process.
    pub(crate) fn wanted(&self, process: u64) -> Option<(u64, IndexId, Wanted)> {
        let sweep = self.under_way.as_ref()?;
        let wanted = match sweep.processes.get(&process)? {
            Done::Notes if sweep.tells => Wanted::Lists,
            _ => Wanted::Notes,
        };
        Some((sweep.number, sweep.index, wanted))
    }

    /// Notes that a process notes what passes through its lists for that sweep.
    pub(crate) fn noted(&mut self, process: u64, number: u64) {
        if let Some(sweep) = self.under_way.as_mut().filter(|sweep| sweep.number == number)
            && let Some(done) = sweep.processes.get_mut(&process)
        {
            *done = (*done).max(Done::Notes);
        }
    }

    /// Takes a part of what a process has in its lists, and notes that it was the last one.
    pub(crate) fn told(&mut self, process: u64, number: u64, pieces: &[(RemotePtr, u64)], is_last: bool) {
        if let Some(sweep) = self.under_way.as_mut().filter(|sweep| sweep.number == number)
            && let Some(done) = sweep.processes.get_mut(&process)
        {
            pieces.iter().for_each(|(at, bytes)| _ = sweep.told.add(*at, *bytes));
            sweep.is_void |= sweep.told.count() > TOLD_MAX;
            if is_last {
                *done = Done::Told;
            }
        }
    }

    /// Asks all processes for a step; yields those that have not done it.
    pub(crate) fn waits_for(&mut self, by: u64, number: u64, step: Step) -> Result<Vec<u64>, Ended> {
        let sweep = self.of(by, number)?;
        sweep.tells |= step == Step::Lists;
        let needed = match step {
            Step::Notes => Done::Notes,
            Step::Lists => Done::Told,
        };
        let late = sweep.processes.iter().filter(|(_, done)| **done < needed);
        Ok(late.map(|(process, _)| *process).collect())
    }

    /// Yields what processes have told, from that address on: `max` pieces at most, and whether there are more.
    pub(crate) fn lists(
        &mut self,
        by: u64,
        number: u64,
        from: RemotePtr,
        max: usize,
    ) -> Result<(Vec<(RemotePtr, u64)>, bool), Ended> {
        let mut runs = self.of(by, number)?.told.iter_from(from);
        let pieces = runs.by_ref().take(max).collect();
        Ok((pieces, runs.next().is_some()))
    }

    /// Ends a sweep, which only the process ends that has begun it: the one of that number, or any.
    pub(crate) fn end(&mut self, by: u64, number: Option<u64>) {
        self.under_way.take_if(|sweep| sweep.by == by && number.is_none_or(|number| sweep.number == number));
    }

    fn of(&mut self, by: u64, number: u64) -> Result<&mut UnderWay, Ended> {
        let sweep = self.under_way.as_mut();
        sweep.filter(|sweep| sweep.by == by && sweep.number == number && !sweep.is_void).ok_or(Ended::Void)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDEX: IndexId = IndexId(3);

    fn at(bits: u64) -> RemotePtr {
        RemotePtr::from_bits(bits)
    }

    fn begun() -> (SweepHome, u64) {
        let mut home = SweepHome::default();
        let number = home.begin(INDEX, 1, [1, 2]).unwrap();
        (home, number)
    }

    #[test]
    fn all_note_and_then_all_tell() {
        let (mut home, number) = begun();
        assert_eq!(home.begin(INDEX, 2, [1, 2]), Err(Ended::Other(1)));
        assert_eq!(home.waits_for(1, number, Step::Notes), Ok(vec![1, 2]));
        assert_eq!(home.wanted(2), Some((number, INDEX, Wanted::Notes)));
        home.noted(1, number);
        home.noted(2, number + 1);
        assert_eq!(home.waits_for(1, number, Step::Notes), Ok(vec![2]), "that was another sweep");
        home.noted(2, number);
        assert_eq!(home.waits_for(1, number, Step::Notes), Ok(vec![]));
        assert_eq!(home.wanted(2), Some((number, INDEX, Wanted::Notes)), "lists are not wanted yet");
        assert_eq!(home.waits_for(1, number, Step::Lists), Ok(vec![1, 2]));
        assert_eq!(home.wanted(2), Some((number, INDEX, Wanted::Lists)));
        home.told(2, number, &[(at(4096), 128), (at(8192), 64)], false);
        home.told(2, number, &[(at(4224), 64)], true);
        home.told(1, number, &[], true);
        assert_eq!(home.waits_for(1, number, Step::Lists), Ok(vec![]));
        assert_eq!(home.lists(1, number, at(0), 1), Ok((vec![(at(4096), 192)], true)));
        assert_eq!(home.lists(1, number, at(4288), 1), Ok((vec![(at(8192), 64)], false)));
        home.end(2, None);
        home.end(1, Some(number + 1));
        assert!(home.wanted(1).is_some(), "it is not theirs to end, and not this one");
        home.end(1, Some(number));
        assert_eq!(home.waits_for(1, number, Step::Lists), Err(Ended::Void));
        assert!(home.wanted(1).is_none() && home.begin(INDEX, 2, []).is_ok_and(|next| next > number));
    }

    #[test]
    fn who_joins_notes_from_its_beginning_and_tells() {
        let (mut home, number) = begun();
        assert_eq!(home.join(7), Some((number, INDEX)));
        assert_eq!(home.join(2), Some((number, INDEX)), "a process with one more compute node");
        assert_eq!(home.waits_for(1, number, Step::Notes), Ok(vec![1, 2]));
        assert_eq!(home.waits_for(1, number, Step::Lists), Ok(vec![1, 2, 7]));
        assert_eq!(SweepHome::default().join(7), None);
    }

    #[test]
    fn a_process_that_ends_untold_makes_the_sweep_void() {
        for (told, of, is_void) in [(false, 2, true), (true, 2, false), (false, 9, false)] {
            let (mut home, number) = begun();
            home.noted(2, number);
            home.told(2, number, &[], told);
            home.leave(of);
            assert_eq!(home.waits_for(1, number, Step::Notes).is_err(), is_void, "{told} {of}");
        }
        let (mut home, number) = begun();
        home.leave(1);
        assert_eq!(home.waits_for(1, number, Step::Notes), Err(Ended::Void));
        assert!(home.begin(INDEX, 2, [2]).is_ok(), "who swept has ended");
        home.end(2, None);
        assert!(home.wanted(2).is_none(), "its number need not be known");
    }
}
