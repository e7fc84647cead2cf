//! Compute nodes that die while an inner node of Dolphin's is taken out that is needless, or moves to more room: at any
//! time and at each verb, as in `merge_deaths.rs`, from which all is but the trees. Others go on, finish it, and in the
//! end the tree is as small as any other of which all was removed.
//!
//! ```text
//!   leaves of 8 slots, inner nodes of 2:     [..0] ── [..00] ── .. ── [..0000000]     End -> keys below 8
//!                                                                                     8 -> keys behind
//! ```

use farwood::RangeIndex;

use super::merge_deaths::{Blow, DOLPHIN, Leaves, MERGE, NEWCOMER, SPLIT, Scene, Site, TICK_NS, WITNESS};
use crate::kit::key;

/// Memory of inner nodes is used again when caches were emptied.
const FLUSHED: Leaves = Leaves { is_flushed: true, ..DOLPHIN };

/// A remove merges the two leaves of the tree, so that all seven nodes between root and leaves are needless.
const COLLAPSE: Scene = Scene { kinds: &[&FLUSHED], afterwards: is_small, ..MERGE };

/// A put splits a leaf, and the node above gets a third slot.
const MOVE: Scene = Scene { kinds: &[&FLUSHED], afterwards: is_small, ..SPLIT };

/// Asserts that nothing is left but the root and a leaf once all keys were removed.
fn is_small(site: &Site) {
    // Clients come by what janitors that died have left.
    for node in [WITNESS, NEWCOMER, WITNESS] {
        for n in 0..24 {
            site.write(node, [(n, n)].into(), [n]);
            site.linger(node);
        }
    }
    site.on(NEWCOMER, async |index| {
        for n in 0..24 {
            assert_eq!(index.get(&key(n)).await.unwrap(), None);
        }
        let survey = index.survey().await.unwrap();
        assert_eq!((survey.inner_nodes, survey.leaves), (1, 1));
    });
}

#[test]
fn the_scenes_are_what_they_are_called() {
    for (scene, nodes) in [(COLLAPSE, [8, 1]), (MOVE, [8, 8])] {
        let site = Site::new(&FLUSHED, 0);
        (scene.prepare)(&site);
        let count = |expected| {
            site.on(NEWCOMER, async move |index| {
                assert_eq!(index.survey().await.unwrap().inner_nodes, expected);
            });
        };
        count(nodes[0]);
        let before = site.parties[0].1.books();
        scene.act(&site, u64::MAX);
        count(nodes[1]);
        // Seven nodes and a leaf, or one node.
        let retired = site.parties[0].1.books().retired_bytes - before.retired_bytes;
        assert_eq!(retired, if nodes[1] == 1 { 7 * 64 + 704 } else { 64 });
    }
}

#[test]
fn who_takes_inner_nodes_out_may_stop_at_any_time() {
    COLLAPSE.play_all(0..2, Blow::Stop, 2 * TICK_NS);
}

#[test]
fn who_takes_inner_nodes_out_may_stop_at_any_verb() {
    COLLAPSE.play_all(0..4, Blow::StopAtVerb, 1_000);
}

#[test]
fn who_takes_inner_nodes_out_may_be_late() {
    COLLAPSE.play_all(0..2, Blow::Break, 1_000);
    COLLAPSE.play_all(0..2, Blow::StandStill, 1_000);
}

#[test]
fn who_moves_an_inner_node_may_stop_at_any_time() {
    MOVE.play_all(0..2, Blow::Stop, TICK_NS);
}

#[test]
fn who_moves_an_inner_node_may_stop_at_any_verb() {
    MOVE.play_all(0..4, Blow::StopAtVerb, 1_000);
}

#[test]
fn who_moves_an_inner_node_may_be_late() {
    MOVE.play_all(0..2, Blow::Break, 1_000);
    MOVE.play_all(0..2, Blow::StandStill, 1_000);
}
