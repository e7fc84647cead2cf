//! A shard for benchmarks: it runs batches of client work on request.

use std::future::Future;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use farwood::runtime::{Chain, Meter, RemotePtr, ServerId};
use farwood::{Cluster, ComputeNode, EmbeddedConfig, NodeConfig, Shard, Verbs};
use futures::StreamExt;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::future::join_all;

/// Clients of the shard's pool that share a batch.
pub(crate) const CLIENTS: u64 = 64;
/// Operations of a batch: enough that starting it does not count.
pub(crate) const BATCH: u64 = CLIENTS * 256;
/// Bytes of the memory server: more than the caches of a core hold.
pub(crate) const REGION_BYTES: u64 = 256 << 20;

/// A shard on a thread of its own.
pub(crate) struct Batches {
    go: Option<UnboundedSender<()>>,
    done: Receiver<()>,
    shard: Option<JoinHandle<()>>,
}

impl Batches {
    /// Starts the shard and calls `setup` on it. For each batch, each of [`CLIENTS`] runs the future that what `setup`
    /// returned makes from the client's number.
    pub(crate) fn new<S, W, F>(setup: S) -> Self
    where
        S: Fn(Shard) -> W + Clone + Send + 'static,
        W: Fn(u64) -> F + 'static,
        F: Future<Output = ()> + 'static,
    {
        let (go, requests) = unbounded();
        let (finished, done) = channel();
        let requests = Arc::new(Mutex::new(Some((requests, finished))));
        let shard = std::thread::spawn(move || {
            let config = EmbeddedConfig { bytes_per_server: REGION_BYTES, ..EmbeddedConfig::default() };
            let cluster = Cluster::embedded(config).expect("there is memory");
            let node = ComputeNode::new(cluster, NodeConfig { shards: 1, ..NodeConfig::default() }).unwrap();
            node.run(move |shard| {
                let work = setup(shard.clone());
                let ends = requests.lock().expect("one shard").take();
                async move {
                    let (mut requests, finished): (_, Sender<()>) = ends.expect("one shard");
                    touch(&shard).await;
                    while requests.next().await.is_some() {
                        join_all((0..CLIENTS).map(|client| shard.spawn(work(client)))).await;
                        finished.send(()).expect("the benchmark waits");
                    }
                }
            })
            .expect("the shard starts");
        });
        Batches { go: Some(go), done, shard: Some(shard) }
    }

    /// Runs one batch.
    pub(crate) fn run(&self) {
        let go = self.go.as_ref().expect("the shard lives as long as this");
        go.unbounded_send(()).expect("the shard waits for it");
        self.done.recv().expect("the shard has run the batch");
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.go = None;
        let ended = self.shard.take().expect("dropped once").join();
        assert!(ended.is_ok() || std::thread::panicking(), "the shard panicked");
    }
}

/// Has the system give the region its memory, but for the locks in front.
async fn touch(shard: &Shard) {
    for page in (2 << 20..REGION_BYTES).step_by(4096) {
        let mut chain = Chain::new(ServerId(0));
        chain.write_word(RemotePtr::new(ServerId(0), page), 1);
        shard.submit(&Meter::default(), chain).await.expect("inside the region");
    }
}
