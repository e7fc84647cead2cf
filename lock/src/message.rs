//! What a client's shard and a lock's home tell each other, and its form in the three words of a message. Pure.
//!
//! ```text
//!           63                      32 31      24 23      16 15       8 7        0
//!          +--------------------------+----------+----------+----------+----------+
//!  word 0  | token                    | 0        | depth    | flag     | kind     |
//!          +--------------------------+----------+----------+----------+----------+
//!  word 1  | address of the lock word                                             |
//!          +----------------------------------------------------------------------+
//!  word 2  | the lock word that stays taken, 0 if it was not taken or was cleared |
//!          +----------------------------------------------------------------------+
//! ```
//!
//! The token names an acquisition on its client's shard; the flag is `hinted` in a Grant and `unused` in a Release. A
//! note whose home is the client's own shard is handed over as a value and never becomes a message.

use farwood_runtime::{Message, RemotePtr};

use crate::word::LockWord;

/// One thing said about one lock and one acquisition of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Note {
    pub(crate) lock: RemotePtr,
    pub(crate) token: u32,
    pub(crate) what: What,
}

/// What a [`Note`] says. The first three go to the lock's home, the others to the client's shard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum What {
    Request,
    Release(Release),
    /// The waiter is gone. Answered by Cancelled, unless a Grant crossed it.
    Cancel,
    Grant(Grant),
    /// Somebody waits. Advice only: it may come late or for nothing.
    Hint,
    Cancelled,
}

/// How a holder leaves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Release {
    /// The global word, if it stays taken.
    pub(crate) kept: Option<LockWord>,
    /// Whether the lock comes back without having been held: a cancelled waiter's. It then counts as no hand-over.
    pub(crate) unused: bool,
}

/// How a client gets the local lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Grant {
    /// The global word, if it is taken already: the lock was handed over.
    pub(crate) kept: Option<LockWord>,
    /// Consecutive hand-overs up to this one.
    pub(crate) depth: u8,
    /// Whether somebody else waits already.
    pub(crate) hinted: bool,
}

const REQUEST: u8 = 1;
const RELEASE: u8 = 2;
const CANCEL: u8 = 3;
const GRANT: u8 = 4;
const HINT: u8 = 5;
const CANCELLED: u8 = 6;

impl Note {
    pub(crate) fn encode(self) -> Message {
        let (kind, flag, depth, kept) = match self.what {
            What::Request => (REQUEST, false, 0, None),
            What::Release(release) => (RELEASE, release.unused, 0, release.kept),
            What::Cancel => (CANCEL, false, 0, None),
            What::Grant(grant) => (GRANT, grant.hinted, grant.depth, grant.kept),
            What::Hint => (HINT, false, 0, None),
            What::Cancelled => (CANCELLED, false, 0, None),
        };
        let head =
            u64::from(self.token) << 32 | u64::from(depth) << 16 | u64::from(flag) << 8 | u64::from(kind);
        Message([head, self.lock.to_bits(), kept.map_or(0, LockWord::to_bits)])
    }

    /// `None` for a message that is not one of this crate's.
    pub(crate) fn decode(Message([head, lock, kept]): Message) -> Option<Self> {
        let kept = LockWord::from_bits(kept);
        let [kind, flag, depth, _] = (head as u32).to_le_bytes();
        let flag = flag != 0;
        let what = match kind {
            REQUEST => What::Request,
            RELEASE => What::Release(Release { kept, unused: flag }),
            CANCEL => What::Cancel,
            GRANT => What::Grant(Grant { kept, depth, hinted: flag }),
            HINT => What::Hint,
            CANCELLED => What::Cancelled,
            _ => return None,
        };
        Some(Note { lock: RemotePtr::from_bits(lock), token: (head >> 32) as u32, what })
    }
}

#[cfg(test)]
mod tests {
    use farwood_runtime::ServerId;

    use super::*;

    #[test]
    fn every_note_comes_back() {
        let mut whats = vec![What::Request, What::Cancel, What::Hint, What::Cancelled];
        for kept in [None, Some(LockWord::new(1, 0, 0)), Some(LockWord::new(u16::MAX, u16::MAX, u32::MAX))] {
            for flag in [false, true] {
                whats.push(What::Release(Release { kept, unused: flag }));
                whats.extend([0, 4, 255].map(|depth| What::Grant(Grant { kept, depth, hinted: flag })));
            }
        }
        for what in whats {
            for token in [0, 1, u32::MAX] {
                let note = Note { lock: RemotePtr::new(ServerId(u16::MAX), (1 << 48) - 8), token, what };
                assert_eq!(Note::decode(note.encode()), Some(note));
            }
        }
    }

    #[test]
    fn foreign_messages_are_rejected() {
        assert_eq!(Note::decode(Message::default()), None);
        assert_eq!(Note::decode(Message([7, 0, 0])), None);
    }
}
