//! Operations on the fabric. Each `.await` on a submission is a round trip; an operation that is dropped at one leaves
//! nothing behind: locks see to themselves, new nodes are [`Unpublished`].

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use farwood_index::check::{Broken, CheckReport, Link, Violation, inside};
use farwood_index::layout::Bytes;
use farwood_index::shell::Local;
use farwood_index::write_op::WriteOp;
use farwood_index::{AccessError, Budget, Value, WriteError};
use farwood_runtime::alloc::AllocError;
use farwood_runtime::{Buf, Chain, Completion, Meter, RemotePtr, ServerId, Verbs};

use super::OwnIndex;
use super::bucket::{Sizes, build, entries, examine, next_of, places, word};

/// A check, which takes no lock, reads a bucket again so often.
const REREADS: u32 = 8;
/// A chain that is longer leads in a circle.
const CHAIN_MAX: usize = 1 << 20;
/// The janitor asks so often what a word holds, within two seconds.
const ASKS: u32 = 18;
const PAUSE_NS: u64 = 8_000;

/// The index as one shard works on it.
pub(super) type Here<V> = Local<OwnIndex, V>;

/// Holds nodes that no other client can reach until `word` leads to the last of them, and gives them back if it does
/// not come to that. Where the CAS may be under way it leaves that to the janitor.
pub(super) struct Unpublished<V: Verbs> {
    local: Rc<Here<V>>,
    word: RemotePtr,
    nodes: Vec<(RemotePtr, u64)>,
}

impl<V: Verbs> Unpublished<V> {
    pub(super) fn new(local: &Rc<Here<V>>, word: RemotePtr) -> Self {
        Unpublished { local: Rc::clone(local), word, nodes: Vec::new() }
    }

    /// Writes a new node, on that memory server if one is named.
    pub(super) async fn write(
        &mut self,
        operation: &mut Operation<'_, V>,
        near: Option<ServerId>,
        image: Buf,
    ) -> Result<RemotePtr, WriteError> {
        let bytes = image.len();
        let at = allocate(&self.local, near, bytes).await?;
        self.nodes.push((at, bytes as u64));
        let mut chain = Chain::with_buffer(at.server(), image);
        chain.write(at, 0..bytes);
        let posted = self.local.verbs.submit(operation.meter, chain);
        operation.done(at, posted).await?;
        Ok(at)
    }
}

impl<V: Verbs> Drop for Unpublished<V> {
    fn drop(&mut self) {
        let Some(&(last, _)) = self.nodes.last() else { return };
        let (local, word_at, nodes) = (Rc::clone(&self.local), self.word, mem::take(&mut self.nodes));
        self.local.verbs.defer(async move {
            for ask in 0..ASKS {
                // The READ goes behind the CAS, on its queue pair.
                match Operation::new(&local, &Meter::default()).read(word_at, 8).await {
                    Ok(found) if word(&found, 0) == last.to_bits() => return,
                    Ok(_) => {
                        return nodes.iter().for_each(|(at, len)| local.allocator.return_extent(*at, *len));
                    }
                    Err(error) => tracing::debug!(%error, "what a word leads to is not known yet"),
                }
                local.verbs.pause(PAUSE_NS << ask).await;
            }
        });
    }
}

/// Allocates a node; where a memory server is named, on that one only, since the lock of the chain is there.
async fn allocate<V: Verbs>(
    local: &Here<V>,
    near: Option<ServerId>,
    bytes: usize,
) -> Result<RemotePtr, WriteError> {
    let Some(server) = near else { return Ok(local.allocator.allocate(bytes as u64).await?) };
    let at = local.allocator.allocate_near(server, bytes as u64).await?.at;
    if at.server() != server {
        local.allocator.return_extent(at, bytes as u64);
        return Err(AllocError::OutOfMemory { servers: 1 }.into());
    }
    Ok(at)
}

/// An operation under way.
pub(super) struct Operation<'o, V: Verbs> {
    local: &'o Rc<Here<V>>,
    meter: &'o Meter,
    budget: Budget,
    sizes: Sizes,
}

impl<'o, V: Verbs> Operation<'o, V> {
    pub(super) fn new(local: &'o Rc<Here<V>>, meter: &'o Meter) -> Self {
        Operation { local, meter, budget: local.budget(), sizes: local.shared.persisted }
    }

    /// Awaits a chain to `at` that may be posted again if it fails.
    async fn done(&mut self, at: RemotePtr, mut posted: V::Submission) -> Result<Completion, AccessError> {
        loop {
            match posted.await {
                Ok(done) => return Ok(done),
                Err(failed) => {
                    let chain = self.budget.post_again(self.meter, at, failed)?;
                    posted = self.local.verbs.submit(self.meter, chain);
                }
            }
        }
    }

    async fn read(&mut self, at: RemotePtr, bytes: usize) -> Result<Buf, AccessError> {
        let posted = self.local.verbs.read(self.meter, at, bytes);
        Ok(self.done(at, posted).await?.into_buf())
    }

    /// Sets the word to lead to the last of the unpublished nodes, unless it leads elsewhere; yields where it leads.
    pub(super) async fn claim(&mut self, mut unpublished: Unpublished<V>) -> Result<RemotePtr, AccessError> {
        let (at, new) = (unpublished.word, unpublished.nodes.last().expect("a node was written").0);
        let mut cas = Chain::new(at.server());
        cas.cas(at, 0, new.to_bits());
        let posted = self.local.verbs.submit(self.meter, cas);
        let found = self.done(at, posted).await?.atomics[0];
        if found == 0 || found == new.to_bits() {
            unpublished.nodes.clear();
            return Ok(new);
        }
        tracing::debug!(name: "own_index.lost", %at, "another client was first");
        Ok(RemotePtr::from_bits(found))
    }

    /// Yields where the word at `at` leads, to a node of `bytes` bytes, if it leads anywhere yet.
    async fn follow(
        &mut self,
        known: &AtomicU64,
        at: RemotePtr,
        bytes: usize,
    ) -> Result<Option<RemotePtr>, AccessError> {
        let node = RemotePtr::from_bits(known.load(Ordering::Relaxed));
        if !node.is_null() {
            return Ok(Some(node));
        }
        let node = RemotePtr::from_bits(word(&self.read(at, 8).await?, 0));
        if node.is_null() { Ok(None) } else { self.learn(known, at, node, bytes).map(Some) }
    }

    /// Makes the word at `at`, which led nowhere, lead to a node with this image, unless another client was first;
    /// yields where it leads.
    async fn make(&mut self, known: &AtomicU64, at: RemotePtr, image: Buf) -> Result<RemotePtr, WriteError> {
        let (bytes, mut unpublished) = (image.len(), Unpublished::new(self.local, at));
        unpublished.write(self, None, image).await?;
        let node = self.claim(unpublished).await?;
        Ok(self.learn(known, at, node, bytes)?)
    }

    /// Remembers where the word at `at` leads: for good.
    fn learn(
        &self,
        known: &AtomicU64,
        at: RemotePtr,
        node: RemotePtr,
        bytes: usize,
    ) -> Result<RemotePtr, AccessError> {
        inside(self.local.verbs.control().servers(), node, bytes).map_err(|fault| corrupt(at, fault))?;
        known.store(node.to_bits(), Ordering::Relaxed);
        Ok(node)
    }

    pub(super) async fn table(&mut self) -> Result<Option<RemotePtr>, AccessError> {
        let shared = &self.local.shared;
        self.follow(&shared.state[self.sizes.chains], shared.entry.root, self.sizes.table_bytes()).await
    }

    /// Yields the first bucket of the chain of `key`, if there is one.
    async fn head(&mut self, key: &[u8]) -> Result<Option<RemotePtr>, AccessError> {
        let Some(table) = self.table().await? else { return Ok(None) };
        let chain = self.sizes.chain_of(key);
        let known = &self.local.shared.state[chain];
        self.follow(known, table.add(8 * chain as u64), self.sizes.bucket_bytes()).await
    }

    /// Yields the first bucket of the chain of `key`, which is made if there is none.
    async fn new_head(&mut self, key: &[u8]) -> Result<RemotePtr, WriteError> {
        let (shared, verbs) = (&self.local.shared, &self.local.verbs);
        let table = match self.table().await? {
            Some(table) => table,
            None => {
                let mut image = verbs.lease(self.sizes.table_bytes());
                image.fill(0);
                self.make(&shared.state[self.sizes.chains], shared.entry.root, image).await?
            }
        };
        let chain = self.sizes.chain_of(key);
        let (known, at) = (&shared.state[chain], table.add(8 * chain as u64));
        if let Some(head) = self.follow(known, at, self.sizes.bucket_bytes()).await? {
            return Ok(head);
        }
        let mut image = verbs.lease(self.sizes.bucket_bytes());
        build(&mut image, RemotePtr::NULL, []);
        self.make(known, at, image).await
    }

    /// Yields a bucket as one writer has left it: read again under the lock of `head`, its chain, if `image` is not so.
    async fn whole(&mut self, head: RemotePtr, at: RemotePtr, image: Buf) -> Result<Buf, AccessError> {
        let Err(rejection) = examine(&image) else { return Ok(image) };
        self.budget.spend(self.meter, at, Some(rejection))?;
        let mut held = self.local.locks.acquire(self.meter, head).await?;
        held.lock(self.meter).await?;
        let image = self.read(at, image.len()).await?;
        held.release(self.meter, Chain::new(head.server()), true).await?;
        examine(&image).map_err(|rejection| corrupt(at, rejection))?;
        Ok(image)
    }

    pub(super) async fn lookup(&mut self, key: &[u8]) -> Result<Option<Value>, AccessError> {
        let Some(head) = self.head(key).await? else { return Ok(None) };
        let mut at = head;
        for _ in 0..CHAIN_MAX {
            let image = self.read(at, self.sizes.bucket_bytes()).await?;
            let image = self.whole(head, at, image).await?;
            let found = places(&image).find(|(place, _)| image[place.clone()] == *key);
            if let Some((_, value)) = found {
                return Ok(Some(Value::at(image, value)));
            }
            at = next_of(&image);
            if at.is_null() {
                return Ok(None);
            }
        }
        Err(corrupt(head, "its chain has no end"))
    }

    pub(super) async fn write(&mut self, key: &[u8], op: WriteOp<'_>) -> Result<bool, WriteError> {
        let head = match op.creates() {
            true => Some(self.new_head(key).await?),
            false => self.head(key).await?,
        };
        let Some(head) = head else { return Ok(false) };
        let (local, meter, bytes) = (self.local, self.meter, self.sizes.bucket_bytes());
        let mut held = local.locks.acquire(meter, head).await?;
        let buf = local.verbs.lease(bytes);
        let mut image = held.lock_and_read(meter, buf, bytes, local.techniques.fused).await?.into_buf();
        let (mut at, mut room) = (head, None);
        let is_present = loop {
            examine(&image).map_err(|rejection| corrupt(at, rejection))?;
            if entries(&image).any(|(found, _)| found == key) {
                break true;
            }
            if room.is_none() && entries(&image).count() < self.sizes.slots {
                room = Some(at);
            }
            if next_of(&image).is_null() {
                break false;
            }
            at = next_of(&image);
            image = self.read(at, bytes).await?;
        };
        if if is_present { matches!(op, WriteOp::Insert(_)) } else { !op.creates() } {
            held.release(meter, Chain::new(head.server()), true).await?;
            return Ok(false);
        }
        if let Some(room) = room.filter(|room| !is_present && *room != at) {
            (at, image) = (room, self.read(room, bytes).await?);
        }
        let mut images = local.verbs.lease(2 * bytes);
        let mut chain;
        let pair = (op != WriteOp::Remove).then_some((key, op.value()));
        if is_present || room.is_some() {
            let others = entries(&image).filter(|(other, _)| *other != key);
            build(&mut images[..bytes], next_of(&image), others.chain(pair));
            chain = Chain::with_buffer(head.server(), images);
        } else {
            let new = allocate(local, Some(head.server()), bytes).await?;
            tracing::debug!(name: "own_index.overflow", %new, "a chain grows");
            build(&mut images[..bytes], new, entries(&image));
            build(&mut images[bytes..], RemotePtr::NULL, pair);
            chain = Chain::with_buffer(head.server(), images);
            // Before what leads to it. Nothing is awaited between the allocation and this chain: no memory is lost.
            chain.write(new, bytes..2 * bytes);
        }
        chain.write(at, 0..bytes);
        held.release(meter, chain, true).await?;
        Ok(true)
    }

    /// Reads all buckets, and shows `see` of each its chain, that one's first bucket, its own address, and its image or
    /// what is wrong. Takes locks where images are torn, if it may.
    pub(super) async fn each(
        &mut self,
        may_lock: bool,
        mut see: impl FnMut(usize, RemotePtr, RemotePtr, Result<&[u8], Broken>),
    ) -> Result<(), AccessError> {
        let Some(table) = self.table().await? else { return Ok(()) };
        let words = self.read(table, self.sizes.table_bytes()).await?;
        let heads = (0..self.sizes.chains).map(|chain| RemotePtr::from_bits(word(&words, 8 * chain)));
        let mut level: Vec<_> = heads.enumerate().map(|(chain, head)| (chain, head, head)).collect();
        let (mut met, bytes) = (BTreeSet::new(), self.sizes.bucket_bytes());
        while !level.is_empty() {
            level.retain(|&(chain, head, at)| {
                let fault = inside(self.local.verbs.control().servers(), at, bytes).err();
                let broken = match fault {
                    _ if at.is_null() => return false,
                    Some(fault) => Broken::Address { link: Link::Child, to: at, fault },
                    None if met.insert(at) => return true,
                    None => Broken::Revisited { sibling: at },
                };
                see(chain, head, at, Err(broken));
                false
            });
            let mut next = Vec::with_capacity(level.len());
            for window in level.chunks(self.local.scan_window()) {
                self.meter.round_trip();
                let posted = window.iter().map(|(_, _, at)| {
                    let mut read = Chain::with_buffer(at.server(), self.local.verbs.lease(bytes));
                    read.read(*at, 0..bytes);
                    self.local.verbs.post(self.meter, read)
                });
                for (&(chain, head, at), posted) in window.iter().zip(posted.collect::<Vec<_>>()) {
                    let mut image = self.done(at, posted).await?.into_buf();
                    if may_lock {
                        image = self.whole(head, at, image).await?;
                    }
                    for _ in 0..REREADS {
                        if examine(&image).is_ok() {
                            break;
                        }
                        image = self.read(at, bytes).await?;
                    }
                    let broken =
                        examine(&image).map_err(|rejection| Broken::Unreadable { rejection, from: head });
                    next.extend(broken.is_ok().then(|| (chain, head, next_of(&image))));
                    see(chain, head, at, broken.map(|()| &image[..]));
                }
            }
            level = next;
        }
        Ok(())
    }

    /// Walks the index, and reports what it finds; yields the pairs.
    pub(super) async fn walk(
        &mut self,
        may_lock: bool,
        report: &mut CheckReport,
        exempt: &BTreeSet<RemotePtr>,
    ) -> Result<BTreeMap<Bytes, Bytes>, AccessError> {
        let (sizes, locks, mut pairs) = (self.sizes, self.local.locks.clone(), BTreeMap::new());
        let mut depths = vec![1u8; sizes.chains];
        let see = |chain: usize, head, node, found: Result<&[u8], Broken>| {
            let mut note = |broken| report.violations.push(Violation { node, level: None, broken });
            match found {
                Ok(image) => {
                    for (key, value) in entries(image) {
                        let (key, value) = (Bytes::from_slice(key), Bytes::from_slice(value));
                        if sizes.chain_of(&key) != chain {
                            note(Broken::Rule { what: format!("its key {key:?} is not of chain {chain}") });
                        }
                        if pairs.insert(key.clone(), value).is_some() {
                            note(Broken::DuplicateKey { key });
                        }
                    }
                }
                Err(Broken::Unreadable { .. }) if exempt.contains(&locks.word_of(head)) => {
                    report.torn.push(node)
                }
                Err(broken) => note(broken),
            }
            depths[chain] = depths[chain].saturating_add(1);
            report.survey.leaves += 1;
        };
        let table = match self.each(may_lock, see).await {
            Ok(()) => self.table().await,
            Err(error) => Err(error),
        };
        let survey = &mut report.survey;
        match table {
            Ok(Some(_)) => {
                (survey.keys, survey.inner_nodes) = (pairs.len() as u64, 1);
                survey.height = depths.into_iter().max().unwrap_or(1);
                survey.used_bytes = sizes.table_bytes() as u64 + survey.leaves * sizes.bucket_bytes() as u64;
                survey.load_factor = survey.keys as f64 / (survey.leaves.max(1) * sizes.slots as u64) as f64;
            }
            Ok(None) => {}
            // A root word that leads nowhere is a finding, too.
            Err(AccessError::Corrupt { node, what }) => {
                report.violations.push(Violation { node, level: None, broken: Broken::Rule { what } });
            }
            Err(error) => return Err(error),
        }
        Ok(pairs)
    }
}

fn corrupt(node: RemotePtr, what: impl ToString) -> AccessError {
    AccessError::Corrupt { node, what: what.to_string() }
}
