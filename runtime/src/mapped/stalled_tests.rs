//! Tests of chains that meet stopped writers: what is left of them is executed later, once, and in its order.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Poll;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::super::file::tests::Folder;
use super::super::journal::tests::{AT, OLD, Victim, line, put, server};
use super::super::line::LineMode;
use super::super::process_state::is_stopped;
use super::super::region::Region;
use super::super::{MappedDevice, MappedServer};
use super::*;
use crate::buffer::BufferPool;
use crate::chain::Chain;
use crate::clock::Clock;
use crate::engine::Engine;
use crate::epoch::Pins;
use crate::pointer::RemotePtr;
use crate::verbs::Completion;
use crate::waiter::Waiter;

const FAR: u64 = AT as u64 + 512;
const FARTHER: u64 = AT as u64 + 1024;

/// A process that is stopped: what `/proc` says of victims that bear its name.
struct StoppedProcess(Child);

impl StoppedProcess {
    fn start() -> Self {
        let child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        kill(Pid::from_raw(child.id() as i32), Signal::SIGSTOP).unwrap();
        while !is_stopped(child.id()) {
            std::thread::yield_now();
        }
        StoppedProcess(child)
    }
}

impl Drop for StoppedProcess {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A shard's chains to two memory servers; the first one's region is shared with a process that is stopped.
struct Scene {
    engine: Engine<MappedDevice>,
    region: Arc<Region>,
    process: StoppedProcess,
    pool: BufferPool,
    outcomes: BTreeMap<&'static str, Result<Completion, FabricError>>,
    waiting: Vec<(&'static str, SlotKey)>,
    folder: Folder,
}

impl Scene {
    fn new(name: &str, patience: Duration) -> Self {
        let folder = Folder::new(name);
        let region = Arc::new(server(&folder.path("a")));
        let other = Arc::new(Region::anonymous(64 << 10, LineMode::Sequence).unwrap());
        let servers = [&region, &other]
            .map(|region| MappedServer::new(Arc::clone(region), Arc::new(AtomicBool::new(false))));
        let mut device = MappedDevice::new(servers.into(), MappedDevice::SHM, Clock::new());
        device.patience = patience;
        let engine = Engine::new(device, 2, NonZero::new(99).unwrap());
        let (process, pool) = (StoppedProcess::start(), BufferPool::new());
        let (outcomes, waiting) = (BTreeMap::new(), Vec::new());
        Scene { engine, region, process, pool, outcomes, waiting, folder }
    }

    /// Makes a writer of the process that is stopped, in the middle of the line at `at`.
    fn stopped_at(&self, at: usize) -> Victim {
        let victim = Victim::open(&self.folder.path("a")).at(at).of(self.process.0.id());
        assert!(!victim.write(0, &[70, 71], 2));
        victim
    }

    /// Posts a chain with a buffer of `bytes` bytes, which are 9.
    fn post(&mut self, name: &'static str, server: u16, bytes: usize, build: impl FnOnce(&mut Chain)) {
        let mut buf = self.pool.lease(bytes);
        buf.fill(9);
        let mut chain = Chain::with_buffer(ServerId(server), buf);
        build(&mut chain);
        self.waiting.push((name, self.engine.submit(chain)));
    }

    /// Lets time pass in which the shard looks at what waits, several times.
    fn turns(&mut self) {
        for _ in 0..8 {
            self.turn();
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    fn turn(&mut self) {
        self.engine.poll(&mut |_| {});
        let (engine, outcomes) = (&mut self.engine, &mut self.outcomes);
        self.waiting.retain(|&(name, key)| match engine.take(key, || Waiter::Client(0)) {
            Poll::Pending => true,
            Poll::Ready(outcome) => outcomes.insert(name, outcome.map_err(FabricError::from)).is_some(),
        });
    }

    fn until_done(&mut self) {
        while self.engine.in_flight() > 0 {
            self.turn();
        }
    }

    fn dropped(&mut self, name: &str) {
        let place = self.waiting.iter().position(|&(waits, _)| waits == name).unwrap();
        self.engine.orphan(self.waiting.remove(place).1, || Pins::alone().pin());
    }

    #[track_caller]
    fn assert_done(&self, names: &[&str]) {
        assert_eq!(self.outcomes.keys().copied().collect::<Vec<_>>(), names);
    }

    fn done(&self, name: &str) -> &Completion {
        self.outcomes[name].as_ref().unwrap()
    }

    fn word(&self, at: u64) -> u64 {
        let mut word = [0; 8];
        self.region.read(at, &mut word).unwrap();
        u64::from_le_bytes(word)
    }
}

fn here(at: u64) -> RemotePtr {
    RemotePtr::new(ServerId(0), at)
}

const NINES: u64 = 0x0909_0909_0909_0909;

/// Not a verb, and not a line of a WRITE, is executed twice, and what follows a WRITE takes effect after it.
#[test]
fn a_write_goes_on_where_it_has_stopped() {
    let mut scene = Scene::new("stalled-write", PATIENCE);
    let (before, behind) = (AT as u64 - 64, AT as u64 + 64);
    let victim = scene.stopped_at(AT);
    scene.post("write", 0, 192, |chain| {
        chain.faa(here(FAR), 1).fence().write(here(before), 0..192).write_word(here(FAR + 64), 7);
    });
    scene.post("later", 0, 64, |chain| {
        chain.faa(here(FARTHER), 1).read(here(behind), 0..64);
    });
    scene.post("elsewhere", 1, 64, |chain| {
        chain.faa(RemotePtr::new(ServerId(1), FAR), 1);
    });
    scene.turns();
    scene.post("last", 0, 64, |chain| {
        chain.faa(here(FARTHER), 1);
    });
    scene.turns();
    scene.assert_done(&["elsewhere"]);
    let words = [before, behind, FAR, FAR + 64, FARTHER].map(|at| scene.word(at));
    assert_eq!(words, [NINES, 0, 1, 0, 0], "one line was written");
    // Another client's WRITE of the line that is done.
    scene.region.write(before, &[5; 64]).unwrap();
    victim.go_on(0, &[70, 71]);
    scene.until_done();
    scene.assert_done(&["elsewhere", "last", "later", "write"]);
    let words = [before, behind, FAR, FAR + 64, FARTHER].map(|at| scene.word(at));
    assert_eq!(words, [0x0505_0505_0505_0505, NINES, 1, 7, 2]);
    assert_eq!(line(&scene.region), [NINES; 8]);
    assert_eq!(
        (scene.done("write").atomics[..].to_vec(), scene.done("later").atomics[..].to_vec()),
        (vec![0], vec![0])
    );
    assert_eq!(scene.done("last").atomics[..], [1]);
    assert_eq!(scene.done("later").buf.as_ref().unwrap()[..], [9; 64]);
}

/// A READ that waits keeps only those who want its line; an atomic before it is not executed again.
#[test]
fn a_read_waits_until_the_writer_is_dead_and_keeps_no_other() {
    let mut scene = Scene::new("stalled-read", PATIENCE);
    let victim = scene.stopped_at(AT);
    scene.post("read", 0, 64, |chain| {
        chain.cas(here(FAR), 0, 3).read(here(AT as u64), 0..64);
    });
    scene.post("cas", 0, 64, |chain| {
        chain.cas(here(AT as u64 + 8), 71, 3);
    });
    scene.turns();
    scene.post("later", 0, 64, |chain| {
        chain.write_word(here(FARTHER), 4).read(here(FARTHER), 0..64);
    });
    scene.turns();
    scene.assert_done(&["later"]);
    assert_eq!((scene.word(FAR), scene.word(FARTHER)), (3, 4));
    drop(victim);
    scene.until_done();
    scene.assert_done(&["cas", "later", "read"]);
    let Completion { buf, atomics, span_ns } = scene.done("read");
    assert_eq!((&buf.as_ref().unwrap()[..8], &atomics[..]), (&70_u64.to_le_bytes()[..], &[0][..]));
    assert!(*span_ns >= 1_000_000, "from its first access to its last: {span_ns}");
    assert_eq!((scene.done("cas").atomics[0], line(&scene.region)[..3].to_vec()), (71, vec![70, 3, 3]));
}

/// Nothing of it takes effect behind what its client posts then.
#[test]
fn a_chain_that_is_dropped_does_not_go_on() {
    let mut scene = Scene::new("stalled-dropped", PATIENCE);
    let victim = scene.stopped_at(AT);
    scene.post("waited", 0, 64, |chain| {
        chain.write_word(here(AT as u64), 9).write_word(here(FAR), 9);
    });
    scene.post("behind", 0, 64, |chain| {
        chain.read(here(FAR), 0..64);
    });
    scene.turns();
    scene.assert_done(&[]);
    scene.dropped("waited");
    scene.until_done();
    scene.assert_done(&["behind"]);
    for at_once in [false, true] {
        scene.post("dropped", 0, 64, |chain| {
            chain.read(here(AT as u64), 0..64).faa(here(FAR), 9);
        });
        if !at_once {
            scene.turns();
        }
        scene.dropped("dropped");
        scene.until_done();
    }
    victim.go_on(0, &[70, 71]);
    scene.turns();
    assert_eq!((line(&scene.region)[0], scene.word(FAR), scene.pool.leased()), (70, 0, 1));
}

#[test]
fn a_writer_that_does_not_go_on_is_named_in_the_end() {
    for patience in [Duration::ZERO, Duration::from_millis(60)] {
        let mut scene = Scene::new("stalled-over", patience);
        let victim = scene.stopped_at(AT);
        scene.post("write", 0, 64, |chain| {
            chain.write_word(here(FAR), 6).write(here(AT as u64), 0..64).write_word(here(FARTHER), 9);
        });
        scene.post("behind", 0, 64, |chain| {
            chain.faa(here(FARTHER), 1);
        });
        scene.until_done();
        let process = scene.process.0.id();
        let stopped = FabricError::WriterStopped { server: ServerId(0), process };
        assert_eq!(scene.outcomes["write"].as_ref().unwrap_err(), &stopped);
        assert_eq!((scene.done("behind").atomics[0], scene.word(FAR), scene.word(FARTHER)), (0, 6, 1));
        // Those that come later are told at once.
        scene.post("write", 0, 64, |chain| {
            chain.write_word(here(AT as u64), 9);
        });
        scene.turn();
        assert_eq!(scene.outcomes["write"].as_ref().unwrap_err(), &stopped);
        drop(victim);
        assert_eq!(line(&scene.region), [70, 71, 3, 4, 5, 6, 7, 8]);
    }
}

/// The writers are two threads of one process: it is looked at once each time, but not always at the same line.
#[test]
fn chains_that_wait_for_different_lines_of_a_process_do_not_keep_each_other() {
    let mut scene = Scene::new("stalled-lines", PATIENCE);
    put(&scene.region, OLD);
    let first = scene.stopped_at(AT);
    let second = scene.stopped_at(FAR as usize);
    for (name, at) in [("first", AT as u64), ("second", FAR), ("third", AT as u64)] {
        scene.post(name, 0, 64, |chain| {
            chain.read(here(at), 0..64);
        });
    }
    scene.turns();
    scene.assert_done(&[]);
    second.go_on(0, &[70, 71]);
    while scene.waiting.len() > 2 {
        scene.turn();
    }
    scene.assert_done(&["second"]);
    first.go_on(0, &[70, 71]);
    scene.until_done();
    scene.assert_done(&["first", "second", "third"]);
}

#[test]
fn a_chain_without_writes_left_lets_go_of_those_behind_it() {
    let mut scene = Scene::new("stalled-lets-go", PATIENCE);
    let (first, second) = (scene.stopped_at(AT), scene.stopped_at(FAR as usize));
    scene.post("both", 0, 64, |chain| {
        chain.write_word(here(AT as u64), 9).read(here(FAR), 0..64);
    });
    scene.post("behind", 0, 64, |chain| {
        chain.read(here(AT as u64), 0..64);
    });
    scene.turns();
    scene.assert_done(&[]);
    first.go_on(0, &[70, 71]);
    while scene.waiting.len() > 1 {
        scene.turn();
    }
    assert_eq!(scene.done("behind").buf.as_ref().unwrap()[..8], 9_u64.to_le_bytes());
    second.go_on(0, &[70, 71]);
    scene.until_done();
    assert_eq!(scene.done("both").buf.as_ref().unwrap()[..8], 70_u64.to_le_bytes());
}
