//! A demonstration of the service: a client sends it requests, while other clients of the same index, inside the
//! service, keep its cores busy. A busy shard still lets the executor look at its sockets, every 500 us
//! (`NodeConfig::reactor_interval`).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use farwood::runtime::clock::Clock;
use farwood::{RangeIndex, Shard, ShermanIndex};
use futures::future::{join_all, try_join_all};
use futures::{AsyncBufReadExt, AsyncWriteExt};
use glommio::net::TcpStream;
use glommio::timer;

use super::{Failure, REQUESTS, Service};

const CONNECTIONS: usize = 4;

/// Set while the other clients work, with a count of what they have done.
#[derive(Default)]
pub(super) struct Load {
    busy: AtomicBool,
    operations: AtomicU64,
}

/// Runs clients of the shard's own pool on the index while `busy` is set.
pub(super) async fn background(service: Arc<Service>, shard: Shard, index: ShermanIndex<Shard>) {
    loop {
        timer::sleep(Duration::from_millis(5)).await;
        let clients = (0..32_u64).filter(|_| service.load.busy.load(Relaxed)).map(|client| {
            let (service, index) = (Arc::clone(&service), index.clone());
            shard.spawn(async move {
                for n in 0_u64.. {
                    let key = ((client << 32) | (n % 1000)).to_be_bytes();
                    if n.is_multiple_of(2) {
                        index.put(&key, &key).await.expect("the background's writes fit into the memory");
                    } else {
                        index.get(&key).await.expect("the memory is in this process");
                    }
                    service.load.operations.fetch_add(1, Relaxed);
                    if !service.load.busy.load(Relaxed) {
                        return;
                    }
                }
            })
        });
        join_all(clients).await;
    }
}

/// Sends the service requests, once while it is idle and once while it is busy.
pub(super) async fn run(service: &Service) -> Result<(), Failure> {
    let address = *service.address.lock().expect("no core panicked");
    for (busy, name) in [(false, "an idle service"), (true, "32 more clients per core at work")] {
        service.load.busy.store(busy, Relaxed);
        timer::sleep(Duration::from_millis(20)).await;
        let (clock, before) = (Clock::new(), service.load.operations.load(Relaxed));
        let mut latencies = try_join_all((0..CONNECTIONS).map(|n| requests(address, n))).await?.concat();
        let background = (service.load.operations.load(Relaxed) - before) as f64 / clock.now() as f64 * 1e3;
        latencies.sort_unstable();
        let us = |quantile: f64| latencies[((latencies.len() - 1) as f64 * quantile) as usize] as f64 / 1e3;
        let (p50, p90, p99, max, requests) = (us(0.5), us(0.9), us(0.99), us(1.0), latencies.len());
        println!("{name}: {requests} requests, {background:.2} M other operations/s");
        println!("  latency p50 {p50:.0} us, p90 {p90:.0} us, p99 {p99:.0} us, max {max:.0} us");
    }
    Ok(())
}

/// Requests of one connection, one after the other with pauses between them. Yields their latencies in ns.
async fn requests(address: SocketAddr, connection: usize) -> Result<Vec<u64>, Failure> {
    let mut stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?.buffered();
    let (clock, mut latencies) = (Clock::new(), Vec::new());
    for n in 0..75 {
        let exchanges = [
            (format!("PUT key-{connection}-{n:03} value-{n}"), "OK".into()),
            (format!("GET key-{connection}-{n:03}"), format!("VALUE value-{n}")),
            (format!("SCAN key-{connection}-{n:03} 1"), format!("PAIR key-{connection}-{n:03} value-{n}")),
            (format!("GOT key-{connection}-{n:03}"), format!("ERROR {REQUESTS}")),
        ];
        for (request, expected) in exchanges {
            let begun = clock.now();
            stream.write_all(format!("{request}\n").as_bytes()).await?;
            let mut reply = String::new();
            stream.read_line(&mut reply).await?;
            latencies.push(clock.now() - begun);
            if reply.trim_end() != expected {
                return Err(io::Error::other(format!("{request:?} was answered by {reply:?}")).into());
            }
            if request.starts_with("SCAN") {
                stream.read_line(&mut reply).await?;
            }
            timer::sleep(Duration::from_millis(1)).await;
        }
    }
    Ok(latencies)
}
