//! Clients on an index that forgets everything: they must find out, and their own cost can be measured.

use farwood::runtime::{NodeContext, Verbs};
use farwood::{
    AccessError, Cluster, ComputeNode, EmbeddedConfig, IndexStats, KeyRange, LoadError, NodeConfig,
    ReadError, Scan, TreeShape, Value, WriteError,
};

use super::*;
use crate::args::{self, Command, Request};
use crate::config::BenchConfig;
use crate::interrupt::Interrupt;
use crate::progress::Progress;

/// An index that forgets everything at once: what remains of an operation is the client's own work.
#[derive(Clone)]
struct Forgetful;

impl RangeIndex for Forgetful {
    async fn get(&self, _key: &[u8]) -> Result<Option<Value>, ReadError> {
        Ok(None)
    }
    async fn put(&self, _key: &[u8], _value: &[u8]) -> Result<(), WriteError> {
        Ok(())
    }
    async fn insert(&self, _key: &[u8], _value: &[u8]) -> Result<bool, WriteError> {
        Ok(true)
    }
    async fn update(&self, _key: &[u8], _value: &[u8]) -> Result<bool, WriteError> {
        Ok(true)
    }
    async fn remove(&self, _key: &[u8]) -> Result<bool, WriteError> {
        Ok(false)
    }
    fn scan(&self, _range: impl KeyRange, _limit: Option<usize>) -> Scan {
        futures::stream::empty().boxed_local()
    }
    async fn multi_get<K: AsRef<[u8]>>(&self, _keys: &[K]) -> Result<Vec<Option<Value>>, ReadError> {
        Ok(Vec::new())
    }
    async fn bulk_load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: impl IntoIterator<Item = (K, V)>,
        _fill: f64,
    ) -> Result<u64, LoadError> {
        Ok(pairs.into_iter().count() as u64)
    }
    async fn survey(&self) -> Result<TreeShape, AccessError> {
        Ok(TreeShape::default())
    }
    fn stats(&self) -> IndexStats {
        IndexStats::default()
    }
}

/// Runs one client of `workload` on the forgetful index for `ops` operations. Yields ns per operation, and the first
/// error.
fn run_forgetful(workload: &str, ops: u64) -> (f64, Option<CliError>) {
    let words = ["farwood", "bench", "--workload", workload, "--shards", "1", "--clients", "1"];
    let Ok(Request::Run(cli)) = args::parse(words) else { panic!("a good command line") };
    let Command::Bench(args) = cli.command else { panic!("a benchmark") };
    let config = BenchConfig::new(*args, 1).unwrap();
    let cluster =
        Cluster::embedded(EmbeddedConfig { bytes_per_server: 64 << 20, ..Default::default() }).unwrap();
    let node = ComputeNode::new(cluster, NodeConfig { shards: 1, ..NodeConfig::default() }).unwrap();
    assert_eq!(node.seed(), 1);
    let plan = Plan::new(config, Progress::new(1, false), Interrupt::default(), "t".to_owned());
    let shared = Arc::clone(&plan);
    let took = node.run(move |shard| {
        let plan = Arc::clone(&shared);
        async move {
            let target = IndexTarget::new(Forgetful, shard.clone(), plan.clone());
            let recorder = Rc::new(Recorder::new(shard.clone(), &plan.config));
            let pace = Rc::new(Pace::new(1, Some(ops), None));
            let mut client = target.client(0, 1, &pace, &recorder);
            let start_ns = shard.now();
            while let Some(start) = pace.next(&shard).await {
                if let Err(error) = client.step(start).await {
                    plan.first_error.set(error);
                    pace.stop();
                }
            }
            shard.now() - start_ns
        }
    });
    (took.unwrap()[0] as f64 / ops as f64, plan.first_error.take())
}

#[test]
fn an_index_that_forgets_is_found_out() {
    for (workload, part) in
        [("ycsb-c", "found nothing"), ("ycsb-a", "found nothing"), ("range-only", "0 entries")]
    {
        let error = run_forgetful(workload, 100).1.expect("a failed check");
        assert!(matches!(&error, CliError::Check(what) if what.contains(part)), "{error}");
    }
    assert!(run_forgetful("write-only", 1000).1.is_none());
}

/// Measures the clients' own cost: `cargo test --release -p farwood-cli overhead -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn overhead_per_operation() {
    for workload in ["write-only", "load"] {
        let (ns, _) = run_forgetful(workload, 20_000_000);
        println!("{workload}: {ns:.1} ns");
    }
}
