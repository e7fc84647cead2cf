//! `farwood sim run`: a swarm of simulations, each drawn from its seed and judged by oracles. What goes to standard
//! output depends on the seeds alone: one line per seed, in their order, whatever the number of cores.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use farwood::IndexKind;
use farwood::runtime::sim::FaultMix;
use farwood_sim::coverage::Coverage;
use farwood_sim::history::write_json_lines;
use farwood_sim::runner::{self, Report};
use farwood_sim::scenario::{Overrides, Scenario};

use crate::args::SimRunArgs;
use crate::error::CliError;
use crate::index;
use crate::report::files;
use crate::report::output::print;

/// Most operations of a client: more would be more memory, and hours of the oracles, rather than more bugs.
const OPS_MAX: u32 = 100_000;

/// Seeds of which one is run twice: whether a run repeats exactly is a matter of the code, and not of the seed.
const AGAIN_ONE_IN: u64 = 8;
/// Histories of which one may be beyond what the oracles can decide, and one of fewer: a run of a few thousand that
/// meets one says nothing about how many there are (some 36 clients on one key are met in one run of 100,000).
const UNDECIDED_ONE_IN: u64 = 10_000;

/// A swarm to be run, checked.
struct Plan {
    seeds: Range<u64>,
    overrides: Overrides,
    history: Option<PathBuf>,
    /// Arguments that a command line needs beside the seeds to do the same.
    rest: String,
}

/// Result of one seed.
struct Said {
    text: String,
    failed: bool,
    undecided: bool,
    coverage: Coverage,
    /// Error that kept its history from being written.
    unwritten: Option<CliError>,
}

/// Runs the swarm.
///
/// # Errors
/// If the arguments make none, a seed failed, or a history could not be written.
pub(crate) fn run(args: &SimRunArgs) -> Result<(), CliError> {
    let plan = Plan::new(args)?;
    runner::remember_panics();
    let mut total = Total::default();
    in_order(&plan, |said| {
        total.add(&said);
        match said.unwritten {
            Some(error) => Err(error),
            None => print(&said.text),
        }
    })?;
    if args.require_coverage {
        print(&total.table(&plan.overrides))?;
    }
    total.verdict(&plan.overrides, args.require_coverage)
}

/// Sums over all seeds.
#[derive(Default)]
struct Total {
    seeds: u64,
    failed: u64,
    undecided: u64,
    events: Coverage,
    /// Number of seeds in which each path was taken.
    seeds_with: Coverage,
}

impl Total {
    fn add(&mut self, said: &Said) {
        self.seeds += 1;
        self.failed += u64::from(said.failed);
        self.undecided += u64::from(said.undecided);
        self.events += said.coverage;
        self.seeds_with += said.coverage.taken();
    }

    /// Tabulates how often each rare path was taken, and in how many seeds.
    fn table(&self, &Overrides { kind, takeover, .. }: &Overrides) -> String {
        let mut text = format!("{:<27}{:>12}{:>10}\n", "coverage", "events", "seeds");
        for ((name, events), (_, seeds)) in
            self.events.of(kind, takeover).zip(self.seeds_with.of(kind, takeover))
        {
            writeln!(text, "{name:<27}{events:>12}{seeds:>10}").expect("strings take everything");
        }
        writeln!(text, "undecided histories: {} of {}", self.undecided, self.seeds)
            .expect("strings take everything");
        text
    }

    fn verdict(
        &self,
        &Overrides { kind, takeover, .. }: &Overrides,
        requires_coverage: bool,
    ) -> Result<(), CliError> {
        let Total { seeds, failed, undecided, .. } = *self;
        if failed > 0 {
            return Err(CliError::Check(format!("{failed} of {seeds} seeds failed")));
        }
        if !requires_coverage {
            return Ok(());
        }
        if undecided > seeds.div_ceil(UNDECIDED_ONE_IN) {
            let limit = format!("at most one in {UNDECIDED_ONE_IN} may be, and one of fewer");
            return Err(CliError::Check(format!("{undecided} of {seeds} histories are undecided: {limit}")));
        }
        let never = self.events.of(kind, takeover).filter(|(_, events)| *events == 0).map(|(name, _)| name);
        let never: Vec<_> = never.collect();
        match never.is_empty() {
            true => Ok(()),
            false => Err(CliError::Check(format!("{seeds} seeds never took: {}", never.join(", ")))),
        }
    }
}

impl Plan {
    fn new(args: &SimRunArgs) -> Result<Self, CliError> {
        let kind = args.index;
        let seeds = seeds(&args.seeds)?;
        let mut rest = String::new();
        if kind != IndexKind::default() {
            write!(rest, " --index {}", kind.name()).expect("strings take everything");
        }
        let mix = match &args.faults {
            None => None,
            Some(name) => {
                write!(rest, " --faults {name}").expect("strings take everything");
                Some(FaultMix::named(name).ok_or_else(|| unknown_mix(name))?)
            }
        };
        if let Some(ops) = args.ops {
            write!(rest, " --ops {ops}").expect("strings take everything");
        }
        let techniques = index::switches(kind, &args.technique)?;
        let techniques = techniques.into_iter().map(|(name, on)| (name.to_owned(), on)).collect();
        for switch in &args.technique {
            write!(rest, " --technique {switch}").expect("strings take everything");
        }
        if args.takeover {
            rest += " --takeover";
        }
        let ops = args.ops.map(ops_per_client).transpose()?;
        let overrides = Overrides { kind, mix, ops, techniques, takeover: args.takeover };
        if let Some(directory) = &args.history {
            files::check_directory(directory)?;
            fs::create_dir_all(directory).map_err(|error| CliError::write(directory, error))?;
        }
        Ok(Plan { seeds, overrides, history: args.history.clone(), rest })
    }

    fn perform(&self, seed: u64) -> Said {
        let scenario = Scenario::draw(seed, &self.overrides);
        let mut report = runner::run(&scenario, false);
        // That a seed repeats exactly is checked, not trusted.
        if seed.is_multiple_of(AGAIN_ONE_IN) && report.failure.is_none() {
            let again = runner::run(&scenario, false).trace_hash;
            if again != report.trace_hash {
                report.failure = Some(format!("run again it did something else: trace {again:016x}"));
            }
        }
        let unwritten =
            self.history.as_ref().and_then(|directory| write_history(directory, seed, &report).err());
        let mut text = line(seed, &scenario, &report);
        if let Some(failure) = &report.failure {
            text += &self.explain(seed, &scenario, &report, failure);
        }
        let Report { undecided, coverage, .. } = report;
        Said { text, failed: report.failure.is_some(), undecided, coverage, unwritten }
    }

    /// Explains what is wrong, what struck before, and how to see it again.
    fn explain(&self, seed: u64, scenario: &Scenario, report: &Report, failure: &str) -> String {
        let mut text = String::new();
        let mut add = |line: &str| {
            text += "    ";
            text += line;
            text += "\n";
        };
        failure.lines().for_each(&mut add);
        // Once more, with notes; whether it repeats exactly is checked as well.
        let again = runner::run(scenario, true);
        if again.trace_hash != report.trace_hash {
            add(&format!("(run again it did something else: trace {:016x})", again.trace_hash));
        }
        if !again.notes.is_empty() {
            add("the last faults:");
            again.notes.iter().for_each(|note| add(&format!("  {note}")));
        }
        add(&format!("the scenario: {scenario}"));
        add(&format!("to replay it: farwood sim run --seeds {seed}..{}{}", u128::from(seed) + 1, self.rest));
        text
    }
}

fn line(seed: u64, scenario: &Scenario, report: &Report) -> String {
    let verdict = match (&report.failure, report.undecided) {
        (Some(_), _) => "FAILED",
        (None, true) => "undecided",
        (None, false) => "ok",
    };
    format!(
        "seed {seed}  trace {:016x}  {:<8}  clients {:>2}  ops {:>4}  unknown {:>3}  stopped {}  keys {:>3}  {:>7} us  \
         {verdict}\n",
        report.trace_hash,
        scenario.mix.name,
        scenario.clients(),
        report.operations,
        report.unknown,
        report.stopped,
        report.keys,
        report.virtual_ns / 1000,
    )
}

fn write_history(directory: &Path, seed: u64, report: &Report) -> Result<(), CliError> {
    let path = directory.join(format!("seed-{seed}.jsonl"));
    files::write_file(&path, |out| write_json_lines(std::slice::from_ref(&report.history), out))
}

/// Runs all seeds on all cores, and hands their results to `tell` in their order.
fn in_order(plan: &Plan, mut tell: impl FnMut(Said) -> Result<(), CliError>) -> Result<(), CliError> {
    let threads = thread::available_parallelism().map_or(1, |cores| cores.get());
    let next = AtomicU64::new(plan.seeds.start);
    let over = AtomicBool::new(false);
    // Bounded, so that one slow seed does not let the others pile up behind it.
    let (sender, receiver) = mpsc::sync_channel(threads);
    thread::scope(|scope| {
        for _ in 0..threads {
            let (next, over, sender) = (&next, &over, sender.clone());
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= plan.seeds.end || sender.send((seed, plan.perform(seed))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let (mut early, mut due) = (BTreeMap::new(), plan.seeds.start);
        for (seed, said) in &receiver {
            early.insert(seed, said);
            while let Some(said) = early.remove(&due) {
                due += 1;
                if let Err(error) = tell(said) {
                    over.store(true, Ordering::Relaxed);
                    drop(receiver);
                    return Err(error);
                }
            }
        }
        Ok(())
    })
}

fn seeds(text: &str) -> Result<Range<u64>, CliError> {
    let wrong =
        || CliError::Usage(format!("--seeds {text}: write A..B, the first seed and the one after the last"));
    let (start, end) = text.split_once("..").ok_or_else(wrong)?;
    let (start, end) = start.parse().ok().zip(end.parse().ok()).ok_or_else(wrong)?;
    if start < end { Ok(start..end) } else { Err(wrong()) }
}

fn ops_per_client(ops: u64) -> Result<u32, CliError> {
    let ops = u32::try_from(ops).ok().filter(|ops| (1..=OPS_MAX).contains(ops));
    ops.ok_or_else(|| CliError::Usage(format!("--ops: choose 1 to {OPS_MAX} operations per client")))
}

fn unknown_mix(name: &str) -> CliError {
    let known: Vec<String> =
        FaultMix::ALL.iter().map(|mix| format!("{} ({})", mix.name, mix.about)).collect();
    CliError::Usage(format!("--faults {name}: there is {}", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_range() {
        assert_eq!(seeds("3..5").unwrap(), 3..5);
        for wrong in ["", "3", "5..3", "3..3", "a..b", "-1..2", "1..=2"] {
            assert!(seeds(wrong).unwrap_err().one_line().contains("A..B"), "{wrong}");
        }
    }

    #[test]
    fn coverage_is_required_of_those_who_ask() {
        let smart = Overrides { kind: IndexKind::Smart, ..Overrides::default() };
        let verdict = |total: &Total, required| match total.verdict(&smart, required) {
            Ok(()) => String::new(),
            Err(error) => error.one_line(),
        };
        let mut total = Total { seeds: 10_000, ..Total::default() };
        assert_eq!(verdict(&total, false), "");
        let said = verdict(&total, true);
        assert!(said.contains("never took: ") && said.contains("smart.leaf.split"), "{said}");
        assert!(!said.contains("sherman."), "{said}");
        total.undecided = 1;
        assert!(verdict(&total, true).contains("never took"));
        total.undecided = 2;
        assert!(verdict(&total, true).contains("2 of 10000 histories are undecided"));
        for (seeds, undecided, is_too_many) in [(3_000, 1, false), (3_000, 2, true), (10_001, 2, false)] {
            let run = Total { seeds, undecided, ..Total::default() };
            assert_eq!(verdict(&run, true).contains("are undecided"), is_too_many, "{undecided} of {seeds}");
        }
        total.failed = 1;
        assert!(verdict(&total, false).contains("1 of 10000 seeds failed"));
    }

    #[test]
    fn an_unknown_mix_is_answered_with_the_known_ones() {
        let said = unknown_mix("storm").one_line();
        assert!(
            FaultMix::ALL.iter().all(|mix| said.contains(mix.name) && said.contains(mix.about)),
            "{said}"
        );
    }
}
