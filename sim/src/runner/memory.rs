//! Accounts of the memory: that all of it is accounted for, that no byte is two nodes', and that what was lost with
//! compute nodes can be given back and used again.

use farwood_index::{AnyIndex, CheckOptions, CheckReport, GiveBackError, MemoryReport};
use farwood_runtime::Verbs;

use super::phases::{Run, Visitor, check};
use crate::scenario::Scenario;
use crate::shard::Steerable;

/// New nodes that a client has in hand at most: its own, and those of dropped operations.
const NODES_IN_HAND: u64 = 4;

/// An index's handle, and whether its compute node is alive.
type Handle<'i> = (&'i AnyIndex<Steerable>, bool);

impl Run<'_> {
    /// Checks that nodes that were allocated and not given back are in the tree, or were taken out of it and noted; but
    /// for those that clients had in hand whose compute node stopped, and those of which no client can know. In bytes.
    pub(super) fn count_nodes(&self, handles: &[Handle<'_>], report: &CheckReport) -> Result<(), String> {
        let (in_tree, in_hand) = (report.survey.used_bytes, self.in_hand());
        let (mut nodes, mut retired, mut unsettled) = (0_i64, 0, 0);
        for (index, _) in handles {
            let books = index.books();
            nodes += books.used_bytes - index.intent_bytes() as i64;
            retired += books.retired_bytes;
            unsettled += books.unsettled_bytes;
        }
        // A client that stopped may have noted a node as retired, and not have come to take it out.
        let least = (in_tree + retired).saturating_sub(in_hand);
        let most = in_tree + retired + unsettled + in_hand;
        // The walk goes around what is torn.
        if report.torn.is_empty() && !(least as i64..=most as i64).contains(&nodes) {
            return Err(format!(
                "{nodes} bytes of nodes are allocated, {in_tree} are in the tree, {retired} were retired, {unsettled} \
                 unsettled, and clients that died had at most {in_hand} in hand"
            ));
        }
        Ok(())
    }

    /// Counts the bytes of nodes that clients had in hand at most whose compute node stopped.
    fn in_hand(&self) -> u64 {
        let Scenario { cluster, work, .. } = self.scenario;
        let clients = self.crew.dead().len() as u64 * u64::from(cluster.shards) * u64::from(work.clients);
        self.scenario.spec().bytes_in_hand() * NODES_IN_HAND * clients
    }

    /// Checks that no memory is lost at rest: what the tree does not reach of that which the servers have handed out is
    /// in some shard's lists, or was retired. Left out are what clients of stopped compute nodes had in hand, what was
    /// asked for and its reply not heard, and nodes of which nothing tells who has taken them out. And no byte that is
    /// free is a node's, or in two lists.
    pub(super) fn account(&self, handles: &[Handle<'_>], report: &CheckReport) -> Result<(), String> {
        let memory = report.memory.as_ref().ok_or("the servers do not say what they have handed out")?;
        // What servers keep for the next is in no list.
        let mut lists = memory.rests.clone();
        for (index, _) in handles.iter().filter(|(_, is_alive)| *is_alive) {
            for (at, bytes) in index.free_extents() {
                if let Some(shared) = memory.reached.first_shared(at, bytes) {
                    return Err(format!("{shared} is a node's and free as well, with {bytes} bytes at {at}"));
                }
                if let Some(shared) = lists.add(at, bytes) {
                    return Err(format!("{shared} is free twice, once with {bytes} bytes at {at}"));
                }
            }
        }
        let chunk = self.simulation.cluster().mapped()[0].info(farwood_runtime::ServerId(0)).chunk_bytes;
        let (mut known, mut perhaps) = (0, self.simulation.bytes_lost() + self.in_hand());
        for (index, _) in handles {
            let books = index.books();
            known += books.free_bytes + books.retired_bytes;
            perhaps += books.unsettled_bytes + u64::from(books.asks) * chunk;
        }
        let unreached = memory.unreached_bytes;
        // A slot may lead to a leaf that was removed, or a node that has moved: retired, and reached still.
        let intents: u64 = handles.iter().map(|(index, _)| index.intent_bytes()).sum();
        let beside_nodes = memory.reached.bytes().saturating_sub(report.survey.used_bytes);
        let still_reached = beside_nodes.saturating_sub(intents);
        // A page of which it is not known whether it is in the list stays with its table, or is lost with it.
        perhaps += intents.saturating_sub(beside_nodes);
        let swept = self.simulation.bytes_taken_back();
        let least = known.saturating_sub(self.in_hand() + still_reached + swept);
        if report.torn.is_empty() && !(least..=known + perhaps).contains(&unreached) {
            return Err(format!(
                "{unreached} bytes are handed out and not reached, {known} are in lists or retired, and {perhaps} may \
                 be lost with clients that died, and replies"
            ));
        }
        Ok(())
    }

    /// Gives back what was lost, when all compute nodes have ended, and lets another one work with it: it finds what
    /// was there, and finds what it writes.
    pub(super) fn repair(&self) -> Result<(), String> {
        self.until_idle()?;
        for place in 0..self.simulation.nodes() {
            self.simulation.cluster().died(self.simulation.shard(place, 0).node_id());
        }
        let spec = self.scenario.spec().with_options(|options| options.intent_log = false);
        let visitor = self.visitor(spec)?;
        let report = self.check_as(&visitor)?;
        let memory = accounts(&report)?;
        if memory.others > 0 {
            return Err(format!("{} others are connected, though all have ended", memory.others));
        }
        let (index, found) = (visitor.indexes[0].clone(), report.clone());
        let shard = &visitor.shards[0];
        let freed = match self.block_on(shard, async move { index.give_back(&found).await })? {
            Ok(freed) => freed,
            Err(GiveBackError::LocksOfTheDead { .. } | GiveBackError::NotIntact { violations: 0, .. }) => {
                return Ok(());
            }
            Err(error) => return Err(format!("memory cannot be given back: {error}")),
        };
        let after = self.check_as(&visitor)?;
        let left = accounts(&after)?;
        let is_given_back = left.unreached_bytes == memory.led_to_bytes
            && left.rest_bytes == memory.rest_bytes + freed
            && left.chunk_bytes == memory.chunk_bytes;
        if !is_given_back {
            let (unreached, rests) = (left.unreached_bytes, left.rest_bytes);
            return Err(format!(
                "{freed} bytes were given back: {unreached} are unreached, {rests} are rests"
            ));
        }
        let worker = self.visitor(self.scenario.spec().with_options(|options| options.retries_max = 500))?;
        self.visit(&worker, self.looks())?;
        self.until_idle()?;
        let report = self.check_as(&worker)?;
        let handles: Vec<_> = worker.indexes.iter().map(|index| (index, true)).collect();
        for (at, bytes) in handles.iter().flat_map(|(index, _)| index.free_extents()) {
            if let Some(shared) = accounts(&report)?.reached.first_shared(at, bytes) {
                return Err(format!("after the repair {shared} is a node's, and free as well"));
            }
        }
        Ok(())
    }

    fn check_as(&self, visitor: &Visitor) -> Result<CheckReport, String> {
        // Those that have ended well hold nothing: the word of one would be found.
        let options = CheckOptions { dead: self.crew.dead(), ..CheckOptions::default() };
        let (index, shard) = (visitor.indexes[0].clone(), &visitor.shards[0]);
        let verbs = Steerable::from(shard.clone());
        let crew = std::rc::Rc::clone(&self.crew);
        self.block_on(shard, check(crew, index, verbs, visitor.who, options))?
    }
}

fn accounts(report: &CheckReport) -> Result<&MemoryReport, String> {
    report.memory.as_ref().ok_or_else(|| "the servers do not say what they have handed out".into())
}
