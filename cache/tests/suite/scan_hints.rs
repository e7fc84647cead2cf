//! `children_in`: the leaves that a scan reads in parallel; and the two halves of a lookup.

use std::sync::Arc;

use farwood_cache::{CacheConfig, CacheReader, NodeCache, NodeImage, Policy, Root};
use farwood_runtime::{RemotePtr, ServerId};
use smallvec::SmallVec;

const PER_NODE: u64 = 5;

fn leaf(number: u64) -> RemotePtr {
    RemotePtr::new(ServerId(0), number * 64)
}

fn node(number: u64) -> RemotePtr {
    RemotePtr::new(ServerId(1), number * 64)
}

/// Makes nodes of 5 leaves each; leaf `n` begins at key `10 * n`. The last one has no end.
fn tree(nodes: u64) -> Arc<NodeCache> {
    let cache = NodeCache::new(CacheConfig { budget_bytes: 1 << 20, policy: Policy::TwoChoices, seed: 1 });
    cache.set_root(Root { ptr: node(1000), level: 3 });
    for number in 0..nodes {
        let keys: Vec<[u8; 8]> =
            (0..=PER_NODE).map(|leaf| ((number * PER_NODE + leaf) * 10).to_be_bytes()).collect();
        let leaves = number * PER_NODE..(number + 1) * PER_NODE;
        let separators: Vec<_> =
            keys.iter().zip(leaves).map(|(key, number)| (&key[..], leaf(number))).collect();
        let high = (number + 1 < nodes).then_some(&keys[PER_NODE as usize][..]);
        let image =
            NodeImage { address: node(number), level: 1, low: &keys[0], high, separators: &separators };
        assert!(cache.insert(&image));
    }
    cache
}

fn leaves(reader: &CacheReader, from: u64, max: usize) -> Vec<u64> {
    let mut out = SmallVec::<[RemotePtr; 16]>::new();
    assert_eq!(reader.children_in(&from.to_be_bytes(), max, &mut out), out.len());
    out.iter().map(|leaf| leaf.offset() / 64).collect()
}

#[test]
fn follows_nodes_across_chunks_up_to_the_limit_or_the_end() {
    let cache = tree(200);
    let reader = cache.reader();
    assert_eq!(leaves(&reader, 0, 3), [0, 1, 2]);
    assert_eq!(leaves(&reader, 39, 4), [3, 4, 5, 6]);
    assert_eq!(leaves(&reader, 49, 5000), (4..1000).collect::<Vec<_>>());
    assert_eq!(leaves(&reader, u64::MAX, 5000), [999]);
    assert_eq!(leaves(&reader, 0, 0), [0; 0]);
}

#[test]
fn stops_at_a_gap_and_where_versions_do_not_fit() {
    let cache = tree(10);
    let reader = cache.reader();
    cache.invalidate(1, node(4), &200u64.to_be_bytes());
    assert_eq!(leaves(&reader, 150, 100), [15, 16, 17, 18, 19]);
    assert_eq!(leaves(&reader, 210, 100), [0; 0]);
    // A node that begins behind the end of the one before it.
    let low = 210u64.to_be_bytes();
    let high = 250u64.to_be_bytes();
    let separators: &[(&[u8], RemotePtr)] = &[(&low, leaf(21))];
    cache.insert(&NodeImage { address: node(4), level: 1, low: &low, high: Some(&high), separators });
    assert_eq!(leaves(&reader, 150, 100), [15, 16, 17, 18, 19]);
    assert_eq!(leaves(&reader, 210, 3), [21, 25, 26]);
}

#[test]
fn a_lookup_in_two_halves_is_a_lookup() {
    let cache = tree(10);
    let reader = cache.reader();
    let key = 123u64.to_be_bytes();
    let located = reader.locate(&key).unwrap();
    // What happens between the halves does not matter to it.
    cache.clear();
    let route = located.finish(&key).unwrap();
    assert_eq!((route.child, route.child_level, route.via), (leaf(12), 0, node(2)));
    assert!(reader.find(&key).is_none());
    assert_eq!((reader.lookups(), reader.hits()), (2, 1));
    assert_eq!(reader.node_of(1, &key), None);
}
