//! The kinds of indexes: one line each, at the end of this file. Programs that choose at run time, the command line,
//! the simulator and the tests know kinds by the code that is made from those lines, and match on none themselves.

use std::ops::RangeInclusive;

use farwood_lock::LockConfig;
use farwood_runtime::alloc::Books;
use farwood_runtime::node::NodeContext;
use farwood_runtime::{CatalogEntry, RemotePtr, Verbs};

use crate::check::{CheckOptions, CheckReport, HeldLock};
use crate::error::{AccessError, GiveBackError, LoadError, OpenError, ReadError, SweepError, WriteError};
use crate::key_range::KeyRange;
use crate::layout::{Bytes, LayoutError};
use crate::range_index::{RangeIndex, Scan, TreeShape};
use crate::shell::algorithm::{Algorithm, Filled, Geometry, Limits, Nodes, Trial};
use crate::shell::handle::{Index, Tree};
use crate::shell::options::Options;
use crate::shell::sweep::SweepReport;
use crate::shell::techniques::Switches;
use crate::sherman::ShermanAlgorithm;
use crate::smart::SmartAlgorithm;
use crate::stats::IndexStats;
use crate::value::Value;

/// Makes a documentation test of lines that ask a specification.
macro_rules! example {
    ($($line:literal),+) => {
        concat!(
            "```\n# use farwood_index::*;\n",
            "let limits = Limits { max_key: 8, max_value: 8 };\n",
            "let spec = IndexKind::Sherman.spec(limits, Nodes::Usual);\n",
            $($line, "\n",)+
            "```"
        )
    };
}

macro_rules! registry {
    // The first token is a dollar sign, for the macro that this one defines.
    ($dollar:tt $($(#[doc = $about:literal])+ $kind:ident ($name:ident): $algorithm:ty,)+) => {
        /// Calls a macro once for each kind of index, with its name and its variant behind the arguments given:
        /// `for_each_index_kind!(tests!(a b))` calls `tests!(a b sherman = Sherman)` and so on.
        #[macro_export]
        macro_rules! for_each_index_kind {
            ($dollar callback:ident!($dollar($dollar args:tt)*)) => {
                $($dollar callback!($dollar($dollar args)* $name = $kind);)+
            };
        }

        /// A kind of index. There will be more.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[non_exhaustive]
        pub enum IndexKind {
            $($(#[doc = $about])+ $kind,)+
        }

        impl IndexKind {
            /// All kinds, the default first.
            pub const ALL: &[IndexKind] = &[$(IndexKind::$kind,)+];

            /// Yields the name in catalogs and on the command line.
            ///
            /// ```
            /// # use farwood_index::IndexKind;
            /// assert_eq!(IndexKind::Smart.name(), "smart");
            /// ```
            pub const fn name(self) -> &'static str {
                match self {
                    $(IndexKind::$kind => <$algorithm>::KIND,)+
                }
            }

            /// Describes it in a phrase: what its line in the registry is documented with.
            ///
            /// ```
            /// # use farwood_index::IndexKind;
            /// assert!(IndexKind::Sherman.about().contains("B+tree"));
            /// ```
            pub fn about(self) -> &'static str {
                match self {
                    $(IndexKind::$kind => concat!($($about),+).trim().trim_end_matches('.'),)+
                }
            }

            /// Yields what tests and swarms need to know of the kind.
            pub const fn trial(self) -> &'static Trial {
                match self {
                    $(IndexKind::$kind => &<$algorithm as Algorithm>::TRIAL,)+
                }
            }

            /// Says what a survey's load factor is about.
            ///
            /// ```
            /// # use farwood_index::IndexKind;
            /// assert_eq!(IndexKind::Smart.filled().name(), "inner nodes");
            /// ```
            pub fn filled(self) -> Filled {
                match self {
                    $(IndexKind::$kind => <$algorithm>::FILLED,)+
                }
            }

            /// Lists its techniques by name, each as it is by default, with the switches of its geometry.
            ///
            /// ```
            /// # use farwood_index::IndexKind;
            /// assert!(IndexKind::Sherman.techniques().contains(&("fused", true)));
            /// ```
            pub fn techniques(self) -> Vec<(&'static str, bool)> {
                self.spec(self.usual_limits(), Nodes::Usual).techniques()
            }

            /// Yields what an index takes if its creator does not say.
            ///
            /// ```
            /// # use farwood_index::IndexKind;
            /// assert_eq!(IndexKind::Sherman.usual_limits().max_key, 32);
            /// ```
            pub fn usual_limits(self) -> Limits {
                match self {
                    $(IndexKind::$kind => <$algorithm as Algorithm>::Geometry::USUAL_LIMITS,)+
                }
            }

            /// Makes what an index of this kind is created with by default, for keys and values up to those limits.
            /// [`IndexSpec::check`] says whether there can be one.
            ///
            /// ```
            /// # use farwood_index::{IndexKind, Limits, Nodes};
            /// let limits = Limits { max_key: 1000, max_value: 8 };
            /// assert!(IndexKind::Sherman.spec(limits, Nodes::Usual).check().is_ok());
            /// assert!(IndexKind::Smart.spec(limits, Nodes::Usual).check().is_err(), "of 255 bytes at most");
            /// ```
            pub fn spec(self, limits: Limits, nodes: Nodes) -> IndexSpec {
                match self {
                    $(IndexKind::$kind => IndexSpec::$kind {
                        geometry: Geometry::new(limits, nodes),
                        options: Options::default(),
                    },)+
                }
            }

            /// Draws a geometry for a simulated cluster. `choose(n)` yields a number below n.
            pub fn draw(self, choose: impl FnMut(usize) -> usize) -> IndexSpec {
                match self {
                    $(IndexKind::$kind => IndexSpec::$kind {
                        geometry: Geometry::draw(choose),
                        options: Options::default(),
                    },)+
                }
            }

            /// Reads what an index takes from its catalog entry, without opening it.
            ///
            /// ```
            /// # use farwood_index::{IndexKind, Limits, Nodes};
            /// # farwood_doctest::run(async |node, _| {
            /// let spec = IndexKind::Smart.spec(Limits { max_key: 8, max_value: 8 }, Nodes::Usual);
            /// spec.create(&node, "users").await?;
            /// # use farwood_runtime::NodeContext;
            /// let entry = node.control().open("users").await?;
            /// assert_eq!(IndexKind::Smart.limits_of(&entry)?, spec.limits());
            /// # Ok(()) });
            /// ```
            ///
            /// # Errors
            /// If it is of another kind, or its configuration cannot be read.
            pub fn limits_of(self, entry: &CatalogEntry) -> Result<Limits, OpenError> {
                match self {
                    $(IndexKind::$kind => Ok(Tree::<$algorithm>::geometry_of(entry)?.limits()),)+
                }
            }
        }

        /// An index of any kind as it is created and opened: its sizes, which count when it is created, and the options
        /// of this compute node.
        #[derive(Clone, Copy, PartialEq, Debug)]
        #[non_exhaustive]
        #[expect(missing_docs, reason = "named as the kinds")]
        pub enum IndexSpec {
            $($kind {
                geometry: <$algorithm as Algorithm>::Geometry,
                options: Options<<$algorithm as Algorithm>::Techniques>,
            },)+
        }

        impl IndexSpec {
            /// Yields the kind of the index.
            ///
            #[doc = example!("assert_eq!(spec.kind(), IndexKind::Sherman);")]
            pub fn kind(&self) -> IndexKind {
                match self {
                    $(IndexSpec::$kind { .. } => IndexKind::$kind,)+
                }
            }

            /// Checks whether the geometry makes a node.
            ///
            #[doc = example!("assert_eq!(spec.check(), Ok(()));")]
            ///
            /// # Errors
            /// [`LayoutError`] says which size to change.
            pub fn check(&self) -> Result<(), LayoutError> {
                match self {
                    $(IndexSpec::$kind { geometry, .. } => geometry.check(),)+
                }
            }

            /// Yields what the index takes.
            ///
            #[doc = example!("assert_eq!(spec.limits(), limits);")]
            pub fn limits(&self) -> Limits {
                match self {
                    $(IndexSpec::$kind { geometry, .. } => geometry.limits(),)+
                }
            }

            /// Tells whether leaves are as large as their entries need.
            ///
            #[doc = example!("assert!(!spec.leaves_differ());")]
            pub fn leaves_differ(&self) -> bool {
                match self {
                    $(IndexSpec::$kind { .. } => <$algorithm as Algorithm>::Geometry::LEAVES_DIFFER,)+
                }
            }

            /// Yields the bytes of a leaf: of the largest, where they differ.
            ///
            #[doc = example!("assert_eq!(spec.leaf_bytes(), 1024);")]
            pub fn leaf_bytes(&self) -> usize {
                match self {
                    $(IndexSpec::$kind { geometry, .. } => geometry.leaf_bytes(),)+
                }
            }

            /// Yields the bytes that a get of a key of the longest reads.
            ///
            #[doc = example!("assert_eq!(spec.get_bytes(), spec.leaf_bytes());")]
            pub fn get_bytes(&self) -> usize {
                match self {
                    $(IndexSpec::$kind { geometry, .. } => geometry.get_bytes(),)+
                }
            }

            /// Counts the leaves for so many keys, whose nodes are filled to `fill`.
            ///
            #[doc = example!("assert_eq!(spec.leaves(2, 1.0), 1);")]
            pub fn leaves(&self, keys: u64, fill: f64) -> u64 {
                match self {
                    $(IndexSpec::$kind { geometry, .. } => geometry.leaves(keys, fill),)+
                }
            }

            /// Estimates the bytes on the memory servers for so many keys from above.
            ///
            #[doc = example!("assert!(spec.bytes_for(1_000_000, 0.8) > 16_000_000);")]
            pub fn bytes_for(&self, keys: u64, fill: f64) -> u64 {
                match self {
                    $(IndexSpec::$kind { geometry, .. } => geometry.bytes_for(keys, fill),)+
                }
            }

            /// Bounds the bytes of nodes that are lost if a client stops in the middle of an operation.
            ///
            #[doc = example!("assert_eq!(spec.bytes_in_hand(), 1024);")]
            pub fn bytes_in_hand(&self) -> u64 {
                match self {
                    $(IndexSpec::$kind { geometry, .. } => geometry.bytes_in_hand(),)+
                }
            }

            /// Chooses so many of the ascending `keys` that gets of them meet every inner node.
            ///
            #[doc = example!(
                r#"let keys = [Bytes::from_slice(b"anna")];"#,
                "assert_eq!(spec.touching(&keys), keys);"
            )]
            pub fn touching(&self, keys: &[Bytes]) -> Vec<Bytes> {
                match self {
                    $(IndexSpec::$kind { geometry, .. } => geometry.touching(keys),)+
                }
            }

            /// Yields the options of this compute node.
            ///
            #[doc = example!("assert_eq!(spec.options().cache_bytes, 512 << 20);")]
            pub fn options(&self) -> &Options<dyn Switches> {
                match self {
                    $(IndexSpec::$kind { options, .. } => options,)+
                }
            }

            /// Lists the techniques by name, with the switches of the geometry.
            ///
            #[doc = example!(r#"assert!(spec.techniques().contains(&("fused", true)));"#)]
            pub fn techniques(&self) -> Vec<(&'static str, bool)> {
                match self {
                    $(IndexSpec::$kind { geometry, options } => {
                        [options.techniques.list(), geometry.switches()].concat()
                    })+
                }
            }

            /// Sets the technique, or the switch of the geometry, with that name; yields false if there is none.
            ///
            #[doc = example!("let mut spec = spec;", r#"assert!(!spec.set_technique("warp", true));"#)]
            pub fn set_technique(&mut self, name: &str, on: bool) -> bool {
                match self {
                    $(IndexSpec::$kind { geometry, options } => {
                        options.techniques.set(name, on) || geometry.set_switch(name, on)
                    })+
                }
            }

            /// Yields the options of this compute node, to change them.
            ///
            #[doc = example!(
                "let mut spec = spec;",
                r#"assert!(spec.options_mut().techniques.set("fused", false));"#,
                r#"assert_eq!(spec.technique("fused"), Some(false));"#
            )]
            pub fn options_mut(&mut self) -> &mut Options<dyn Switches> {
                match self {
                    $(IndexSpec::$kind { options, .. } => options,)+
                }
            }

            /// Yields what remains of it where locks can be in on-chip memory
            /// ([`farwood_lock::on_chip_possible`]) or cannot.
            ///
            #[doc = example!(r#"assert_eq!(spec.effective(false).technique("on_chip"), Some(false));"#)]
            pub fn effective(mut self, on_chip_possible: bool) -> Self {
                match &mut self {
                    $(IndexSpec::$kind { options, .. } => {
                        options.techniques = <$algorithm>::effective(options.techniques, on_chip_possible);
                    })+
                }
                self
            }

            /// Yields the round trips of a get, and those of an update of a present key that has room.
            ///
            #[doc = example!("assert_eq!(spec.round_trips(), (1..=1, 2..=2));")]
            pub fn round_trips(&self) -> (RangeInclusive<u64>, RangeInclusive<u64>) {
                match self {
                    $(IndexSpec::$kind { geometry, options } => {
                        <$algorithm>::round_trips(*geometry, options.techniques)
                    })+
                }
            }

            /// Tells whether a change of a value, which keeps its length, takes no memory.
            ///
            #[doc = example!("assert!(spec.updates_in_place());")]
            pub fn updates_in_place(&self) -> bool {
                match self {
                    $(IndexSpec::$kind { geometry, options } => {
                        <$algorithm>::updates_in_place(*geometry, options.techniques)
                    })+
                }
            }

            /// Yields the configuration of the locks that the index uses; for SMART of those that stand in for locks in
            /// leaves. The switches are taken as they are ([`IndexSpec::effective`]).
            ///
            #[doc = example!("assert!(spec.locks().handover && !spec.without_techniques().locks().handover);")]
            pub fn locks(&self) -> LockConfig {
                match self {
                    $(IndexSpec::$kind { options, .. } => {
                        <$algorithm>::meet(options.techniques, options.locks()).0
                    })+
                }
            }

            /// Changes the geometry to one for these limits and nodes; options and switches stay.
            ///
            #[doc = example!("assert!(spec.sized(limits, Nodes::Tiny).leaf_bytes() < spec.leaf_bytes());")]
            pub fn sized(mut self, limits: Limits, nodes: Nodes) -> Self {
                match &mut self {
                    $(IndexSpec::$kind { geometry, .. } => {
                        let switches = geometry.switches();
                        *geometry = Geometry::new(limits, nodes);
                        for (name, on) in switches {
                            geometry.set_switch(name, on);
                        }
                    })+
                }
                self
            }

            /// Creates the index in the catalog under `name` and opens it ([`Tree::create`]).
            ///
            /// ```
            /// # use farwood_index::{IndexKind, Limits, Nodes, RangeIndex};
            /// # farwood_doctest::run(async |node, shard| {
            /// let spec = IndexKind::Smart.spec(Limits { max_key: 8, max_value: 8 }, Nodes::Usual);
            /// let index = spec.create(&node, "users").await?.attach(shard);
            /// assert!(index.insert(b"anna", b"1").await?);
            /// # Ok(()) });
            /// ```
            ///
            /// # Errors
            /// If the geometry makes no node, there can be no such index on this cluster, or the catalog refuses.
            pub async fn create(&self, node: &impl NodeContext, name: &str) -> Result<AnyTree, OpenError> {
                match *self {
                    $(IndexSpec::$kind { geometry, options } => {
                        Tree::create(node, name, geometry, options).await.map(AnyTree::$kind)
                    })+
                }
            }

            /// Opens the index that the catalog has under `name` with the options; its creator's geometry counts.
            ///
            /// ```
            /// # use farwood_index::{IndexKind, Limits, Nodes};
            /// # farwood_doctest::run(async |node, _| {
            /// let spec = IndexKind::Smart.spec(Limits { max_key: 8, max_value: 8 }, Nodes::Usual);
            /// spec.create(&node, "users").await?;
            /// assert_eq!(spec.open(&node, "users").await?.limits(), spec.limits());
            /// let other = IndexKind::Sherman.spec(spec.limits(), Nodes::Usual);
            /// assert!(other.open(&node, "users").await.is_err());
            /// # Ok(()) });
            /// ```
            ///
            /// # Errors
            /// If there is none, it is of another kind, the catalog's configuration of it cannot be read, or it cannot
            /// be on this cluster.
            pub async fn open(&self, node: &impl NodeContext, name: &str) -> Result<AnyTree, OpenError> {
                match *self {
                    $(IndexSpec::$kind { options, .. } => {
                        Tree::open(node, name, options).await.map(AnyTree::$kind)
                    })+
                }
            }
        }

        /// An index of any kind as a whole compute node sees it.
        #[derive(Clone)]
        #[expect(missing_docs, reason = "named as the kinds")]
        pub enum AnyTree {
            $($kind(Tree<$algorithm>),)+
        }

        impl AnyTree {
            /// Makes the handle for the clients of one shard. Call it once per shard.
            ///
            /// ```
            /// # use farwood_index::{IndexKind, Limits, Nodes, RangeIndex};
            /// # farwood_doctest::run(async |node, shard| {
            /// let spec = IndexKind::Smart.spec(Limits { max_key: 8, max_value: 8 }, Nodes::Usual);
            /// let users = spec.create(&node, "users").await?.attach(shard);
            /// users.put(b"anna", b"1").await?;
            /// assert!(users.get(b"anna").await?.is_some());
            /// # Ok(()) });
            /// ```
            ///
            /// # Panics
            /// If it was called on this shard before.
            pub fn attach<V: Verbs>(&self, verbs: V) -> AnyIndex<V> {
                match self {
                    $(AnyTree::$kind(tree) => AnyIndex::$kind(tree.attach(verbs)),)+
                }
            }

            /// Yields what the index takes.
            ///
            /// ```
            /// # use farwood_index::{IndexKind, Limits, Nodes};
            /// # farwood_doctest::run(async |node, _| {
            /// let spec = IndexKind::Smart.spec(Limits { max_key: 8, max_value: 8 }, Nodes::Usual);
            /// assert_eq!(spec.create(&node, "users").await?.limits(), spec.limits());
            /// # Ok(()) });
            /// ```
            pub fn limits(&self) -> Limits {
                match self {
                    $(AnyTree::$kind(tree) => tree.geometry().limits(),)+
                }
            }
        }

        $(impl From<Tree<$algorithm>> for AnyTree {
            fn from(tree: Tree<$algorithm>) -> Self {
                AnyTree::$kind(tree)
            }
        })+

        /// An index of any kind on one shard.
        #[expect(missing_docs, reason = "named as the kinds")]
        pub enum AnyIndex<V: Verbs> {
            $($kind(Index<$algorithm, V>),)+
        }

        $(impl<V: Verbs> From<Index<$algorithm, V>> for AnyIndex<V> {
            fn from(index: Index<$algorithm, V>) -> Self {
                AnyIndex::$kind(index)
            }
        })+

        impl<V: Verbs> Clone for AnyIndex<V> {
            fn clone(&self) -> Self {
                match self {
                    $(AnyIndex::$kind(index) => AnyIndex::$kind(index.clone()),)+
                }
            }
        }

        impl<V: Verbs> AnyIndex<V> {
            /// Yields the kind of the index.
            ///
            /// ```
            /// # farwood_doctest::index!(|index| {
            /// # let index = farwood_index::AnyIndex::from(index);
            /// assert_eq!(index.kind(), farwood_index::IndexKind::Sherman);
            /// # });
            /// ```
            pub fn kind(&self) -> IndexKind {
                match self {
                    $(AnyIndex::$kind(_) => IndexKind::$kind,)+
                }
            }

            /// Tells what became of the memory that this shard has taken ([`Index::books`]).
            ///
            /// ```
            /// # farwood_doctest::index!(|index| {
            /// # let index = farwood_index::AnyIndex::from(index);
            /// index.put(b"anna", b"1").await?;
            /// assert!(index.books().used_bytes > 0);
            /// # });
            /// ```
            pub fn books(&self) -> Books {
                match self {
                    $(AnyIndex::$kind(index) => index.books(),)+
                }
            }

            /// Lists the memory that this shard has, and that no node lies in ([`Index::free_extents`]).
            ///
            /// ```
            /// # farwood_doctest::index!(|index| {
            /// assert!(farwood_index::AnyIndex::from(index).free_extents().is_empty());
            /// # });
            /// ```
            pub fn free_extents(&self) -> Vec<(RemotePtr, u64)> {
                match self {
                    $(AnyIndex::$kind(index) => index.free_extents(),)+
                }
            }

            /// Counts the bytes of that memory that are for intents ([`Index::intent_bytes`]).
            ///
            /// ```
            /// # farwood_doctest::index!(|index| {
            /// # let index = farwood_index::AnyIndex::from(index);
            /// index.put(b"anna", b"1").await?;
            /// assert!((1..=8192).contains(&index.intent_bytes()), "a page, in a chunk of 64 KiB");
            /// # });
            /// ```
            pub fn intent_bytes(&self) -> u64 {
                match self {
                    $(AnyIndex::$kind(index) => index.intent_bytes(),)+
                }
            }

            /// Counts local locks and windows that are held or waited for here ([`Index::locks_in_use`]).
            ///
            /// ```
            /// # farwood_doctest::index!(|index| {
            /// # let index = farwood_index::AnyIndex::from(index);
            /// index.put(b"anna", b"1").await?;
            /// assert_eq!(index.locks_in_use(), 0);
            /// # });
            /// ```
            pub fn locks_in_use(&self) -> usize {
                match self {
                    $(AnyIndex::$kind(index) => index.locks_in_use(),)+
                }
            }

            /// Takes over a lock of a dead compute node that a check has found ([`Index::take_over`]).
            ///
            /// ```
            /// # farwood_doctest::index!(|index| {
            /// # let index = farwood_index::AnyIndex::from(index);
            /// let report = index.check(&Default::default()).await?;
            /// for held in report.orphaned.iter() {
            ///     assert!(index.take_over(held).await?);
            /// }
            /// # });
            /// ```
            ///
            /// # Errors
            /// If the lock's memory server cannot be read.
            pub async fn take_over(&self, held: &HeldLock) -> Result<bool, AccessError> {
                match self {
                    $(AnyIndex::$kind(index) => index.take_over(held).await,)+
                }
            }

            /// Gives memory that no node lies in back to its servers, as a check has found it ([`Index::give_back`]).
            ///
            /// ```
            /// # farwood_doctest::index!(|index| {
            /// # let index = farwood_index::AnyIndex::from(index);
            /// let report = index.check(&Default::default()).await?;
            /// assert_eq!(index.give_back(&report).await?, 0, "the index is new");
            /// # });
            /// ```
            ///
            /// # Errors
            /// Why nothing was given back, or not all.
            pub async fn give_back(&self, report: &CheckReport) -> Result<u64, GiveBackError> {
                match self {
                    $(AnyIndex::$kind(index) => index.give_back(report).await,)+
                }
            }

            /// Finds memory that was lost, and gives it back while clients work ([`Index::sweep`]).
            ///
            /// ```
            /// # farwood_doctest::index!(|index| {
            /// # let index = farwood_index::AnyIndex::from(index);
            /// assert_eq!(index.sweep().await?.given_back_bytes, 0, "the index is new");
            /// # });
            /// ```
            ///
            /// # Errors
            /// Why nothing was given back, or not all.
            pub async fn sweep(&self) -> Result<SweepReport, SweepError> {
                match self {
                    $(AnyIndex::$kind(index) => index.sweep().await,)+
                }
            }

            /// Checks the index, which is at rest, and reports what is wrong with it ([`Index::check`]).
            ///
            /// ```
            /// # farwood_doctest::index!(|index| {
            /// # let index = farwood_index::AnyIndex::from(index);
            /// index.put(b"anna", b"1").await?;
            /// assert!(index.check(&Default::default()).await?.is_intact());
            /// # });
            /// ```
            ///
            /// # Errors
            /// Only if a memory server cannot be read; whatever it holds is in the report.
            pub async fn check(&self, options: &CheckOptions) -> Result<CheckReport, AccessError> {
                self.check_each(options, |_, _| {}).await
            }

            /// Checks the index and shows `visit` every key with its value ([`Index::check_each`]).
            ///
            /// ```
            /// # farwood_doctest::index!(|index| {
            /// # let index = farwood_index::AnyIndex::from(index);
            /// index.put(b"anna", b"1").await?;
            /// let visit = |key: &[u8], value: &[u8]| assert_eq!((key, value), (&b"anna"[..], &b"1"[..]));
            /// assert_eq!(index.check_each(&Default::default(), visit).await?.survey.keys, 1);
            /// # });
            /// ```
            ///
            /// # Errors
            /// Only if a memory server cannot be read.
            pub async fn check_each(
                &self,
                options: &CheckOptions,
                visit: impl FnMut(&[u8], &[u8]),
            ) -> Result<CheckReport, AccessError> {
                match self {
                    $(AnyIndex::$kind(index) => index.check_each(options, visit).await,)+
                }
            }
        }

        impl<V: Verbs> RangeIndex for AnyIndex<V> {
            async fn get(&self, key: &[u8]) -> Result<Option<Value>, ReadError> {
                match self {
                    $(AnyIndex::$kind(index) => index.get(key).await,)+
                }
            }

            async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), WriteError> {
                match self {
                    $(AnyIndex::$kind(index) => index.put(key, value).await,)+
                }
            }

            async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, WriteError> {
                match self {
                    $(AnyIndex::$kind(index) => index.insert(key, value).await,)+
                }
            }

            async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, WriteError> {
                match self {
                    $(AnyIndex::$kind(index) => index.update(key, value).await,)+
                }
            }

            async fn remove(&self, key: &[u8]) -> Result<bool, WriteError> {
                match self {
                    $(AnyIndex::$kind(index) => index.remove(key).await,)+
                }
            }

            fn scan(&self, range: impl KeyRange, limit: Option<usize>) -> Scan {
                match self {
                    $(AnyIndex::$kind(index) => index.scan(range, limit),)+
                }
            }

            async fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>, ReadError> {
                match self {
                    $(AnyIndex::$kind(index) => index.multi_get(keys).await,)+
                }
            }

            async fn bulk_load<K: AsRef<[u8]>, U: AsRef<[u8]>>(
                &self,
                pairs: impl IntoIterator<Item = (K, U)>,
                fill: f64,
            ) -> Result<u64, LoadError> {
                match self {
                    $(AnyIndex::$kind(index) => index.bulk_load(pairs, fill).await,)+
                }
            }

            async fn survey(&self) -> Result<TreeShape, AccessError> {
                match self {
                    $(AnyIndex::$kind(index) => index.survey().await,)+
                }
            }

            fn stats(&self) -> IndexStats {
                match self {
                    $(AnyIndex::$kind(index) => index.stats(),)+
                }
            }
        }
    };
}

registry! { $
    /// The B+tree of the Sherman paper: short scans and little memory, but every entry takes room for the longest key
    /// and value.
    Sherman (sherman): ShermanAlgorithm,
    /// The radix tree of the SMART paper: fewer bytes per operation, one leaf per key, keys of up to 255 bytes.
    Smart (smart): SmartAlgorithm,
    /// The B+tree of the CHIME paper: gets read a part of a leaf, and the cache is as small as Sherman's.
    Chime (chime): crate::chime::ChimeAlgorithm,
    /// The hybrid of the Dolphin paper: radix nodes above leaves of many keys, which clients update at the same time.
    Dolphin (dolphin): crate::dolphin::DolphinAlgorithm,
}

mod names;
#[cfg(test)]
mod tests;
