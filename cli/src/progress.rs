//! The progress bar: drawn on a terminal by indicatif's own ticker, from counters that the shards update every few
//! milliseconds. A run without a terminal, or with --quiet, draws nothing. Rates are of the run's own time, which may
//! be virtual.

use std::fmt::Write;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::style::ProgressTracker;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use crate::units::show_count;

const REFRESH: Duration = Duration::from_millis(200);
const WIDTH: u64 = 30;

/// Stage of a benchmark, or of a command that takes its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stage {
    /// Getting ready.
    Prepare,
    /// Loading keys.
    Load,
    /// Running, not measured yet.
    WarmUp,
    /// Measuring.
    Run,
    /// Walking the index.
    Survey,
    /// Removing keys.
    Remove,
}

const STAGES: [&str; 6] = ["prepare", "load", "warm-up", "run", "survey", "remove"];
const PER_MILLE: u64 = 1000;
const UNKNOWN: u64 = u64::MAX;

/// Progress of the run. Written by shards, read by the bar.
pub(crate) struct Progress {
    stage: AtomicU8,
    /// Part of the stage that is done, in thousandths, or [`UNKNOWN`]; only one thread writes it.
    done: AtomicU64,
    /// The run's clock in ns; only the first shard writes it.
    now_ns: AtomicU64,
    /// True if that is virtual time.
    is_virtual: bool,
    ops: Box<[ShardOps]>,
}

/// Operations of one shard in this stage, on cache lines of their own.
#[repr(align(128))]
struct ShardOps(AtomicU64);

impl Progress {
    /// Makes the progress of `shards` shards that have done nothing yet, by a virtual clock or not.
    pub(crate) fn new(shards: usize, is_virtual: bool) -> Arc<Self> {
        Arc::new(Progress {
            stage: AtomicU8::new(Stage::Prepare as u8),
            done: AtomicU64::new(0),
            now_ns: AtomicU64::new(0),
            is_virtual,
            ops: (0..shards).map(|_| ShardOps(AtomicU64::new(0))).collect(),
        })
    }

    /// Begins the next stage. Called by the first shard.
    pub(crate) fn enter(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
    }

    /// Marks the length of the stage as unknown: the bar counts operations instead.
    pub(crate) fn set_unknown(&self) {
        self.done.store(UNKNOWN, Ordering::Relaxed);
    }

    /// Sets the part of the stage that is done. Called by the first shard.
    pub(crate) fn set_done(&self, part: f64) {
        self.done.store((part * PER_MILLE as f64) as u64, Ordering::Relaxed);
    }

    /// Sets the time by the run's clock. Called by the first shard.
    pub(crate) fn set_now(&self, now_ns: u64) {
        self.now_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Sets the operations of `shard` in this stage so far.
    pub(crate) fn set_ops(&self, shard: usize, ops: u64) {
        self.ops[shard].0.store(ops, Ordering::Relaxed);
    }

    fn ops(&self) -> u64 {
        self.ops.iter().map(|ops| ops.0.load(Ordering::Relaxed)).sum()
    }
}

/// The bar. It disappears when it is dropped.
pub(crate) struct Bar(Option<ProgressBar>);

impl Bar {
    /// Shows a bar that follows `progress`, unless told to be `quiet` or where there is no terminal.
    pub(crate) fn show(progress: &Arc<Progress>, quiet: bool) -> Self {
        if quiet || !std::io::stderr().is_terminal() {
            return Bar(None);
        }
        let bar = ProgressBar::new_spinner();
        bar.set_style(style(Arc::clone(progress)));
        bar.enable_steady_tick(REFRESH);
        Bar(Some(bar))
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

fn style(progress: Arc<Progress>) -> ProgressStyle {
    let line = Line { progress, pace: Pace::default() };
    ProgressStyle::with_template("{line}  {elapsed}").expect("a constant template").with_key("line", line)
}

/// The bar's text, brought up to date at each tick.
#[derive(Clone)]
struct Line {
    progress: Arc<Progress>,
    pace: Pace,
}

impl ProgressTracker for Line {
    fn clone_box(&self) -> Box<dyn ProgressTracker> {
        Box::new(self.clone())
    }

    fn tick(&mut self, state: &ProgressState, _now: Instant) {
        let stage = self.progress.stage.load(Ordering::Relaxed);
        let (at, least) = match self.progress.is_virtual {
            // The simulation is slower than what it simulates: any step forward is worth showing.
            true => {
                (Duration::from_nanos(self.progress.now_ns.load(Ordering::Relaxed)), Duration::from_nanos(1))
            }
            false => (state.elapsed(), REFRESH / 2),
        };
        self.pace.update(stage, self.progress.ops(), (at, least));
    }

    fn reset(&mut self, _state: &ProgressState, _now: Instant) {
        self.pace = Pace::default();
    }

    fn write(&self, _state: &ProgressState, out: &mut dyn Write) {
        let name = STAGES[usize::from(self.pace.stage).min(STAGES.len() - 1)];
        let rate = self.pace.rate / 1e6;
        // A bar that cannot be drawn is no reason to end the run.
        let _ = match self.progress.done.load(Ordering::Relaxed) {
            UNKNOWN => write!(out, "{name:<8} {}  {rate:.2} Mops/s", show_count(self.progress.ops())),
            done => {
                let done = done.min(PER_MILLE);
                let filled = (done * WIDTH / PER_MILLE) as usize;
                let (bar, rest) = ("=".repeat(filled), " ".repeat(WIDTH as usize - filled));
                write!(out, "{name:<8} [{bar}{rest}] {:>3} %  {rate:.2} Mops/s", done * 100 / PER_MILLE)
            }
        };
        if self.progress.is_virtual {
            let _ = write!(out, "  {:.1} ms of virtual time", self.pace.at.as_secs_f64() * 1e3);
        }
    }
}

/// Operations a second between two looks.
#[derive(Clone, Default)]
struct Pace {
    stage: u8,
    ops: u64,
    at: Duration,
    rate: f64,
}

impl Pace {
    fn update(&mut self, stage: u8, ops: u64, (at, least): (Duration, Duration)) {
        if stage != self.stage || ops < self.ops {
            *self = Pace { stage, ops, at, rate: 0.0 };
        }
        let passed = at.saturating_sub(self.at);
        if passed >= least {
            let rate = (ops - self.ops) as f64 / passed.as_secs_f64();
            *self = Pace { stage, ops, at, rate };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_of_the_last_interval() {
        let mut pace = Pace::default();
        let mut rate = |stage, ops, ms| {
            pace.update(stage, ops, (Duration::from_millis(ms), REFRESH / 2));
            pace.rate
        };
        assert_eq!(rate(1, 1000, 1000), 0.0, "a stage begins");
        assert_eq!(rate(1, 3000, 2000), 2000.0);
        assert_eq!(rate(1, 3500, 2001), 2000.0, "too soon");
        assert_eq!(rate(2, 0, 3000), 0.0);
    }
}
