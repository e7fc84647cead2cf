//! `farwood check` on indexes whose memory has been written to by hand: locks of compute nodes that are gone or silent,
//! and damage.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::ChildStdin;
use std::sync::Arc;

use farwood::lock::{LockWord, tag_of};
use farwood::runtime::{Fabric, RemotePtr, ShmCluster, ShmName};
use futures::executor::block_on;

use crate::for_each_kind;
use crate::kit::{assert_failed, assert_ok, lines};
use crate::servers::{self, Running, Server};

const MEMORY: &str = "16MiB";

fn with_index(kind: &str) -> Server {
    let server = Server::start(MEMORY);
    assert_ok(&server.farwood("create", &["t", "--index", kind]));
    server
}

/// Connects to the server, as a compute node does.
fn connect(server: &Server) -> Arc<ShmCluster> {
    ShmCluster::connect(&[name(server)]).unwrap()
}

fn name(server: &Server) -> &str {
    server.fabric.strip_prefix("shm:").expect("it is one of shm")
}

/// Writes a word of the server's memory, whose offsets are those of its file.
fn write_word(server: &Server, at: RemotePtr, word: u64) {
    let name = ShmName::new(name(server)).expect("the server has it");
    let file = File::options().write(true).open(name.region_path()).expect("it is there");
    file.write_all_at(&word.to_le_bytes(), at.offset()).expect("the offset is inside");
}

/// Writes the first lock word of the server: 0 is a free lock.
pub(crate) fn write_lock(server: &Server, word: u64) {
    let lock = connect(server).control().servers()[0].locks.base;
    write_word(server, lock, word);
}

#[test]
fn a_lock_of_a_client_that_is_gone_is_no_fault() {
    let server = with_index("sherman");
    write_lock(&server, LockWord::new(7, 0, 0xff).to_bits());
    let checked = server.farwood("check", &["t"]);
    assert_ok(&checked);
    let said = checked.stdout;
    assert!(said.contains("orphaned     lock 0:0x"), "{said}");
    assert!(said.contains("compute node 7, which is gone\n"), "{said}");
}

#[test]
fn a_repair_leaves_what_cannot_be_taken_over() {
    let server = with_index("sherman");
    let cluster = connect(&server);
    let dead = cluster.allocate_node_id().unwrap();
    let tag = tag_of(block_on(cluster.control().open("t")).unwrap().id);
    let lock = cluster.control().servers()[0].locks.base;
    drop(cluster);
    // Bit 31 says that its owner kept intents: nothing was begun under a word of which there is none.
    write_word(&server, lock, LockWord::new(dead, tag, 1 << 31).to_bits());
    write_word(&server, lock.add(8), LockWord::new(dead, tag, 1).to_bits());
    for (flags, left) in [(&["t"][..], 2), (&["t", "--repair"], 1)] {
        let checked = server.farwood("check", flags);
        assert_ok(&checked);
        let said = checked.stdout;
        assert_eq!(
            (said.matches("orphaned  ").count(), said.contains("taken over")),
            (left, left == 1),
            "{said}"
        );
    }
}

#[test]
fn memory_of_a_killed_client_is_given_back_and_used_again() {
    for_each_kind(repair_memory);
}

/// Returns the line of a command's output that begins so, without its beginning.
fn line<'o>(said: &'o str, begin: &str) -> Option<&'o str> {
    said.lines().find_map(|line| line.strip_prefix(begin))
}

/// A server with an index from which a process was killed that had put 2000 pairs. Another one has put 100 more, and
/// waits for its input to go on, or to end.
pub(crate) struct AfterKill {
    pub(crate) server: Server,
    pub(crate) other: Running,
    pub(crate) input: ChildStdin,
}

impl AfterKill {
    pub(crate) fn new(kind: &str) -> Self {
        let server = with_index(kind);
        let pairs = || server.farwood("scan", &["t"]).stdout.lines().count();
        let [mut killed, mut other] = [0, 1].map(|_| server.beside("load", &["t"]));
        let [mut of_killed, mut input] = [killed.stdin(), other.stdin()];
        of_killed.write_all(&lines(0..2000)).expect("it reads");
        input.write_all(&lines(2000..2100)).expect("it reads");
        while pairs() < 2100 {
            assert!(killed.runs() && other.runs());
        }
        killed.signal("KILL");
        killed.wait();
        let nodes = || server.farwood("stat", &[]).stdout.matches("\nnode  ").count();
        while nodes() > 2 {
            servers::pause();
        }
        AfterKill { server, other, input }
    }
}

fn repair_memory(kind: &str) {
    let AfterKill { server, other, input } = AfterKill::new(kind);
    let kept = server.farwood("check", &["t", "--repair"]);
    assert_ok(&kept);
    let why = line(&kept.stdout, "kept ").unwrap_or_else(|| panic!("{}", kept.stdout));
    assert!(why.contains("1 other client(s) are connected"), "{why}");
    assert!(
        kept.stdout.contains(": held by the other client that is connected, or lost\n"),
        "{}",
        kept.stdout
    );
    drop(input);
    assert_ok(&other.finish());
    let checked = server.farwood("check", &["t"]);
    assert_ok(&checked);
    assert!(checked.stdout.contains(": lost; --repair gives back "), "{}", checked.stdout);
    let repaired = server.farwood("check", &["t", "--repair"]);
    assert_ok(&repaired);
    let given_back =
        line(&repaired.stdout, "given back ").is_some() && line(&repaired.stdout, "kept ").is_none();
    assert!(given_back, "{}", repaired.stdout);
    let chunks =
        |said: &str| line(said, "handed out   ").and_then(|line| line.split_once(':')).unwrap().0.to_owned();
    assert_eq!(chunks(&repaired.stdout), chunks(&checked.stdout));
    // What was given back is enough for some hundred more.
    assert_ok(&server.farwood_with_input("load", &["t"], &lines(2100..2500)));
    let clean = server.farwood("check", &["t"]);
    assert_ok(&clean);
    assert!(clean.stdout.starts_with("keys         2500\n"), "{}", clean.stdout);
    assert_eq!(chunks(&clean.stdout), chunks(&checked.stdout), "{kind}: {}", clean.stdout);
    assert!(server.farwood("scan", &["t"]).stdout.as_bytes() == lines(0..2500), "{kind}");
}

#[test]
fn a_damaged_index_is_named_with_the_node() {
    for_each_kind(damage);
}

fn damage(kind: &str) {
    let server = with_index(kind);
    let entry = block_on(connect(&server).control().open("t")).unwrap();
    // An address where no node was ever written.
    write_word(&server, entry.root, 0x41);
    let checked = server.farwood("check", &["t"]);
    assert_failed(&checked, 1, "breaks");
    assert!(checked.stdout.contains("\nbroken       "), "{}", checked.stdout);
}

#[test]
fn an_index_of_a_kind_that_is_not_known_is_an_error() {
    let server = Server::start(MEMORY);
    block_on(connect(&server).control().create("new", "warp", b"")).unwrap();
    assert_failed(&server.farwood("get", &["new", "k"]), 1, "of kind \"warp\"");
    let stat = server.farwood("stat", &[]);
    assert_ok(&stat);
    assert!(stat.stdout.contains("index    \"new\": warp\n"), "{}", stat.stdout);
}
