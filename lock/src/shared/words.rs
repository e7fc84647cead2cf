//! The words of a lock that can be shared, and what they say. Pure.
//!
//! ```text
//!   lock + 0    the lock word (`word`): who has the lock alone
//!   lock + 8    presence of lanes 0..64, a bit for each: lane 0 is the lowest
//!   lock + 16   presence of lanes 64..128, and so on, in one line of 64 bytes with the lock word
//! ```

use farwood_runtime::RemotePtr;

use crate::word::{LockWord, WORD_BYTES};

/// Bytes that every fabric keeps whole.
const LINE_BYTES: usize = 64;
/// The lanes of one presence word.
const LANES_PER_WORD: u16 = 64;

/// The lanes of an index: who may share its locks. The same on all compute nodes.
///
/// ```
/// # use farwood_lock::shared::Lanes;
/// # use farwood_runtime::{RemotePtr, ServerId};
/// let lanes = Lanes::new(RemotePtr::new(ServerId(0), 4096), 72);
/// assert_eq!((lanes.lock_bytes(), lanes.directory_bytes()), (8 + 2 * 8, 72 * 8));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lanes {
    /// The lane directory: a word for each lane, 0 where it is free. They are 0 in a new index, and only this crate
    /// writes there.
    pub directory: RemotePtr,
    /// Lanes that there are, one for each shard that has many acquisitions. Shards beyond that have locks alone.
    pub count: u16,
    /// Acquisitions of a shard before it asks for a lane: those of a short-lived process come before.
    pub after: u32,
    /// Clients that may have a lock alone, one after the other, before one that wants to share it queues up to have it
    /// alone, too.
    pub overtaken_max: u32,
}

impl Lanes {
    /// The most lanes that an index can have: what a line holds behind the lock word.
    pub const COUNT_MAX: u16 = (LINE_BYTES / WORD_BYTES - 1) as u16 * LANES_PER_WORD;

    /// Makes `count` lanes whose directory is there.
    ///
    /// ```
    /// # use farwood_lock::shared::Lanes;
    /// # use farwood_runtime::{RemotePtr, ServerId};
    /// let lanes = Lanes { after: 0, ..Lanes::new(RemotePtr::new(ServerId(0), 4096), 64) };
    /// assert_eq!((lanes.count, lanes.after), (64, 0));
    /// ```
    ///
    /// # Panics
    /// If there are none, or more than [`Lanes::COUNT_MAX`].
    pub const fn new(directory: RemotePtr, count: u16) -> Self {
        assert!(count > 0 && count <= Lanes::COUNT_MAX, "lanes of a lock are in one line with its word");
        Lanes { directory, count, after: 64, overtaken_max: 16 }
    }

    /// Counts the bytes of a lock: its word and the presence words behind it. They are in one line, and 0 in a new
    /// node.
    ///
    /// ```
    /// # use farwood_lock::shared::Lanes;
    /// # use farwood_runtime::{RemotePtr, ServerId};
    /// assert_eq!(Lanes::new(RemotePtr::new(ServerId(0), 4096), 64).lock_bytes(), 16);
    /// ```
    pub const fn lock_bytes(&self) -> usize {
        WORD_BYTES * (1 + self.count.div_ceil(LANES_PER_WORD) as usize)
    }

    /// Counts the bytes of the lane directory.
    ///
    /// ```
    /// # use farwood_lock::shared::Lanes;
    /// # use farwood_runtime::{RemotePtr, ServerId};
    /// assert_eq!(Lanes::new(RemotePtr::new(ServerId(0), 4096), 64).directory_bytes(), 512);
    /// ```
    pub const fn directory_bytes(&self) -> usize {
        self.count as usize * WORD_BYTES
    }

    /// Tells whether a lock at `lock` is in one line.
    pub(crate) fn fit(&self, lock: RemotePtr) -> bool {
        lock.offset() as usize % LINE_BYTES + self.lock_bytes() <= LINE_BYTES
    }
}

/// The place of a lane's bit in a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bit {
    /// The offset of its word from the lock word.
    pub(crate) at: usize,
    pub(crate) mask: u64,
}

impl Bit {
    pub(crate) fn of(lane: u16) -> Self {
        let word = usize::from(lane / LANES_PER_WORD);
        Bit { at: WORD_BYTES * (1 + word), mask: 1 << (lane % LANES_PER_WORD) }
    }

    /// Tells whether it is set in a lock's words.
    pub(crate) fn is_set(self, words: LockWords<'_>) -> bool {
        word_at(words.0, self.at) & self.mask != 0
    }
}

/// The words of a lock as they were read, of [`Lanes::lock_bytes`] bytes.
#[derive(Clone, Copy, Debug)]
pub struct LockWords<'a>(&'a [u8]);

impl<'a> LockWords<'a> {
    /// Parses the words of a lock: every content is one.
    ///
    /// ```
    /// # use farwood_lock::shared::LockWords;
    /// let mut bytes = [0; 16];
    /// assert!(LockWords::new(&bytes).is_free());
    /// bytes[8] = 0b101;
    /// assert_eq!(LockWords::new(&bytes).lanes().collect::<Vec<_>>(), [0, 2]);
    /// ```
    ///
    /// # Panics
    /// If they are no whole words, or less than two.
    pub fn new(bytes: &'a [u8]) -> Self {
        assert!(bytes.len() >= 2 * WORD_BYTES && bytes.len().is_multiple_of(WORD_BYTES));
        LockWords(bytes)
    }

    /// Yields the word of the client that has the lock alone, or is about to.
    ///
    /// ```
    /// # use farwood_lock::{LockWord, shared::LockWords};
    /// let (mut bytes, word) = ([0; 16], LockWord::new(7, 1, 9));
    /// bytes[..8].copy_from_slice(&word.to_bits().to_le_bytes());
    /// assert_eq!(LockWords::new(&bytes).holder(), Some(word));
    /// ```
    pub fn holder(self) -> Option<LockWord> {
        LockWord::from_bits(word_at(self.0, 0))
    }

    /// Yields the presence words: where each is behind the lock word, and what it is.
    pub(super) fn presence(self) -> impl Iterator<Item = (usize, u64)> + 'a {
        (0..self.0.len()).step_by(WORD_BYTES).skip(1).map(move |at| (at, word_at(self.0, at)))
    }

    /// Yields the lanes whose shards share the lock, or ask for it, ascending.
    ///
    /// ```
    /// # use farwood_lock::shared::LockWords;
    /// let mut bytes = [0; 24];
    /// bytes[16] = 1;
    /// assert!(LockWords::new(&bytes).lanes().eq([64]));
    /// ```
    pub fn lanes(self) -> impl Iterator<Item = u16> + 'a {
        self.presence().zip((0..).step_by(usize::from(LANES_PER_WORD))).flat_map(|((_, word), first)| {
            (0..LANES_PER_WORD).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + bit)
        })
    }

    /// Tells whether no client has the lock, alone or with others, as in a node at rest.
    ///
    /// ```
    /// # use farwood_lock::shared::LockWords;
    /// assert!(LockWords::new(&[0; 16]).is_free());
    /// assert!(!LockWords::new(&[1; 16]).is_free());
    /// ```
    pub fn is_free(self) -> bool {
        self.0.iter().all(|byte| *byte == 0)
    }
}

fn word_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..][..WORD_BYTES].try_into().expect("8 bytes"))
}

#[cfg(test)]
mod tests {
    use farwood_runtime::ServerId;

    use super::*;

    fn at(offset: u64) -> RemotePtr {
        RemotePtr::new(ServerId(0), offset)
    }

    #[test]
    fn every_lane_has_a_bit_of_its_own() {
        for lane in 0..Lanes::COUNT_MAX {
            let (bit, mut bytes) = (Bit::of(lane), [0; LINE_BYTES]);
            assert!(!bit.is_set(LockWords::new(&bytes)));
            bytes[bit.at..][..WORD_BYTES].copy_from_slice(&bit.mask.to_le_bytes());
            let words = LockWords::new(&bytes);
            assert!(words.lanes().eq([lane]) && words.holder().is_none() && !words.is_free());
            let set = (0..Lanes::COUNT_MAX).filter(|&other| Bit::of(other).is_set(words));
            assert!(set.eq([lane]));
            assert!(Lanes::new(at(64), lane + 1).lock_bytes() >= bit.at + WORD_BYTES);
        }
    }

    #[test]
    fn a_lock_is_within_a_line() {
        let lanes = Lanes::new(at(64), 65);
        assert_eq!(lanes.lock_bytes(), 24);
        assert!(lanes.fit(at(0)) && lanes.fit(at(40)) && !lanes.fit(at(48)) && !lanes.fit(at(56)));
        assert!(Lanes::new(at(64), Lanes::COUNT_MAX).fit(at(128)));
    }

    #[test]
    #[should_panic(expected = "in one line")]
    fn refuses_more_lanes_than_a_line_has() {
        let _ = Lanes::new(at(64), Lanes::COUNT_MAX + 1);
    }
}
