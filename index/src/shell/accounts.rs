//! Checks of an index with the accounts of its memory, and giving back what no node of it lies in.

use farwood_lock::intent_pages;
use farwood_runtime::{Extents, Holdings, Meter, RemotePtr, Verbs};

use super::algorithm::{Algorithm, Geometry};
use super::handle::{Index, Local};
use crate::check::{AtRest, Broken, CheckOptions, CheckReport, Violation, in_lines};
use crate::error::{AccessError, GiveBackError};
use crate::memory::{balance, cut};

impl<A: Algorithm, V: Verbs> Index<A, V> {
    /// Checks the index, which is at rest, and reports what is wrong with it.
    ///
    /// ```
    /// # use farwood_index::CheckOptions;
    /// # farwood_doctest::index!(|index| {
    /// index.put(b"anna", b"1").await?;
    /// let report = index.check(&CheckOptions::default()).await?;
    /// assert!(report.is_intact());
    /// assert_eq!(report.survey.keys, 1);
    /// # });
    /// ```
    ///
    /// # Errors
    /// Only if a memory server cannot be read; whatever it holds is in the report.
    pub async fn check(&self, options: &CheckOptions) -> Result<CheckReport, AccessError> {
        self.check_each(options, |_, _| {}).await
    }

    /// Checks the index as [`Index::check`] does, and shows `visit` every key with its value: ascending, as long as the
    /// index is sound.
    ///
    /// ```
    /// # use farwood_index::{CheckOptions, check::Pairs};
    /// # farwood_doctest::index!(|index| {
    /// index.put(b"anna", b"1").await?;
    /// let mut pairs = Pairs::default();
    /// let add = |key: &[u8], value: &[u8]| assert!(pairs.insert(key, value));
    /// index.check_each(&CheckOptions::default(), add).await?;
    /// assert_eq!(pairs.get(b"anna"), Some(&b"1"[..]));
    /// # });
    /// ```
    ///
    /// # Errors
    /// Only if a memory server cannot be read.
    pub async fn check_each(
        &self,
        options: &CheckOptions,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<CheckReport, AccessError> {
        let (meter, mut report) = (Meter::default(), CheckReport::new(options.kept_max));
        let local = self.local();
        let _pin = local.verbs.pins().pin();
        report.reached = Some(Extents::default());
        let before = holdings(local).await;
        let held = local.locks.words_held(&meter).await?;
        let exempt = report.note_locks(options, held, |word| local.locks.is_foreign(word));
        match A::walk(local, &meter, Some(AtRest { options, exempt }), &mut report, &mut visit).await {
            Err(AccessError::Corrupt { node, what }) => {
                report.violations.push(Violation { node, level: None, broken: Broken::Rule { what } });
            }
            walked => walked?,
        }
        judge_count(local, &mut report);
        reach_intents(local, &mut report).await?;
        // Asked once more: what was handed out meanwhile is no fault of the index.
        if let (Some(before), Some(after)) = (before, holdings(local).await) {
            let reached = report.reached.take().unwrap_or_default();
            let (memory, faults) = balance(reached, &report.led_to, &before, &after);
            for (node, fault) in faults {
                let broken = Broken::Memory(fault);
                report.violations.push(Violation { node, level: None, broken });
            }
            report.memory = Some(memory);
        }
        Ok(report)
    }

    /// Gives memory that no node of the index lies in back to its servers, as `report` has found it, which this
    /// handle's check has made: what was lost with compute nodes that died and shards that ended. It is handed out
    /// again, for this index: pieces of less than 4096 bytes as nodes. Yields the bytes. Nothing is given back unless
    /// no other client can have an address there, or a list with it:
    ///
    /// - No other client is connected to the servers, nor was since the check began. That is the servers' word, at the
    ///   moment when they take it.
    /// - No lock of a dead compute node is left ([`Index::take_over`]): what that one had begun may lead there.
    /// - All nodes could be read, and the index is intact.
    /// - This handle was used for checks alone. The caller ensures that it is the only one of this process for the
    ///   index; the addresses that others have left in caches are forgotten.
    ///
    /// ```
    /// # use farwood_index::{CheckOptions, RangeIndex, Sherman, sherman::{Geometry, Options}};
    /// # farwood_doctest::run(async |node, shard| {
    /// # let (geometry, options) = (Geometry::default(), Options::default());
    /// let users = Sherman::create(&node, "users", geometry, options).await?.attach(shard);
    /// # use farwood_runtime::{NodeContext, ServerId};
    /// // A chunk that none has in a list any more.
    /// let id = node.control().open("users").await?.id;
    /// let lost = node.control().chunk(ServerId(0), id).await?;
    /// let report = users.check(&CheckOptions::default()).await?;
    /// assert_eq!(report.memory.as_ref().unwrap().unreached_bytes, lost.bytes);
    /// assert_eq!(users.give_back(&report).await?, lost.bytes);
    /// assert_eq!(node.control().chunk(ServerId(0), id).await?, lost, "handed out again");
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Why nothing was given back, or, if that is an error of the control plane, not all.
    pub async fn give_back(&self, report: &CheckReport) -> Result<u64, GiveBackError> {
        let local = self.local();
        let Some(memory) = &report.memory else { return Err(GiveBackError::Unknown) };
        let (violations, torn) = (report.violations.total(), report.torn.total());
        if violations + torn > 0 {
            return Err(GiveBackError::NotIntact { violations, torn });
        }
        if !report.orphaned.is_empty() {
            return Err(GiveBackError::LocksOfTheDead { locks: report.orphaned.total() });
        }
        if memory.others > 0 {
            return Err(GiveBackError::OthersConnected { others: memory.others });
        }
        let Some(joins) = &memory.joins else { return Err(GiveBackError::OthersCame) };
        if local.has_been_used() {
            return Err(GiveBackError::HandleUsed);
        }
        // Before the memory is another node's. No operation of this process puts an address there until then.
        A::empty_caches(&local.shared.state);
        let (control, index, mut freed) = (local.verbs.control(), local.shared.entry.id, 0);
        let leaf_bytes = in_lines(A::geometry(&local.shared.persisted).leaf_bytes());
        for (server, joins) in control.servers().iter().map(|server| server.id).zip(joins) {
            let of_server = memory.lost.iter().filter(|extent| extent.start.server() == server);
            let extents = cut(of_server.copied(), leaf_bytes);
            if !extents.is_empty() {
                freed += control.take_back(index, server, Some(*joins), extents).await?;
            }
        }
        tracing::debug!(name: "index.memory.given_back", bytes = freed, "memory that no node lies in is given back");
        Ok(freed)
    }
}

impl<A: Algorithm, V: Verbs> Local<A, V> {
    /// Tells whether the handle has been used for more than checks: then it may have memory in its lists, or addresses
    /// in its cache.
    fn has_been_used(&self) -> bool {
        let books = self.allocator.books();
        let taken =
            books.used_bytes != 0 || books.free_bytes + books.retired_bytes + books.unsettled_bytes != 0;
        taken || books.asks || self.operations() > 0
    }
}

/// Asks the servers what they hold of the index; none if they do not say.
async fn holdings<A: Algorithm, V: Verbs>(local: &Local<A, V>) -> Option<Vec<Holdings>> {
    let asked = local.verbs.control().holdings(local.shared.entry.id).await;
    asked.inspect_err(|error| tracing::debug!(%error, "what the servers hold of an index is not known")).ok()
}

/// Compares what the walk has counted with what it has named: a node that is in the one and not in the other would be
/// given back while it is in use. Of a torn leaf it is not known what it leads to, and nothing is given back then.
fn judge_count<A: Algorithm, V: Verbs>(local: &Local<A, V>, report: &mut CheckReport) {
    let named = report.reached.as_ref().map_or(0, Extents::bytes);
    let counted = report.survey.used_bytes;
    if report.is_intact() && report.torn.is_empty() && named < counted {
        let what = format!("the walk counts nodes of {counted} bytes, and reaches {named}");
        let broken = Broken::Rule { what };
        report.violations.push(Violation { node: local.shared.entry.root, level: None, broken });
    }
}

/// Notes the pages of intents: they stay in their list until the index is dropped.
async fn reach_intents<A: Algorithm, V: Verbs>(
    local: &Local<A, V>,
    report: &mut CheckReport,
) -> Result<(), AccessError> {
    match intent_extents(local).await? {
        Some(pages) => pages.into_iter().for_each(|(page, bytes)| report.reach(page, bytes)),
        None => {
            let node = local.shared.intents_head();
            let what = "the list of its pages for intents does not come to an end".into();
            report.violations.push(Violation { node, level: None, broken: Broken::Rule { what } });
        }
    }
    Ok(())
}

/// Lists the pages of intents, and their bytes; none if their list does not come to an end.
pub(super) async fn intent_extents<A: Algorithm, V: Verbs>(
    local: &Local<A, V>,
) -> Result<Option<Vec<(RemotePtr, u64)>>, AccessError> {
    let (head, mut budget) = (local.shared.intents_head(), local.budget());
    loop {
        match intent_pages(&local.verbs, head).await {
            Ok(pages) => return Ok(pages),
            Err(cause) if cause.is_passing() => budget.spend(&Meter::default(), head, None)?,
            Err(cause) => return Err(cause.into()),
        }
    }
}
