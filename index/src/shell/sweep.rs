//! Sweeps of an index: lost memory is found and given back while clients work (`farwood_runtime::sweep` says why that
//! is sound, and in which order it has to be done). Each algorithm says what the index reaches ([`Algorithm::mark`]).

use std::rc::Rc;

use farwood_runtime::control::Chunk;
use farwood_runtime::sweep::Step;
use farwood_runtime::{ControlError, Extents, IndexId, Meter, Verbs};

use super::accounts::intent_extents;
use super::algorithm::{Algorithm, Geometry};
use super::handle::{Index, Local};
use crate::check::in_lines;
use crate::error::{AccessError, SweepError};
use crate::memory::{Marks, cut, lost_of};

/// Pauses in ns before it is asked again who is late: each is twice as long as the one before, up to the last.
const PAUSE_MIN_NS: u64 = 10_000;
const PAUSE_MAX_NS: u64 = 10_000_000;
/// Time in ns for which compute nodes may be late with a step, or hold an epoch back.
const PATIENCE_NS: u64 = 30_000_000_000;
/// Times that a sweep begins anew, because processes end that had not told what is in their lists.
const ATTEMPTS_MAX: u32 = 4;

/// Findings of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweepReport {
    /// Bytes that the index reached: nodes, blocks, pages for intents, and what slots led to. Some of them were read
    /// before they went.
    pub reached_bytes: u64,
    /// Bytes that were in lists of processes that work on the index, or passed through one meanwhile.
    pub listed_bytes: u64,
    /// Bytes that were lost, and were given back to their servers.
    pub given_back_bytes: u64,
    /// Bytes that were lost and stay as they are: something may lead there that looks like a part of the index. A check
    /// that is alone gives them back ([`Index::give_back`]).
    pub left_bytes: u64,
}

impl<A: Algorithm, V: Verbs> Index<A, V> {
    /// Finds memory of the index that was lost, with compute nodes that died and shards that ended, and gives it back
    /// to its servers, while this client and others work on the index. It takes a while: epochs pass before, meanwhile
    /// and behind, and all caches are emptied once if anything was lost. One index is swept at a time.
    ///
    /// ```
    /// # use farwood_index::{RangeIndex, Sherman, sherman::{Geometry, Options}};
    /// # farwood_doctest::run(async |node, shard| {
    /// # let (geometry, options) = (Geometry::default(), Options::default());
    /// # use farwood_runtime::{NodeContext, ServerId};
    /// let users = Sherman::create(&node, "users", geometry, options).await?.attach(shard);
    /// users.put(b"anna", b"1").await?;
    /// // A chunk that none has in a list any more.
    /// let id = node.control().open("users").await?.id;
    /// let lost = node.control().chunk(ServerId(0), id).await?;
    /// assert_eq!(users.sweep().await?.given_back_bytes, lost.bytes);
    /// assert_eq!(node.control().chunk(ServerId(0), id).await?, lost, "handed out again");
    /// assert_eq!(users.get(b"anna").await?.as_deref(), Some(&b"1"[..]));
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Why nothing was given back, or not all. The index is as it was.
    pub async fn sweep(&self) -> Result<SweepReport, SweepError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.local().try_sweep().await {
                Err(SweepError::Void) if attempts < ATTEMPTS_MAX => {
                    tracing::debug!(name: "index.sweep.void", "a process has ended meanwhile: the sweep begins anew");
                }
                Err(error) => {
                    tracing::debug!(name: "index.sweep.failed", %error, "lost memory was not looked for");
                    return Err(error);
                }
                swept => return swept,
            }
        }
    }
}

/// A sweep that is under way: it ends when this is dropped.
struct Sweeping<'t, A: Algorithm, V: Verbs> {
    local: &'t Local<A, V>,
    /// None while it is asked for: it may have begun, or not.
    number: Option<u64>,
    is_refused: bool,
}

impl<A: Algorithm, V: Verbs> Drop for Sweeping<'_, A, V> {
    fn drop(&mut self) {
        if !self.is_refused {
            self.local.verbs.control().end_sweep(self.number);
        }
    }
}

impl<A: Algorithm, V: Verbs> Local<A, V> {
    async fn try_sweep(self: &Rc<Self>) -> Result<SweepReport, SweepError> {
        let (control, index) = (self.verbs.control(), self.shared.entry.id);
        let sweep = Sweeping::begin(self, index).await?;
        sweep.step(Step::Notes).await?;
        // What dead clients had begun leads to nodes that nothing else leads to.
        let dead = control.dead().await?;
        let locks = self.take_over_all_of(&dead).await?;
        if locks > 0 {
            return Err(SweepError::LocksOfTheDead { locks });
        }
        self.operations_end().await?;
        let (meter, mut marks) = (Meter::default(), Marks::new(dead.iter().copied()));
        let before = control.holdings(index).await?;
        if !A::mark(self, &meter, &mut marks).await? {
            return Err(SweepError::Unsupported);
        }
        {
            let _pin = self.verbs.pins().pin();
            let pages = intent_extents(self).await?.ok_or(SweepError::Intents)?;
            pages.into_iter().for_each(|(page, bytes)| marks.reach(page, bytes));
        }
        self.operations_end().await?;
        sweep.step(Step::Lists).await?;
        let mut listed = Extents::default();
        let told = control.swept_lists(sweep.number()).await?;
        told.iter().for_each(|piece| _ = listed.add(piece.start, piece.bytes));
        let after = control.holdings(index).await?;
        let lost = lost_of(&before, &after, &marks, &listed);
        tracing::debug!(
            name: "index.swept", reached = marks.bytes(), listed = listed.bytes(), pieces = lost.len(),
            "lost memory was looked for"
        );
        let (reached_bytes, listed_bytes) = (marks.bytes(), listed.bytes());
        let (given_back_bytes, left_bytes) = self.give_back_lost(index, lost).await?;
        Ok(SweepReport { reached_bytes, listed_bytes, given_back_bytes, left_bytes })
    }

    /// Gives lost memory back, of which no cache and no operation has an address any more; yields how many bytes, and
    /// how many were left.
    async fn give_back_lost(&self, index: IndexId, lost: Vec<Chunk>) -> Result<(u64, u64), SweepError> {
        let (control, mut given_back, mut left) = (self.verbs.control(), 0, 0);
        if lost.is_empty() {
            return Ok((0, 0));
        }
        self.caches_are_emptied().await?;
        let (meter, leaf_bytes) =
            (Meter::default(), in_lines(A::geometry(&self.shared.persisted).leaf_bytes()));
        let mut free = Vec::new();
        for piece in lost {
            let kept = A::kept_of(self, &meter, piece).await?;
            left += kept.bytes();
            let gaps = kept.gaps(piece.start, piece.bytes);
            free.extend(gaps.into_iter().map(|(start, bytes)| Chunk { start, bytes }));
        }
        for server in control.servers().iter().map(|server| server.id) {
            let of_server = free.iter().filter(|piece| piece.start.server() == server);
            let extents = cut(of_server.copied(), leaf_bytes);
            if !extents.is_empty() {
                given_back += control.take_back(index, server, None, extents).await?;
            }
        }
        tracing::debug!(
            name: "index.sweep.given_back", bytes = given_back, left, "lost memory is given back while others work"
        );
        Ok((given_back, left))
    }

    /// Takes over the locks of compute nodes that have died, as far as they are in lock tables; counts those that it
    /// could not.
    async fn take_over_all_of(&self, dead: &[u16]) -> Result<u64, AccessError> {
        let (meter, _pin, mut locks) = (Meter::default(), self.verbs.pins().pin(), 0);
        for (at, word) in self.locks.words_held(&meter).await? {
            if dead.contains(&word.owner()) && !self.locks.is_foreign(word) {
                locks += u64::from(!self.locks.take_over(at, word).await?);
            }
        }
        Ok(locks)
    }

    /// Waits until all operations have ended that are under way now, of any client.
    async fn operations_end(&self) -> Result<(), SweepError> {
        let pins = self.verbs.pins();
        let since = pins.retired_now();
        self.wait_until(|| pins.is_over(since), || self.verbs.control().want_epoch()).await
    }

    /// Waits until no cache has an address that it has now, and no operation one that it had from a cache.
    async fn caches_are_emptied(&self) -> Result<(), SweepError> {
        let pins = self.verbs.pins();
        let since = pins.retired_now();
        let want_flush = || {
            self.verbs.control().want_flush(since);
            self.verbs.control().want_epoch();
        };
        let are_empty = || pins.flushed_since(since).is_some_and(|since| pins.is_over(since));
        self.wait_until(are_empty, want_flush).await
    }

    async fn wait_until(&self, is_so: impl Fn() -> bool, ask: impl Fn()) -> Result<(), SweepError> {
        let mut patience = Patience::new(&self.verbs);
        while !is_so() {
            ask();
            if !patience.pause().await {
                return Err(SweepError::Epoch);
            }
        }
        Ok(())
    }
}

/// The pauses of one wait.
struct Patience<'v, V: Verbs> {
    verbs: &'v V,
    until_ns: u64,
    next_ns: u64,
}

impl<'v, V: Verbs> Patience<'v, V> {
    fn new(verbs: &'v V) -> Self {
        Patience { verbs, until_ns: verbs.now() + PATIENCE_NS, next_ns: PAUSE_MIN_NS }
    }

    /// Pauses; false if that was long enough.
    async fn pause(&mut self) -> bool {
        self.verbs.pause(self.next_ns).await;
        self.next_ns = (2 * self.next_ns).min(PAUSE_MAX_NS);
        self.verbs.now() < self.until_ns
    }
}

impl<'t, A: Algorithm, V: Verbs> Sweeping<'t, A, V> {
    async fn begin(local: &'t Local<A, V>, index: IndexId) -> Result<Self, SweepError> {
        let mut sweep = Sweeping { local, number: None, is_refused: false };
        match local.verbs.control().begin_sweep(index).await {
            Ok(number) => sweep.number = Some(number),
            Err(error) => {
                sweep.is_refused = matches!(error, ControlError::Sweeping { .. });
                return Err(error.into());
            }
        }
        Ok(sweep)
    }

    fn number(&self) -> u64 {
        self.number.expect("it has begun")
    }

    /// Waits until all processes have done a step.
    async fn step(&self, step: Step) -> Result<(), SweepError> {
        let verbs = &self.local.verbs;
        let mut patience = Patience::new(verbs);
        loop {
            let nodes = verbs.control().sweep_waits_for(self.number(), step).await?;
            if nodes.is_empty() {
                return Ok(());
            }
            if !patience.pause().await {
                return Err(SweepError::Late { nodes });
            }
        }
    }
}
