//! Messages between a client's shard and a key's home, and their form in three words. Pure.
//!
//! ```text
//!           63                      32 31      24 23      16 15       8 7        0
//!          +--------------------------+----------+----------+----------+----------+
//!  word 0  | token                    | 0        | value    | flag     | kind     |
//!          +--------------------------+----------+----------+----------+----------+
//!  word 1  | identity of the key, low half;  a piece of a value: its first 8 bytes |
//!          +----------------------------------------------------------------------+
//!  word 2  | high half;                      its last 8 bytes                      |
//!          +----------------------------------------------------------------------+
//! ```
//!
//! The token names a waiting client on its shard. The flag says *applied*, *is a write*, *has readers* or *is the
//! first piece*; the value byte is what is known of a value, the kind of a write, or the length of a piece.
//!
//! A value travels in pieces ahead of the message that refers to it. A shard sends both at one go, and messages between
//! two shards keep their order, so the pieces that came last are the ones that are meant.

use farwood_runtime::Message;

use super::config::Access;
use super::key::KeyId;

/// Bytes of a value in one message.
pub(crate) const PIECE_BYTES: usize = 16;

/// A message about a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WindowMessage {
    /// To the home: a client wants the key.
    Enter { key: KeyId, token: u32, access: Access },
    /// To the home: a client that waited is gone. Answered by Cancelled, unless something else crossed it.
    Cancel { key: KeyId, token: u32 },
    /// To the home: the leader is done.
    Finish { key: KeyId, applied: bool, value: Value },
    /// To the home: the leader has given up.
    Fail { key: KeyId },
    /// To a client: it leads.
    Lead { key: KeyId, token: u32, readers: bool },
    /// To a reader: what was read for it.
    Read { token: u32, value: Value },
    /// To a writer: whether the write that stands for its own was applied.
    Written { token: u32, applied: bool },
    /// To a client that is gone: it is forgotten.
    Cancelled { token: u32 },
    /// Either way: a piece of the value that a message behind it refers to.
    Piece(Piece),
}

/// The state of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Value {
    /// There is none, or no reader wants it.
    Absent,
    /// It came in pieces.
    Sent,
    /// It is too long to be sent.
    TooLong,
}

/// Up to [`PIECE_BYTES`] of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    is_first: bool,
    len: u8,
    bytes: [u8; PIECE_BYTES],
}

impl Piece {
    /// Yields the pieces of `value`, at least one.
    pub(crate) fn all_of(value: &[u8]) -> impl Iterator<Item = Piece> {
        (0..value.len().div_ceil(PIECE_BYTES).max(1)).map(|i| {
            let part = &value[i * PIECE_BYTES..value.len().min((i + 1) * PIECE_BYTES)];
            let mut bytes = [0; PIECE_BYTES];
            bytes[..part.len()].copy_from_slice(part);
            Piece { is_first: i == 0, len: part.len() as u8, bytes }
        })
    }

    /// Adds it to the pieces that came before it.
    pub(crate) fn add_to(&self, value: &mut Vec<u8>) {
        if self.is_first {
            value.clear();
        }
        value.extend_from_slice(&self.bytes[..usize::from(self.len)]);
    }
}

const ENTER: u8 = 1;
const CANCEL: u8 = 2;
const FINISH: u8 = 3;
const FAIL: u8 = 4;
const LEAD: u8 = 5;
const READ: u8 = 6;
const WRITTEN: u8 = 7;
const CANCELLED: u8 = 8;
const PIECE: u8 = 9;

const NO_KEY: KeyId = KeyId::from_words(0, 0);

impl Value {
    fn to_byte(self) -> u8 {
        match self {
            Value::Absent => 0,
            Value::Sent => 1,
            Value::TooLong => 2,
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        [Value::Absent, Value::Sent, Value::TooLong].into_iter().find(|value| value.to_byte() == byte)
    }
}

impl WindowMessage {
    pub(crate) fn encode(self) -> Message {
        let (kind, flag, value, token, key) = match self {
            WindowMessage::Enter { key, token, access: Access::Read } => (ENTER, false, 0, token, key),
            WindowMessage::Enter { key, token, access: Access::Write(kind) } => {
                (ENTER, true, kind, token, key)
            }
            WindowMessage::Cancel { key, token } => (CANCEL, false, 0, token, key),
            WindowMessage::Finish { key, applied, value } => (FINISH, applied, value.to_byte(), 0, key),
            WindowMessage::Fail { key } => (FAIL, false, 0, 0, key),
            WindowMessage::Lead { key, token, readers } => (LEAD, readers, 0, token, key),
            WindowMessage::Read { token, value } => (READ, false, value.to_byte(), token, NO_KEY),
            WindowMessage::Written { token, applied } => (WRITTEN, applied, 0, token, NO_KEY),
            WindowMessage::Cancelled { token } => (CANCELLED, false, 0, token, NO_KEY),
            WindowMessage::Piece(Piece { is_first, len, bytes }) => {
                let bits = u128::from_le_bytes(bytes);
                (PIECE, is_first, len, 0, KeyId::from_words(bits as u64, (bits >> 64) as u64))
            }
        };
        let head = u64::from(token) << 32 | u64::from(value) << 16 | u64::from(flag) << 8 | u64::from(kind);
        let (low, high) = key.to_words();
        Message([head, low, high])
    }

    /// Decodes a message; `None` if it is not one of a window table's.
    pub(crate) fn decode(Message([head, low, high]): Message) -> Option<Self> {
        let (key, token) = (KeyId::from_words(low, high), (head >> 32) as u32);
        let [kind, flag, byte, _] = (head as u32).to_le_bytes();
        let flag = flag != 0;
        Some(match kind {
            ENTER => {
                let access = if flag { Access::Write(byte) } else { Access::Read };
                WindowMessage::Enter { key, token, access }
            }
            CANCEL => WindowMessage::Cancel { key, token },
            FINISH => WindowMessage::Finish { key, applied: flag, value: Value::from_byte(byte)? },
            FAIL => WindowMessage::Fail { key },
            LEAD => WindowMessage::Lead { key, token, readers: flag },
            READ => WindowMessage::Read { token, value: Value::from_byte(byte)? },
            WRITTEN => WindowMessage::Written { token, applied: flag },
            CANCELLED => WindowMessage::Cancelled { token },
            PIECE if usize::from(byte) <= PIECE_BYTES => {
                let bytes = (u128::from(high) << 64 | u128::from(low)).to_le_bytes();
                WindowMessage::Piece(Piece { is_first: flag, len: byte, bytes })
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_comes_back() {
        let mut messages = Vec::new();
        for key in [NO_KEY, KeyId::from_words(1, u64::MAX), KeyId::from_words(u64::MAX, 1 << 63)] {
            for token in [0, 1, u32::MAX] {
                for access in [Access::Read, Access::Write(0), Access::Write(255)] {
                    messages.push(WindowMessage::Enter { key, token, access });
                }
                messages.extend([
                    WindowMessage::Cancel { key, token },
                    WindowMessage::Fail { key },
                    WindowMessage::Cancelled { token },
                ]);
                for flag in [false, true] {
                    messages.push(WindowMessage::Lead { key, token, readers: flag });
                    messages.push(WindowMessage::Written { token, applied: flag });
                    for value in [Value::Absent, Value::Sent, Value::TooLong] {
                        messages.push(WindowMessage::Finish { key, applied: flag, value });
                        messages.push(WindowMessage::Read { token, value });
                    }
                }
            }
        }
        for message in messages {
            assert_eq!(WindowMessage::decode(message.encode()), Some(message));
        }
    }

    #[test]
    fn values_travel_in_pieces() {
        let value: Vec<u8> = (1..=200).collect();
        let mut came = vec![9; 7];
        for len in 0..=value.len() {
            let pieces: Vec<Piece> = Piece::all_of(&value[..len]).collect();
            assert_eq!(pieces.len(), len.div_ceil(PIECE_BYTES).max(1));
            for piece in pieces {
                let Some(WindowMessage::Piece(piece)) =
                    WindowMessage::decode(WindowMessage::Piece(piece).encode())
                else {
                    panic!("a piece is a message")
                };
                piece.add_to(&mut came);
            }
            assert_eq!(came, value[..len]);
        }
    }

    #[test]
    fn foreign_messages_are_rejected() {
        assert_eq!(WindowMessage::decode(Message::default()), None);
        assert_eq!(WindowMessage::decode(Message([10, 0, 0])), None);
        let too_long = u64::from(PIECE) | (PIECE_BYTES as u64 + 1) << 16;
        assert_eq!(WindowMessage::decode(Message([too_long, 0, 0])), None);
        let no_such_value = u64::from(FINISH) | 3 << 16;
        assert_eq!(WindowMessage::decode(Message([no_such_value, 0, 0])), None);
    }
}
