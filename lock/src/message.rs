//! Messages between a client's shard and a lock's home, and their form in three words. Pure.
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
//! The token names an acquisition on its client's shard; the flag is `hinted` in a Grant and `unused` in a Release. If
//! the home is the client's own shard, the value is handed over as it is and never encoded.
//!
//! A lock word that is to carry something when it is free ([`WordCodec`]) travels with that payload. Its owner and its
//! tag are left out for it: both shards know them, since words that carry something stand for no other index. `C` is
//! set in this form, `F` is the flag.
//!
//! ```text
//!           63                      32 31                 16 15       8 7 6 5    0
//!          +--------------------------+---------------------+----------+-+-+------+
//!  word 0  | token                    | payload, high       | depth    |C|F| kind |
//!          +--------------------------+---------------------+----------+-+-+------+
//!  word 2  | nonce                    | payload, low                               |
//!          +--------------------------+--------------------------------------------+
//! ```

use farwood_runtime::{Message, RemotePtr};

use crate::word::{Claim, FREE, LockWord, WordCodec};

/// A message about one lock and one acquisition of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LockMessage {
    pub(crate) lock: RemotePtr,
    pub(crate) token: u32,
    pub(crate) kind: MessageKind,
}

/// The content of a [`LockMessage`]. The first three go to the lock's home, the others to the client's shard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum MessageKind {
    Request,
    Release(Release),
    /// The waiter is gone. Answered by Cancelled, unless a Grant crossed it.
    Cancel,
    Grant(Grant),
    /// Another client waits. Advice only: it may come late or without need.
    Hint,
    Cancelled,
}

/// The way in which a holder releases the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Release {
    /// The claim of the global word, if that stays taken.
    pub(crate) kept: Option<Claim>,
    /// True if the lock comes back without having been held, from a cancelled waiter. It then counts as no hand-over.
    pub(crate) unused: bool,
}

/// The way in which a client gets the local lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Grant {
    /// The claim of the global word, if that is taken already: the lock was handed over.
    pub(crate) kept: Option<Claim>,
    /// Consecutive hand-overs up to this one.
    pub(crate) depth: u8,
    /// True if another client waits already.
    pub(crate) hinted: bool,
}

const REQUEST: u8 = 1;
const RELEASE: u8 = 2;
const CANCEL: u8 = 3;
const GRANT: u8 = 4;
const HINT: u8 = 5;
const CANCELLED: u8 = 6;

/// Marks a message that has a payload, and the flag beside its kind.
const CARRIES: u8 = 1 << 7;
const FLAG: u8 = 1 << 6;

impl LockMessage {
    pub(crate) fn encode(self) -> Message {
        let (kind, flag, depth, kept) = match self.kind {
            MessageKind::Request => (REQUEST, false, 0, None),
            MessageKind::Release(release) => (RELEASE, release.unused, 0, release.kept),
            MessageKind::Cancel => (CANCEL, false, 0, None),
            MessageKind::Grant(grant) => (GRANT, grant.hinted, grant.depth, grant.kept),
            MessageKind::Hint => (HINT, false, 0, None),
            MessageKind::Cancelled => (CANCELLED, false, 0, None),
        };
        let (first, kept) = match kept {
            Some(Claim { word, vacant: payload }) if payload != FREE => {
                assert_eq!(payload >> WordCodec::PAYLOAD_BITS_MAX, 0, "a leftover is not handed over");
                let [low, high] = ((payload >> 32) as u16).to_le_bytes();
                let kind = kind | CARRIES | if flag { FLAG } else { 0 };
                ([kind, depth, low, high], u64::from(word.nonce()) << 32 | u64::from(payload as u32))
            }
            _ => ([kind, u8::from(flag), depth, 0], kept.map_or(0, |claim| claim.word.to_bits())),
        };
        let head = u64::from(self.token) << 32 | u64::from(u32::from_le_bytes(first));
        Message([head, self.lock.to_bits(), kept])
    }

    /// Decodes a message; `None` if it is not one of this crate's. `own` is a word of the table, of any acquisition.
    pub(crate) fn decode(Message([head, lock, kept]): Message, own: LockWord) -> Option<Self> {
        let first = (head as u32).to_le_bytes();
        let (kind, flag, depth, kept) = if first[0] & CARRIES == 0 {
            let [kind, flag, depth, _] = first;
            let kept = LockWord::from_bits(kept).map(|word| Claim { word, vacant: FREE });
            (kind, flag != 0, depth, kept)
        } else {
            let [kind, depth, high @ ..] = first;
            let payload = u64::from(u16::from_le_bytes(high)) << 32 | u64::from(kept as u32);
            let claim = Claim { word: own.with_nonce((kept >> 32) as u32), vacant: payload };
            (kind & !(CARRIES | FLAG), kind & FLAG != 0, depth, Some(claim))
        };
        let kind = match kind {
            REQUEST => MessageKind::Request,
            RELEASE => MessageKind::Release(Release { kept, unused: flag }),
            CANCEL => MessageKind::Cancel,
            GRANT => MessageKind::Grant(Grant { kept, depth, hinted: flag }),
            HINT => MessageKind::Hint,
            CANCELLED => MessageKind::Cancelled,
            _ => return None,
        };
        Some(LockMessage { lock: RemotePtr::from_bits(lock), token: (head >> 32) as u32, kind })
    }
}

#[cfg(test)]
mod tests {
    use farwood_runtime::ServerId;

    use super::*;

    #[test]
    fn every_message_comes_back() {
        let own = LockWord::new(7, 3, 12);
        let plain = [LockWord::new(1, 0, 0), LockWord::new(u16::MAX, u16::MAX, u32::MAX)];
        let plain = plain.map(|word| Some(Claim { word, vacant: FREE }));
        let carrying = [1, 1 << 32, 0x8765_4321_0FED, (1 << 48) - 1].into_iter().flat_map(|payload| {
            [0, u32::MAX].map(|nonce| Some(Claim { word: own.with_nonce(nonce), vacant: payload }))
        });
        let mut kinds =
            vec![MessageKind::Request, MessageKind::Cancel, MessageKind::Hint, MessageKind::Cancelled];
        for kept in carrying.chain(plain).chain([None]) {
            for flag in [false, true] {
                kinds.push(MessageKind::Release(Release { kept, unused: flag }));
                kinds
                    .extend([0, 4, 255].map(|depth| MessageKind::Grant(Grant { kept, depth, hinted: flag })));
            }
        }
        for kind in kinds {
            for token in [0, 1, u32::MAX] {
                let message =
                    LockMessage { lock: RemotePtr::new(ServerId(u16::MAX), (1 << 48) - 8), token, kind };
                assert_eq!(LockMessage::decode(message.encode(), own), Some(message));
            }
        }
    }

    #[test]
    fn foreign_messages_are_rejected() {
        let own = LockWord::new(7, 3, 12);
        assert_eq!(LockMessage::decode(Message::default(), own), None);
        assert_eq!(LockMessage::decode(Message([7, 0, 0]), own), None);
    }
}
