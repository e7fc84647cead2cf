//! The phases of a run: opening the tree everywhere, loading it, work under faults, liveness, rest, a last look, and
//! the end of the compute nodes.

use std::future::Future;

use std::ops::{Bound, RangeInclusive};
use std::rc::Rc;
use std::time::Duration;

use farwood_index::check::HeldLock;
use farwood_index::{
    AnyIndex, AnyTree, CheckOptions, CheckReport, IndexError, IndexSpec, KindStats, OpKind, OpenError,
    RangeIndex,
};
use farwood_lock::{LockConfig, LockStats};
use farwood_runtime::alloc::Books;
use farwood_runtime::epoch::Pins;
use farwood_runtime::sim::{Fault, SimShard, Simulation, Stop};
use farwood_runtime::{Abandoned, ClientPool, Control, ControlError, Verbs};
use futures::FutureExt;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::Steer;
use super::arrivals::{Arrivals, Busy};
use crate::client::{Action, Client, Crew};
use crate::history::{Op, Outcome};
use crate::recorder::{Range, Who};
use crate::scenario::{Scenario, may_lose_servers};
use crate::shard::Steerable;

const INDEX: &str = "swarm";
/// Another one, made before any node is known to be dead, and how long its clients wait for a lock: they have to find
/// out that its owner is.
const EARLIER: (&str, Duration) = ("earlier", Duration::from_millis(20));
/// One that is made when the dead are known to be.
const AFRESH: (&str, Duration) = ("afresh", Duration::from_millis(1));
/// Keys that go into each of them, with this value.
const OTHERS_KEYS: usize = 40;
const OTHERS_VALUE: &[u8] = b"another";
/// Numbers of the clients that load the index, that look at what is left of it, and that take over what the dead have
/// left, beyond all others.
const LOADER: u32 = 1_000;
const CHECKER: u32 = 1_001;
const HEIR: u32 = 1_002;
/// Virtual time after which a failed opening or load is tried again.
const OPEN_PAUSE_NS: u64 = 50_000;
/// Virtual time that a phase may take: far more than any needs, so that what goes on for ever is found.
const PHASE_NS: u64 = 10_000_000_000;
/// Virtual time that the clients may take once no fault strikes any more: each get of one, of up to 200 keys, may wait
/// for 100 ms at a lock of the dead.
const LIVENESS_NS: u64 = 60_000_000_000;
/// Keys of which a client alone has its round trips counted.
const LONE_KEYS: usize = 12;
/// One run in so many of those in which no compute node died gives memory back in the end.
const REPAIR_ONE_IN: u64 = 4;
/// The wait of the last look for a lock, and that where locks of the dead are taken over meanwhile.
const LOOK_WAIT: Duration = Duration::from_millis(1);
const TAKEOVER_WAIT: Duration = Duration::from_millis(20);
/// Writes of the last look.
const WRITES_AT_REST: usize = 60;

/// A scenario that is being run.
pub(super) struct Run<'r> {
    pub(super) scenario: &'r Scenario,
    pub(super) simulation: &'r Simulation,
    pub(super) crew: Rc<Crew>,
    /// Makes what steers the compute nodes' shards, if anything does.
    steer: Option<Steer<'r>>,
}

/// A shard that clients work on.
pub(super) struct Member {
    node: u16,
    pub(super) shard: SimShard,
    verbs: Steerable,
    pub(super) index: AnyIndex<Steerable>,
}

/// A client that looks at what is left, first of its compute node's shards.
pub(super) struct Visitor {
    pub(super) shards: Vec<SimShard>,
    pub(super) indexes: Vec<AnyIndex<Steerable>>,
    pub(super) who: Who,
}

impl<'r> Run<'r> {
    pub(super) fn new(
        scenario: &'r Scenario,
        simulation: &'r Simulation,
        crew: Rc<Crew>,
        steer: Option<Steer<'r>>,
    ) -> Self {
        Run { scenario, simulation, crew, steer }
    }

    /// Runs all phases; yields how many keys are there in the end.
    pub(super) fn all_phases(&self) -> Result<u64, String> {
        self.simulation.set_faults(&self.scenario.first_rules());
        let mut fleet = self.open_everywhere()?;
        self.load(&fleet)?;
        self.simulation.set_faults(&self.scenario.rules());
        self.work(&mut fleet)?;
        self.simulation.heal();
        self.crew.recorder.give_all_up(self.simulation.now());
        if self.scenario.takes_over() {
            // Replies about the dead that are late: no lock is taken over before they are there.
            self.until_idle()?;
        }
        self.stay_alive(&fleet)?;
        self.rest(&fleet)?;
        self.inherit(&mut fleet)?;
        self.crew.recorder.rest();
        self.balance(&fleet)?;
        self.take_turns(&fleet)?;
        self.simulation.mark(self.crew.recorder.hash(), 0);
        let keys = self.look(&fleet)?;
        if let Some(wait) = self.crew.unexplained() {
            return Err(format!("the death of no compute node explains that {wait}"));
        }
        self.use_others()?;
        self.part(fleet)?;
        if !self.crew.dead().is_empty() || self.scenario.seed.is_multiple_of(REPAIR_ONE_IN) {
            self.repair()?;
        }
        Ok(keys)
    }

    fn open_everywhere(&self) -> Result<Vec<Member>, String> {
        let mut fleet = Vec::new();
        for node in 0..self.scenario.nodes.len() as u16 {
            self.crew.meet(self.simulation.shard(node, 0));
            let tree = self.open(node, self.scenario.spec_of(node), node == 0)?;
            self.enlist(node, &tree, &mut fleet);
        }
        Ok(fleet)
    }

    /// Attaches the tree to all shards of a compute node.
    fn enlist(&self, node: u16, tree: &AnyTree, fleet: &mut Vec<Member>) {
        for shard in 0..self.scenario.cluster.shards {
            let number = u32::from(node) * u32::from(self.scenario.cluster.shards) + u32::from(shard);
            let shard = self.simulation.shard(node, shard);
            let verbs = Steerable::new(shard.clone(), self.steer.map(|steer| steer(&shard, number)));
            let index = tree.attach(verbs.clone());
            fleet.push(Member { node, shard, verbs, index });
        }
    }

    fn open(&self, node: u16, spec: IndexSpec, creates: bool) -> Result<AnyTree, String> {
        let shard = self.simulation.shard(node, 0);
        self.block_on(&shard, self.opening(node, spec, creates))?
    }

    /// Creates or opens the tree, again and again while faults explain why it could not be done.
    pub(super) fn opening(
        &self,
        node: u16,
        spec: IndexSpec,
        mut creates: bool,
    ) -> impl Future<Output = Result<AnyTree, String>> + use<> {
        let (host, crew, verbs) =
            (self.simulation.node(node), Rc::clone(&self.crew), self.simulation.shard(node, 0));
        async move {
            loop {
                let opened = match creates {
                    true => spec.create(&*host, INDEX).await,
                    false => spec.open(&*host, INDEX).await,
                };
                match opened.map_err(IndexError::from) {
                    Ok(tree) => return Ok(tree),
                    // The reply to the first attempt was lost.
                    Err(IndexError::Open(OpenError::Control(ControlError::Exists { .. }))) => creates = false,
                    Err(error) if crew.is_legal(&error) => verbs.pause(OPEN_PAUSE_NS).await,
                    Err(error) => return Err(format!("the tree cannot be opened: {error}")),
                }
            }
        }
    }

    pub(super) fn block_on<T: 'static>(
        &self,
        shard: &SimShard,
        what: impl Future<Output = T> + 'static,
    ) -> Result<T, String> {
        let until_ns = self.simulation.now() + PHASE_NS;
        self.simulation
            .block_on(shard, until_ns, what)
            .map_err(|stop| stopped(stop, PHASE_NS, "a lone client") + &self.still_open())
    }

    /// Loads a part of the keys, before any other client is there.
    fn load(&self, fleet: &[Member]) -> Result<(), String> {
        let work = self.scenario.work;
        if work.loaded_percent == 0 {
            return Ok(());
        }
        let mut rng = self.rng(u64::MAX);
        let mut pairs = Vec::new();
        for (place, key) in self.crew.keys.iter().enumerate() {
            if rng.random_range(0..100) < work.loaded_percent {
                pairs.push((key.clone(), self.crew.value(place, rng.random())));
            }
        }
        let Member { shard, index, .. } = &fleet[0];
        let (index, fill) = (index.clone(), f64::from(work.fill_percent) / 100.0);
        let (loaded, crew, verbs) = (pairs.clone(), Rc::clone(&self.crew), shard.clone());
        self.block_on(shard, async move {
            loop {
                let done = index.bulk_load(loaded.iter().map(|(key, value)| (key, value)), fill).await;
                match done.map_err(IndexError::from) {
                    Ok(_) => return Ok(()),
                    // A load that failed has left nothing.
                    Err(error) if crew.is_legal(&error) => verbs.pause(OPEN_PAUSE_NS).await,
                    Err(error) => return Err(format!("the load failed: {error}")),
                }
            }
        })??;
        // To all others it is as if a client had put the pairs one by one.
        let who = Who { node: 0, client: LOADER };
        for (key, value) in &pairs {
            self.crew.recorder.begin(who, 0, Op::Put, key, Some(value));
            self.crew.recorder.end(who, self.simulation.now(), Outcome::Ok, None);
        }
        Ok(())
    }

    /// Runs all clients at work, those of compute nodes that come later too.
    fn work(&self, fleet: &mut Vec<Member>) -> Result<(), String> {
        let busy = Rc::new(Busy::default());
        let set_to_work = |fleet: &[Member], from: usize| {
            for place in from..fleet.len() {
                self.set_to_work(fleet, place, PHASE_NS, &busy, &|_, client: Client| client.work());
            }
        };
        set_to_work(fleet, 0);
        let _sweeps = self.sweep_meanwhile(fleet);
        let arrivals = Arrivals::new(self);
        let is_over = || {
            for (node, tree) in arrivals.come()? {
                let from = fleet.len();
                self.enlist(node, &tree, fleet);
                set_to_work(fleet, from);
            }
            Ok((arrivals.are_over() && busy.left(fleet) == 0, busy.left(fleet)))
        };
        self.run_until(PHASE_NS, "at work", || (busy.ended(), arrivals.news()), is_over)?;
        self.crew.recorder.failure().map_or(Ok(()), Err)
    }

    /// Lets all clients that are left write and read all keys, undisturbed.
    fn stay_alive(&self, fleet: &[Member]) -> Result<(), String> {
        let clients = self.scenario.clients();
        let swept = self.sweep_once(fleet);
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
                    if !crew.is_lost(&error) {
                        crew.recorder.fail(format!("{name} failed, though nothing disturbs it: {error}"));
                    }
                }
            }
        })?;
        self.run_until(
            LIVENESS_NS,
            "look for lost memory",
            || (u64::from(swept.get()), 0),
            || Ok((swept.get(), 1)),
        )?;
        self.crew.recorder.failure().map_or(Ok(()), Err)
    }

    /// Lets every client run one action, and waits for those whose compute node does not stop.
    fn with_all_clients<F: Future<Output = ()> + 'static>(
        &self,
        fleet: &[Member],
        within_ns: u64,
        what: &str,
        task: impl Fn(Rc<Crew>, Client) -> F,
    ) -> Result<(), String> {
        let busy = Rc::new(Busy::default());
        for place in (0..fleet.len()).filter(|&place| !fleet[place].shard.is_dead()) {
            self.set_to_work(fleet, place, within_ns, &busy, &task);
        }
        self.run_until(
            within_ns,
            what,
            || (busy.ended(), 0),
            || Ok((busy.left(fleet) == 0, busy.left(fleet))),
        )
    }

    /// Lets every client of a shard do something.
    fn set_to_work<F: Future<Output = ()> + 'static>(
        &self,
        fleet: &[Member],
        place: usize,
        purpose: u64,
        busy: &Rc<Busy>,
        task: &impl Fn(Rc<Crew>, Client) -> F,
    ) {
        let (member, clients) = (&fleet[place], usize::from(self.scenario.work.clients));
        for number in place * clients..(place + 1) * clients {
            let client = Client {
                crew: Rc::clone(&self.crew),
                index: member.index.clone(),
                verbs: member.verbs.clone(),
                who: Who { node: u32::from(member.node), client: number as u32 },
                rng: self.rng(number as u64 ^ purpose),
            };
            let (task, busy) = (task(Rc::clone(&self.crew), client), Rc::clone(busy));
            busy.begin(place);
            drop(member.shard.spawn(async move {
                task.await;
                busy.end(place);
            }));
        }
    }

    /// Runs until `look` says that it is over. It looks again, and tells how many clients are left, when what `news`
    /// says has changed, or a compute node has stopped.
    fn run_until(
        &self,
        within_ns: u64,
        what: &str,
        news: impl Fn() -> (u64, u64),
        mut look: impl FnMut() -> Result<(bool, usize), String>,
    ) -> Result<(), String> {
        let until_ns = self.simulation.now() + within_ns;
        loop {
            let (is_over, left) = look()?;
            if is_over {
                return Ok(());
            }
            let news = || (news(), self.simulation.nodes_stopped());
            let old = news();
            self.simulation.run(until_ns, || news() != old).map_err(|stop| {
                stopped(stop, within_ns, &format!("{left} clients {what}")) + &self.still_open()
            })?;
        }
    }

    /// Waits until the janitors have done their work, and nothing is left of it.
    fn rest(&self, fleet: &[Member]) -> Result<(), String> {
        let alive = || fleet.iter().filter(|member| !member.shard.is_dead());
        let at_rest = |member: &Member| {
            let Member { shard, index, .. } = member;
            shard.clients_alive() == 0 && shard.chains_in_flight() == 0 && index.locks_in_use() == 0
        };
        let rest = self.simulation.run(self.simulation.now() + PHASE_NS, || alive().all(at_rest));
        for (place, Member { shard, index, .. }) in alive().enumerate() {
            let left = [
                (shard.clients_alive(), "janitor's tasks"),
                (shard.chains_in_flight(), "chains in flight"),
                (index.locks_in_use(), "local locks"),
                (if rest.is_ok() { shard.buffers_leased() } else { 0 }, "buffers on lease"),
            ];
            if let Some((count, what)) = left.into_iter().find(|(count, _)| *count > 0) {
                return Err(format!("{count} {what} are left on live shard {place} at rest ({rest:?})"));
            }
        }
        // What a stopped node had under way arrives too.
        self.until_idle()
    }

    /// Lets a compute node that comes late write to all keys, where locks of the dead are taken over: what the dead had
    /// recorded, and not acknowledged, takes effect when their lock is taken, and not after the rest.
    fn inherit(&self, fleet: &mut Vec<Member>) -> Result<(), String> {
        if !self.scenario.takes_over() || self.crew.dead().is_empty() {
            return Ok(());
        }
        let (node, place) = (self.simulation.add_node(None), fleet.len());
        let spec = self.scenario.spec_of(0).with_options(|options| options.lock_wait_max = TAKEOVER_WAIT);
        let tree = self.open(node, spec, false)?;
        self.enlist(node, &tree, fleet);
        let heir = Client {
            crew: Rc::clone(&self.crew),
            index: fleet[place].index.clone(),
            verbs: fleet[place].verbs.clone(),
            who: Who { node: u32::from(node), client: HEIR },
            rng: self.rng(2),
        };
        let updates = (0..self.crew.keys.len()).map(|key| Action::Point(Op::Update, key)).collect();
        let errors = self.block_on(&fleet[place].shard, heir.perform_every(updates))?;
        if let Some((name, error)) = errors.into_iter().find(|(_, error)| !self.crew.is_lost(error)) {
            return Err(format!("{name}, after the deaths, failed: {error}"));
        }
        self.rest(fleet)
    }

    /// Waits for what no client waits for: WRITEs on their way, janitors, paths that are made shorter.
    pub(super) fn until_idle(&self) -> Result<(), String> {
        match self.simulation.run(self.simulation.now() + PHASE_NS, || false) {
            Err(Stop::Idle) => Ok(()),
            _ => Err("something goes on for ever, though no client does anything".into()),
        }
    }

    /// Balances the books of the memory: what servers have handed out, and not got back, is what shards have, those of
    /// stopped nodes included.
    fn balance(&self, fleet: &[Member]) -> Result<(), String> {
        let handed_out = self.handed_out()?;
        let books: Vec<Books> = fleet.iter().map(|member| member.index.books()).collect();
        let had: i64 = books.iter().map(|books| books.used_bytes + books.free_bytes as i64).sum();
        let had = u64::try_from(had).map_err(|_| format!("the books say that {had} bytes are had"))?;
        // What was asked for when its client was cancelled, or its node stopped, may have been handed out.
        let chunk = self.simulation.cluster().servers().iter().map(|server| server.chunk_bytes).max();
        let on_its_way = books.iter().filter(|books| books.asks).count() as u64 * chunk.unwrap_or(0);
        // And a compute node that asks again when a reply was lost has lost a chunk.
        let on_its_way = on_its_way + self.simulation.bytes_lost();
        // A sweep has given back what shards of stopped nodes have in their books still.
        let handed_out = handed_out + self.simulation.bytes_taken_back();
        if (had..=had + on_its_way).contains(&handed_out) {
            return Ok(());
        }
        Err(format!("{handed_out} bytes of memory are handed out, {had} are had, {on_its_way} on their way"))
    }

    /// Counts the bytes that servers have handed out, and not got back.
    fn handed_out(&self) -> Result<u64, String> {
        let cluster = self.simulation.cluster();
        let indexes = cluster.list().now_or_never().expect("embedded servers answer at once");
        let mut bytes = 0;
        for index in indexes.map_err(|error| format!("what is handed out is not known: {error}"))? {
            let holdings =
                cluster.holdings(index.id).now_or_never().expect("embedded servers answer at once");
            let holdings = holdings.map_err(|error| format!("what is handed out is not known: {error}"))?;
            bytes += holdings.iter().flat_map(|held| &held.used).map(|piece| piece.bytes).sum::<u64>();
        }
        Ok(bytes)
    }

    /// Checks that clients of other compute nodes get their turn: a lock is passed on only so many times.
    fn take_turns(&self, fleet: &[Member]) -> Result<(), String> {
        let most = u64::from(LockConfig::default().handovers_max);
        for node in fleet.chunk_by(|a, b| a.node == b.node) {
            let mut locks = LockStats::default();
            node.iter().for_each(|member| locks += &member.index.stats().locks);
            let LockStats { acquired, handed_over, .. } = locks;
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

    /// Looks at all that is left, with a compute node that was not there before.
    fn look(&self, fleet: &[Member]) -> Result<u64, String> {
        let spec = self.scenario.spec().with_options(|options| {
            options.cache_bytes = 1 << 20;
            options.retries_max = 500;
            options.lock_wait_max = if self.scenario.takes_over() { TAKEOVER_WAIT } else { LOOK_WAIT };
        });
        let visitor = self.visitor(spec)?;
        let (index, shard) = (&visitor.indexes[0], &visitor.shards[0]);
        let options = CheckOptions { dead: self.crew.dead(), ..CheckOptions::default() };
        let checked = || {
            let (index, verbs, options) = (index.clone(), Steerable::from(shard.clone()), options.clone());
            self.block_on(shard, check(Rc::clone(&self.crew), index, verbs, visitor.who, options))?
        };
        let report = checked()?;
        let (keys, missing) = (report.survey.keys, report.missing_separators.total());
        if missing > 0 && !self.may_lack_separators() {
            return Err(format!("{missing} nodes are not known to their parents, and nothing explains it"));
        }
        self.visit(&visitor, self.looks())?;
        // A path that a removal left to be made shorter takes locks, too.
        self.until_idle()?;
        let mut report = self.take_over(shard, index, checked()?, checked)?;
        let mut visitors = vec![];
        // Of several in a row, visitors find the next when the one before is in.
        while report.missing_separators.total() > 0 && report.orphaned.is_empty() {
            let before = report.missing_separators.total();
            self.visit(&visitor, self.all_twice())?;
            self.until_idle()?;
            report = checked()?;
            if report.missing_separators.total() >= before {
                // A copy of a node from before its split was finished, in the cache, leads to its keys all the same.
                visitors.push(self.visitor(spec)?);
                self.visit(&visitors[visitors.len() - 1], self.all_twice())?;
                self.until_idle()?;
                report = checked()?;
            }
            if report.missing_separators.total() >= before {
                return Err(format!(
                    "{before} nodes are not known to their parents, though visitors have come by"
                ));
            }
        }
        let of_visitors = visitors.iter().chain([&visitor]).flat_map(|visitor| &visitor.indexes);
        let of_fleet = fleet.iter().map(|member| (&member.index, !member.shard.is_dead()));
        let all: Vec<_> = of_fleet.chain(of_visitors.map(|index| (index, true))).collect();
        self.count_nodes(&all, &report)?;
        self.account(&all, &report)?;
        let (crew, pins) = (Rc::clone(&self.crew), Rc::clone(shard.pins()));
        let lone = count_round_trips(crew, pins, index.clone(), spec.round_trips());
        self.block_on(shard, lone)??;
        Ok(keys)
    }

    /// Lets a client come from a compute node that was not there before.
    pub(super) fn visitor(&self, spec: IndexSpec) -> Result<Visitor, String> {
        let node = self.simulation.add_node(None);
        let tree = self.open(node, spec, false)?;
        let shards: Vec<_> =
            (0..self.scenario.cluster.shards).map(|shard| self.simulation.shard(node, shard)).collect();
        let indexes = shards.iter().map(|shard| tree.attach(Steerable::from(shard.clone()))).collect();
        Ok(Visitor { shards, indexes, who: Who { node: u32::from(node), client: CHECKER } })
    }

    pub(super) fn visit(&self, visitor: &Visitor, actions: Vec<Action>) -> Result<(), String> {
        let client = Client {
            crew: Rc::clone(&self.crew),
            index: visitor.indexes[0].clone(),
            verbs: Steerable::from(visitor.shards[0].clone()),
            who: visitor.who,
            rng: self.rng(0),
        };
        let errors = self.block_on(&visitor.shards[0], client.perform_all(actions))?;
        let error = errors.into_iter().find(|(_, error)| !self.crew.is_lost(error));
        error.map_or(Ok(()), |(name, error)| Err(format!("at rest, {name} failed: {error}")))
    }

    /// Gets all keys twice: a client that comes to a leaf from under a cached parent notes it; one that comes again
    /// puts it in.
    fn all_twice(&self) -> Vec<Action> {
        let keys = self.crew.keys.len();
        (0..keys).chain(0..keys).map(|key| Action::Point(Op::Get, key)).collect()
    }

    /// Takes over the locks of the dead that no client has asked for. Those alone may stay that are lost with their
    /// owners: these had no memory for intents, or had taken a leftover, which the words say. Then no node is torn, but
    /// under one of them.
    fn take_over(
        &self,
        shard: &SimShard,
        index: &AnyIndex<Steerable>,
        report: CheckReport,
        check_again: impl Fn() -> Result<CheckReport, String>,
    ) -> Result<CheckReport, String> {
        if !self.scenario.takes_over() {
            return Ok(report);
        }
        let mut lost = 0;
        for &held in report.orphaned.iter() {
            let HeldLock { at, word } = held;
            let index = index.clone();
            let taken = self.block_on(shard, async move { index.take_over(&held).await })?;
            match taken.map_err(|error| format!("the lock {at} cannot be taken over: {error}"))? {
                true => {}
                false if word.keeps_intents() && word.tag() != 0 => {
                    return Err(format!("the lock {at} of a dead owner is not taken over: {word:?}"));
                }
                false => lost += 1,
            }
        }
        self.until_idle()?;
        let report = check_again()?;
        let (orphaned, torn) = (report.orphaned.total(), report.torn.total());
        if orphaned != lost || lost == 0 && torn > 0 {
            return Err(format!(
                "{orphaned} locks are of dead owners, {lost} of which are lost, and {torn} nodes are torn"
            ));
        }
        Ok(report)
    }

    /// Uses other indexes, which share lock words with this one: its dead clients' locks keep none of their clients.
    fn use_others(&self) -> Result<(), String> {
        let dead = self.crew.dead();
        if dead.is_empty() {
            return Ok(());
        }
        let node = self.simulation.add_node(None);
        let earlier = self.make_another(node, EARLIER)?;
        dead.iter().for_each(|&node| self.simulation.cluster().died(node));
        let afresh = self.make_another(node, AFRESH)?;
        self.use_another(node, &earlier, EARLIER.0)?;
        self.use_another(node, &afresh, AFRESH.0)
    }

    fn make_another(
        &self,
        node: u16,
        (name, lock_wait_max): (&'static str, Duration),
    ) -> Result<AnyTree, String> {
        let (host, shard) = (self.simulation.node(node), self.simulation.shard(node, 0));
        let spec = self.scenario.spec_of(0).with_options(|options| options.lock_wait_max = lock_wait_max);
        let made = self.block_on(&shard, async move { spec.create(&*host, name).await })?;
        made.map_err(|error| format!("the index {name:?} cannot be made: {error}"))
    }

    fn use_another(&self, node: u16, tree: &AnyTree, name: &str) -> Result<(), String> {
        let shards = (0..self.scenario.cluster.shards).map(|shard| self.simulation.shard(node, shard));
        // Each shard is home to locks.
        let indexes: Vec<_> = shards.map(|shard| tree.attach(Steerable::from(shard))).collect();
        let crew = Rc::clone(&self.crew);
        let written = self.block_on(&self.simulation.shard(node, 0), async move {
            let index = &indexes[0];
            let keys: Vec<_> = crew.keys.iter().take(OTHERS_KEYS).collect();
            for key in &keys {
                index.put(key, OTHERS_VALUE).await?;
            }
            let mut absent = 0;
            for key in &keys {
                absent += u64::from(index.get(key).await?.as_deref() != Some(OTHERS_VALUE));
            }
            Ok(absent)
        })?;
        match written {
            Ok(0) => Ok(()),
            Ok(absent) => Err(format!("{absent} keys of the index {name:?} are not there")),
            Err::<u64, IndexError>(error) => Err(format!("the index {name:?} cannot be used: {error}")),
        }
    }

    /// Lets the compute nodes that are alive end: the index's actors go with its last handle, and closed shards
    /// leave nothing undone.
    fn part(&self, fleet: Vec<Member>) -> Result<(), String> {
        let shards = fleet.iter().map(|member| member.shard.clone());
        let shards: Vec<SimShard> = shards.filter(|shard| !shard.is_dead()).collect();
        drop(fleet);
        self.until_idle()?;
        if let Some(place) = shards.iter().position(|shard| shard.actors() > 0) {
            let actors = shards[place].actors();
            return Err(format!("{actors} actors of a dropped index are left on live shard {place}"));
        }
        let closing: Vec<_> = shards.into_iter().map(|shard| shard.spawn(shard.clone().close())).collect();
        self.until_idle()?;
        for (place, closed) in closing.into_iter().enumerate() {
            let closed = closed.outcome().now_or_never();
            let mut abandoned = closed.and_then(Result::ok).ok_or("a shard that is closed never ends")?;
            // The crew asks it whether it is dead.
            abandoned.handles = 0;
            if abandoned != Abandoned::default() {
                return Err(format!("live shard {place} is closed and abandons work: {abandoned:?}"));
            }
        }
        Ok(())
    }

    /// Gets all keys, writes some, which completes what others have left half done, and gets all again: what was not
    /// there at rest does not come back.
    pub(super) fn looks(&self) -> Vec<Action> {
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

    /// Tells whether splits may have been given up: their operations were.
    fn may_lack_separators(&self) -> bool {
        let mix = &self.scenario.mix;
        may_lose_servers(mix) || mix.has(Fault::is_of_control) || !self.crew.in_the_way().is_empty()
    }

    fn still_open(&self) -> String {
        self.crew.recorder.still_open()
    }

    fn rng(&self, purpose: u64) -> SmallRng {
        SmallRng::seed_from_u64(self.scenario.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ purpose)
    }
}

/// Checks the tree. What is in it is noted as if a scan had returned it.
pub(super) async fn check(
    crew: Rc<Crew>,
    index: AnyIndex<Steerable>,
    verbs: Steerable,
    who: Who,
    options: CheckOptions,
) -> Result<CheckReport, String> {
    let range = Range { start: Bound::Unbounded, end: Bound::Unbounded, limit: None };
    crew.recorder.begin_scan(who, verbs.now(), range);
    let visit = |key: &[u8], value: &[u8]| crew.recorder.scanned(who, key, value);
    let report = index.check_each(&options, visit).await;
    let report = report.map_err(|error| format!("the tree cannot be checked: {error}"))?;
    if let Some(violation) = report.violations.first() {
        let total = report.violations.total();
        return Err(format!("the tree is not intact ({total} violations): {violation}"));
    }
    match report.torn.is_empty() {
        true => crew.recorder.end_scan(who, verbs.now(), true),
        // The walk went around torn nodes: that a key was not met says nothing.
        false => crew.recorder.forget(who),
    }
    Ok(report)
}

/// Checks that an undisturbed client whose cache knows the tree takes the round trips of its index's table, for a get
/// and for an update.
async fn count_round_trips(
    crew: Rc<Crew>,
    pins: Rc<Pins>,
    index: AnyIndex<Steerable>,
    (get, update): (RangeInclusive<u64>, RangeInclusive<u64>),
) -> Result<(), String> {
    for key in crew.keys.iter().take(LONE_KEYS) {
        let flushed = pins.flushed();
        // What came before may have left a node on the way half replaced, which a writer finishes, or of a type that
        // the way there does not tell yet: until then no cache has it. Or it has dropped the cache's way to the key.
        if let Ok(Some(value)) = index.get(key).await {
            drop(index.update(key, &value).await);
            drop(index.get(key).await);
        }
        let before = index.stats();
        let Ok(Some(value)) = index.get(key).await else { continue };
        // Of the same length, so that it fits where the key's value is. One that fails has met a dead client's lock.
        let updated = index.update(key, &value).await;
        let mut spent = index.stats();
        spent -= &before;
        for (kind, expected) in [(OpKind::Get, &get), (OpKind::Update, &update)] {
            let KindStats { ops, round_trips, retries, .. } = *spent.kind(kind);
            let is_lone = ops == 1 && retries == 0 && pins.flushed() == flushed;
            if is_lone && !expected.contains(&round_trips) {
                let name = kind.name();
                return Err(format!(
                    "a lone {name} ({updated:?}) took {round_trips} round trips, not {expected:?}"
                ));
            }
        }
    }
    Ok(())
}

/// Yields a scan of all keys.
fn everything() -> Action {
    Action::Scan(Range { start: Bound::Unbounded, end: Bound::Unbounded, limit: None }, None)
}

fn stopped(stop: Stop, within_ns: u64, who: &str) -> String {
    match stop {
        Stop::Idle => format!("{who}: an operation waits for ever, and nothing is left to happen"),
        Stop::Late => format!("{who}: no end within {} s of virtual time", within_ns / 1_000_000_000),
    }
}
