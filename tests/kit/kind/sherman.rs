//! Sherman, as tests ask for it.

use farwood::{Geometry, NodeSize, Options, Switches, Techniques};

use super::{Nodes, Shape};

pub(super) fn geometry(shape: Shape) -> Geometry {
    let Shape { max_key, max_value, nodes } = shape;
    let size = match nodes {
        Nodes::Least => NodeSize::Slots { leaf: 2, inner: 3 },
        Nodes::Tiny => NodeSize::Slots { leaf: 4, inner: 4 },
        Nodes::Usual => NodeSize::Bytes(1024),
    };
    Geometry { max_key, max_value, size }
}

fn options(techniques: Techniques) -> Options {
    Options { techniques, ..Options::default() }
}

/// Everything on, and everything off.
pub(super) fn extremes() -> [Options; 2] {
    [Techniques::ALL, Techniques::NONE].map(options)
}

/// The switches whose combinations are all tried: whatever a client that is alone notices.
const COMBINED: [&str; 6] = ["combine", "on_chip", "hierarchical", "handover", "two_level", "fused"];

/// Each switch alone as it is not by default.
pub(super) fn mixes() -> Vec<Options> {
    let mut mixes = extremes().to_vec();
    for (name, on) in Techniques::ALL.list() {
        let mut techniques = Techniques::ALL;
        assert!(techniques.set(name, !on));
        mixes.push(options(techniques));
    }
    mixes.push(Options { cache_bytes: 1, ..Options::default() });
    mixes
}

pub(super) fn every_mix() -> Vec<Options> {
    let mixes = (0..1u32 << COMBINED.len()).rev().map(|bits| {
        let mut techniques = Techniques::ALL;
        for (i, name) in COMBINED.into_iter().enumerate() {
            assert!(techniques.set(name, bits >> i & 1 == 1));
        }
        options(techniques)
    });
    mixes.collect()
}

/// Windows of one leaf and of many, caches that hold nothing, little and everything.
pub(super) fn scan_mixes() -> Vec<Options> {
    let mixes = [32, 2, 1].into_iter().flat_map(|scan_window| {
        [1 << 20, 1, 2000].map(|cache_bytes| Options { scan_window, cache_bytes, ..Options::default() })
    });
    mixes.collect()
}
