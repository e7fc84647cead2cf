//! Errors that end a command before it has done what it was asked. Every error is one line for a person to act on, and
//! an exit status.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// An error that ends the command.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum CliError {
    /// The command line, or a file that it names, is not something to start with.
    #[error("{0}")]
    Usage(String),
    /// A line of a key file cannot be a key.
    #[error(
        "{}: line {line} is {bytes} bytes long, more than the {max} bytes of a key: shorten it",
        shown(path)
    )]
    LongLine {
        /// The key file.
        path: PathBuf,
        /// Number of the line, counted from 1.
        line: u64,
        /// Its length.
        bytes: usize,
        /// The greatest length of a key.
        max: usize,
    },
    /// The data would not fit; found before anything was started.
    #[error("{0}")]
    Memory(String),
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", shown(path))]
    File {
        /// "read" or "write".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Cause that the system gave.
        source: io::Error,
    },
    /// The run started and did not complete.
    #[error("the run failed: {0}")]
    Run(String),
    /// The run completed and one of its own checks did not hold.
    #[error("a check of the run failed: {0}")]
    Check(String),
    /// A command was started and could not do what it was asked.
    #[error("{0}")]
    Failed(String),
    /// A signal ended the command.
    #[error("{done}")]
    Interrupted {
        /// Progress up to there.
        done: String,
        /// 128 and the number of the signal, as shells have it.
        exit_code: u8,
    },
}

impl CliError {
    /// Makes a usage error from anything that can be shown.
    pub(crate) fn usage(message: impl Display) -> Self {
        CliError::Usage(message.to_string())
    }

    /// Makes a failure from anything that can be shown.
    pub(crate) fn failed(cause: impl Display) -> Self {
        CliError::Failed(cause.to_string())
    }

    /// Makes the error of a file that could not be read.
    pub(crate) fn read(path: &Path, source: io::Error) -> Self {
        CliError::File { action: "read", path: path.to_owned(), source }
    }

    /// Makes the error of a file that could not be written.
    pub(crate) fn write(path: &Path, source: io::Error) -> Self {
        CliError::File { action: "write", path: path.to_owned(), source }
    }

    /// Returns the process's exit status: 2 for what could be known before the run, 1 for what happened in it, 128 and
    /// its number if a signal ended it.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            CliError::Usage(_) | CliError::LongLine { .. } | CliError::Memory(_) => 2,
            CliError::File { action: "read", .. } => 2,
            CliError::File { .. } | CliError::Run(_) | CliError::Check(_) | CliError::Failed(_) => 1,
            CliError::Interrupted { exit_code, .. } => *exit_code,
        }
    }

    /// Renders the line for the person at the terminal.
    pub(crate) fn report(&self) -> String {
        match self {
            CliError::Interrupted { .. } => format!("interrupted: {}", self.one_line()),
            _ => format!("error: {}", self.one_line()),
        }
    }

    /// Joins the message into one line.
    pub(crate) fn one_line(&self) -> String {
        let message = self.to_string();
        // Blanks inside a line may be part of a key.
        message.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
    }
}

/// Shows a path of the command line.
pub(crate) fn shown(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line() {
        let error = CliError::Run("first\n  second\r\nthird".to_owned());
        assert_eq!(error.one_line(), "the run failed: first second third");
        assert_eq!(error.exit_code(), 1);
    }

    #[test]
    fn a_long_line_is_named() {
        let error = CliError::LongLine { path: "-".into(), line: 7, bytes: 2000, max: 1024 };
        assert!(error.one_line().starts_with("standard input: line 7 is 2000 bytes"));
        assert_eq!(error.exit_code(), 2);
    }
}
