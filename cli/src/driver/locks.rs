//! The lock workload: acquire and release of 10,240 locks, without an index (Sherman figure 16).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use farwood::Host;
use farwood::lock::{LockConfig, LockTable};
use farwood::runtime::{Chain, Meter, Port, RemotePtr, Shard, Verbs};
use futures::future::{FutureExt, LocalBoxFuture, ready};
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

use crate::driver::counters::{Counters, Lane, Tally};
use crate::driver::pace::{Pace, Start};
use crate::driver::plan::Plan;
use crate::driver::recorder::Recorder;
use crate::driver::subject::{Client, Subject};
use crate::error::CliError;
use crate::report::{LockFigures, MemoryFigures};

/// The lock tables as one shard measures them.
pub(crate) struct LockSubject {
    table: LockTable<Shard>,
    plan: Arc<Plan>,
    tally: Rc<RefCell<Tally>>,
}

impl LockSubject {
    /// The locks on that shard. `port` is the same on all of them.
    pub(crate) fn new(shard: Shard, port: Port, plan: Arc<Plan>) -> Self {
        let techniques = plan.config.techniques.effective(shard.capabilities());
        let config = LockConfig {
            hierarchical: techniques.hierarchical,
            handover: techniques.handover,
            ..LockConfig::default()
        };
        LockSubject { table: LockTable::attach(shard, port, config), plan, tally: Rc::default() }
    }
}

impl Subject for LockSubject {
    type Client = LockClient;

    fn load<'a>(&'a self, _recorder: &'a Recorder) -> LocalBoxFuture<'a, Result<(), CliError>> {
        ready(Ok(())).boxed_local()
    }

    fn client(&self, _number: u32, seed: u64, _pace: &Rc<Pace>, recorder: &Rc<Recorder>) -> LockClient {
        LockClient {
            table: self.table.clone(),
            plan: Arc::clone(&self.plan),
            tally: Rc::clone(&self.tally),
            recorder: Rc::clone(recorder),
            rng: SmallRng::seed_from_u64(seed),
            bases: self.plan.node.control().servers().iter().map(|server| server.lock_base).collect(),
        }
    }

    fn counters(&self) -> Counters {
        let mut counters = Counters {
            locks: LockFigures::from(self.table.stats()),
            lock_table_bytes: self.table.bytes() as u64,
            ..Counters::default()
        };
        counters.lanes[Lane::Lock as usize] = self.tally.borrow().clone();
        counters
    }

    fn survey(&self) -> LocalBoxFuture<'_, Result<MemoryFigures, CliError>> {
        ready(Ok(MemoryFigures::default())).boxed_local()
    }
}

/// A logical client that takes and gives back locks.
pub(crate) struct LockClient {
    table: LockTable<Shard>,
    plan: Arc<Plan>,
    tally: Rc<RefCell<Tally>>,
    recorder: Rc<Recorder>,
    rng: SmallRng,
    bases: Box<[RemotePtr]>,
}

/// The distance between the nodes whose locks are taken. There are no nodes: a lock is found by the hash of an address.
const NODE_BYTES: u64 = 1024;

impl LockClient {
    fn choose(&mut self) -> RemotePtr {
        let rank = self.plan.ranks.sample(&mut self.rng);
        let servers = self.bases.len() as u64;
        let base = self.bases[(rank % servers) as usize];
        RemotePtr::new(base.server(), NODE_BYTES * (1 + rank / servers))
    }
}

impl Client for LockClient {
    async fn step(&mut self, start: Start) -> Result<(), CliError> {
        let failed = |error| CliError::Run(format!("a lock: {error}"));
        let timed = self.recorder.begin(self.rng.next_u32(), start.intended_ns);
        let node = self.choose();
        let meter = Meter::default();
        let mut held = self.table.acquire(node).await;
        held.lock(&meter).await.map_err(failed)?;
        let nothing = Chain::new(node.server());
        held.release(&meter, nothing, self.plan.config.techniques.combine).await.map_err(failed)?;
        self.recorder.end(Lane::Lock, timed);
        self.tally.borrow_mut().record(meter.usage());
        Ok(())
    }
}
