//! `farwood create`: a new index in the catalog.

use std::sync::Arc;

use farwood::Geometry;
use futures::executor::block_on;

use crate::args::CreateArgs;
use crate::config::check_index;
use crate::connect::{Action, Connected, with_cluster};
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::open_index::{OpenIndex, check_name, geometry};
use crate::report::output::print;
use crate::session::Desk;

/// Creates the index and says so.
///
/// # Errors
/// If the arguments make no index, or the catalog refuses.
pub(crate) fn run(args: CreateArgs) -> Result<(), CliError> {
    check_name(&args.name)?;
    check_index(&args.index)?;
    let geometry = geometry(args.max_key, args.max_value)?;
    let servers = args.servers.servers()?;
    let interrupt = Interrupt::listen()?;
    let told = with_cluster(&servers, Create { name: args.name, geometry })?;
    print(&told)?;
    interrupt.check("the index was created")
}

struct Create {
    name: String,
    geometry: Geometry,
}

impl Action for Create {
    type Output = String;

    fn on<F: Connected>(self, cluster: Arc<F>) -> Result<String, CliError> {
        let index = block_on(OpenIndex::create(&Desk::at(&cluster), &self.name, self.geometry))?;
        Ok(format!(
            "created index {:?}: sherman, keys up to {} bytes, values up to {} bytes, nodes of {} bytes\n",
            self.name,
            self.geometry.max_key,
            self.geometry.max_value,
            index.node_bytes(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::kit;

    #[test]
    fn an_index_is_created_once() {
        let cluster = kit::cluster();
        let create = |name: &str| {
            let geometry = geometry(200, 8).unwrap();
            Create { name: name.to_owned(), geometry }.on(Arc::clone(&cluster))
        };
        let told = create("users").unwrap();
        assert!(told.starts_with("created index \"users\": sherman, keys up to 200 bytes"), "{told}");
        let error = create("users").unwrap_err();
        assert_eq!(error.exit_code(), 1);
        assert!(error.one_line().contains("an index named \"users\" already"), "{error}");
        let opened = block_on(OpenIndex::open(&Desk::at(&cluster), "users", 0)).unwrap();
        assert_eq!((opened.limits().max_key, opened.limits().max_value), (200, 8));
    }
}
