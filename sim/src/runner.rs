//! Runs one scenario and judges it: clients at work while faults strike, then a phase without faults in which
//! everything must succeed, then a look at what is left, by a compute node that was not there before.
//!
//! It must hold that no client waits for ever; operations fail only for reasons that the faults give; at rest no chain,
//! buffer or lock is left; the tree is whole; and the oracles accept the history, the last contents included.

mod arrivals;
mod memory;
mod phases;
mod sweeps;

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::rc::Rc;

use farwood_runtime::sim::{SimShard, Simulation};

use self::phases::Run;
use crate::client::Crew;
use crate::coverage::{Coverage, counted};
use crate::history::History;
use crate::oracle::{Pairs, Violation, check_history, check_one_client};
use crate::scenario::Scenario;
use crate::shard::Steering;

/// Notable events that a run keeps where they are wanted.
const NOTES: usize = 40;

thread_local! {
    /// The last panic that the hook of [`remember_panics`] has seen.
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The result of a scenario.
#[derive(Debug, Default)]
pub struct Report {
    /// A number for everything that happened.
    pub trace_hash: u64,
    /// Operations in the history.
    pub operations: u64,
    /// Those of them whose outcome is unknown.
    pub unknown: u64,
    /// Compute nodes that stopped.
    pub stopped: u16,
    /// Keys that are in the index in the end.
    pub keys: u64,
    /// Virtual time that it took, in ns.
    pub virtual_ns: u64,
    /// True if the history of some key was too long to judge.
    pub undecided: bool,
    /// A description of what is wrong.
    pub failure: Option<String>,
    /// The last faults that struck, if they were asked for.
    pub notes: Vec<String>,
    /// Which rare paths it took.
    pub coverage: Coverage,
    /// The operations of all clients.
    pub history: History,
}

/// Runs `scenario`.
pub fn run(scenario: &Scenario, with_notes: bool) -> Report {
    run_as(scenario, with_notes, None)
}

/// Makes what steers a shard, of which it is told the number among all.
pub type Steer<'s> = &'s dyn Fn(&SimShard, u32) -> Rc<dyn Steering>;

/// Runs `scenario` while what `steer` makes steers the compute nodes' shards (but not the node's that looks at what is
/// left).
pub fn run_steered(scenario: &Scenario, steer: Steer<'_>) -> Report {
    run_as(scenario, false, Some(steer))
}

fn run_as(scenario: &Scenario, with_notes: bool, steer: Option<Steer<'_>>) -> Report {
    let (report, coverage) = counted(|| perform(scenario, with_notes, steer));
    Report { coverage, ..report }
}

fn perform(scenario: &Scenario, with_notes: bool, steer: Option<Steer<'_>>) -> Report {
    let simulation = match Simulation::new(&scenario.simulation()) {
        Ok(simulation) => simulation,
        Err(error) => {
            let failure = Some(format!("the cluster cannot be made: {error}"));
            return Report { failure, ..Report::default() };
        }
    };
    if with_notes {
        simulation.keep_notes(NOTES);
    }
    let crew = Rc::new(Crew::new(scenario));
    let run = Run::new(scenario, &simulation, Rc::clone(&crew), steer);
    let caught = catch_unwind(AssertUnwindSafe(|| run.all_phases()));
    let panicked = caught.is_err();
    let done = caught.unwrap_or_else(|panic| Err(panic_message(&*panic)));
    crew.recorder.give_all_up(simulation.now());
    simulation.mark(crew.recorder.hash(), crew.recorder.unknown());
    let history = crew.recorder.take_history();
    let mut report = Report {
        trace_hash: simulation.trace_hash(),
        operations: history.len() as u64,
        unknown: crew.recorder.unknown(),
        stopped: run.crew.dead().len() as u16,
        virtual_ns: simulation.now(),
        notes: simulation.notes(),
        ..Report::default()
    };
    match done {
        Ok(keys) => report.keys = keys,
        Err(failure) => report.failure = Some(failure),
    }
    // Also of a run that failed: what clients saw may tell why.
    report.judge(&history, scenario.has_one_client());
    report.history = history;
    if panicked {
        // Taking it apart might panic again, in the middle of whatever it was.
        std::mem::forget(simulation);
    }
    report
}

/// Puts panics, from now on, into their scenario's report, with their place, and not on standard error. For programs
/// that do nothing else.
pub fn remember_panics() {
    set_hook(Box::new(|panic| LAST_PANIC.set(Some(panic.to_string()))));
}

impl Report {
    fn judge(&mut self, history: &History, one_client: bool) {
        let mut verdict = check_history(history, &Pairs::new());
        if verdict.is_ok() && one_client {
            verdict = check_one_client(history, Pairs::new());
        }
        match verdict {
            Ok(()) => {}
            Err(Violation::Undecided { .. }) => self.undecided = true,
            Err(violation) => {
                let failure = self.failure.take().map(|failure| failure + "\n").unwrap_or_default();
                self.failure = Some(failure + &violation.to_string());
            }
        }
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let said = LAST_PANIC.take();
    let payload = panic.downcast_ref::<String>().cloned();
    let payload = payload.or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned()));
    said.or_else(|| payload.map(|said| format!("panicked: {said}"))).unwrap_or_else(|| "panicked".to_owned())
}
