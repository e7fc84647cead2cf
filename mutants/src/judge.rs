//! Judging a mutant: seeds of the swarm, until one fails.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;
use crate::mutant::Fate;

/// What one run may take.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) first_seed: u64,
    pub(crate) seeds: u64,
    /// Without a line for so long it hangs.
    pub(crate) silence: Duration,
    /// What has not failed by then survives.
    pub(crate) whole: Duration,
    pub(crate) memory_kib: u64,
}

/// Runs seeds of `index` with that mutant awake; yields its fate and whether its place was reached.
pub(crate) fn judge(program: &Path, mutant: u32, index: &str, bounds: Bounds) -> Result<(Fate, bool)> {
    let end = bounds.first_seed + bounds.seeds;
    let range = format!("{}..{end}", bounds.first_seed);
    let script = format!("ulimit -v {}; exec \"$0\" \"$@\"", bounds.memory_kib);
    let mut child = Command::new("sh")
        .args(["-c", &script])
        .arg(program)
        .args(["sim", "run", "--index", index, "--seeds", &range])
        .env("FARWOOD_MUTANT", mutant.to_string())
        .env_remove("FARWOOD_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (said, errors) =
        (child.stdout.take().expect("it is piped"), child.stderr.take().expect("it is piped"));
    let reached = AtomicBool::new(false);
    let fate = thread::scope(|scope| {
        scope.spawn(|| watch(errors, &reached));
        let fate = watch_seeds(said, index, bounds);
        // It may have ended by itself, which is all the same.
        drop(child.kill());
        fate
    });
    child.wait()?;
    Ok((fate, reached.into_inner()))
}

/// What the lines of its seeds tell.
fn watch_seeds(said: impl Read + Send + 'static, index: &str, bounds: Bounds) -> Fate {
    let (lines, heard) = mpsc::channel();
    thread::spawn(move || {
        BufReader::new(said).lines().map_while(|line| line.ok()).try_for_each(|line| lines.send(line))
    });
    let (begun, index) = (Instant::now(), index.to_owned());
    let mut seeds = 0;
    loop {
        match heard.recv_timeout(bounds.silence) {
            Ok(line) if !line.starts_with("seed ") => {}
            Ok(line) if line.trim_end().ends_with("FAILED") => {
                let seed = line.split_whitespace().nth(1).and_then(|seed| seed.parse().ok());
                return Fate::Killed { index, seed: seed.unwrap_or_default() };
            }
            Ok(_) => seeds += 1,
            Err(RecvTimeoutError::Timeout) => return Fate::Hung { index },
            Err(RecvTimeoutError::Disconnected) if seeds < bounds.seeds => return Fate::Crashed { index },
            Err(RecvTimeoutError::Disconnected) => return Fate::Survived { seeds },
        }
        if begun.elapsed() > bounds.whole {
            return Fate::Survived { seeds };
        }
    }
}

fn watch(errors: impl Read, reached: &AtomicBool) {
    for line in BufReader::new(errors).lines().map_while(|line| line.ok()) {
        if line == "mutant reached" {
            reached.store(true, Ordering::Relaxed);
        }
    }
}
