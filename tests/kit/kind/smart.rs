//! SMART, as tests ask for it.

use farwood::Switches;
use farwood::smart::{Geometry, Options, Techniques, Types};

use super::{Nodes, Shape};

pub(super) fn geometry(shape: Shape) -> Geometry {
    let Shape { max_key, max_value, nodes } = shape;
    let types = match nodes {
        Nodes::Least | Nodes::Tiny => Types::Tiny,
        Nodes::Usual => Types::Lines,
    };
    Geometry { max_key, max_value, types }
}

fn options(techniques: Techniques) -> Options {
    Options { techniques, ..Options::default() }
}

/// Everything on, and everything off.
pub(super) fn extremes() -> [Options; 2] {
    [Techniques::ALL, Techniques::NONE].map(options)
}

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

/// All, but for those that ask for a lock in leaves that have none.
pub(super) fn every_mix() -> Vec<Options> {
    let mixes = (0..1u32 << Techniques::NAMES.len()).rev().map(|bits| {
        let mut techniques = Techniques::NONE;
        for (i, name) in Techniques::NAMES.iter().enumerate() {
            assert!(techniques.set(name, bits >> i & 1 == 1));
        }
        techniques
    });
    mixes.filter(|techniques| *techniques == techniques.effective()).map(options).collect()
}

/// Windows of one node and of many, caches that hold nothing, little and everything, leaves that are replaced.
pub(super) fn scan_mixes() -> Vec<Options> {
    let replaced = Techniques { in_place_leaves: false, rear_lock: false, ..Techniques::ALL };
    let mixes = [32, 2, 1].into_iter().flat_map(|scan_window| {
        [1 << 20, 1, 2000].map(|cache_bytes| Options { scan_window, cache_bytes, ..Options::default() })
    });
    mixes.chain([options(replaced)]).collect()
}
