//! Negative controls: an index on a fabric that breaks one of the rules must be caught, within a number of seeds
//! that stands here, and the same seeds on a fabric that breaks none must pass. Otherwise a swarm that passes says
//! little.
//!
//! The scenarios are made for the bug, so that it is likely where it can be.

mod drawn;
mod hop;
mod radix;
mod sabotage;

use std::num::NonZero;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use farwood_index::sherman::{Geometry, NodeSize, Options};
use farwood_index::{Backoff, IndexKind, IndexSpec, Limits};
use farwood_runtime::Verbs;
use farwood_runtime::sim::{Fault, FaultMix, Reordering, Rule};
use farwood_sim::runner::run_steered;
use farwood_sim::scenario::{Adversary, Cluster, Scenario, Shares, Work};

use self::sabotage::{Act, Nodes, Sabotage};

const ROUGH: Reordering =
    Reordering { lines: true, scatter_one_in: 2, scatter_ns: 8_000, jitter_ns: 1_000, in_order_write: false };

const TINY: Geometry = Geometry { max_key: 8, max_value: 8, size: NodeSize::Slots { leaf: 4, inner: 6 } };
const BACKOFF: Backoff = Backoff { min: Duration::from_nanos(500), max: Duration::from_micros(16) };
/// Entries that cross lines.
const WIDE: Geometry = Geometry { max_value: 100, ..TINY };

/// Gives a compute node a large cache, and 100 ms to wait for locks.
fn node(spec: IndexSpec) -> IndexSpec {
    spec.with_options(|options| {
        options.cache_bytes = 1 << 20;
        options.backoff = BACKOFF;
        options.lock_wait_max = Duration::from_millis(100);
        options.scan_window = Some(32);
        options.intent_log = false;
    })
}

/// Yields two compute nodes on one memory server: tiny leaves, no faults.
fn plain(seed: u64) -> Scenario {
    Scenario {
        seed,
        cluster: Cluster {
            shards: 2,
            servers: 1,
            colocated: false,
            reordering: ROUGH,
            credits: NonZero::new(4096).unwrap(),
            locks: 256,
            device_locks: 0,
            slow_control: false,
        },
        nodes: vec![node(IndexSpec::Sherman { geometry: TINY, options: Options::default() }); 2],
        work: Work {
            clients: 4,
            ops: 60,
            keys: 60,
            shared_prefixes: false,
            loaded_percent: 0,
            fill_percent: 100,
            shares: Shares { get: 6, put: 4, insert: 4, update: 4, remove: 3, scan: 2 },
            skew: 1,
            scan_limit_max: 50,
            cancel_one_in: 0,
            think_ns: 0,
        },
        mix: mix("none"),
        fault_multiplier: 1,
        adversary: Adversary::default(),
    }
}

const LATE_LINES: [Rule; 1] = [Rule { fault: Fault::DelayedLine(300_000), one_in: 60, most: u32::MAX }];

fn mix(name: &str) -> FaultMix {
    FaultMix::named(name).expect("a mix of the runtime's")
}

/// Runs seeds until `act` is caught, then the same ones without it. Where it takes many, or seconds of retries, they
/// begin shortly before one that catches it soon today, and are as many as they would be from 0.
#[track_caller]
fn is_caught(act: Act, seeds: Range<u64>, scenario: impl Fn(u64) -> Scenario) {
    let run = |seed, act| {
        let scenario = scenario(seed);
        run_steered(&scenario, &|shard, number| {
            Rc::new(Sabotage::new(shard.node_id(), act, Nodes::of(scenario.spec()), number))
        })
        .failure
    };
    let caught = seeds.clone().find_map(|seed| Some((seed, run(seed, act)?)));
    let Some((caught, failure)) = caught else { panic!("{act:?} was not caught by seeds {seeds:?}") };
    println!("{act:?} is caught by seed {caught} (of {seeds:?}): {failure}");
    for seed in seeds.start..=caught {
        assert_eq!(run(seed, Act::Nothing), None, "seed {seed} fails also without {act:?}");
    }
}

#[test]
fn versions_in_the_first_and_last_line_only() {
    is_caught(Act::Bookends, 0..20, |seed| {
        let mut scenario = plain(seed);
        scenario.nodes = vec![node(IndexSpec::Sherman { geometry: WIDE, options: Options::default() }); 2];
        scenario.work.shares = Shares { get: 10, put: 10, insert: 0, update: 0, remove: 2, scan: 2 };
        scenario.work.keys = 12;
        scenario
    });
}

#[test]
fn versions_of_four_bits_without_a_time_bound() {
    is_caught(Act::FourBits, 30..130, |seed| {
        let mut scenario = plain(seed);
        // One key, a line of which is read long after the others, while the key is written some sixteen times.
        scenario.mix = FaultMix { name: "late lines", about: "", rules: &LATE_LINES };
        scenario.nodes = vec![node(IndexSpec::Sherman { geometry: WIDE, options: Options::default() }); 2];
        scenario.nodes.push(scenario.nodes[0]);
        scenario.cluster.shards = 1;
        scenario.work.shares = Shares { get: 8, put: 10, insert: 0, update: 0, remove: 0, scan: 0 };
        scenario.work.keys = 1;
        scenario.work.ops = 150;
        scenario
    });
}

#[test]
fn an_unlock_before_the_write_back() {
    is_caught(Act::UnlockFirst, 0..10, |seed| {
        let mut scenario = plain(seed);
        scenario.work.keys = 5;
        scenario
    });
}

#[test]
fn a_lost_hand_over() {
    is_caught(Act::LostGrant(40), 0..5, |seed| {
        let mut scenario = plain(seed);
        scenario.work.keys = 12;
        scenario
    });
}

#[test]
fn a_scan_that_does_not_notice_a_gap() {
    is_caught(Act::NoLowFence, 0..20, |seed| {
        let mut scenario = plain(seed);
        scenario.work.keys = 200;
        scenario.work.loaded_percent = 30;
        scenario.work.shares = Shares { get: 1, put: 6, insert: 6, update: 0, remove: 0, scan: 6 };
        scenario
    });
}

#[test]
fn a_lost_unlock() {
    is_caught(Act::LostUnlock(100), 0..5, plain);
}

#[test]
fn a_write_back_that_is_not_done_again() {
    is_caught(Act::NoRedo, 0..10, |seed| {
        let mut scenario = Scenario { mix: mix("errors"), ..plain(seed) };
        for node in &mut scenario.nodes {
            assert!(node.set_technique("combine", false));
        }
        scenario
    });
}

/// Makes a plain scenario with a radix tree, whose keys are prefixes of each other.
fn radix(seed: u64, max_value: usize) -> Scenario {
    let mut scenario = plain(seed);
    let smart = node(IndexKind::Smart.spec(Limits { max_key: 12, max_value }, farwood_index::Nodes::Tiny));
    scenario.nodes.iter_mut().for_each(|node| *node = smart);
    scenario.work.shared_prefixes = true;
    scenario
}

#[test]
fn leaves_without_a_checksum() {
    is_caught(Act::AnyChecksum, 0..20, |seed| {
        let mut scenario = radix(seed, 200);
        scenario.work.shares = Shares { get: 10, put: 10, insert: 0, update: 0, remove: 1, scan: 2 };
        scenario.work.keys = 12;
        scenario
    });
}

/// One client per compute node, so that what its fabric saw last is what its cache knows.
#[test]
fn a_cache_without_the_reverse_check() {
    is_caught(Act::AnyLink, 0..20, |seed| {
        let mut scenario = radix(seed, 8);
        scenario.nodes.push(scenario.nodes[0]);
        scenario.cluster.shards = 1;
        scenario.work.clients = 1;
        scenario.work.ops = 150;
        scenario.work.keys = 200;
        scenario.work.shares = Shares { get: 8, put: 0, insert: 6, update: 2, remove: 0, scan: 0 };
        scenario
    });
}

/// The fabric delegates here, as the paper has it: a reader joins a READ that began before its call. The index's own
/// delegation, which does not, is off: with it no two clients of a compute node read one key at a time.
#[test]
fn delegation_that_joins_an_earlier_read() {
    is_caught(Act::EarlierRead, 0..100, |seed| {
        let mut scenario = radix(seed, 8);
        for node in &mut scenario.nodes {
            assert!(node.set_technique("delegation", false));
        }
        scenario.cluster.reordering = Reordering { jitter_ns: 8_000, ..ROUGH };
        scenario.cluster.shards = 1;
        scenario.work.shares = Shares { get: 10, put: 6, insert: 0, update: 0, remove: 0, scan: 0 };
        scenario.work.keys = 2;
        scenario.work.ops = 150;
        scenario
    });
}

#[test]
fn a_rear_lock_that_is_released_before_the_value_is_written() {
    is_caught(Act::UnlockFirst, 0..100, |seed| {
        let mut scenario = radix(seed, 200);
        scenario.work.keys = 3;
        scenario.work.shares = Shares { get: 4, put: 10, insert: 0, update: 4, remove: 0, scan: 0 };
        scenario
    });
}

#[test]
fn a_rear_lock_that_is_not_released() {
    is_caught(Act::LostUnlock(100), 0..10, |seed| radix(seed, 200));
}

/// Leaves that are nearly full, in which keys hop while others look for them. Readers know no time.
#[test]
fn hop_bits_that_are_not_compared() {
    is_caught(Act::AnyHops, 170..370, |seed| {
        let mut scenario = plain(seed);
        let IndexSpec::Chime { mut geometry, options } =
            IndexKind::Chime.spec(Limits { max_key: 8, max_value: 40 }, farwood_index::Nodes::Tiny)
        else {
            unreachable!("it is the kind that was asked for")
        };
        (geometry.span, geometry.neighbourhood) = (32, 4);
        scenario.nodes = vec![node(IndexSpec::Chime { geometry, options }); 3];
        for node in &mut scenario.nodes {
            assert!(node.set_technique("speculative", false) && node.set_technique("delegation", false));
        }
        scenario.cluster.shards = 1;
        scenario.work.keys = 30;
        scenario.work.ops = 200;
        scenario.work.loaded_percent = 70;
        scenario.work.shares = Shares { get: 10, put: 0, insert: 6, update: 0, remove: 5, scan: 0 };
        scenario
    });
}

/// Makes a plain scenario with a Dolphin tree, whose leaves are torn as often as can be.
fn dolphin(seed: u64) -> Scenario {
    let mut scenario = plain(seed);
    let tiny = node(IndexKind::Dolphin.spec(Limits { max_key: 8, max_value: 8 }, farwood_index::Nodes::Tiny));
    scenario.nodes = vec![tiny; 3];
    scenario.work.ops = 150;
    scenario.work.keys = 40;
    scenario
}

#[test]
fn values_that_are_read_before_their_keys() {
    is_caught(Act::ValuesFirst, 0..20, |seed| {
        let mut scenario = dolphin(seed);
        scenario.work.shares = Shares { get: 10, put: 0, insert: 6, update: 0, remove: 4, scan: 2 };
        scenario
    });
}

#[test]
fn keys_that_are_written_before_their_values() {
    is_caught(Act::KeysFirst, 0..20, |seed| {
        let mut scenario = dolphin(seed);
        scenario.work.shares = Shares { get: 10, put: 0, insert: 6, update: 0, remove: 4, scan: 2 };
        scenario
    });
}

#[test]
fn leaves_that_are_not_marked_while_they_are_written() {
    is_caught(Act::NoTornMark, 0..40, |seed| {
        let mut scenario = dolphin(seed);
        scenario.work.keys = 200;
        scenario.work.shares = Shares { get: 10, put: 0, insert: 8, update: 0, remove: 6, scan: 2 };
        scenario
    });
}

/// A split that does not wait for an update loses it.
#[test]
fn sharers_that_do_not_show_themselves() {
    is_caught(Act::NoPresence, 0..20, |seed| {
        let mut scenario = dolphin(seed);
        scenario.work.shares = Shares { get: 4, put: 0, insert: 6, update: 10, remove: 6, scan: 1 };
        scenario
    });
}
