//! Leaves that are being merged, or were: all that a reader may have read of one says that it is none. Most read a
//! neighbourhood, and look at its replica first; those that read a single entry look at that alone. So a *frozen* leaf
//! has no entry that is present, and each says whether it was:
//!
//! ```text
//!               header, replicas   entries, of the version behind          sum, vacancies, hop bits
//!   live        LEAF               present, or not; EV                     of the entries
//!   frozen      FROZEN             not present, EV 1 if it was, else 0     as they were
//!   freed       header: FREED      as a frozen leaf's                      as they were
//!   thawed      LEAF               as they were, with EV 0                 as they were
//! ```
//!
//! Of a frozen leaf and a freed one the header alone says which of the two it is. Each of the steps but the one to
//! *freed* is a WRITE of the whole leaf, with a version of its own: so what a READ brings of two is torn.

use std::ops::Range;

use super::super::Rejection;
use super::super::header::{FROZEN, LEAF, kind_of};
use super::super::stream;
use super::super::version::{self, EntryVersion};
use super::HopLayout;
use super::entry::PRESENT;

/// The bits of an entry's version in its head.
const VERSION: u16 = 0x1f;
/// The version of a frozen entry that was present.
const WAS_PRESENT: u16 = 1;

impl HopLayout {
    /// Marks a whole leaf as frozen: what is read of it is rejected with [`Rejection::Frozen`], and no entry alone has
    /// a key. Yields the bytes to send: all.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let slot = layout.lookup(&image, b"anna", false)?.found.expect("it is there").slot;
    /// layout.freeze(&mut image);
    /// assert_eq!(layout.lookup(&image, b"anna", false), Err(Rejection::Frozen));
    /// assert_eq!(layout.lookup_slot(&image, b"anna", slot)?, None);
    /// # });
    /// ```
    pub fn freeze(&self, image: &mut [u8]) -> Range<usize> {
        self.check_len(image);
        for slot in 0..self.ring.slots {
            let head = self.head(image, slot);
            let was_present = if head & PRESENT != 0 { WAS_PRESENT } else { 0 };
            self.set_flags(image, slot, head & !(PRESENT | VERSION) | was_present);
        }
        self.begin_version(image, FROZEN)
    }

    /// Makes a frozen or freed leaf what it was before, but for the right neighbour of a freed one. One that is torn
    /// stays so. Yields the bytes to send: all.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// layout.freeze(&mut image);
    /// layout.thaw(&mut image);
    /// assert!(layout.lookup(&image, b"anna", false)?.found.is_some());
    /// layout.view(&image)?.check_sum()?;
    /// # });
    /// ```
    pub fn thaw(&self, image: &mut [u8]) -> Range<usize> {
        self.check_len(image);
        for slot in 0..self.ring.slots {
            let head = self.head(image, slot);
            let present = if head & VERSION == WAS_PRESENT { PRESENT } else { 0 };
            self.set_flags(image, slot, head & !(PRESENT | VERSION) | present);
            for line in self.entry(slot).further_lines() {
                version::set_entry_version(image, line, EntryVersion::default());
            }
        }
        self.begin_version(image, LEAF)
    }

    /// Tells whether a whole leaf is frozen or freed: no writer leaves one in the middle of an entry.
    pub(super) fn is_gone(image: &[u8]) -> bool {
        matches!(kind_of(image), Err(Rejection::Frozen | Rejection::Freed))
    }

    /// Gives a leaf the next version, and makes it of that kind. What is of different versions stays so.
    fn begin_version(&self, image: &mut [u8], kind: u8) -> Range<usize> {
        let next = |image: &[u8], at| stream::byte(image, at).wrapping_add(1);
        version::bump_lines(image);
        stream::write(image, 0, &[kind]);
        for group in 0..self.ring.slots / self.ring.reach {
            let at = self.replica(group).start();
            stream::write(image, at, &[kind, next(image, at + 1)]);
        }
        for slot in 0..self.ring.slots {
            let at = self.entry(slot).start() + 1;
            stream::write(image, at, &[next(image, at)]);
        }
        0..image.len()
    }
}

#[cfg(test)]
mod tests {
    use farwood_runtime::RemotePtr;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::super::super::header::mark_freed;
    use super::super::super::stream::LINE_BYTES;
    use super::super::tests::{Shape, get, header, key, keys, layouts_of, value};
    use super::*;

    /// Entries within a line, over two, and over several; with hop bits of one byte, of two, and none.
    const SHAPES: [Shape; 6] =
        [(4, 2, 8, 8), (8, 4, 3, 40), (64, 8, 8, 8), (32, 16, 20, 30), (4, 4, 30, 150), (8, 8, 8, 8)];

    fn leaves() -> impl Iterator<Item = (HopLayout, Vec<u8>)> {
        layouts_of(&SHAPES, &[false, true]).map(|layout| {
            let mut image = vec![0; layout.node_bytes()];
            layout.build(&mut image, &header(255), []);
            for number in 0..layout.ring().slots / 2 {
                let _ = layout.insert_near(&mut image, &key(&layout, number), &value(&layout, number));
            }
            (layout, image)
        })
    }

    /// Numbers of keys some of which are in the leaf.
    fn numbers(layout: &HopLayout) -> std::ops::Range<usize> {
        0..layout.ring().slots
    }

    #[test]
    fn a_frozen_leaf_has_no_key_and_thaws_to_what_it_was() {
        for (layout, live) in leaves() {
            let mut image = live.clone();
            layout.freeze(&mut image);
            for round in 0..3 {
                let gone = if round < 2 { Rejection::Frozen } else { Rejection::Freed };
                for key in numbers(&layout).map(|number| key(&layout, number)) {
                    assert_eq!(get(&layout, &image, &key), Err(Rejection::Frozen));
                    for slot in 0..layout.ring().slots {
                        assert_eq!(layout.lookup_slot(&image, &key, slot), Ok(None));
                    }
                }
                assert_eq!(layout.view(&image).err(), Some(gone));
                assert_eq!(layout.mend(&mut image).unwrap()[..], []);
                let mut thawed = image.clone();
                layout.thaw(&mut thawed);
                let leaf = layout.view(&thawed).unwrap();
                assert!(leaf.check_hops().is_ok() && leaf.check_sum().is_ok());
                assert_eq!(layout.vacancy_of(&thawed), layout.vacancy(&live));
                assert_eq!(keys(&layout, &thawed), keys(&layout, &live));
                match round {
                    0 => {
                        assert!(leaf.replicas_agree());
                        image = thawed;
                        layout.freeze(&mut image);
                    }
                    _ => _ = mark_freed(&mut image, RemotePtr::from_bits(1280)),
                }
            }
        }
    }

    /// Of a READ that meets the WRITE of a frozen leaf, or of one that thaws, any lines may be older than others.
    #[test]
    fn what_is_read_of_two_states_is_what_was_there_or_nothing() {
        let mut rng = SmallRng::seed_from_u64(1);
        let (mut found, mut rejected) = (0, 0);
        for (layout, live) in leaves() {
            let (mut frozen, mut thawed) = (live.clone(), live.clone());
            layout.freeze(&mut frozen);
            thawed.copy_from_slice(&frozen);
            layout.thaw(&mut thawed);
            for (from, to) in [(&live, &frozen), (&frozen, &thawed), (&live, &thawed)] {
                for _ in 0..40 {
                    let mut mixed = from.clone();
                    for line in (0..mixed.len()).step_by(LINE_BYTES).filter(|_| rng.random()) {
                        mixed[line..line + LINE_BYTES].copy_from_slice(&to[line..line + LINE_BYTES]);
                    }
                    for key in numbers(&layout).map(|number| key(&layout, number)) {
                        let was = get(&layout, &live, &key).unwrap();
                        match get(&layout, &mixed, &key) {
                            Ok(answer) => assert_eq!(answer, was),
                            Err(_) => rejected += 1,
                        }
                        let slots = 0..layout.ring().slots;
                        let alone = slots.filter_map(|slot| layout.lookup_slot(&mixed, &key, slot).ok()?);
                        found += alone.inspect(|_| assert!(was.is_some())).count();
                    }
                    if layout.view(&mixed).is_err()
                        && kind_of(&mixed) == Err(Rejection::Frozen)
                        && mixed != *to
                    {
                        layout.thaw(&mut mixed);
                        assert!(mixed == thawed || layout.view(&mixed).is_err(), "a torn leaf is torn");
                    }
                }
            }
        }
        assert!(found > 100 && rejected > 100, "{found} {rejected}");
    }
}
