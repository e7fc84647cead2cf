//! The leaf codec: a lookup in an image that was just read, an entry write, a fresh image.

use divan::Bencher;
use divan::counter::ItemsCount;
use farwood::index::layout::{LeafLayout, LeafLookup, NodeHeader, NodeVersion};
use farwood::runtime::RemotePtr;

/// Bytes of a node, and of keys and values: the sizes of the Sherman paper.
const NODE_BYTES: usize = 1024;
const KEY_BYTES: usize = 8;

const HEADER: NodeHeader<'static> = NodeHeader {
    level: 0,
    low: &[],
    high: None,
    sibling: RemotePtr::NULL,
    incarnation: 1,
    node_version: NodeVersion::new(1),
};

fn main() {
    divan::main();
}

fn layout() -> LeafLayout {
    LeafLayout::for_node(NODE_BYTES, KEY_BYTES, KEY_BYTES).expect("the sizes make a leaf")
}

/// Yields the keys of a leaf filled to four fifths.
fn keys(layout: &LeafLayout) -> Vec<[u8; KEY_BYTES]> {
    (0..layout.slots() as u64 * 4 / 5).map(|n| (n * 0x0123_4567).to_be_bytes()).collect()
}

fn image(layout: &LeafLayout) -> Vec<u8> {
    let mut image = vec![0; NODE_BYTES];
    let keys = keys(layout);
    layout.build(&mut image, &HEADER, keys.iter().map(|key| (&key[..], &key[..])));
    image
}

#[divan::bench]
fn lookup_hit(bencher: Bencher) {
    let layout = layout();
    let (image, keys) = (image(&layout), keys(&layout));
    bencher.counter(ItemsCount::new(keys.len())).bench_local(|| {
        for key in &keys {
            let found = layout.lookup(divan::black_box(&image), key);
            assert!(matches!(found, Ok(LeafLookup::Found(_))));
        }
    });
}

#[divan::bench]
fn lookup_miss(bencher: Bencher) {
    let layout = layout();
    let image = image(&layout);
    let keys: Vec<_> =
        keys(&layout).into_iter().map(|key| (u64::from_be_bytes(key) + 1).to_be_bytes()).collect();
    bencher.counter(ItemsCount::new(keys.len())).bench_local(|| {
        for key in &keys {
            let found = layout.lookup(divan::black_box(&image), key);
            assert!(matches!(found, Ok(LeafLookup::Absent)));
        }
    });
}

/// An update of each entry in turn.
#[divan::bench]
fn write_entry(bencher: Bencher) {
    let layout = layout();
    let (mut image, keys) = (image(&layout), keys(&layout));
    bencher.counter(ItemsCount::new(keys.len())).bench_local(|| {
        for (slot, key) in keys.iter().enumerate() {
            divan::black_box(layout.write_entry(&mut image, slot, key, key));
        }
    });
}

#[divan::bench]
fn build(bencher: Bencher) {
    let layout = layout();
    let (mut image, keys) = (image(&layout), keys(&layout));
    bencher.bench_local(|| {
        layout.build(divan::black_box(&mut image), &HEADER, keys.iter().map(|key| (&key[..], &key[..])));
    });
}
