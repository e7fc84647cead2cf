//! A tree at rest, read node by node with verbs and the public node formats, without the index's own code:
//! what [`farwood::RangeIndex::survey`] says is checked against it.

use std::collections::BTreeMap;

use farwood::index::layout::Header;
use farwood::runtime::{Buf, Chain, Meter, RemotePtr};
use farwood::sherman::Geometry;
use farwood::{RangeIndex, Verbs};

type Bytes = Vec<u8>;

/// The contents and the shape of a tree.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) pairs: BTreeMap<Bytes, Bytes>,
    /// Nodes of each level, leaves first.
    pub(crate) levels: Vec<usize>,
    /// Nodes that no parent knows: they are reached over their neighbours only.
    pub(crate) orphans: usize,
}

struct Node {
    ptr: RemotePtr,
    low: Bytes,
    high: Option<Bytes>,
    sibling: RemotePtr,
    children: Vec<(Bytes, RemotePtr)>,
    pairs: Vec<(Bytes, Bytes)>,
}

/// Reads the tree in `name` and asserts: levels are right, fences meet, separators lie in their node and lead
/// to the node that begins there, keys lie between their leaf's fences and only once.
pub(crate) async fn read(shard: &impl Verbs, name: &str, geometry: Geometry) -> Found {
    let entry = shard.control().open(name).await.unwrap();
    let word = super::number(&reversed(&read_bytes(shard, entry.root, 8).await));
    let mut found = Found::default();
    if word == 0 {
        return found;
    }
    let mut leftmost = RemotePtr::from_bits(word & !0x3f);
    let mut known: Option<BTreeMap<Bytes, RemotePtr>> = None;
    for level in (0..=(word & 0x3f) as u8).rev() {
        let nodes = read_level(shard, geometry, level, leftmost).await;
        match &known {
            None => assert_eq!(nodes.len(), 1, "the root has a neighbour: a separator is missing"),
            Some(known) => {
                let begins: BTreeMap<_, _> = nodes.iter().map(|node| (node.low.clone(), node.ptr)).collect();
                for (low, child) in known {
                    assert_eq!(
                        begins.get(low),
                        Some(child),
                        "level {level}: a separator leads nowhere: {low:?}"
                    );
                }
                found.orphans += begins.len() - known.len();
            }
        }
        found.levels.insert(0, nodes.len());
        leftmost = nodes[0].children.first().map_or(RemotePtr::NULL, |(_, child)| *child);
        known = Some(nodes.iter().flat_map(|node| node.children.iter().cloned()).collect());
        for (key, value) in nodes.into_iter().flat_map(|node| node.pairs) {
            assert!(found.pairs.insert(key.clone(), value).is_none(), "{key:?} is in the tree twice");
        }
    }
    found
}

/// Reads the tree and asserts that it holds exactly `expected`, that no separator is missing, and that scan
/// and survey say the same.
pub(crate) async fn holds_exactly(
    shard: &impl Verbs,
    index: &impl RangeIndex,
    geometry: Geometry,
    expected: &BTreeMap<Bytes, Bytes>,
) -> Found {
    let found = read(shard, super::NAME, geometry).await;
    assert_eq!(found.orphans, 0, "separators are missing");
    same(&found.pairs, expected);
    same(&super::all_pairs(index).await.into_iter().collect(), expected);
    let survey = index.survey().await.unwrap();
    assert_eq!(survey.keys, expected.len() as u64);
    assert_eq!(usize::from(survey.height), found.levels.len());
    let leaves = found.levels.first().copied().unwrap_or_default();
    let nodes: usize = found.levels.iter().sum();
    assert_eq!((survey.leaves, survey.inner_nodes), (leaves as u64, (nodes - leaves) as u64));
    found
}

fn same(found: &BTreeMap<Bytes, Bytes>, expected: &BTreeMap<Bytes, Bytes>) {
    for (key, value) in expected {
        assert_eq!(found.get(key), Some(value), "the value of {key:?}");
    }
    assert!(found.keys().all(|key| expected.contains_key(key)), "there are keys that should not be there");
}

async fn read_level(shard: &impl Verbs, geometry: Geometry, level: u8, leftmost: RemotePtr) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    let (mut at, mut begins) = (leftmost, Some(Bytes::new()));
    while !at.is_null() {
        let node = read_node(shard, geometry, level, at).await;
        assert_eq!(Some(&node.low), begins.as_ref(), "level {level}: fences do not meet at {at}");
        let inside = |key: &[u8]| *key >= *node.low && node.high.as_ref().is_none_or(|high| key < &high[..]);
        assert!(
            node.pairs.iter().all(|(key, _)| inside(key)),
            "level {level}: a key outside the fences of {at}"
        );
        assert!(node.children.iter().all(|(key, _)| inside(key)), "level {level}: a separator outside {at}");
        (at, begins) = (node.sibling, node.high.clone());
        nodes.push(node);
    }
    assert_eq!(begins, None, "level {level} ends too early");
    nodes
}

async fn read_node(shard: &impl Verbs, geometry: Geometry, level: u8, ptr: RemotePtr) -> Node {
    let (leaf, inner) = geometry.layouts().unwrap();
    let fences = |header: &Header<'_>, children, pairs| {
        assert_eq!(header.level(), level, "at {ptr}");
        let high = header.high().map(|high| high.to_vec());
        Node { ptr, low: header.low().to_vec(), high, sibling: header.sibling(), children, pairs }
    };
    if level == 0 {
        let image = read_bytes(shard, ptr, leaf.node_bytes()).await;
        let view = leaf.view(&image).unwrap();
        let pairs = view.entries().map(|entry| {
            let entry = entry.unwrap();
            (entry.key.to_vec(), entry.value.to_vec())
        });
        return fences(view.header(), Vec::new(), pairs.collect());
    }
    let image = read_bytes(shard, ptr, inner.node_bytes()).await;
    let view = inner.view(&image).unwrap();
    let children = view.entries().map(|entry| entry.map(|(key, child)| (key.to_vec(), child)).unwrap());
    fences(view.header(), children.collect(), Vec::new())
}

async fn read_bytes(shard: &impl Verbs, at: RemotePtr, bytes: usize) -> Buf {
    let mut chain = Chain::with_buffer(at.server(), shard.lease(bytes));
    chain.read(at, 0..bytes);
    shard.submit(&Meter::default(), chain).await.unwrap().into_buf()
}

/// Words of the fabric are little-endian.
fn reversed(word: &[u8]) -> Bytes {
    word[..8].iter().rev().copied().collect()
}
