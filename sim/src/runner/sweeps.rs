//! Sweeps in a run: a shard of a compute node that lives looks for lost memory while clients work, some of which die.
//! It must give back nothing that is in use: the last looks tell.

use std::cell::Cell;
use std::rc::Rc;

use farwood_index::{IndexError, SweepError};
use farwood_runtime::{ControlError, Verbs};
use futures::future::{Either, select};

use super::phases::{Member, Run};
use crate::client::Crew;

/// One run in so many is swept.
const SWEPT_ONE_IN: u64 = 3;
/// Virtual time between two sweeps: clients wait for the READs of one.
const PAUSE_NS: u64 = 300_000;
/// Virtual time between two wishes for the next epoch: clients that work ask for it seldom, and are soon at their end.
const EPOCH_NS: u64 = 3_000;

/// Sweeps that go on until this is dropped.
pub(super) struct Sweeps(Rc<Cell<bool>>);

impl Drop for Sweeps {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

impl Run<'_> {
    /// Tells whether lost memory is looked for in this run. Not all kinds of indexes can be swept: those that say so
    /// are to be.
    pub(super) fn is_swept(&self) -> bool {
        let paths = self.scenario.spec().kind().trial().rare_paths;
        self.scenario.seed % SWEPT_ONE_IN == 1 && paths.contains(&"index.swept")
    }

    /// Sweeps the index over and over, on the last shard that is there. A sweep that is under way in the end is
    /// dropped.
    pub(super) fn sweep_meanwhile(&self, fleet: &[Member]) -> Option<Sweeps> {
        let Member { shard, index, .. } = fleet.last().filter(|_| self.is_swept())?;
        let (over, crew) = (Rc::new(Cell::new(false)), Rc::clone(&self.crew));
        let (is_over, index, verbs) = (Rc::clone(&over), index.clone(), shard.clone());
        drop(shard.spawn(async move {
            while !is_over.get() {
                let ends = async {
                    while !is_over.get() {
                        verbs.control().want_epoch();
                        verbs.pause(EPOCH_NS).await;
                    }
                };
                let (sweep, ends) = (Box::pin(index.sweep()), Box::pin(ends));
                if let Either::Left((Err(error), _)) = select(sweep, ends).await
                    && !crew.may_end_sweep(&error)
                {
                    crew.recorder.fail(format!("a sweep beside clients failed: {error}"));
                }
                verbs.pause(PAUSE_NS).await;
            }
        }));
        Some(Sweeps(over))
    }

    /// Sweeps the index once, beside clients that nothing disturbs; yields what tells that it has ended. Where
    /// servers do not know of the dead, the epoch waits for them.
    pub(super) fn sweep_once(&self, fleet: &[Member]) -> Rc<Cell<bool>> {
        let ended = Rc::new(Cell::new(true));
        let can_be = self.is_swept() && (self.scenario.takes_over() || self.crew.dead().is_empty());
        let alive = fleet.iter().find(|member| can_be && !member.shard.is_dead());
        if let Some(Member { shard, index, .. }) = alive {
            ended.set(false);
            let (index, crew, ends) = (index.clone(), Rc::clone(&self.crew), Rc::clone(&ended));
            let (verbs, wishes_end) = (shard.clone(), Rc::clone(&ended));
            drop(shard.spawn(async move {
                // One of before may not have ended yet.
                let swept = loop {
                    match index.sweep().await {
                        Err(SweepError::Control(ControlError::Sweeping { .. })) => {
                            verbs.pause(PAUSE_NS).await
                        }
                        swept => break swept,
                    }
                };
                if let Err(error) = swept
                    && !crew.may_end_sweep(&error)
                {
                    crew.recorder.fail(format!("a sweep failed, though nothing disturbs it: {error}"));
                }
                ends.set(true);
            }));
            let wishes = shard.clone();
            drop(shard.spawn(async move {
                let mut pause_ns = EPOCH_NS;
                while !wishes_end.get() {
                    wishes.control().want_epoch();
                    wishes.pause(pause_ns).await;
                    // Where it waits for a client that stands still, seldom is enough.
                    pause_ns += pause_ns / 64;
                }
            }));
        }
        ended
    }
}

impl Crew {
    /// Tells whether a sweep may end with that error, in this scenario.
    fn may_end_sweep(&self, error: &SweepError) -> bool {
        match error {
            // Compute nodes have died, and their locks stay; or one holds the epoch back, or asks for memory and takes
            // no answer.
            SweepError::LocksOfTheDead { .. } | SweepError::Void => !self.dead().is_empty(),
            SweepError::Epoch | SweepError::Late { .. } => true,
            SweepError::Control(ControlError::Sweeping { .. }) => true,
            SweepError::Control(error) => self.may_be_lost(error),
            SweepError::Access(error) => self.is_legal(&IndexError::Access(error.clone())),
            _ => false,
        }
    }
}
