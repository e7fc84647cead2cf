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

#[cfg(test)]
mod tests {
    use farwood::IndexKind;

    use super::*;
    use crate::command::put::Put;
    use crate::command::remove::Remove;
    use crate::session::kit;

    fn get(cluster: &Arc<farwood::Cluster>, name: &str, key: &[u8]) -> Result<Vec<u8>, CliError> {
        Get { name: name.to_owned(), key: key.to_vec(), interrupt: Interrupt::default() }
            .on(Arc::clone(cluster))
    }

    #[test]
    fn what_was_put_is_found_until_it_is_removed() {
        IndexKind::ALL.iter().copied().for_each(put_get_and_remove);
    }

    fn put_get_and_remove(kind: IndexKind) {
        let cluster = kit::cluster(kind);
        let put = |key: &[u8], value: &[u8]| {
            let (key, value) = (key.to_vec(), value.to_vec());
            let put = Put { name: "t".to_owned(), key, value, interrupt: Interrupt::default() };
            put.on(Arc::clone(&cluster))
        };
        let remove = |key: &[u8]| {
            let remove = Remove { name: "t".to_owned(), key: key.to_vec(), interrupt: Interrupt::default() };
            remove.on(Arc::clone(&cluster))
        };
        assert!(get(&cluster, "t", b"k").unwrap_err().one_line().contains("has no key \"k\""));
        for (key, value) in [(&b"k"[..], &b"v"[..]), (b"", b""), (b"\xff\0\n", b"\xfe\t\n"), (b"k", b"w")] {
            put(key, value).unwrap();
            assert_eq!(get(&cluster, "t", key).unwrap(), value);
        }
        remove(b"k").unwrap();
        let again = remove(b"k").unwrap_err();
        assert!(again.exit_code() == 1 && again.one_line().contains("has no key \"k\""), "{again}");
        assert!(get(&cluster, "t", b"k").is_err());
        assert_eq!(get(&cluster, "t", b"").unwrap(), b"");
        let long = [b'x'; kit::BYTES_MAX + 1];
        for error in [put(&long, b"").unwrap_err(), put(b"", &long).unwrap_err(), remove(&long).unwrap_err()]
        {
            assert!(error.exit_code() == 1 && error.one_line().contains("17 bytes"), "{error}");
        }
    }

    #[test]
    fn an_index_that_is_not_there_or_not_known_is_an_error() {
        let cluster = kit::cluster(IndexKind::Sherman);
        let error = get(&cluster, "none", b"k").unwrap_err();
        assert!(error.exit_code() == 1 && error.one_line().contains("create it first"), "{error}");
        futures::executor::block_on(farwood::runtime::Control::create(&*cluster, "new", "warp", b""))
            .unwrap();
        let error = get(&cluster, "new", b"k").unwrap_err();
        assert!(error.exit_code() == 1 && error.one_line().contains("of kind \"warp\""), "{error}");
    }
}
