//! Standard output, for results.

use std::io::{self, Write};

use crate::error::CliError;

/// Writes to standard output. A reader that has gone away (`| head`) is its own choice and no failure.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(CliError::write("standard output".as_ref(), error))
        }
        _ => Ok(()),
    }
}
