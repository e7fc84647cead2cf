//! `farwood drop`: takes an index out of the catalog, and its memory back.

use std::sync::Arc;

use farwood::{ControlError, Fabric};
use futures::executor::block_on;

use crate::args::DropArgs;
use crate::connect::{Action, with_cluster};
use crate::error::CliError;
use crate::index::check_name;
use crate::interrupt::Interrupt;
use crate::report::output::print;
use crate::units::show_bytes;

/// Drops the index and says what it freed.
///
/// # Errors
/// If there is none of that name.
pub(crate) fn run(args: DropArgs) -> Result<(), CliError> {
    check_name(&args.name)?;
    let servers = args.servers.servers()?;
    let interrupt = Interrupt::listen()?;
    let told = with_cluster(&servers, Drop { name: args.name })?;
    print(&told)?;
    interrupt.check("the index was dropped")
}

struct Drop {
    name: String,
}

impl Action for Drop {
    type Output = String;

    fn on<F: Fabric>(self, cluster: Arc<F>) -> Result<String, CliError> {
        let freed = block_on(cluster.control().drop_index(&self.name)).map_err(explain)?;
        Ok(format!("dropped index {:?}: {} freed\n", self.name, show_bytes(freed)))
    }
}

/// Explains an index that is not there without the usual advice to create one, which does not help here.
fn explain(error: ControlError) -> CliError {
    match error {
        ControlError::NotFound { name } => CliError::Failed(format!(
            "there is no index named {name:?}, and nothing was dropped: `farwood stat` lists the indexes"
        )),
        other => CliError::failed(other),
    }
}

#[cfg(test)]
mod tests {
    use farwood::IndexKind;

    use super::*;
    use crate::session::kit;

    #[test]
    fn an_index_is_dropped_once() {
        for &kind in IndexKind::ALL {
            let cluster = kit::cluster(kind);
            let drop = || Drop { name: "t".to_owned() }.on(Arc::clone(&cluster));
            assert_eq!(drop().unwrap(), "dropped index \"t\": 0 B freed\n");
            let error = drop().unwrap_err();
            assert_eq!(error.exit_code(), 1);
            let told = "no index named \"t\", and nothing was dropped: `farwood stat` lists the indexes";
            assert!(error.one_line().ends_with(told), "{error}");
        }
    }
}
