//! The handles of all indexes, around their algorithm: a [`Tree`] is an index as a compute node sees it, an [`Index`]
//! is the handle of one shard's clients. They create, open and attach, check lengths, meter, coalesce operations of
//! clients, and count. What an operation does, the [`Algorithm`] knows.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use farwood_lock::shared::SharedLocks;
use farwood_lock::window::Outcome;
use farwood_lock::{IntentLog, LockTable};
use farwood_runtime::alloc::Books;
use farwood_runtime::node::NodeContext;
use farwood_runtime::{CatalogEntry, Meter, NodeAllocator, RemotePtr, Verbs};

use crate::check::{CheckReport, HeldLock};
use crate::error::{AccessError, LoadError, OpenError, ReadError, WriteError};
use crate::key_range::{KeyRange, owned_bounds};
use crate::range_index::{RangeIndex, Scan, TreeShape};
use crate::shell::algorithm::{Algorithm, Geometry};
use crate::shell::coalescing::{Coalescing, Turn};
use crate::shell::full::is_out_of_memory;
use crate::shell::meeting::Meeting;
use crate::shell::options::Options;
use crate::stats::{IndexStats, OpKind};
use crate::step::Budget;
use crate::value::Value;
use crate::write_op::WriteOp;

/// Bytes of a root word.
const ROOT_BYTES: u64 = 8;

/// An index as a whole compute node sees it. Clones share cache and statistics; [`Tree::attach`] makes the handle that
/// one shard's clients use.
pub struct Tree<A: Algorithm>(Arc<Shared<A>>);

impl<A: Algorithm> Clone for Tree<A> {
    fn clone(&self) -> Self {
        Tree(Arc::clone(&self.0))
    }
}

/// State of an index that the shards of a compute node share.
pub struct Shared<A: Algorithm> {
    /// The index in the catalog; the address of its root word is here.
    pub entry: CatalogEntry,
    /// Configuration that all compute nodes agree on.
    pub persisted: A::PersistedConfig,
    /// Options of this compute node.
    pub options: Options<A::Techniques>,
    /// The algorithm's own.
    pub state: A::NodeState,
    meeting: Meeting,
}

impl<A: Algorithm> Tree<A> {
    /// Creates an index in the catalog under `name` and opens it. It has no node until something is written. Switches
    /// that say where locks are or what protects a node are decided here, for all compute nodes.
    ///
    /// ```
    /// # use farwood_index::{RangeIndex, Sherman, sherman::{Geometry, Options}};
    /// # farwood_doctest::run(async |node, shard| {
    /// let geometry = Geometry { max_key: 16, max_value: 32, ..Geometry::default() };
    /// let users = Sherman::create(&node, "users", geometry, Options::default()).await?;
    /// users.attach(shard).put(b"a longer key", b"anna").await?;
    /// assert!(Sherman::create(&node, "users", geometry, Options::default()).await.is_err());
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// If the geometry makes no node, there can be no such index on this cluster, or the catalog refuses.
    pub async fn create(
        node: &impl NodeContext,
        name: &str,
        geometry: A::Geometry,
        options: Options<A::Techniques>,
    ) -> Result<Self, OpenError> {
        let control = node.control();
        geometry.check()?;
        let persisted = A::agree(geometry, options.techniques, control.servers())?;
        let config = serde_json::to_vec(&persisted).expect("numbers are always representable");
        let entry = control.create(name, A::KIND, &config).await?;
        Self::from_entry(node, entry, options)
    }

    /// Opens the index that the catalog has under `name`. Its persisted configuration counts, whatever the options say.
    ///
    /// ```
    /// # use farwood_index::{Sherman, sherman::{Geometry, Options}};
    /// # farwood_doctest::run(async |node, _| {
    /// Sherman::create(&node, "users", Geometry::default(), Options::default()).await?;
    /// let options = Options { cache_bytes: 1 << 20, ..Options::default() };
    /// let users = Sherman::open(&node, "users", options).await?;
    /// assert_eq!(users.geometry(), Geometry::default());
    /// assert!(Sherman::open(&node, "words", options).await.is_err());
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// If there is none, it is of another kind, the catalog's configuration of it cannot be read, or it cannot be on
    /// this cluster.
    pub async fn open(
        node: &impl NodeContext,
        name: &str,
        options: Options<A::Techniques>,
    ) -> Result<Self, OpenError> {
        let entry = node.control().open(name).await?;
        Self::from_entry(node, entry, options)
    }

    /// Reads the sizes of an index from its catalog entry, without opening it.
    ///
    /// ```
    /// # use farwood_index::{Sherman, sherman::{Geometry, Options}};
    /// # farwood_doctest::run(async |node, _| {
    /// # let users = Sherman::create(&node, "users", Geometry::default(), Options::default()).await?;
    /// use farwood_runtime::NodeContext;
    /// let entry = node.control().open("users").await?;
    /// assert_eq!(Sherman::geometry_of(&entry)?, users.geometry());
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// If it is of another kind, or its configuration cannot be read.
    pub fn geometry_of(entry: &CatalogEntry) -> Result<A::Geometry, OpenError> {
        Ok(A::geometry(&persisted::<A>(entry)?))
    }

    fn from_entry(
        node: &impl NodeContext,
        entry: CatalogEntry,
        options: Options<A::Techniques>,
    ) -> Result<Self, OpenError> {
        let persisted = persisted::<A>(&entry)?;
        A::geometry(&persisted).check()?;
        A::check_cluster(&entry.name, &persisted, node.control().servers())?;
        let state = A::node_state(&persisted, &options, node.seed())?;
        let meeting = Meeting::new(node, &entry);
        Ok(Tree(Arc::new(Shared { entry, persisted, options, state, meeting })))
    }

    /// Makes the handle for the clients of one shard. Call it once per shard and clone what it returns.
    ///
    /// ```
    /// # use farwood_index::{RangeIndex, Sherman, sherman::{Geometry, Options}};
    /// # farwood_doctest::run(async |node, shard| {
    /// # let users = Sherman::create(&node, "users", Geometry::default(), Options::default()).await?;
    /// let users = users.attach(shard);
    /// let client = users.clone();
    /// users.put(b"anna", b"1").await?;
    /// assert!(client.get(b"anna").await?.is_some());
    /// # Ok(()) });
    /// ```
    ///
    /// # Panics
    /// If it was called on this shard before.
    pub fn attach<V: Verbs>(&self, verbs: V) -> Index<A, V> {
        let shared = Arc::clone(&self.0);
        let techniques = A::in_effect(shared.options.techniques, &shared.persisted);
        let (locks, windows) = A::meet(techniques, shared.options.locks());
        let (control, first_server) = (Arc::clone(verbs.control()), usize::from(verbs.shard().0));
        let allocator =
            Rc::new(NodeAllocator::new(control, shared.entry.id, first_server, Rc::clone(verbs.pins())));
        let intents = shared.options.intent_log.then(|| shared.intent_log(&allocator));
        let (locks, coalescing) = shared.meeting.attach(&verbs, locks, windows, intents);
        let state = A::shard_state(&shared.state);
        let stats = RefCell::default();
        Index::new(Rc::new_cyclic(|me| {
            let me = Weak::clone(me);
            let shared_locks = OnceCell::new();
            let vain_epoch = Cell::new(0);
            Local {
                me,
                shared,
                techniques,
                verbs,
                locks,
                shared_locks,
                allocator,
                state,
                vain_epoch,
                coalescing,
                stats,
            }
        }))
    }

    /// Yields the sizes that the index was created with.
    ///
    /// ```
    /// # use farwood_index::{Sherman, sherman::{Geometry, Options}};
    /// # farwood_doctest::run(async |node, _| {
    /// let geometry = Geometry { max_key: 16, ..Geometry::default() };
    /// let users = Sherman::create(&node, "users", geometry, Options::default()).await?;
    /// assert_eq!(users.geometry(), geometry);
    /// # Ok(()) });
    /// ```
    pub fn geometry(&self) -> A::Geometry {
        A::geometry(&self.0.persisted)
    }

    /// Counts the bytes that this compute node's cache takes now.
    ///
    /// ```
    /// # use farwood_index::{RangeIndex, Sherman, sherman::{Geometry, Options}};
    /// # farwood_doctest::run(async |node, shard| {
    /// let options = Options { cache_bytes: 1 << 20, ..Options::default() };
    /// let users = Sherman::create(&node, "users", Geometry::default(), options).await?;
    /// let index = users.attach(shard);
    /// index.bulk_load((0..1000_u64).map(|n| (n.to_be_bytes(), "")), 1.0).await?;
    /// index.get(&7_u64.to_be_bytes()).await?;
    /// assert!((1..=1 << 20).contains(&users.cache_bytes()));
    /// # Ok(()) });
    /// ```
    pub fn cache_bytes(&self) -> usize {
        A::cache_bytes(&self.0.state)
    }

    /// Yields the bytes of a leaf: of the largest, where they differ.
    ///
    /// ```
    /// # use farwood_index::{Sherman, sherman::{Geometry, Options}};
    /// # farwood_doctest::run(async |node, _| {
    /// # let users = Sherman::create(&node, "users", Geometry::default(), Options::default()).await?;
    /// assert_eq!(users.leaf_bytes(), 1024);
    /// # Ok(()) });
    /// ```
    pub fn leaf_bytes(&self) -> usize {
        self.geometry().leaf_bytes()
    }
}

impl<A: Algorithm> Shared<A> {
    /// Yields where intents are kept: their pages are in the index's memory, and the list of these begins behind the
    /// root word, in its line.
    fn intent_log(&self, allocator: &Rc<NodeAllocator>) -> IntentLog {
        let node_bytes = A::locked_bytes(&self.persisted, &self.state) as u64;
        let (head, allocator) = (self.intents_head(), Rc::clone(allocator));
        IntentLog { head, allocator, node_bytes, mending: A::mending(&self.state) }
    }

    /// Yields where the list of pages for intents begins, whether this compute node keeps intents or not.
    pub(super) fn intents_head(&self) -> RemotePtr {
        self.entry.root.add(ROOT_BYTES)
    }
}

/// Reads the configuration of the index of that catalog entry.
fn persisted<A: Algorithm>(entry: &CatalogEntry) -> Result<A::PersistedConfig, OpenError> {
    let CatalogEntry { name, kind, config, .. } = entry;
    if kind != A::KIND {
        return Err(OpenError::WrongKind { name: name.clone(), kind: kind.clone() });
    }
    let error = |cause| OpenError::Config { name: name.clone(), cause };
    let persisted = serde_json::from_slice(config).map_err(|cause| error(cause.to_string()))?;
    A::check_persisted(&persisted).map_err(error)?;
    Ok(persisted)
}

/// Reads the configuration from a catalog entry that holds these bytes.
#[cfg(test)]
pub(crate) fn persisted_of<A: Algorithm>(config: &[u8]) -> Result<A::PersistedConfig, OpenError> {
    persisted::<A>(&CatalogEntry {
        name: "x".into(),
        id: farwood_runtime::IndexId(1),
        kind: A::KIND.into(),
        config: config.into(),
        root: farwood_runtime::RemotePtr::NULL,
        dead_owners: Arc::new([]),
    })
}

/// State of one shard that works on an index. The shell makes it, algorithms read its fields.
///
/// ```
/// # use farwood_index::shell::{Algorithm, Local};
/// # use farwood_index::*;
/// # use farwood_runtime::*;
/// async fn read_root<A: Algorithm, V: Verbs>(local: &Local<A, V>, meter: &Meter) -> Result<RemotePtr, AccessError> {
///     let word = local.verbs.read(meter, local.shared.entry.root, 8).await?.into_buf();
///     Ok(RemotePtr::from_bits(u64::from_le_bytes(word[..8].try_into().expect("eight bytes"))))
/// }
/// ```
pub struct Local<A: Algorithm, V: Verbs> {
    /// A pointer to itself, for tasks that outlive an operation.
    pub me: Weak<Self>,
    /// State that the shards of the compute node share.
    pub shared: Arc<Shared<A>>,
    /// The switches in effect.
    pub techniques: A::Techniques,
    /// The fabric: chains, buffers, time, chance, the janitor.
    pub verbs: V,
    /// The locks of this index's nodes.
    pub locks: LockTable<V>,
    /// Those of them that clients share, for an algorithm that has such: made with the first one.
    pub shared_locks: OnceCell<SharedLocks<V>>,
    /// Memory for nodes.
    pub allocator: Rc<NodeAllocator>,
    /// The algorithm's own.
    pub state: A::ShardState,
    /// The epoch in which memory was awaited in vain; 0 before the first.
    pub(super) vain_epoch: Cell<u64>,
    coalescing: Coalescing<V>,
    stats: RefCell<IndexStats>,
}

impl<A: Algorithm, V: Verbs> Local<A, V> {
    /// Counts the operations that ended well so far.
    pub(super) fn operations(&self) -> u64 {
        self.stats.borrow().kinds.iter().map(|kind| kind.ops).sum()
    }

    /// Makes the budget of one operation ([`Options::retries_max`]).
    ///
    /// ```
    /// # use farwood_index::shell::{Algorithm, Local};
    /// # use farwood_index::*;
    /// # use farwood_runtime::*;
    /// fn again<A: Algorithm, V: Verbs>(local: &Local<A, V>, meter: &Meter, at: RemotePtr) -> Result<(), AccessError> {
    ///     local.budget().spend(meter, at, None)
    /// }
    /// ```
    #[inline]
    pub fn budget(&self) -> Budget {
        Budget::new(self.shared.options.retries_max)
    }

    /// Yields the most nodes that a scan may read in parallel ([`Options::scan_window`]): at least one.
    pub fn scan_window(&self) -> usize {
        self.shared.options.scan_window.unwrap_or(A::SCAN_WINDOW).max(1)
    }

    /// Checks the length of a key.
    ///
    /// # Errors
    /// If it exceeds the limit of the index.
    #[inline]
    fn check_key(&self, key: &[u8]) -> Result<(), ReadError> {
        let max = A::geometry(&self.shared.persisted).limits().max_key;
        if key.len() > max { Err(ReadError::KeyTooLong { len: key.len(), max }) } else { Ok(()) }
    }

    /// Checks the length of a value.
    ///
    /// # Errors
    /// If it exceeds the limit of the index.
    #[inline]
    fn check_value(&self, value: &[u8]) -> Result<(), WriteError> {
        let max = A::geometry(&self.shared.persisted).limits().max_value;
        if value.len() > max { Err(WriteError::ValueTooLong { len: value.len(), max }) } else { Ok(()) }
    }

    /// Counts an operation that ended: whether it found its key or took effect, and the pairs it returned.
    ///
    /// ```
    /// # use farwood_index::shell::{Algorithm, Local};
    /// # use farwood_index::*;
    /// # use farwood_runtime::*;
    /// fn scan_ended<A: Algorithm, V: Verbs>(local: &Local<A, V>, meter: &Meter, pairs: u64) {
    ///     local.record(OpKind::Scan, meter, true, pairs);
    /// }
    /// ```
    #[inline]
    pub fn record(&self, kind: OpKind, meter: &Meter, found: bool, entries: u64) {
        self.stats.borrow_mut().record(kind, meter.usage(), found, entries);
    }
}

/// The handle of one shard's clients to an index. Clones are handles to the same index on the same shard.
pub struct Index<A: Algorithm, V: Verbs>(Rc<Local<A, V>>, Rc<Leave<A, V>>);

impl<A: Algorithm, V: Verbs> Clone for Index<A, V> {
    fn clone(&self) -> Self {
        Index(Rc::clone(&self.0), Rc::clone(&self.1))
    }
}

/// A share that all handles have, and no task of the janitor: dropped with the last handle.
struct Leave<A: Algorithm, V: Verbs>(Rc<Local<A, V>>);

impl<A: Algorithm, V: Verbs> Drop for Leave<A, V> {
    fn drop(&mut self) {
        A::leave(&self.0);
    }
}

impl<A: Algorithm, V: Verbs> Index<A, V> {
    fn new(local: Rc<Local<A, V>>) -> Self {
        let leave = Leave(Rc::clone(&local));
        Index(local, Rc::new(leave))
    }

    /// Yields the techniques in effect: some were decided when the index was created.
    ///
    /// ```
    /// # use farwood_index::{RangeIndex, Sherman, sherman::{Geometry, Options, Techniques}};
    /// # farwood_doctest::run(async |node, shard| {
    /// let techniques = Techniques { combine: false, ..Techniques::ALL };
    /// let options = Options { techniques, ..Options::default() };
    /// let users = Sherman::create(&node, "users", Geometry::default(), options).await?.attach(shard);
    /// assert!(!users.techniques().combine);
    /// assert!(!users.techniques().on_chip, "these servers have no such memory");
    /// # Ok(()) });
    /// ```
    pub fn techniques(&self) -> A::Techniques {
        self.0.techniques
    }

    /// Yields the books of the memory that this shard has taken from the memory servers.
    ///
    /// ```
    /// # farwood_doctest::index!(|index| {
    /// index.put(b"anna", b"1").await?;
    /// assert_eq!(index.books().used_bytes - index.intent_bytes() as i64, 1024, "one leaf");
    /// assert_eq!(index.books().used_bytes + index.books().free_bytes as i64, 64 << 10, "of one chunk");
    /// # });
    /// ```
    pub fn books(&self) -> Books {
        self.0.allocator.books()
    }

    /// Lists the memory that this shard has, and that no node lies in ([`NodeAllocator::free_extents`]).
    ///
    /// ```
    /// # farwood_doctest::index!(|index| {
    /// assert!(index.free_extents().is_empty());
    /// # });
    /// ```
    pub fn free_extents(&self) -> Vec<(RemotePtr, u64)> {
        self.0.allocator.free_extents()
    }

    /// Counts the bytes of that memory that are for intents ([`Options::intent_log`]).
    ///
    /// ```
    /// # use farwood_index::{RangeIndex, Sherman, sherman::{Geometry, Options}};
    /// # farwood_doctest::run(async |node, shard| {
    /// # let (geometry, options) = (Geometry::default(), Options::default());
    /// # let users = Sherman::create(&node, "users", geometry, options).await?.attach(shard);
    /// users.put(b"anna", b"1").await?;
    /// users.put(b"anna", b"2").await?;
    /// assert!((1..=8192).contains(&users.intent_bytes()), "a page, in a chunk of 64 KiB");
    /// # Ok(()) });
    /// ```
    pub fn intent_bytes(&self) -> u64 {
        self.0.locks.intent_bytes()
    }

    /// Counts local locks and windows that are held or waited for here: 0 when no operation runs.
    ///
    /// ```
    /// # farwood_doctest::index!(|index| {
    /// index.put(b"anna", b"1").await?;
    /// assert_eq!(index.locks_in_use(), 0);
    /// # });
    /// ```
    pub fn locks_in_use(&self) -> usize {
        let (held, waiting) = self.0.locks.in_use();
        let shared = self.0.shared_locks.get().map_or(0, SharedLocks::in_use);
        held + waiting + shared + self.0.coalescing.in_use()
    }

    /// Takes over a lock of a dead compute node that a check has found ([`CheckReport::orphaned`]), if it can be taken
    /// over ([`Options::intent_log`]): clients that need the lock do so themselves. Yields whether the lock is in other
    /// hands now, or free.
    ///
    /// ```
    /// # use farwood_index::CheckOptions;
    /// # farwood_doctest::index!(|index| {
    /// index.put(b"anna", b"1").await?;
    /// let report = index.check(&CheckOptions::default()).await?;
    /// for held in report.orphaned.iter() {
    ///     assert!(index.take_over(held).await?);
    /// }
    /// # });
    /// ```
    ///
    /// # Errors
    /// If the lock's memory server cannot be read.
    pub async fn take_over(&self, held: &HeldLock) -> Result<bool, AccessError> {
        let taken = self.0.locks.take_over(held.at, held.word).await?;
        match self.0.shared_locks.get() {
            Some(shared) if taken => Ok(shared.take_over(held.at, held.word).await?),
            _ => Ok(taken),
        }
    }

    /// Yields the state of the shard.
    pub(super) fn local(&self) -> &Rc<Local<A, V>> {
        &self.0
    }

    async fn write(&self, kind: OpKind, key: &[u8], op: WriteOp<'_>) -> Result<bool, WriteError> {
        self.0.check_key(key)?;
        self.0.check_value(op.value())?;
        let meter = Meter::default();
        let applied = match self.try_write(&meter, key, op).await {
            Err(error) if is_out_of_memory(&error) => self.write_in_time(&meter, key, op, error).await?,
            done => done?,
        };
        self.0.record(kind, &meter, applied, 0);
        Ok(applied)
    }

    pub(super) async fn try_write(
        &self,
        meter: &Meter,
        key: &[u8],
        op: WriteOp<'_>,
    ) -> Result<bool, WriteError> {
        let _pin = self.0.verbs.pins().pin();
        match self.0.coalescing.write(meter, key, op).await {
            Turn::Served(applied) => Ok(applied),
            Turn::Own(work) => {
                let applied = A::write(&self.0, meter, key, op).await?;
                work.finish(Outcome::written(applied, op.value()));
                Ok(applied)
            }
        }
    }
}

impl<A: Algorithm, V: Verbs> RangeIndex for Index<A, V> {
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, ReadError> {
        self.0.check_key(key)?;
        let (meter, _pin) = (Meter::default(), self.0.verbs.pins().pin());
        let value = match self.0.coalescing.read(&meter, key).await {
            Turn::Served(value) => value,
            Turn::Own(work) => {
                let value = A::lookup(&self.0, &meter, key).await?;
                work.finish(Outcome::read(value.as_deref()));
                value
            }
        };
        self.0.record(OpKind::Get, &meter, value.is_some(), 0);
        Ok(value)
    }

    async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), WriteError> {
        self.write(OpKind::Put, key, WriteOp::Put(value)).await.map(|_| ())
    }

    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, WriteError> {
        self.write(OpKind::Insert, key, WriteOp::Insert(value)).await
    }

    async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, WriteError> {
        self.write(OpKind::Update, key, WriteOp::Update(value)).await
    }

    async fn remove(&self, key: &[u8]) -> Result<bool, WriteError> {
        self.write(OpKind::Remove, key, WriteOp::Remove).await
    }

    fn scan(&self, range: impl KeyRange, limit: Option<usize>) -> Scan {
        A::scan(Rc::clone(&self.0), owned_bounds(&range), limit)
    }

    async fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>, ReadError> {
        futures::future::try_join_all(keys.iter().map(|key| self.get(key.as_ref()))).await
    }

    async fn bulk_load<K: AsRef<[u8]>, U: AsRef<[u8]>>(
        &self,
        pairs: impl IntoIterator<Item = (K, U)>,
        fill: f64,
    ) -> Result<u64, LoadError> {
        if !(fill > 0.0 && fill <= 1.0) {
            return Err(LoadError::Fill { fill });
        }
        let (mut last, mut position) = (Vec::new(), 0);
        let mut checked = pairs.into_iter().map(|(key, value)| {
            self.0.check_key(key.as_ref())?;
            self.0.check_value(value.as_ref())?;
            if position > 0 && last[..] >= *key.as_ref() {
                return Err(LoadError::Unsorted { position });
            }
            last.clear();
            last.extend_from_slice(key.as_ref());
            position += 1;
            Ok((key, value))
        });
        let _pin = self.0.verbs.pins().pin();
        A::bulk_load(&self.0, &mut checked, fill).await
    }

    async fn survey(&self) -> Result<TreeShape, AccessError> {
        let (mut report, _pin) = (CheckReport::new(1), self.0.verbs.pins().pin());
        A::walk(&self.0, &Meter::default(), None, &mut report, &mut |_, _| {}).await?;
        report.shape()
    }

    fn stats(&self) -> IndexStats {
        let Local { shared, verbs, locks, shared_locks, coalescing, state, stats, .. } = &*self.0;
        let mut stats = stats.borrow().clone();
        shared.meeting.count(locks, coalescing, verbs.shards(), &mut stats);
        if let Some(locks) = shared_locks.get() {
            stats.shared_locks = locks.stats();
            stats.lock_table_bytes += locks.bytes() as u64;
        }
        stats.cache = A::cache_stats(&shared.state, state);
        stats.memory = self.0.allocator.books().into();
        stats
    }
}
