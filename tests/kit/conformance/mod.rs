//! The promises of every index, as one test body for every kind of index on every fabric: checked through
//! [`farwood::RangeIndex`] and the index's own check alone, so that no fabric can make an index behave differently,
//! and no index another way.
//!
//! A fabric implements [`Fabric`] and names its tests with `index_conformance_tests!`; a kind of index is in the
//! registry ([`IndexKind`]) and has its `costs` tabulated. The parts know neither: they ask for a [`Shape`] and run on
//! all mixes of options that the kind has. The shards that they run on are in the folder above: [`TestCluster`].
#![allow(dead_code, clippy::allow_attributes, reason = "a fabric may run a part of it")]

mod bulk;
mod cancelled;
mod catalog;
mod costs;
mod counts;
mod crowd;
mod input;
mod model;
mod scans;

use std::future::Future;

pub(crate) use self::bulk::{bulk_loads_that_are_dropped, bulk_loads_that_cannot_be, bulk_loads_that_race};
pub(crate) use self::cancelled::{dropped_operations, waiters_that_leave_the_queue};
pub(crate) use self::catalog::{dropped_indexes, names_in_the_catalog};
pub(crate) use self::counts::{cost_of_changes, cost_of_gets, cost_of_scans};
pub(crate) use self::crowd::{
    disjoint_inserts, no_lost_increments, of_many_inserts_one_succeeds, shared_keys_are_linearizable,
    small_caches, stable_keys_are_always_found,
};
pub(crate) use self::input::{odd_keys, too_long_keys_and_values};
pub(crate) use self::model::{a_map_says_the_same, every_mix_is_as_a_map, every_shape_is_as_a_map};
pub(crate) use self::scans::{
    scans_among_changes, scans_among_splits, scans_beyond_what_the_cache_knows, scans_of_prefixes,
    scans_that_stop_and_wait,
};
use farwood::IndexSpec;
use farwood::runtime::ClientPool;

use crate::kit::cluster::{Main, Parties, Seat, TestCluster, as_main, at_index, to_the_end};
use crate::kit::kind::{Mixes, Shape, patient};
pub(crate) use farwood::IndexKind;

/// A fabric that the body runs on. The body knows the shards `V` alone, so it is compiled once for all fabrics that
/// have the same.
pub(crate) trait Fabric<V> {
    /// Yields the part of the body that fits there.
    fn size(&self) -> Size;
    /// Runs what `make` makes on every shard of all `parties`, on one fresh cluster of two servers, and waits for all
    /// of them. Once per setting that makes a difference there, each with what a call of `make` made.
    fn run(&self, parties: Parties, make: &dyn Fn() -> Main<Seat<V>>);
}

/// The part of the body that is run: less on a slow fabric, so that it ends in reasonable time, and less on one that is
/// like another, where all of it is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// Steps, rounds and keys, in percent of those of a fast fabric.
    pub(crate) percent: usize,
    /// Tells whether a mix of options is run, by its place in a part's list. The first two are far apart, and the next
    /// ones are like each other in some options: one in a prime number of them has no option that is always the same.
    pub(crate) runs_mix: fn(usize) -> bool,
}

impl Size {
    /// Everything.
    pub(crate) const FULL: Size = Size { percent: 100, runs_mix: |_| true };
    /// For fabrics that are a hundred times slower.
    pub(crate) const SMALL: Size = Size { percent: 10, runs_mix: |place| place < 2 };

    /// Yields the size of this run on a fast fabric: `.ci/run` asks for more than `cargo test` does.
    ///
    /// # Panics
    /// If FARWOOD_TEST_PERCENT is no number from 10 to 100.
    pub(crate) fn of_this_run() -> Size {
        let percent = match std::env::var("FARWOOD_TEST_PERCENT") {
            Ok(percent) => percent.parse().expect("FARWOOD_TEST_PERCENT is a number"),
            Err(_) => 20,
        };
        assert!((10..=100).contains(&percent), "FARWOOD_TEST_PERCENT is from 10 to 100");
        Size { percent, ..Size::FULL }
    }

    /// Yields so many steps of `count`, but `least` at least.
    pub(crate) fn steps(self, count: usize, least: usize) -> usize {
        (count * self.percent / 100).max(least)
    }

    /// Yields those of `all` that are run.
    fn few<T>(self, all: Vec<T>) -> Vec<T> {
        let run = all.into_iter().enumerate().filter(|(place, _)| (self.runs_mix)(*place));
        run.map(|(_, mix)| mix).collect()
    }
}

/// Runs what `make` makes on every shard of all `parties`, on a fresh index. Afterwards nothing may be left behind,
/// and the index must pass its check.
fn on_index<V, M, R>(fabric: &dyn Fabric<V>, parties: Parties, recipe: IndexSpec, make: impl Fn() -> M)
where
    V: ClientPool,
    M: Fn(TestCluster<V>) -> R + Send + Sync + 'static,
    R: Future<Output = ()> + 'static,
{
    let recipe = patient(recipe);
    // Shown if the test fails.
    println!("{parties:?} on {recipe:?}");
    fabric.run(parties, &|| at_index(parties, recipe, to_the_end(as_main(make()))));
}

/// Runs [`on_index`] with all mixes of the kind's options, on shards and on nodes.
fn in_every_setting<V, M, R>(fabric: &dyn Fabric<V>, kind: IndexKind, shape: Shape, make: impl Fn() -> M)
where
    V: ClientPool,
    M: Fn(TestCluster<V>) -> R + Send + Sync + 'static,
    R: Future<Output = ()> + 'static,
{
    for parties in Parties::BOTH {
        for mix in fabric.size().few(kind.mixes()) {
            on_index(fabric, parties, shape.of(mix), &make);
        }
    }
}

/// Defines one `#[test]` per part of the body and kind of index for a [`Fabric`].
macro_rules! index_conformance_tests {
    ($fabric:ident) => {
        farwood::index::for_each_index_kind!(index_conformance_tests!($fabric));
    };
    ($fabric:ident $module:ident = $kind:ident) => {
        index_conformance_tests!($fabric $module = $kind:
            every_mix_is_as_a_map, every_shape_is_as_a_map, a_map_says_the_same,
            disjoint_inserts, of_many_inserts_one_succeeds, no_lost_increments, shared_keys_are_linearizable,
            stable_keys_are_always_found, small_caches,
            scans_among_splits, scans_among_changes, scans_beyond_what_the_cache_knows, scans_of_prefixes,
            scans_that_stop_and_wait, dropped_operations, waiters_that_leave_the_queue,
            bulk_loads_that_cannot_be, bulk_loads_that_are_dropped, bulk_loads_that_race,
            too_long_keys_and_values, odd_keys,
            cost_of_gets, cost_of_changes, cost_of_scans,
            names_in_the_catalog, dropped_indexes);
    };
    ($fabric:ident $module:ident = $kind:ident: $($part:ident),+) => {
        mod $module {
            $(#[test]
            fn $part() {
                crate::conformance::$part(&super::$fabric, crate::conformance::IndexKind::$kind);
            })+
        }
    };
}
pub(crate) use index_conformance_tests;
