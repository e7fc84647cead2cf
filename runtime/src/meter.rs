//! Counters of what one operation did on the fabric: exact, cheap, carried by the operation itself.

use std::cell::Cell;

use crate::chain::{Op, Verb};

/// What one operation has posted so far. Lives on the operation's stack; the fabric adds to it when it posts.
#[derive(Default, Debug)]
pub struct Meter {
    usage: Cell<Usage>,
}

/// A reading of a [`Meter`].
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Round trips: chains that were awaited one after the other (chains in parallel count once).
    pub round_trips: u32,
    /// READs.
    pub reads: u32,
    /// WRITEs, inline words included.
    pub writes: u32,
    /// Compare-and-swaps, failed ones included.
    pub cas: u32,
    /// Fetch-and-adds.
    pub faa: u32,
    /// Steps done again because of a torn read, a moved node, a stale cache entry or a lost race.
    pub retries: u32,
    /// Payload bytes read.
    pub bytes_read: u64,
    /// Payload bytes written.
    pub bytes_written: u64,
}

impl Meter {
    /// Counts one round trip. [`crate::verbs::Verbs::submit`] does so by itself.
    pub fn round_trip(&self) {
        self.update(|usage| usage.round_trips += 1);
    }

    /// Counts one step that has to be done again.
    pub fn retry(&self) {
        self.update(|usage| usage.retries += 1);
    }

    /// Counts the verbs of a chain that is being posted.
    pub fn verbs(&self, verbs: &[Verb]) {
        self.update(|usage| {
            for verb in verbs {
                match verb.op {
                    Op::Read { len, .. } => {
                        usage.reads += 1;
                        usage.bytes_read += u64::from(len);
                    }
                    Op::Write { len, .. } => {
                        usage.writes += 1;
                        usage.bytes_written += u64::from(len);
                    }
                    Op::WriteWord { .. } => {
                        usage.writes += 1;
                        usage.bytes_written += 8;
                    }
                    Op::Cas { .. } => usage.cas += 1,
                    Op::Faa { .. } => usage.faa += 1,
                }
            }
        });
    }

    /// What was counted so far.
    pub fn usage(&self) -> Usage {
        self.usage.get()
    }

    fn update(&self, change: impl FnOnce(&mut Usage)) {
        let mut usage = self.usage.get();
        change(&mut usage);
        self.usage.set(usage);
    }
}
