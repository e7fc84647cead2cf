//! Connections: a thread each, which carries bytes between a socket and a session and watches the time.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::ServiceTimes;
use super::core::ServiceCore;
use super::process::Process;
use super::session::{Close, Session};
use crate::clock::Clock;
use crate::control::stream::{Deadline, Stream};

/// Bytes that are read at once.
const READ_BYTES: usize = 16 << 10;
/// Bytes that are read and discarded from a client that is being sent away, so that the last reply can arrive.
const LINGER_BYTES: usize = 1 << 20;

/// A thread that finds out so long after a client's time that nothing has come was stopped itself, with its process or
/// its machine: then the client has its time once more, for it may have been stopped as well.
const OWN_STOP: Duration = Duration::from_millis(500);

/// Time for a client that has closed its connection to unmap the memory.
const UNMAPPED_WAIT: Duration = Duration::from_secs(2);
/// Pause between two checks that it has.
const UNMAPPED_PAUSE: Duration = Duration::from_millis(2);

/// All connections of a service.
pub(super) struct Connections {
    core: Arc<ServiceCore>,
    times: ServiceTimes,
    clock: Clock,
    list: Arc<List>,
    /// Set when all connections are to end.
    ending: AtomicBool,
}

/// The connections that have not ended. Not a part of [`Connections`]: a connection leaves the list after it has
/// dropped its share of these, and so of the memory.
#[derive(Default)]
struct List {
    open: Mutex<Open>,
    /// Notified when a connection has ended.
    ended: Condvar,
}

impl List {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().expect("nothing panics while it holds the list")
    }
}

#[derive(Default)]
struct Open {
    begun: u64,
    streams: BTreeMap<u64, Arc<Stream>>,
}

impl Connections {
    pub(super) fn new(core: Arc<ServiceCore>, times: ServiceTimes) -> Self {
        Connections { core, times, clock: Clock::new(), list: Arc::default(), ending: false.into() }
    }

    pub(super) fn count(&self) -> u32 {
        self.list.open().streams.len() as u32
    }

    /// Serves a new connection; one that is `refused` is only told how many connections there are.
    pub(super) fn start(this: &Arc<Self>, stream: Stream, refused: Option<u32>) -> io::Result<()> {
        let stream = Arc::new(stream);
        let number = {
            let mut open = this.list.open();
            open.begun += 1;
            let number = open.begun;
            open.streams.insert(number, Arc::clone(&stream));
            number
        };
        let listed = Listed { list: Arc::clone(&this.list), number };
        let place = Place { connections: Arc::clone(this), _listed: listed };
        let session = match refused {
            Some(max) => Session::refusing(&this.core, max),
            None => Session::new(&this.core),
        };
        // If no thread can be started, the closure is dropped, and with it the session and its place.
        let thread = std::thread::Builder::new().name("farwood-control".into());
        // Now, since its pid may be another process's later.
        let process = this.times.ends_silent.then(|| Process::of(&stream));
        thread.spawn(move || {
            // Moved as a whole, though only a part is used: its fields are dropped in their order.
            let place = place;
            let why = Carrier { connections: &place.connections, stream: &stream, process, session }.run();
            tracing::debug!(connection = number, %why, "a control connection has ended");
        })?;
        Ok(())
    }

    /// Ends all connections; waits for them, but not longer than `patience`. Those that have ended hold nothing of the
    /// service any more.
    pub(super) fn end(&self, patience: Duration) {
        self.ending.store(true, Ordering::Release);
        let open = self.list.open();
        open.streams.values().for_each(|stream| stream.shutdown(Shutdown::Both));
        let some_left = |open: &mut Open| !open.streams.is_empty();
        let waited = self.list.ended.wait_timeout_while(open, patience, some_left);
        let (open, waited) = waited.expect("nothing panics while it holds the list");
        if waited.timed_out() {
            tracing::warn!(connections = open.streams.len(), "connections have not ended in time");
        }
    }

    /// Waits until the memory of a client that has closed its connection is unmapped: of a process that ends, the
    /// kernel closes the files in no order. A client that is not done by then is silent, and dead as soon as the memory
    /// is unmapped.
    fn await_unmapped(&self, session: &Session) {
        let deadline = Deadline::after(&self.clock, UNMAPPED_WAIT);
        while session.may_unmap() && deadline.left().is_some() && !self.ending.load(Ordering::Acquire) {
            std::thread::park_timeout(UNMAPPED_PAUSE);
        }
    }
}

/// The share of the service that the thread of a connection has.
struct Place {
    connections: Arc<Connections>,
    // Fields are dropped in this order. Otherwise [`Connections::end`] could return, and the process end, while the
    // thread still drops the last share of the memory: the file of the region would stay.
    _listed: Listed,
}

/// A connection's place in the list, given up however its thread ends.
struct Listed {
    list: Arc<List>,
    number: u64,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.list.open().streams.remove(&self.number);
        self.list.ended.notify_all();
    }
}

/// Causes that end a connection.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error(transparent)]
    Close(#[from] Close),
    #[error("the client has closed it")]
    Closed,
    #[error("the client is silent, or has died: {0}")]
    Io(#[from] io::Error),
}

struct Carrier<'a> {
    connections: &'a Connections,
    stream: &'a Stream,
    /// The client's process, if it is to be ended when it is silent.
    process: Option<io::Result<Process>>,
    session: Session,
}

impl Carrier<'_> {
    fn run(mut self) -> End {
        let Err(end) = self.carry();
        // The client's chunks and ids are free from here on, before it is given time to read.
        let Carrier { stream, process, session, connections } = self;
        let is_over = match end {
            End::Closed => true,
            End::Io(_) => session.may_unmap() && process.is_some_and(end_silent),
            End::Close(_) => false,
        };
        if is_over {
            connections.await_unmapped(&session);
        }
        drop(session);
        if let End::Close(_) = end {
            linger(stream, &Deadline::after(&connections.clock, connections.times.linger));
        }
        stream.shutdown(Shutdown::Both);
        end
    }

    fn carry(&mut self) -> Result<Infallible, End> {
        let Connections { clock, times, .. } = self.connections;
        let (mut bytes, mut out) = (vec![0; READ_BYTES], Vec::new());
        let (mut patience, mut has_been_late) = (times.handshake, false);
        let mut deadline = Deadline::after(clock, patience);
        let mut answered = 0;
        loop {
            let count = match self.stream.read_until(&deadline, &mut bytes) {
                Ok(0) => return Err(End::Closed),
                Err(error)
                    if error.kind() == ErrorKind::TimedOut
                        && deadline.overdue() > OWN_STOP
                        && !has_been_late =>
                {
                    has_been_late = true;
                    deadline = Deadline::after(clock, patience);
                    continue;
                }
                read => read?,
            };
            let mut arrived = &bytes[..count];
            loop {
                let received = self.session.receive(arrived, &mut out);
                self.stream.write_until(&Deadline::after(clock, times.silence), &out)?;
                out.clear();
                received?;
                arrived = &[];
                if !self.session.pending() {
                    break;
                }
            }
            // Whole requests count, not bytes: an occasional half of a frame is no sign of life.
            if self.session.requests() > answered {
                answered = self.session.requests();
                (patience, has_been_late) = (times.silence, false);
                deadline = Deadline::after(clock, patience);
            }
        }
    }
}

/// Ends the process of a silent client; tells whether that is possible.
fn end_silent(process: io::Result<Process>) -> bool {
    match process.and_then(|process| process.end().map(|()| process)) {
        Ok(pid) => {
            tracing::warn!(%pid, "a client is silent, and has the memory mapped: its process is ended")
        }
        Err(error) => {
            tracing::warn!(%error, "a client is silent, and its process cannot be ended");
            return false;
        }
    }
    true
}

/// Waits until the client has closed its side: to close a socket with unread bytes resets the connection, and the
/// client might not see the last reply.
fn linger(stream: &Stream, deadline: &Deadline) {
    stream.shutdown(Shutdown::Write);
    let (mut bytes, mut read) = ([0; 4096], 0);
    while read < LINGER_BYTES {
        match stream.read_until(deadline, &mut bytes) {
            Ok(count) if count > 0 => read += count,
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::control::wire::Offer;
    use crate::mapped::line::LineMode;
    use crate::mapped::region::Region;
    use crate::memory::{MemoryServer, ServerParts};
    use crate::service::Served;

    fn core() -> Arc<ServiceCore> {
        let parts = ServerParts { locks: 1, device_bytes: 0, chunk_bytes: 4096 };
        let region = Arc::new(Region::anonymous(32 * 4096, LineMode::Auto).unwrap());
        let (memory, offer) = (MemoryServer::new(region, parts).unwrap(), Offer::Verbs);
        Arc::new(ServiceCore::new(Served { memory, instance: 1, offer, responder: None }))
    }

    fn eventually(what: &str, so: impl Fn() -> bool) {
        for _ in 0..30_000 {
            if so() {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        panic!("after 30 s it is still not so: {what}");
    }

    /// A server that had ended left its region behind: the process ended before the thread of a connection, which had
    /// left the list, had dropped the region.
    #[test]
    fn a_connection_is_on_the_list_as_long_as_it_holds_the_memory() {
        let connections = Arc::new(Connections::new(core(), ServiceTimes::default()));
        let (list, held) = (Arc::clone(&connections.list), Arc::downgrade(&connections));
        let (client, server) = UnixStream::pair().unwrap();
        Connections::start(&connections, Stream::Unix(server), None).unwrap();
        drop(connections);
        let open = list.open();
        // The thread cannot leave the list, and stops there.
        drop(client);
        eventually("the service is dropped", || held.strong_count() == 0);
        assert_eq!(open.streams.len(), 1);
        drop(open);
        eventually("it has left the list", || list.open().streams.is_empty());
    }
}
