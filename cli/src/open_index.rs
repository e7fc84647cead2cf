//! Indexes of whatever kind, as a whole compute node sees them: by what the catalog says of them. With `kind` and
//! `recipe` the place that has to hear of a new kind.

use farwood::index::{sherman, smart};
use farwood::runtime::CatalogEntry;
use farwood::{AnyIndex, Host, Sherman, Smart, Verbs};

use crate::error::CliError;
use crate::kind::Kind;
use crate::recipe::{Limits, Recipe};

/// The longest name of an index, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// An open index.
#[derive(Clone)]
pub(crate) enum OpenIndex {
    /// A Sherman tree.
    Sherman(Sherman),
    /// A SMART tree.
    Smart(Smart),
}

/// Fails if no index can be named so.
pub(crate) fn check_name(name: &str) -> Result<(), CliError> {
    let problem = match name {
        "" => "it is empty",
        name if name.len() > NAME_BYTES_MAX => "it is longer than 255 bytes",
        name if name.chars().any(char::is_control) => "it has a control character",
        _ => return Ok(()),
    };
    Err(CliError::Usage(format!("{name:?} cannot be the name of an index: {problem}")))
}

impl OpenIndex {
    /// Creates an index by that recipe, and opens it with a cache of that many bytes.
    ///
    /// # Errors
    /// If the catalog refuses.
    pub(crate) async fn create(
        host: &impl Host,
        name: &str,
        recipe: &Recipe,
        cache_bytes: usize,
    ) -> Result<Self, CliError> {
        let created = match *recipe {
            Recipe::Sherman(geometry, techniques) => {
                let options = sherman::Options { techniques, cache_bytes, ..sherman::Options::default() };
                Sherman::create(host, name, geometry, options).await.map(OpenIndex::Sherman)
            }
            Recipe::Smart(geometry, techniques) => {
                let options = smart::Options { techniques, cache_bytes, ..smart::Options::default() };
                Smart::create(host, name, geometry, options).await.map(OpenIndex::Smart)
            }
        };
        created.map_err(CliError::failed)
    }

    /// Opens the index of that name, with a cache of that many bytes.
    ///
    /// # Errors
    /// If there is none, or it is of a kind that this release does not know.
    pub(crate) async fn open(host: &impl Host, name: &str, cache_bytes: usize) -> Result<Self, CliError> {
        let entry = host.control().open(name).await.map_err(CliError::failed)?;
        let opened = match kind_of(&entry) {
            Some(Kind::Sherman) => {
                let options = sherman::Options { cache_bytes, ..sherman::Options::default() };
                Sherman::open(host, name, options).await.map(OpenIndex::Sherman)
            }
            Some(Kind::Smart) => {
                let options = smart::Options { cache_bytes, ..smart::Options::default() };
                Smart::open(host, name, options).await.map(OpenIndex::Smart)
            }
            None => {
                return Err(CliError::Failed(format!(
                    "the index {name:?} is of kind {:?}, which this farwood cannot open: use the one that created it",
                    entry.kind
                )));
            }
        };
        opened.map_err(CliError::failed)
    }

    /// The handle for one shard's clients. Called once per shard.
    pub(crate) fn attach<V: Verbs>(&self, shard: V) -> AnyIndex<V> {
        match self {
            OpenIndex::Sherman(sherman) => AnyIndex::from(sherman.attach(shard)),
            OpenIndex::Smart(smart) => AnyIndex::from(smart.attach(shard)),
        }
    }

    /// What it takes.
    pub(crate) fn limits(&self) -> Limits {
        match self {
            OpenIndex::Sherman(sherman) => sherman.geometry().into(),
            OpenIndex::Smart(smart) => smart.geometry().into(),
        }
    }
}

/// Of what kind the index is that the catalog describes so, if this release knows the kind.
pub(crate) fn kind_of(entry: &CatalogEntry) -> Option<Kind> {
    Kind::ALL.into_iter().find(|kind| kind.name() == entry.kind)
}

/// What it takes, if that can be read.
pub(crate) fn limits_of(entry: &CatalogEntry) -> Option<Limits> {
    match kind_of(entry)? {
        Kind::Sherman => Sherman::geometry_of(entry).ok().map(Limits::from),
        Kind::Smart => Smart::geometry_of(entry).ok().map(Limits::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_text_on_one_line() {
        for name in ["a", "users 2026", "\u{e4}"] {
            check_name(name).unwrap();
        }
        for name in ["", "a\nb", "a\tb", &"a".repeat(256)] {
            assert_eq!(check_name(name).unwrap_err().exit_code(), 2, "{name:?}");
        }
    }
}
