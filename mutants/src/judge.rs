//! Judging a mutant: seeds of the swarm, each in a process of its own, until one fails.

use std::io::Read;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;
use crate::mutant::TAKEOVER;

/// Limits of a seed's run.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// Beyond that time of a CPU it hangs; or beyond so many times as much by the clock ([`PATIENCE`]), since others
    /// may have the CPUs.
    pub(crate) seed: Duration,
    pub(crate) memory_kib: u64,
    /// Processes at the same time.
    pub(crate) jobs: usize,
}

/// Ends of a seed's run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Passed,
    Failed,
    /// The program came to an end of its own.
    Crashed,
    Hung,
}

/// Times that a seed may take as long by the clock as on a CPU.
const PATIENCE: u32 = 20;
/// The signal that ends a process which has had its time of a CPU.
const SIGXCPU: i32 = 24;

/// The value of FARWOOD_MUTANT that asks for all mutants that are reached; other values are a mutant's number.
pub(crate) const RECORD: &str = "record";

/// Runs seeds of `index`; yields the first of them that was seen not to pass, and what all have said of mutants.
pub(crate) fn run(
    program: &Path,
    mutant: &str,
    index: &str,
    seeds: &[u64],
    bounds: Bounds,
    mut tell: impl FnMut(u64, End, Vec<u32>) + Send,
) -> Result<Option<(u64, End)>> {
    let rest = Mutex::new((seeds.iter(), None, &mut tell));
    let work = || -> std::result::Result<(), String> {
        loop {
            let next = match &mut *rest.lock().expect("no worker panics") {
                (seeds, None, _) => seeds.next().copied(),
                _ => None,
            };
            let Some(seed) = next else { return Ok(()) };
            let (end, reached) =
                run_seed(program, mutant, index, seed, bounds).map_err(|error| error.to_string())?;
            let (_, failed, tell) = &mut *rest.lock().expect("no worker panics");
            if end != End::Passed && mutant != RECORD {
                *failed = failed.or(Some((seed, end)));
            }
            tell(seed, end, reached);
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..bounds.jobs).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
    })?;
    let (_, failed, _) = rest.into_inner().expect("no worker panics");
    Ok(failed)
}

fn run_seed(program: &Path, mutant: &str, index: &str, seed: u64, bounds: Bounds) -> Result<(End, Vec<u32>)> {
    let (memory_kib, seconds) = (bounds.memory_kib, bounds.seed.as_secs());
    let script = format!("ulimit -c 0; ulimit -v {memory_kib}; ulimit -S -t {seconds}; exec \"$0\" \"$@\"");
    let (index, takeover) = match index.strip_suffix(TAKEOVER) {
        Some(index) => (index, &["--takeover"][..]),
        None => (index, &[][..]),
    };
    let mut child = Command::new("sh")
        .args(["-c", &script])
        .arg(program)
        .args(["sim", "run", "--index", index, "--seeds", &format!("{seed}..{}", seed + 1)])
        .args(takeover)
        .env("FARWOOD_MUTANT", mutant)
        .env_remove("FARWOOD_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let said = listen(child.stdout.take().expect("it is piped"));
    let errors = listen(child.stderr.take().expect("it is piped"));
    let in_time = wait(&mut child, bounds.seed * PATIENCE)?;
    let (said, errors) = (said.join().expect("no reader panics"), errors.join().expect("no reader panics"));
    let reached = errors.lines().filter_map(|line| line.strip_prefix("mutant reached: ")?.parse().ok());
    let line = said.lines().find(|line| line.starts_with("seed "));
    let end = match line.map(|line| line.trim_end().ends_with("FAILED")) {
        _ if !in_time => End::Hung,
        Some(true) => End::Failed,
        Some(false) => End::Passed,
        None => End::Crashed,
    };
    Ok((end, reached.collect()))
}

fn listen(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was said before a pipe broke counts.
        drop(pipe.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Waits for the child; yields false if it had to be stopped, or its time of a CPU was over.
fn wait(child: &mut Child, most: Duration) -> Result<bool> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.signal() != Some(SIGXCPU));
        }
        if begun.elapsed() > most {
            child.kill()?;
            child.wait()?;
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(5));
    }
}
