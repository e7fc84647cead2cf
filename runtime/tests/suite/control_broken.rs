//! Connections that break off between a client and a server that both live: a relay between them cuts them. The fate of
//! calls, and of clients that leave before the connection is resumed.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use farwood_runtime::control::wire::Offer;
use farwood_runtime::fabric::Admission;
use farwood_runtime::mapped::region::Region;
use farwood_runtime::{
    ConnectConfig, Control, ControlError, ListenAt, RemoteControl, ServerAddress, ServerId, Service,
    ServiceConfig, ShmName, ShmServer, ShmServerConfig,
};
use futures::executor::block_on;

use crate::control_kit::{Folder, eventually, served};

/// Messages of a handshake, greeting, `Hello` and `Join`: for each, a client waits for the answer.
const HANDSHAKE: usize = 3;

/// A relay between clients, which connect to `listener`, and a server.
struct Relay {
    listener: UnixListener,
    server: PathBuf,
}

/// One client's connection by way of the relay.
struct Relayed {
    client: UnixStream,
    server: UnixStream,
}

impl Relay {
    fn new(folder: &Folder, server: PathBuf) -> (Self, ServerAddress) {
        let path = folder.path("relay");
        let listener = UnixListener::bind(&path).unwrap();
        (Relay { listener, server }, ServerAddress::Unix(path))
    }

    fn accept(&self) -> Relayed {
        let (client, _) = self.listener.accept().unwrap();
        Relayed { client, server: UnixStream::connect(&self.server).unwrap() }
    }
}

impl Relayed {
    fn exchange(&mut self) {
        pass_on(&mut self.client, &mut self.server);
        pass_on(&mut self.server, &mut self.client);
    }

    /// Carries bytes both ways, until both sides have ended the connection.
    fn carry(mut self) {
        let (mut client, mut server) = (self.client.try_clone().unwrap(), self.server.try_clone().unwrap());
        let down = std::thread::spawn(move || while pass_on(&mut server, &mut client) {});
        while pass_on(&mut self.client, &mut self.server) {}
        drop(self.server.shutdown(Shutdown::Both));
        down.join().unwrap();
    }
}

fn pass_on(from: &mut UnixStream, to: &mut UnixStream) -> bool {
    let mut bytes = [0; 4096];
    match from.read(&mut bytes) {
        Ok(0) | Err(_) => false,
        Ok(len) => to.write_all(&bytes[..len]).is_ok(),
    }
}

/// Configures a client that sends nothing by itself, and waits for ever.
fn patient() -> ConnectConfig {
    let never = Duration::from_secs(3600);
    ConnectConfig { ping: never, silence: never, timeout: never, ..ConnectConfig::default() }
}

/// A client that has the memory mapped, and whose first connection is cut by `cut`. The next one is carried.
struct Resumed {
    server: ShmServer,
    control: Arc<RemoteControl>,
    _region: Region,
    relaying: JoinHandle<()>,
    _folder: Folder,
}

impl Resumed {
    fn after(test: &str, cut: impl FnOnce(Relayed) + Send + 'static) -> Self {
        let name = ShmName::new(&format!("test-{test}-{}", std::process::id())).unwrap();
        let server = ShmServer::start(&ShmServerConfig::new(name.clone(), 64 << 20)).unwrap();
        let folder = Folder::new();
        let (relay, address) = Relay::new(&folder, name.socket_path());
        let relaying = std::thread::spawn(move || {
            let mut first = relay.accept();
            (0..HANDSHAKE).for_each(|_| first.exchange());
            cut(first);
            relay.accept().carry();
        });
        let control = RemoteControl::connect(&[address], &patient()).unwrap();
        let welcome = control.welcome(ServerId(0));
        let Offer::Shm { path } = &welcome.offer else { panic!("shm") };
        let region = Region::open(path.as_ref(), welcome.instance).unwrap();
        region.claim(welcome.connection).unwrap();
        Resumed { server, control, _region: region, relaying, _folder: folder }
    }

    /// Checks that the client works, and ends it well.
    fn end(self) {
        let Resumed { server, control, relaying, .. } = self;
        assert!(block_on(control.create("a", "sherman", b"")).is_ok());
        assert!(!control.gone(ServerId(0)).load(Ordering::Acquire) && control.lost().is_empty());
        control.goodbye();
        drop(control);
        relaying.join().unwrap();
        eventually("it has left", || server.nodes().is_empty());
    }
}

#[test]
fn a_call_that_is_cut_off_says_so_and_the_next_one_is_answered() {
    let resumed = Resumed::after("cut-off", |mut first| {
        // The server gets the request, and the client no answer.
        pass_on(&mut first.client, &mut first.server);
    });
    let cut_off = Err(ControlError::BrokenOff { server: ServerId(0) });
    assert_eq!(block_on(resumed.control.list()), cut_off);
    assert_eq!(block_on(resumed.control.list()), Ok(vec![]));
    resumed.end();
}

/// The writing thread is the first to find that the connection has ended: the server cannot have got the request.
#[test]
fn a_call_that_could_not_be_sent_is_sent_when_the_connection_is_resumed() {
    let ((deaf, is_deaf), (mapped, is_mapped)) = (channel(), channel());
    let resumed = Resumed::after("unsent", move |first| {
        first.client.shutdown(Shutdown::Read).unwrap();
        deaf.send(()).unwrap();
        is_mapped.recv().unwrap();
        // Long enough that the client finds it by writing; if it does not, the answer does not change.
        std::thread::park_timeout(Duration::from_millis(300));
    });
    is_deaf.recv().unwrap();
    mapped.send(()).unwrap();
    assert_eq!(resumed.control.allocate_node_id(), Ok(1));
    resumed.end();
}

/// Makes a client whose connection is cut, and is being resumed by one on which nothing arrives: `leave` is to end
/// that. Yields what `leave` does.
fn leave_while_it_is_resumed<T: Send + 'static>(
    leave: impl FnOnce(Arc<RemoteControl>) -> T + Send + 'static,
) -> T {
    let folder = Folder::new();
    let at = ListenAt::Unix(folder.path("server"));
    let _service = Service::start(ServiceConfig::new(served(4), vec![at])).unwrap();
    let (relay, address) = Relay::new(&folder, folder.path("server"));
    let (resuming, is_resumed) = channel();
    let relaying: JoinHandle<()> = std::thread::spawn(move || {
        let mut cut = relay.accept();
        (0..HANDSHAKE).for_each(|_| cut.exchange());
        drop(cut);
        let (mut silent, _) = relay.listener.accept().unwrap();
        silent.read_exact(&mut [0; 16]).unwrap();
        resuming.send(()).unwrap();
        assert_eq!(silent.read(&mut [0; 16]).unwrap(), 0, "it is not resumed any more");
        relay.listener.set_nonblocking(true).unwrap();
        let again = relay.listener.accept().map(drop);
        assert_eq!(again.map_err(|error| error.kind()), Err(ErrorKind::WouldBlock), "nor once more");
    });
    let control = RemoteControl::connect(&[address], &patient()).unwrap();
    is_resumed.recv().unwrap();
    assert!(!control.gone(ServerId(0)).load(Ordering::Acquire), "it is not gone yet");
    let leaving = std::thread::spawn(move || leave(control));
    eventually("it has left", || leaving.is_finished() && relaying.is_finished());
    relaying.join().unwrap();
    leaving.join().unwrap()
}

#[test]
fn who_leaves_a_connection_that_is_being_resumed_does_not_wait_for_it() {
    leave_while_it_is_resumed(drop);
    leave_while_it_is_resumed(|control| control.goodbye());
    let asked = leave_while_it_is_resumed(|control| {
        let asked = control.list();
        control.goodbye();
        block_on(asked).map(drop)
    });
    assert_eq!(asked, Err(ControlError::ServerGone { server: ServerId(0) }));
}
