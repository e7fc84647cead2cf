//! Many clients of one shard that need memory at the same time, while the control service takes its time.

use std::rc::Rc;

use farwood_runtime::epoch::Pins;
use farwood_runtime::sim::{SimConfig, Simulation};
use farwood_runtime::{IndexId, NodeAllocator, Verbs};
use futures::FutureExt;
use futures::future::join_all;

const CHUNK_BYTES: u64 = 64 << 10;
const NODE_BYTES: u64 = 1 << 10;

/// Over sockets every client took a chunk of its own while the first one was on its way, and a server of 2 GiB was full
/// when it held 300 MiB.
#[test]
fn clients_of_a_shard_take_one_chunk_between_them() {
    for seed in 0..20 {
        let config = SimConfig { seed, slow_control: true, chunk_bytes: CHUNK_BYTES, ..SimConfig::default() };
        let simulation = Simulation::new(&config).unwrap();
        let shard = simulation.shard(0, 0);
        let control = shard.control().clone();
        let allocator = Rc::new(NodeAllocator::new(control.clone(), IndexId(1), 0, Pins::alone()));
        let clients = CHUNK_BYTES / NODE_BYTES;
        let all = (0..clients).map(|_| {
            let allocator = Rc::clone(&allocator);
            shard.spawn(async move { allocator.allocate(NODE_BYTES).await.unwrap() })
        });
        let all = join_all(all);
        let done = Rc::new(std::cell::Cell::new(false));
        let ended = Rc::clone(&done);
        drop(shard.spawn(async move {
            all.await;
            ended.set(true);
        }));
        simulation.run(u64::MAX, || done.get()).unwrap();
        let mut usage = Box::pin(control.usage());
        let usage = std::iter::repeat_with(|| (&mut usage).now_or_never()).flatten().next().unwrap().unwrap();
        assert_eq!(usage.iter().map(|server| server.chunk_bytes).sum::<u64>(), CHUNK_BYTES);
    }
}
