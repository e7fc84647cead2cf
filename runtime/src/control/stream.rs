//! One connection, over a Unix or a TCP socket: blocking calls, each with a deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::clock::Clock;

/// A connected socket. Two threads may read and write it at the same time.
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// A point in time by which something has to be done.
#[derive(Clone)]
pub(crate) struct Deadline {
    clock: Clock,
    at_ns: u64,
}

impl Deadline {
    /// Makes the deadline at `span` from now.
    pub(crate) fn after(clock: &Clock, span: Duration) -> Self {
        let span_ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Deadline { clock: clock.clone(), at_ns: clock.now().saturating_add(span_ns) }
    }

    /// Returns the time that is left, if any.
    pub(crate) fn left(&self) -> Option<Duration> {
        let left_ns = self.at_ns.saturating_sub(self.clock.now());
        (left_ns > 0).then(|| Duration::from_nanos(left_ns))
    }

    /// Returns the time since then, if it is over.
    pub(crate) fn overdue(&self) -> Duration {
        Duration::from_nanos(self.clock.now().saturating_sub(self.at_ns))
    }

    /// Returns the time that is left, but at least the shortest that the system can wait; a shorter one would be
    /// rounded to "for ever".
    fn left_to_wait(&self) -> Duration {
        self.left().unwrap_or_default().max(Duration::from_micros(1))
    }

    fn left_or_timed_out(&self) -> io::Result<Duration> {
        self.left().ok_or(ErrorKind::TimedOut)?;
        Ok(self.left_to_wait())
    }
}

impl Stream {
    /// Reads the bytes that are there, at least one. `Ok(0)` is the end of the stream.
    ///
    /// Bytes that have arrived are read even after the deadline: it may be this process that was stopped meanwhile.
    ///
    /// # Errors
    /// `TimedOut` if nothing comes by the deadline.
    pub(crate) fn read_until(&self, deadline: &Deadline, to: &mut [u8]) -> io::Result<usize> {
        loop {
            let left = Some(deadline.left_to_wait());
            let read = match self {
                Stream::Unix(socket) => socket.set_read_timeout(left).and_then(|()| (&*socket).read(to)),
                Stream::Tcp(socket) => socket.set_read_timeout(left).and_then(|()| (&*socket).read(to)),
            };
            match read {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_retry(&error) => {
                    deadline.left_or_timed_out()?;
                }
                other => return other,
            }
        }
    }

    /// Writes all bytes of `from`.
    ///
    /// # Errors
    /// `TimedOut` if the other side has not taken it by the deadline.
    pub(crate) fn write_until(&self, deadline: &Deadline, mut from: &[u8]) -> io::Result<()> {
        while !from.is_empty() {
            let left = Some(deadline.left_or_timed_out()?);
            let written = match self {
                Stream::Unix(socket) => socket.set_write_timeout(left).and_then(|()| (&*socket).write(from)),
                Stream::Tcp(socket) => socket.set_write_timeout(left).and_then(|()| (&*socket).write(from)),
            };
            match written {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => from = &from[count..],
                Err(error) if is_retry(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Ends one or both directions: threads that wait for them return. Does nothing to a socket that is closed already.
    pub(crate) fn shutdown(&self, what: Shutdown) {
        let ended = match self {
            Stream::Unix(socket) => socket.shutdown(what),
            Stream::Tcp(socket) => socket.shutdown(what),
        };
        if let Err(error) = ended {
            tracing::trace!(%error, "the other side has closed the connection before");
        }
    }
}

/// Tells whether to try again: a timeout of the socket is no error before the deadline, which the next round checks.
fn is_retry(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_arrived_is_read_also_when_the_time_is_up() {
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        let (over, ours) = (Deadline::after(&Clock::new(), Duration::ZERO), Stream::Unix(ours));
        let read = || ours.read_until(&over, &mut [0; 16]).map_err(|error| error.kind());
        assert_eq!(read(), Err(ErrorKind::TimedOut));
        theirs.write_all(b"pong").unwrap();
        assert_eq!(read(), Ok(4));
        drop(theirs);
        assert_eq!(read(), Ok(0));
    }
}
