//! The index of an experiment: made, loaded, attached to every shard, caches as warm as the experiment wants them.
//! Knows the kinds of indexes, and nothing of what clients do.

use farwood_index::sherman::{self, NodeSize, Sherman};
use farwood_index::smart::{self, Smart, Types};
use farwood_index::{AnyIndex, Bytes, IndexError, RangeIndex};
use farwood_runtime::sim::{SimShard, Simulation};

use super::cluster::Setup;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tree {
    /// Sherman with these techniques and nodes.
    Sherman(sherman::Techniques, NodeSize),
    /// SMART, or ART without its techniques.
    Smart(smart::Techniques),
}

/// What caches know before the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warm {
    /// Every inner node.
    All,
    /// What a compute node has met that has inserted its share of the keys.
    Share,
}

/// The handles of all shards, node by node.
pub(super) type Indexes = Vec<(SimShard, AnyIndex<SimShard>)>;

/// Nobody waits longer for the load.
const LOAD_NS: u64 = 1_000_000_000_000;
/// Fewer than an inner node of Sherman has below it, where nodes are large.
const KEYS_PER_INNER_NODE: usize = 500;

/// An index as a compute node sees it.
enum Opened {
    Sherman(Sherman),
    Smart(Smart),
}

impl Opened {
    fn attach(&self, shard: SimShard) -> AnyIndex<SimShard> {
        match self {
            Opened::Sherman(tree) => tree.attach(shard).into(),
            Opened::Smart(tree) => tree.attach(shard).into(),
        }
    }
}

/// Makes and loads the tree, and attaches every shard to it, caches warm.
pub(super) fn open(simulation: &Simulation, setup: &Setup, stored: &[Bytes]) -> Result<Indexes, String> {
    let mut indexes = Vec::new();
    for node in 0..setup.machines.nodes {
        let tree = futures::executor::block_on(open_on(simulation, setup, node));
        let tree = tree.map_err(|error| error.to_string())?;
        for shard in 0..setup.machines.cores {
            let shard = simulation.shard(node, shard);
            let index = tree.attach(shard.clone());
            indexes.push((shard, index));
        }
        if node == 0 {
            load(simulation, setup, &indexes[0], stored)?;
        }
    }
    warm(simulation, setup, &indexes, stored)?;
    Ok(indexes)
}

/// The tree as that compute node sees it. The first one creates it.
async fn open_on(simulation: &Simulation, setup: &Setup, node: u16) -> Result<Opened, IndexError> {
    const NAME: &str = "paper";
    let host = &*simulation.node(node);
    let (max_key, max_value) = (setup.key_bytes, setup.value_bytes);
    // The papers' clients spin without a pause, for as long as it takes.
    let (backoff_ns, lock_wait_ns_max) = ((0, 0), u64::MAX);
    Ok(match setup.tree {
        Tree::Sherman(techniques, size) => {
            let options =
                sherman::Options { techniques, backoff_ns, lock_wait_ns_max, ..sherman::Options::default() };
            Opened::Sherman(match node {
                0 => {
                    let geometry = sherman::Geometry { max_key, max_value, size };
                    Sherman::create(host, NAME, geometry, options).await?
                }
                _ => Sherman::open(host, NAME, options).await?,
            })
        }
        Tree::Smart(techniques) => {
            let options =
                smart::Options { techniques, backoff_ns, lock_wait_ns_max, ..smart::Options::default() };
            Opened::Smart(match node {
                0 => {
                    let geometry = smart::Geometry { max_key, max_value, types: Types::Lines };
                    Smart::create(host, NAME, geometry, options).await?
                }
                _ => Smart::open(host, NAME, options).await?,
            })
        }
    })
}

fn load(
    simulation: &Simulation,
    setup: &Setup,
    (shard, index): &(SimShard, AnyIndex<SimShard>),
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
    let touching = match (setup.warm, setup.tree) {
        (Warm::Share, _) => Vec::new(),
        (Warm::All, Tree::Sherman(_, size)) => {
            let geometry = sherman::Geometry { max_key: setup.key_bytes, max_value: setup.value_bytes, size };
            let (leaf, inner) = geometry.layouts().map_err(|error| error.to_string())?;
            let step = (leaf.slots() * inner.slots() / 4).clamp(1, KEYS_PER_INNER_NODE);
            stored.iter().step_by(step).cloned().collect()
        }
        (Warm::All, Tree::Smart(_)) => one_per_radix_node(stored),
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

/// Of ascending keys so many that the ways to them meet every inner node of a radix tree: one for each lowest node.
fn one_per_radix_node(keys: &[Bytes]) -> Vec<Bytes> {
    let shared = |a: &[u8], b: &[u8]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let mut chosen: Vec<Bytes> = Vec::new();
    let mut left = 0;
    let mut node: Option<&[u8]> = None;
    for (at, key) in keys.iter().enumerate() {
        let right = keys.get(at + 1).map_or(0, |next| shared(key, next));
        // A leaf hangs at the inner node where its key leaves the nearer of its neighbours.
        let lowest = &key[..left.max(right)];
        if node != Some(lowest) {
            chosen.push(key.clone());
            node = Some(lowest);
        }
        left = right;
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lowest_node_is_met_once() {
        let keys: Vec<Bytes> = ["aaa", "aab", "ab", "b", "cccx", "cccy", "cd"]
            .iter()
            .map(|key| Bytes::from_slice(key.as_bytes()))
            .collect();
        let chosen = one_per_radix_node(&keys);
        // Below "aa", "a", the root, "ccc" and "c".
        let expected = ["aaa", "ab", "b", "cccx", "cd"].map(|key| Bytes::from_slice(key.as_bytes()));
        assert_eq!(chosen, expected);
        assert!(one_per_radix_node(&[]).is_empty());
    }
}
