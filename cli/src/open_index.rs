//! Indexes of whatever kind, as a whole compute node sees them: by what the catalog says of them. The one place of the
//! command that has to hear of a new kind.

use farwood::index::sherman;
use farwood::runtime::CatalogEntry;
use farwood::{AnyIndex, Geometry, Host, NodeSize, Options, Sherman, Verbs};

use crate::error::CliError;
use crate::footprint;

/// The longest name of an index, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// An open index.
#[derive(Clone)]
pub(crate) enum OpenIndex {
    /// A Sherman tree.
    Sherman(Sherman),
}

/// What an index takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes of its longest key.
    pub(crate) max_key: usize,
    /// Bytes of its longest value.
    pub(crate) max_value: usize,
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
    /// Creates a Sherman tree.
    ///
    /// # Errors
    /// If the catalog refuses.
    pub(crate) async fn create(host: &impl Host, name: &str, geometry: Geometry) -> Result<Self, CliError> {
        let created = Sherman::create(host, name, geometry, options(0)).await;
        created.map(OpenIndex::Sherman).map_err(CliError::failed)
    }

    /// Opens the index of that name, with a cache of that many bytes.
    ///
    /// # Errors
    /// If there is none, or it is of a kind that this release does not know.
    pub(crate) async fn open(host: &impl Host, name: &str, cache_bytes: usize) -> Result<Self, CliError> {
        let entry = host.control().open(name).await.map_err(CliError::failed)?;
        match entry.kind.as_str() {
            sherman::KIND => {
                let opened = Sherman::open(host, name, options(cache_bytes)).await;
                opened.map(OpenIndex::Sherman).map_err(CliError::failed)
            }
            kind => Err(CliError::Failed(format!(
                "the index {name:?} is of kind {kind:?}, which this farwood cannot open: use the one that created it"
            ))),
        }
    }

    /// The handle for one shard's clients. Called once per shard.
    pub(crate) fn attach<V: Verbs>(&self, shard: V) -> AnyIndex<V> {
        match self {
            OpenIndex::Sherman(sherman) => AnyIndex::from(sherman.attach(shard)),
        }
    }

    /// What it takes.
    pub(crate) fn limits(&self) -> Limits {
        self.geometry().into()
    }

    /// Bytes of its nodes.
    pub(crate) fn node_bytes(&self) -> usize {
        match (self, self.geometry().size) {
            (_, NodeSize::Bytes(bytes)) => bytes,
            (OpenIndex::Sherman(sherman), NodeSize::Slots { .. }) => sherman.leaf_bytes(),
        }
    }

    fn geometry(&self) -> Geometry {
        match self {
            OpenIndex::Sherman(sherman) => sherman.geometry(),
        }
    }
}

/// What the index that the catalog describes so takes, if it is of a kind that this release knows.
pub(crate) fn limits_of(entry: &CatalogEntry) -> Option<Limits> {
    Sherman::geometry_of(entry).ok().map(Limits::from)
}

impl From<Geometry> for Limits {
    fn from(Geometry { max_key, max_value, .. }: Geometry) -> Self {
        Limits { max_key, max_value }
    }
}

/// The geometry of a new index.
///
/// # Errors
/// If no node is large enough.
pub(crate) fn geometry(max_key: u64, max_value: u64) -> Result<Geometry, CliError> {
    let size = |flag: &str, bytes: u64| {
        usize::try_from(bytes).map_err(|_| CliError::Usage(format!("{flag} {bytes}: that is too long")))
    };
    footprint::geometry(size("--max-key", max_key)?, size("--max-value", max_value)?)
}

fn options(cache_bytes: usize) -> Options {
    Options { cache_bytes, ..Options::default() }
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

    #[test]
    fn sizes_that_make_no_node_are_refused() {
        assert_eq!(geometry(8, 8).unwrap(), Geometry::default());
        for (max_key, max_value) in [(1 << 20, 8), (8, 1 << 20), (u64::MAX, 8)] {
            assert_eq!(geometry(max_key, max_value).unwrap_err().exit_code(), 2, "{max_key} {max_value}");
        }
    }
}
