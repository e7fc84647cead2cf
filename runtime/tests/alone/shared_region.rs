//! One region file, several processes, and death: processes that hammer the same lines are killed with SIGKILL at
//! random moments. No line is ever torn, no process waits for the dead, and every atomic has happened once.
//!
//! The other processes are this program again: a test that finds `ROLE` in its environment works instead of testing.
//! `FARWOOD_TEST_REGION` may name another place for the region: on hugetlbfs, on a disk, or a DAX device.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use farwood_runtime::mapped::access::Access;
use farwood_runtime::mapped::line::LineMode;
use farwood_runtime::mapped::region::{Region, RegionConfig};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::kit;

/// Variable that holds `path number` of a worker.
const ROLE: &str = "FARWOOD_SHARED_REGION_ROLE";
const INSTANCE: u128 = 0x5eed;
const REGION_BYTES: u64 = 1 << 20;

/// Line of the word that tells workers to stop.
const STOP: u64 = 64;
/// Line whose word 0 counts by FAA, and word 1 by CAS.
const COUNTS: u64 = 65;
/// Lines that are written whole: eight times one word.
const WHOLE: std::ops::Range<u64> = 66..70;
/// Lines that are written in these parts, each full of one word.
const PARTS: std::ops::Range<u64> = 70..72;
const PART_WORDS: [std::ops::Range<u64>; 3] = [0..2, 2..7, 7..8];
/// A line for each process that ever was.
const OWN: u64 = 128;
const KILLS_MAX: u64 = 2000;

/// Words of a process's own line.
const BEGUN: u64 = 0;
const DONE: u64 = 1;
const COUNTED: u64 = 2;
const READS: u64 = 3;
const TORN: u64 = 4;

fn at(line: u64, word: u64) -> u64 {
    line * 64 + word * 8
}

fn words<const N: usize>(region: &Region, at: u64) -> [u64; N] {
    let mut bytes = vec![0; N * 8];
    Access::to(region).read(at, &mut bytes).unwrap();
    std::array::from_fn(|word| u64::from_le_bytes(bytes[word * 8..][..8].try_into().unwrap()))
}

fn fill(region: &Region, at: u64, count: u64, word: u64) {
    Access::to(region).write(at, &word.to_le_bytes().repeat(count as usize)).unwrap();
}

/// Runs a worker process until it is told to stop, or killed.
fn work(role: &str) {
    let (path, number) = role.rsplit_once(' ').unwrap();
    let number: u64 = number.parse().unwrap();
    let _watchdog = kit::Watchdog::new("a worker of shared_region", 120);
    let region = Region::open(Path::new(path), INSTANCE).unwrap();
    let access = Access::to(&region);
    let own = OWN + number;
    let mut random = SmallRng::seed_from_u64(number);
    for n in 0.. {
        let [stop] = words(&region, at(STOP, 0));
        if stop != 0 {
            return;
        }
        fill(&region, at(own, BEGUN), 1, n + 1);
        access.faa(at(COUNTS, 0), 1).unwrap();
        let mut seen = n;
        loop {
            match access.cas(at(COUNTS, 1), seen, seen + 1).unwrap() {
                found if found == seen => break,
                found => seen = found,
            }
        }
        // No other process counts here: the word found tells whether every earlier addition has happened once.
        assert_eq!(access.faa(at(own, COUNTED), 1), Ok(n));
        fill(&region, at(own, DONE), 1, n + 1);
        let word = number << 40 | n;
        fill(&region, at(random.random_range(WHOLE), 0), 8, word);
        let part = PART_WORDS[random.random_range(0..PART_WORDS.len())].clone();
        fill(&region, at(random.random_range(PARTS), part.start), part.end - part.start, word);
        let torn = torn_lines(&region);
        access.faa(at(own, READS), WHOLE.count() as u64 + PARTS.count() as u64).unwrap();
        if torn > 0 {
            access.faa(at(own, TORN), torn).unwrap();
        }
    }
}

fn torn_lines(region: &Region) -> u64 {
    let uniform = |words: &[u64]| words.iter().all(|word| *word == words[0]);
    let whole = WHOLE.filter(|&line| !uniform(&words::<8>(region, at(line, 0)))).count();
    let parts = PARTS.filter(|&line| {
        let line = words::<8>(region, at(line, 0));
        !PART_WORDS.iter().all(|part| uniform(&line[part.start as usize..part.end as usize]))
    });
    (whole + parts.count()) as u64
}

/// A memory server's region, and the processes that work on it.
struct Cluster {
    path: PathBuf,
    region: Region,
    test: &'static str,
    started: u64,
    random: SmallRng,
}

impl Cluster {
    fn new(test: &'static str, line_mode: LineMode) -> Self {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let path = folder.join(format!("farwood-test-{}-{test}", std::process::id()));
        let path = std::env::var_os("FARWOOD_TEST_REGION").map_or(path, PathBuf::from);
        let config = RegionConfig { line_mode, ..RegionConfig::new(REGION_BYTES, INSTANCE) };
        let region = Region::create(&path, &config).unwrap();
        Cluster { path, region, test, started: 0, random: SmallRng::seed_from_u64(4) }
    }

    fn start(&mut self) -> Process {
        let number = self.started;
        self.started += 1;
        let mut command = Command::new(std::env::current_exe().unwrap());
        let test = format!("shared_region::{}", self.test);
        command.args(["--exact", &test, "--nocapture", "--test-threads=1"]).stdout(Stdio::null());
        Process(command.env(ROLE, format!("{} {number}", self.path.display())).spawn().unwrap())
    }

    /// Waits until process `number` works, and some random time longer.
    fn let_work(&mut self, number: u64) {
        while self.own(number, DONE) == 0 {
            kit::wait(Duration::from_millis(1));
        }
        kit::wait(Duration::from_micros(self.random.random_range(0..5000)));
    }

    fn own(&self, number: u64, word: u64) -> u64 {
        words::<1>(&self.region, at(OWN + number, word))[0]
    }

    fn sum(&self, word: u64) -> u64 {
        (0..self.started).map(|number| self.own(number, word)).sum()
    }

    /// Lets all living processes come to an end and compares the counts.
    fn end(&self, living: Vec<(u64, Process)>) {
        fill(&self.region, at(STOP, 0), 1, 1);
        for (number, process) in living {
            process.end_well();
            let counts: [u64; 3] = words(&self.region, at(OWN + number, BEGUN));
            assert!(counts[0] == counts[1] && counts[1] == counts[2], "a survivor's counts: {counts:?}");
        }
        // The dead may or may not have done an operation that they had begun; the counts of the others are exact.
        let counts: [u64; 2] = words(&self.region, at(COUNTS, 0));
        let (done, begun) = (self.sum(DONE), self.sum(BEGUN));
        println!("{}: {} processes, {begun} begun, {done} done, {counts:?}", self.test, self.started);
        assert!(counts.iter().all(|count| (done..=begun).contains(count)));
        assert!((done..=begun).contains(&self.sum(COUNTED)));
        assert!(begun - done <= self.started);
    }
}

/// A process that does not outlive the test.
struct Process(Child);

impl Process {
    fn kill(mut self) {
        self.0.kill().unwrap();
        let status = self.0.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "it had ended before it was killed: {status}");
    }

    fn signal(&self, signal: &str) {
        let pid = self.0.id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &pid]).status();
        assert!(sent.expect("there is a kill").success());
    }

    /// Stops the process and waits until none of its threads runs: the signal goes to one of them, which stops the
    /// others as soon as it has a core.
    fn stop(&self) {
        self.signal("STOP");
        let threads = format!("/proc/{}/task", self.0.id());
        let is_stopped = |thread: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap();
            stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
        };
        while !std::fs::read_dir(&threads).unwrap().all(is_stopped) {
            kit::wait(Duration::from_micros(100));
        }
    }

    fn end_well(mut self) {
        let status = self.0.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Lets two processes live, while others join them and are killed.
fn hammer(test: &'static str, line_mode: LineMode, kills: usize) -> Cluster {
    let _alone = kit::alone();
    let _watchdog = kit::Watchdog::new(test, 200);
    let mut cluster = Cluster::new(test, line_mode);
    let living: Vec<_> = (0..2).map(|number| (number, cluster.start())).collect();
    for _ in 0..kills {
        let number = cluster.started;
        let victim = cluster.start();
        cluster.let_work(number);
        victim.kill();
    }
    // The survivors go on.
    for number in 0..2 {
        let (before, begun) = (cluster.own(number, DONE), cluster.own(number, BEGUN));
        while cluster.own(number, DONE) < before + 100 {
            kit::wait(Duration::from_millis(1));
        }
        assert!(cluster.own(number, BEGUN) > begun);
    }
    cluster.end(living);
    cluster
}

fn never_tears(test: &'static str, line_mode: LineMode) {
    if let Ok(role) = std::env::var(ROLE) {
        return work(&role);
    }
    let cluster = hammer(test, line_mode, 60);
    let reads = cluster.sum(READS);
    println!("{test}: {reads} lines read");
    assert_eq!((cluster.sum(TORN), torn_lines(&cluster.region)), (0, 0));
    assert!(reads > 100_000, "they hardly met: {reads} lines read");
}

#[test]
fn sequenced_lines_survive_the_death_of_their_writers() {
    never_tears("sequenced_lines_survive_the_death_of_their_writers", LineMode::Sequence);
}

#[test]
fn vector_lines_survive_the_death_of_their_writers() {
    if !kit::line_modes().contains(&LineMode::Vector) {
        return;
    }
    never_tears("vector_lines_survive_the_death_of_their_writers", LineMode::Vector);
}

#[test]
fn plain_lines_tear_between_processes() {
    let test = "plain_lines_tear_between_processes";
    if let Ok(role) = std::env::var(ROLE) {
        return work(&role);
    }
    let cluster = hammer(test, LineMode::Plain, 60);
    let (torn, reads) = (cluster.sum(TORN), cluster.sum(READS));
    assert!(torn > 0, "the other tests cannot fail: no tear in {reads} lines read");
}

/// Processes are killed inside lines, not only between them, and what they leave is finished: one works alone, so that
/// no other process has finished it before it is counted.
#[test]
fn lines_of_the_dead_are_found_held_and_are_released() {
    let test = "lines_of_the_dead_are_found_held_and_are_released";
    if let Ok(role) = std::env::var(ROLE) {
        return work(&role);
    }
    let _alone = kit::alone();
    let _watchdog = kit::Watchdog::new(test, 200);
    let mut cluster = Cluster::new(test, LineMode::Sequence);
    let mut held = 0;
    // A few percent of them die where it matters.
    while held < 5 && cluster.started < KILLS_MAX {
        let number = cluster.started;
        let victim = cluster.start();
        cluster.let_work(number);
        victim.kill();
        held += held_lines(&cluster.path);
        assert_eq!(torn_lines(&cluster.region), 0);
        // Takes each line, to write it.
        for line in [COUNTS, OWN + number].into_iter().chain(WHOLE).chain(PARTS) {
            Access::to(&cluster.region).faa(at(line, 0), 0).unwrap();
        }
        assert_eq!(held_lines(&cluster.path), 0);
    }
    println!("{held} of {} processes were killed inside a line", cluster.started);
    assert!(held > 0, "no process was killed where it matters");
    cluster.end(Vec::new());
}

/// A process is stopped (SIGSTOP) inside a line, and lives: a client that wants the line hears of it, goes on without
/// it, and has it as soon as the process goes on.
#[test]
fn a_process_that_is_stopped_inside_a_line_stops_no_other() {
    let test = "a_process_that_is_stopped_inside_a_line_stops_no_other";
    if let Ok(role) = std::env::var(ROLE) {
        return work(&role);
    }
    let _alone = kit::alone();
    let _watchdog = kit::Watchdog::new(test, 200);
    let mut cluster = Cluster::new(test, LineMode::Sequence);
    let worker = cluster.start();
    cluster.let_work(0);
    // A few percent of the moments are inside a line.
    let mut stops = 0;
    let held = loop {
        stops += 1;
        assert!(stops < 10_000, "it was never stopped where it matters");
        worker.stop();
        let held = held_lines_of(&cluster.path);
        if let Some(line) = held.first() {
            break *line;
        }
        worker.signal("CONT");
        kit::wait(Duration::from_micros(cluster.random.random_range(0..2000)));
    };
    let access = Access::to(&cluster.region);
    assert!(access.read(at(held, 0), &mut [0; 64]).is_err() && access.faa(at(held, 0), 0).is_err());
    access.read(at(STOP, 0), &mut [0; 64]).expect("another line");
    worker.signal("CONT");
    while access.read(at(held, 0), &mut [0; 64]).is_err() {
        kit::wait(Duration::from_millis(1));
    }
    cluster.end(vec![(0, worker)]);
}

/// Counts the lines whose counters are odd: the counters follow the region in its file.
fn held_lines(path: &Path) -> usize {
    held_lines_of(path).len()
}

/// Lists the lines whose counters are odd.
fn held_lines_of(path: &Path) -> Vec<u64> {
    let bytes = std::fs::read(path).unwrap();
    let counters = &bytes[REGION_BYTES as usize..][..REGION_BYTES as usize / 64 * 4];
    let odd = |(_, counter): &(u64, &[u8])| counter[0] & 1 == 1;
    (0..).zip(counters.chunks_exact(4)).filter(odd).map(|(line, _)| line).collect()
}
