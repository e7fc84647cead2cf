//! Acquire and release of locks by 64 clients of one shard: apart from each other, and all of one lock, where the local
//! queue and the hand-over do the work.

mod kit;

use divan::Bencher;
use divan::counter::ItemsCount;
use farwood::lock::{LockConfig, LockTable};
use farwood::runtime::{Chain, Meter, Port, RemotePtr, ServerId};
use kit::{BATCH, Batches, CLIENTS};

fn main() {
    divan::main();
}

#[divan::bench]
fn uncontended(bencher: Bencher) {
    acquire_and_release(bencher, CLIENTS);
}

#[divan::bench]
fn handed_over(bencher: Bencher) {
    acquire_and_release(bencher, 1);
}

fn acquire_and_release(bencher: Bencher, nodes: u64) {
    let batches = Batches::new(move |shard| {
        let table = LockTable::attach(shard, Port(0), LockConfig::default());
        move |client| {
            let table = table.clone();
            let node = RemotePtr::new(ServerId(0), (1 + client % nodes) * 1024);
            async move {
                let meter = Meter::default();
                for _ in 0..BATCH / CLIENTS {
                    let mut held = table.acquire(&meter, node).await.expect("it is not held for long");
                    held.lock(&meter).await.expect("it comes free");
                    held.release(&meter, Chain::new(ServerId(0)), true).await.expect("inside the region");
                }
            }
        }
    });
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| batches.run());
}
