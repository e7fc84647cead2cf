//! The client's side of one connection: a thread that sends requests, and a ping when there are none, and one that
//! hands replies to those who wait for them. Nobody waits for ever: when the server is gone, every call ends.

use std::collections::VecDeque;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};

use futures::channel::oneshot;

use super::{ConnectConfig, ConnectError};
use crate::clock::Clock;
use crate::control::ControlError;
use crate::control::frame::{self, FrameBuffer};
use crate::control::stream::{Deadline, Stream};
use crate::control::wire::{Reply, Request};
use crate::pointer::ServerId;

const READ_BYTES: usize = 16 << 10;

/// What a server answered. Where it is [`ControlError::ServerGone`], nobody knows whether it did what it was asked.
pub(super) type Answered = Result<Reply, ControlError>;
/// Where an answer goes. Dropped without one, it says that the server is gone: so every call ends, whatever became of
/// the connection.
struct Take {
    server: ServerId,
    take: Option<Box<dyn FnOnce(Answered) + Send>>,
}

impl Take {
    fn answer(mut self, answer: Answered) {
        self.take_it(answer);
    }

    fn take_it(&mut self, answer: Answered) {
        if let Some(take) = self.take.take() {
            take(answer);
        }
    }
}

impl Drop for Take {
    fn drop(&mut self) {
        let server = self.server;
        self.take_it(Err(ControlError::ServerGone { server }));
    }
}

/// A connection to a memory server. It ends when it is dropped.
pub(super) struct Connection {
    server: ServerId,
    gone: Arc<AtomicBool>,
    /// Set when this side is about to end it: that the server then closes it is no event.
    leaving: Arc<AtomicBool>,
    calls: Sender<(Request, Take)>,
    stream: Arc<Stream>,
}

/// What the two threads share.
struct Line {
    server: ServerId,
    stream: Arc<Stream>,
    gone: Arc<AtomicBool>,
    leaving: Arc<AtomicBool>,
    config: ConnectConfig,
    clock: Clock,
    waiting: Mutex<Waiting>,
}

/// Requests that were sent and not answered, in their order.
#[derive(Default)]
struct Waiting {
    calls: VecDeque<(u32, Take)>,
    closed: bool,
}

impl Connection {
    /// Starts the threads. `next_number` is that of the next request.
    pub(super) fn start(
        server: ServerId,
        stream: Stream,
        next_number: u32,
        config: &ConnectConfig,
        clock: &Clock,
    ) -> Result<Self, ConnectError> {
        let (stream, gone, leaving) = (Arc::new(stream), Arc::default(), Arc::default());
        let (calls, to_send) = channel();
        let line = Arc::new(Line {
            server,
            stream: Arc::clone(&stream),
            gone: Arc::clone(&gone),
            leaving: Arc::clone(&leaving),
            config: config.clone(),
            clock: clock.clone(),
            waiting: Mutex::default(),
        });
        // Made first: if the second thread cannot be started, dropping it ends the first.
        let connection = Connection { server, gone, leaving, calls, stream };
        let failed = |cause: std::io::Error| ConnectError::Thread { cause: cause.to_string() };
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        let reading = Arc::clone(&line);
        thread("farwood-replies").spawn(move || reading.read()).map_err(failed)?;
        thread("farwood-calls").spawn(move || line.write(&to_send, next_number)).map_err(failed)?;
        Ok(connection)
    }

    /// Sends a request; `take` gets the answer, on a thread of the connection, or at once if the server is gone.
    pub(super) fn call(&self, request: Request, take: impl FnOnce(Answered) + Send + 'static) {
        let take = Take { server: self.server, take: Some(Box::new(take)) };
        // What is not sent is dropped, here or on its way to the writing thread, and is answered by that.
        let sent = if self.is_gone() { None } else { self.calls.send((request, take)).ok() };
        if sent.is_none() {
            tracing::debug!(server = self.server.0, "a call to a server that is gone");
        }
    }

    /// Sends a request; yields its answer.
    pub(super) fn ask(&self, request: Request) -> impl Future<Output = Answered> + Send + 'static + use<> {
        let (take, answered) = oneshot::channel();
        self.call(request, move |answer| {
            // Nobody waits any more if the future was dropped.
            let _unheard = take.send(answer);
        });
        let server = self.server;
        async move { answered.await.unwrap_or(Err(ControlError::ServerGone { server })) }
    }

    /// Sends a request; yields where its answer will be.
    pub(super) fn ask_blocking(&self, request: Request) -> Receiver<Answered> {
        let (take, answered) = channel();
        self.call(request, move |answer| {
            let _unheard = take.send(answer);
        });
        answered
    }

    /// Blocks until an answer is there, which takes no longer than the patience of the connection.
    pub(super) fn wait(&self, answered: &Receiver<Answered>) -> Answered {
        answered.recv().unwrap_or(Err(ControlError::ServerGone { server: self.server }))
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Whether the server ended the connection, or is silent: not this side.
    pub(super) fn is_lost(&self) -> bool {
        self.is_gone() && !self.leaving.load(Ordering::Acquire)
    }

    /// This side is about to end it, but for what is said before.
    pub(super) fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    pub(super) fn gone(&self) -> &Arc<AtomicBool> {
        &self.gone
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.leave();
        self.gone.store(true, Ordering::Release);
        self.stream.shutdown(Shutdown::Both);
    }
}

impl Line {
    fn write(&self, to_send: &Receiver<(Request, Take)>, mut number: u32) {
        let mut bytes = Vec::new();
        loop {
            let (request, take) = match to_send.recv_timeout(self.config.ping) {
                Ok(call) => call,
                Err(RecvTimeoutError::Timeout) => (Request::Ping, Take { server: self.server, take: None }),
                Err(RecvTimeoutError::Disconnected) => return self.close("the connection was dropped"),
            };
            {
                let mut waiting = self.waiting();
                if waiting.closed {
                    return;
                }
                waiting.calls.push_back((number, take));
            }
            bytes.clear();
            frame::put(&(number, request), &mut bytes);
            number = number.wrapping_add(1);
            let deadline = Deadline::after(&self.clock, self.config.silence);
            if let Err(error) = self.stream.write_until(&deadline, &bytes) {
                // The reader may still find the last reply, which says why.
                tracing::debug!(server = self.server.0, %error, "a request could not be sent");
                return self.stream.shutdown(Shutdown::Write);
            }
        }
    }

    fn read(&self) {
        let (mut arrived, mut bytes) = (FrameBuffer::default(), vec![0; READ_BYTES]);
        loop {
            // There is always something to come: a ping is answered.
            let deadline = Deadline::after(&self.clock, self.config.silence);
            match self.stream.read_until(&deadline, &mut bytes) {
                Ok(0) => return self.close("it closed the connection"),
                Ok(count) => arrived.extend(&bytes[..count]),
                Err(error) => return self.close(&error.to_string()),
            }
            loop {
                match arrived.next_frame() {
                    Ok(None) => break,
                    Ok(Some(frame)) if self.deliver(frame) => {}
                    _ => return self.close("its replies break the protocol"),
                }
            }
        }
    }

    /// Whether that was the reply that was to come.
    fn deliver(&self, frame: &[u8]) -> bool {
        let Ok((number, answer)) = frame::parse::<(u32, Answered)>(frame) else { return false };
        let next = self.waiting().calls.pop_front();
        let expected = next.filter(|(expected, _)| *expected == number);
        expected.map(|(_, take)| take.answer(answer)).is_some()
    }

    fn close(&self, why: &str) {
        let left = {
            let mut waiting = self.waiting();
            if std::mem::replace(&mut waiting.closed, true) {
                return;
            }
            std::mem::take(&mut waiting.calls)
        };
        let leaving = self.leaving.load(Ordering::Acquire);
        if !self.gone.swap(true, Ordering::AcqRel) && !leaving {
            tracing::warn!(server = self.server.0, calls = left.len(), why, "a memory server is gone");
        }
        self.stream.shutdown(Shutdown::Both);
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("nothing panics while it holds the calls")
    }
}
