//! Processes over shared memory that are stopped, or killed, while they write: data of others is not harmed, and what
//! was theirs goes as soon as they are provably dead, and not before.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farwood::lock::LockWord;

use crate::kit::{KINDS, assert_failed, assert_ok, lines};
use crate::servers::{Running, Server};
use crate::shm_check::write_lock;
use crate::{for_each_kind, servers};

const MEMORY: &str = "128MiB";

/// Returns the name of a running benchmark's index.
fn index_of(bench: &mut Running, server: &Server) -> String {
    loop {
        assert!(bench.runs(), "the benchmark has ended");
        let stat = server.farwood("stat", &[]).stdout;
        let name = stat.lines().find_map(|line| line.strip_prefix("index    \"bench-"));
        if let Some(rest) = name {
            return format!("bench-{}", rest.split('"').next().expect("a name in quotes"));
        }
    }
}

/// Starts a benchmark that writes until it is ended, with so many clients.
fn writing(server: &Server, kind: &str, clients: &str) -> Running {
    let words = ["--index", kind, "--keys", "20k", "--warmup", "0", "--shards", "1", "--quiet"];
    let endless = ["--duration", "1000s", "--workload", "write-only", "--clients", clients];
    server.beside("bench", &[&words[..], &endless].concat())
}

/// Returns the output of `stat`.
fn stat(server: &Server) -> String {
    let stat = server.farwood("stat", &[]);
    assert_ok(&stat);
    stat.stdout
}

#[test]
fn a_client_that_is_stopped_and_continued_harms_no_other_index() {
    for_each_kind(stop_and_continue);
}

fn stop_and_continue(kind: &str) {
    let server = Server::start_impatient(MEMORY, "2s");
    // While it is silent, its locks are not those of a dead node, and lock words belong to all indexes: one client
    // holds one of 131,072, which the few nodes of the other index hardly need (with ten times as many keys one did).
    let mut bench = writing(&server, kind, "1");
    let theirs = index_of(&mut bench, &server);
    servers::pause();
    bench.signal("STOP");
    while !stat(&server).contains("silent") {
        servers::pause();
    }
    let said = stat(&server);
    assert!(said.contains("of it kept for silent nodes"), "{said}");
    assert_failed(&server.farwood("drop", &[&theirs]), 1, "1 of them silent");
    assert_ok(&server.farwood("create", &["u", "--index", kind]));
    assert_ok(&server.farwood_with_input("load", &["u"], &lines(0..500)));
    check_beside_its_lock(&server);
    bench.signal("CONT");
    // It goes on with what is still its own.
    while stat(&server).contains("silent") {
        assert!(bench.runs(), "{}", bench.finish().stderr);
    }
    assert_ok(&server.farwood_with_input("load", &["u"], &lines(500..10_000)));
    bench.signal("INT");
    assert_failed(&bench.finish(), 130, "the result is partial");
    let checked = server.farwood("check", &["u"]);
    assert_ok(&checked);
    assert!(checked.stdout.starts_with("keys         10000\n"), "{}", checked.stdout);
    assert!(server.farwood("scan", &["u"]).stdout.as_bytes() == lines(0..10_000));
    let said = stat(&server);
    assert!(!said.contains("silent") && !said.contains(&theirs), "{said}");
}

/// Checks the index while the silent compute node has a lock: the first word, which no client needs.
fn check_beside_its_lock(server: &Server) {
    let said = stat(server);
    let silent = said.lines().find(|line| line.starts_with("node ") && line.contains("silent"));
    let id = silent.and_then(|line| line["node ".len()..].split(':').next()).expect("it has an id");
    write_lock(server, LockWord::new(id.trim().parse().expect("a number"), 0, 0xff).to_bits());
    let checked = server.farwood("check", &["u"]);
    assert_ok(&checked);
    let told =
        format!("of compute node {}, which is silent: it releases the lock if it goes on\n", id.trim());
    assert!(checked.stdout.contains(&told), "{}", checked.stdout);
    write_lock(server, 0);
}

#[test]
fn a_load_that_is_stopped_and_continued_ends_well_and_leaves_no_lock() {
    for_each_kind(load_with_a_pause);
}

fn load_with_a_pause(kind: &str) {
    const KEYS: u32 = 2_000;
    let server = Server::start_impatient(MEMORY, "2s");
    assert_ok(&server.farwood("create", &["t", "--index", kind]));
    let mut load = server.beside("load", &["t"]);
    let (mut input, ended) = (load.stdin(), Arc::new(AtomicBool::new(false)));
    let enough = Arc::clone(&ended);
    // It has something to do whenever it is stopped, and when it goes on.
    let feeding = std::thread::spawn(move || {
        let mut rounds = 0;
        while !enough.load(Ordering::Relaxed) || rounds == 0 {
            input.write_all(&lines(0..KEYS)).expect("it reads");
            rounds += 1;
        }
        rounds
    });
    servers::pause();
    load.signal("STOP");
    while !stat(&server).contains("silent") {
        servers::pause();
    }
    assert_failed(&server.farwood("drop", &["t"]), 1, "1 of them silent");
    load.signal("CONT");
    while stat(&server).contains("silent") {
        assert!(load.runs(), "it has ended");
    }
    assert_failed(&server.farwood("drop", &["t"]), 1, "in use by 1 other");
    servers::pause();
    ended.store(true, Ordering::Relaxed);
    let read = feeding.join().expect("it only writes") * KEYS;
    let loaded = load.finish();
    assert_ok(&loaded);
    assert_eq!(loaded.stdout, format!("read {read} lines, stored {read}, rejected 0\n"));
    assert_eq!(loaded.stderr, "");
    let checked = server.farwood("check", &["t"]);
    assert_ok(&checked);
    assert!(checked.stdout.starts_with(&format!("keys         {KEYS}\n")), "{}", checked.stdout);
    assert!(!checked.stdout.contains("lock"), "{}", checked.stdout);
    // It has said goodbye.
    let said = stat(&server);
    assert!(!said.contains("silent") && said.matches("node  ").count() == 1, "{said}");
    assert_ok(&server.farwood("drop", &["t"]));
}

#[test]
fn a_server_ends_the_process_of_a_silent_client_where_that_is_asked_for() {
    let server = Server::start_deadly(MEMORY, "2s");
    let mut bench = writing(&server, KINDS[0], "64");
    let theirs = index_of(&mut bench, &server);
    bench.signal("STOP");
    assert_eq!(bench.wait().signal(), Some(9));
    while stat(&server).contains(&theirs) {
        servers::pause();
    }
    assert!(server.stop().stderr.contains("stopping: nothing is lost"));
}

/// As in a virtual machine that is paused, where the memory server is the first to go on.
#[test]
fn a_server_that_was_stopped_itself_gives_its_clients_their_time_once_more() {
    let server = Server::start_deadly(MEMORY, "2s");
    let mut bench = writing(&server, KINDS[0], "64");
    index_of(&mut bench, &server);
    bench.signal("STOP");
    server.signal("STOP");
    (0..10).for_each(|_| servers::pause());
    server.signal("CONT");
    servers::pause();
    bench.signal("CONT");
    (0..4).for_each(|_| servers::pause());
    assert!(bench.runs(), "it was ended");
    bench.signal("INT");
    assert_failed(&bench.finish(), 130, "the result is partial");
}

/// Lock words belong to all indexes of a server: a new index may find those of a dead process taken.
#[test]
fn a_new_index_does_not_meet_the_locks_of_the_dead() {
    const TIMES: usize = 8;
    let server = Server::start(MEMORY);
    for time in 0..TIMES {
        let kind = KINDS[time % KINDS.len()];
        let mut bench = writing(&server, kind, "64");
        index_of(&mut bench, &server);
        servers::pause();
        bench.signal("KILL");
        bench.wait();
        assert_ok(&server.farwood("create", &["u", "--index", kind]));
        assert_ok(&server.farwood_with_input("load", &["u"], &lines(0..10_000)));
        let checked = server.farwood("check", &["u"]);
        assert_ok(&checked);
        assert!(checked.stdout.starts_with("keys         10000\n"), "{}", checked.stdout);
        assert_ok(&server.farwood("drop", &["u"]));
    }
}

#[test]
fn a_killed_benchmark_leaves_no_index_and_no_memory_in_use() {
    for kind in KINDS {
        let (first, second) = (Server::start(MEMORY), Server::start(MEMORY));
        let name = second.fabric.strip_prefix("shm:").expect("it is one of shm");
        let both = format!("{},{name}", first.fabric);
        let words = ["bench", "--fabric", &both, "--index", kind, "--keys", "20k", "--quiet"];
        let mut bench = Running::start(&[&words[..], &["--duration", "1000s"]].concat());
        index_of(&mut bench, &first);
        servers::pause();
        bench.signal("KILL");
        bench.wait();
        for server in [&first, &second] {
            let said = stat(server);
            assert!(said.contains(" 0 B of ") && said.contains("index    none"), "{said}");
        }
        assert!(first.stop().stderr.contains("stopping: nothing is lost"));
    }
}
