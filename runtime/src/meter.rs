//! Counters of one operation's work on the fabric: exact, cheap, carried by the operation itself.

use std::cell::Cell;

use crate::chain::{MASKED_BYTES, Op, Verb};

/// Counters of what one operation has posted so far. Lives on the operation's stack; the fabric adds to it when it
/// posts.
#[derive(Default, Debug)]
pub struct Meter {
    round_trips: Cell<u32>,
    reads: Cell<u32>,
    writes: Cell<u32>,
    cas: Cell<u32>,
    faa: Cell<u32>,
    retries: Cell<u32>,
    bytes_read: Cell<u64>,
    bytes_written: Cell<u64>,
    /// Start of the operation's wait for others, 0 if it does not wait.
    waits_since_ns: Cell<u64>,
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
    /// Payload bytes read, those that masked CASes bring included.
    pub bytes_read: u64,
    /// Payload bytes written.
    pub bytes_written: u64,
}

impl Meter {
    /// Counts one round trip. [`crate::verbs::Verbs::submit`] does so by itself.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let at = shard.control().chunk(ServerId(0), IndexId(1)).await?.start;
    /// let meter = Meter::default();
    /// let mut chains = [Chain::new(at.server()), Chain::new(at.server())];
    /// chains[0].write_word(at, 1);
    /// chains[1].write_word(at.add(64), 2);
    /// futures::future::try_join_all(chains.map(|chain| shard.post(&meter, chain))).await?;
    /// meter.round_trip(); // Both chains were under way at the same time.
    /// assert_eq!((meter.usage().round_trips, meter.usage().writes), (1, 2));
    /// # Ok(()) }).unwrap();
    /// ```
    #[inline]
    pub fn round_trip(&self) {
        count(&self.round_trips);
    }

    /// Returns since when the operation waits for others, in ns of its shard's clock: since `now_ns`, unless a wait
    /// began before and has not ended ([`Meter::waits_no_more`]).
    ///
    /// ```
    /// # use farwood_runtime::Meter;
    /// let meter = Meter::default();
    /// assert_eq!(meter.waits_since(1_000), 1_000);
    /// assert_eq!(meter.waits_since(3_000), 1_000, "it has waited for 2 us");
    /// ```
    pub fn waits_since(&self, now_ns: u64) -> u64 {
        if self.waits_since_ns.get() == 0 {
            self.waits_since_ns.set(now_ns.max(1));
        }
        self.waits_since_ns.get()
    }

    /// Ends the wait: what the operation waited for has come.
    ///
    /// ```
    /// # use farwood_runtime::Meter;
    /// let meter = Meter::default();
    /// meter.waits_since(1_000);
    /// meter.waits_no_more();
    /// assert_eq!(meter.waits_since(3_000), 3_000, "another wait");
    /// ```
    #[inline]
    pub fn waits_no_more(&self) {
        self.waits_since_ns.set(0);
    }

    /// Counts one step that has to be done again.
    ///
    /// ```
    /// # use farwood_runtime::Meter;
    /// let meter = Meter::default();
    /// meter.retry();
    /// assert_eq!(meter.usage().retries, 1);
    /// ```
    pub fn retry(&self) {
        count(&self.retries);
    }

    /// Counts the verbs of a chain that is being posted.
    ///
    /// ```
    /// # use farwood_runtime::{Chain, Meter, RemotePtr, ServerId};
    /// let at = RemotePtr::new(ServerId(0), 4096);
    /// let mut chain = Chain::new(at.server());
    /// chain.cas(at, 0, 7).write_word(at.add(8), 1);
    /// let meter = Meter::default();
    /// meter.verbs(chain.verbs());
    /// assert_eq!((meter.usage().cas, meter.usage().writes, meter.usage().bytes_written), (1, 1, 8));
    /// ```
    #[inline]
    pub fn verbs(&self, verbs: &[Verb]) {
        for verb in verbs {
            match verb.op {
                Op::Read { len, .. } => {
                    count(&self.reads);
                    self.bytes_read.set(self.bytes_read.get() + u64::from(len));
                }
                Op::Write { len, .. } => {
                    count(&self.writes);
                    self.bytes_written.set(self.bytes_written.get() + u64::from(len));
                }
                Op::WriteWord { .. } => {
                    count(&self.writes);
                    self.bytes_written.set(self.bytes_written.get() + 8);
                }
                Op::Cas { .. } => count(&self.cas),
                Op::MaskedCas { .. } => {
                    count(&self.cas);
                    self.bytes_read.set(self.bytes_read.get() + MASKED_BYTES as u64);
                }
                Op::Faa { .. } => count(&self.faa),
            }
        }
    }

    /// Returns the counts so far.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let at = shard.control().chunk(ServerId(0), IndexId(1)).await?.start;
    /// let meter = Meter::default();
    /// shard.read(&meter, at, 1024).await?;
    /// let Usage { round_trips, reads, bytes_read, .. } = meter.usage();
    /// assert_eq!((round_trips, reads, bytes_read), (1, 1, 1024));
    /// # Ok(()) }).unwrap();
    /// ```
    #[inline]
    pub fn usage(&self) -> Usage {
        Usage {
            round_trips: self.round_trips.get(),
            reads: self.reads.get(),
            writes: self.writes.get(),
            cas: self.cas.get(),
            faa: self.faa.get(),
            retries: self.retries.get(),
            bytes_read: self.bytes_read.get(),
            bytes_written: self.bytes_written.get(),
        }
    }
}

#[inline]
fn count(counter: &Cell<u32>) {
    counter.set(counter.get() + 1);
}
