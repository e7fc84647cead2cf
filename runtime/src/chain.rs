//! Chains: ordered lists of one-sided verbs to one memory server, posted together, of which only the last is signalled.
//! One chain is one round trip. This file describes work; it executes nothing.

use std::ops::Range;

use smallvec::SmallVec;

use crate::buffer::Buf;
use crate::pointer::{RemotePtr, ServerId};

/// One verb of a chain. Offsets are bytes in the server's region; local positions are bytes in the chain's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verb {
    /// Operation of the verb.
    pub op: Op,
    /// Set if it waits until the READs and atomics before it have been executed. Costs a round trip at the sender;
    /// needed only where a WRITE or an atomic must not overtake a READ or an atomic ([`Op::may_overtake`]).
    pub fenced: bool,
}

/// The operation of a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the operands of the verb, explained on the variant")]
pub enum Op {
    /// Reads `len` bytes at `at` into the buffer at `to`.
    Read { at: u64, to: u32, len: u32 },
    /// Writes `len` bytes of the buffer at `from` to `at`.
    Write { at: u64, from: u32, len: u32 },
    /// Writes one little-endian word that travels inside the request (an inline WRITE).
    WriteWord { at: u64, word: u64 },
    /// Replaces the word at `at` by `desired` if it is `expected`; yields the word found.
    Cas { at: u64, expected: u64, desired: u64 },
    /// Does so by a CAS of the [`MASKED_BYTES`] around the word, whose masks have the word only, and brings all of them
    /// as they were to the buffer at `to`.
    MaskedCas { at: u64, expected: u64, desired: u64, to: u32 },
    /// Adds `add` to the word at `at`, wrapping; yields the word found.
    Faa { at: u64, add: u64 },
}

// Chains are moved: a verb is no longer than its three words.
const _: () = assert!(size_of::<Op>() == 32);

/// Bytes of a masked CAS, at a multiple of as many: the largest that NICs have (mlx5's extended atomics).
pub const MASKED_BYTES: usize = 32;

impl Op {
    /// Tells whether it is a CAS or a FAA, and so finds a word.
    ///
    /// ```
    /// # use farwood_runtime::chain::Op;
    /// assert!(Op::Faa { at: 64, add: 1 }.is_atomic() && !Op::WriteWord { at: 64, word: 1 }.is_atomic());
    /// ```
    #[inline]
    pub fn is_atomic(self) -> bool {
        matches!(self, Op::Cas { .. } | Op::MaskedCas { .. } | Op::Faa { .. })
    }

    /// Tells whether its response brings data back: that of a READ or an atomic, which is what a fence waits for.
    ///
    /// ```
    /// # use farwood_runtime::chain::Op;
    /// assert!(Op::Cas { at: 64, expected: 0, desired: 1 }.returns_data());
    /// assert!(!Op::WriteWord { at: 64, word: 1 }.returns_data());
    /// ```
    #[inline]
    pub fn returns_data(self) -> bool {
        matches!(self, Op::Read { .. }) || self.is_atomic()
    }

    /// Tells whether it may take effect before `earlier`, which was posted before it on the same queue pair, unless a
    /// fence is in between: the order of work requests that InfiniBand promises, and the contract with it.
    ///
    /// | earlier \ later | READ | WRITE | atomic |
    /// |---|---|---|---|
    /// | READ   | in order | may overtake | may overtake |
    /// | WRITE  | in order | in order | in order |
    /// | atomic | in order | may overtake | may overtake |
    ///
    /// ```
    /// # use farwood_runtime::chain::Op;
    /// let (cas, write) = (Op::Cas { at: 64, expected: 0, desired: 1 }, Op::WriteWord { at: 128, word: 1 });
    /// assert!(write.may_overtake(cas));
    /// assert!(!cas.may_overtake(write));
    /// ```
    #[inline]
    pub fn may_overtake(self, earlier: Op) -> bool {
        earlier.returns_data() && !matches!(self, Op::Read { .. })
    }
}

/// Decides whether `op`, posted behind the verbs `earlier` of its chain, needs a fence to take effect after all of
/// them: if it may overtake one of those that no fence among them has waited for.
///
/// ```
/// # use farwood_runtime::chain::{Op, Verb, needs_fence};
/// let lock = Op::Cas { at: 64, expected: 0, desired: 1 };
/// let taken = [Verb { op: lock, fenced: false }];
/// assert!(needs_fence(&taken, Op::WriteWord { at: 128, word: 1 }));
/// assert!(!needs_fence(&taken, Op::Read { at: 128, to: 0, len: 64 }));
/// ```
pub fn needs_fence(earlier: &[Verb], op: Op) -> bool {
    let unfenced = earlier.iter().rposition(|verb| verb.fenced).unwrap_or(0);
    earlier[unfenced..].iter().any(|verb| op.may_overtake(verb.op))
}

/// Verbs to one memory server in posting order, with the one buffer that their payloads live in.
///
/// Addresses and lengths of READs and WRITEs are multiples of 8, those of atomics and words are 8-byte aligned: the
/// unit in which every fabric can keep the line atomicity of the contract ([`crate::verbs`]).
#[derive(Debug)]
pub struct Chain {
    server: ServerId,
    buf: Option<Buf>,
    verbs: SmallVec<[Verb; 5]>,
    next: Fence,
}

/// The fence of the verb that is added next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Fence {
    #[default]
    No,
    IfNeeded,
    Yes,
}

impl Chain {
    /// Makes an empty chain to `server` without a buffer: for atomics and word writes.
    ///
    /// ```
    /// # use farwood_runtime::{Chain, RemotePtr, ServerId};
    /// let mut chain = Chain::new(ServerId(0));
    /// chain.write_word(RemotePtr::new(ServerId(0), 4096), 7);
    /// assert_eq!(chain.verbs().len(), 1);
    /// ```
    #[inline]
    pub fn new(server: ServerId) -> Self {
        Chain { server, buf: None, verbs: SmallVec::new(), next: Fence::No }
    }

    /// Makes an empty chain to `server` whose payloads live in `buf`. The buffer comes back with the completion.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let at = shard.control().chunk(ServerId(0), IndexId(1)).await?.start;
    /// let mut buf = shard.lease(64);
    /// buf.fill(7);
    /// let mut chain = Chain::with_buffer(at.server(), buf);
    /// chain.write(at, 0..64);
    /// let done = shard.submit(&Meter::default(), chain).await?;
    /// assert_eq!(done.into_buf()[..], [7; 64]);
    /// # Ok(()) }).unwrap();
    /// ```
    #[inline]
    pub fn with_buffer(server: ServerId, buf: Buf) -> Self {
        Chain { server, buf: Some(buf), verbs: SmallVec::new(), next: Fence::No }
    }

    /// Makes this an empty chain to `server` in place.
    #[inline]
    pub(crate) fn restart(&mut self, server: ServerId, buf: Option<Buf>) {
        self.server = server;
        self.buf = buf;
        self.verbs.clear();
        self.next = Fence::No;
    }

    /// Appends a READ of `local.len()` bytes at `at` into that range of the buffer.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let at = shard.control().chunk(ServerId(0), IndexId(1)).await?.start;
    /// let mut chain = Chain::with_buffer(at.server(), shard.lease(128));
    /// chain.read(at, 0..64).read(at.add(1024), 64..128); // Two lines in one round trip.
    /// let lines = shard.submit(&Meter::default(), chain).await?.into_buf();
    /// assert_eq!(lines[..], [0; 128]);
    /// # Ok(()) }).unwrap();
    /// ```
    #[inline]
    pub fn read(&mut self, at: RemotePtr, local: Range<usize>) -> &mut Self {
        let (to, len) = self.local(&local);
        self.push(at, Op::Read { at: at.offset(), to, len })
    }

    /// Appends a WRITE of that range of the buffer to `at`.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let at = shard.control().chunk(ServerId(0), IndexId(1)).await?.start;
    /// # let meter = Meter::default();
    /// let mut node = shard.lease(64);
    /// node.fill(7);
    /// let mut chain = Chain::with_buffer(at.server(), node);
    /// chain.write(at, 0..64);
    /// shard.submit(&meter, chain).await?;
    /// assert_eq!(shard.read(&meter, at, 64).await?.into_buf()[..], [7; 64]);
    /// # Ok(()) }).unwrap();
    /// ```
    #[inline]
    pub fn write(&mut self, at: RemotePtr, local: Range<usize>) -> &mut Self {
        let (from, len) = self.local(&local);
        self.push(at, Op::Write { at: at.offset(), from, len })
    }

    /// Inserts a WRITE of that range of the buffer to `at` in front of the verb at `place`. It is not fenced.
    ///
    /// ```
    /// # use farwood_runtime::chain::{Chain, Op};
    /// # use farwood_runtime::{BufferPool, RemotePtr, ServerId};
    /// # let at = RemotePtr::new(ServerId(0), 4096);
    /// let mut chain = Chain::with_buffer(at.server(), BufferPool::new().lease(64));
    /// chain.write_word(at, 7);
    /// chain.insert_write(0, at.add(64), 0..64);
    /// assert!(matches!(chain.verbs()[0].op, Op::Write { at: 4160, .. }));
    /// ```
    ///
    /// # Panics
    /// If there are fewer verbs than that.
    pub fn insert_write(&mut self, place: usize, at: RemotePtr, local: Range<usize>) {
        let next = std::mem::take(&mut self.next);
        self.write(at, local);
        self.next = next;
        self.verbs[place..].rotate_right(1);
    }

    /// Appends a WRITE of one word to `at`, without the buffer.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let at = shard.control().chunk(ServerId(0), IndexId(1)).await?.start;
    /// # let meter = Meter::default();
    /// let mut chain = Chain::new(at.server());
    /// chain.write_word(at, 7);
    /// shard.submit(&meter, chain).await?;
    /// assert_eq!(shard.read(&meter, at, 8).await?.into_buf()[..], 7u64.to_le_bytes());
    /// # Ok(()) }).unwrap();
    /// ```
    #[inline]
    pub fn write_word(&mut self, at: RemotePtr, word: u64) -> &mut Self {
        self.push(at, Op::WriteWord { at: at.offset(), word })
    }

    /// Appends a compare-and-swap of the word at `at`. The word found is the next of
    /// [`crate::verbs::Completion::atomics`].
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let at = shard.control().chunk(ServerId(0), IndexId(1)).await?.start;
    /// # let meter = Meter::default();
    /// for (owner, found) in [(7, 0), (8, 7)] {
    ///     let mut take = Chain::new(at.server());
    ///     take.cas(at, 0, owner);
    ///     assert_eq!(shard.submit(&meter, take).await?.atomics[..], [found]); // The second has lost.
    /// }
    /// # Ok(()) }).unwrap();
    /// ```
    #[inline]
    pub fn cas(&mut self, at: RemotePtr, expected: u64, desired: u64) -> &mut Self {
        self.push(at, Op::Cas { at: at.offset(), expected, desired })
    }

    /// Appends a compare-and-swap as [`Chain::cas`] does, and brings the aligned [`MASKED_BYTES`] that the word is
    /// among, as the CAS found them, to `to` of the buffer: no round trip and no message more. Only for fabrics with
    /// [`crate::verbs::Capabilities::masked_atomic`]; others refuse the chain.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let at = shard.control().chunk(ServerId(0), IndexId(1)).await?.start;
    /// let mut take = Chain::with_buffer(at.server(), shard.lease(32));
    /// take.masked_cas(at.add(8), 0, 7, 0); // Bytes 0..32 of `at` come along.
    /// let refused = shard.submit(&Meter::default(), take).await.unwrap_err();
    /// assert_eq!(*refused.cause(), FabricError::NoMaskedCas { fabric: "embedded" });
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn masked_cas(&mut self, at: RemotePtr, expected: u64, desired: u64, to: usize) -> &mut Self {
        let (to, _) = self.local(&(to..to + MASKED_BYTES));
        self.push(at, Op::MaskedCas { at: at.offset(), expected, desired, to })
    }

    /// Appends a fetch-and-add to the word at `at`. The word found is the next of
    /// [`crate::verbs::Completion::atomics`].
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let at = shard.control().chunk(ServerId(0), IndexId(1)).await?.start;
    /// let mut chain = Chain::new(at.server());
    /// chain.faa(at, 5).fence().faa(at, 5);
    /// let done = shard.submit(&Meter::default(), chain).await?;
    /// assert_eq!(done.atomics[..], [0, 5]);
    /// # Ok(()) }).unwrap();
    /// ```
    #[inline]
    pub fn faa(&mut self, at: RemotePtr, add: u64) -> &mut Self {
        self.push(at, Op::Faa { at: at.offset(), add })
    }

    /// Fences the next verb: it takes effect after every READ and atomic before it, those of earlier chains included.
    ///
    /// ```
    /// # use farwood_runtime::{Chain, RemotePtr, ServerId};
    /// # let word = RemotePtr::new(ServerId(0), 4096);
    /// let mut chain = Chain::new(word.server());
    /// chain.faa(word, 1).fence().write_word(word.add(64), 7); // Not before the word was counted up.
    /// assert!(!chain.verbs()[0].fenced && chain.verbs()[1].fenced);
    /// ```
    pub fn fence(&mut self) -> &mut Self {
        self.next = Fence::Yes;
        self
    }

    /// Fences the next verb if it needs that to take effect after all verbs of this chain ([`needs_fence`]).
    ///
    /// ```
    /// # use farwood_runtime::{Chain, RemotePtr, ServerId};
    /// # let word = RemotePtr::new(ServerId(0), 4096);
    /// let mut chain = Chain::new(word.server());
    /// chain.write_word(word, 1).fence_if_needed().faa(word, 1); // Nothing overtakes a WRITE.
    /// chain.fence_if_needed().write_word(word, 7);
    /// let fenced: Vec<bool> = chain.verbs().iter().map(|verb| verb.fenced).collect();
    /// assert_eq!(fenced, [false, false, true]);
    /// ```
    pub fn fence_if_needed(&mut self) -> &mut Self {
        self.next = self.next.max(Fence::IfNeeded);
        self
    }

    /// Returns the memory server that the chain goes to.
    ///
    /// ```
    /// # use farwood_runtime::{Chain, ServerId};
    /// assert_eq!(Chain::new(ServerId(2)).server(), ServerId(2));
    /// ```
    pub fn server(&self) -> ServerId {
        self.server
    }

    /// Returns the verbs in posting order.
    ///
    /// ```
    /// # use farwood_runtime::chain::{Chain, Op};
    /// # use farwood_runtime::{RemotePtr, ServerId};
    /// let mut chain = Chain::new(ServerId(0));
    /// chain.faa(RemotePtr::new(ServerId(0), 4096), 1);
    /// assert_eq!(chain.verbs()[0].op, Op::Faa { at: 4096, add: 1 });
    /// ```
    pub fn verbs(&self) -> &[Verb] {
        &self.verbs
    }

    /// Tells whether no verb was added yet.
    ///
    /// ```
    /// # use farwood_runtime::{Chain, RemotePtr, ServerId};
    /// let mut chain = Chain::new(ServerId(0));
    /// assert!(chain.is_empty());
    /// chain.faa(RemotePtr::new(ServerId(0), 4096), 1);
    /// assert!(!chain.is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.verbs.is_empty()
    }

    /// Tells whether executing the chain, or any part of it, once more changes nothing, provided that no other client
    /// writes there in between: WRITEs only. A READ would replace what a WRITE behind it may send, an atomic acts on
    /// what it finds.
    ///
    /// ```
    /// # use farwood_runtime::{Chain, RemotePtr, ServerId};
    /// # let word = RemotePtr::new(ServerId(0), 4096);
    /// let mut chain = Chain::new(word.server());
    /// chain.write_word(word, 7);
    /// assert!(chain.is_idempotent());
    /// chain.faa(word, 1);
    /// assert!(!chain.is_idempotent());
    /// ```
    pub fn is_idempotent(&self) -> bool {
        self.verbs.iter().all(|verb| matches!(verb.op, Op::Write { .. } | Op::WriteWord { .. }))
    }

    /// Removes the first `verbs` verbs, which a failed chain need not do again.
    ///
    /// ```
    /// # use farwood_runtime::{Chain, RemotePtr, ServerId};
    /// # let word = RemotePtr::new(ServerId(0), 4096);
    /// let mut chain = Chain::new(word.server());
    /// chain.cas(word, 0, 7).write_word(word.add(64), 1);
    /// chain.skip(1); // The CAS is known to have taken effect.
    /// assert!(chain.is_idempotent());
    /// ```
    pub fn skip(&mut self, verbs: usize) {
        self.verbs.drain(..verbs);
    }

    /// Returns the chain's buffer, if it has one.
    ///
    /// ```
    /// # use farwood_runtime::{BufferPool, Chain, ServerId};
    /// let chain = Chain::with_buffer(ServerId(0), BufferPool::new().lease(64));
    /// assert_eq!(chain.buffer().map(|buf| buf.len()), Some(64));
    /// assert!(Chain::new(ServerId(0)).buffer().is_none());
    /// ```
    pub fn buffer(&self) -> Option<&Buf> {
        self.buf.as_ref()
    }

    /// Puts another buffer, or none, in the place of the chain's; yields that. The verbs stay as they are: they name
    /// the same ranges of the other one, which is to have them.
    ///
    /// ```
    /// # use farwood_runtime::{BufferPool, Chain, ServerId};
    /// let pool = BufferPool::new();
    /// let mut chain = Chain::with_buffer(ServerId(0), pool.lease(64));
    /// let small = chain.replace_buffer(Some(pool.lease(128)));
    /// assert_eq!((small.map(|buf| buf.len()), chain.buffer().map(|buf| buf.len())), (Some(64), Some(128)));
    /// ```
    pub fn replace_buffer(&mut self, buf: Option<Buf>) -> Option<Buf> {
        std::mem::replace(&mut self.buf, buf)
    }

    /// Returns the verbs, and the buffer to be changed: what they have in it may be copied.
    ///
    /// ```
    /// # use farwood_runtime::{BufferPool, Chain, ServerId};
    /// let mut chain = Chain::with_buffer(ServerId(0), BufferPool::new().lease(64));
    /// let (verbs, buf) = chain.parts_mut();
    /// assert!(verbs.is_empty() && buf.is_some());
    /// ```
    pub fn parts_mut(&mut self) -> (&[Verb], Option<&mut Buf>) {
        (&self.verbs, self.buf.as_mut())
    }

    pub(crate) fn take_buffer(&mut self) -> Option<Buf> {
        self.buf.take()
    }

    /// Returns the chain's buffer to be changed, if it has one: what its WRITEs will send.
    ///
    /// ```
    /// # use farwood_runtime::{BufferPool, Chain, ServerId};
    /// let mut chain = Chain::with_buffer(ServerId(0), BufferPool::new().lease(64));
    /// chain.buffer_mut().expect("it has one")[0] = 7;
    /// assert_eq!(chain.buffer().map(|buf| buf[0]), Some(7));
    /// ```
    pub fn buffer_mut(&mut self) -> Option<&mut Buf> {
        self.buf.as_mut()
    }

    /// Gives the buffer back without posting anything.
    ///
    /// ```
    /// # use farwood_runtime::{BufferPool, Chain, ServerId};
    /// let pool = BufferPool::new();
    /// let chain = Chain::with_buffer(ServerId(0), pool.lease(64));
    /// drop(chain.into_buffer());
    /// assert_eq!(pool.leased(), 0);
    /// ```
    pub fn into_buffer(self) -> Option<Buf> {
        self.buf
    }

    #[inline]
    fn push(&mut self, at: RemotePtr, op: Op) -> &mut Self {
        assert_eq!(at.server(), self.server, "a chain goes to one memory server");
        assert_eq!(at.offset() % 8, 0, "remote addresses are 8-byte aligned");
        let fenced = match std::mem::take(&mut self.next) {
            Fence::No => false,
            Fence::IfNeeded => needs_fence(&self.verbs, op),
            Fence::Yes => true,
        };
        self.verbs.push(Verb { op, fenced });
        self
    }

    #[inline]
    fn local(&self, range: &Range<usize>) -> (u32, u32) {
        let held = self.buf.as_ref().map_or(0, |buf| buf.len());
        assert!(
            range.start <= range.end && range.end <= held,
            "{range:?} is outside the buffer of {held} bytes"
        );
        assert_eq!(range.len() % 8, 0, "lengths are multiples of 8");
        (range.start as u32, range.len() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::BufferPool;

    #[test]
    fn keeps_posting_order_and_fences() {
        let at = RemotePtr::new(ServerId(3), 64);
        let mut chain = Chain::with_buffer(ServerId(3), BufferPool::new().lease(64));
        chain.cas(at, 0, 1).read(at, 0..64).fence().write_word(at, 7);
        let fenced: Vec<bool> = chain.verbs().iter().map(|v| v.fenced).collect();
        assert_eq!(fenced, [false, false, true]);
        assert_eq!(chain.verbs()[1].op, Op::Read { at: 64, to: 0, len: 64 });
    }

    const KINDS: [Op; 6] = [
        Op::Read { at: 0, to: 0, len: 8 },
        Op::Write { at: 0, from: 0, len: 8 },
        Op::WriteWord { at: 0, word: 0 },
        Op::Cas { at: 0, expected: 0, desired: 0 },
        Op::Faa { at: 0, add: 0 },
        Op::MaskedCas { at: 0, expected: 0, desired: 0, to: 0 },
    ];

    /// Chains of up to four verbs, of all kinds in all orders.
    fn tiny_chains() -> Vec<Vec<Op>> {
        let mut all = vec![vec![]];
        let mut longest = all.clone();
        for _ in 0..4 {
            longest =
                longest.iter().flat_map(|ops| KINDS.map(|op| [ops.clone(), vec![op]].concat())).collect();
            all.extend_from_slice(&longest);
        }
        all
    }

    /// Tells for which pairs of verbs the contract promises that the first takes effect before the second.
    fn ordered_pairs(verbs: &[Verb]) -> Vec<(usize, usize)> {
        let is_direct = |&(i, j): &(usize, usize)| {
            let is_fenced = verbs[i].op.returns_data() && verbs[i + 1..=j].iter().any(|verb| verb.fenced);
            is_fenced || !verbs[j].op.may_overtake(verbs[i].op)
        };
        let mut pairs: Vec<_> = pairs(verbs.len()).filter(is_direct).collect();
        for middle in 0..verbs.len() {
            for (i, j) in self::pairs(verbs.len()) {
                if pairs.contains(&(i, middle)) && pairs.contains(&(middle, j)) && !pairs.contains(&(i, j)) {
                    pairs.push((i, j));
                }
            }
        }
        pairs.sort_unstable();
        pairs
    }

    fn pairs(count: usize) -> impl Iterator<Item = (usize, usize)> {
        (0..count).flat_map(move |i| (i + 1..count).map(move |j| (i, j)))
    }

    #[test]
    fn writes_and_atomics_overtake_what_returns_data() {
        let may = |later: usize, earlier: usize| KINDS[later].may_overtake(KINDS[earlier]);
        let (read, writes, atomics) = ([0], [1, 2], [3, 4, 5]);
        for later in 0..KINDS.len() {
            assert!(writes.iter().all(|&write| !may(later, write)), "a WRITE is overtaken by {later}");
            assert!(read.iter().chain(&atomics).all(|&earlier| may(later, earlier) == (later != read[0])));
        }
    }

    #[test]
    fn needed_fences_are_enough_and_none_can_be_left_out() {
        let mut fences = 0;
        for ops in tiny_chains() {
            let mut verbs: Vec<Verb> = Vec::new();
            for &op in &ops {
                let fenced = needs_fence(&verbs, op);
                verbs.push(Verb { op, fenced });
            }
            assert!(ordered_pairs(&verbs).into_iter().eq(pairs(ops.len())), "too few fences: {verbs:?}");
            for place in 0..verbs.len() {
                if verbs[place].fenced {
                    let mut fewer = verbs.clone();
                    fewer[place].fenced = false;
                    assert!(ordered_pairs(&fewer).len() < pairs(ops.len()).count(), "{place} of {verbs:?}");
                    fences += 1;
                }
            }
        }
        assert!(fences > 100, "{fences}");
    }

    #[test]
    fn chains_fence_what_needs_it() {
        let at = RemotePtr::new(ServerId(0), 64);
        let mut chain = Chain::with_buffer(ServerId(0), BufferPool::new().lease(64));
        chain
            .fence_if_needed()
            .cas(at, 0, 1)
            .fence_if_needed()
            .read(at, 0..64)
            .fence_if_needed()
            .write(at, 0..8);
        chain.fence_if_needed().write_word(at, 7).fence().fence_if_needed().write_word(at, 8).faa(at, 1);
        let fenced: Vec<bool> = chain.verbs().iter().map(|verb| verb.fenced).collect();
        assert_eq!(fenced, [false, false, true, false, true, false]);
    }

    #[test]
    #[should_panic(expected = "one memory server")]
    fn refuses_a_second_server() {
        Chain::new(ServerId(0)).write_word(RemotePtr::new(ServerId(1), 8), 0);
    }

    #[test]
    #[should_panic(expected = "outside the buffer")]
    fn refuses_a_range_outside_the_buffer() {
        let buf = BufferPool::new().lease(64);
        Chain::with_buffer(ServerId(0), buf).read(RemotePtr::new(ServerId(0), 8), 8..72);
    }
}
