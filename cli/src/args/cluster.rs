//! The arguments of the commands that run memory servers, or work on what running ones hold.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgGroup, Args};
use farwood::IndexKind;

use crate::args::kinds;
use crate::error::CliError;
use crate::fabric::{Servers, VerbsOptions};
use crate::units::{parse_count, parse_size, parse_time};

/// This side of the fabric verbs.
#[derive(Debug, Default, Args)]
pub(crate) struct VerbsArgs {
    /// verbs: the RDMA device, as `ibv_devices` names it [default: the first one with an active port]
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// verbs: the device's port, counted from 1 [default: the first active one]
    #[arg(long, value_name = "N")]
    pub(crate) port: Option<u8>,
    /// verbs: index of the port's GID [default: RoCE v2 before others, IPv4 before IPv6]
    #[arg(long, value_name = "N")]
    pub(crate) gid_index: Option<u8>,
}

impl From<VerbsArgs> for VerbsOptions {
    fn from(args: VerbsArgs) -> Self {
        VerbsOptions { device: args.device, port: args.port, gid_index: args.gid_index }
    }
}

/// Where the memory servers are.
#[derive(Debug, Args)]
pub(crate) struct ServersArgs {
    /// The memory servers: shm:NAME[,NAME..] (NAME is /dev/shm/farwood-NAME; with a '/' it is a path) or
    /// verbs:HOST:PORT[,HOST:PORT..]. With several, always name all of them, in the same order
    #[arg(long, value_name = "FABRIC")]
    pub(crate) fabric: String,
    #[command(flatten)]
    pub(crate) verbs: VerbsArgs,
}

impl ServersArgs {
    /// Returns the memory servers that the arguments name.
    ///
    /// # Errors
    /// If that is no fabric with memory servers that run already.
    pub(crate) fn servers(self) -> Result<Servers, CliError> {
        Servers::parse(&self.fabric, self.verbs.into())
    }
}

/// Run a memory server: memory that compute nodes read and write without this process.
///
/// It says when it is ready and how to connect, and runs until Ctrl-C, SIGTERM or SIGHUP (under nohup not the last).
/// Before it stops it says what is lost: its memory does not outlive the process. A second Ctrl-C ends it at once.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 after Ctrl-C, 1 if it could not be started, 2 if the arguments make no server."
)]
pub(crate) struct MemoryServerArgs {
    /// Where it is: shm:NAME (NAME is /dev/shm/farwood-NAME; with a '/' it is the path of a file, on hugetlbfs too, or
    /// of a DAX device) or verbs
    #[arg(long, value_name = "FABRIC")]
    pub(crate) fabric: String,
    /// Memory of the server: what indexes can have, and its own tables. Over shm, on CPUs other than AMD Zen 5 servers
    /// and desktops, counters that keep lines whole take one sixteenth on top
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) memory: u64,
    /// verbs: where the control service listens for compute nodes [default: 0.0.0.0:7077]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Option<String>,
    #[command(flatten)]
    pub(crate) verbs: VerbsArgs,
    /// Take the memory in huge pages, and fail if there are not enough
    #[arg(long)]
    pub(crate) huge_pages: bool,
    /// After so long without a sign of life a compute node is given up; over shm, what it has open is kept until its
    /// process has ended
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_time)]
    pub(crate) silence: u64,
    /// Over shm, end the process of a compute node that is given up, by SIGKILL, also if it is only stopped: then it
    /// is dead, and others may have its memory and take over its locks. It has to be this user's, and in this pid
    /// namespace
    #[arg(long)]
    pub(crate) end_silent: bool,
}

/// Create an index: an ordered map from keys to values, bytes both.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 if it was created, 1 if not (there is one of that name, for example), 2 if the \
    arguments make no index."
)]
pub(crate) struct CreateArgs {
    /// Its name
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) servers: ServersArgs,
    /// The kind of index
    #[arg(long, value_name = "KIND", value_parser = kinds::parser())]
    pub(crate) index: IndexKind,
    #[arg(long, value_name = "N", value_parser = parse_size,
        help = kinds::limit_help("Bytes of the longest key", |limits| limits.max_key))]
    pub(crate) max_key: Option<u64>,
    #[arg(long, value_name = "N", value_parser = parse_size,
        help = kinds::limit_help("Bytes of the longest value", |limits| limits.max_value))]
    pub(crate) max_value: Option<u64>,
}

/// Drop an index with all that is in it. Asks nothing, and says what it freed.
///
/// No client may be using the index any more: its memory goes to other indexes.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 if it was dropped, 1 if not, 2 if the arguments make no sense.")]
pub(crate) struct DropArgs {
    /// Its name
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) servers: ServersArgs,
}

/// Load a file into an index: one `key TAB value` per line.
///
/// Keys and values are the raw bytes of the line; the first TAB divides them, later ones belong to the value. Keys that
/// are there already get the new value; of equal keys in the file the last one counts. Lines without a TAB, and lines
/// whose key or value is too long for the index, are rejected: the first thousand are shown with their numbers, all
/// are counted, and the rest is loaded.
///
/// Ctrl-C finishes what is in flight and says up to which line everything is stored.
#[derive(Debug, Args)]
#[command(
    after_help = "Prints one line on standard output: `read N lines, stored N, rejected N`. Rejected lines and \
    the progress bar are for standard error.\n\
    Exit status: 0 if every line was stored, 1 if one was rejected or storing failed, 2 if the arguments or the \
    file are nothing to start with, 130 after Ctrl-C."
)]
pub(crate) struct LoadArgs {
    /// The index
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) servers: ServersArgs,
    /// The file; - is standard input
    #[arg(long, value_name = "PATH", default_value = "-")]
    pub(crate) file: PathBuf,
}

/// Print the value of a key, and a newline.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 if the key was found, 1 if it is absent or the read failed, 2 if the arguments \
    make no sense.\nA key that begins with - goes last, behind --."
)]
pub(crate) struct GetArgs {
    /// The index
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) servers: ServersArgs,
    /// The key: the raw bytes of the argument
    pub(crate) key: OsString,
}

/// Set the value of a key, whether it is there or not. Prints nothing.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 if it is stored, 1 if not, 2 if the arguments make no sense.\n\
    A key or value that begins with - goes last, behind --.")]
pub(crate) struct PutArgs {
    /// The index
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) servers: ServersArgs,
    /// The key: the raw bytes of the argument
    pub(crate) key: OsString,
    /// The value: the raw bytes of the argument
    pub(crate) value: OsString,
}

/// Remove a key and its value, or those of every key in a file.
///
/// With --file each line is a key, up to the newline: its raw bytes, and an empty line is the empty key. Keys that are
/// absent are counted, and are no error; a key that comes again is absent then. Lines with a TAB, which are key and
/// value (`cut -f1` makes keys of them), and keys that are too long for the index, are rejected: the first thousand are
/// shown with their numbers, all are counted, and the rest is removed.
///
/// Ctrl-C finishes what is in flight and says up to which line everything is removed.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("keys").required(true),
    // By itself clap puts the group before NAME, where its KEY is not.
    override_usage = "farwood remove [OPTIONS] --fabric <FABRIC> <NAME> <KEY|--file <PATH>>",
    after_help = "Prints nothing for KEY, and for --file one line on standard output: `read N lines, removed N, \
    absent N, rejected N`. Rejected lines and the progress bar are for standard error.\n\
    Exit status: 0 if KEY was removed, or if every line of the file was a key, there or not; 1 if KEY was absent, a \
    line was rejected or removing failed; 2 if the arguments or the file are nothing to start with; 130 after \
    Ctrl-C.\nA key that begins with - goes last, behind --."
)]
pub(crate) struct RemoveArgs {
    /// The index
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) servers: ServersArgs,
    /// The key: the raw bytes of the argument
    #[arg(group = "keys")]
    pub(crate) key: Option<OsString>,
    /// The file of keys, one a line; - is standard input
    #[arg(long, value_name = "PATH", group = "keys")]
    pub(crate) file: Option<PathBuf>,
}

/// Print keys and values in ascending order, one `key TAB value` per line, and nothing else.
///
/// Keys and values are printed as they are: one that has a TAB or a newline in it cannot be told apart. A scan is no
/// snapshot: what others write meanwhile may show or not.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 at the end of the range or when the reader of the output is gone, 1 if a read \
    failed, 2 if the arguments make no sense, 130 after Ctrl-C."
)]
pub(crate) struct ScanArgs {
    /// The index
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) servers: ServersArgs,
    /// Begin at that key, included [default: at the first one]
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub(crate) from: Option<OsString>,
    /// End before that key, excluded [default: after the last one]
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub(crate) to: Option<OsString>,
    /// Print that many at most
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(crate) limit: Option<u64>,
}

/// Walk an index node by node, check its invariants, and print its shape.
///
/// For an index at rest: a writer at work is reported as what it leaves in between.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 if the index is intact, 1 if an invariant is broken (the node is named) or a \
    read failed, 2 if the arguments make no sense."
)]
pub(crate) struct CheckArgs {
    /// The index
    pub(crate) name: String,
    /// Take over the locks of dead compute nodes that no client has asked for, give memory back that these have left
    /// (if no other client is connected), and check the index again
    #[arg(long)]
    pub(crate) repair: bool,
    #[command(flatten)]
    pub(crate) servers: ServersArgs,
}

/// Find memory of an index that was lost with processes that died, and give it back, while clients work.
///
/// Takes a few seconds, and some more for each million of keys. All clients' caches are emptied once if anything was
/// lost. What looks like a leaf is left in an index of kind dolphin: `check --repair` gives it back.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 if the index was swept, lost memory found or not; 1 if it could not be, or what was \
    lost not be given back: the index is as it was; 2 if the arguments make no sense, 130 after Ctrl-C."
)]
pub(crate) struct SweepArgs {
    /// The index
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) servers: ServersArgs,
}

/// Print the memory servers with their memory in use, the connected compute nodes, and the indexes.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0, or 1 if a memory server does not answer, 2 if the arguments make no sense."
)]
pub(crate) struct StatArgs {
    #[command(flatten)]
    pub(crate) servers: ServersArgs,
}
