//! A service that runs one glommio executor per core, with a Farwood shard attached to each: the way to embed an index.
//! Every core serves its own connections from ordinary glommio tasks; nothing but Farwood is shared between them.
//!
//! ```text
//! request          reply, one line each
//! GET key          VALUE value | NONE
//! PUT key value    OK
//! DEL key          OK | NONE
//! SCAN from n      PAIR key value, n times at most, then END
//! anything else    ERROR and what is wrong
//! ```
//!
//! `cargo run --example per_core_service` serves on a free port of the loopback, sends itself requests, prints their
//! latencies and ends. With `-- --listen 127.0.0.1:7000` it serves until it is killed.

mod demo;

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farwood::sherman::{Geometry, NodeSize, Options};
use farwood::{
    Cluster, ComputeNode, EmbeddedConfig, NodeConfig, RangeIndex, Shard, Sherman, ShermanIndex, run_executor,
};
use futures::executor::block_on;
use futures::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, TryStreamExt};
use glommio::net::{TcpListener, TcpStream};
use glommio::{LocalExecutorBuilder, Placement, PoolPlacement, timer};

type Failure = Box<dyn Error>;

const GEOMETRY: Geometry = Geometry { max_key: 32, max_value: 128, size: NodeSize::Bytes(4096) };
const LINE_BYTES_MAX: u64 = 256;
const SCAN_PAIRS_MAX: usize = 1000;
const REQUESTS: &str = "expected GET key, PUT key value, DEL key or SCAN from n";
const USAGE: &str = "usage: per_core_service [--listen ADDRESS:PORT]";

/// State that the cores share.
struct Service {
    node: Arc<ComputeNode>,
    index: Sherman,
    address: Mutex<SocketAddr>,
    load: demo::Load,
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let listen: Option<SocketAddr> = match &args[..] {
        [] => None,
        [flag, address] if flag == "--listen" => Some(address.parse().map_err(|_| USAGE)?),
        _ => return Err(USAGE.into()),
    };
    // The demo leaves a core to its client, if there are two.
    let cores = std::thread::available_parallelism()?.get();
    let shards = if listen.is_some() { cores } else { (cores - 1).max(1) };

    let cluster =
        Cluster::embedded(EmbeddedConfig { bytes_per_server: 256 << 20, ..EmbeddedConfig::default() })?;
    let node = ComputeNode::new(cluster, NodeConfig { shards, ..NodeConfig::default() })?;
    let index = block_on(Sherman::create(&node, "service", GEOMETRY, Options::default()))?;
    let address = Mutex::new(listen.unwrap_or((Ipv4Addr::LOCALHOST, 0).into()));
    let service = Arc::new(Service { node, index, address, load: demo::Load::default() });

    let (started, starts) = channel();
    let (on_core, is_demo) = (Arc::clone(&service), listen.is_none());
    let mut cores = PoolPlacement::MaxSpread(shards, None).generate_cpu_set()?;
    let executors: Vec<_> = (0..shards)
        .map(|_| {
            let placement = cores.next().next().map_or(Placement::Unbound, |core| Placement::Fixed(core.cpu));
            let (on_core, started) = (Arc::clone(&on_core), started.clone());
            std::thread::spawn(move || match LocalExecutorBuilder::new(placement).make() {
                Ok(executor) => run_executor(&executor, serve(on_core, started, is_demo)),
                Err(error) => started.send(Err(error.to_string())).expect("main waits for it"),
            })
        })
        .collect();
    for _ in 0..shards {
        starts.recv()??;
    }
    println!("{shards} shards serve {}", service.address.lock().expect("no core panicked"));
    if !is_demo {
        executors.into_iter().for_each(|executor| executor.join().expect("no core panicked"));
        return Ok(());
    }
    // The executors end with the process.
    run_executor(&LocalExecutorBuilder::new(Placement::Unbound).make()?, demo::run(&service))
}

/// Serves the connections of one core.
async fn serve(service: Arc<Service>, started: Sender<Result<(), String>>, is_demo: bool) {
    let (shard, index, listener) = match start(&service).await {
        Ok(parts) => parts,
        Err(error) => return started.send(Err(error.to_string())).expect("main waits for it"),
    };
    if is_demo {
        glommio::spawn_local(demo::background(Arc::clone(&service), shard, index.clone())).detach();
    }
    started.send(Ok(())).expect("main waits for it");
    loop {
        match listener.accept().await {
            Ok(stream) => glommio::spawn_local(converse(stream, index.clone())).detach(),
            Err(error) => {
                eprintln!("cannot accept: {error}");
                timer::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
    }
}

/// Embeds the index: a shard on this executor, the index on the shard.
async fn start(service: &Service) -> Result<(Shard, ShermanIndex<Shard>, TcpListener), Failure> {
    let shard = service.node.attach().await?;
    let index = service.index.attach(shard.clone());
    // All cores listen on one address, and the kernel spreads the connections over them (glommio sets SO_REUSEPORT).
    let mut address = service.address.lock().expect("no core panicked");
    let listener =
        TcpListener::bind(*address).map_err(|error| format!("cannot listen on {address}: {error}"))?;
    *address = listener.local_addr()?;
    Ok((shard, index, listener))
}

/// Serves one connection until its other end closes it.
async fn converse(stream: TcpStream, index: ShermanIndex<Shard>) {
    let mut stream = stream.buffered();
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut stream).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let whole = line.strip_suffix(b"\n");
        let mut reply = match whole {
            Some(request) => {
                answer(&index, request).await.unwrap_or_else(|error| format!("ERROR {error}").into())
            }
            None => format!("ERROR no end of line within {LINE_BYTES_MAX} bytes").into(),
        };
        reply.push(b'\n');
        if stream.write_all(&reply).await.is_err() || whole.is_none() {
            return;
        }
    }
}

async fn answer(index: &ShermanIndex<Shard>, request: &[u8]) -> Result<Vec<u8>, Failure> {
    let words: Vec<&[u8]> = request.trim_ascii_end().splitn(3, |byte| *byte == b' ').collect();
    Ok(match words[..] {
        [b"GET", key] => {
            index.get(key).await?.map_or(b"NONE".to_vec(), |value| [b"VALUE ", &*value].concat())
        }
        [b"PUT", key, value] => index.put(key, value).await.map(|()| b"OK".to_vec())?,
        [b"DEL", key] => {
            if index.remove(key).await? {
                b"OK".to_vec()
            } else {
                b"NONE".to_vec()
            }
        }
        [b"SCAN", from, limit] => {
            let limit: usize = std::str::from_utf8(limit)?.parse()?;
            let mut pairs = index.scan(from.., Some(limit.min(SCAN_PAIRS_MAX)));
            let mut reply = Vec::new();
            while let Some((key, value)) = pairs.try_next().await? {
                reply.extend([b"PAIR ", &key[..], b" ", &value[..], b"\n"].concat());
            }
            [&reply[..], b"END"].concat()
        }
        _ => return Err(REQUESTS.into()),
    })
}
