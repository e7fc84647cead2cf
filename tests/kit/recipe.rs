//! How an index of any kind is made and opened, and the index as a compute node sees it. What a kind of index adds to
//! the kit begins here.

use farwood::{AnyIndex, Geometry, Host, IndexError, Options, Sherman, Smart, Verbs, smart};

/// What an index is made and opened with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Recipe {
    Sherman(Geometry, Options),
    Smart(smart::Geometry, smart::Options),
}

/// An index of any kind, as a whole compute node sees it.
pub(crate) enum AnyTree {
    Sherman(Sherman),
    Smart(Smart),
}

impl Recipe {
    /// Whether a change of a value, which keeps its length, takes no memory.
    pub(crate) fn updates_in_place(&self) -> bool {
        match self {
            Recipe::Sherman(..) => true,
            Recipe::Smart(_, options) => options.techniques.in_place_leaves,
        }
    }

    /// Whether a key that was removed, and nothing since, can be inserted again without memory.
    pub(crate) fn inserts_in_place(&self) -> bool {
        match self {
            Recipe::Sherman(..) => true,
            Recipe::Smart(..) => false,
        }
    }

    /// Makes it fit for a fabric of any speed: no client gives up on a lock that others hold in turn. In an emulated
    /// guest each of them takes some 50 ms.
    pub(crate) fn patient(self) -> Self {
        const WAIT_NS_MAX: u64 = 600_000_000_000;
        match self {
            Recipe::Sherman(geometry, options) => {
                Recipe::Sherman(geometry, Options { lock_wait_ns_max: WAIT_NS_MAX, ..options })
            }
            Recipe::Smart(geometry, options) => {
                Recipe::Smart(geometry, smart::Options { lock_wait_ns_max: WAIT_NS_MAX, ..options })
            }
        }
    }

    pub(crate) async fn create(&self, host: &impl Host, name: &str) -> Result<AnyTree, IndexError> {
        Ok(match *self {
            Recipe::Sherman(geometry, options) => {
                AnyTree::Sherman(Sherman::create(host, name, geometry, options).await?)
            }
            Recipe::Smart(geometry, options) => {
                AnyTree::Smart(Smart::create(host, name, geometry, options).await?)
            }
        })
    }

    pub(crate) async fn open(&self, host: &impl Host, name: &str) -> Result<AnyTree, IndexError> {
        Ok(match *self {
            Recipe::Sherman(_, options) => AnyTree::Sherman(Sherman::open(host, name, options).await?),
            Recipe::Smart(_, options) => AnyTree::Smart(Smart::open(host, name, options).await?),
        })
    }
}

impl AnyTree {
    /// The handle for the clients of one shard, once per shard.
    pub(crate) fn attach<V: Verbs>(&self, shard: V) -> AnyIndex<V> {
        match self {
            AnyTree::Sherman(tree) => tree.attach(shard).into(),
            AnyTree::Smart(tree) => tree.attach(shard).into(),
        }
    }
}
