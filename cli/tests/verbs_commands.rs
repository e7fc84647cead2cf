//! The commands over libibverbs, memory server and clients on one host with an RDMA device (`tests/verbs-vm`). What
//! does not depend on the fabric is for `shm_commands.rs`.
#![cfg(feature = "verbs")]

mod kit;
#[path = "kit/servers.rs"]
mod servers;

use kit::{KINDS, assert_failed, assert_ok, json_of, lines};
use servers::Server;

const MEMORY: &str = "64MiB";

#[test]
fn every_command_does_what_it_says() {
    let server = Server::start_verbs(7101, MEMORY);
    assert!(server.ready.contains("--fabric verbs:127.0.0.1:7101"), "{}", server.ready);
    KINDS.iter().for_each(|kind| use_every_command(&server, kind));
    let stopped = server.stop();
    assert_eq!(stopped.code, 0);
    assert!(stopped.stderr.contains("stopping: nothing is lost"), "{}", stopped.stderr);
}

fn use_every_command(server: &Server, kind: &str) {
    assert_ok(&server.farwood("create", &["t", "--index", kind]));
    assert_failed(&server.farwood("create", &["t", "--index", kind]), 1, "an index named \"t\" already");
    let loaded = server.farwood_with_input("load", &["t"], &lines(0..2000));
    assert_ok(&loaded);
    assert_eq!(loaded.stdout, "read 2000 lines, stored 2000, rejected 0\n");
    let got = server.farwood("get", &["t", "key0000007"]);
    assert_ok(&got);
    assert_eq!(got.stdout, "value7\n");
    assert_ok(&server.farwood("put", &["t", "key0000007", "another"]));
    assert_ok(&server.farwood("remove", &["t", "key0000008"]));
    assert_failed(&server.farwood("get", &["t", "key0000008"]), 1, "has no key");
    let scanned = server.farwood("scan", &["t", "--from", "key0000006", "--to", "key0000010"]);
    assert_ok(&scanned);
    assert_eq!(scanned.stdout, "key0000006\tvalue6\nkey0000007\tanother\nkey0000009\tvalue9\n");
    let checked = server.farwood("check", &["t"]);
    assert_ok(&checked);
    assert!(checked.stdout.starts_with("keys         1999\n"), "{}", checked.stdout);
    let stat = server.farwood("stat", &[]);
    assert_ok(&stat);
    assert!(stat.stdout.contains(&format!("index    \"t\": {kind}")), "{}", stat.stdout);
    assert_ok(&server.farwood("drop", &["t"]));
}

/// Round trips and bytes of an operation do not depend on where the memory is, but that a lock is cleared by CAS where
/// the device is Soft-RoCE. (In an emulated guest, reading on the embedded fabric takes so long that some gets are done
/// under the lock: a get's cost is given here.)
#[test]
fn operations_cost_what_they_cost_on_the_embedded_fabric() {
    let server = Server::start_verbs(7102, MEMORY);
    let flags =
        ["--keys", "5k", "--ops", "2k", "--warmup", "0", "--shards", "1", "--clients", "1", "--json", "-"];
    let flags = [&["--workload", "ycsb-a"], &flags[..]].concat();
    let (here, there) = (kit::farwood(&[&["bench"], &flags[..]].concat()), server.farwood("bench", &flags));
    let ([_, here], [get, there]) =
        (kit::costs(&json_of(&here), 1024.0), kit::costs(&json_of(&there), 1024.0));
    assert_eq!(get, [1.0, 1.0, 1024.0, 0.0, 0.0, 0.0]);
    let [round_trips, reads, bytes_read, writes, cas, bytes_written] = there;
    let cleared_by_write = [round_trips, reads, bytes_read, writes + 1.0, cas - 1.0, bytes_written + 8.0];
    let differ = |(here, there): (&f64, f64)| (here - there).abs() > 1e-6;
    assert!(!here.iter().zip(cleared_by_write).any(differ), "{here:?}, {there:?}");
}

#[test]
fn a_server_that_is_killed_ends_its_clients_with_an_error() {
    let server = Server::start_verbs(7103, MEMORY);
    let bench = server.beside("bench", &["--keys", "1k", "--duration", "1000s", "--quiet", "--shards", "1"]);
    while !server.farwood("stat", &[]).stdout.contains("\"bench-") {}
    server.kill();
    let ran = bench.finish();
    assert_failed(&ran, 1, "memory server 0");
}

#[test]
fn servers_of_the_other_fabric_are_named() {
    let (verbs, shm) = (Server::start_verbs(7104, MEMORY), Server::start(MEMORY));
    assert_ok(&verbs.farwood("stat", &[]));
    assert_ok(&shm.farwood("stat", &[]));
    let absent = kit::farwood(&["stat", "--fabric", "verbs:127.0.0.1:7105"]);
    assert_failed(&absent, 1, "the memory server has died, or has another address");
    let device = kit::farwood(&["stat", "--fabric", "verbs:127.0.0.1:7104", "--device", "mlx5_9"]);
    assert_failed(&device, 1, "there is no RDMA device named \"mlx5_9\"");
    let gid = kit::farwood(&["stat", "--fabric", "verbs:127.0.0.1:7104", "--gid-index", "99"]);
    assert_failed(&gid, 1, "no GID at index 99");
}
