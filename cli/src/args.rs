//! The command line as it was typed: names, types and help texts, nothing decided yet. The meaning of the values
//! together is for [`crate::config`] to say.

mod cluster;
mod kinds;

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::error::ErrorKind;
use clap::{ArgAction, Args, Parser, Subcommand};
use farwood::IndexKind;
use farwood::runtime::sim::FaultMix;
use farwood_sim::paper::Experiment;

pub(crate) use self::cluster::{
    CheckArgs, CreateArgs, DropArgs, GetArgs, LoadArgs, MemoryServerArgs, PutArgs, RemoveArgs, ScanArgs,
    StatArgs, SweepArgs, VerbsArgs,
};
use crate::error::CliError;
use crate::units::{parse_count, parse_size, parse_switch, parse_time};

/// Ordered indexes in disaggregated memory: memory servers, indexes on them, benchmarks and simulations.
#[derive(Debug, Parser)]
#[command(name = "farwood", version, disable_help_subcommand = false)]
#[command(after_help = "Sizes take KiB MiB GiB, counts take k M G (powers of ten), times take us ms s.\n\
    Ctrl-C, SIGTERM and SIGHUP end a command within a second (exit status 130, 143 and 129; 0 for memory-server); a \
    second one ends it at once. Under nohup SIGHUP ends none.\n\
    `farwood help COMMAND` explains a command. FARWOOD_LOG=debug writes events to standard error.")]
pub(crate) struct Cli {
    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands of this release.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    MemoryServer(MemoryServerArgs),
    Create(CreateArgs),
    Drop(DropArgs),
    Load(LoadArgs),
    Get(GetArgs),
    Put(PutArgs),
    Remove(RemoveArgs),
    Scan(ScanArgs),
    Check(CheckArgs),
    Sweep(SweepArgs),
    Stat(StatArgs),
    Bench(Box<BenchArgs>),
    /// Run the index on simulated nodes, NICs and faults
    Sim {
        /// The kind of simulation
        #[command(subcommand)]
        command: SimCommand,
    },
}

/// The commands of `farwood sim`.
#[derive(Debug, Subcommand)]
pub(crate) enum SimCommand {
    Run(SimRunArgs),
    Paper(SimPaperArgs),
}

/// Run the papers' experiments on the simulated fabric: figure, paper's value, simulated value, ratio.
///
/// The simulated NICs are calibrated from micro-measurements alone; what the indexes do is a prediction.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 if the experiments ran, whatever their figures; 2 if they were not started."
)]
pub(crate) struct SimPaperArgs {
    /// The experiment [default: all, one after the other]
    #[arg(value_parser = experiments())]
    pub(crate) name: Option<String>,
    /// Keys that Sherman's experiments store, 10k at least; SMART's and CHIME's store a tenth, Dolphin's a half, but a
    /// power of two. Popularity is that of the papers' numbers of keys, but for CHIME's
    #[arg(long, value_name = "N", default_value = "2M", value_parser = parse_count)]
    pub(crate) keys: u64,
    /// Virtual time, in percent of what each experiment takes by itself
    #[arg(long, value_name = "PERCENT", default_value_t = 100)]
    pub(crate) time: u64,
    /// Seed of everything random
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write the rows as JSON to a file, or to standard output with '-' and then nothing else
    #[arg(long, value_name = "PATH")]
    pub(crate) json: Option<PathBuf>,
}

/// Run random clusters, workloads and faults, one per seed, and judge them with oracles.
///
/// One line per seed: its trace hash and a few counts. What is printed depends on the seeds alone.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 if all seeds passed, 1 if one failed (it says how, and how to replay it), 2 if \
    the swarm was not started."
)]
pub(crate) struct SimRunArgs {
    /// The index
    #[arg(long, value_name = "KIND", default_value_t, value_parser = kinds::parser())]
    pub(crate) index: IndexKind,
    /// The seeds, from A up to B, which is excluded
    #[arg(long, value_name = "A..B", default_value = "0..100")]
    pub(crate) seeds: String,
    #[arg(long, value_name = "NAME", help = faults_help())]
    pub(crate) faults: Option<String>,
    /// Operations per client [default: each seed draws a number]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(crate) ops: Option<u64>,
    /// Switch a technique of the index on all nodes [default: each seed draws them]
    #[arg(long, value_name = "NAME=on|off")]
    pub(crate) technique: Vec<String>,
    /// Let all nodes record their intents and take over the locks of nodes that have stopped, which are found out
    #[arg(long)]
    pub(crate) takeover: bool,
    /// Write the history of each seed into that directory, as lines of JSON
    #[arg(long, value_name = "DIR")]
    pub(crate) history: Option<PathBuf>,
    /// After the seeds print how often each rare path was taken; fail if one never was, or if more than one history in
    /// ten thousand (or one of fewer) could not be decided
    #[arg(long)]
    pub(crate) require_coverage: bool,
}

/// Run a workload on an index and report throughput, latencies, verbs, bytes and round trips.
///
/// Without flags: the default index on the embedded fabric, ycsb-a, zipf 0.99, 10 M keys of 8 bytes with values of 8
/// bytes, one shard per core, 64 clients per shard, for 10 s.
///
/// `--fabric sim:connectx5` runs the same on one simulated compute node, with memory servers on machines of their
/// own. All times are virtual then, the load's too, and the seed determines the result exactly. A simulated second
/// may take a minute: without --duration a run measures 100 ms.
///
/// `--fabric shm:NAME` and `--fabric verbs:HOST:PORT` run on memory servers that are there already: the run creates an
/// index of its own there, under a name that `farwood stat` shows, and drops it at the end. If it is killed the memory
/// servers drop it.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 if the run completed and its checks held (every get of a loaded key found it, \
    values belong to their keys), 1 if not, 2 if it was not started, 130 after Ctrl-C."
)]
pub(crate) struct BenchArgs {
    /// The index
    #[arg(long, value_name = "KIND", default_value_t, value_parser = kinds::parser())]
    pub(crate) index: IndexKind,
    /// The fabric: embedded, sim:connectx5, sim:connectx6, or running memory servers: shm:NAME[,NAME..] or
    /// verbs:HOST:PORT[,HOST:PORT..]
    #[arg(long, value_name = "FABRIC", default_value = "embedded")]
    pub(crate) fabric: String,
    #[command(flatten)]
    pub(crate) verbs: VerbsArgs,
    /// Workload of the clients: load, ycsb-a to ycsb-f, update-only, write-only, write-intensive, read-intensive,
    /// range-only, range-write (Sherman's table 3: two thirds of the puts hit existing keys), churn (half inserts, half
    /// removes, of twice as many keys as are loaded), lock (10,240 locks, no index) or raw (READs of what a get of the
    /// index reads, no index)
    #[arg(long, value_name = "NAME", default_value = "ycsb-a")]
    pub(crate) workload: String,
    /// Replay a trace instead, as fast as the clients can: a CSV file without a header (- is standard input), of the
    /// lines of Twitter's cache traces (timestamp, key, key size, value size, client id, operation, TTL) or of short
    /// ones (timestamp, key, value size, operation). Keys that the trace does not set first are loaded beforehand.
    /// docs/bench.md says how operations are mapped
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["workload", "keys", "warmup", "dist", "key", "value_size", "scan_length"])]
    pub(crate) trace: Option<PathBuf>,
    /// Keys that are loaded before the run; `load` inserts them in the run [default: 10M, or all of a key file]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(crate) keys: Option<u64>,
    /// End after that many operations (of `load`: at most so many of its keys; of a trace: its first lines)
    #[arg(long, value_name = "N", value_parser = parse_count, conflicts_with = "duration")]
    pub(crate) ops: Option<u64>,
    /// End after that time [default: 10s, simulated 100ms; `load` ends when all keys are in, a trace at its end]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) duration: Option<u64>,
    /// Run that long before the figures begin [default: 1s, simulated 10ms; `load` and traces have no warm-up]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) warmup: Option<u64>,
    /// Distribution of accesses over the keys: uniform, zipf:THETA or latest [default: zipf:0.99; ycsb-d: latest; churn
    /// and raw: uniform]
    #[arg(long, value_name = "DIST")]
    pub(crate) dist: Option<String>,
    /// The keys: int (8 bytes, spread over the key space), dense (8 bytes, counted up: popular keys are neighbours, new
    /// ones come behind all others), string (generated, of various lengths) or file:PATH (one per line; - is standard
    /// input)
    #[arg(long, value_name = "KIND", default_value = "int")]
    pub(crate) key: String,
    /// Bytes of a value
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "8")]
    pub(crate) value_size: u64,
    /// Entries of a scan (ycsb-e: 1 to that many, uniform)
    #[arg(long, value_name = "N", value_parser = parse_count, default_value = "100")]
    pub(crate) scan_length: u64,
    /// Shards of the compute node, each on a core of its own [default: one per core; simulated: 22, as in the papers,
    /// and any number up to 1024]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(crate) shards: Option<u64>,
    /// Logical clients over all shards; with fewer clients than shards, the last shards get none [default: 64 a
    /// shard]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(crate) clients: Option<u64>,
    /// embedded and sim: memory servers [default: 1]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(crate) servers: Option<u64>,
    /// embedded and sim: memory of each memory server [default: 4GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) memory: Option<u64>,
    /// Memory for the compute node's cache of internal nodes
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "512MiB")]
    pub(crate) cache: u64,
    #[arg(long, value_name = "NAME=on|off", help = kinds::techniques_help())]
    pub(crate) technique: Vec<String>,
    /// Record what is about to be written to nodes, and take over locks of compute nodes that have died
    #[arg(long, value_name = "on|off", default_value = "on", action = ArgAction::Set, value_parser = parse_switch)]
    pub(crate) intent_log: bool,
    /// Open loop: start that many operations a second, and count latency from the intended start
    #[arg(long, value_name = "OPS", value_parser = parse_count)]
    pub(crate) rate: Option<u64>,
    /// Seed of everything random in the run
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) seed: u64,
    /// Write the result as JSON; - is standard output, and then nothing else goes there
    #[arg(long, value_name = "PATH")]
    pub(crate) json: Option<PathBuf>,
    /// Write result.json and a latency table per kind of operation into that directory
    #[arg(long, value_name = "DIR")]
    pub(crate) report: Option<PathBuf>,
    /// Write every operation, the load included, as a line of JSON (kept in memory until the end)
    #[arg(long, value_name = "PATH")]
    pub(crate) history: Option<PathBuf>,
    /// No progress bar and no remarks on standard error
    #[arg(long)]
    pub(crate) quiet: bool,
}

fn faults_help() -> String {
    let names: Vec<&str> = FaultMix::ALL.iter().map(|mix| mix.name).collect();
    format!("Faults that strike: one of {} [default: each seed draws a mix]", names.join(", "))
}

fn experiments() -> PossibleValuesParser {
    Experiment::ALL.map(|experiment| PossibleValue::new(experiment.name).help(experiment.about)).into()
}

/// A parsed command line.
pub(crate) enum Request {
    /// Run a command.
    Run(Cli),
    /// Print a text (help or version) and end well.
    Print(clap::Error),
}

/// Reads the command line. clap explains errors over several lines; a caller of this gets one.
pub(crate) fn parse<I, T>(args: I) -> Result<Request, CliError>
where
    I: IntoIterator<Item = T>,
    T: Into<std::ffi::OsString> + Clone,
{
    match Cli::try_parse_from(args) {
        Ok(cli) => Ok(Request::Run(cli)),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(Request::Print(error)),
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
                Err(CliError::usage("a command is missing: try `farwood bench`, or `farwood help`"))
            }
            _ => Err(CliError::Usage(one_line(&error.render().to_string()))),
        },
    }
}

/// Returns the first paragraph of a clap error and its tips, on one line. (The rest is usage, which `farwood help`
/// has.)
fn one_line(rendered: &str) -> String {
    let text = rendered.strip_prefix("error: ").unwrap_or(rendered);
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let first = words(text.split("\n\n").next().unwrap_or(text));
    let tips: Vec<String> =
        text.lines().filter_map(|line| line.trim().strip_prefix("tip: ")).map(words).map(last).collect();
    if tips.is_empty() { first } else { format!("{first} ({})", tips.join("; ")) }
}

/// Completes clap's tip to write `--` before a value, behind which nothing is an option any more.
fn last(tip: String) -> String {
    match tip.split_once(", use '-- ") {
        Some((value, _)) => format!("{value}, write '--' before it, and all options before that"),
        None => tip,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn error_of(args: &[&str]) -> String {
        let all = ["farwood", "bench"].iter().chain(args);
        match parse(all) {
            Err(error) => error.one_line(),
            Ok(_) => panic!("{args:?} was accepted"),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn errors_are_one_line_and_name_the_flag() {
        assert!(error_of(&["--keys", "10X"]).contains("--keys"));
        assert!(error_of(&["--ops", "1", "--duration", "1s"]).contains("--duration"));
        let unknown = error_of(&["--sed", "1"]);
        assert!(
            unknown.contains("--sed") && unknown.contains("--seed") && !unknown.contains('\n'),
            "{unknown}"
        );
    }

    #[test]
    fn a_value_that_looks_like_an_option_is_accepted_where_the_hint_wants_it() {
        let Err(error) = parse(["farwood", "put", "b", "-x", "-y", "--fabric", "shm:a"]) else {
            panic!("there is no option -x")
        };
        let hint = "(to pass '-x' as a value, write '--' before it, and all options before that)";
        assert!(error.one_line().ends_with(hint), "{}", error.one_line());
        let followed = parse(["farwood", "put", "b", "--fabric", "shm:a", "--", "-x", "-y"]);
        let Ok(Request::Run(Cli { command: Command::Put(put) })) = followed else {
            panic!("the hint is to be followed")
        };
        assert_eq!((put.key, put.value), ("-x".into(), "-y".into()));
    }

    #[test]
    fn a_key_or_a_file_is_removed_and_not_both() {
        let of = |rest: &[&str]| parse([&["farwood", "remove", "t", "--fabric", "shm:a"], rest].concat());
        for (rest, key, file) in [
            (&["k"][..], Some("k"), None),
            (&["--", "--file"], Some("--file"), None),
            (&["--file", "-"], None, Some("-")),
            (&["--file=keys"], None, Some("keys")),
        ] {
            let Ok(Request::Run(Cli { command: Command::Remove(args) })) = of(rest) else {
                panic!("{rest:?}")
            };
            assert_eq!((args.key, args.file), (key.map(Into::into), file.map(Into::into)), "{rest:?}");
        }
        for (rest, part) in [
            (&[][..], "<KEY|--file <PATH>>"),
            (&["k", "--file", "keys"], "cannot be used with"),
            (&["--file", "keys", "k"], "cannot be used with"),
            (&["--file"], "--file"),
        ] {
            let Err(error) = of(rest) else { panic!("{rest:?} was accepted") };
            assert!(error.one_line().contains(part), "{rest:?}: {error}");
        }
        let Ok(Request::Print(help)) = of(&["--help"]) else { panic!("no help") };
        assert!(help.to_string().contains("--fabric <FABRIC> <NAME> <KEY|--file <PATH>>\n"), "{help}");
    }

    #[test]
    fn experiments_are_named_by_the_help_and_by_the_error() {
        let Ok(Request::Print(help)) = parse(["farwood", "sim", "paper", "--help"]) else { panic!("help") };
        let Err(error) = parse(["farwood", "sim", "paper", "fig99"]) else { panic!("there is no such") };
        for Experiment { name, about, .. } in Experiment::ALL {
            assert!(help.to_string().contains(&format!("- {name}:")), "{name}");
            assert!(help.to_string().contains(about), "{about}");
            assert!(error.one_line().contains(name), "{name}");
        }
    }

    #[test]
    fn help_names_all_faults() {
        let Ok(Request::Print(help)) = parse(["farwood", "sim", "run", "--help"]) else { panic!("no help") };
        assert!(FaultMix::ALL.iter().all(|mix| help.to_string().contains(mix.name)), "{help}");
    }

    #[test]
    fn help_explains_what_a_command_does() {
        for (words, text) in [
            (&["bench"][..], "Without flags: "),
            (&["sim", "run"], "One line per seed: "),
            (&["sim", "paper"], "The simulated NICs are calibrated "),
        ] {
            let Ok(Request::Print(help)) = parse([&["farwood"], words, &["--help"]].concat()) else {
                panic!("help of {words:?}")
            };
            assert!(help.to_string().contains(text), "{help}");
        }
    }

    #[test]
    fn help_and_version_are_no_errors() {
        for args in [&["farwood", "help"][..], &["farwood", "--version"], &["farwood", "bench", "--help"]] {
            assert!(matches!(parse(args), Ok(Request::Print(_))), "{args:?}");
        }
        assert!(parse(["farwood"]).is_err());
    }
}
