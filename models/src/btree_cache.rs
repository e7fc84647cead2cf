//! `cache/src/{reader,level,directory,chunk,node_cache}.rs`: a lookup finds what is cached all the while, at the latest
//! when it is repeated, and never an older node than one before it, whatever a writer does meanwhile.

use std::sync::Arc;

use loom::thread::JoinHandle;

use crate::eviction::Policy;
use crate::node::NodeImage;
use crate::node_cache::{CacheConfig, NodeCache};
use crate::pointer::{RemotePtr, ServerId};
use crate::reader::CacheReader;

/// A budget that evicts nothing.
const BUDGET_BYTES: usize = 1 << 20;

fn at(offset: u64) -> RemotePtr {
    RemotePtr::new(ServerId(0), offset << 6)
}

/// Caches version `version` of the node that covers the keys of one byte, `number`.
fn insert(cache: &NodeCache, number: u8, version: u8) {
    let (low, high) = ([number], [number + 1]);
    let separators = [(&low[..], child(number, version))];
    let node =
        NodeImage { address: node(number), level: 1, low: &low, high: Some(&high), separators: &separators };
    assert!(cache.insert(&node), "level 1 is kept");
}

fn node(number: u8) -> RemotePtr {
    at(0x100 + u64::from(number))
}

fn child(number: u8, version: u8) -> RemotePtr {
    at(0x1000 + u64::from(number) * 0x10 + u64::from(version))
}

/// Looks the node up; yields its version.
fn version(reader: &CacheReader, number: u8) -> Option<u8> {
    let route = reader.find(&[number])?;
    let version = (0..0x10).find(|version| route.child == child(number, *version));
    assert!(route.via == node(number) && version.is_some(), "a node that never was: {route:?}");
    version
}

/// Makes a cache with nodes 0 up to `count` of version 0, and a reader that knows its directory.
fn cache(count: u8) -> (Arc<NodeCache>, CacheReader) {
    let cache =
        NodeCache::new(CacheConfig { budget_bytes: BUDGET_BYTES, policy: Policy::TwoChoices, seed: 1 });
    (0..count).for_each(|number| insert(&cache, number, 0));
    let reader = cache.reader();
    (0..count).for_each(|number| assert_eq!(version(&reader, number), Some(0)));
    (cache, reader)
}

/// Looks the node up `times` times; yields its last version.
///
/// # Panics
/// If a lookup finds an older version than one before it, or two in turn find none.
fn look(reader: &CacheReader, number: u8, times: u32) -> Option<u8> {
    let (mut newest, mut last) = (0, Some(0));
    for _ in 0..times {
        let found = version(reader, number);
        assert!(found.or(last).is_some(), "missed although it looked twice");
        assert!(found.is_none_or(|found| found >= newest), "older than before: {found:?} after {newest}");
        newest = found.unwrap_or(newest);
        last = found;
    }
    last
}

/// Models a reader that looks for node 3 while a writer divides its chunk, and changes the node before and after.
///
/// # Panics
/// If lookups find an older node than one before, or nothing twice.
pub fn lookups_and_a_division() {
    let (cache, reader) = cache(4);
    let reader = beside(reader, |reader| look(reader, 3, 3));
    insert(&cache, 3, 1);
    insert(&cache, 4, 0);
    insert(&cache, 3, 2);
    let reader = reader.join().expect("the reader does not panic");
    assert_eq!(look(&reader, 3, 2), Some(2), "at rest it is found");
}

/// Models a reader that looks up a node of a chunk with which nothing happens, and one of a chunk that is merged with
/// that of a node that is dropped.
///
/// # Panics
/// If the first is not found, or the second not twice.
pub fn lookups_and_a_merger() {
    let (cache, reader) = cache(9);
    // Chunks of four, four and one: then of four, three and one.
    cache.invalidate(1, node(7), &[7]);
    let reader = beside(reader, |reader| {
        assert_eq!(version(reader, 0), Some(0), "nothing happened to its chunk");
        look(reader, 4, 3)
    });
    cache.invalidate(1, node(8), &[8]);
    let reader = reader.join().expect("the reader does not panic");
    assert_eq!((look(&reader, 4, 2), version(&reader, 8)), (Some(0), None), "at rest");
}

/// Starts a thread of a reader.
fn beside(reader: CacheReader, look: fn(&CacheReader) -> Option<u8>) -> JoinHandle<CacheReader> {
    loom::thread::spawn(move || {
        look(&reader);
        reader
    })
}
