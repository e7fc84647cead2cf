//! Signals: SIGINT, SIGTERM and SIGHUP end every command, wherever it waits, with the exit status that shells give
//! them, and leave nothing behind. That it takes no more than a second is not measured here, where others use the
//! cores; that it ends is: a command that waits for ever hangs its test.

use std::path::Path;
use std::time::Duration;

use crate::kit;
use crate::kit::{Ran, Scratch, assert_failed, assert_ok, keys, lines};
use crate::servers::{Running, Server};

const SIGNALS: [(&str, i32); 3] = [("INT", 130), ("TERM", 143), ("HUP", 129)];

/// Sends the signal when the command is ready for it, and a moment later. Yields how it ended.
fn end_by(mut process: Running, signal: &str) -> Ran {
    while !process.listens_to_signals() {
        assert!(process.runs(), "{}", process.finish().stderr);
    }
    moment();
    process.signal(signal);
    process.finish()
}

/// Waits long enough for a process to come to where it waits; tests do not depend on it.
fn moment() {
    #[expect(clippy::disallowed_methods, reason = "no shard runs in this process")]
    std::thread::sleep(Duration::from_millis(300));
}

#[track_caller]
fn assert_interrupted(ran: &Ran, code: i32) {
    assert_eq!(ran.code, code, "{}{}", ran.stdout, ran.stderr);
    let last = ran.stderr.lines().last().unwrap_or_default();
    assert!(last.starts_with("farwood: interrupted: "), "{}", ran.stderr);
}

fn files_of(fabric: &str) -> Vec<String> {
    let name = fabric.strip_prefix("shm:").expect("it is one of shm");
    let all = std::fs::read_dir("/dev/shm").expect("Linux has it");
    let names = all.map(|entry| entry.expect("readable").file_name().into_string().expect("text"));
    // The names of some servers begin like those of others.
    let of_it = [format!("farwood-{name}"), format!("farwood.{name}.sock")];
    names.filter(|file| of_it.contains(file)).collect()
}

/// A benchmark writes what it came to, marked, on every fabric.
#[test]
fn a_benchmark_that_is_interrupted_writes_its_partial_result() {
    let server = Server::start("64MiB");
    let scratch = Scratch::new("signals");
    let fabrics = ["embedded", "sim:connectx5", &server.fabric];
    for (fabric, (signal, code)) in fabrics.into_iter().zip(SIGNALS) {
        let path = scratch.path("out.json");
        let words = ["bench", "--fabric", fabric, "--keys", "20k", "--shards", "1", "--warmup", "0"];
        let rest = ["--duration", "1000s", "--json", path.as_str()];
        let ran = end_by(Running::start(&[&words[..], &rest].concat()), signal);
        assert_interrupted(&ran, code);
        assert!(ran.stdout.contains("\nINTERRUPTED: "), "{fabric}: {}", ran.stdout);
        let json: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&path).expect("it was written")).expect("JSON");
        assert_eq!(json["interrupted"], true, "{fabric}");
        let [load, run] = &json["phases"].as_array().expect("phases")[..] else { panic!("two phases") };
        assert_eq!((&load["name"], &run["name"]), (&"load".into(), &"run".into()));
        std::fs::remove_file(&path).expect("it is there");
    }
    let stat = server.farwood("stat", &[]);
    assert!(stat.stdout.contains("index    none"), "its index is dropped: {}", stat.stdout);
}

/// A run that has ended says that it has.
#[test]
fn a_benchmark_that_has_ended_is_not_marked() {
    let words = ["bench", "--keys", "2k", "--ops", "2k", "--shards", "1", "--warmup", "0", "--json", "-"];
    let ran = kit::farwood(&words);
    assert_eq!(kit::json_of(&ran)["interrupted"], false);
}

/// A stopped server does not answer: commands that ask it wait, and are ended all the same.
#[test]
fn every_command_is_ended_while_it_waits_for_a_server() {
    let server = Server::start("64MiB");
    assert_ok(&server.farwood("create", &["t", "--index", "sherman"]));
    assert_ok(&server.farwood("put", &["t", "k", "v"]));
    server.signal("STOP");
    let commands: [(&str, &[&str]); 9] = [
        ("create", &["u", "--index", "smart"]),
        ("drop", &["t"]),
        ("get", &["t", "k"]),
        ("put", &["t", "k", "w"]),
        ("remove", &["t", "k"]),
        ("scan", &["t"]),
        ("check", &["t"]),
        ("stat", &[]),
        ("bench", &["--keys", "1k", "--quiet"]),
    ];
    // All at once: each waits for a while before it is ended.
    std::thread::scope(|scope| {
        for ((command, rest), (signal, code)) in commands.into_iter().zip(SIGNALS.into_iter().cycle()) {
            let process = server.beside(command, rest);
            scope.spawn(move || assert_interrupted(&end_by(process, signal), code));
        }
    });
    server.signal("CONT");
    assert_eq!(server.farwood("get", &["t", "k"]).stdout, "v\n");
}

/// A command that waits for a lock whose owner is stopped is ended then, and not when its patience is over.
#[test]
fn a_wait_for_a_lock_is_ended_by_every_signal() {
    let server = Server::start("64MiB");
    assert_ok(&server.farwood("create", &["t", "--index", "sherman"]));
    let put = ["t", "key", "value"];
    let scratch = Scratch::new("locks");
    let path = scratch.path("keys");
    std::fs::write(&path, "key\n").expect("writable");
    let remove = ["t", "--file", path.as_str()];
    std::thread::scope(|scope| {
        // One key: one of the clients that load it has the lock of its leaf nearly all the time.
        let mut owner = server.beside("load", &["t"]);
        let mut input = owner.stdin();
        scope.spawn(
            move || while std::io::Write::write_all(&mut input, &b"key\tvalue\n".repeat(1000)).is_ok() {},
        );
        // Those that nothing ends give up by themselves.
        let removed = loop {
            moment();
            owner.signal("STOP");
            let removing = server.beside("remove", &remove);
            let (ran, removed) = (server.farwood("put", &put), removing.finish());
            if ran.code != 0 {
                assert!(ran.stderr.contains("lock"), "{}", ran.stderr);
                // If it was stopped while it wrote a line of memory, those that come now do not wait any more.
                if !ran.stderr.contains("in the middle of a line") {
                    break removed;
                }
            }
            owner.signal("CONT");
        };
        assert_failed(&removed, 1, "0 keys were removed, 0 were absent, and up to line 0 all");
        assert!(removed.stderr.contains("line 1: ") && removed.stderr.contains("lock"), "{}", removed.stderr);
        assert_eq!(removed.stdout, "read 1 lines, removed 0, absent 0, rejected 0\n");
        let commands: [(&str, &[&str]); 2] = [("put", &put), ("remove", &remove)];
        let ended = commands.map(|(command, rest)| {
            SIGNALS.map(|(signal, code)| {
                let process = server.beside(command, rest);
                (code, scope.spawn(move || end_by(process, signal)))
            })
        });
        for (code, ended) in ended.into_iter().flatten() {
            assert_interrupted(&ended.join().expect("it was ended"), code);
        }
        drop(owner);
    });
}

#[test]
fn a_load_and_a_removal_are_ended_by_every_signal() {
    for (signal, code) in SIGNALS {
        let server = Server::start("64MiB");
        assert_ok(&server.farwood("create", &["t", "--index", "sherman"]));
        for (command, rest, text) in
            [("load", &["t"][..], lines(0..5_000)), ("remove", &["t", "--file", "-"], keys(0..5_000))]
        {
            let mut process = server.beside(command, rest);
            let mut input = process.stdin();
            std::io::Write::write_all(&mut input, &text).expect("it reads");
            let ran = end_by(process, signal);
            drop(input);
            assert_interrupted(&ran, code);
            assert_ok(&server.farwood("check", &["t"]));
        }
    }
}

#[test]
fn simulations_are_ended_by_every_signal() {
    let commands: [&[&str]; 2] = [&["sim", "run", "--seeds", "0..1000000"], &["sim", "paper"]];
    for words in commands {
        for (signal, _) in SIGNALS {
            let mut process = Running::start(words);
            moment();
            assert!(process.runs());
            process.signal(signal);
            assert!(!process.wait().success());
        }
    }
}

/// Also one that is told to end by the terminal that closes.
#[test]
fn a_memory_server_removes_its_files_on_every_signal() {
    for (signal, _) in SIGNALS {
        let server = Server::start("16MiB");
        assert_eq!(files_of(&server.fabric).len(), 2);
        let fabric = server.fabric.clone();
        let ran = server.stop_by(signal);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "{}", ran.stderr);
        assert!(ran.stderr.contains("stopping: nothing is lost"), "{}", ran.stderr);
        assert_eq!(files_of(&fabric), [""; 0], "{signal}");
    }
}

/// One that is still taking its memory leaves nothing of it behind.
#[test]
fn a_memory_server_that_is_ended_while_it_starts_leaves_nothing() {
    for (signal, code) in SIGNALS {
        let fabric = format!("shm:test-{}-starting-{signal}", std::process::id());
        let begun = format!("/dev/shm/.{}.farwood-new", fabric.replace("shm:", "farwood-"));
        let mut process = Running::start(&["memory-server", "--fabric", &fabric, "--memory", "2GiB"]);
        while !Path::new(&begun).exists() {
            assert!(process.runs(), "{}", process.finish().stderr);
        }
        process.signal(signal);
        let ran = process.finish();
        assert_interrupted(&ran, code);
        assert_eq!((ran.stdout.as_str(), files_of(&fabric)), ("", Vec::new()), "{signal}");
    }
}

/// `nohup farwood memory-server` survives its terminal.
#[test]
fn a_hang_up_that_is_ignored_stays_ignored() {
    let fabric = format!("shm:test-{}-nohup", std::process::id());
    let words = ["memory-server", "--fabric", &fabric, "--memory", "16MiB"];
    let server = Server::ready(&fabric, Running::start_by(&["nohup"], &words));
    server.signal("HUP");
    moment();
    assert_ok(&server.farwood("stat", &[]));
    assert_eq!(server.stop_by("TERM").code, 0);
}
