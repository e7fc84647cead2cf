//! The raw workload: READs of the bytes that a get reads, at random places, straight to the fabric: the ceiling for
//! gets. The places are those of the leaves of an index of that many keys, and each holds its own address, so that
//! reads are checked.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use farwood::index::KindStats;
use farwood::runtime::{Chain, Meter, RemotePtr};
use futures::future::{FutureExt, LocalBoxFuture, ready};
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

use crate::config::BenchConfig;
use crate::driver::bench_shard::BenchShard;
use crate::driver::counters::{Counters, OpClass};
use crate::driver::pace::{Pace, Start};
use crate::driver::plan::Plan;
use crate::driver::recorder::Recorder;
use crate::driver::target::{BenchTarget, Client};
use crate::error::CliError;
use crate::report::MemoryFigures;
use crate::workload::distribution::Distribution;

const WRITE_BYTES: usize = 64 << 10;
/// Coprime to any number of places below 2^32.
const PRIME: u64 = 4_294_967_291;

/// The memory that is read.
pub(crate) struct Area {
    chunks: Vec<RemotePtr>,
    places_per_chunk: u64,
}

impl Area {
    fn place(&self, number: u64, leaf_bytes: u64) -> RemotePtr {
        let (chunk, at) = (number / self.places_per_chunk, number % self.places_per_chunk);
        self.chunks[chunk as usize].add(at * leaf_bytes)
    }
}

/// The fabric as one shard measures it.
pub(crate) struct RawTarget<V> {
    shard: V,
    plan: Arc<Plan>,
    area: Arc<OnceLock<Area>>,
    tally: Rc<RefCell<KindStats>>,
}

impl<V: BenchShard> RawTarget<V> {
    /// Makes the target of one shard. All shards share `area`, which the first one's load fills.
    pub(crate) fn new(shard: V, area: Arc<OnceLock<Area>>, plan: Arc<Plan>) -> Self {
        RawTarget { shard, plan, area, tally: Rc::default() }
    }

    async fn allocate(&self) -> Result<Area, CliError> {
        let failed = |error| CliError::Run(format!("memory for the raw workload: {error}"));
        let (control, places) = (self.shard.control(), self.plan.places);
        let index = control.create(&self.plan.index_name, "raw", &[]).await.map_err(failed)?.id;
        let servers: Vec<_> = control.servers().iter().map(|server| server.id).collect();
        let leaf_bytes = self.plan.config.spec.leaf_bytes() as u64;
        let mut area = Area { chunks: Vec::new(), places_per_chunk: 0 };
        while (area.chunks.len() as u64 * area.places_per_chunk) < places {
            if self.plan.is_cut_short() {
                break;
            }
            let server = servers[area.chunks.len() % servers.len()];
            let chunk = control.chunk(server, index).await.map_err(failed)?;
            area.places_per_chunk = chunk.bytes / leaf_bytes;
            area.chunks.push(chunk.start);
        }
        Ok(area)
    }

    async fn fill(&self, area: &Area) -> Result<(), CliError> {
        let leaf_bytes = self.plan.config.spec.leaf_bytes();
        let batch = (WRITE_BYTES / leaf_bytes).max(1);
        let chunk_bytes = area.places_per_chunk as usize * leaf_bytes;
        for &chunk in area.chunks.iter().take_while(|_| !self.plan.is_cut_short()) {
            for offset in (0..chunk_bytes).step_by(batch * leaf_bytes) {
                let len = (batch * leaf_bytes).min(chunk_bytes - offset);
                let mut buf = self.shard.lease(len);
                buf.fill(0);
                for at in (0..len).step_by(leaf_bytes) {
                    let address = chunk.add((offset + at) as u64).to_bits();
                    buf[at..at + 8].copy_from_slice(&address.to_le_bytes());
                }
                let mut chain = Chain::with_buffer(chunk.server(), buf);
                chain.write(chunk.add(offset as u64), 0..len);
                let written = self.shard.submit(&Meter::default(), chain).await;
                written.map_err(|error| CliError::Run(format!("a write of the load: {error}")))?;
            }
        }
        Ok(())
    }
}

impl<V: BenchShard> BenchTarget<V> for RawTarget<V> {
    type Client = RawClient<V>;

    fn load<'a>(&'a self, _recorder: &'a Recorder<V>) -> LocalBoxFuture<'a, Result<u64, CliError>> {
        async move {
            let area = self.allocate().await?;
            self.fill(&area).await?;
            // No other shard sets it.
            let _ = self.area.set(area);
            Ok(0)
        }
        .boxed_local()
    }

    fn client(&self, _number: u32, seed: u64, _pace: &Rc<Pace>, recorder: &Rc<Recorder<V>>) -> RawClient<V> {
        RawClient {
            shard: self.shard.clone(),
            plan: Arc::clone(&self.plan),
            area: Arc::clone(&self.area),
            tally: Rc::clone(&self.tally),
            recorder: Rc::clone(recorder),
            rng: SmallRng::seed_from_u64(seed),
        }
    }

    fn counters(&self) -> Counters {
        Counters { read: *self.tally.borrow(), ..Counters::default() }
    }

    fn survey(&self) -> LocalBoxFuture<'_, Result<MemoryFigures, CliError>> {
        ready(Ok(MemoryFigures::default())).boxed_local()
    }
}

/// A logical client that reads.
pub(crate) struct RawClient<V> {
    shard: V,
    plan: Arc<Plan>,
    area: Arc<OnceLock<Area>>,
    tally: Rc<RefCell<KindStats>>,
    recorder: Rc<Recorder<V>>,
    rng: SmallRng,
}

impl<V: BenchShard> RawClient<V> {
    fn choose(&mut self) -> u64 {
        let rank = self.plan.ranks.sample(&mut self.rng);
        match self.plan.config.distribution {
            Distribution::Uniform => rank,
            // Popular places are not neighbours.
            _ => scramble(rank, self.plan.places),
        }
    }
}

fn scramble(rank: u64, places: u64) -> u64 {
    (u128::from(rank) * u128::from(PRIME) % u128::from(places)) as u64
}

impl<V: BenchShard> Client for RawClient<V> {
    #[inline]
    async fn step(&mut self, start: Start) -> Result<(), CliError> {
        let timed = self.recorder.begin(self.rng.next_u32(), start.intended_ns);
        let number = self.choose();
        let config: &BenchConfig = &self.plan.config;
        let Some(area) = self.area.get() else {
            return Err(CliError::Run("the memory to read was not made".to_owned()));
        };
        let place = area.place(number, config.spec.leaf_bytes() as u64);
        let meter = Meter::default();
        let read = self.shard.read(&meter, place, config.spec.get_bytes()).await;
        let buf = read.map_err(|error| CliError::Run(format!("a read: {error}")))?.into_buf();
        self.recorder.end(OpClass::Read, timed);
        self.tally.borrow_mut().record(meter.usage(), true, 0);
        if buf[..8] == place.to_bits().to_le_bytes() {
            return Ok(());
        }
        Err(CliError::Check(format!("a read at {place} returned something else")))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn scrambling_is_a_permutation() {
        for places in [1, 2, 1000, 65_536] {
            let seen: HashSet<u64> = (0..places).map(|rank| scramble(rank, places)).collect();
            assert_eq!(seen.len() as u64, places);
        }
    }
}
