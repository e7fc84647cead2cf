//! Leaves that a dead writer has left in the middle of an insert or a remove. It has recorded nothing, for the leaf
//! itself tells: such a write changes one entry, whose versions say whether all of it has come, and what follows from
//! the entries: hop bits, vacancies, and sum. Any lines of one of its WRITEs may have arrived, and all of those before.
//!
//! ```text
//!   what there is of the entry      what readers see              what becomes of it
//!   all of it, with its key         the key                       it stays, and gets its hop bit
//!   all of it, without              no key, or a torn leaf        its hop bit goes
//!   a part: two versions            a torn leaf                   it goes, and so does its hop bit
//!   two of it: a key has hopped     the key                       the one goes that has no hop bit, or any
//! ```
//!
//! A key that hops is whole in its new slot before its old one gets another key ([`HopLayout::copies_first`]).
//!
//! So what a reader has found is there, and what one has found absent is not: readers believe whole entries, and that a
//! key is absent only if hop bits, or the sum, agree with them. That half an entry goes is right for both writes: no
//! client was told of the insert, the remove is done, and a key that hops is in its old slot as well. An *update* must
//! be recorded: its entry would go, too.
//!
//! A leaf that is frozen or freed is left as it is: those who write to it have recorded that.
//!
//! The entry that goes gets a version behind all that its lines have. So if its taker dies in the middle as well, that
//! shows, and no reader takes a line of the dead writer, with one of the next entry, for a whole one:
//!
//! ```text
//!   head, tail   4 4    dead: 4 5    first taker: 4 6 ✗    second one: 7 7    next entry: 8 8
//!   if the second took 5, which no line has any more       5 5                next entry: 6 6, and 6 is the first's
//! ```

use std::ops::Range;

use super::super::stream::{self, StreamRange, WORD_BYTES};
use super::super::version::{self, EntryVersion};
use super::super::{Patch, Rejection};
use super::entry::{KEY_SHORT, PRESENT, ShortVersion, VALUE_SHORT};
use super::{HEAD_BYTES, HopLayout};

impl HopLayout {
    /// Makes a whole image that of a leaf in which no write is half done; yields the bytes to send, none if it is that
    /// already.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let before = image.to_vec();
    /// let slot = layout.lookup(&image, b"anna", false)?.found.expect("it is there").slot;
    /// layout.remove(&mut image, slot)?;
    /// // The words come last, and have not come.
    /// let words = layout.words();
    /// image[words.clone()].copy_from_slice(&before[words]);
    /// assert_eq!(layout.mend(&mut image)?.len(), 1);
    /// layout.view(&image)?.check_sum()?;
    /// assert!(layout.mend(&mut image)?.is_empty());
    /// # });
    /// ```
    ///
    /// # Errors
    /// If no such write leaves such a leaf.
    pub fn mend(&self, image: &mut [u8]) -> Result<Patch, Rejection> {
        if Self::is_gone(image) {
            return Ok(Patch::new());
        }
        let version = ShortVersion::of(self.view(image)?.header().node_version());
        if !version::node_versions_agree(image) {
            return Err(Rejection::Torn);
        }
        let mut patch = Patch::new();
        for slot in 0..self.ring.slots {
            if !self.entry_is_of(image, slot, version) {
                self.take_away(image, slot);
                patch.push(self.entry(slot).write_range());
            }
        }
        if self.has_hops() {
            for slot in 0..self.ring.slots {
                patch.extend(self.mend_copies(image, slot)?);
            }
            for home in 0..self.ring.slots {
                patch.extend(self.mend_hops(image, home)?);
            }
        }
        patch.extend(self.mend_words(image)?);
        Ok(patch)
    }

    /// Takes one of two entries away if the key in `slot` has hopped, and is in both of its slots; yields the bytes to
    /// send.
    fn mend_copies(&self, image: &mut [u8], slot: usize) -> Result<Option<Range<usize>>, Rejection> {
        if !self.is_present(image, slot) {
            return Ok(None);
        }
        let home = self.home_of(image, slot)?;
        let is_copy = |other: &usize| *other > slot && self.has_pair_of(image, *other, slot);
        let Some(other) = self.ring.neighbourhood(home).find(is_copy) else { return Ok(None) };
        let is_named = self.hops(image, home) >> self.ring.distance(home, other) & 1 != 0;
        let goes = if is_named { slot } else { other };
        self.take_away(image, goes);
        Ok(Some(self.entry(goes).write_range()))
    }

    /// Tells whether two slots have the same entry, the second of which is present.
    fn has_pair_of(&self, image: &[u8], slot: usize, other: usize) -> bool {
        const FLAGS: u16 = PRESENT | KEY_SHORT | VALUE_SHORT;
        let [flags, others] = [slot, other].map(|slot| self.head(image, slot) & FLAGS);
        let pair = |slot| StreamRange::new(self.key_slot(slot).start, self.key_bytes + self.value_bytes);
        flags == others && stream::gather(image, pair(slot)) == stream::gather(image, pair(other))
    }

    /// Makes a slot vacant, whatever versions the lines of its entry have.
    fn take_away(&self, image: &mut [u8], slot: usize) {
        let head = self.head(image, slot);
        let lines = self.entry(slot).further_lines();
        let of_lines = lines.clone().map(|line| version::entry_version(image, line));
        let version = EntryVersion::after(of_lines.chain([EntryVersion::from_bits(head as u8)]));
        let flags = PRESENT | KEY_SHORT | VALUE_SHORT | 0x1f;
        self.set_flags(image, slot, head & !flags | u16::from(version.bits()));
        for line in lines {
            version::set_entry_version(image, line, version);
        }
    }

    /// Makes the bits of a home name the slots of its keys; yields the bytes to send, if they did not.
    fn mend_hops(&self, image: &mut [u8], home: usize) -> Result<Option<Range<usize>>, Rejection> {
        let bits = self.bits_of_keys(image, home)?;
        if bits == self.hops(image, home) {
            return Ok(None);
        }
        let at = StreamRange::new(self.entry(home).start() + HEAD_BYTES, self.hops_bytes());
        stream::write(image, at.start(), &bits.to_le_bytes()[..self.hops_bytes()]);
        Ok(Some(at.write_range()))
    }

    /// Makes vacancies and sum those of the entries; yields the bytes to send, if they were not.
    fn mend_words(&self, image: &mut [u8]) -> Result<Option<Range<usize>>, Rejection> {
        let words = self.vacancy_at()..self.sum_at() + WORD_BYTES;
        let mut sum = 0;
        for slot in (0..self.ring.slots).filter(|slot| self.is_present(image, *slot)) {
            sum ^= self.hash_of(image, slot)?;
        }
        let vacancy = self.vacancy_of(image);
        if (vacancy, sum) == (self.vacancy(image), self.sum(image)) {
            return Ok(None);
        }
        self.set_vacancy(image, vacancy);
        self.add_to_sum(image, self.sum(image) ^ sum);
        Ok(Some(words))
    }
}

#[cfg(test)]
mod tests;
