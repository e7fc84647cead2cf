//! Standard output, for results.

use std::io::{self, Write};

use crate::error::CliError;

/// Writes text to standard output. A reader that has gone away (`| head`) is its own choice and no failure.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    print_bytes(text.as_bytes())
}

/// Writes bytes to standard output, of any kind; a reader that has gone away is no failure.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(failed(error)),
        _ => Ok(()),
    }
}

/// Makes the error of a standard output that cannot be written to.
pub(crate) fn failed(error: io::Error) -> CliError {
    CliError::write("standard output".as_ref(), error)
}
