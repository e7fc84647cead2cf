//! The lane of a shard: claimed in the lane directory, in the background, and given back in the end. Of other lanes it
//! knows whose they are.
//!
//! A CAS from 0 to a word of the shard's own claims a lane. If its chain fails, the directory that is read next has the
//! word in it or has not.

use std::rc::Rc;

use farwood_runtime::{Chain, FabricError, Failed, Meter, RemotePtr, Verbs};

use super::words::Lanes;
use super::{Lane, Sharing};
use crate::pace::{ATTEMPTS_MAX, Pace};
use crate::word::{FREE, LockWord, WORD_BYTES};

impl Lanes {
    /// Yields the address of a lane's word in the directory.
    pub(super) fn word_of(&self, lane: u16) -> RemotePtr {
        self.directory.add(u64::from(lane) * WORD_BYTES as u64)
    }
}

/// The answer of the directory to a shard that wants a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    Own(u16),
    Free(u16),
    /// All lanes have owners.
    Full,
}

impl Found {
    /// Looks for `word` among the words of the directory, then for a free one.
    fn among(words: &[Option<LockWord>], word: LockWord) -> Self {
        let place = |wanted| words.iter().position(|found| *found == wanted).map(|lane| lane as u16);
        place(Some(word)).map(Found::Own).or(place(None).map(Found::Free)).unwrap_or(Found::Full)
    }
}

impl<V: Verbs> Sharing<V> {
    /// Counts a lock that a client gets alone for want of a lane, and asks for one if these are many.
    #[cold]
    pub(super) fn want_lane(self: &Rc<Self>) {
        self.counters.count(|stats| stats.laneless += 1);
        if let Lane::Wanting { alone } = self.lane.get() {
            self.lane.set(Lane::Wanting { alone: alone + 1 });
            if alone >= self.lanes.after {
                self.lane.set(Lane::Claiming);
                self.table().verbs.attend(claim(Rc::clone(self)));
            }
        }
    }

    /// Reads who has each lane: one round trip.
    pub(super) async fn lane_owners(&self, meter: &Meter) -> Result<Vec<Option<LockWord>>, FabricError> {
        let Lanes { directory, .. } = self.lanes;
        let bytes = self.lanes.directory_bytes();
        let read = self.table().verbs.read(meter, directory, bytes).await?.into_buf();
        let (words, _) = read[..bytes].as_chunks::<WORD_BYTES>();
        Ok(words.iter().map(|word| LockWord::from_bits(u64::from_le_bytes(*word))).collect())
    }
}

/// Claims a lane. If that fails, the shard asks again after as many acquisitions.
async fn claim<V: Verbs>(sharing: Rc<Sharing<V>>) {
    let table = sharing.table();
    // Whose bits are taken away when it is dead.
    let word = if table.intents.is_some() { table.word().with_intents() } else { table.word() };
    let mut pace = Pace::after(0);
    let mut lane = Lane::Wanting { alone: 0 };
    while pace.attempts() < ATTEMPTS_MAX {
        match try_claim(&sharing, word).await {
            Ok(Found::Own(own)) => {
                tracing::debug!(name: "lock.lane.claimed", lane = own, "a shard may share locks");
                lane = Lane::Own { lane: own, word };
                break;
            }
            // Another shard may have been quicker.
            Ok(Found::Free(_)) => {}
            Ok(Found::Full) => {
                let lanes = sharing.lanes.count;
                tracing::debug!(name: "lock.lane.none", lanes, "all lanes have owners: a shard has locks alone");
                break;
            }
            Err(cause) => {
                let pause_ns = pace.failed(&cause, sharing.table().config.attempts_max);
                sharing.table().verbs.pause(pause_ns).await;
            }
        }
    }
    sharing.lane.set(lane);
}

/// Makes one attempt: a READ, and a CAS if a lane is free.
async fn try_claim<V: Verbs>(sharing: &Sharing<V>, word: LockWord) -> Result<Found, FabricError> {
    let meter = Meter::default();
    let found = Found::among(&sharing.lane_owners(&meter).await?, word);
    let Found::Free(lane) = found else { return Ok(found) };
    let was = cas(&sharing.table().verbs, sharing.lanes.word_of(lane), FREE, word.to_bits()).await?;
    Ok(if was == FREE { Found::Own(lane) } else { found })
}

/// Gives a lane back, of which no bit is set anywhere. A CAS that has been executed already finds another word.
pub(super) async fn give_back<V: Verbs>(verbs: V, at: RemotePtr, word: LockWord) {
    let mut pace = Pace::after(0);
    while let Err(failed) = cas(&verbs, at, word.to_bits(), FREE).await {
        let pause_ns = pace.failed(failed.cause(), ATTEMPTS_MAX);
        if pace.attempts() >= ATTEMPTS_MAX {
            tracing::debug!(name: "lock.lane.kept", %at, "a lane could not be given back");
            return;
        }
        verbs.pause(pause_ns).await;
    }
}

pub(super) async fn cas<V: Verbs>(
    verbs: &V,
    at: RemotePtr,
    expected: u64,
    desired: u64,
) -> Result<u64, Failed> {
    let mut chain = Chain::new(at.server());
    chain.cas(at, expected, desired);
    Ok(verbs.submit(&Meter::default(), chain).await?.atomics[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_its_own_lane_before_a_free_one() {
        let [own, other] = [1, 2].map(|nonce| LockWord::new(7, 1, nonce));
        for (words, found) in [
            (&[None, Some(own)][..], Found::Own(1)),
            (&[Some(other), None, None], Found::Free(1)),
            (&[Some(other)], Found::Full),
            (&[], Found::Full),
        ] {
            assert_eq!(Found::among(words, own), found);
        }
    }
}
