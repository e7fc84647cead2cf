//! `farwood load`: a file into an index.

use crate::args::LoadArgs;
use crate::command::bulk::{self, Operation};
use crate::error::CliError;
use crate::index::check_name;

/// Loads the file and says how many lines were read, stored and rejected.
///
/// # Errors
/// Also if a line was rejected; the rest is stored then.
pub(crate) fn run(args: LoadArgs) -> Result<(), CliError> {
    check_name(&args.name)?;
    bulk::run(Operation::Put, &args.servers.servers()?, args.name, args.file)
}
