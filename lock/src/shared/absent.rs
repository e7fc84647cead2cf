//! The bits of dead compute nodes: clients that wait for the lock alone take them away. Sharers write whole lines only,
//! so nothing is torn where one has died, and its bit is all that it leaves.
//!
//! ```text
//!   dead     FAA bit ✗
//!   alone             CAS word ── READ words: a bit, for long ── READ lanes: the dead's ── CAS words: without it
//! ```
//!
//! Nothing of a dead and fenced node takes effect any more, and its lane has no other owner: no sharer changes its
//! bits. Of two clients that take one away, each by a CAS from exactly the word that it has read, one does.
//!
//! Its lanes stay its own in the directory. A new owner would take its bit for clear where it has not set it, so all
//! nodes of the index would have to be looked at first.

use farwood_runtime::{FabricError, Meter, RemotePtr, Verbs};

use super::Sharing;
use super::claim::cas;
use super::words::{Bit, LockWords};
use crate::deaths::{self, ASK_SOON_NS};
use crate::word::LockWord;

impl<V: Verbs> Sharing<V> {
    /// Takes away the bits of the dead among those that were found in a lock's words. Two round trips if there are any
    /// dead, and one for each further presence word with such a bit.
    #[cold]
    pub(super) async fn bury(
        &self,
        meter: &Meter,
        lock: RemotePtr,
        found: LockWords<'_>,
    ) -> Result<(), FabricError> {
        let table = self.table();
        if table.intents.is_none() {
            return Ok(());
        }
        deaths::ask_again(table, table.verbs.now(), ASK_SOON_NS);
        if table.deaths.is_empty() {
            return Ok(());
        }
        let owners = self.lane_owners(meter).await?;
        let is_dead = |lane: u16| {
            let owner = owners.get(usize::from(lane)).copied().flatten();
            owner.is_some_and(|word| word.keeps_intents() && table.deaths.contain(word.owner()))
        };
        for (at, word, dead) in found.presence_of(is_dead).filter(|(.., dead)| *dead != 0) {
            let was = cas(&table.verbs, lock.add(at as u64), word, word & !dead).await?;
            if was == word {
                let bits = u64::from(dead.count_ones());
                tracing::debug!(name: "lock.shared.recovered", %lock, bits, "dead nodes share a lock no longer");
                self.counters.count(|stats| stats.recovered += bits);
            }
        }
        Ok(())
    }

    /// Takes away the bit of the lane that has that word in the directory, if there is such a lane, and its owner is
    /// dead. Yields whether it is away; it stays if the control plane does not say who is dead.
    pub(super) async fn take_over(&self, lock: RemotePtr, owner: LockWord) -> Result<bool, FabricError> {
        let (table, meter) = (self.table(), Meter::default());
        let owners = self.lane_owners(&meter).await?;
        let Some(lane) = owners.iter().position(|word| *word == Some(owner)) else { return Ok(true) };
        deaths::ask(table).await;
        let mut words = self.words_of(&meter, lock).await?;
        self.bury(&meter, lock, LockWords::new(&words)).await?;
        words = self.words_of(&meter, lock).await?;
        Ok(!Bit::of(lane as u16).is_set(LockWords::new(&words)))
    }

    async fn words_of(&self, meter: &Meter, lock: RemotePtr) -> Result<Vec<u8>, FabricError> {
        let bytes = self.lanes.lock_bytes();
        let read = self.table().verbs.read(meter, lock, bytes).await?.into_buf();
        Ok(read[..bytes].to_vec())
    }
}

impl LockWords<'_> {
    /// Yields the presence words: where each is behind the lock word, what it is, and its bits of such lanes.
    fn presence_of(self, is_such: impl Fn(u16) -> bool) -> impl Iterator<Item = (usize, u64, u64)> {
        let such: Vec<Bit> = self.lanes().filter(|lane| is_such(*lane)).map(Bit::of).collect();
        self.presence().map(move |(at, word)| {
            (at, word, such.iter().filter(|bit| bit.at == at).fold(0, |mask, bit| mask | bit.mask))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::word::WORD_BYTES;

    #[test]
    fn finds_the_bits_of_some_lanes() {
        let mut bytes = [0; 4 * WORD_BYTES];
        for lane in [0, 5, 63, 64, 70, 130] {
            let bit = Bit::of(lane);
            bytes[bit.at + lane as usize % 64 / 8] |= 1 << (lane % 8);
        }
        let found: Vec<_> = LockWords::new(&bytes).presence_of(|lane| lane % 2 == 0).collect();
        let (one, two, three) = (1 | 1 << 5 | 1 << 63, 1 | 1 << 6, 1 << 2);
        assert_eq!(found, [(8, one, 1), (16, two, two), (24, three, three)]);
    }
}
