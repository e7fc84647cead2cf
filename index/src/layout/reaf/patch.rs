//! Changes of single slots, in an image, and the ranges of it that a writer sends. It does not know who may do what.

use super::slot::{State, VALUE_SHORT, fill, key_slot};
use super::{ReafLayout, ReafView, WORD_BYTES};
use crate::layout::{Bytes, Patch};

impl ReafLayout {
    /// Yields the word that a CAS from 0 puts at the begin of a vacant slot's key, to claim it for a key of a leaf of
    /// that depth.
    pub fn claim(&self, depth: usize, key: &[u8]) -> u64 {
        let slot = key_slot(&key[depth..], self.key_words() * WORD_BYTES, State::Claimed, false);
        u64::from_le_bytes(*slot.first_chunk().expect("a slot has a word"))
    }

    /// Writes a pair into a slot of the image, which is vacant or claimed for that key. The last range is the key's
    /// first word, which makes the pair visible.
    pub fn write_pair(&self, image: &mut [u8], slot: usize, depth: usize, key: &[u8], value: &[u8]) -> Patch {
        self.put_pair(image, slot, (&key[depth..], value), State::Present);
        let mut patch = Patch::new();
        if self.value_words() > 0 {
            patch.push(self.value(slot));
        }
        let (first, last) = (self.key_at(slot), super::at(self.key_word(slot) + self.key_words() - 1));
        if last > first {
            patch.push(super::at(self.key_word(slot) + 1)..last + WORD_BYTES);
        }
        patch.push(first..first + WORD_BYTES);
        patch
    }

    /// Writes the value of a slot. `None` if the slot's head would have to change with it, which only a client that has
    /// the lock alone can write: then nothing is changed.
    pub fn write_value(&self, image: &mut [u8], slot: usize, value: &[u8]) -> Option<Patch> {
        let was_short = image[self.key_at(slot)] & VALUE_SHORT != 0;
        let mut bytes = Bytes::from_elem(0, self.value_words() * WORD_BYTES);
        if fill(&mut bytes, value) != was_short {
            return None;
        }
        self.put_bytes(image, self.value_word(slot), &bytes);
        Some(if bytes.is_empty() { Patch::new() } else { Patch::from_iter([self.value(slot)]) })
    }

    pub(super) fn put_pair(&self, image: &mut [u8], slot: usize, (key, value): (&[u8], &[u8]), state: State) {
        let mut bytes = Bytes::from_elem(0, self.value_words() * WORD_BYTES);
        let short = fill(&mut bytes, value);
        self.put_bytes(image, self.value_word(slot), &bytes);
        let key = key_slot(key, self.key_words() * WORD_BYTES, state, short);
        self.put_bytes(image, self.key_word(slot), &key);
    }
}

impl ReafView<'_> {
    /// Yields the words with which a CAS at the begin of a slot's key changes its state: what was read there, and what
    /// is to be there.
    pub fn change(&self, slot: usize, state: State) -> (u64, u64) {
        let mut word: [u8; WORD_BYTES] = *self.key_slot(slot).first_chunk().expect("a slot has a word");
        let found = u64::from_le_bytes(word);
        word[0] = state.put(word[0]);
        (found, u64::from_le_bytes(word))
    }
}
