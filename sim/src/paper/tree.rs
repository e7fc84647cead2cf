//! The index of an experiment: made, loaded, attached to every shard, caches as warm as the experiment wants them.
//! Knows the kinds of indexes, and nothing of what clients do.

use std::time::Duration;

use farwood_index::chime;
use farwood_index::sherman::{self, NodeSize};
use farwood_index::smart::{self, Types};
use farwood_index::{
    AnyIndex, AnyTree, Backoff, Bytes, IndexError, IndexSpec, Limits, Nodes, OpenError, RangeIndex,
};
use farwood_runtime::sim::{SimShard, Simulation};

use super::cluster::Setup;
use crate::shard::Steerable;

/// All that Sherman's paper has.
pub(super) const SHERMAN: sherman::Techniques =
    sherman::Techniques { fused: false, image_handover: false, ..sherman::Techniques::ALL };

/// The index that is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tree {
    /// Sherman with these techniques and nodes.
    Sherman(sherman::Techniques, NodeSize),
    /// SMART, or ART without its techniques.
    Smart(smart::Techniques),
    /// CHIME with these techniques and nodes, whatever keys and values these say.
    Chime(chime::Techniques, chime::Geometry),
    /// An index of any kind with its usual nodes, whatever keys and values these say.
    Usual(IndexSpec),
}

impl Tree {
    /// Yields the index for keys and values of so many bytes. The papers' clients spin without a pause, for as long as
    /// it takes.
    pub(super) fn spec(self, max_key: usize, max_value: usize) -> IndexSpec {
        let spec = match self {
            Tree::Sherman(techniques, size) => {
                let geometry = sherman::Geometry { max_key, max_value, size };
                IndexSpec::Sherman {
                    geometry,
                    options: sherman::Options { techniques, ..Default::default() },
                }
            }
            Tree::Smart(techniques) => {
                let geometry = smart::Geometry { max_key, max_value, types: Types::Lines };
                IndexSpec::Smart { geometry, options: smart::Options { techniques, ..Default::default() } }
            }
            Tree::Chime(techniques, geometry) => {
                let geometry = chime::Geometry { max_key, max_value, ..geometry };
                IndexSpec::Chime { geometry, options: chime::Options { techniques, ..Default::default() } }
            }
            Tree::Usual(spec) => spec.sized(Limits { max_key, max_value }, Nodes::Usual),
        };
        spec.with_options(|options| {
            // The papers' trees record no intents.
            options.intent_log = false;
            options.backoff = Backoff::NONE;
            options.lock_wait_max = Duration::MAX;
        })
    }
}

/// The contents of caches before the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warm {
    /// Every inner node.
    All,
    /// The nodes that a compute node meets while it inserts its share of the keys.
    Share,
}

/// The handles of all shards, node by node.
pub(super) type Indexes = Vec<(SimShard, AnyIndex<Steerable>)>;

/// The longest time that a load may take.
const LOAD_NS: u64 = 1_000_000_000_000;

/// Makes and loads the tree, and attaches every shard to it, caches warm.
pub(super) fn open(simulation: &Simulation, setup: &Setup, stored: &[Bytes]) -> Result<Indexes, String> {
    let mut indexes = Vec::new();
    for node in 0..setup.machines.nodes {
        let tree = futures::executor::block_on(open_on(simulation, setup, node));
        let tree = tree.map_err(|error| error.to_string())?;
        for shard in 0..setup.machines.cores {
            let shard = simulation.shard(node, shard);
            let index = tree.attach(Steerable::from(shard.clone()));
            indexes.push((shard, index));
        }
        if node == 0 {
            load(simulation, setup, &indexes[0], stored)?;
        }
    }
    warm(simulation, setup, &indexes, stored)?;
    Ok(indexes)
}

/// Yields the tree as that compute node sees it. The first one creates it.
async fn open_on(simulation: &Simulation, setup: &Setup, node: u16) -> Result<AnyTree, OpenError> {
    const NAME: &str = "paper";
    let host = &*simulation.node(node);
    let spec = setup.tree.spec(setup.key_bytes, setup.value_bytes);
    let spec = spec.with_options(|options| options.cache_bytes = setup.cache_bytes);
    if node == 0 { spec.create(host, NAME).await } else { spec.open(host, NAME).await }
}

fn load(
    simulation: &Simulation,
    setup: &Setup,
    (shard, index): &(SimShard, AnyIndex<Steerable>),
    stored: &[Bytes],
) -> Result<(), String> {
    let (index, keys) = (index.clone(), stored.to_vec());
    let (value_bytes, fill) = (setup.value_bytes, setup.fill);
    let pairs = keys.into_iter().map(move |key| {
        let mut value = Bytes::from_slice(&key[..key.len().min(value_bytes)]);
        value.resize(value_bytes, 0);
        (key, value)
    });
    let load = async move { index.bulk_load(pairs, fill).await };
    let loaded = simulation.block_on(shard, LOAD_NS, load);
    loaded
        .map_err(|stop| format!("the load came to a stop: {stop:?}"))?
        .map_err(|error| error.to_string())
        .map(drop)
}

/// Fills the cache of every compute node.
fn warm(simulation: &Simulation, setup: &Setup, indexes: &Indexes, stored: &[Bytes]) -> Result<(), String> {
    let nodes = usize::from(setup.machines.nodes);
    let touching = match setup.warm {
        Warm::Share => Vec::new(),
        Warm::All => setup.tree.spec(setup.key_bytes, setup.value_bytes).touching(stored),
    };
    for node in 0..nodes {
        let (shard, index) = &indexes[node * usize::from(setup.machines.cores)];
        let index = index.clone();
        let keys: Vec<Bytes> = match setup.warm {
            Warm::All => touching.clone(),
            Warm::Share => stored.iter().skip(node).step_by(nodes).cloned().collect(),
        };
        let gets = async move {
            for key in keys {
                index.get(&key).await?;
            }
            Ok::<_, IndexError>(())
        };
        let warmed = simulation.block_on(shard, u64::MAX, gets);
        warmed
            .map_err(|stop| format!("the warm-up came to a stop: {stop:?}"))?
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}
