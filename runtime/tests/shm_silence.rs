//! A client of shared memory that falls silent may go on at any moment: nobody gets what it had open before the kernel
//! says that its memory is unmapped.

#[path = "control_kit/mod.rs"]
mod control_kit;

use std::sync::Arc;
use std::time::Duration;

use control_kit::eventually;
use farwood_runtime::service::ServiceTimes;
use farwood_runtime::{
    ConnectConfig, Control, ControlError, Fabric, RemoteControl, ServerAddress, ServerId, ShmCluster,
    ShmName, ShmServer, ShmServerConfig,
};
use futures::executor::block_on;

const SILENCE: Duration = Duration::from_millis(700);

fn server(name: &str) -> ShmServer {
    let name = ShmName::new(&format!("test-{name}-{}", std::process::id())).unwrap();
    let times = ServiceTimes { silence: SILENCE, ..ServiceTimes::default() };
    ShmServer::start(&ShmServerConfig { times, ..ShmServerConfig::new(name, 64 << 20) }).unwrap()
}

fn connect(servers: &[&ShmServer], config: ConnectConfig) -> Arc<ShmCluster> {
    let names: Vec<&str> = servers.iter().map(|server| server.name().as_str()).collect();
    ShmCluster::connect_with(&names, config).unwrap()
}

/// One that says something in time.
fn lively(servers: &[&ShmServer]) -> Arc<ShmCluster> {
    connect(servers, ConnectConfig { ping: SILENCE / 10, ..ConnectConfig::default() })
}

/// One that never says that it is alive.
fn silent(servers: &[&ShmServer], temporary_indexes: bool) -> Arc<ShmCluster> {
    let never = Duration::from_secs(3600);
    connect(
        servers,
        ConnectConfig { ping: never, silence: never, temporary_indexes, ..ConnectConfig::default() },
    )
}

#[test]
fn what_a_silent_client_has_open_is_kept_until_its_memory_is_unmapped() {
    let (first, second) = (server("silent-0"), server("silent-1"));
    let stopped = silent(&[&first, &second], false);
    let node = stopped.admit().unwrap();
    let entry = block_on(stopped.control().create("a", "sherman", b"")).unwrap();
    let chunks =
        [0, 1].map(|server| block_on(stopped.control().chunk(ServerId(server), entry.id)).unwrap().bytes);
    eventually("it is silent", || {
        [&first, &second].iter().all(|server| server.nodes().iter().all(|node| node.silent))
    });
    let other = lively(&[&first, &second]);
    let in_use = ControlError::InUse { name: "a".into(), nodes: vec![node], connections: 1, silent: 1 };
    assert_eq!(block_on(other.control().drop_index("a")), Err(in_use.clone()));
    assert!(in_use.to_string().contains("let it go on, or kill it"), "{in_use}");
    for (server, kept) in [&first, &second].iter().zip(chunks) {
        assert_eq!((server.usage().chunk_bytes, server.usage().silent_bytes), (kept, kept));
        assert_eq!(server.nodes().iter().filter(|node| node.silent).count(), 1);
    }
    // It did not end well, but it has ended.
    drop(stopped);
    assert_eq!(block_on(other.control().drop_index("a")), Ok(chunks.iter().sum()));
    assert_eq!((first.nodes().len(), first.usage().silent_bytes), (1, 0));
    // Its locks may be there still; an index that is made now knows that they guard nothing of it.
    let entry = block_on(other.control().create("b", "sherman", b"")).unwrap();
    assert_eq!(*entry.dead_owners, [node]);
    let third = lively(&[&first, &second]);
    third.admit().unwrap();
    drop(third);
    let again = lively(&[&first, &second]);
    assert_eq!(block_on(again.control().open("b")).unwrap(), entry);
}

#[test]
fn a_temporary_index_of_a_silent_client_stays_until_its_memory_is_unmapped() {
    let (first, second) = (server("temporary-0"), server("temporary-1"));
    let stopped = silent(&[&first, &second], true);
    let entry = block_on(stopped.control().create("a", "sherman", b"")).unwrap();
    for server in [0, 1] {
        block_on(stopped.control().chunk(ServerId(server), entry.id)).unwrap();
    }
    let held = || [&first, &second].map(|server| server.usage().chunk_bytes > 0);
    eventually("it is silent", || {
        [&first, &second].iter().all(|server| server.nodes().iter().all(|node| node.silent))
    });
    assert_eq!((held(), first.usage().indexes), ([true; 2], 1));
    drop(stopped);
    assert_eq!((held(), first.usage().indexes), ([false; 2], 0));
}

#[test]
fn who_has_not_mapped_the_memory_gets_nothing_of_it() {
    let server = server("unmapped");
    let address = ServerAddress::Unix(server.name().socket_path());
    let control = RemoteControl::connect(&[address], &ConnectConfig::default()).unwrap();
    assert_eq!(block_on(control.create("a", "sherman", b"")), Err(ControlError::NotMapped));
    assert_eq!(block_on(control.open("a")), Err(ControlError::NotMapped));
}
