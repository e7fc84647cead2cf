//! Ctrl-C and its kin. The first SIGINT, SIGTERM or SIGHUP asks the command to end: it finishes or drops what is in
//! flight, so that no lock stays behind, and says how far it came. A command that does not end within a second, as in a
//! call to a server that does not answer, or that gets a second signal, is ended by force.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use farwood::Verbs;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::error::CliError;
use crate::note;

/// The time that a command may take to end by itself: the promise is a second.
const GRACE: Duration = Duration::from_millis(900);
/// The pause between looks at whether it is time to end: signals know no shard.
const LOOK: Duration = Duration::from_millis(20);
/// Number that shells add to that of the signal that ended a command.
const SIGNALLED: i32 = 128;

/// A request to end the command. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<Asked>);

#[derive(Debug, Default)]
struct Asked {
    /// The signal that asked.
    signal: Arc<AtomicUsize>,
    /// True if a signal has. Set by the signal itself, after its number.
    is_set: Arc<AtomicBool>,
    /// Filled as soon as a thread has noticed.
    told: OnceLock<()>,
    /// True if the command may take its own time to end.
    is_patient: AtomicBool,
}

impl Interrupt {
    /// Takes over the signals of this process, from now on.
    ///
    /// # Errors
    /// If the system does not allow it.
    pub(crate) fn listen() -> Result<Self, CliError> {
        let failed = |cause| CliError::Failed(format!("cannot listen to signals: {cause}"));
        let interrupt = Interrupt::default();
        let Asked { signal: number, is_set, .. } = &*interrupt.0;
        let caught = caught();
        for &signal in &caught {
            // In this order: the second signal finds the flag that the first one has set.
            flag::register_conditional_shutdown(signal, SIGNALLED + signal, Arc::clone(is_set))
                .and_then(|_| flag::register_usize(signal, Arc::clone(number), signal as usize))
                .and_then(|_| flag::register(signal, Arc::clone(is_set)))
                .map_err(failed)?;
        }
        let mut signals = Signals::new(&caught).map_err(failed)?;
        let asked = interrupt.clone();
        let waiting = move || {
            // It ends only when it is closed, which does not happen here.
            signals.forever().next();
            asked.end_in_time();
        };
        thread::Builder::new().name("farwood-signals".to_owned()).spawn(waiting).map_err(failed)?;
        Ok(interrupt)
    }

    /// Ends the command if it has not ended when its time is over.
    fn end_in_time(&self) {
        self.0.told.get_or_init(|| ());
        let (_sender, grace) = channel::<()>();
        let _passed = grace.recv_timeout(GRACE);
        if !self.0.is_patient.load(Ordering::Relaxed) {
            let forced = "it did not end by itself and was ended by force: locks that it held stay held";
            let error = self.error(forced);
            note(error.report());
            std::process::exit(i32::from(error.exit_code()));
        }
    }

    /// Lets the command end in its own time from now on, unless a second signal comes.
    pub(crate) fn be_patient(&self) {
        self.0.is_patient.store(true, Ordering::Relaxed);
    }

    /// Tells whether it is time to end.
    pub(crate) fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::Acquire)
    }

    /// Lends the flag that is set when it is time to end, for code that knows no more of signals.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0.is_set)
    }

    /// Blocks until it is time to end.
    pub(crate) fn wait(&self) {
        self.0.told.wait();
    }

    /// Resolves when it is time to end.
    pub(crate) async fn asked(&self, shard: &impl Verbs) {
        while !self.is_set() {
            shard.pause(LOOK.as_nanos() as u64).await;
        }
    }

    /// Makes the error of a command that was asked to end; `done` says how far it came.
    pub(crate) fn error(&self, done: &str) -> CliError {
        let signal = self.0.signal.load(Ordering::Relaxed) as i32;
        CliError::Interrupted { done: done.to_owned(), exit_code: (SIGNALLED + signal) as u8 }
    }

    /// Fails with what was done, if it is time to end.
    ///
    /// # Errors
    /// [`CliError::Interrupted`] with that text.
    pub(crate) fn check(&self, done: &str) -> Result<(), CliError> {
        if self.is_set() { Err(self.error(done)) } else { Ok(()) }
    }

    /// Asks to end, as Ctrl-C does.
    #[cfg(test)]
    pub(crate) fn set(&self) {
        self.0.signal.store(SIGINT as usize, Ordering::Relaxed);
        self.0.is_set.store(true, Ordering::Release);
    }
}

/// Lists the signals that end this command: not a SIGHUP that it inherited as ignored, since `nohup` is to outlive the
/// terminal.
fn caught() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let survives = |signal: i32| signal == SIGHUP && ignored & 1 << (signal - 1) != 0;
    [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !survives(*signal)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_says_what_was_done() {
        let interrupt = Interrupt::default();
        assert!(interrupt.check("nothing").is_ok());
        interrupt.clone().set();
        let error = interrupt.check("the put was finished").unwrap_err();
        assert_eq!((error.exit_code(), error.one_line().as_str()), (130, "the put was finished"));
    }
}
