//! The catalog: which named indexes a cluster has, and where their root words are.

use crate::control::{CatalogEntry, ControlError, IndexId};
use crate::pointer::RemotePtr;

/// Named indexes in places; a place is a root word.
pub(super) struct Catalog {
    places: Vec<Option<CatalogEntry>>,
    created: u32,
}

impl Catalog {
    pub(super) fn new(places: u32) -> Self {
        Catalog { places: vec![None; places as usize], created: 0 }
    }

    /// A place for an index of that name.
    pub(super) fn free_place(&self, name: &str) -> Result<u32, ControlError> {
        if self.entries().any(|entry| entry.name == name) {
            return Err(ControlError::Exists { name: name.into() });
        }
        let indexes = self.places.len() as u32;
        let free = self.places.iter().position(Option::is_none);
        free.map(|place| place as u32).ok_or(ControlError::CatalogFull { indexes })
    }

    pub(super) fn insert(
        &mut self,
        place: u32,
        name: &str,
        kind: &str,
        config: &[u8],
        root: RemotePtr,
    ) -> CatalogEntry {
        self.created += 1;
        let id = IndexId(self.created);
        let entry = CatalogEntry { name: name.into(), id, kind: kind.into(), config: config.into(), root };
        self.places[place as usize] = Some(entry.clone());
        entry
    }

    pub(super) fn get(&self, name: &str) -> Result<CatalogEntry, ControlError> {
        let found = self.entries().find(|entry| entry.name == name);
        found.cloned().ok_or_else(|| ControlError::NotFound { name: name.into() })
    }

    pub(super) fn remove(&mut self, name: &str) -> Result<CatalogEntry, ControlError> {
        let named =
            |place: &&mut Option<CatalogEntry>| place.as_ref().is_some_and(|entry| entry.name == name);
        let place = self.places.iter_mut().find(named);
        place.and_then(Option::take).ok_or_else(|| ControlError::NotFound { name: name.into() })
    }

    pub(super) fn list(&self) -> Vec<CatalogEntry> {
        self.entries().cloned().collect()
    }

    pub(super) fn len(&self) -> u32 {
        self.entries().count() as u32
    }

    fn entries(&self) -> impl Iterator<Item = &CatalogEntry> {
        self.places.iter().flatten()
    }
}
