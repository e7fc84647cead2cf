//! A scenario: everything that a simulated run is made of, as a plain value. One 64-bit seed draws it; what is
//! printed can be pasted into a regression test, whatever the drawing becomes.
//!
//! Shapes are tiny and reordering is heavy, so that rare paths are common: leaves of two slots, values that cross
//! lines, lock words that many nodes share, caches of a few nodes. Knows nothing of how a scenario is run.

use std::fmt;
use std::num::NonZero;
use std::time::Duration;

use farwood_index::{Backoff, IndexKind, IndexSpec};
use farwood_runtime::sim::{Fault, FaultMix, Profile, Reordering, Rule, SimConfig};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// The time that a client waits for a lock before it gives up, where a compute node may die while it holds locks: far
/// longer than living clients keep one from each other, so that a client that gives up waits for a dead one.
const WAIT_WITH_DEATHS: Duration = Duration::from_millis(100);
/// The wait for a lock where a client may stand still; longer outages are among its faults.
const WAIT_WITH_THE_STILL: Duration = Duration::from_millis(300);
/// The wait for a lock where no client does, so that giving up is a failure.
const WAIT: Duration = Duration::from_secs(1);
/// Retries of an operation where nodes die: so many it spends on a node that a dead client left torn.
const RETRIES_WITH_DEATHS: u32 = 2_000;
/// Retries of an operation where none dies: to freeze a large node takes many chains, of which most may fail.
const RETRIES: u32 = 20_000;
/// So often requests for memory are refused at most before the work begins.
const REFUSALS_AT_FIRST: u32 = 1_000;
/// In one of so many seeds removes are more frequent, by this share: an index that was full loses most of its keys.
/// None is drawn as at first.
const WANING_ONE_IN: u64 = 5;
const WANING_REMOVES: u32 = 20;
/// One in so many seeds is drawn as seeds were at first: what that finds, it goes on finding.
const PLAIN_ONE_IN: u64 = 10;

/// A simulated cluster with its clients and faults.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Determines scheduling, reordering, faults and what clients draw.
    pub seed: u64,
    /// The cluster.
    pub cluster: Cluster,
    /// The options of each compute node, all of one kind and geometry. The first one creates the index.
    pub nodes: Vec<IndexSpec>,
    /// The work of the clients.
    pub work: Work,
    /// The faults.
    pub mix: FaultMix,
    /// Makes faults so many times as frequent as the mix says.
    pub fault_multiplier: u32,
    /// Further difficulties.
    pub adversary: Adversary,
}

/// Difficulties beside the faults. By default there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adversary {
    /// Bytes of a chunk: the fewer they are, the more often memory is asked for.
    pub chunk_bytes: u64,
    /// Lets a core go on with any of its ready clients.
    pub any_order: bool,
    /// Compute nodes that join in the middle of the work.
    pub joiners: u16,
    /// True if a compute node that has stopped comes back as another one.
    pub comes_back: bool,
    /// Allows values of less than 8 bytes.
    pub short_values: bool,
    /// Drops operations at any of their awaits and after any time, not only within a few round trips.
    pub drops_anywhere: bool,
    /// Lets clients leave operations that are under way unpolled for a while.
    pub stands_still: bool,
    /// Lets control services fail also while the index is created, opened and loaded.
    pub from_the_start: bool,
}

impl Default for Adversary {
    fn default() -> Self {
        Adversary {
            chunk_bytes: 16 << 10,
            any_order: false,
            joiners: 0,
            comes_back: false,
            short_values: false,
            drops_anywhere: false,
            stands_still: false,
            from_the_start: false,
        }
    }
}

/// The cluster of a scenario. Its compute nodes are as many as have options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Shards per compute node.
    pub shards: u16,
    /// Memory servers.
    pub servers: u16,
    /// True if compute nodes share machines with memory servers.
    pub colocated: bool,
    /// The reordering of the fabric without any fault.
    pub reordering: Reordering,
    /// Chains in flight per queue pair.
    pub credits: NonZero<usize>,
    /// Lock words per server in host memory. Few make nodes share them.
    pub locks: u64,
    /// Lock words per server in on-chip memory; 0 is none.
    pub device_locks: u64,
    /// True if control services take a few turns to answer.
    pub slow_control: bool,
}

/// The work of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Clients per shard.
    pub clients: u16,
    /// Operations per client.
    pub ops: u32,
    /// Keys there are.
    pub keys: u32,
    /// True if keys are prefixes of each other and share long ones; otherwise they are numbers with more bytes behind.
    pub shared_prefixes: bool,
    /// Of a hundred keys so many are there at first. 0 is a tree without a node.
    pub loaded_percent: u32,
    /// The part of a leaf that a load fills, in percent.
    pub fill_percent: u32,
    /// Which operations, and how often.
    pub shares: Shares,
    /// A key is the smallest of so many that were drawn: 1 is uniform.
    pub skew: u32,
    /// Entries that a scan with a limit asks for at most.
    pub scan_limit_max: u32,
    /// One of so many operations is dropped on its way; 0 is none.
    pub cancel_one_in: u32,
    /// Clients pause for up to so long between operations.
    pub think_ns: u64,
}

/// The relative frequencies of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the operations of an index")]
pub struct Shares {
    pub get: u32,
    pub put: u32,
    pub insert: u32,
    pub update: u32,
    pub remove: u32,
    pub scan: u32,
}

/// The parts of a scenario that are not left to the seed.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// The kind of the index, which no seed draws.
    pub kind: IndexKind,
    /// This mix of faults.
    pub mix: Option<FaultMix>,
    /// So many operations per client.
    pub ops: Option<u32>,
    /// These techniques, by name, on or off.
    pub techniques: Vec<(String, bool)>,
    /// Compute nodes record their intents, and those that have stopped are found out, so that others take their locks
    /// over.
    pub takeover: bool,
}

impl Scenario {
    /// Yields the scenario of `seed`.
    pub fn draw(seed: u64, overrides: &Overrides) -> Self {
        let rng = &mut SmallRng::seed_from_u64(seed ^ 0x5ce7_a210_5ce7_a210);
        let shape = if seed.is_multiple_of(PLAIN_ONE_IN) { Shape::Plain } else { Shape::Hard };
        // Everything is drawn, overridden or not: the rest stays the same.
        let drawn = draw_mix(rng, shape);
        let mix = overrides.mix.unwrap_or(drawn);
        let cluster = draw_cluster(rng);
        let spec = overrides.kind.draw(|n| rng.random_range(0..n));
        let nodes = match shape {
            Shape::Plain => rng.random_range(1..=3),
            Shape::Hard => *[1, 2, 2, 2, 2, 2, 2, 3, 3, 3].choose(rng).expect("not empty"),
        };
        let adversary = match shape {
            Shape::Plain => Adversary::default(),
            Shape::Hard => draw_adversary(rng, &mix),
        };
        let lock_wait = match adversary.stands_still {
            _ if may_kill(&mix) => WAIT_WITH_DEATHS,
            true => WAIT_WITH_THE_STILL,
            false => WAIT,
        };
        let spec = spec.with_options(|options| options.lock_wait_max = lock_wait);
        let mut nodes: Vec<IndexSpec> = (0..nodes).map(|_| draw_options(rng, spec, shape)).collect();
        for (name, on) in &overrides.techniques {
            nodes.iter_mut().for_each(|node| {
                node.set_technique(name, *on);
            });
        }
        nodes.iter_mut().for_each(|node| node.options_mut().intent_log = overrides.takeover);
        let mut work = draw_work(rng, overrides.kind, shape);
        work.ops = overrides.ops.unwrap_or(work.ops);
        if seed % WANING_ONE_IN == 1 {
            work.shares.remove += WANING_REMOVES;
        }
        let fault_multiplier = *[1, 1, 4, 12].choose(rng).expect("not empty");
        Scenario { seed, cluster, nodes, work, mix, fault_multiplier, adversary }
    }

    /// Yields the rules of the faults, as often as they strike.
    pub(crate) fn rules(&self) -> Vec<Rule> {
        let hastened = |rule: &Rule| match rule.fault.is_of_control() {
            // There are few requests to control services, and all of them failing would be the end.
            true => *rule,
            false => Rule { one_in: (rule.one_in / self.fault_multiplier.max(1)).max(1), ..*rule },
        };
        self.mix.rules.iter().map(hastened).collect()
    }

    /// Yields those of them that strike before the work begins, which does without memory for a moment at most.
    pub(crate) fn first_rules(&self) -> Vec<Rule> {
        let rules = self.rules().into_iter().filter(|rule| rule.fault.is_of_control());
        let bounded = |rule: Rule| match rule.fault {
            Fault::NoMemory => Rule { most: rule.most.min(REFUSALS_AT_FIRST), ..rule },
            _ => rule,
        };
        rules.filter(|_| self.adversary.from_the_start).map(bounded).collect()
    }

    /// Yields the index as a compute node works on it, with as many retries as the faults call for.
    pub(crate) fn spec_of(&self, node: u16) -> IndexSpec {
        let retries_max = if may_kill(&self.mix) { RETRIES_WITH_DEATHS } else { RETRIES };
        let spec = self.nodes[usize::from(node) % self.nodes.len()];
        spec.with_options(|options| options.retries_max = retries_max)
    }

    /// Yields the index as its first compute node works on it.
    pub fn spec(&self) -> &IndexSpec {
        &self.nodes[0]
    }

    /// Tells whether compute nodes take over the locks of those that have stopped.
    pub(crate) fn takes_over(&self) -> bool {
        self.nodes.iter().any(|node| node.options().intent_log)
    }

    /// Counts the clients of all compute nodes.
    pub fn clients(&self) -> usize {
        self.nodes.len() * usize::from(self.cluster.shards) * usize::from(self.work.clients)
    }

    /// Tells whether one client does everything.
    pub(crate) fn has_one_client(&self) -> bool {
        self.clients() == 1 && self.adversary.joiners == 0 && !self.adversary.comes_back
    }

    /// Yields the simulation that it runs in.
    pub(crate) fn simulation(&self) -> SimConfig {
        let Cluster { shards, servers, colocated, reordering, credits, locks, device_locks, slow_control } =
            self.cluster;
        SimConfig {
            seed: self.seed,
            profile: Profile { device_bytes: 8 * device_locks, ..Profile::CONNECTX5 },
            reordering,
            nodes: self.nodes.len() as u16,
            shards,
            servers,
            colocated,
            bytes_per_server: self.spec().kind().trial().bytes_per_server,
            locks_per_server: locks,
            chunk_bytes: self.adversary.chunk_bytes,
            credits,
            slow_control,
            ignores_fences: false,
            any_order: self.adversary.any_order,
            finds_deaths: self.takes_over(),
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Its nodes as they run.
        let nodes = (0..self.nodes.len() as u16).map(|node| self.spec_of(node)).collect();
        write!(f, "{:?}", Scenario { nodes, ..self.clone() })
    }
}

/// Tells whether compute nodes may stop.
pub(crate) fn may_kill(mix: &FaultMix) -> bool {
    mix.has(|fault| fault == Fault::NodeStop)
}

/// Tells whether chains may fail because a memory server cannot be reached.
pub(crate) fn may_lose_servers(mix: &FaultMix) -> bool {
    mix.has(|fault| matches!(fault, Fault::ServerAway(_) | Fault::Partition(_)))
}

/// The ways in which seeds are drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// As in the beginning: reordering, faults of the fabric, small clusters.
    Plain,
    /// With everything that the adversary can do.
    Hard,
}

fn draw_mix(rng: &mut SmallRng, shape: Shape) -> FaultMix {
    let names: &[&str] = match shape {
        Shape::Plain => {
            &["none", "none", "delays", "delays", "errors", "errors", "outages", "crashes", "crashes", "all"]
        }
        Shape::Hard => &[
            "none",
            "delays",
            "delays",
            "errors",
            "errors",
            "outages",
            "partitions",
            "crashes",
            "crashes",
            "crashes",
            "churn",
            "wrecks",
            "control",
            "memory",
            "all",
            "all",
        ],
    };
    FaultMix::named(names.choose(rng).expect("there are mixes")).expect("a mix of the runtime's")
}

fn draw_adversary(rng: &mut SmallRng, mix: &FaultMix) -> Adversary {
    let (small_chunks, comes_back) = (rng.random(), rng.random());
    Adversary {
        chunk_bytes: if small_chunks || mix.has(Fault::is_of_control) { 4 << 10 } else { 16 << 10 },
        any_order: rng.random(),
        joiners: *[0, 0, 0, 1, 1, 2].choose(rng).expect("not empty"),
        comes_back: comes_back && may_kill(mix),
        short_values: rng.random(),
        drops_anywhere: rng.random_range(0..3) > 0,
        stands_still: rng.random_range(0..6) == 0,
        from_the_start: rng.random(),
    }
}

fn draw_cluster(rng: &mut SmallRng) -> Cluster {
    Cluster {
        shards: rng.random_range(1..=3),
        servers: rng.random_range(1..=3),
        colocated: rng.random(),
        reordering: draw_reordering(rng),
        credits: NonZero::new(*[1, 2, 4, 32, 4096].choose(rng).expect("not empty")).expect("none is 0"),
        locks: *[2, 16, 64, 256].choose(rng).expect("not empty"),
        device_locks: *[0, 2, 64].choose(rng).expect("not empty"),
        slow_control: rng.random(),
    }
}

fn draw_reordering(rng: &mut SmallRng) -> Reordering {
    let in_order_write = rng.random();
    if rng.random_range(0..8) == 0 {
        return Reordering { in_order_write, ..Reordering::NONE };
    }
    Reordering {
        lines: true,
        scatter_one_in: rng.random_range(0..=4),
        scatter_ns: *[300, 1_000, 3_000, 8_000].choose(rng).expect("not empty"),
        jitter_ns: *[0, 100, 1_000, 4_000].choose(rng).expect("not empty"),
        in_order_write,
    }
}

fn draw_options(rng: &mut SmallRng, spec: IndexSpec, shape: Shape) -> IndexSpec {
    let budgets: &[usize] = match shape {
        Shape::Plain => &[600, 2_000, 1 << 20, 1 << 20],
        Shape::Hard => spec.kind().trial().cache_bytes,
    };
    draw_techniques(rng, spec, shape == Shape::Hard).with_options(|options| {
        options.cache_bytes = *budgets.choose(rng).expect("not empty");
        options.backoff = draw_backoff(rng);
        options.scan_window = [1, 3, 32].choose(rng).copied();
    })
}

fn draw_backoff(rng: &mut SmallRng) -> Backoff {
    let &(min, max) = [(0, 0), (500, 16_000), (100, 2_000), (2_000, 2_000)].choose(rng).expect("not empty");
    Backoff { min: Duration::from_nanos(min), max: Duration::from_nanos(max) }
}

/// Draws techniques: a third has what users get, which is what is used most. Plain seeds draw the switches that are on
/// by default, others `all` of them.
fn draw_techniques(rng: &mut SmallRng, mut spec: IndexSpec, all: bool) -> IndexSpec {
    if rng.random_range(0..3) > 0 {
        for (name, _) in spec.techniques().into_iter().filter(|(_, on)| all || *on) {
            spec.set_technique(name, rng.random());
        }
    }
    spec
}

fn draw_work(rng: &mut SmallRng, kind: IndexKind, shape: Shape) -> Work {
    let mut share = |most| rng.random_range(0..=most);
    let shares = Shares {
        get: 1 + share(10),
        put: 1 + share(8),
        insert: share(6),
        update: share(6),
        remove: share(6),
        scan: share(4),
    };
    Work {
        clients: rng.random_range(1..=4),
        ops: rng.random_range(20..=150),
        keys: *[1, 2, 5, 5, 12, 12, 30, 30, 80, 80, 200, 200].choose(rng).expect("not empty"),
        shared_prefixes: (shape == Shape::Hard || kind.trial().is_radix) && rng.random(),
        loaded_percent: *[0, 0, 30, 70, 100].choose(rng).expect("not empty"),
        fill_percent: *[50, 80, 100].choose(rng).expect("not empty"),
        shares,
        skew: rng.random_range(1..=3),
        scan_limit_max: *[3, 10, 50].choose(rng).expect("not empty"),
        cancel_one_in: *[0, 0, 5, 20].choose(rng).expect("not empty"),
        think_ns: *[0, 0, 1_000, 20_000].choose(rng).expect("not empty"),
    }
}

#[cfg(test)]
mod tests {
    use farwood_index::layout::EntryVersion;

    use super::*;

    /// With another number, READs do not meet an entry whose version is the same again.
    #[test]
    fn reads_are_overtaken_by_as_many_writes_as_there_are_entry_versions() {
        let faults = FaultMix::ALL.iter().flat_map(|mix| mix.rules).map(|rule| rule.fault);
        let writes = faults.filter_map(|fault| match fault {
            Fault::OvertakenRead { writes, .. } => Some(writes),
            _ => None,
        });
        let mut writes = writes.peekable();
        assert!(writes.peek().is_some() && writes.all(|writes| writes == EntryVersion::COUNT));
    }

    fn draw(seed: u64, kind: IndexKind) -> Scenario {
        Scenario::draw(seed, &Overrides { kind, ..Overrides::default() })
    }

    #[test]
    fn every_seed_makes_a_scenario_that_can_be_run() {
        for &kind in IndexKind::ALL {
            for seed in 0..500 {
                let scenario = draw(seed, kind);
                assert!(scenario.nodes.iter().all(|node| node.kind() == kind && node.check().is_ok()));
                assert!((1..=36).contains(&scenario.clients()), "{scenario}");
            }
        }
    }

    #[test]
    fn wishes_change_nothing_else() {
        for &kind in IndexKind::ALL {
            let plain = draw(7, kind);
            let mix = FaultMix::named("delays");
            let techniques = vec![("delegation".into(), false)];
            let overrides = Overrides { kind, mix, ops: Some(5), techniques, takeover: true };
            let wished = Scenario::draw(7, &overrides);
            let mut nodes = plain.nodes.clone();
            nodes.iter_mut().for_each(|node| {
                assert!(node.set_technique("delegation", false));
                node.options_mut().intent_log = true;
            });
            assert_eq!(wished.nodes, nodes);
            assert_eq!((wished.mix, wished.work), (mix.unwrap(), Work { ops: 5, ..plain.work }));
            assert_eq!(
                (wished.cluster, wished.spec().limits().max_value),
                (plain.cluster, plain.spec().limits().max_value)
            );
        }
    }

    /// Counts, over 4,000 seeds, how often the swarm meets what it is to meet.
    #[test]
    fn seeds_draw_what_is_hard_often_enough() {
        const SEEDS: u64 = 4_000;
        for &kind in IndexKind::ALL {
            let drawn: Vec<Scenario> = (0..SEEDS).map(|seed| draw(seed, kind)).collect();
            let share = |is_met: &dyn Fn(&Scenario) -> bool| {
                drawn.iter().filter(|scenario| is_met(scenario)).count() as f64 / SEEDS as f64
            };
            assert!(share(&|scenario| scenario.nodes.len() >= 2) >= 0.8);
            let plain = share(&|scenario| scenario.adversary == Adversary::default());
            assert!((0.1..0.12).contains(&plain), "{plain}");
            for mix in FaultMix::ALL {
                assert!(share(&|scenario| scenario.mix == mix) > 0.03, "{}", mix.name);
            }
            assert!(share(&|scenario| may_kill(&scenario.mix) && scenario.adversary.comes_back) > 0.1);
            assert!(share(&|scenario| scenario.adversary.joiners > 0) > 0.3);
            assert!(share(&|scenario| scenario.adversary.any_order) > 0.3);
            assert!(share(&|scenario| scenario.adversary.short_values) > 0.3);
            assert!(
                share(&|scenario| scenario.adversary.drops_anywhere && scenario.work.cancel_one_in > 0) > 0.2
            );
            assert!(share(&|scenario| scenario.adversary.stands_still) > 0.1);
            assert!(share(&|scenario| !scenario.first_rules().is_empty()) > 0.05);
            assert!(share(&|scenario| scenario.work.shared_prefixes) > 0.4);
            let is_small = |node: &IndexSpec| node.options().cache_bytes < 22_000;
            assert!(share(&|scenario| scenario.nodes.iter().any(is_small)) > 0.7);
            for (name, _) in kind.techniques() {
                let differ = share(&|scenario| {
                    let mut is_on = scenario.nodes.iter().map(|node| node.technique(name) == Some(true));
                    is_on.clone().any(|on| on) && is_on.any(|on| !on)
                });
                let on = share(&|scenario| scenario.spec().technique(name) == Some(true));
                assert!(on > 0.25 && on < 0.95 && differ > 0.1, "{name}: {on}, {differ}");
            }
        }
    }
}
