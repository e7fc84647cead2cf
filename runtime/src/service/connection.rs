//! Connections: a thread each, which carries bytes between a socket and a session and watches the time.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::ServiceTimes;
use super::core::ServiceCore;
use super::session::{Close, Session};
use crate::clock::Clock;
use crate::control::stream::{Deadline, Stream};

/// Bytes that are read at once.
const READ_BYTES: usize = 16 << 10;
/// Bytes of a client that is being sent away, which are read and forgotten, so that the last reply can arrive.
const LINGER_BYTES: usize = 1 << 20;

/// For a client that has closed its connection to unmap the memory, and between two looks.
const UNMAPPED_WAIT: Duration = Duration::from_secs(2);
const UNMAPPED_PAUSE: Duration = Duration::from_millis(2);

/// All connections of a service.
pub(super) struct Connections {
    core: Arc<ServiceCore>,
    times: ServiceTimes,
    clock: Clock,
    open: Mutex<Open>,
    /// All are to end.
    ending: AtomicBool,
    /// Notified when a connection has ended.
    ended: Condvar,
}

#[derive(Default)]
struct Open {
    begun: u64,
    streams: BTreeMap<u64, Arc<Stream>>,
}

impl Connections {
    pub(super) fn new(core: Arc<ServiceCore>, times: ServiceTimes) -> Self {
        let (clock, open, ending, ended) = (Clock::new(), Mutex::default(), false.into(), Condvar::new());
        Connections { core, times, clock, open, ending, ended }
    }

    pub(super) fn count(&self) -> u32 {
        self.open().streams.len() as u32
    }

    /// Serves a new connection; one that is `refused` only hears how many there are.
    pub(super) fn start(this: &Arc<Self>, stream: Stream, refused: Option<u32>) -> io::Result<()> {
        let stream = Arc::new(stream);
        let number = {
            let mut open = this.open();
            open.begun += 1;
            let number = open.begun;
            open.streams.insert(number, Arc::clone(&stream));
            number
        };
        let listed = Listed { connections: Arc::clone(this), number };
        let session = match refused {
            Some(max) => Session::refusing(&this.core, max),
            None => Session::new(&this.core),
        };
        // If there is no thread to be had, the closure is dropped, and with it the session and its place.
        let thread = std::thread::Builder::new().name("farwood-control".into());
        thread.spawn(move || {
            let connections = &*listed.connections;
            let why = Carrier { connections, stream: &stream, session }.run();
            tracing::debug!(connection = number, %why, "a control connection has ended");
        })?;
        Ok(())
    }

    /// Ends all connections; waits for them, but not longer than `patience`.
    pub(super) fn end(&self, patience: Duration) {
        self.ending.store(true, Ordering::Release);
        let open = self.open();
        open.streams.values().for_each(|stream| stream.shutdown(Shutdown::Both));
        let some_left = |open: &mut Open| !open.streams.is_empty();
        let waited = self.ended.wait_timeout_while(open, patience, some_left);
        let (open, waited) = waited.expect("nothing panics while it holds the list");
        if waited.timed_out() {
            tracing::warn!(connections = open.streams.len(), "connections have not ended in time");
        }
    }

    /// Waits until the memory of a client that has closed its connection is unmapped: of a process that ends, the
    /// kernel closes the files in no order. Who is not done by then is silent, and dead as soon as it is.
    fn await_unmapped(&self, session: &Session) {
        let deadline = Deadline::after(&self.clock, UNMAPPED_WAIT);
        while session.is_mapped() && deadline.left().is_some() && !self.ending.load(Ordering::Acquire) {
            std::thread::park_timeout(UNMAPPED_PAUSE);
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().expect("nothing panics while it holds the list")
    }
}

/// A connection's place in the list, given up however its thread ends.
struct Listed {
    connections: Arc<Connections>,
    number: u64,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.connections.open().streams.remove(&self.number);
        self.connections.ended.notify_all();
    }
}

/// What ended a connection.
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
    session: Session,
}

impl Carrier<'_> {
    fn run(mut self) -> End {
        let Err(end) = self.carry();
        // What the client held is free from here on, before it is given time to read.
        let Carrier { stream, session, connections } = self;
        if matches!(end, End::Closed) {
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
        let mut deadline = Deadline::after(clock, times.handshake);
        let mut answered = 0;
        loop {
            let count = self.stream.read_until(&deadline, &mut bytes)?;
            if count == 0 {
                return Err(End::Closed);
            }
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
            // Whole requests count, not bytes: half a frame now and then is no sign of life.
            if self.session.requests() > answered {
                answered = self.session.requests();
                deadline = Deadline::after(clock, times.silence);
            }
        }
    }
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
