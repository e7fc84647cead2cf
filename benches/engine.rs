//! The path of a chain through a shard: submitted by a client of the pool, executed in a batch on memory of this
//! process, and back. The ceiling of every index operation.

mod kit;

use divan::Bencher;
use divan::counter::ItemsCount;
use farwood::Verbs;
use farwood::runtime::{Chain, Meter, RemotePtr, ServerId};
use kit::{BATCH, Batches, CLIENTS, REGION_BYTES};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

fn main() {
    divan::main();
}

/// READs at random places by 64 clients.
#[divan::bench(args = [64, 256, 1024])]
fn read(bencher: Bencher, bytes: usize) {
    let batches = Batches::new(move |shard| {
        move |client| {
            let shard = shard.clone();
            async move {
                let mut rng = SmallRng::seed_from_u64(client);
                let meter = Meter::default();
                for _ in 0..BATCH / CLIENTS {
                    let place = rng.random_range(0..REGION_BYTES / bytes as u64) * bytes as u64;
                    let mut chain = Chain::with_buffer(ServerId(0), shard.lease(bytes));
                    chain.read(RemotePtr::new(ServerId(0), place), 0..bytes);
                    let read = shard.submit(&meter, chain).await.expect("inside the region");
                    divan::black_box(read.into_buf());
                }
            }
        }
    });
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| batches.run());
}
