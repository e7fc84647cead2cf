//! All kinds of indexes behind one type: for programs that choose at run time, such as the command line.

use std::ops::RangeBounds;

use farwood_runtime::Verbs;

use crate::check::{CheckOptions, CheckReport};
use crate::error::IndexError;
use crate::range_index::{RangeIndex, Scan, Survey};
use crate::sherman::ShermanIndex;
use crate::smart::SmartIndex;
use crate::stats::IndexStats;
use crate::value::Value;

/// An index of any kind on one shard.
#[non_exhaustive]
pub enum AnyIndex<V: Verbs> {
    /// A Sherman tree.
    Sherman(ShermanIndex<V>),
    /// A SMART tree.
    Smart(SmartIndex<V>),
}

impl<V: Verbs> Clone for AnyIndex<V> {
    fn clone(&self) -> Self {
        match self {
            AnyIndex::Sherman(index) => AnyIndex::Sherman(index.clone()),
            AnyIndex::Smart(index) => AnyIndex::Smart(index.clone()),
        }
    }
}

impl<V: Verbs> AnyIndex<V> {
    /// Checks the index, which is at rest, and says what is wrong with it.
    ///
    /// # Errors
    /// Only if a memory server cannot be read; whatever it holds is in the report.
    pub async fn check(&self, options: &CheckOptions) -> Result<CheckReport, IndexError> {
        self.check_each(options, |_, _| {}).await
    }

    /// The same, and shows `visit` every key with its value.
    ///
    /// # Errors
    /// As [`AnyIndex::check`].
    pub async fn check_each(
        &self,
        options: &CheckOptions,
        visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<CheckReport, IndexError> {
        match self {
            AnyIndex::Sherman(index) => index.check_each(options, visit).await,
            AnyIndex::Smart(index) => index.check_each(options, visit).await,
        }
    }
}

impl<V: Verbs> From<ShermanIndex<V>> for AnyIndex<V> {
    fn from(index: ShermanIndex<V>) -> Self {
        AnyIndex::Sherman(index)
    }
}

impl<V: Verbs> From<SmartIndex<V>> for AnyIndex<V> {
    fn from(index: SmartIndex<V>) -> Self {
        AnyIndex::Smart(index)
    }
}

impl<V: Verbs> RangeIndex for AnyIndex<V> {
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        match self {
            AnyIndex::Sherman(index) => index.get(key).await,
            AnyIndex::Smart(index) => index.get(key).await,
        }
    }

    async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), IndexError> {
        match self {
            AnyIndex::Sherman(index) => index.put(key, value).await,
            AnyIndex::Smart(index) => index.put(key, value).await,
        }
    }

    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, IndexError> {
        match self {
            AnyIndex::Sherman(index) => index.insert(key, value).await,
            AnyIndex::Smart(index) => index.insert(key, value).await,
        }
    }

    async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, IndexError> {
        match self {
            AnyIndex::Sherman(index) => index.update(key, value).await,
            AnyIndex::Smart(index) => index.update(key, value).await,
        }
    }

    async fn remove(&self, key: &[u8]) -> Result<bool, IndexError> {
        match self {
            AnyIndex::Sherman(index) => index.remove(key).await,
            AnyIndex::Smart(index) => index.remove(key).await,
        }
    }

    fn scan<'k>(&self, range: impl RangeBounds<&'k [u8]>, limit: Option<usize>) -> Scan {
        match self {
            AnyIndex::Sherman(index) => index.scan(range, limit),
            AnyIndex::Smart(index) => index.scan(range, limit),
        }
    }

    async fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>, IndexError> {
        match self {
            AnyIndex::Sherman(index) => index.multi_get(keys).await,
            AnyIndex::Smart(index) => index.multi_get(keys).await,
        }
    }

    async fn bulk_load<K: AsRef<[u8]>, U: AsRef<[u8]>>(
        &self,
        pairs: impl IntoIterator<Item = (K, U)>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        match self {
            AnyIndex::Sherman(index) => index.bulk_load(pairs, fill).await,
            AnyIndex::Smart(index) => index.bulk_load(pairs, fill).await,
        }
    }

    async fn survey(&self) -> Result<Survey, IndexError> {
        match self {
            AnyIndex::Sherman(index) => index.survey().await,
            AnyIndex::Smart(index) => index.survey().await,
        }
    }

    fn stats(&self) -> IndexStats {
        match self {
            AnyIndex::Sherman(index) => index.stats(),
            AnyIndex::Smart(index) => index.stats(),
        }
    }
}
