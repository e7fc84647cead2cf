//! Bytes that no writer left: anything but a panic.

use std::ops::Bound;

use proptest::prelude::*;

use super::{gather, header, leaf};
use crate::layout::SlotOrder;
use crate::layout::leaf::{LeafLayout, LeafLookup};

/// Does everything that readers and writers do with an image.
fn use_up(layout: &LeafLayout, mut image: Vec<u8>, key: &[u8]) {
    if let Ok(LeafLookup::Found(found)) = layout.lookup(&image, key) {
        assert!(gather(&image, found.value).len() <= layout.max_value());
    }
    let Ok(view) = layout.view(&image) else { return };
    let _ = (view.header().low(), view.header().high(), view.header().position(key), view.find(key));
    let entries = view.entries().count();
    assert!(entries <= view.len() && view.len() <= layout.slots());
    let mut pairs = Vec::new();
    let bounds = (Bound::Included(key), Bound::Unbounded);
    if view.copy_sorted(&bounds, layout.slots(), &mut SlotOrder::default(), &mut pairs).is_ok() {
        assert!(pairs.len() <= entries && pairs.is_sorted_by(|a, b| key <= &a.0 && a.0 < b.0));
    }
    if let Some(slot) = view.vacancy() {
        layout.write_entry(&mut image, slot, key, key);
        layout.clear_entry(&mut image, slot);
    }
}

fn layouts() -> impl Strategy<Value = LeafLayout> {
    let shapes = [(4, 2, 3), (2, 1, 1), (53, 8, 8), (3, 300, 300), (70, 3, 8), (4, 60, 60)];
    let layout = |(slots, max_key, max_value)| LeafLayout::for_slots(slots, max_key, max_value).unwrap();
    proptest::sample::select(shapes.map(layout).to_vec())
}

proptest! {
    #[test]
    fn random_bytes_never_panic(layout in layouts(), seed in any::<[u8; 32]>(), like_a_leaf in any::<bool>()) {
        let mut rng = proptest::test_runner::TestRng::from_seed(proptest::test_runner::RngAlgorithm::ChaCha, &seed);
        let mut image = vec![0; layout.node_bytes()];
        rng.fill_bytes(&mut image);
        if like_a_leaf {
            // Past the first checks: kind, versions, fence lengths.
            let mut valid = vec![0; layout.node_bytes()];
            layout.build(&mut valid, &header(0), []);
            image[..22].copy_from_slice(&valid[..22]);
            for line in image.chunks_exact_mut(64) {
                (line[0], line[1]) = (0, line[1] & 0xf8);
            }
        }
        use_up(&layout, image, &seed[..1]);
    }

    #[test]
    fn damaged_leaves_never_panic(
        layout in layouts(),
        damage in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..20),
    ) {
        let keys: Vec<[u8; 1]> = (0..layout.slots() as u8).map(|byte| [byte]).collect();
        let entries: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (&key[..], &key[..])).collect();
        let mut image = leaf(&layout, &entries);
        for (at, byte) in damage {
            let at = at % image.len();
            image[at] = byte;
        }
        for key in &keys {
            use_up(&layout, image.clone(), key);
        }
    }
}
