//! A client of shared memory that falls silent may continue at any moment: no other gets what it had open before the
//! kernel says that its memory is unmapped, and it continues with all that. Clients that are stopped (SIGSTOP) are
//! processes of their own: this program again, which executes the commands that it reads. A program of its own, for a
//! reason that `suite/main.rs` has.

#[path = "control_kit/mod.rs"]
mod control_kit;

use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use control_kit::eventually;
use farwood_runtime::service::ServiceTimes;
use farwood_runtime::{
    ConnectConfig, Control, ControlError, Fabric, IndexId, RemoteControl, ServerAddress, ServerId,
    ShmCluster, ShmName, ShmServer, ShmServerConfig,
};
use futures::executor::block_on;

const SILENCE: Duration = Duration::from_millis(700);
/// Variable that makes a process of this program a client: it names the servers and the indexes.
const ROLE: &str = "FARWOOD_TEST_CLIENT";
const TEMPORARY: &str = "temporary";
/// Beginning of a client's answers: the test harness writes, too.
const ANSWER: &str = "answer: ";

fn server(name: &str) -> ShmServer {
    let times = ServiceTimes { silence: SILENCE, ..ServiceTimes::default() };
    server_of(name, times)
}

fn server_of(name: &str, times: ServiceTimes) -> ShmServer {
    let name = ShmName::new(&format!("test-{name}-{}", std::process::id())).unwrap();
    ShmServer::start(&ShmServerConfig { times, ..ShmServerConfig::new(name, 64 << 20) }).unwrap()
}

/// Connects a client in this process that sends pings in time.
fn lively(servers: &[&ShmServer]) -> Arc<ShmCluster> {
    let names: Vec<&str> = servers.iter().map(|server| server.name().as_str()).collect();
    ShmCluster::connect_with(&names, lively_config()).unwrap()
}

fn lively_config() -> ConnectConfig {
    ConnectConfig { ping: SILENCE / 10, ..ConnectConfig::default() }
}

/// A client that is a process, which does not outlive the test.
struct Process {
    child: Child,
    requests: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(servers: &[&ShmServer], indexes: &str) -> Self {
        let names: Vec<&str> = servers.iter().map(|server| server.name().as_str()).collect();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "a_client", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, format!("{} {indexes}", names.join(",")));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let requests = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap()).lines();
        Process { child, requests, answers }
    }

    /// Sends a command to the client; yields its answer.
    fn ask(&mut self, request: &str) -> String {
        writeln!(self.requests, "{request}").unwrap();
        loop {
            let line = self.answers.next().expect("it has not ended").unwrap();
            if let Some((_, answer)) = line.split_once(ANSWER) {
                return answer.to_owned();
            }
        }
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &pid]).status();
        assert!(sent.expect("there is a kill").success());
    }

    /// Stops the client for longer than the servers have patience.
    fn stop(&self, servers: &[&ShmServer]) {
        self.signal("STOP");
        eventually("it is silent", || {
            servers.iter().all(|server| server.nodes().iter().any(|node| node.silent))
        });
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Works for a stopped process too: its memory is unmapped when this returns.
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Runs the client of such a process; does nothing where it is run as a test.
#[test]
fn a_client() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (names, indexes) = role.split_once(' ').unwrap();
    let names: Vec<&str> = names.split(',').collect();
    let config = ConnectConfig { temporary_indexes: indexes == TEMPORARY, ..lively_config() };
    let cluster = ShmCluster::connect_with(&names, config).unwrap();
    let (control, mut index, mut chunks) = (cluster.control(), IndexId(0), Vec::new());
    for request in std::io::stdin().lines() {
        let request = request.unwrap();
        let (what, of) = request.split_once(' ').unwrap_or((&request, ""));
        let answer = match what {
            "admit" => format!("{:?}", cluster.allocate_node_id()),
            "create" => {
                let created = block_on(control.create(of, "sherman", b""));
                index = created.as_ref().map_or(index, |entry| entry.id);
                format!("{:?}", created.map(|entry| entry.id))
            }
            "chunk" => {
                let chunk = block_on(control.chunk(ServerId(of.parse().unwrap()), index));
                chunks.extend(chunk.clone().ok());
                format!("{chunk:?}")
            }
            "give-back" => {
                control.return_extent(index, chunks.pop().unwrap());
                String::new()
            }
            "goodbye" => {
                cluster.remote().unwrap().goodbye();
                String::new()
            }
            other => panic!("{other}"),
        };
        println!("{ANSWER}{answer}");
    }
}

/// Waits until the server's first connection has been resumed three times.
fn await_three_resumptions(server: &ShmServer) {
    let mut others = 0;
    eventually("it has been resumed three times", || {
        others += 1;
        // Connections have numbers, also those that resume another.
        lively(&[server]).remote().unwrap().welcome(ServerId(0)).connection > 1 + others + 3
    });
}

fn chunk_bytes(servers: &[&ShmServer]) -> Vec<u64> {
    servers.iter().map(|server| server.usage().chunk_bytes).collect()
}

#[test]
fn a_silent_client_that_goes_on_has_all_that_it_had() {
    let (first, second) = (server("goes-on-0"), server("goes-on-1"));
    let servers = [&first, &second];
    let mut stopped = Process::start(&servers, "");
    assert_eq!(stopped.ask("admit"), "Ok(1)");
    assert_eq!(stopped.ask("create a"), "Ok(IndexId(1))");
    let chunks = ["chunk 0", "chunk 1"].map(|request| stopped.ask(request));
    let held = chunk_bytes(&servers);
    let other = lively(&servers);
    let in_use =
        |silent| Err(ControlError::InUse { name: "a".into(), nodes: vec![1], connections: 1, silent });
    for _ in 0..2 {
        stopped.stop(&servers);
        assert_eq!(block_on(other.control().drop_index("a")), in_use(1));
        stopped.signal("CONT");
        // The request is made while the client finds out, and is sent afterwards.
        stopped.ask("give-back");
        assert_eq!(stopped.ask("chunk 1"), chunks[1], "what it had given back");
        eventually("both have it again", || {
            servers.iter().all(|server| server.nodes().iter().all(|node| !node.silent))
        });
        assert_eq!(block_on(other.control().drop_index("a")), in_use(0));
        assert_eq!(chunk_bytes(&servers), held);
    }
    // This fences the stopped client no more than any other that is connected.
    block_on(other.control().create("b", "sherman", b"")).unwrap();
    assert!(!chunks.contains(&stopped.ask("chunk 1")), "a new one");
    assert_eq!(stopped.ask("admit"), "Ok(2)");
    stopped.ask("goodbye");
    eventually("it has left", || servers.iter().all(|server| server.nodes().len() == 1));
    assert!(block_on(other.control().create("c", "sherman", b"")).unwrap().dead_owners.is_empty());
    assert_eq!(block_on(other.control().drop_index("a")), Ok(held[0] + 2 * held[1]));
}

#[test]
fn what_a_silent_client_has_open_is_kept_until_its_memory_is_unmapped() {
    let (first, second) = (server("silent-0"), server("silent-1"));
    let servers = [&first, &second];
    let mut stopped = Process::start(&servers, "");
    assert_eq!(stopped.ask("admit"), "Ok(1)");
    stopped.ask("create a");
    ["chunk 0", "chunk 1"].iter().for_each(|request| drop(stopped.ask(request)));
    let chunks = chunk_bytes(&servers);
    stopped.stop(&servers);
    let other = lively(&servers);
    let in_use = ControlError::InUse { name: "a".into(), nodes: vec![1], connections: 1, silent: 1 };
    assert_eq!(block_on(other.control().drop_index("a")), Err(in_use.clone()));
    assert!(in_use.to_string().contains("let it go on, or kill it"), "{in_use}");
    for (server, kept) in servers.iter().zip(&chunks) {
        assert_eq!((server.usage().chunk_bytes, server.usage().silent_bytes), (*kept, *kept));
        assert_eq!(server.nodes().iter().filter(|node| node.silent).count(), 1);
    }
    // It did not end well, but it has ended.
    drop(stopped);
    assert_eq!(block_on(other.control().drop_index("a")), Ok(chunks.iter().sum()));
    assert_eq!((first.nodes().len(), first.usage().silent_bytes), (1, 0));
    // Its locks may be there still; an index that is made now knows that they guard nothing of it.
    let entry = block_on(other.control().create("b", "sherman", b"")).unwrap();
    assert_eq!(*entry.dead_owners, [1]);
    let third = lively(&servers);
    third.allocate_node_id().unwrap();
    drop(third);
    let again = lively(&servers);
    assert_eq!(block_on(again.control().open("b")).unwrap(), entry);
}

#[test]
fn the_process_of_a_silent_client_is_ended_where_that_is_asked_for() {
    let times = ServiceTimes { silence: SILENCE, ends_silent: true, ..ServiceTimes::default() };
    let (first, second) = (server_of("ended-0", times), server_of("ended-1", times));
    let servers = [&first, &second];
    let mut stopped = Process::start(&servers, "");
    assert_eq!(stopped.ask("admit"), "Ok(1)");
    stopped.ask("create a");
    ["chunk 0", "chunk 1"].iter().for_each(|request| drop(stopped.ask(request)));
    let (other, chunks) = (lively(&servers), chunk_bytes(&servers));
    stopped.signal("STOP");
    assert_eq!(stopped.child.wait().unwrap().signal(), Some(9));
    eventually("both know that it is dead", || servers.iter().all(|server| server.nodes().len() == 1));
    assert_eq!(*block_on(other.control().dead()).unwrap(), [1]);
    assert_eq!(block_on(other.control().drop_index("a")), Ok(chunks.iter().sum()));
}

/// It would end itself.
#[test]
fn a_server_does_not_end_a_silent_client_of_its_own_process() {
    let times = ServiceTimes { silence: SILENCE, ends_silent: true, ..ServiceTimes::default() };
    let server = server_of("itself", times);
    let config = ConnectConfig { ping: Duration::from_secs(3600), ..ConnectConfig::default() };
    let cluster = ShmCluster::connect_with(&[server.name().as_str()], config).unwrap();
    let control = cluster.control();
    let entry = block_on(control.create("a", "sherman", b"")).unwrap();
    await_three_resumptions(&server);
    // At that very moment it may be silent once more.
    eventually("it goes on", || block_on(control.open("a")) == Ok(entry.clone()));
}

#[test]
fn a_temporary_index_of_a_silent_client_stays_until_its_memory_is_unmapped() {
    let (first, second) = (server("temporary-0"), server("temporary-1"));
    let servers = [&first, &second];
    let mut stopped = Process::start(&servers, TEMPORARY);
    ["create a", "chunk 0", "chunk 1"].iter().for_each(|request| drop(stopped.ask(request)));
    let held = || chunk_bytes(&servers).iter().map(|bytes| *bytes > 0).collect::<Vec<_>>();
    for _ in 0..2 {
        stopped.stop(&servers);
        assert_eq!((held(), first.usage().indexes), (vec![true; 2], 1));
        stopped.signal("CONT");
        eventually("both have it again", || {
            servers.iter().all(|server| server.nodes().iter().all(|node| !node.silent))
        });
    }
    stopped.stop(&servers);
    drop(stopped);
    assert_eq!((held(), first.usage().indexes), (vec![false; 2], 0));
}

/// Here the client is too impatient, while the server has seen nothing: that ends the connection.
#[test]
fn a_client_that_has_waited_too_long_goes_on_with_a_server_that_lives() {
    let server = server_of("impatient", ServiceTimes::default());
    let (ping, silence) = (Duration::from_secs(3600), SILENCE / 3);
    let config = ConnectConfig { ping, silence, ..ConnectConfig::default() };
    let cluster = ShmCluster::connect_with(&[server.name().as_str()], config).unwrap();
    let (control, gone) = (cluster.control(), cluster.remote().unwrap().gone(ServerId(0)));
    let entry = block_on(control.create("a", "sherman", b"")).unwrap();
    await_three_resumptions(&server);
    // At that very moment it may break off once more.
    eventually("it goes on", || block_on(control.open("a")) == Ok(entry.clone()));
    assert!(!gone.load(Ordering::Acquire));
    assert_eq!(server.nodes().iter().filter(|node| !node.silent).count(), 1);
}

#[test]
fn who_has_not_mapped_the_memory_gets_nothing_of_it() {
    let server = server("unmapped");
    let address = ServerAddress::Unix(server.name().socket_path());
    let control = RemoteControl::connect(&[address], &ConnectConfig::default()).unwrap();
    assert_eq!(block_on(control.create("a", "sherman", b"")), Err(ControlError::NotMapped));
    assert_eq!(block_on(control.open("a")), Err(ControlError::NotMapped));
}
