//! Two leaves in one: their entries are placed anew, as if their keys came one after the other.

use super::super::stream::{self, StreamRange};
use super::super::{NodeHeader, Rejection};
use super::entry::{KEY_SHORT, PRESENT, VALUE_SHORT};
use super::{HopLayout, Placement};

impl HopLayout {
    /// Makes `image`, whatever it held, a leaf with `header` and the entries of both `leaves`, which are whole; yields
    /// false if one of them finds no room there. The image is to be written as a whole, but for its lock.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// # let header = NodeHeader {
    /// #     level: 0,
    /// #     low: b"",
    /// #     high: None,
    /// #     sibling: RemotePtr::NULL,
    /// #     incarnation: 1,
    /// #     node_version: NodeVersion::new(8),
    /// # };
    /// let (mut right, mut united) = (image.to_vec(), image.to_vec());
    /// layout.build(&mut right, &header, [(&b"zoe"[..], &b"9"[..])]);
    /// assert!(layout.unite(&mut united, &header, [&image, &right])?);
    /// for key in [&b"anna"[..], b"clara", b"zoe"] {
    ///     assert!(layout.lookup(&united, key, false)?.found.is_some());
    /// }
    /// # });
    /// ```
    ///
    /// # Errors
    /// If a key is not as writers leave it.
    pub fn unite(
        &self,
        image: &mut [u8],
        header: &NodeHeader<'_>,
        leaves: [&[u8]; 2],
    ) -> Result<bool, Rejection> {
        self.check_len(image);
        image.fill(0);
        self.set_header(image, header);
        for leaf in leaves {
            for slot in (0..self.ring.slots).filter(|slot| self.is_present(leaf, *slot)) {
                let hash = self.hash_of(leaf, slot)?;
                let Some(placement) = self.place_anywhere(image, self.home_of_hash(hash))? else {
                    return Ok(false);
                };
                self.make_room(image, &placement);
                self.copy_entry((leaf, slot), image, placement.slot);
                self.add_key(image, placement.slot, hash);
            }
        }
        self.set_vacancy(image, self.vacancy_of(image));
        Ok(true)
    }

    fn place_anywhere(&self, image: &[u8], home: usize) -> Result<Option<Placement>, Rejection> {
        match self.place(image, home)? {
            None => self.place_back(image, home),
            placement => Ok(placement),
        }
    }

    /// Copies the flags, key and value of another leaf's entry into a vacant slot.
    fn copy_entry(&self, (leaf, from): (&[u8], usize), image: &mut [u8], to: usize) {
        let pair = |slot| StreamRange::new(self.key_slot(slot).start, self.key_bytes + self.value_bytes);
        stream::write(image, pair(to).start(), &stream::gather(leaf, pair(from)));
        let flags = self.head(leaf, from) & (PRESENT | KEY_SHORT | VALUE_SHORT);
        self.set_flags(image, to, self.head(image, to) | flags);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Shape, get, header, key, keys, layouts_of, value};

    const SHAPES: [Shape; 6] =
        [(2, 2, 2, 2), (8, 4, 3, 40), (16, 2, 8, 8), (64, 8, 8, 8), (32, 16, 20, 30), (8, 8, 30, 150)];

    #[test]
    fn two_leaves_have_room_in_one_or_not() {
        let (mut united, mut refused) = (0, 0);
        for layout in layouts_of(&SHAPES, &[false, true]) {
            let slots = layout.ring().slots;
            let make = |numbers: std::ops::Range<usize>| {
                let mut image = vec![0; layout.node_bytes()];
                layout.build(&mut image, &header(3), []);
                for number in numbers {
                    let _ = layout.insert_near(&mut image, &key(&layout, number), &value(&layout, number));
                }
                // What is not the united leaf's.
                image[layout.lock_at()] = 1;
                image
            };
            for pairs in 0..=slots {
                let leaves = [make(0..pairs / 2), make(100..100 + pairs.div_ceil(2))];
                let mut image = vec![0xEE; layout.node_bytes()];
                if !layout.unite(&mut image, &header(4), [&leaves[0], &leaves[1]]).unwrap() {
                    assert!(pairs > slots / 4, "few pairs have room");
                    refused += 1;
                    continue;
                }
                united += 1;
                let leaf = layout.view(&image).unwrap();
                assert!(leaf.check_hops().is_ok() && leaf.replicas_agree());
                assert_eq!(layout.vacancy(&image), layout.vacancy_of(&image));
                let mut both =
                    leaves.iter().map(|leaf| keys(&layout, leaf).unwrap()).collect::<Vec<_>>().concat();
                both.sort();
                assert_eq!(keys(&layout, &image), Ok(both));
                for number in (0..slots).chain(100..100 + slots) {
                    let key = key(&layout, number);
                    let [left, right] = leaves.each_ref().map(|leaf| get(&layout, leaf, &key).unwrap());
                    assert_eq!(get(&layout, &image, &key), Ok(left.or(right)));
                }
            }
        }
        assert!(united > 200 && refused > 20, "{united} {refused}");
    }
}
