//! `farwood remove`: takes one key out of an index, or all keys of a file.

use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use farwood::{Fabric, RangeIndex};

use crate::args::RemoveArgs;
use crate::command::bulk::{self, Operation};
use crate::command::get::absent;
use crate::connect::{Action, with_cluster};
use crate::error::CliError;
use crate::index::check_name;
use crate::interrupt::Interrupt;
use crate::session::on_index;

/// Removes the key, or those of the file and says how many lines were read, removed, absent and rejected.
///
/// # Errors
/// Also if the key is absent, or if a line of the file was rejected; the rest is removed then.
pub(crate) fn run(args: RemoveArgs) -> Result<(), CliError> {
    check_name(&args.name)?;
    let servers = args.servers.servers()?;
    if let Some(file) = args.file {
        return bulk::run(Operation::Remove, &servers, args.name, file);
    }
    let key = args.key.expect("clap asks for a key or a file").into_vec();
    let interrupt = Interrupt::listen()?;
    let remove = Remove { name: args.name, key, interrupt: interrupt.clone() };
    with_cluster(&servers, remove)?;
    interrupt.check("the key was removed")
}

/// A remove, to be done on any cluster.
pub(crate) struct Remove {
    /// The index.
    pub(crate) name: String,
    /// The key.
    pub(crate) key: Vec<u8>,
    /// Interrupt that ends it early.
    pub(crate) interrupt: Interrupt,
}

impl Action for Remove {
    type Output = ();

    fn on<F: Fabric>(self, cluster: Arc<F>) -> Result<(), CliError> {
        let Remove { name, key, interrupt } = self;
        let absent = absent(&name, &key);
        let undone = "the key may be removed or not";
        let removed = on_index(cluster, &name, &interrupt, undone, move |index| {
            let key = key.clone();
            async move { index.remove(&key).await.map_err(CliError::failed) }
        });
        if removed? { Ok(()) } else { Err(absent) }
    }
}
