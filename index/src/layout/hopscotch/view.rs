//! A leaf as splits, scans and checks see it, which have read all of it: header and all entries.

use std::ops::RangeBounds;

use smallvec::SmallVec;

use super::super::header::{Header, Kind, Position};
use super::super::slot_order::{SlotOrder, StreamKey};
use super::super::stream::{self, StreamRange};
use super::super::{BlockPtr, Bytes, Malformed, Rejection};
use super::entry::ShortVersion;
use super::{HopLayout, Ring};

/// An image whose header is that of a leaf, and whose lines, replicas and entries are of one version of the node.
#[derive(Clone, Copy)]
pub struct HopView<'a> {
    layout: &'a HopLayout,
    image: &'a [u8],
    header: Header<'a>,
}

impl HopLayout {
    /// Parses an image of [`HopLayout::node_bytes`] bytes (others panic), all of which was read.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// assert_eq!(layout.view(&image)?.present().count(), 2);
    /// image[64] ^= 1;
    /// assert!(layout.view(&image).is_err(), "a line has another version");
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Rejection::Torn`] if it is of different moments, as far as node versions tell; other rejections if it is no
    /// leaf, or not as writers leave it.
    pub fn view<'a>(&'a self, image: &'a [u8]) -> Result<HopView<'a>, Rejection> {
        self.check_len(image);
        let header = Header::parse(image, self.max_key, Kind::Leaf)?;
        header.check(Kind::Leaf)?;
        let version = ShortVersion::of(header.node_version());
        for group in 0..self.ring.slots / self.ring.reach {
            if self.replica_version(image, group)? != version {
                return Err(Rejection::Torn);
            }
        }
        let is_of = |slot| (self.head(image, slot) >> 8) as u8 == version.0;
        if !(0..self.ring.slots).all(is_of) {
            return Err(Rejection::Torn);
        }
        Ok(HopView { layout: self, image, header })
    }
}

impl<'a> HopView<'a> {
    /// Yields fences, neighbour, identity and version.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// assert_eq!(layout.view(&image)?.header().position(b"zoe"), Position::Right);
    /// # });
    /// ```
    pub fn header(&self) -> &Header<'a> {
        &self.header
    }

    /// Yields the slots with entries, in their order. Whether these are whole, [`HopView::pair`] tells.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let leaf = layout.view(&image)?;
    /// assert!(leaf.present().all(|slot| !layout.is_vacant(&image, slot)));
    /// # });
    /// ```
    pub fn present(&self) -> impl Iterator<Item = usize> + 'a {
        let (layout, image) = (self.layout, self.image);
        (0..layout.ring.slots).filter(move |slot| layout.is_present(image, *slot))
    }

    /// Yields the pair in `slot`, which is present.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let slot = layout.lookup(&image, b"anna", false)?.found.expect("it is there").slot;
    /// let (key, value) = layout.view(&image)?.pair(slot)?;
    /// assert_eq!((&key[..], &value[..]), (&b"anna"[..], &b"1"[..]));
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Rejection::Torn`] if its lines come from different moments; another one if no writer leaves such an entry.
    pub fn pair(&self, slot: usize) -> Result<(Bytes, Bytes), Rejection> {
        let (key, value) = (self.key(slot)?, self.layout.value(self.image, slot)?);
        Ok((stream::to_bytes(self.image, key), stream::to_bytes(self.image, value)))
    }

    /// Checks that the bits of each home name the slots of its keys.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// assert_eq!(layout.view(&image)?.check_hops(), Ok(()));
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Rejection::Torn`] if a key has hopped while the leaf was read, so that it may be in neither of its places.
    pub fn check_hops(&self) -> Result<(), Rejection> {
        for home in 0..self.layout.ring.slots {
            if !self.layout.bits_are_of_keys(self.image, home)? {
                return Err(Rejection::Torn);
            }
        }
        Ok(())
    }

    /// Checks that the keys are those of the sum: so all are seen that were there when the sum was read.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// layout.view(&image)?.check_sum()?;
    /// let slot = layout.lookup(&image, b"anna", false)?.found.expect("it is there").slot;
    /// layout.remove(&mut image, slot)?;
    /// layout.view(&image)?.check_sum()?;
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Rejection::Torn`] if they are not, or an entry's lines come from different moments; another one if no writer
    /// leaves such an entry.
    pub fn check_sum(&self) -> Result<(), Rejection> {
        let mut sum = self.layout.sum(self.image);
        for slot in self.present() {
            self.key(slot)?;
            sum ^= self.layout.hash_of(self.image, slot)?;
        }
        if sum == 0 { Ok(()) } else { Err(Rejection::Torn) }
    }

    /// Tells whether all replicas say what the header says.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// assert!(layout.view(&image)?.replicas_agree());
    /// # });
    /// ```
    pub fn replicas_agree(&self) -> bool {
        let bytes = |range| stream::to_bytes(self.image, range);
        (0..self.layout.ring.slots / self.layout.ring.reach).all(|group| {
            let fences = match self.layout.fences(self.image, group) {
                Err(_) => false,
                Ok(None) => true,
                Ok(Some((low, high))) => {
                    (bytes(low), high.map(bytes)) == (self.header.low(), self.header.high())
                }
            };
            fences && self.layout.sibling_bits(self.image, group) == self.header.sibling().to_bits()
        })
    }

    /// Yields the keys, by slot: they are in the leaf.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// assert!(layout.view(&image)?.keys()?.iter().any(|(_, key)| key[..] == *b"anna"));
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`HopView::pair`].
    pub fn keys(&self) -> Result<Vec<(usize, Bytes)>, Rejection> {
        let key = |slot| Ok((slot, stream::to_bytes(self.image, self.key(slot)?)));
        self.present().map(key).collect()
    }

    /// Yields the blocks of an indirect leaf's pairs, by slot, all of which are those of the sum.
    ///
    /// ```
    /// # farwood_doctest::indirect_leaf!(|layout, image| {
    /// assert_eq!(layout.view(&image)?.blocks()?[0].1.address(), RemotePtr::from_bits(640));
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`HopView::check_sum`], and if an entry leads to no block.
    pub fn blocks(&self) -> Result<Vec<(usize, BlockPtr)>, Rejection> {
        self.check_sum()?;
        let block = |slot| Ok((slot, self.layout.block(self.image, slot)?));
        self.present().map(block).collect()
    }

    /// Tells whether `key` has the fingerprint in `slot` of an indirect leaf.
    ///
    /// ```
    /// # farwood_doctest::indirect_leaf!(|layout, image| {
    /// let leaf = layout.view(&image)?;
    /// assert!(leaf.present().all(|slot| leaf.has_fingerprint(slot, b"anna")));
    /// # });
    /// ```
    pub fn has_fingerprint(&self, slot: usize, key: &[u8]) -> bool {
        self.layout.hash_of(self.image, slot) == Ok(HopLayout::hash(key))
    }

    /// Chooses where a leaf is split that has no room for `key`: the first key of its right half. It is the median of
    /// the leaf's `keys`, given by slot, or else the nearest one to it that leaves a key of the neighbourhood of `key`,
    /// all of whose slots are taken, in either half. So either half has a vacancy there.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// for more in 0..=255 {
    ///     let _ = layout.insert_near(&mut image, &[b'd', more], b"");
    /// }
    /// let leaf = layout.view(&image)?;
    /// let first = leaf.split_key(b"anna", &leaf.keys()?)?;
    /// assert!(first[..] > b"anna"[..], "either half has a key");
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Malformed::KeyOrder`] if there is none, or it is not between the bounds.
    pub fn split_key(&self, key: &[u8], keys: &[(usize, Bytes)]) -> Result<Bytes, Rejection> {
        let Ring { reach, .. } = self.layout.ring;
        let home = self.layout.home(key);
        let near = keys.iter().filter(|(slot, _)| self.layout.ring.distance(home, *slot) < reach);
        let near: SmallVec<[&Bytes; 16]> = near.map(|(_, key)| key).collect();
        let mut keys: Vec<&Bytes> = keys.iter().map(|(_, key)| key).collect();
        keys.sort_unstable();
        let place = |key: Option<&&Bytes>| key.and_then(|key| keys.binary_search(key).ok());
        let (Some(least), Some(most)) = (place(near.iter().min()), place(near.iter().max())) else {
            return Err(Malformed::KeyOrder.into());
        };
        let is_here = |key: &Bytes| self.header.position(key) == Position::Here;
        match keys[(keys.len() / 2).min(most).max(least + 1)..].first() {
            Some(first) if least < most && is_here(keys[0]) && is_here(first) => Ok(Bytes::clone(first)),
            _ => Err(Malformed::KeyOrder.into()),
        }
    }

    /// Appends the entries with keys in `bounds` to `pairs`, ascending by key, but at most `limit` of them. A key that
    /// hopped, or was put back, while the leaf was read may show in two slots; it comes once.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let (mut order, mut pairs) = (SlotOrder::default(), Vec::new());
    /// layout.view(&image)?.copy_sorted(&.., 1, &mut order, &mut pairs)?;
    /// assert_eq!(pairs[0].0[..], *b"anna");
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Rejection::Torn`] if the lines of any entry come from different moments; another one if no writer leaves such
    /// an entry. Nothing is appended then.
    pub fn copy_sorted(
        &self,
        bounds: &impl RangeBounds<[u8]>,
        limit: usize,
        order: &mut SlotOrder,
        pairs: &mut Vec<(Bytes, Bytes)>,
    ) -> Result<(), Rejection> {
        let before = pairs.len();
        let key = |slot| Ok(Some(StreamKey { image: self.image, range: self.key(slot)? }));
        for slot in order.sorted(bounds, self.present(), key)?.take(limit) {
            match self.pair(slot) {
                Ok(pair) => pairs.push(pair),
                Err(rejection) => {
                    pairs.truncate(before);
                    return Err(rejection);
                }
            }
        }
        Ok(())
    }

    /// Tells whether what a scan of the leaf says relies on entry versions: whether any entry lies in several lines.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let leaf = layout.view(&image)?;
    /// let crosses = |slot| layout.entry_range(slot).start / 64 != (layout.entry_range(slot).end - 1) / 64;
    /// assert_eq!(leaf.rests_on_entry_versions(), leaf.present().any(crosses));
    /// # });
    /// ```
    pub fn rests_on_entry_versions(&self) -> bool {
        self.present().any(|slot| !self.layout.entry(slot).further_lines().is_empty())
    }

    /// Yields the key in `slot`, which is present, if the entry is whole.
    fn key(&self, slot: usize) -> Result<StreamRange, Rejection> {
        let version = ShortVersion::of(self.header.node_version());
        if !self.layout.entry_is_of(self.image, slot, version) {
            return Err(Rejection::Torn);
        }
        self.layout.key(self.image, slot)
    }
}
