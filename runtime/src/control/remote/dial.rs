//! Dialling a memory server: a connected socket, the greetings, and the server's description of itself. Blocking, with
//! a deadline.

use std::io::{self, ErrorKind};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::connection::Answered;
use super::{ConnectConfig, ConnectError};
use crate::clock::Clock;
use crate::control::ServerAddress;
use crate::control::frame::{self, FrameBuffer};
use crate::control::greeting::{self, GREETING_BYTES, GreetingError, VERSION};
use crate::control::stream::{Deadline, Stream};
use crate::control::wire::{OfferKind, Reply, Request, Welcome, WordRange};

/// End of the largest region: offsets have 48 bits.
const REGION_BYTES_MAX: u64 = 1 << 48;

/// A connection that has been greeted and welcomed. The next request has the number [`NEXT_NUMBER`].
pub(super) struct Dialled {
    pub(super) stream: Stream,
    pub(super) welcome: Welcome,
}

/// The number of the request that follows `Hello`.
pub(super) const NEXT_NUMBER: u32 = 1;

/// Dials all servers at the same time. A thread that hangs in the resolver is left behind; it ends when the resolver
/// does.
pub(super) fn dial_all(
    addresses: &[ServerAddress],
    config: &ConnectConfig,
    clock: &Clock,
) -> Result<Vec<Dialled>, ConnectError> {
    let deadline = Deadline::after(clock, config.timeout);
    let (ready, results) = channel();
    for (i, address) in addresses.iter().enumerate() {
        let (address, asked) = (address.clone(), config.fabric);
        let (deadline, ready) = (deadline.clone(), ready.clone());
        let thread = std::thread::Builder::new().name("farwood-dial".into());
        let dialling = thread.spawn(move || {
            // The receiver is gone if another server has failed.
            let _unheard = ready.send((i, dial(&address, asked, &deadline)));
        });
        dialling.map_err(|cause| ConnectError::Thread { cause: cause.to_string() })?;
    }
    drop(ready);
    let mut dialled: Vec<Option<Dialled>> = addresses.iter().map(|_| None).collect();
    while let Some(missing) = dialled.iter().position(Option::is_none) {
        // A little more than the deadline of the threads, whose errors say more.
        let left = deadline.left().unwrap_or_default() + Duration::from_millis(100);
        match results.recv_timeout(left) {
            Ok((i, result)) => dialled[i] = Some(result?),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                return Err(ConnectError::Timeout { address: addresses[missing].clone() });
            }
        }
    }
    Ok(dialled.into_iter().flatten().collect())
}

/// Connects to a server and asks for its description.
pub(super) fn dial(
    address: &ServerAddress,
    asked: Option<OfferKind>,
    deadline: &Deadline,
) -> Result<Dialled, ConnectError> {
    let stream = connect(address, deadline)?;
    let welcome = hello(&stream, address, deadline)?;
    let offered = welcome.offer.kind();
    match asked.filter(|asked| *asked != offered) {
        Some(asked) => Err(ConnectError::Fabric { address: address.clone(), offered, asked }),
        None => Ok(Dialled { stream, welcome }),
    }
}

/// Connects to a server.
pub(super) fn connect(address: &ServerAddress, deadline: &Deadline) -> Result<Stream, ConnectError> {
    match address {
        ServerAddress::Unix(path) => dial_unix(path),
        ServerAddress::Tcp(host) => dial_tcp(address, host, deadline),
    }
}

/// Exchanges greetings over a new connection, and asks for the server's description.
pub(super) fn hello(
    stream: &Stream,
    address: &ServerAddress,
    deadline: &Deadline,
) -> Result<Welcome, ConnectError> {
    greet(stream, address, deadline)?;
    let welcome = match ask(stream, address, (0, Request::Hello), deadline)? {
        Ok(Reply::Welcome(welcome)) => welcome,
        Ok(_) => return Err(ConnectError::NotFarwood { address: address.clone() }),
        Err(cause) => return Err(ConnectError::Refused { address: address.clone(), cause }),
    };
    check_welcome(&welcome).map_err(|what| ConnectError::Welcome { address: address.clone(), what })?;
    Ok(welcome)
}

/// Sends a request over a connection where no other is under way; yields the answer.
pub(super) fn ask(
    stream: &Stream,
    address: &ServerAddress,
    (number, request): (u32, Request),
    deadline: &Deadline,
) -> Result<Answered, ConnectError> {
    let mut bytes = Vec::new();
    frame::put(&(number, request), &mut bytes);
    // A server that refuses may have closed its side: its last words are still to be read.
    let sent = stream.write_until(deadline, &bytes);
    match read_reply(stream, address, number, deadline) {
        Err(_) if sent.is_err() => Err(closed(address)),
        other => other,
    }
}

fn dial_unix(path: &Path) -> Result<Stream, ConnectError> {
    // std has no deadline for this. It waits only while very many others are not yet accepted.
    let connected = UnixStream::connect(path);
    connected.map(Stream::Unix).map_err(|error| match error.kind() {
        ErrorKind::NotFound => ConnectError::NoSocket { path: path.into() },
        _ => refused(&ServerAddress::Unix(path.into()), &error),
    })
}

fn dial_tcp(address: &ServerAddress, host: &str, deadline: &Deadline) -> Result<Stream, ConnectError> {
    let unresolved =
        |error: io::Error| ConnectError::Resolve { address: address.clone(), cause: error.to_string() };
    let mut last = ErrorKind::NotFound.into();
    for resolved in host.to_socket_addrs().map_err(unresolved)? {
        let Some(left) = deadline.left() else {
            return Err(ConnectError::Timeout { address: address.clone() });
        };
        match TcpStream::connect_timeout(&resolved, left) {
            Ok(socket) => {
                socket.set_nodelay(true).map_err(|error| refused(address, &error))?;
                return Ok(Stream::Tcp(socket));
            }
            Err(error) => last = error,
        }
    }
    Err(refused(address, &last))
}

fn greet(stream: &Stream, address: &ServerAddress, deadline: &Deadline) -> Result<(), ConnectError> {
    // If this fails, reading says more about it.
    let sent = stream.write_until(deadline, &greeting::greeting());
    let (mut theirs, mut have) = ([0; GREETING_BYTES], 0);
    while have < GREETING_BYTES {
        match stream.read_until(deadline, &mut theirs[have..]) {
            Ok(0) if have > 0 => return Err(ConnectError::NotFarwood { address: address.clone() }),
            Ok(0) => return Err(closed(address)),
            Ok(count) => have += count,
            Err(error) => return Err(refused(address, &error)),
        }
    }
    match greeting::check(&theirs) {
        Err(GreetingError::NotFarwood) => Err(ConnectError::NotFarwood { address: address.clone() }),
        Err(GreetingError::Version { theirs }) => {
            Err(ConnectError::Version { address: address.clone(), theirs, ours: VERSION })
        }
        Ok(()) => sent.map_err(|error| refused(address, &error)),
    }
}

/// Reads a reply. Nothing follows it before the next request.
fn read_reply(
    stream: &Stream,
    address: &ServerAddress,
    number: u32,
    deadline: &Deadline,
) -> Result<Answered, ConnectError> {
    let not_farwood = || ConnectError::NotFarwood { address: address.clone() };
    let (mut arrived, mut bytes) = (FrameBuffer::default(), [0; 4096]);
    loop {
        match stream.read_until(deadline, &mut bytes) {
            Ok(0) => return Err(closed(address)),
            Ok(count) => arrived.extend(&bytes[..count]),
            Err(error) => return Err(refused(address, &error)),
        }
        let Some(frame) = arrived.next_frame().map_err(|_| not_farwood())? else { continue };
        return match frame::parse::<(u32, Answered)>(frame) {
            Ok((found, answer)) if found == number => Ok(answer),
            _ => Err(not_farwood()),
        };
    }
}

/// Checks that everything from which addresses are made later lies inside the region.
fn check_welcome(welcome: &Welcome) -> Result<(), &'static str> {
    let Welcome { region_bytes, locks, device_locks, chunk_bytes, .. } = welcome;
    if !(1..=REGION_BYTES_MAX).contains(region_bytes) {
        return Err("the size of its region");
    }
    let inside = |words: &WordRange| {
        let end = words.count.checked_mul(8).and_then(|bytes| bytes.checked_add(words.offset));
        words.offset.is_multiple_of(8) && words.count > 0 && end.is_some_and(|end| end <= *region_bytes)
    };
    if !inside(locks) || !device_locks.as_ref().is_none_or(inside) {
        return Err("where its locks are");
    }
    if *chunk_bytes == 0 || !chunk_bytes.is_multiple_of(4096) || chunk_bytes > region_bytes {
        return Err("the size of its chunks");
    }
    Ok(())
}

fn closed(address: &ServerAddress) -> ConnectError {
    ConnectError::Closed { address: address.clone() }
}

fn refused(address: &ServerAddress, error: &io::Error) -> ConnectError {
    let address = address.clone();
    match error.kind() {
        ErrorKind::ConnectionRefused => ConnectError::NotListening { address },
        ErrorKind::PermissionDenied => ConnectError::Permission { address },
        ErrorKind::TimedOut | ErrorKind::WouldBlock => ConnectError::Timeout { address },
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => ConnectError::Closed { address },
        _ => ConnectError::Io { address, cause: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::wire::Offer;

    #[test]
    fn takes_no_impossible_welcome() {
        let good = Welcome {
            instance: 1,
            connection: 1,
            pass: 1,
            version: "1".into(),
            offer: Offer::Verbs,
            region_bytes: 1 << 20,
            locks: WordRange { offset: 4096, count: 16 },
            device_locks: None,
            chunk_bytes: 65536,
        };
        assert_eq!(check_welcome(&good), Ok(()));
        let locks = |offset, count| WordRange { offset, count };
        let bad = [
            Welcome { region_bytes: 0, ..good.clone() },
            Welcome { region_bytes: (1 << 48) + 1, ..good.clone() },
            Welcome { locks: locks(4097, 16), ..good.clone() },
            Welcome { locks: locks(4096, 0), ..good.clone() },
            Welcome { locks: locks((1 << 20) - 8, 2), ..good.clone() },
            Welcome { locks: locks(4096, u64::MAX), ..good.clone() },
            Welcome { locks: locks(u64::MAX - 7, 1), ..good.clone() },
            Welcome { device_locks: Some(locks(1 << 20, 1)), ..good.clone() },
            Welcome { chunk_bytes: 0, ..good.clone() },
            Welcome { chunk_bytes: 4097, ..good.clone() },
            Welcome { chunk_bytes: 2 << 20, ..good.clone() },
        ];
        for welcome in bad {
            assert!(check_welcome(&welcome).is_err(), "{welcome:?}");
        }
    }
}
