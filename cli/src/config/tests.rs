//! Arguments: what they come to mean, and which are refused.

use farwood::IndexSpec;
use farwood::index::{sherman, smart};
use farwood::runtime::sim::Profile;

use serde_json::json;

use super::*;
use crate::args::{self, Command, Request};

pub(crate) fn config(line: &str) -> Result<BenchConfig, CliError> {
    let words = ["farwood", "bench"].into_iter().chain(line.split_whitespace());
    match args::parse(words)? {
        Request::Run(cli) => {
            let Command::Bench(args) = cli.command else { panic!("a benchmark was asked for") };
            BenchConfig::new(*args, 4)
        }
        Request::Print(_) => panic!("help was asked for"),
    }
}

fn error(line: &str) -> String {
    config(line).err().unwrap_or_else(|| panic!("{line} was accepted")).one_line()
}

#[test]
fn no_flags_are_the_canonical_run() {
    let config = config("").unwrap();
    assert_eq!((config.workload, config.distribution), (Workload::YcsbA, Distribution::Zipf(0.99)));
    assert_eq!((config.keys, config.shards, config.clients), (10_000_000, 4, 256));
    assert_eq!(config.end, End { ops: None, after_ns: Some(10_000_000_000) });
    assert_eq!((config.warmup_ns, config.servers, config.cache_bytes), (1_000_000_000, 1, 512 << 20));
    // The embedded fabric has no on-chip memory.
    assert_eq!(sherman(&config), sherman::Techniques { on_chip: false, ..sherman::Techniques::ALL });
    assert!(config.no_on_chip);
}

/// Returns the switches of a benchmark of Sherman.
fn sherman(config: &BenchConfig) -> sherman::Techniques {
    match config.spec {
        IndexSpec::Sherman { options, .. } => options.techniques,
        _ => panic!("it is another"),
    }
}

#[test]
fn smart_is_configured_by_its_own_switches() {
    let plain = config("--index smart").unwrap();
    let IndexSpec::Smart { geometry, options } = plain.spec else { panic!("it was asked for") };
    assert_eq!((geometry.max_key, geometry.max_value, options.techniques), (8, 8, smart::Techniques::ALL));
    // Its locks are in its leaves: nothing is lost where NICs have no memory.
    assert!(!plain.no_on_chip);
    let json =
        config("--index smart --technique rear-lock=off --key string --value-size 64").unwrap().to_json();
    assert_eq!((&json["index"], &json["leaf_bytes"]), (&"smart".into(), &128.into()));
    let off = json["techniques"].as_object().unwrap().iter().filter(|(_, on)| **on == false);
    assert_eq!(off.map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["rear_lock"]);
    // A lock in a leaf needs a leaf that stays.
    let json = config("--index smart --technique in_place_leaves=off").unwrap().to_json();
    assert_eq!(json["techniques"]["rear_lock"], false);
}

#[test]
fn raw_reads_what_a_get_reads() {
    let bytes = |line: &str| {
        let spec = config(&format!("--workload raw {line}")).unwrap().spec;
        (spec.leaf_bytes(), spec.get_bytes())
    };
    assert_eq!(bytes(""), (1024, 1024));
    assert_eq!(bytes("--index smart"), (64, 32));
    assert_eq!(bytes("--index smart --value-size 100"), (192, 128));
}

#[test]
fn defaults_follow_the_workload() {
    assert_eq!(config("--workload ycsb-d").unwrap().distribution, Distribution::Latest);
    assert_eq!(config("--workload churn").unwrap().distribution, Distribution::Uniform);
    assert!(
        config("--workload churn --dist zipf:0.9").is_ok()
            && config("--workload churn --dist latest").is_err()
    );
    assert_eq!(config("--workload raw").unwrap().distribution, Distribution::Uniform);
    let load = config("--workload load --keys 1k").unwrap();
    assert_eq!((load.warmup_ns, load.end), (0, End { ops: None, after_ns: None }));
    assert_eq!(config("--ops 100").unwrap().latency_sampling, 1);
    assert_eq!(config("--rate 1k").unwrap().latency_sampling, 1);
    assert_eq!(config("").unwrap().latency_sampling, LATENCY_SAMPLING);
}

#[test]
fn simulated_runs_are_short_and_timed_throughout() {
    let plain = config("--fabric sim:connectx5").unwrap();
    assert_eq!((plain.shards, plain.clients, plain.latency_sampling), (22, 22 * 64, 1));
    assert_eq!((plain.warmup_ns, plain.end.after_ns), (SIM_WARMUP_NS, Some(SIM_DURATION_NS)));
    assert!(sherman(&plain) == sherman::Techniques::ALL && !plain.no_on_chip);
    assert_eq!(plain.client_ns(), Profile::CONNECTX5.op_ns);
    assert_eq!(plain.to_json()["fabric"], "sim:connectx5");
    let given = config("--fabric sim:connectx6 --shards 100 --duration 1s --warmup 0s").unwrap();
    assert_eq!((given.shards, given.warmup_ns, given.end.after_ns), (100, 0, Some(1_000_000_000)));
    let raw = config("--fabric sim:connectx6 --workload raw").unwrap();
    assert_eq!((raw.client_ns(), raw.distribution), (0, Distribution::Uniform));
}

#[test]
fn bad_input_says_what_to_do() {
    let cases = [
        ("--index btree", "[possible values: "),
        (
            "--index smart --technique two_level=off",
            "smart has no technique 'two_level': it has lock_free_nodes",
        ),
        ("--technique rear_lock=off", "sherman has no technique 'rear_lock': it has combine"),
        ("--index smart --memory 64MiB", "10000000 keys in leaves of 64 bytes"),
        ("--fabric shm:", "it is empty"),
        ("--fabric shm:x --servers 2", "--servers is for the embedded"),
        ("--fabric shm:x --memory 1GiB", "--memory is for the embedded"),
        ("--fabric shm:x --device mlx5_0", "--device"),
        ("--gid-index 1", "--gid-index"),
        ("--fabric shm:x --shards 5", "may use 4"),
        ("--fabric embedded:x", "no fabric"),
        ("--fabric sim:connectx7", "choose sim:connectx5 or sim:connectx6"),
        ("--workload ycsb-z", "choose one of"),
        ("--dist zipf:x", "--dist"),
        ("--workload lock --dist latest", "latest"),
        ("--shards 5", "may use 4"),
        ("--shards 0", "at least one"),
        ("--clients 0", "choose 1"),
        ("--servers 0", "--servers"),
        ("--servers 65535", "--servers"),
        ("--keys 0", "--keys"),
        ("--ops 0", "--ops"),
        ("--duration 0s", "--duration"),
        ("--rate 0", "--rate"),
        ("--scan-length 0", "--scan-length"),
        ("--value-size 5000", "--value-size"),
        ("--technique fused", "NAME=on"),
        ("--technique fused=yes", "neither on nor off"),
        ("--technique warp=on", "two_level, fused"),
        ("--key float", "int, dense, string or file"),
        ("--key file:", "names no file"),
        ("--key file:/nonexistent/keys", "cannot read /nonexistent/keys"),
        ("--json /nonexistent/out.json", "cannot write"),
        ("--json /", "cannot write"),
        ("--history /tmp/h --value-size 4", "unique values"),
        ("--history -", "a file of its own"),
        ("--history /tmp/h --workload raw", "--history"),
        ("--memory 64MiB", "use --memory"),
        ("--ops 1 --duration 1s", "cannot be used with"),
    ];
    for (line, part) in cases {
        let error = error(line);
        assert!(error.contains(part) && !error.contains('\n'), "{line}: {error}");
    }
}

#[test]
fn memory_servers_that_are_there_are_taken_as_they_are() {
    let mut config = config("--fabric shm:a,b --keys 1k").unwrap();
    assert_eq!((config.shards, config.to_json()["fabric"].clone()), (4, "shm:a,b".into()));
    let cluster =
        farwood::Cluster::embedded(farwood::EmbeddedConfig { servers: 2, ..Default::default() }).unwrap();
    let servers = farwood::runtime::Control::servers(&*cluster);
    let usage = |left| vec![ServerUsage { capacity_bytes: left, ..ServerUsage::default() }; 2];
    config.connect(servers, &usage(1 << 30)).unwrap();
    assert_eq!(
        (config.servers, config.memory_bytes, config.to_json()["servers"].clone()),
        (2, 4 << 30, 2.into())
    );
    assert!(config.no_on_chip && !sherman(&config).on_chip && sherman(&config).fused);
    let error = config.connect(servers, &usage(1 << 20)).unwrap_err().one_line();
    assert!(error.contains("shm:a,b have 2.0 MiB left"), "{error}");
}

#[test]
fn techniques_switch_one_by_one() {
    let config = config("--technique fused=off --technique two-level=off --technique fused=on").unwrap();
    assert!(sherman(&config).fused && !sherman(&config).two_level);
    assert_eq!(config.to_json()["techniques"]["two_level"], false);
    assert_eq!(config.to_json()["techniques"]["fused"], true);
    assert_eq!(config.to_json()["techniques"]["on_chip"], false);
}

#[test]
fn intents_are_recorded_unless_that_is_switched_off() {
    let [usual, on, off] =
        ["", "--intent-log on", "--intent-log off"].map(|words| config(words).unwrap().to_json());
    assert_eq!([&usual["intent_log"], &off["intent_log"]], [&json!(true), &json!(false)]);
    assert_eq!(usual["digest"], on["digest"]);
    assert_ne!(usual["digest"], off["digest"]);
    assert!(config("--intent-log maybe").is_err());
}

#[test]
fn the_digest_is_of_the_configuration_without_the_seed() {
    let digest = |line| config(line).unwrap().to_json()["digest"].clone();
    assert_eq!(digest("--seed 1"), digest("--seed 2"));
    assert_ne!(digest("--keys 1M"), digest("--keys 2M"));
    assert_ne!(digest(""), digest("--technique fused=off"));
    assert_ne!(digest(""), digest("--duration 11s"));
}
