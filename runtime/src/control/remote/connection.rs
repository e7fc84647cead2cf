//! The client's side of one connection: a thread that sends requests, and regular signs of life, and one that hands
//! replies to the callers. When the connection ends, the latter resumes it by another one, if there is a way
//! back. Every call ends: with an answer, when the connection is resumed, or when the server is gone.
//!
//! ```text
//!    up ──> broken ──> up        resumed: what was under way has an unknown outcome, what was begun since is sent
//!            └───────> closed    gone, or left by this side
//! ```

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use futures::channel::oneshot;

use super::dial::NEXT_NUMBER;
use super::epochs::ProcessEpochs;
use super::resume::WayBack;
use super::{ConnectConfig, ConnectError};
use crate::clock::Clock;
use crate::control::ControlError;
use crate::control::frame::{self, FrameBuffer};
use crate::control::stream::{Deadline, Stream};
use crate::control::wire::{Reply, Request};
use crate::pointer::ServerId;

const READ_BYTES: usize = 16 << 10;

/// The answer of a server. After [`ControlError::ServerGone`] or [`ControlError::BrokenOff`] the server may or may not
/// have done what it was asked.
pub(super) type Answered = Result<Reply, ControlError>;
/// The receiver of an answer. Dropped without one, it reports that the server is gone: so every call ends, whatever
/// became of the connection.
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

/// A request on its way to be sent.
type Call = (Request, Take);

/// A connection to a memory server. It ends when it is dropped.
pub(super) struct Connection {
    line: Arc<Line>,
    calls: Sender<Call>,
}

/// State that the two threads share.
struct Line {
    server: ServerId,
    gone: Arc<AtomicBool>,
    config: ConnectConfig,
    clock: Clock,
    way_back: Option<WayBack>,
    /// The epochs that signs of life tell server 0.
    beats: Option<Arc<ProcessEpochs>>,
    state: Mutex<State>,
    /// Notified when the line is up or closed, and when a request was written.
    changed: Condvar,
}

struct State {
    phase: Phase,
    /// Stream that requests are sent over; while the line is broken, the stream by which it is to be resumed.
    stream: Arc<Stream>,
    /// Number of the next request over this stream.
    next_number: u32,
    /// Requests that were sent and not answered, in their order.
    waiting: VecDeque<(u32, Take)>,
    /// Set while the last one of them is being written.
    writing: bool,
    /// Set when this side is about to end the connection: that the server then closes it is no event, and it is not
    /// resumed.
    leaving: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Up,
    Broken,
    Closed,
}

impl Connection {
    /// Starts the threads.
    pub(super) fn start(
        server: ServerId,
        (stream, way_back): (Stream, Option<WayBack>),
        beats: Option<Arc<ProcessEpochs>>,
        config: &ConnectConfig,
        clock: &Clock,
    ) -> Result<Self, ConnectError> {
        let (calls, to_send) = channel();
        let (stream, waiting) = (Arc::new(stream), VecDeque::new());
        let (phase, next_number, writing, leaving) = (Phase::Up, NEXT_NUMBER, false, false);
        let line = Arc::new(Line {
            server,
            gone: Arc::default(),
            config: config.clone(),
            clock: clock.clone(),
            way_back,
            beats,
            state: Mutex::new(State { phase, stream, next_number, waiting, writing, leaving }),
            changed: Condvar::new(),
        });
        // Made first: if the second thread cannot be started, dropping it ends the first.
        let connection = Connection { line: Arc::clone(&line), calls };
        let failed = |cause: io::Error| ConnectError::Thread { cause: cause.to_string() };
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        let reading = Arc::clone(&line);
        thread("farwood-replies").spawn(move || reading.read()).map_err(failed)?;
        thread("farwood-calls").spawn(move || line.write(&to_send)).map_err(failed)?;
        Ok(connection)
    }

    /// Sends a request; `take` gets the answer, on a thread of the connection, or at once if the server is gone.
    pub(super) fn call(&self, request: Request, take: impl FnOnce(Answered) + Send + 'static) {
        let server = self.line.server;
        let take = Take { server, take: Some(Box::new(take)) };
        // A request that is not sent is dropped, here or on its way to the writing thread, and dropping it answers it.
        let sent = if self.is_gone() { None } else { self.calls.send((request, take)).ok() };
        if sent.is_none() {
            tracing::debug!(server = server.0, "a call to a server that is gone");
        }
    }

    /// Sends a request; yields its answer.
    pub(super) fn ask(&self, request: Request) -> impl Future<Output = Answered> + Send + 'static + use<> {
        let (take, answered) = oneshot::channel();
        self.call(request, move |answer| {
            // The caller has gone if the future was dropped.
            let _unheard = take.send(answer);
        });
        let server = self.line.server;
        async move { answered.await.unwrap_or(Err(ControlError::ServerGone { server })) }
    }

    /// Sends a request; yields the channel of its answer.
    pub(super) fn ask_blocking(&self, request: Request) -> Receiver<Answered> {
        let (take, answered) = channel();
        self.call(request, move |answer| {
            let _unheard = take.send(answer);
        });
        answered
    }

    /// Blocks until an answer is there, which takes no longer than the patience of the connection.
    pub(super) fn wait(&self, answered: &Receiver<Answered>) -> Answered {
        answered.recv().unwrap_or(Err(ControlError::ServerGone { server: self.line.server }))
    }

    pub(super) fn is_gone(&self) -> bool {
        self.line.gone.load(Ordering::Acquire)
    }

    /// Tells whether the server, not this side, ended the connection or is silent.
    pub(super) fn is_lost(&self) -> bool {
        self.is_gone() && !self.line.state().leaving
    }

    /// Notes that this side is about to end the connection, after what it still has to say. A connection that is being
    /// resumed ends at once.
    pub(super) fn leave(&self) {
        let broken = {
            let mut state = self.line.state();
            state.leaving = true;
            state.phase == Phase::Broken
        };
        if broken {
            self.line.close("this side leaves");
        }
    }

    pub(super) fn gone(&self) -> &Arc<AtomicBool> {
        &self.line.gone
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.leave();
        self.line.close("the connection was dropped");
    }
}

impl Line {
    fn write(&self, to_send: &Receiver<Call>) {
        let (mut unsent, mut beaten_ns) = (None, self.clock.now());
        loop {
            // Also between requests: the others wait for what it tells.
            let beaten_for = Duration::from_nanos(self.clock.now().saturating_sub(beaten_ns));
            let left = self.interval().saturating_sub(beaten_for);
            let next = match unsent.take() {
                None if left.is_zero() => Err(RecvTimeoutError::Timeout),
                None => to_send.recv_timeout(left),
                Some(call) => Ok(call),
            };
            let call = match next {
                Ok(call) => call,
                Err(RecvTimeoutError::Timeout) => {
                    beaten_ns = self.clock.now();
                    self.beat()
                }
                Err(RecvTimeoutError::Disconnected) => return self.close("the connection was dropped"),
            };
            match self.send(call) {
                Some(Ok(())) => {}
                Some(Err(call)) => unsent = Some(call),
                None => return,
            }
        }
    }

    fn interval(&self) -> Duration {
        let usual = self.config.ping;
        self.beats.as_ref().map_or(usual, |beats| beats.interval(usual))
    }

    /// Makes a sign of life.
    fn beat(&self) -> Call {
        let server = self.server;
        match &self.beats {
            None => (Request::Ping, Take { server, take: None }),
            Some(beats) => {
                let heard = Arc::clone(beats);
                let hear = move |answer: Answered| answer.iter().for_each(|reply| heard.hear(reply));
                (beats.beat(), Take { server, take: Some(Box::new(hear)) })
            }
        }
    }

    /// Sends a request as soon as the line is up. Yields it if the server has not got the whole of it, and nothing if
    /// the line is closed.
    fn send(&self, (request, take): Call) -> Option<Result<(), Call>> {
        let (number, stream) = {
            let mut state = self.when(|state| state.phase != Phase::Broken);
            if state.phase == Phase::Closed {
                return None;
            }
            let number = state.next_number;
            state.next_number = number.wrapping_add(1);
            state.waiting.push_back((number, take));
            state.writing = true;
            (number, Arc::clone(&state.stream))
        };
        let mut bytes = Vec::new();
        frame::put(&(number, &request), &mut bytes);
        let deadline = Deadline::after(&self.clock, self.config.silence);
        let sent = stream.write_until(&deadline, &bytes);
        let mut state = self.state();
        state.writing = false;
        self.changed.notify_all();
        let Err(error) = sent else { return Some(Ok(())) };
        tracing::debug!(server = self.server.0, %error, "a request could not be sent");
        // The reader may still find the last reply, which says why.
        stream.shutdown(Shutdown::Write);
        if state.phase == Phase::Closed {
            return None;
        }
        state.phase = Phase::Broken;
        match state.waiting.pop_back() {
            Some((last, take)) if last == number => Some(Err((request, take))),
            // A server that answers a part of a request has answered it.
            answered => {
                state.waiting.extend(answered);
                Some(Ok(()))
            }
        }
    }

    fn read(&self) {
        let mut stream = Arc::clone(&self.state().stream);
        loop {
            let Err(why) = self.take_replies(&stream);
            tracing::debug!(server = self.server.0, %why, "a control connection has ended");
            match self.resume(&stream, &why) {
                Some(resumed) => stream = resumed,
                None => return self.close(&why.to_string()),
            }
        }
    }

    /// Yields why no more replies come; `InvalidData` if the server does not keep to the protocol.
    fn take_replies(&self, stream: &Stream) -> io::Result<Infallible> {
        let (mut arrived, mut bytes) = (FrameBuffer::default(), vec![0; READ_BYTES]);
        loop {
            // There is always something to come: a ping is answered.
            let deadline = Deadline::after(&self.clock, self.config.silence);
            match stream.read_until(&deadline, &mut bytes)? {
                0 => return Err(io::Error::new(ErrorKind::UnexpectedEof, "it closed the connection")),
                count => arrived.extend(&bytes[..count]),
            }
            loop {
                match arrived.next_frame() {
                    Ok(None) => break,
                    Ok(Some(frame)) if self.deliver(frame) => {}
                    _ => {
                        return Err(io::Error::new(ErrorKind::InvalidData, "its replies break the protocol"));
                    }
                }
            }
        }
    }

    /// Hands a reply to its caller; tells whether it was the reply that was to come.
    fn deliver(&self, frame: &[u8]) -> bool {
        let Ok((number, answer)) = frame::parse::<(u32, Answered)>(frame) else { return false };
        let next = self.state().waiting.pop_front();
        let expected = next.filter(|(expected, _)| *expected == number);
        expected.map(|(_, take)| take.answer(answer)).is_some()
    }

    /// Resumes by another connection, if there is a way back to the server, and the server permits it. Yields the
    /// stream by which replies come from then on.
    fn resume(&self, ended: &Stream, why: &io::Error) -> Option<Arc<Stream>> {
        let way_back = self.way_back.as_ref().filter(|_| why.kind() != ErrorKind::InvalidData)?;
        self.break_off(ended);
        let note =
            |error: &ConnectError| tracing::debug!(server = self.server.0, %error, "it was not resumed");
        let deadline = Deadline::after(&self.clock, self.config.timeout.min(self.config.silence));
        drop(self.broken()?);
        let stream = Arc::new(way_back.connect(&deadline).inspect_err(note).ok()?);
        // From here on [`Line::close`] ends this one.
        self.broken()?.stream = Arc::clone(&stream);
        let next_number = way_back.resume(&stream, &deadline).inspect_err(note).ok()?;
        let unanswered = {
            let mut state = self.broken()?;
            (state.phase, state.next_number) = (Phase::Up, next_number);
            std::mem::take(&mut state.waiting)
        };
        self.changed.notify_all();
        let (server, calls) = (self.server, unanswered.len());
        let silent = "this process was silent for too long, and goes on: its connection to a memory server was resumed";
        tracing::warn!(server = server.0, calls, %why, "{silent}");
        unanswered.into_iter().for_each(|(_, take)| take.answer(Err(ControlError::BrokenOff { server })));
        Some(stream)
    }

    /// Ensures that nothing is sent over the line before it is up again.
    fn break_off(&self, ended: &Stream) {
        {
            let mut state = self.state();
            if state.phase == Phase::Up {
                state.phase = Phase::Broken;
            }
        }
        // A write under way ends by this, as a failure or not.
        ended.shutdown(Shutdown::Both);
        drop(self.when(|state| !state.writing));
    }

    /// Locks the state, if the line is still to be resumed.
    fn broken(&self) -> Option<MutexGuard<'_, State>> {
        Some(self.state()).filter(|state| state.phase == Phase::Broken && !state.leaving)
    }

    fn close(&self, why: &str) {
        let (left, stream, leaving) = {
            let mut state = self.state();
            if state.phase == Phase::Closed {
                return;
            }
            state.phase = Phase::Closed;
            (std::mem::take(&mut state.waiting), Arc::clone(&state.stream), state.leaving)
        };
        self.changed.notify_all();
        if !self.gone.swap(true, Ordering::AcqRel) && !leaving {
            tracing::warn!(server = self.server.0, calls = left.len(), why, "a memory server is gone");
        }
        stream.shutdown(Shutdown::Both);
    }

    fn when(&self, so: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let state = self.changed.wait_while(self.state(), |state| !so(state));
        state.expect("nothing panics while it holds the state")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds the state")
    }
}
