//! Ctrl-C. The first SIGINT or SIGTERM asks the command to end: it finishes what is in flight, so that no lock stays
//! behind, and says how far it came. The second one ends the process at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::error::CliError;

/// The signals that end a command.
const SIGNALS: [i32; 2] = [SIGINT, SIGTERM];

/// The exit status of a command that a signal ended, as shells have it for SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// Whether the command was asked to end. Clones ask the same question.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes over the signals of this process, from now on.
    ///
    /// # Errors
    /// If the system does not let it.
    pub(crate) fn listen() -> Result<Self, CliError> {
        let interrupt = Interrupt::default();
        for signal in SIGNALS {
            // In this order: the second signal finds the flag that the first one has set.
            let installed =
                flag::register_conditional_shutdown(signal, i32::from(INTERRUPTED), Arc::clone(&interrupt.0))
                    .and_then(|_| flag::register(signal, Arc::clone(&interrupt.0)));
            installed
                .map_err(|cause| CliError::Failed(format!("cannot listen to signal {signal}: {cause}")))?;
        }
        Ok(interrupt)
    }

    /// Whether it is time to end.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// An error that says what was done, if it is time to end.
    ///
    /// # Errors
    /// [`CliError::Interrupted`] with that text.
    pub(crate) fn check(&self, done: &str) -> Result<(), CliError> {
        if self.is_set() { Err(CliError::Interrupted(done.to_owned())) } else { Ok(()) }
    }

    /// Asks to end, as a signal does.
    #[cfg(test)]
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The signals of a command that has nothing to do but to wait for them.
pub(crate) struct Stop(Signals);

impl Stop {
    /// Begins to collect signals. The second one ends the process at once.
    ///
    /// # Errors
    /// If the system does not let it.
    pub(crate) fn listen() -> Result<Self, CliError> {
        Interrupt::listen()?;
        let signals = Signals::new(SIGNALS);
        let failed = |cause| CliError::Failed(format!("cannot listen to signals: {cause}"));
        signals.map(Stop).map_err(failed)
    }

    /// Blocks until a signal comes, or one has come since [`Stop::listen`].
    pub(crate) fn wait(&mut self) {
        // It ends only when it is closed, which nobody can do here.
        self.0.forever().next();
    }
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
