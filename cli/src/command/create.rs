//! `farwood create`: a new index in the catalog.

use std::sync::Arc;

use farwood::{Fabric, IndexSpec, Limits};
use futures::executor::block_on;

use crate::args::CreateArgs;
use crate::connect::{Action, with_cluster};
use crate::error::CliError;
use crate::index::{self, check_name};
use crate::interrupt::Interrupt;
use crate::report::output::print;
use crate::session::ControlOnly;

/// Creates the index and says so.
///
/// # Errors
/// If the arguments make no index, or the catalog refuses.
pub(crate) fn run(args: CreateArgs) -> Result<(), CliError> {
    check_name(&args.name)?;
    let spec = spec(&args)?;
    let servers = args.servers.servers()?;
    let interrupt = Interrupt::listen()?;
    let told = with_cluster(&servers, Create { name: args.name, spec })?;
    print(&told)?;
    interrupt.check("the index was created")
}

fn spec(args: &CreateArgs) -> Result<IndexSpec, CliError> {
    let size = |flag: &str, bytes: Option<u64>, usual: usize| match bytes {
        None => Ok(usual),
        Some(bytes) => {
            usize::try_from(bytes).map_err(|_| CliError::Usage(format!("{flag} {bytes}: that is too long")))
        }
    };
    let usual = args.index.usual_limits();
    let max_key = size("--max-key", args.max_key, usual.max_key)?;
    let max_value = size("--max-value", args.max_value, usual.max_value)?;
    index::spec(args.index, Limits { max_key, max_value }, &[])
}

struct Create {
    name: String,
    spec: IndexSpec,
}

impl Action for Create {
    type Output = String;

    fn on<F: Fabric>(self, cluster: Arc<F>) -> Result<String, CliError> {
        // The index that is opened here is not used.
        let spec = self.spec.with_options(|options| options.cache_bytes = 0);
        block_on(index::create(&ControlOnly::at(&cluster), &self.name, &spec))?;
        let (Limits { max_key, max_value }, leaf_bytes) = (spec.limits(), spec.leaf_bytes());
        let up_to = if spec.leaves_differ() { "up to " } else { "" };
        Ok(format!(
            "created index {:?}: {}, keys up to {max_key} bytes, values up to {max_value} bytes, \
             leaves of {up_to}{leaf_bytes} bytes\n",
            self.name,
            spec.kind(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use farwood::IndexKind;

    use super::*;
    use crate::session::kit;

    fn create(words: &str) -> Result<String, CliError> {
        create_on(&kit::cluster(IndexKind::Sherman), words)
    }

    fn create_on(cluster: &Arc<farwood::Cluster>, words: &str) -> Result<String, CliError> {
        use crate::args::{Command, Request, parse};
        let words = ["farwood", "create", "--fabric", "shm:x"].into_iter().chain(words.split_whitespace());
        let Request::Run(cli) = parse(words)? else { panic!("a command was given") };
        let Command::Create(args) = cli.command else { panic!("it was create") };
        Create { spec: spec(&args)?, name: args.name }.on(Arc::clone(cluster))
    }

    #[test]
    fn an_index_is_created_once() {
        for &kind in IndexKind::ALL {
            let cluster = kit::cluster(kind);
            let words = format!("users --index {} --max-key 200 --max-value 8", kind.name());
            let told = create_on(&cluster, &words).unwrap();
            let begin =
                format!("created index \"users\": {}, keys up to 200 bytes, values up to 8 ", kind.name());
            assert!(told.starts_with(&begin), "{told}");
            let error = create_on(&cluster, &words).unwrap_err();
            assert_eq!(error.exit_code(), 1);
            assert!(error.one_line().contains("an index named \"users\" already"), "{error}");
            let opened = block_on(index::open(&ControlOnly::at(&cluster), "users", |_| {})).unwrap();
            assert_eq!(opened.limits(), Limits { max_key: 200, max_value: 8 });
        }
    }

    #[test]
    fn sizes_have_defaults_by_kind() {
        assert!(create("a --index sherman").unwrap().contains("keys up to 32 bytes, values up to 32 bytes"));
        assert!(create("a --index smart").unwrap().contains("keys up to 255 bytes, values up to 1024 bytes"));
    }

    #[test]
    fn sizes_that_make_no_index_are_refused() {
        for (words, part) in [
            ("a --index smart --max-key 256", "up to 255 bytes"),
            ("a --index smart --max-value 1MiB", "4096"),
            ("a --index sherman --max-key 1MiB", "keys"),
            ("a --index btree", "[possible values: "),
        ] {
            let error = create(words).unwrap_err();
            assert!(error.exit_code() == 2 && error.one_line().contains(part), "{words}: {error}");
        }
    }
}
