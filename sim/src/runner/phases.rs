//! The phases of a run: opening the tree everywhere, loading it, work under faults, liveness, rest, and a last look.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::Future;
use std::ops::{Bound, RangeInclusive};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use farwood_index::{AnyIndex, CheckOptions, IndexError, KindStats, OpKind, RangeIndex};
use farwood_lock::LockConfig;
use farwood_runtime::alloc::Books;
use farwood_runtime::node::Host;
use farwood_runtime::sim::{Fault, SimShard, Simulation, Stop};
use farwood_runtime::{Control, PortLease, Verbs};
use futures::FutureExt;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::client::{Action, Client, Crew};
use crate::history::{Op, Outcome};
use crate::kind::{AnyTree, Recipe, books, locks_in_use};
use crate::recorder::{Range, Who};
use crate::scenario::{NodeOptions, Scenario};

const INDEX: &str = "swarm";
/// Virtual time that a phase may take: far more than any needs, so that what goes on for ever is found.
const PHASE_NS: u64 = 10_000_000_000;
/// The same once no fault strikes any more.
const LIVENESS_NS: u64 = 2_000_000_000;
/// Keys of which a client alone has its round trips counted.
const LONE_KEYS: usize = 12;
/// Writes of the last look.
const WRITES_AT_REST: usize = 60;

/// A scenario that is being run.
pub(super) struct Run<'r> {
    scenario: &'r Scenario,
    simulation: &'r Simulation,
    crew: Rc<Crew>,
}

/// A shard that clients work on.
struct Member<W: Verbs> {
    node: u16,
    shard: SimShard,
    verbs: W,
    index: AnyIndex<W>,
}

impl<'r> Run<'r> {
    pub(super) fn new(scenario: &'r Scenario, simulation: &'r Simulation, crew: Rc<Crew>) -> Self {
        Run { scenario, simulation, crew }
    }

    /// All phases; yields how many keys are there in the end.
    pub(super) fn all_phases<W: Verbs>(&self, wrap: impl Fn(SimShard, u32) -> W) -> Result<u64, String> {
        let fleet = self.open_everywhere(wrap)?;
        self.load(&fleet)?;
        self.simulation.set_faults(&self.scenario.rules());
        self.work(&fleet)?;
        self.simulation.heal();
        self.crew.recorder.give_all_up(self.simulation.now());
        self.stay_alive(&fleet)?;
        self.rest(&fleet)?;
        self.crew.recorder.rest();
        self.balance(&fleet)?;
        self.take_turns(&fleet)?;
        self.simulation.mark(self.crew.recorder.hash(), 0);
        self.look()
    }

    /// Ids of the compute nodes that have stopped.
    pub(super) fn dead(&self) -> BTreeSet<u16> {
        let nodes = 0..self.scenario.nodes.len() as u16;
        let shards = nodes.map(|node| self.simulation.shard(node, 0));
        shards.filter(SimShard::is_dead).map(|shard| shard.node_id()).collect()
    }

    fn open_everywhere<W: Verbs>(&self, wrap: impl Fn(SimShard, u32) -> W) -> Result<Vec<Member<W>>, String> {
        let mut fleet = Vec::new();
        for (node, options) in (0..).zip(&self.scenario.nodes) {
            self.crew.meet(self.simulation.shard(node, 0));
            let tree = self.open(node, self.scenario.recipe(*options), node == 0)?;
            for shard in 0..self.scenario.cluster.shards {
                let number = u32::from(node) * u32::from(self.scenario.cluster.shards) + u32::from(shard);
                let shard = self.simulation.shard(node, shard);
                let verbs = wrap(shard.clone(), number);
                let index = tree.attach(verbs.clone());
                fleet.push(Member { node, shard, verbs, index });
            }
        }
        Ok(fleet)
    }

    fn open(&self, node: u16, recipe: Recipe, creates: bool) -> Result<AnyTree, String> {
        let host = OneIndex::of(self.simulation.node(node));
        let opened = async move {
            match creates {
                true => recipe.create(&host, INDEX).await,
                false => recipe.open(&host, INDEX).await,
            }
        };
        let shard = self.simulation.shard(node, 0);
        self.block_on(&shard, opened)?.map_err(|error| format!("the tree cannot be opened: {error}"))
    }

    fn block_on<T: 'static>(
        &self,
        shard: &SimShard,
        what: impl Future<Output = T> + 'static,
    ) -> Result<T, String> {
        let until_ns = self.simulation.now() + PHASE_NS;
        self.simulation
            .block_on(shard, until_ns, what)
            .map_err(|stop| stopped(stop, "a lone client") + &self.still_open())
    }

    /// Loads a part of the keys, before anybody else is there.
    fn load<W: Verbs>(&self, fleet: &[Member<W>]) -> Result<(), String> {
        let work = self.scenario.work;
        if work.loaded_percent == 0 {
            return Ok(());
        }
        let mut rng = self.rng(u64::MAX);
        let keys = self.crew.keys.iter().filter(|_| rng.random_range(0..100) < work.loaded_percent);
        let pairs: Vec<_> =
            keys.map(|key| (key.clone(), self.crew.value(u64::from(key.len() as u32)))).collect();
        let Member { shard, index, .. } = &fleet[0];
        let (index, fill) = (index.clone(), f64::from(work.fill_percent) / 100.0);
        let loaded = pairs.clone();
        self.block_on(shard, async move { index.bulk_load(loaded, fill).await })?
            .map_err(|error| format!("the load failed: {error}"))?;
        // To all others it is as if somebody had put the pairs one by one.
        let who = Who { node: 0, client: self.scenario.clients() as u32 + 1 };
        for (key, value) in &pairs {
            self.crew.recorder.begin(who, 0, Op::Put, key, Some(value));
            self.crew.recorder.end(who, self.simulation.now(), Outcome::Ok, None);
        }
        Ok(())
    }

    /// All clients at work.
    fn work<W: Verbs>(&self, fleet: &[Member<W>]) -> Result<(), String> {
        self.with_all_clients(fleet, PHASE_NS, "at work", |_, client| client.work())?;
        self.crew.recorder.failure().map_or(Ok(()), Err)
    }

    /// All clients that are left write and read all keys, undisturbed.
    fn stay_alive<W: Verbs>(&self, fleet: &[Member<W>]) -> Result<(), String> {
        let clients = self.scenario.clients();
        self.with_all_clients(fleet, LIVENESS_NS, "though nothing disturbs them", |crew, mut client| {
            let mut actions = Vec::new();
            for key in (client.who.client as usize % clients..crew.keys.len()).step_by(clients) {
                let op =
                    [Op::Put, Op::Put, Op::Insert, Op::Update, Op::Remove][client.rng.random_range(0..5)];
                actions.extend([Action::Point(op, key), Action::Point(Op::Get, key)]);
            }
            actions.push(Action::Point(Op::Get, client.rng.random_range(0..crew.keys.len())));
            actions.push(Action::Point(Op::Put, client.rng.random_range(0..crew.keys.len())));
            actions.push(everything());
            async move {
                for (name, error) in client.perform_all(actions).await {
                    if !crew.is_of_dead(&error) {
                        crew.recorder.fail(format!("{name} failed, though nothing disturbs it: {error}"));
                    }
                }
            }
        })?;
        self.crew.recorder.failure().map_or(Ok(()), Err)
    }

    /// Lets every client do something, and waits for those whose compute node does not stop.
    fn with_all_clients<W: Verbs, F: Future<Output = ()> + 'static>(
        &self,
        fleet: &[Member<W>],
        within_ns: u64,
        what: &str,
        task: impl Fn(Rc<Crew>, Client<W>) -> F,
    ) -> Result<(), String> {
        let unfinished: Rc<Vec<Cell<usize>>> = Rc::new(fleet.iter().map(|_| Cell::new(0)).collect());
        let clients = usize::from(self.scenario.work.clients);
        for (place, member) in fleet.iter().enumerate().filter(|(_, member)| !member.shard.is_dead()) {
            for number in place * clients..(place + 1) * clients {
                let client = Client {
                    crew: Rc::clone(&self.crew),
                    index: member.index.clone(),
                    verbs: member.verbs.clone(),
                    who: Who { node: u32::from(member.node), client: number as u32 },
                    rng: self.rng(number as u64 ^ within_ns),
                };
                let (task, unfinished) = (task(Rc::clone(&self.crew), client), Rc::clone(&unfinished));
                unfinished[place].set(unfinished[place].get() + 1);
                drop(member.shard.spawn(async move {
                    task.await;
                    unfinished[place].set(unfinished[place].get() - 1);
                }));
            }
        }
        let is_left = |(member, left): (&Member<W>, &Cell<usize>)| left.get() > 0 && !member.shard.is_dead();
        let done = || !fleet.iter().zip(unfinished.iter()).any(is_left);
        self.simulation.run(self.simulation.now() + within_ns, done).map_err(|stop| {
            let left: usize = fleet.iter().zip(unfinished.iter()).map(|(_, left)| left.get()).sum();
            format!("{}{}", stopped(stop, &format!("{left} clients {what}")), self.still_open())
        })
    }

    /// Waits until the janitors have done their work, and nothing is left of it.
    fn rest<W: Verbs>(&self, fleet: &[Member<W>]) -> Result<(), String> {
        let alive = || fleet.iter().filter(|member| !member.shard.is_dead());
        let at_rest = |member: &Member<W>| {
            let Member { shard, index, .. } = member;
            shard.clients_alive() == 0 && shard.chains_in_flight() == 0 && locks_in_use(index) == 0
        };
        let rest = self.simulation.run(self.simulation.now() + PHASE_NS, || alive().all(at_rest));
        for (place, Member { shard, index, .. }) in alive().enumerate() {
            let left = [
                (shard.clients_alive(), "janitor's tasks"),
                (shard.chains_in_flight(), "chains in flight"),
                (locks_in_use(index), "local locks"),
                (if rest.is_ok() { shard.buffers_leased() } else { 0 }, "buffers on lease"),
            ];
            if let Some((count, what)) = left.into_iter().find(|(count, _)| *count > 0) {
                return Err(format!("{count} {what} are left on live shard {place} at rest ({rest:?})"));
            }
        }
        // What a stopped node had under way arrives too.
        self.until_idle()
    }

    /// Waits for what no client waits for: WRITEs on their way, janitors, paths that are made shorter.
    fn until_idle(&self) -> Result<(), String> {
        match self.simulation.run(self.simulation.now() + PHASE_NS, || false) {
            Err(Stop::Idle) => Ok(()),
            _ => Err("something goes on for ever, though no client does anything".into()),
        }
    }

    /// The books of the memory: what servers have handed out is what shards have, those of stopped nodes included.
    fn balance<W: Verbs>(&self, fleet: &[Member<W>]) -> Result<(), String> {
        let usage =
            self.simulation.cluster().usage().now_or_never().expect("embedded servers answer at once");
        let usage = usage.map_err(|error| format!("what is handed out is not known: {error}"))?;
        let handed_out: u64 = usage.iter().map(|server| server.chunk_bytes).sum();
        let books: Vec<Books> = fleet.iter().map(|member| books(&member.index)).collect();
        let had: u64 = books.iter().map(|books| books.used_bytes + books.free_bytes).sum();
        // What was asked for when its client was cancelled, or its node stopped, may have been handed out.
        let chunk = self.simulation.cluster().servers().iter().map(|server| server.chunk_bytes).max();
        let on_its_way = books.iter().filter(|books| books.asks).count() as u64 * chunk.unwrap_or(0);
        if (had..=had + on_its_way).contains(&handed_out) {
            return Ok(());
        }
        Err(format!("{handed_out} bytes of memory are handed out, {had} are had, {on_its_way} on their way"))
    }

    /// Clients of other compute nodes get their turn: whoever has taken a lock passes it on so many times at most.
    fn take_turns<W: Verbs>(&self, fleet: &[Member<W>]) -> Result<(), String> {
        let most = u64::from(LockConfig::default().handovers_max);
        for node in fleet.chunk_by(|a, b| a.node == b.node) {
            let locks = node.iter().map(|member| member.index.stats().locks);
            let (mut acquired, mut handed_over) = (0, 0);
            locks.for_each(|locks| {
                acquired += locks.acquired;
                handed_over += locks.handed_over;
            });
            let taken = acquired - handed_over;
            if handed_over > most * taken {
                let node = node[0].node;
                return Err(format!(
                    "node {node} has taken locks {taken} times and handed them over {handed_over} times, but each is \
                     handed over {most} times at most"
                ));
            }
        }
        Ok(())
    }

    /// A compute node that was not there before looks at all that is left.
    fn look(&self) -> Result<u64, String> {
        let node = self.scenario.nodes.len() as u16;
        let options = NodeOptions { lock_attempts_max: 20, cache_bytes: 1 << 20, ..self.scenario.nodes[0] };
        let techniques = options.techniques;
        let tree = self.open(node, Recipe { retries_max: 500, ..self.scenario.recipe(options) }, false)?;
        let shards: Vec<_> =
            (0..self.scenario.cluster.shards).map(|shard| self.simulation.shard(node, shard)).collect();
        let indexes: Vec<_> = shards.iter().map(|shard| tree.attach(shard.clone())).collect();
        let (index, verbs) = (indexes[0].clone(), shards[0].clone());
        let who = Who { node: u32::from(node), client: self.scenario.clients() as u32 };
        let options = CheckOptions { dead: self.dead(), ..CheckOptions::default() };
        let check = check(Rc::clone(&self.crew), index.clone(), verbs.clone(), who, options);
        let (keys, missing) = self.block_on(&shards[0], check)??;
        if missing > 0 && !self.may_lack_separators() {
            return Err(format!("{missing} nodes are not known to their parents, and nothing explains it"));
        }
        let client = Client { crew: Rc::clone(&self.crew), index, verbs, who, rng: self.rng(0) };
        let errors = self.block_on(&shards[0], client.perform_all(self.looks()))?;
        if let Some((name, error)) = errors.into_iter().find(|(_, error)| !self.crew.is_of_dead(error)) {
            return Err(format!("at rest, {name} failed: {error}"));
        }
        // A path that a removal left to be made shorter takes locks, too.
        self.until_idle()?;
        let lone = count_round_trips(Rc::clone(&self.crew), indexes[0].clone(), techniques.round_trips());
        self.block_on(&shards[0], lone)??;
        Ok(keys)
    }

    /// Gets all keys, writes some, which completes what others have left half done, and gets all again: what was not
    /// there at rest does not come back.
    fn looks(&self) -> Vec<Action> {
        let keys = self.crew.keys.len();
        let gets = || (0..keys).map(|key| Action::Point(Op::Get, key)).chain([everything()]);
        let mut rng = self.rng(1);
        let writes: Vec<_> = (0..keys.min(WRITES_AT_REST))
            .map(|_| {
                let op = [Op::Put, Op::Insert, Op::Remove][rng.random_range(0..3)];
                Action::Point(op, rng.random_range(0..keys))
            })
            .collect();
        gets().chain(writes).chain(gets()).collect()
    }

    /// Whether splits may have been given up: their operations were.
    fn may_lack_separators(&self) -> bool {
        let outages = self.scenario.mix.rules.iter().any(|rule| matches!(rule.fault, Fault::ServerAway(_)));
        outages || !self.dead().is_empty()
    }

    fn still_open(&self) -> String {
        self.crew.recorder.still_open()
    }

    fn rng(&self, purpose: u64) -> SmallRng {
        SmallRng::seed_from_u64(self.scenario.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ purpose)
    }
}

/// Checks the tree; yields how many keys it has, and how many nodes their parents do not know. What is in it is
/// noted as if a scan had returned it.
async fn check<V: Verbs>(
    crew: Rc<Crew>,
    index: AnyIndex<V>,
    verbs: V,
    who: Who,
    options: CheckOptions,
) -> Result<(u64, u64), String> {
    let range = Range { start: Bound::Unbounded, end: Bound::Unbounded, limit: None };
    crew.recorder.begin_scan(who, verbs.now(), range);
    let visit = |key: &[u8], value: &[u8]| crew.recorder.scanned(who, key, value);
    let report = index.check_each(&options, visit).await;
    let report = report.map_err(|error: IndexError| format!("the tree cannot be checked: {error}"))?;
    if let Some(violation) = report.violations.first() {
        let total = report.violations.total();
        return Err(format!("the tree is not intact ({total} violations): {violation}"));
    }
    match report.torn.is_empty() {
        true => crew.recorder.end_scan(who, verbs.now(), true),
        // The walk went around torn nodes: that a key was not met says nothing.
        false => crew.recorder.forget(who),
    }
    Ok((report.survey.keys, report.missing_separators.total()))
}

/// A client that no one disturbs and whose cache knows the tree takes the round trips of its index's table, for a get
/// and for an update.
async fn count_round_trips<V: Verbs>(
    crew: Rc<Crew>,
    index: AnyIndex<V>,
    (get, update): (RangeInclusive<u64>, RangeInclusive<u64>),
) -> Result<(), String> {
    for key in crew.keys.iter().take(LONE_KEYS) {
        // What came before may have found the cache's way to the key stale, and dropped it.
        drop(index.get(key).await);
        let before = index.stats();
        let Ok(Some(value)) = index.get(key).await else { continue };
        // Of the same length, so that it fits where the key's value is. One that fails has met a dead client's lock.
        let updated = index.update(key, &value).await;
        let mut spent = index.stats();
        spent -= &before;
        for (kind, expected) in [(OpKind::Get, &get), (OpKind::Update, &update)] {
            let KindStats { ops, round_trips, retries, .. } = *spent.kind(kind);
            if ops == 1 && retries == 0 && !expected.contains(&round_trips) {
                let name = kind.name();
                return Err(format!(
                    "a lone {name} ({updated:?}) took {round_trips} round trips, not {expected:?}"
                ));
            }
        }
    }
    Ok(())
}

/// A scan of all keys.
fn everything() -> Action {
    Action::Scan(Range { start: Bound::Unbounded, end: Bound::Unbounded, limit: None }, None)
}

fn stopped(stop: Stop, who: &str) -> String {
    match stop {
        Stop::Idle => format!("{who}: somebody waits for ever, and nothing is left to happen"),
        Stop::Late => format!("{who}: no end within {} s of virtual time", PHASE_NS / 1_000_000_000),
    }
}

/// Ports that one index takes at most: for its locks, and for what its clients share.
const PORTS: usize = 2;

/// A compute node with one index, as a value that a client can own.
struct OneIndex {
    control: Arc<dyn Control>,
    ports: [PortLease; PORTS],
    taken: AtomicUsize,
    seed: u64,
}

impl OneIndex {
    fn of(host: &impl Host) -> Self {
        let ports = std::array::from_fn(|_| host.allocate_port());
        OneIndex { control: host.control(), ports, taken: AtomicUsize::new(0), seed: host.seed() }
    }
}

impl Host for OneIndex {
    fn control(&self) -> Arc<dyn Control> {
        Arc::clone(&self.control)
    }

    fn allocate_port(&self) -> PortLease {
        self.ports[self.taken.fetch_add(1, Ordering::Relaxed)].clone()
    }

    fn seed(&self) -> u64 {
        self.seed
    }
}
