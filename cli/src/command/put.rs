//! `farwood put`: sets the value of one key.

use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use farwood::{Fabric, RangeIndex};

use crate::args::PutArgs;
use crate::connect::{Action, with_cluster};
use crate::error::CliError;
use crate::index::check_name;
use crate::interrupt::Interrupt;
use crate::session::on_index;

/// Stores key and value.
///
/// # Errors
/// If they are too long for the index, or could not be stored.
pub(crate) fn run(args: PutArgs) -> Result<(), CliError> {
    check_name(&args.name)?;
    let servers = args.servers.servers()?;
    let interrupt = Interrupt::listen()?;
    let (key, value) = (args.key.into_vec(), args.value.into_vec());
    with_cluster(&servers, Put { name: args.name, key, value, interrupt: interrupt.clone() })?;
    interrupt.check("the value was stored")
}

/// A put, to be done on any cluster.
pub(crate) struct Put {
    /// The index.
    pub(crate) name: String,
    /// The key.
    pub(crate) key: Vec<u8>,
    /// Its new value.
    pub(crate) value: Vec<u8>,
    /// Interrupt that ends it early.
    pub(crate) interrupt: Interrupt,
}

impl Action for Put {
    type Output = ();

    fn on<F: Fabric>(self, cluster: Arc<F>) -> Result<(), CliError> {
        let Put { name, key, value, interrupt } = self;
        let undone = "the value may be stored or not";
        on_index(cluster, &name, &interrupt, undone, move |index| {
            let (key, value) = (key.clone(), value.clone());
            async move { index.put(&key, &value).await.map_err(CliError::failed) }
        })
    }
}
