//! How an index of any kind is made and opened, and the index as a compute node sees it. What a kind of index adds to
//! the kit begins here.

use std::sync::Arc;

use farwood::{AnyIndex, Geometry, Host, IndexError, Options, Sherman, Verbs};

/// What an index is made and opened with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Recipe {
    Sherman(Geometry, Options),
}

/// An index of any kind, as a whole compute node sees it.
pub(crate) enum AnyTree {
    Sherman(Sherman),
}

impl Recipe {
    pub(crate) async fn create(&self, host: &Arc<dyn Host>, name: &str) -> Result<AnyTree, IndexError> {
        Ok(match *self {
            Recipe::Sherman(geometry, options) => {
                AnyTree::Sherman(Sherman::create(host, name, geometry, options).await?)
            }
        })
    }

    pub(crate) async fn open(&self, host: &Arc<dyn Host>, name: &str) -> Result<AnyTree, IndexError> {
        Ok(match *self {
            Recipe::Sherman(_, options) => AnyTree::Sherman(Sherman::open(host, name, options).await?),
        })
    }
}

impl AnyTree {
    /// The handle for the clients of one shard, once per shard.
    pub(crate) fn attach<V: Verbs>(&self, shard: V) -> AnyIndex<V> {
        match self {
            AnyTree::Sherman(tree) => tree.attach(shard).into(),
        }
    }
}
