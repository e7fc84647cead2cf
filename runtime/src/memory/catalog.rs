//! The catalog: which named indexes a cluster has, and where their root words are. Names come from users and from the
//! network: a catalog takes what [`crate::control::names`] allows, on every fabric.

use std::collections::BTreeSet;

use super::chunks::Owner;
use super::layout::{INDEXES_MAX, root_word};
use crate::control::names::{check_name, check_new};
use crate::control::queue_pair::PeerId;
use crate::control::seal::SealKey;
use crate::control::wire::Entry;
use crate::control::{ControlError, IndexId};

/// Named indexes in places; a place is a root word.
pub(super) struct Catalog {
    places: Vec<Option<Kept>>,
    /// Those that are to be of indexes which are not made yet.
    reserved: BTreeSet<usize>,
    created: u32,
}

/// A root word that is no index's.
#[must_use = "it has to become an index's, or free again"]
pub(super) struct ReservedRoot(usize);

impl ReservedRoot {
    /// Returns where it is.
    pub(super) fn offset(&self) -> u64 {
        root_word(self.0 as u32)
    }
}

/// Description of a new index.
#[derive(Clone, Copy)]
pub(crate) struct NewIndex<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) config: &'a [u8],
    /// Seal that will let its chunks be freed.
    pub(crate) key: SealKey,
    /// Number of dead nodes that have been fenced before it.
    pub(crate) fenced: u32,
    /// With whom it goes, if with one.
    pub(crate) temporary_of: Option<PeerId>,
}

struct Kept {
    entry: Entry,
    key: SealKey,
    temporary_of: Option<PeerId>,
    /// Its chunks are being taken back, on several servers one after the other: it cannot be opened any more, and only
    /// a drop that is run to its end takes it out.
    dropping: bool,
}

impl Catalog {
    pub(super) fn new() -> Self {
        Catalog { places: (0..INDEXES_MAX).map(|_| None).collect(), reserved: BTreeSet::new(), created: 0 }
    }

    /// Reserves the root word of an index that there may be: it is not there before [`Catalog::create`].
    pub(super) fn reserve(&mut self, new: &NewIndex<'_>) -> Result<ReservedRoot, ControlError> {
        self.check(new)?;
        let is_free = |&place: &usize| self.places[place].is_none() && !self.reserved.contains(&place);
        let place = (0..self.places.len()).find(is_free);
        let place = place.ok_or(ControlError::CatalogFull { indexes: INDEXES_MAX })?;
        self.reserved.insert(place);
        Ok(ReservedRoot(place))
    }

    /// Frees a reserved root word again.
    pub(super) fn unreserve(&mut self, root: ReservedRoot) {
        self.reserved.remove(&root.0);
    }

    fn check(&self, new: &NewIndex<'_>) -> Result<(), ControlError> {
        check_new(new.name, new.kind, new.config)?;
        match self.kept().find(|kept| kept.entry.name == new.name) {
            None => Ok(()),
            Some(kept) if kept.dropping => Err(kept.being_dropped()),
            Some(_) => Err(ControlError::Exists { name: new.name.into() }),
        }
    }

    /// Makes an index whose root word, which is zero, is that one.
    pub(super) fn create(&mut self, new: NewIndex<'_>, root: ReservedRoot) -> Result<Entry, ControlError> {
        let (offset, place) = (root.offset(), root.0);
        self.unreserve(root);
        // Another one may have made it since.
        self.check(&new)?;
        let NewIndex { name, kind, config, key, fenced, temporary_of } = new;
        // 2^32 indexes are more than a server creates in its life (one per ms would take seven weeks).
        self.created = self.created.checked_add(1).ok_or(ControlError::CatalogFull { indexes: u32::MAX })?;
        let entry = Entry {
            name: name.into(),
            id: self.created,
            kind: kind.into(),
            config: config.into(),
            root: offset,
            seal: key.seal(),
            fenced,
            temporary: temporary_of.is_some(),
        };
        self.places[place] = Some(Kept { entry: entry.clone(), key, temporary_of, dropping: false });
        Ok(entry)
    }

    pub(super) fn open(&self, name: &str, by: PeerId) -> Result<Entry, ControlError> {
        let kept = self.find(name)?;
        kept.usable(by)?;
        Ok(kept.entry.clone())
    }

    /// Returns the owner of chunks for that index, if that peer may take them.
    pub(super) fn usable(&self, index: IndexId, by: PeerId) -> Result<Owner, ControlError> {
        let kept = self.kept().find(|kept| kept.entry.id == index.0);
        let kept = kept.ok_or(ControlError::NoSuchIndex { index })?;
        kept.usable(by)?;
        Ok(kept.owner())
    }

    /// Lists the names of the indexes that go with that peer.
    pub(super) fn temporary_of(&self, peer: PeerId) -> Vec<String> {
        let theirs = self.kept().filter(|kept| kept.temporary_of == Some(peer));
        theirs.map(|kept| kept.entry.name.clone()).collect()
    }

    pub(super) fn id_of(&self, name: &str) -> Result<IndexId, ControlError> {
        Ok(IndexId(self.find(name)?.entry.id))
    }

    /// Marks an index as being dropped. Doing it again is how a drop that was cut short is taken up.
    /// Yields what frees its chunks.
    pub(super) fn begin_drop(&mut self, name: &str) -> Result<(IndexId, SealKey), ControlError> {
        check_name(name)?;
        let named = |kept: &&mut Kept| kept.entry.name == name;
        let kept = self.places.iter_mut().flatten().find(named);
        let kept = kept.ok_or_else(|| ControlError::NotFound { name: name.into() })?;
        kept.dropping = true;
        Ok((IndexId(kept.entry.id), kept.key))
    }

    /// Returns the owner of chunks of that index, if it is being dropped.
    pub(super) fn dropping(&self, index: IndexId) -> Option<Owner> {
        self.kept().find(|kept| kept.entry.id == index.0 && kept.dropping).map(Kept::owner)
    }

    /// Takes an index out that is being dropped.
    pub(super) fn finish_drop(&mut self, name: &str, index: IndexId) -> Result<(), ControlError> {
        check_name(name)?;
        let dropped = |place: &&mut Option<Kept>| {
            place
                .as_ref()
                .is_some_and(|kept| kept.dropping && kept.entry.id == index.0 && kept.entry.name == name)
        };
        let place = self.places.iter_mut().find(dropped);
        let taken = place.and_then(Option::take);
        taken.map(|_| ()).ok_or_else(|| ControlError::NotFound { name: name.into() })
    }

    /// Lists the next entries by name, `bytes_max` encoded bytes at most but for the first, and whether there are more.
    pub(super) fn page(&self, after: Option<&str>, bytes_max: usize) -> (Vec<Entry>, bool) {
        let mut following: Vec<&Entry> = self.kept().map(|kept| &kept.entry).collect();
        following.retain(|entry| after.is_none_or(|after| entry.name.as_str() > after));
        following.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        let mut bytes = 0;
        let fits = following.iter().take_while(|entry| {
            bytes += entry.encoded_bytes_max();
            bytes <= bytes_max
        });
        let count = fits.count().max(1).min(following.len());
        (following[..count].iter().map(|&entry| entry.clone()).collect(), count < following.len())
    }

    pub(super) fn len(&self) -> u32 {
        self.kept().count() as u32
    }

    fn kept(&self) -> impl Iterator<Item = &Kept> {
        self.places.iter().flatten()
    }

    fn find(&self, name: &str) -> Result<&Kept, ControlError> {
        check_name(name)?;
        let found = self.kept().find(|kept| kept.entry.name == name);
        found.ok_or_else(|| ControlError::NotFound { name: name.into() })
    }
}

impl Kept {
    fn usable(&self, by: PeerId) -> Result<(), ControlError> {
        if self.dropping {
            return Err(self.being_dropped());
        }
        match self.temporary_of.is_none_or(|owner| owner == by) {
            true => Ok(()),
            false => Err(ControlError::Temporary { name: self.entry.name.clone() }),
        }
    }

    fn being_dropped(&self) -> ControlError {
        ControlError::BeingDropped { name: self.entry.name.clone() }
    }

    fn owner(&self) -> Owner {
        Owner { index: IndexId(self.entry.id), seal: self.entry.seal }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: PeerId = PeerId(1);

    impl Catalog {
        fn make(&mut self, name: &str, kind: &str, config: &[u8]) -> Result<Entry, ControlError> {
            let (key, fenced, temporary_of) = (SealKey(7), 0, None);
            let new = NewIndex { name, kind, config, key, fenced, temporary_of };
            let root = self.reserve(&new)?;
            self.create(new, root)
        }
    }

    #[test]
    fn takes_only_what_is_bounded() {
        let mut catalog = Catalog::new();
        for name in ["", "a\nb", "\u{7f}", &"x".repeat(256)] {
            let refused = Err(ControlError::BadName { bytes: name.len() as u64 });
            assert_eq!(catalog.make(name, "sherman", b""), refused);
            assert_eq!(catalog.open(name, ME).map(|_| ()), refused.clone().map(|_: Entry| ()));
        }
        let kind = catalog.make("a", &"k".repeat(33), b"");
        assert_eq!(kind, Err(ControlError::BadKind { bytes: 33 }));
        let config = catalog.make("a", "", &[0; 4097]);
        assert_eq!(config, Err(ControlError::ConfigTooLong { bytes: 4097 }));
        assert_eq!(catalog.len(), 0);
        catalog.make(&"x".repeat(255), &"k".repeat(32), &[0; 4096]).unwrap();
    }

    #[test]
    fn an_index_that_is_being_dropped_can_only_be_dropped() {
        let mut catalog = Catalog::new();
        let index = IndexId(catalog.make("a", "sherman", b"").unwrap().id);
        assert_eq!(catalog.finish_drop("a", index), Err(ControlError::NotFound { name: "a".into() }));
        assert_eq!(catalog.usable(index, ME).map(|owner| owner.index), Ok(index));
        assert_eq!(catalog.begin_drop("a"), Ok((index, SealKey(7))));
        let being_dropped = ControlError::BeingDropped { name: "a".into() };
        assert_eq!(catalog.open("a", ME), Err(being_dropped.clone()));
        assert_eq!(catalog.make("a", "sherman", b""), Err(being_dropped.clone()));
        assert_eq!(catalog.usable(index, ME), Err(being_dropped));
        assert_eq!(
            catalog.begin_drop("a"),
            Ok((index, SealKey(7))),
            "dropping goes on where it was cut short"
        );
        assert_eq!(catalog.finish_drop("a", index), Ok(()));
        assert_eq!(catalog.usable(index, ME), Err(ControlError::NoSuchIndex { index }));
        assert_ne!(catalog.make("a", "sherman", b"").unwrap().id, index.0, "numbers are not used again");
    }

    #[test]
    fn a_root_word_is_one_index_s() {
        let mut catalog = Catalog::new();
        let (key, fenced, temporary_of) = (SealKey(7), 0, None);
        let new = NewIndex { name: "a", kind: "", config: b"", key, fenced, temporary_of };
        let roots: Vec<_> = (0..INDEXES_MAX).map(|_| catalog.reserve(&new).unwrap()).collect();
        assert_eq!((catalog.len(), catalog.open("a", ME).is_err()), (0, true), "it is not there yet");
        let full = ControlError::CatalogFull { indexes: INDEXES_MAX };
        assert_eq!(catalog.reserve(&new).map(|_| ()), Err(full));
        let mut left = roots.into_iter();
        let (first, second, third) = (left.next().unwrap(), left.next().unwrap(), left.next().unwrap());
        let offsets = [first.offset(), second.offset(), third.offset()];
        assert_eq!(catalog.create(new, second).unwrap().root, offsets[1]);
        let exists = ControlError::Exists { name: "a".into() };
        assert_eq!(catalog.create(new, first), Err(exists.clone()), "another one was faster");
        assert_eq!(catalog.reserve(&new).map(|_| ()), Err(exists));
        catalog.unreserve(third);
        let other = NewIndex { name: "b", ..new };
        let free = [catalog.reserve(&other).unwrap().offset(), catalog.reserve(&other).unwrap().offset()];
        assert_eq!(free, [offsets[0], offsets[2]]);
    }

    #[test]
    fn a_temporary_index_is_its_creators() {
        let mut catalog = Catalog::new();
        let (key, fenced, temporary_of) = (SealKey(7), 0, Some(ME));
        let new = NewIndex { name: "a", kind: "", config: b"", key, fenced, temporary_of };
        let root = catalog.reserve(&new).unwrap();
        let entry = catalog.create(new, root).unwrap();
        assert!(entry.temporary && catalog.open("a", ME).is_ok());
        let refused = ControlError::Temporary { name: "a".into() };
        assert_eq!(catalog.open("a", PeerId(2)), Err(refused.clone()));
        assert_eq!(catalog.usable(IndexId(entry.id), PeerId(2)), Err(refused));
        assert_eq!((catalog.temporary_of(PeerId(2)), catalog.temporary_of(ME)), (vec![], vec!["a".into()]));
    }

    #[test]
    fn pages_cover_the_catalog_in_order() {
        let mut catalog = Catalog::new();
        for i in (0..40).rev() {
            catalog.make(&format!("index {i:02}"), "sherman", &vec![1; i * 100]).unwrap();
        }
        for bytes_max in [0, 5000, 1 << 20] {
            let (mut names, mut after) = (Vec::new(), None);
            loop {
                let (page, more) = catalog.page(after.as_deref(), bytes_max);
                names.extend(page.into_iter().map(|entry| entry.name));
                after = names.last().cloned();
                if !more {
                    break;
                }
            }
            assert_eq!(names, (0..40).map(|i| format!("index {i:02}")).collect::<Vec<_>>());
        }
        assert_eq!(Catalog::new().page(None, 100), (vec![], false));
    }
}
