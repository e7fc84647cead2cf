//! A fabric that does nothing by itself: compute nodes of several shards over one memory, in one thread. Each step (a
//! verb of some queue pair, a completion, a message, a timer, a task that was woken) is chosen by a seeded generator,
//! among all that the fabric contract allows; the same seed gives the same run.
//!
//! Kept: order on one queue pair, FIFO messages between two shards, submissions that outlive their futures. WRITEs
//! happen line by line, in address order or in any. A chain that fails has executed any prefix of its verbs and any
//! lines of the WRITE behind it (the first ones, where they come in order). Where WRITEs and atomics are not atomic, a
//! CAS reads in one step and stores in another, while no other atomic is executed. Not modelled: WRITEs that overtake
//! READs and atomics.

mod fault;
mod task;
mod verbs;

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Context;

use farwood_lock::window::{WindowConfig, WindowTable};
use farwood_lock::{Images, IntentLog, LockConfig, LockTable, Mending, WordCodec};
use farwood_runtime::chain::{MASKED_BYTES, Op, Verb};
use farwood_runtime::epoch::Pins;
use farwood_runtime::mapped::MappedDevice;
use farwood_runtime::verbs::Handler;
use farwood_runtime::{
    Buf, BufferPool, Capabilities, Completion, Control, Failed, IndexId, Message, NodeAllocator, Port,
    RemotePtr, ServerId, ShardId, Verbs,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use smallvec::SmallVec;

pub(crate) use fault::Fault;
use fault::{Faults, execute_in_part, lines_of, rebuilt, write_line};
use task::Woken;
pub(crate) use verbs::Fake;
use verbs::{Flight, Memory};

/// The first lock word, and how many there are: few, so that nodes share them.
pub(crate) const LOCK_BASE: u64 = 64;
pub(crate) const LOCKS: u64 = 16;
/// The offset of a test's nodes.
pub(crate) const NODES: u64 = 1024;
/// The bytes of a node.
pub(crate) const NODE_BYTES: usize = 128;
const REGION_BYTES: usize = 16 << 10;
/// Chunks of memory, behind the rest of the region, and the word in which the list of pages begins.
const CHUNK_BYTES: usize = 16 << 10;
const CHUNKS: usize = 4;
const PAGES: RemotePtr = RemotePtr::new(ServerId(0), 8);
/// Timers that are due later than that, in ns, wait until nothing else can happen.
const FAR_NS: u64 = 1_000_000;
const PORT: Port = Port(3);

/// The cluster and everything that is under way in it. The one that was made ends it when it is dropped: its state
/// holds tables, which hold clones.
pub(crate) struct World {
    state: Rc<RefCell<State>>,
    memory: Arc<Memory>,
    control: Arc<dyn Control>,
    capabilities: Capabilities,
    pins: Rc<Pins>,
    is_clone: bool,
}

impl Clone for World {
    fn clone(&self) -> Self {
        World {
            state: Rc::clone(&self.state),
            memory: Arc::clone(&self.memory),
            control: Arc::clone(&self.control),
            capabilities: self.capabilities,
            pins: Rc::clone(&self.pins),
            is_clone: true,
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if !self.is_clone {
            let tasks = mem::take(&mut self.state.borrow_mut().tasks);
            drop(tasks);
            let mut state = self.state.borrow_mut();
            let handlers: Vec<_> =
                state.shards.iter_mut().map(|shard| mem::take(&mut shard.handlers)).collect();
            drop(state);
            drop(handlers);
        }
    }
}

struct State {
    rng: SmallRng,
    now: u64,
    memory: Vec<u8>,
    shards: Vec<Shard>,
    tasks: Vec<Option<Task>>,
    timers: Vec<(u64, Rc<RefCell<Flight<()>>>)>,
    /// Messages on their way, by sender and receiver.
    wires: HashMap<(usize, usize), VecDeque<(Port, Message)>>,
    faults: Faults,
    in_order_write: bool,
    atomic_writes: bool,
    /// The queue pair whose CAS has read its word and not stored it yet, and what it found.
    halfway: Option<(usize, u64)>,
    /// The codec of free words in nodes.
    codec: WordCodec,
    /// Messages that were sent between shards.
    sent: usize,
    /// Fenced verbs that were posted.
    fences: usize,
    /// Looks at the clock.
    clock_reads: usize,
}

struct Shard {
    node: u16,
    id: ShardId,
    /// Its compute node has died: nothing of it takes effect any more.
    is_dead: bool,
    pool: BufferPool,
    /// The one queue pair: there is one memory server.
    queue: VecDeque<Posted>,
    done: VecDeque<Done>,
    handlers: HashMap<Port, Handler>,
}

struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    woken: Arc<Woken>,
}

type Outcome = Result<Completion, Failed>;

struct Posted {
    verbs: Vec<Verb>,
    /// Verbs of it that were executed.
    executed: usize,
    /// The lines of the next one that were: bit i for its i-th line.
    lines: u32,
    buf: Option<Buf>,
    atomics: SmallVec<[u64; 2]>,
    fault: Option<Fault>,
    /// True if its compute node dies where it would fail.
    dies: bool,
    flight: Rc<RefCell<Flight<Outcome>>>,
}

struct Done {
    flight: Rc<RefCell<Flight<Outcome>>>,
    outcome: Outcome,
}

#[derive(Clone, Copy)]
enum Step {
    Execute(usize),
    Complete(usize),
    Deliver(usize, usize),
    Fire(usize),
    Poll(usize),
}

impl World {
    /// Makes a world of `nodes` compute nodes of `shards` shards each.
    pub(crate) fn new(seed: u64, nodes: u16, shards: u16) -> Self {
        let shard = |node, id| Shard {
            node,
            id: ShardId(id),
            is_dead: false,
            pool: BufferPool::new(),
            queue: VecDeque::new(),
            done: VecDeque::new(),
            handlers: HashMap::new(),
        };
        let state = State {
            rng: SmallRng::seed_from_u64(seed),
            now: 0,
            memory: vec![0; REGION_BYTES + CHUNKS * CHUNK_BYTES],
            shards: (0..nodes).flat_map(|n| (0..shards).map(move |s| shard(n + 1, s))).collect(),
            tasks: Vec::new(),
            timers: Vec::new(),
            wires: HashMap::new(),
            faults: Faults::default(),
            in_order_write: true,
            atomic_writes: true,
            halfway: None,
            codec: WordCodec::PLAIN,
            sent: 0,
            fences: 0,
            clock_reads: 0,
        };
        let (state, memory) = (Rc::new(RefCell::new(state)), Arc::new(Memory::new()));
        let control = Arc::clone(&memory) as Arc<dyn Control>;
        let pins = Pins::alone();
        World { state, memory, control, capabilities: MappedDevice::EMBEDDED, pins, is_clone: false }
    }

    /// Lets the control plane know these compute nodes, ascending, as dead from now on.
    pub(crate) fn set_dead(&self, nodes: &[u16]) {
        *self.memory.dead.lock().expect("one thread") = nodes.into();
    }

    /// Counts how often the control plane was asked which compute nodes are dead.
    pub(crate) fn asked_for_dead(&self) -> usize {
        self.memory.asked_for_dead.load(Ordering::Relaxed)
    }

    /// Chooses whether lines of one WRITE happen in address order or in any, and the fabric says so. They are in order
    /// otherwise.
    pub(crate) fn with_lines(mut self, in_order: bool) -> Self {
        self.capabilities.in_order_write = in_order;
        self.state.borrow_mut().in_order_write = in_order;
        self
    }

    /// Lets lines of one WRITE happen in any order, while the fabric says the opposite: for negative controls.
    pub(crate) fn with_lines_that_lie(self) -> Self {
        let lying = self.with_lines(true);
        lying.state.borrow_mut().in_order_write = false;
        lying
    }

    /// Chooses whether atomics are atomic against WRITEs, and the fabric says so. They are otherwise.
    pub(crate) fn with_atomic_writes(mut self, atomic: bool) -> Self {
        self.capabilities.atomic_writes = atomic;
        self.state.borrow_mut().atomic_writes = atomic;
        self
    }

    /// Lets atomics undo WRITEs, while the fabric says the opposite: for a negative control.
    pub(crate) fn with_atomics_that_lie(self) -> Self {
        self.state.borrow_mut().atomic_writes = false;
        self
    }

    /// Chooses whether the fabric says that it has masked CAS. It does not otherwise.
    pub(crate) fn with_masked_atomic(mut self, masked: bool) -> Self {
        self.capabilities.masked_atomic = masked;
        self
    }

    /// Lets time pass in which nothing happens: the process is stopped.
    pub(crate) fn stand_still(&self, ns: u64) {
        self.state.borrow_mut().now += ns;
    }

    /// Lets chains fail with this probability from now on.
    pub(crate) fn set_fault_rate(&self, rate: f64) {
        self.state.borrow_mut().faults.rate = rate;
    }

    /// Lets the `number`-th chain that is posted from now on fail like that.
    pub(crate) fn fail(&self, number: usize, fault: Fault) {
        let faults = &mut self.state.borrow_mut().faults;
        faults.planned.insert(faults.posted + number, fault);
    }

    /// Lets the compute node that posts the `number`-th chain from now on die in it, where such a fault would strike.
    pub(crate) fn die(&self, number: usize, fault: Fault) {
        self.fail(number, fault);
        let faults = &mut self.state.borrow_mut().faults;
        faults.deaths.insert(faults.posted + number);
    }

    /// Lets no failure and no death happen that was planned.
    pub(crate) fn spare(&self) {
        let faults = &mut self.state.borrow_mut().faults;
        faults.planned.clear();
        faults.deaths.clear();
    }

    /// Takes all memory away, or gives it back.
    pub(crate) fn set_out_of_memory(&self, is_out: bool) {
        self.memory.is_out.store(is_out, Ordering::Relaxed);
    }

    /// Counts the chains that were posted.
    pub(crate) fn posted(&self) -> usize {
        self.state.borrow().faults.posted
    }

    /// Attaches a lock table to each shard of all compute nodes, and yields them.
    pub(crate) fn attach(&self, config: LockConfig) -> Vec<(Fake, LockTable<Fake>)> {
        self.state.borrow_mut().codec = config.codec;
        let shards = self.state.borrow().shards.len();
        let mut images = HashMap::<u16, Arc<Images>>::new();
        let attach = |shard| {
            let fake = Fake::new(self.clone(), shard);
            let images = Arc::clone(images.entry(fake.node_id()).or_default());
            (fake.clone(), LockTable::attach_with_images(fake, PORT, config.clone(), images))
        };
        (0..shards).map(attach).collect()
    }

    /// Attaches a lock table with intents to each shard of all compute nodes, and yields them.
    pub(crate) fn attach_with_intents(&self, config: LockConfig) -> Vec<(Fake, LockTable<Fake>)> {
        self.attach_with_mending(config, None)
    }

    /// Attaches a lock table with intents to each shard of all compute nodes, whose nodes are mended in that way, and
    /// yields them.
    pub(crate) fn attach_with_mending(
        &self,
        config: LockConfig,
        mending: Option<Mending>,
    ) -> Vec<(Fake, LockTable<Fake>)> {
        self.state.borrow_mut().codec = config.codec;
        let shards = self.state.borrow().shards.len();
        let attach = |shard| {
            let fake = Fake::new(self.clone(), shard);
            let allocator =
                Rc::new(NodeAllocator::new(Arc::clone(&self.control), IndexId(1), 0, Rc::clone(&self.pins)));
            let log =
                IntentLog { head: PAGES, allocator, node_bytes: NODE_BYTES as u64, mending: mending.clone() };
            let (config, images) = (config.clone(), Arc::default());
            (fake.clone(), LockTable::attach_with_intents(fake, PORT, config, images, Some(log)))
        };
        (0..shards).map(attach).collect()
    }

    /// Attaches a window table to each shard of all compute nodes, and yields them.
    pub(crate) fn attach_windows(&self, config: WindowConfig) -> Vec<(Fake, WindowTable<Fake>)> {
        let shards = self.state.borrow().shards.len();
        let attach = |shard| {
            let fake = Fake::new(self.clone(), shard);
            (fake.clone(), WindowTable::attach(fake, PORT, config))
        };
        (0..shards).map(attach).collect()
    }

    /// Counts the messages that were sent.
    pub(crate) fn sent(&self) -> usize {
        self.state.borrow().sent
    }

    /// Counts the tasks that have not ended.
    pub(crate) fn alive(&self) -> usize {
        self.state.borrow().tasks.iter().flatten().count()
    }

    pub(crate) fn clock_reads(&self) -> usize {
        self.state.borrow().clock_reads
    }

    pub(crate) fn fences(&self) -> usize {
        self.state.borrow().fences
    }

    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        let task = Task { future: Box::pin(future), woken: Woken::new() };
        self.state.borrow_mut().tasks.push(Some(task));
    }

    /// Runs steps until nothing is left to do. Panics if a task still waits then: it was forgotten.
    pub(crate) fn run(&self) {
        while self.step(true) {}
        let waiting = self.state.borrow().tasks.iter().flatten().count();
        assert_eq!(waiting, 0, "tasks wait for something that never comes");
        self.state.borrow_mut().tasks.clear();
    }

    /// Runs steps until nothing is left to do, though tasks of the dead wait for what never comes.
    pub(crate) fn run_with_the_dead(&self) {
        while self.step(true) {}
    }

    /// Runs steps until nothing is left to do but what the test itself has to allow, or what takes a long time.
    pub(crate) fn run_until_idle(&self) {
        while self.step(false) {}
    }

    pub(crate) fn word(&self, at: u64) -> u64 {
        word(&self.state.borrow().memory, at)
    }

    pub(crate) fn set_word(&self, at: u64, word: u64) {
        set_word(&mut self.state.borrow_mut().memory, at, word);
    }

    /// Makes all words of the lock region hold that.
    pub(crate) fn set_locks(&self, word: u64) {
        (0..LOCKS).for_each(|lock| self.set_word(LOCK_BASE + lock * 8, word));
    }

    /// Tells whether all words of the lock region hold that.
    pub(crate) fn locks_are(&self, word: u64) -> bool {
        (0..LOCKS).all(|lock| self.word(LOCK_BASE + lock * 8) == word)
    }

    /// Asserts that nothing is held, leased or remembered.
    pub(crate) fn assert_at_rest(&self, tables: &[(Fake, LockTable<Fake>)]) {
        for lock in 0..LOCKS {
            assert_eq!(self.word(LOCK_BASE + lock * 8), 0, "lock word {lock} stays set");
        }
        for index in 0..(REGION_BYTES as u64 - NODES) / NODE_BYTES as u64 {
            let holder = self.state.borrow().codec.holder(self.word(embedded(index).offset()));
            assert_eq!(holder, None, "the lock word in node {index} stays set");
        }
        for (fake, table) in tables {
            assert_eq!(table.in_use(), (0, 0), "a local lock or a slot is left");
            assert_eq!(fake.leased(), 0, "a buffer is lost");
        }
    }

    fn step(&self, waits_long: bool) -> bool {
        let step = {
            let mut state = self.state.borrow_mut();
            let steps = state.steps(waits_long);
            match steps.len() {
                0 => return false,
                count => steps[state.rng.random_range(0..count)],
            }
        };
        match step {
            Step::Execute(shard) => self.state.borrow_mut().execute(shard),
            Step::Complete(shard) => self.complete(shard),
            Step::Deliver(from, to) => self.deliver(from, to),
            Step::Fire(timer) => self.fire(timer),
            Step::Poll(task) => self.poll(task),
        }
        true
    }

    fn complete(&self, shard: usize) {
        let done = self.state.borrow_mut().shards[shard].done.pop_front().expect("enabled");
        Flight::land(&done.flight, done.outcome);
    }

    fn deliver(&self, from: usize, to: usize) {
        let (sender, handler, message) = {
            let mut state = self.state.borrow_mut();
            let (port, message) =
                state.wires.get_mut(&(from, to)).and_then(VecDeque::pop_front).expect("enabled");
            (state.shards[from].id, Rc::clone(&state.shards[to].handlers[&port]), message)
        };
        handler(sender, message);
    }

    fn fire(&self, timer: usize) {
        let mut state = self.state.borrow_mut();
        let (due, flight) = state.timers.swap_remove(timer);
        state.now = state.now.max(due);
        drop(state);
        Flight::land(&flight, ());
    }

    fn poll(&self, index: usize) {
        let mut task = self.state.borrow_mut().tasks[index].take().expect("enabled");
        task.woken.clear();
        let waker = Arc::clone(&task.woken).into();
        if task.future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            self.state.borrow_mut().tasks[index] = Some(task);
        }
    }
}

impl State {
    fn steps(&self, waits_long: bool) -> Vec<Step> {
        let mut steps = Vec::new();
        for (i, shard) in self.shards.iter().enumerate() {
            steps.extend(self.can_execute(i).then_some(Step::Execute(i)));
            steps.extend((!shard.done.is_empty()).then_some(Step::Complete(i)));
        }
        for from in 0..self.shards.len() {
            for to in 0..self.shards.len() {
                let waits = self.wires.get(&(from, to)).is_some_and(|wire| !wire.is_empty());
                steps.extend(waits.then_some(Step::Deliver(from, to)));
            }
        }
        let is_near = |timer: &usize| self.timers[*timer].0 <= self.now + FAR_NS;
        steps.extend((0..self.timers.len()).filter(is_near).map(Step::Fire));
        let ready = |task: &Option<Task>| task.as_ref().is_some_and(|task| task.woken.is_set());
        steps.extend((0..self.tasks.len()).filter(|&i| ready(&self.tasks[i])).map(Step::Poll));
        if steps.is_empty() && waits_long {
            let next = (0..self.timers.len()).min_by_key(|&timer| self.timers[timer].0);
            steps.extend(next.map(Step::Fire));
        }
        steps
    }

    /// Tells whether the shard's queue pair has a verb to execute, and no CAS of another one keeps it waiting.
    fn can_execute(&self, shard: usize) -> bool {
        let Some(posted) = self.shards[shard].queue.front() else { return false };
        let next = posted.verbs.get(posted.executed).map(|verb| verb.op);
        !next.is_some_and(Op::is_atomic) || self.halfway.is_none_or(|(halfway, _)| halfway == shard)
    }

    /// Executes the next verb of the shard's queue pair, or the next line or half of it.
    fn execute(&mut self, number: usize) {
        let (memory, shard) = (&mut self.memory, &mut self.shards[number]);
        let posted = shard.queue.front_mut().expect("enabled");
        let next = posted.verbs.get(posted.executed).map(|verb| verb.op);
        let failed = posted.fault.filter(|fault| fault.verbs == posted.executed);
        match (failed, next) {
            (Some(fault), Some(op)) => {
                execute_in_part(memory, op, &posted.buf, fault.lines, self.in_order_write)
            }
            (None, Some(op @ Op::Write { .. })) => {
                let all = (1 << lines_of(op)) - 1;
                let left: SmallVec<[u32; 4]> =
                    (0..32).filter(|line| (all & !posted.lines) >> line & 1 == 1).collect();
                let line =
                    if self.in_order_write { left[0] } else { left[self.rng.random_range(0..left.len())] };
                write_line(memory, op, &posted.buf, line);
                posted.lines |= 1 << line;
                if posted.lines == all {
                    posted.lines = 0;
                    posted.executed += 1;
                }
            }
            (None, Some(Op::Cas { at, .. } | Op::MaskedCas { at, .. } | Op::Faa { at, .. }))
                if !self.atomic_writes && self.halfway.is_none() =>
            {
                self.halfway = Some((number, word(memory, at)));
            }
            (None, Some(op)) => {
                if let Op::Cas { at, .. } | Op::MaskedCas { at, .. } | Op::Faa { at, .. } = op
                    && let Some((_, found)) = self.halfway.take()
                {
                    // Whatever is there by now.
                    set_word(memory, at, found);
                }
                execute(memory, op, &mut posted.buf, &mut posted.atomics);
                posted.executed += 1;
            }
            (_, None) => {}
        }
        let fails_yet = posted.fault.is_some() && failed.is_none();
        if failed.is_some() && posted.dies {
            let node = shard.node;
            for shard in self.shards.iter_mut().filter(|shard| shard.node == node) {
                shard.is_dead = true;
                shard.queue.clear();
                shard.done.clear();
            }
            return;
        }
        if failed.is_some() || posted.executed == posted.verbs.len() && !fails_yet {
            let posted = shard.queue.pop_front().expect("it is the front");
            let outcome = match failed {
                Some(fault) => Err(Failed::new(fault.cause(), rebuilt(&posted.verbs, posted.buf))),
                None => Ok(Completion { buf: posted.buf, atomics: posted.atomics, span_ns: 0 }),
            };
            shard.done.push_back(Done { flight: posted.flight, outcome });
        }
    }
}

fn execute(memory: &mut [u8], op: Op, buf: &mut Option<Buf>, atomics: &mut SmallVec<[u64; 2]>) {
    match op {
        Op::Read { at, to, len } => {
            let buf = buf.as_mut().expect("a READ has a buffer");
            buf[to as usize..][..len as usize].copy_from_slice(&memory[at as usize..][..len as usize]);
        }
        Op::Write { .. } => unreachable!("goes line by line"),
        Op::WriteWord { at, word } => set_word(memory, at, word),
        Op::MaskedCas { at, expected, desired, to } => {
            let all = at as usize / MASKED_BYTES * MASKED_BYTES;
            let buf = buf.as_mut().expect("a masked CAS has a buffer");
            buf[to as usize..][..MASKED_BYTES].copy_from_slice(&memory[all..][..MASKED_BYTES]);
            execute(memory, Op::Cas { at, expected, desired }, &mut None, atomics);
        }
        Op::Cas { at, expected, desired } => {
            let found = word(memory, at);
            atomics.push(found);
            if found == expected {
                set_word(memory, at, desired);
            }
        }
        Op::Faa { at, add } => {
            let found = word(memory, at);
            atomics.push(found);
            set_word(memory, at, found.wrapping_add(add));
        }
    }
}

fn word(memory: &[u8], at: u64) -> u64 {
    u64::from_le_bytes(memory[at as usize..][..8].try_into().expect("8 bytes"))
}

fn set_word(memory: &mut [u8], at: u64, word: u64) {
    memory[at as usize..][..8].copy_from_slice(&word.to_le_bytes());
}

/// Yields the lock word in a node: its last word but one.
pub(crate) fn embedded(index: u64) -> RemotePtr {
    node(index).add(NODE_BYTES as u64 - 16)
}

/// Yields a node of the fake memory.
pub(crate) fn node(index: u64) -> RemotePtr {
    RemotePtr::new(ServerId(0), NODES + index * NODE_BYTES as u64)
}
