//! Slots of keys and values, as bytes that were gathered from words or are to be scattered into them: heads, states,
//! and lengths. Pure bytes; where they are in a leaf this file does not know.

use smallvec::SmallVec;

/// Bytes of the longest slot of a key.
pub(super) const SCRATCH_BYTES: usize = 264;

/// Bytes of a key's slot, or of a value, which seldom are more.
pub(super) type Scratch = SmallVec<[u8; SCRATCH_BYTES]>;

const STATE_SHIFT: u32 = 6;
pub(super) const VALUE_SHORT: u8 = 1 << 5;
const KEY_SHORT: u8 = 1 << 4;
const LONG_FORM: u8 = 255;

/// The state of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It has no key.
    Vacant,
    /// It has a key with its value.
    Present,
    /// It has a key that is not in the index.
    Removed,
}

impl State {
    pub(super) fn of(head: u8) -> Self {
        match head >> STATE_SHIFT {
            0 => State::Vacant,
            1 => State::Present,
            _ => State::Removed,
        }
    }

    /// Puts the state into a head.
    pub(super) fn put(self, head: u8) -> u8 {
        head & ((1 << STATE_SHIFT) - 1) | (self as u8) << STATE_SHIFT
    }
}

/// Makes the slot of a key, of `bytes` bytes with its head.
pub(super) fn key_slot(key: &[u8], bytes: usize, state: State, value_short: bool) -> Scratch {
    let mut slot = Scratch::from_elem(0, bytes);
    let short = if fill(&mut slot[1..], key) { KEY_SHORT } else { 0 };
    slot[0] = state.put(short | if value_short { VALUE_SHORT } else { 0 });
    slot
}

/// Yields the key of a slot; `None` if its length is none that [`key_slot`] leaves.
pub(super) fn key_of(slot: &[u8]) -> Option<&[u8]> {
    filled(&slot[1..], slot[0] & KEY_SHORT != 0)
}

/// Tells whether the first words of two slots may be of one key: state and length of the value do not count.
pub(super) fn is_same_begin(one: u64, other: u64) -> bool {
    const HEAD: u64 = 0b11 << STATE_SHIFT | VALUE_SHORT as u64;
    (one ^ other) & !HEAD == 0
}

/// Stores `content` in a slot that is at least as long; yields the short bit.
pub(super) fn fill(slot: &mut [u8], content: &[u8]) -> bool {
    let (bytes, room) = (slot.len(), slot.len() - content.len());
    slot[..content.len()].copy_from_slice(content);
    slot[content.len()..].fill(0);
    if room >= usize::from(LONG_FORM) {
        slot[bytes - 3..bytes - 1].copy_from_slice(&(room as u16).to_le_bytes());
        slot[bytes - 1] = LONG_FORM;
    } else if room > 0 {
        slot[bytes - 1] = room as u8;
    }
    room > 0
}

/// Yields the content of a slot; `None` if its length is none that [`fill`] leaves.
pub(super) fn filled(slot: &[u8], short: bool) -> Option<&[u8]> {
    let room = match slot.last() {
        _ if !short => 0,
        None | Some(0) => return None,
        Some(&LONG_FORM) if slot.len() >= usize::from(LONG_FORM) => {
            let room = slot[slot.len() - 3..].first_chunk().map(|room| u16::from_le_bytes(*room))?;
            usize::from(room).max(usize::from(LONG_FORM))
        }
        Some(room) => usize::from(*room),
    };
    slot.get(..slot.len().checked_sub(room)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_of_all_lengths_come_back() {
        for size in [0, 1, 7, 8, 15, 253, 254, 255, 256, 257, 300] {
            let content: Vec<u8> = (0..size).map(|i| i as u8 | 0x80).collect();
            for len in 0..=size {
                let mut slot = vec![0xEE; size];
                let short = fill(&mut slot, &content[..len]);
                assert_eq!(short, len < size);
                assert_eq!(filled(&slot, short), Some(&content[..len]), "{len} of {size}");
            }
        }
    }

    #[test]
    fn states_come_back_and_keys_are_told_apart_whatever_these_are() {
        let states = [State::Vacant, State::Present, State::Removed];
        let keys: [&[u8]; 5] = [b"", b"\0", b"a", b"a\0", b"aaaaaaa"];
        for (i, one) in keys.iter().enumerate() {
            for state in states {
                for value_short in [false, true] {
                    let slot = key_slot(one, 8, state, value_short);
                    assert_eq!((State::of(slot[0]), key_of(&slot)), (state, Some(*one)));
                    assert_eq!(slot[0] & VALUE_SHORT != 0, value_short);
                    for (j, other) in keys.iter().enumerate() {
                        let [one, other] = [slot.clone(), key_slot(other, 8, State::Present, false)]
                            .map(|slot| u64::from_le_bytes(slot[..].try_into().unwrap()));
                        assert_eq!(is_same_begin(one, other), i == j);
                    }
                }
            }
        }
    }
}
