//! The lock workload: acquire and release of 10,240 locks, without an index (Sherman figure 16).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use farwood::index::{IndexStats, KindStats};
use farwood::lock::{LockTable, on_chip_possible};
use farwood::runtime::{Chain, Meter, Port, RemotePtr, ServerId, Verbs};
use futures::future::{FutureExt, LocalBoxFuture, ready};
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

use crate::driver::bench_shard::BenchShard;
use crate::driver::counters::{Counters, OpClass};
use crate::driver::pace::{Pace, Start};
use crate::driver::plan::Plan;
use crate::driver::recorder::Recorder;
use crate::driver::target::{BenchTarget, Client};
use crate::error::CliError;
use crate::report::MemoryFigures;

/// The lock tables as one shard measures them.
pub(crate) struct LockTarget<V: Verbs> {
    shard: V,
    table: LockTable<V>,
    /// Set if the unlock goes with the last WRITE.
    combine: bool,
    plan: Arc<Plan>,
    tally: Rc<RefCell<KindStats>>,
}

impl<V: BenchShard> LockTarget<V> {
    /// Attaches the locks on one shard. `port` is the same on all of them.
    pub(crate) fn new(shard: V, port: Port, plan: Arc<Plan>) -> Self {
        let possible = on_chip_possible(shard.control().servers());
        let spec = plan.config.spec.effective(possible);
        let (config, combine) = (spec.locks(), spec.technique("combine") != Some(false));
        let table = LockTable::attach(shard.clone(), port, config);
        LockTarget { shard, table, combine, plan, tally: Rc::default() }
    }
}

impl<V: BenchShard> BenchTarget<V> for LockTarget<V> {
    type Client = LockClient<V>;

    fn load<'a>(&'a self, _recorder: &'a Recorder<V>) -> LocalBoxFuture<'a, Result<u64, CliError>> {
        ready(Ok(0)).boxed_local()
    }

    fn client(&self, _number: u32, seed: u64, _pace: &Rc<Pace>, recorder: &Rc<Recorder<V>>) -> LockClient<V> {
        LockClient {
            table: self.table.clone(),
            combine: self.combine,
            plan: Arc::clone(&self.plan),
            tally: Rc::clone(&self.tally),
            recorder: Rc::clone(recorder),
            rng: SmallRng::seed_from_u64(seed),
            servers: self.shard.control().servers().iter().map(|server| server.id).collect(),
        }
    }

    fn counters(&self) -> Counters {
        let (locks, lock_table_bytes) = (self.table.stats(), self.table.bytes() as u64);
        let index = IndexStats { locks, lock_table_bytes, ..IndexStats::default() };
        Counters { index, lock: *self.tally.borrow(), ..Counters::default() }
    }

    fn survey(&self) -> LocalBoxFuture<'_, Result<MemoryFigures, CliError>> {
        ready(Ok(MemoryFigures::default())).boxed_local()
    }
}

/// A logical client that takes and gives back locks.
pub(crate) struct LockClient<V: Verbs> {
    table: LockTable<V>,
    combine: bool,
    plan: Arc<Plan>,
    tally: Rc<RefCell<KindStats>>,
    recorder: Rc<Recorder<V>>,
    rng: SmallRng,
    servers: Box<[ServerId]>,
}

/// The distance between the nodes whose locks are taken. There are no nodes: a lock is found by the hash of an address.
const NODE_BYTES: u64 = 1024;

impl<V: BenchShard> LockClient<V> {
    fn choose(&mut self) -> RemotePtr {
        let rank = self.plan.ranks.sample(&mut self.rng);
        let servers = self.servers.len() as u64;
        let server = self.servers[(rank % servers) as usize];
        RemotePtr::new(server, NODE_BYTES * (1 + rank / servers))
    }
}

impl<V: BenchShard> Client for LockClient<V> {
    async fn step(&mut self, start: Start) -> Result<(), CliError> {
        let failed = |error| CliError::Run(format!("a lock: {error}"));
        let timed = self.recorder.begin(self.rng.next_u32(), start.intended_ns);
        let node = self.choose();
        let meter = Meter::default();
        let mut held = self.table.acquire(&meter, node).await.map_err(failed)?;
        held.lock(&meter).await.map_err(failed)?;
        let nothing = Chain::new(node.server());
        held.release(&meter, nothing, self.combine).await.map_err(failed)?;
        self.recorder.end(OpClass::Lock, timed);
        self.tally.borrow_mut().record(meter.usage(), true, 0);
        Ok(())
    }
}
