//! `farwood get`: the value of one key.

use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use farwood::{Fabric, RangeIndex};

use crate::args::GetArgs;
use crate::connect::{Action, with_cluster};
use crate::error::CliError;
use crate::index::check_name;
use crate::interrupt::Interrupt;
use crate::report::output::print_bytes;
use crate::session::on_index;

/// Message of a get that was interrupted.
const NOTHING: &str = "nothing is printed";

/// Prints the value and a newline.
///
/// # Errors
/// Also if the key is absent.
pub(crate) fn run(args: GetArgs) -> Result<(), CliError> {
    check_name(&args.name)?;
    let servers = args.servers.servers()?;
    let interrupt = Interrupt::listen()?;
    let get = Get { name: args.name, key: args.key.into_vec(), interrupt: interrupt.clone() };
    let mut value = with_cluster(&servers, get)?;
    interrupt.check(NOTHING)?;
    value.push(b'\n');
    print_bytes(&value)
}

struct Get {
    name: String,
    key: Vec<u8>,
    interrupt: Interrupt,
}

impl Action for Get {
    type Output = Vec<u8>;

    fn on<F: Fabric>(self, cluster: Arc<F>) -> Result<Vec<u8>, CliError> {
        let Get { name, key, interrupt } = self;
        let absent = absent(&name, &key);
        let value = on_index(cluster, &name, &interrupt, NOTHING, move |index| {
            let key = key.clone();
            async move {
                let value = index.get(&key).await.map_err(CliError::failed)?;
                Ok(value.map(|value| value.to_vec()))
            }
        });
        value?.ok_or(absent)
    }
}

/// Makes the error of a key that is not there.
pub(crate) fn absent(name: &str, key: &[u8]) -> CliError {
    CliError::Failed(format!("the index {name:?} has no key \"{}\"", key.escape_ascii()))
}
