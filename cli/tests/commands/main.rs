//! The command `farwood` as a process: a file per subject.
//!
//! One program, so that the tests of one file fill the cores while those of another wait for processes. What needs an
//! RDMA device is a program of its own (`verbs_commands.rs`), since it runs elsewhere.

#[path = "../kit/mod.rs"]
mod kit;
#[path = "../kit/servers.rs"]
mod servers;

mod bad_input;
mod bench_json;
mod bench_sim;
mod bench_trace;
mod shm_bulk;
mod shm_check;
mod shm_commands;
mod shm_fences;
mod shm_strings;
mod shm_sweep;
mod signals;
mod sim_run;

/// The workloads of `farwood bench`.
const WORKLOADS: [&str; 16] = [
    "load",
    "ycsb-a",
    "ycsb-b",
    "ycsb-c",
    "ycsb-d",
    "ycsb-e",
    "ycsb-f",
    "update-only",
    "write-only",
    "write-intensive",
    "read-intensive",
    "range-only",
    "range-write",
    "churn",
    "lock",
    "raw",
];

/// Runs `body` for all kinds of indexes at once: it waits for processes now and then.
fn for_each_kind(body: fn(&str)) {
    std::thread::scope(|scope| {
        for kind in kit::KINDS {
            scope.spawn(move || body(kind));
        }
    });
}
