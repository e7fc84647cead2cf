//! Benchmarks, decided and checked: arguments in, a [`BenchConfig`] out that cannot be wrong any more, or one error.
//! Nothing has been started or written when this fails.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use farwood::lock::on_chip_possible;
use farwood::runtime::ServerInfo;
use farwood::runtime::control::ServerUsage;
use farwood::{IndexSpec, Limits};
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use crate::args::BenchArgs;
use crate::error::{CliError, shown};
use crate::fabric::{Fabric, VerbsOptions};
use crate::footprint;
use crate::index;
use crate::report::files;
use crate::workload::Workload;
use crate::workload::distribution::{Distribution, LATEST_THETA};
use crate::workload::key_file::FileKeys;
use crate::workload::keys::KeySet;
use crate::workload::trace::Trace;
use crate::workload::values::{UNIQUE_BYTES_MIN, VALUE_BYTES_MAX, ValueFormat};

const KEYS_DEFAULT: u64 = 10_000_000;
const KEYS_MAX: u64 = 1 << 32;
const CLIENTS_PER_SHARD: usize = 64;
const CLIENTS_MAX: u64 = 1 << 20;
const DURATION_DEFAULT_NS: u64 = 10_000_000_000;
const WARMUP_DEFAULT_NS: u64 = 1_000_000_000;
/// Duration of a run in virtual time without --duration: a virtual second may take a minute.
pub(crate) const SIM_DURATION_NS: u64 = 100_000_000;
const SIM_WARMUP_NS: u64 = 10_000_000;
/// Shards of the papers' machines.
const SIM_SHARDS: usize = 22;
const SIM_SHARDS_MAX: u64 = 1024;
const SCAN_LENGTH_MAX: u64 = 1 << 24;
/// Operations of which one has its latency taken, in a closed loop of millions of operations a second: two readings of
/// the clock cost as much as a fifth of an operation.
const LATENCY_SAMPLING: u32 = 16;
const SERVERS_DEFAULT: u64 = 1;
const MEMORY_DEFAULT: u64 = 4 << 30;
/// Number of operations below which a run times them all.
const SAMPLED_OPS_MIN: u64 = 1_000_000;

/// Locks of the lock workload (Sherman figure 16).
pub(crate) const LOCKS: u64 = 10_240;

/// A benchmark that can be started.
pub(crate) struct BenchConfig {
    /// Fabric that the benchmark runs on.
    pub(crate) fabric: Fabric,
    /// Workload of the clients.
    pub(crate) workload: Workload,
    /// Distribution of accesses over the keys.
    pub(crate) distribution: Distribution,
    /// Number of keys that are loaded.
    pub(crate) keys: u64,
    /// The keys.
    pub(crate) key_set: KeySet,
    /// The keys as the command line names them.
    pub(crate) key_name: String,
    /// The file of the trace, if there is one.
    pub(crate) trace_name: Option<String>,
    /// The values.
    pub(crate) values: ValueFormat,
    /// Entries of a scan.
    pub(crate) scan_length: u64,
    /// Shards of the compute node.
    pub(crate) shards: usize,
    /// Clients over all shards.
    pub(crate) clients: usize,
    /// Number of memory servers. 0 until the run is connected to those that run already.
    pub(crate) servers: u16,
    /// Bytes of each; of the smallest, where they run already.
    pub(crate) memory_bytes: u64,
    /// Byte budget of the cache.
    pub(crate) cache_bytes: u64,
    /// The index: its kind, sizes of its nodes, its switches as far as the fabric can follow.
    pub(crate) spec: IndexSpec,
    /// True if locks were to be in on-chip memory and the fabric has none.
    pub(crate) no_on_chip: bool,
    /// End of the run.
    pub(crate) end: End,
    /// Duration of the warm-up.
    pub(crate) warmup_ns: u64,
    /// Operations a second of an open loop.
    pub(crate) rate: Option<u64>,
    /// Operations of which one is timed.
    pub(crate) latency_sampling: u32,
    /// Seed of everything random.
    pub(crate) seed: u64,
    /// Destinations of the results.
    pub(crate) output: Output,
}

/// End of a run: at the first of both, or when there is nothing left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// Number of operations that end it.
    pub(crate) ops: Option<u64>,
    /// Time that ends it.
    pub(crate) after_ns: Option<u64>,
}

/// Destinations of the results.
#[derive(Clone, Debug, Default)]
pub(crate) struct Output {
    /// The result as JSON.
    pub(crate) json: Option<PathBuf>,
    /// A directory of tables.
    pub(crate) report: Option<PathBuf>,
    /// Every operation.
    pub(crate) history: Option<PathBuf>,
    /// True if there is to be no progress bar, and no remark.
    pub(crate) quiet: bool,
}

impl Output {
    /// Tells whether standard output is for JSON alone.
    pub(crate) fn json_on_stdout(&self) -> bool {
        self.json.as_deref() == Some(Path::new("-"))
    }
}

impl BenchConfig {
    /// Decides what the arguments mean together. This process may use `cores` cores.
    pub(crate) fn new(mut args: BenchArgs, cores: usize) -> Result<Self, CliError> {
        let kind = args.index;
        let options = VerbsOptions::from(std::mem::take(&mut args.verbs));
        let fabric = Fabric::parse(&args.fabric, options)?;
        let (servers, memory_bytes) = servers(&args, &fabric)?;
        let workload = match &args.trace {
            Some(_) => Workload::Trace,
            None => Workload::parse(&args.workload).map_err(CliError::Usage)?,
        };
        let distribution = distribution(&args, workload)?;
        // Checked before a file of keys is read.
        index::switches(kind, &args.technique)?;
        let shards = match fabric {
            Fabric::Embedded | Fabric::Connected(_) => shards(&args, cores)?,
            Fabric::Sim(_) => shards_simulated(&args)?,
        };
        let clients = clients(&args, shards)?;
        let end = end(&args, workload, &fabric)?;
        check_ranges(&args)?;
        let output = output(&args, workload)?;
        let (key_set, keys) = key_set(&args)?;
        let values = values(&args, &key_set)?;
        let adds_keys = workload.adds_keys() && workload != Workload::Load;
        let max_key = key_set.bytes_max(adds_keys).max(1);
        let limits = Limits { max_key, max_value: values.size() };
        let wanted =
            index::spec(kind, limits, &args.technique).map_err(|error| of_trace(&args, limits, error))?;
        let spec = wanted.effective(fabric.may_have_on_chip_memory());
        let spec = spec.with_options(|options| options.intent_log = args.intent_log);
        let config = BenchConfig {
            latency_sampling: latency_sampling(&args, &key_set, &fabric),
            warmup_ns: warmup_ns(&args, workload, &fabric),
            fabric,
            workload,
            distribution,
            keys,
            key_set,
            key_name: args.key,
            trace_name: args.trace.as_deref().map(shown),
            values,
            scan_length: args.scan_length,
            shards,
            clients,
            servers,
            memory_bytes,
            cache_bytes: args.cache,
            spec,
            no_on_chip: wants_on_chip(&wanted) && !wants_on_chip(&spec),
            end,
            rate: args.rate,
            seed: args.seed,
            output,
        };
        if !config.fabric.is_connected() {
            footprint::check(&config)?;
        }
        Ok(config)
    }

    /// Returns the trace that is replayed, if there is one.
    pub(crate) fn trace(&self) -> Option<&Arc<Trace>> {
        match &self.key_set {
            KeySet::Trace(trace) => Some(trace),
            _ => None,
        }
    }

    /// Takes in the properties of memory servers that run already.
    ///
    /// # Errors
    /// If what is left of their memory cannot hold the keys of the run.
    pub(crate) fn connect(&mut self, servers: &[ServerInfo], usage: &[ServerUsage]) -> Result<(), CliError> {
        self.servers = servers.len() as u16;
        self.memory_bytes = servers.iter().map(|server| server.region_bytes).min().unwrap_or(0);
        let wanted = self.spec;
        self.spec = wanted.effective(on_chip_possible(servers));
        self.no_on_chip |= wants_on_chip(&wanted) && !wants_on_chip(&self.spec);
        footprint::check_left(self, servers, usage)
    }

    /// Returns what an operation costs a client in virtual time, in ns, beside posting, polling and searching. The
    /// profiles' figures were measured with an index: locks and bare READs alone cost nothing else.
    pub(crate) fn client_ns(&self) -> u64 {
        match self.fabric {
            Fabric::Sim(profile) if self.workload.uses_index() => profile.op_ns,
            _ => 0,
        }
    }

    /// Returns the configuration for machines: everything that decides what is measured, the digest of that, and the
    /// seed.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let techniques = self.spec.techniques().into_iter().map(|(name, on)| (name.to_owned(), json!(on)));
        // The trace decides which keys there are, and how often they are asked for.
        let (workload, dist, key) = match &self.trace_name {
            Some(trace) => (format!("trace:{trace}"), "trace".to_owned(), "trace"),
            None => (self.workload.name().to_owned(), self.distribution.name(), &*self.key_name),
        };
        let mut config = json!({
            "index": self.spec.kind().name(),
            "fabric": self.fabric.name(),
            "workload": workload,
            "dist": dist,
            "keys": self.keys,
            "key": key,
            "key_bytes_max": self.spec.limits().max_key,
            "value_size": self.values.size(),
            "scan_length": self.scan_length,
            "shards": self.shards,
            "clients": self.clients,
            "servers": self.servers,
            "memory_bytes": self.memory_bytes,
            "cache_bytes": self.cache_bytes,
            "leaf_bytes": self.spec.leaf_bytes(),
            "techniques": techniques.collect::<Value>(),
            "ops": self.end.ops,
            "duration_s": self.end.after_ns.map(|ns| ns as f64 / 1e9),
            "warmup_s": self.warmup_ns as f64 / 1e9,
            "rate": self.rate,
            "latency_sampling": self.latency_sampling,
            "intent_log": self.spec.options().intent_log,
            "version": env!("CARGO_PKG_VERSION"),
        });
        // serde_json keeps the keys of an object sorted, so equal configurations have equal texts.
        config["digest"] = json!(format!("{:016x}", xxh3_64(config.to_string().as_bytes())));
        config["seed"] = json!(self.seed);
        config
    }
}

fn check_ranges(args: &BenchArgs) -> Result<(), CliError> {
    let range = |name: &str, value: u64, min: u64, max: u64| match value {
        value if (min..=max).contains(&value) => Ok(()),
        value => Err(CliError::Usage(format!("--{name} {value}: choose {min} to {max}"))),
    };
    range("value-size", args.value_size, 0, VALUE_BYTES_MAX)?;
    range("scan-length", args.scan_length, 1, SCAN_LENGTH_MAX)?;
    range("rate", args.rate.unwrap_or(1), 1, 1_000_000_000)?;
    range("keys", args.keys.unwrap_or(1), 1, KEYS_MAX)
}

fn distribution(args: &BenchArgs, workload: Workload) -> Result<Distribution, CliError> {
    let Some(text) = &args.dist else {
        return Ok(match workload {
            Workload::YcsbD => Distribution::Latest,
            Workload::Raw | Workload::Churn => Distribution::Uniform,
            _ => Distribution::Zipf(LATEST_THETA),
        });
    };
    let given = Distribution::parse(text).map_err(|error| CliError::Usage(format!("--dist: {error}")))?;
    if given == Distribution::Latest && !workload.uses_index() {
        let message = format!("--dist latest is for keys, and the workload {} has none", workload.name());
        return Err(CliError::Usage(message));
    }
    if given == Distribution::Latest && workload == Workload::Churn {
        return Err(CliError::usage(
            "--dist latest is for workloads whose keys stay, and those of churn do not",
        ));
    }
    Ok(given)
}

fn shards(args: &BenchArgs, cores: usize) -> Result<usize, CliError> {
    match args.shards {
        None => Ok(cores),
        Some(0) => Err(CliError::usage("--shards 0: a compute node needs at least one shard")),
        Some(shards) if shards > cores as u64 => Err(CliError::Usage(format!(
            "--shards {shards}: each shard needs a core of its own, and this process may use {cores}"
        ))),
        Some(shards) => Ok(shards as usize),
    }
}

/// Returns the number of memory servers that the run makes, and bytes of each: none, where they run already.
fn servers(args: &BenchArgs, fabric: &Fabric) -> Result<(u16, u64), CliError> {
    if fabric.is_connected() {
        let flag = match (args.servers, args.memory) {
            (None, None) => return Ok((0, 0)),
            (Some(_), _) => "--servers",
            (None, Some(_)) => "--memory",
        };
        return Err(CliError::Usage(format!(
            "{flag} is for the embedded and simulated fabrics: the memory servers of {} are there already",
            fabric.name()
        )));
    }
    let servers = u16::try_from(args.servers.unwrap_or(SERVERS_DEFAULT)).ok();
    let servers = servers.filter(|n| (1..u16::MAX).contains(n));
    let servers = servers.ok_or_else(|| CliError::usage("--servers: choose 1 to 65534 memory servers"))?;
    Ok((servers, args.memory.unwrap_or(MEMORY_DEFAULT)))
}

fn clients(args: &BenchArgs, shards: usize) -> Result<usize, CliError> {
    match args.clients {
        None => Ok(CLIENTS_PER_SHARD * shards),
        Some(clients) if (1..=CLIENTS_MAX).contains(&clients) => Ok(clients as usize),
        Some(clients) => Err(CliError::Usage(format!("--clients {clients}: choose 1 to {CLIENTS_MAX}"))),
    }
}

fn shards_simulated(args: &BenchArgs) -> Result<usize, CliError> {
    match args.shards {
        None => Ok(SIM_SHARDS),
        Some(shards) if (1..=SIM_SHARDS_MAX).contains(&shards) => Ok(shards as usize),
        Some(shards) => {
            Err(CliError::Usage(format!("--shards {shards}: choose 1 to {SIM_SHARDS_MAX} simulated ones")))
        }
    }
}

fn latency_sampling(args: &BenchArgs, key_set: &KeySet, fabric: &Fabric) -> u32 {
    let ops = match key_set {
        KeySet::Trace(trace) => Some(trace.len()),
        _ => args.ops,
    };
    let timed_all = args.rate.is_some() || args.history.is_some() || ops.is_some_and(|n| n < SAMPLED_OPS_MIN);
    // A look at a virtual clock costs nothing.
    if timed_all || fabric.is_simulated() { 1 } else { LATENCY_SAMPLING }
}

fn warmup_ns(args: &BenchArgs, workload: Workload, fabric: &Fabric) -> u64 {
    if workload.ends_by_itself() {
        return 0;
    }
    args.warmup.unwrap_or(if fabric.is_simulated() { SIM_WARMUP_NS } else { WARMUP_DEFAULT_NS })
}

fn end(args: &BenchArgs, workload: Workload, fabric: &Fabric) -> Result<End, CliError> {
    if args.ops == Some(0) {
        return Err(CliError::usage("--ops 0: a run needs at least one operation"));
    }
    if args.duration == Some(0) {
        return Err(CliError::usage("--duration 0: a run needs some time"));
    }
    let open_ended = args.ops.is_none() && args.duration.is_none() && !workload.ends_by_itself();
    let default_ns = if fabric.is_simulated() { SIM_DURATION_NS } else { DURATION_DEFAULT_NS };
    let after_ns = if open_ended { Some(default_ns) } else { args.duration };
    Ok(End { ops: args.ops, after_ns })
}

fn output(args: &BenchArgs, workload: Workload) -> Result<Output, CliError> {
    let output = Output {
        json: args.json.clone(),
        report: args.report.clone(),
        history: args.history.clone(),
        quiet: args.quiet,
    };
    if output.history.is_some() && !workload.uses_index() {
        let message = format!("--history is of operations on an index, and {} has none", workload.name());
        return Err(CliError::Usage(message));
    }
    if output.history.is_some() && args.value_size < UNIQUE_BYTES_MIN {
        let message =
            format!("--history needs unique values: choose a --value-size of {UNIQUE_BYTES_MIN} or more");
        return Err(CliError::Usage(message));
    }
    if output.history.as_deref() == Some(Path::new("-")) {
        return Err(CliError::usage("--history -: a history needs a file of its own"));
    }
    if output.json.is_some() && output.json == output.history {
        return Err(CliError::usage("--json and --history name the same file"));
    }
    for path in [&output.history, &output.json].into_iter().flatten() {
        if path != Path::new("-") {
            files::check_file(path)?;
        }
    }
    if let Some(directory) = &output.report {
        files::check_directory(directory)?;
    }
    Ok(output)
}

/// Returns the format of the values: of one size, or of those that the trace has.
fn values(args: &BenchArgs, key_set: &KeySet) -> Result<ValueFormat, CliError> {
    let KeySet::Trace(trace) = key_set else { return Ok(ValueFormat::new(args.value_size as usize)) };
    match trace.smallest_written() {
        Some(bytes) if args.history.is_some() && (bytes as u64) < UNIQUE_BYTES_MIN => {
            Err(CliError::Usage(format!(
                "--history needs unique values, of {UNIQUE_BYTES_MIN} bytes or more, and the trace has one of {bytes}"
            )))
        }
        _ => Ok(ValueFormat::up_to(trace.largest_value())),
    }
}

/// Adds to an error about limits which trace they are from, if it is one.
fn of_trace(args: &BenchArgs, Limits { max_key, max_value }: Limits, error: CliError) -> CliError {
    match &args.trace {
        None => error,
        Some(path) => CliError::Usage(format!(
            "{} has keys of up to {max_key} bytes and values of up to {max_value}: {error}",
            shown(path)
        )),
    }
}

fn key_set(args: &BenchArgs) -> Result<(KeySet, u64), CliError> {
    if let Some(path) = &args.trace {
        let trace = Trace::open(path, args.ops)?;
        let loaded = trace.loaded();
        return Ok((KeySet::Trace(Arc::new(trace)), loaded));
    }
    let keys = args.keys.unwrap_or(KEYS_DEFAULT);
    match args.key.split_once(':') {
        None if args.key == "int" => Ok((KeySet::Int, keys)),
        None if args.key == "dense" => Ok((KeySet::Dense, keys)),
        None if args.key == "string" => Ok((KeySet::String, keys)),
        Some(("file", "")) => Err(CliError::usage("--key file: names no file: write file:PATH")),
        Some(("file", path)) => {
            let file = FileKeys::open(Path::new(path), args.seed)?;
            let count = file.count();
            if file.duplicates() > 0 && !args.quiet {
                let duplicates = file.duplicates();
                crate::note(format_args!("{path}: {count} different keys, {duplicates} duplicates left out"));
            }
            match args.keys {
                Some(keys) if keys > count => {
                    Err(CliError::Usage(format!("--keys {keys}: {path} has only {count} different keys")))
                }
                Some(keys) => Ok((KeySet::File(file), keys)),
                None => Ok((KeySet::File(file), count)),
            }
        }
        _ => Err(CliError::Usage(format!(
            "there are no keys of kind '{}': choose int, dense, string or file:PATH",
            args.key
        ))),
    }
}

/// Tells whether locks are to be in on-chip memory.
fn wants_on_chip(spec: &IndexSpec) -> bool {
    spec.technique("on_chip") == Some(true)
}

#[cfg(test)]
pub(crate) mod tests;
