//! One client's conversation with a control service, without any I/O: bytes in, bytes out. It never panics, whatever
//! arrives, and a request without the right leaves the shared state as it was.
//!
//! ```text
//!  greeting --> Hello --> Join or Resume --> requests, one reply each --> Goodbye, or the end of the connection
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use thiserror::Error;

use super::core::{Beat, ServiceCore, Wanted};
use super::members::Members;
use super::random_instance;
use crate::control::frame::{self, FrameBuffer, FrameError};
use crate::control::greeting::{self, GreetingError};
use crate::control::names::check_name;
use crate::control::queue_pair::PeerId;
use crate::control::wire::{MEMBERS_MAX, Reply, Request};
use crate::control::{ControlError, IndexId};
use crate::memory::chunks::{Extent, Owner};
use crate::message::ShardId;
use crate::pointer::ServerId;

/// Bytes of replies that may wait to be sent; more requests are answered when these are gone. A request of seven bytes
/// can ask for a page of 64 KiB.
const OUT_BYTES_MAX: usize = 2 * frame::FRAME_BYTES_MAX;

/// Reasons why a session has ended. The last reply tells them to the client where it can.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum Close {
    /// The client has said goodbye.
    #[error("the client has said goodbye")]
    Goodbye,
    /// Another program speaks there, or another version.
    #[error(transparent)]
    Greeting(#[from] GreetingError),
    /// The bytes are not frames, or no messages.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A request came out of turn.
    #[error("request number {found}, and not {expected}")]
    Number { expected: u32, found: u32 },
    /// A request that does not belong there.
    #[error("{what}")]
    Request { what: &'static str },
    /// There are as many connections as the service takes.
    #[error("there are {max} connections already")]
    TooMany { max: u32 },
    /// The server that keeps the catalog has given the client up.
    #[error("memory server 0 has given this connection's client up, so this server has too")]
    Fenced,
    /// The system gives no random number, without which a connection cannot be resumed safely.
    #[error("the memory server cannot read /dev/urandom: {cause}")]
    NoRandom { cause: String },
    /// The session has ended before.
    #[error("the session has ended")]
    Ended,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Greeting,
    Hello,
    Join,
    Joined,
    Ended,
}

/// A client's conversation with the service.
pub struct Session {
    core: Arc<ServiceCore>,
    peer: PeerId,
    /// From `Hello` on: the secret that resumes this connection.
    pass: u128,
    stage: Stage,
    arrived: FrameBuffer,
    next_number: u32,
    requests: u64,
    refused: Option<u32>,
}

impl Session {
    /// Makes a conversation that has not begun.
    pub fn new(core: &Arc<ServiceCore>) -> Self {
        Session {
            core: Arc::clone(core),
            peer: core.connect(),
            pass: 0,
            stage: Stage::Greeting,
            arrived: FrameBuffer::default(),
            next_number: 0,
            requests: 0,
            refused: None,
        }
    }

    /// Makes a conversation that only tells the client that there are `max` connections already.
    pub(super) fn refusing(core: &Arc<ServiceCore>, max: u32) -> Self {
        let mut session = Session::new(core);
        session.refused = Some(max);
        session
    }

    /// Processes bytes that have arrived and appends to `out` the bytes to send. While [`Session::pending`], it is to
    /// be called again without new bytes, with `out` emptied.
    ///
    /// # Errors
    /// When the conversation is over. The bytes in `out` are still to be sent.
    pub fn receive(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Close> {
        if self.stage == Stage::Ended {
            return Err(Close::Ended);
        }
        self.arrived.extend(bytes);
        let went_on = self.go_on(out);
        if let Err(close) = &went_on {
            self.stage = Stage::Ended;
            self.arrived = FrameBuffer::default();
            self.tell(close, out);
        }
        went_on
    }

    /// Tells whether requests wait until earlier replies are sent.
    pub fn pending(&self) -> bool {
        !matches!(self.stage, Stage::Greeting | Stage::Ended) && self.arrived.has_frame()
    }

    /// Counts the requests that were answered: a client is alive as long as this grows.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    fn go_on(&mut self, out: &mut Vec<u8>) -> Result<(), Close> {
        if self.stage == Stage::Greeting {
            let Some(theirs) = self.arrived.take() else { return Ok(()) };
            let checked = greeting::check(&theirs);
            if checked != Err(GreetingError::NotFarwood) {
                out.extend_from_slice(&greeting::greeting());
            }
            checked?;
            self.stage = Stage::Hello;
        }
        while out.len() < OUT_BYTES_MAX {
            let Some(frame) = self.arrived.next_frame()? else { break };
            let (number, request): (u32, Request) = frame::parse(frame)?;
            if number != self.next_number {
                return Err(Close::Number { expected: self.next_number, found: number });
            }
            let reply = self.answer(request)?;
            frame::put(&(number, reply), out);
            self.next_number = self.next_number.wrapping_add(1);
            self.requests += 1;
            if self.stage == Stage::Ended {
                return Err(Close::Goodbye);
            }
        }
        Ok(())
    }

    /// Says why the conversation is over, as the reply to the request that was to come.
    fn tell(&self, close: &Close, out: &mut Vec<u8>) {
        let error = match close {
            Close::Goodbye | Close::Ended | Close::Greeting(_) => return,
            Close::NoRandom { cause } => ControlError::NoRandom { cause: cause.clone() },
            Close::TooMany { max } => ControlError::TooManyConnections { max: *max },
            other => ControlError::Protocol { what: other.to_string() },
        };
        frame::put(&(self.next_number, Err::<Reply, _>(error)), out);
    }

    /// Answers a request; an error of the outer kind ends the conversation.
    fn answer(&mut self, request: Request) -> Result<Result<Reply, ControlError>, Close> {
        match (self.stage, request) {
            (Stage::Hello, Request::Hello) => {
                if let Some(max) = self.refused {
                    return Err(Close::TooMany { max });
                }
                let no_random = |error: std::io::Error| Close::NoRandom { cause: error.to_string() };
                self.pass = random_instance().map_err(no_random)?;
                self.stage = Stage::Join;
                Ok(Ok(Reply::Welcome(self.core.welcome(self.peer, self.pass))))
            }
            (Stage::Hello, _) => Err(Close::Request { what: "the first request is not Hello" }),
            (Stage::Join, Request::Join { members, position, home, name }) => {
                self.join(members, position, home, name)
            }
            (Stage::Join, Request::Resume { connection, pass }) => {
                let resumed = self.core.resume(self.peer, PeerId(connection), pass);
                Ok(resumed.map(|()| {
                    self.peer = PeerId(connection);
                    self.stage = Stage::Joined;
                    Reply::Done
                }))
            }
            (Stage::Join, Request::Ping) => Ok(Ok(Reply::Done)),
            (Stage::Join, _) => Err(Close::Request { what: "the second request is neither Join nor Resume" }),
            (Stage::Joined, _) if self.core.is_fenced(self.peer) => Err(Close::Fenced),
            (Stage::Joined, Request::Hello | Request::Join { .. } | Request::Resume { .. }) => {
                Err(Close::Request { what: "Hello, and Join or Resume, come once, at the beginning" })
            }
            (Stage::Joined, Request::Goodbye) => {
                self.core.leaving(self.peer);
                self.stage = Stage::Ended;
                Ok(Ok(Reply::Done))
            }
            (Stage::Joined, request) => Ok(self.serve(request)),
            (Stage::Greeting | Stage::Ended, _) => Err(Close::Ended),
        }
    }

    fn join(
        &mut self,
        members: Vec<u128>,
        position: u16,
        home: u64,
        name: String,
    ) -> Result<Result<Reply, ControlError>, Close> {
        if members.is_empty() || members.len() > MEMBERS_MAX {
            return Err(Close::Request { what: "a list of servers has 1 to 256" });
        }
        if members.get(usize::from(position)) != Some(&self.core.instance()) {
            return Err(Close::Request { what: "this server is not where the list of servers has it" });
        }
        if members.iter().collect::<BTreeSet<_>>().len() != members.len() {
            return Err(Close::Request { what: "a list of servers names one twice" });
        }
        if let Err(error) = check_name(&name) {
            return Ok(Err(error));
        }
        let list = (Members::from(members), ServerId(position));
        Ok(self.core.join(self.peer, list, home, name, self.pass).map(|()| {
            self.stage = Stage::Joined;
            Reply::Done
        }))
    }

    fn serve(&self, request: Request) -> Result<Reply, ControlError> {
        let (core, peer) = (&self.core, self.peer);
        match request {
            Request::Admit => core.admit(peer),
            Request::Agree => core.agree(peer).map(|()| Reply::Done),
            Request::Chunk { index, seal, temporary } => {
                let extent = core.chunk(peer, Owner { index: IndexId(index), seal }, temporary);
                extent.map(|Extent { offset, bytes }| Reply::Chunk { offset, bytes })
            }
            Request::GiveBack { index, offset, bytes } => {
                core.return_extent(peer, IndexId(index), Extent { offset, bytes }).map(|()| Reply::Done)
            }
            Request::GiveNodes { index, batch } => {
                core.give_nodes(peer, IndexId(index), batch).map(|()| Reply::Done)
            }
            Request::TakeNodes { index, seal, wanted } => {
                core.take_nodes(peer, Owner { index: IndexId(index), seal }, &wanted).map(Reply::Batch)
            }
            Request::Holdings { index, from } => Ok(core.holdings(peer, IndexId(index), from)),
            Request::TakeBack { index, joins, extents } => {
                let extents = extents.into_iter().map(|(offset, bytes)| Extent { offset, bytes }).collect();
                core.take_back(peer, IndexId(index), joins, extents).map(|bytes| Reply::Freed { bytes })
            }
            Request::Create { name, kind, config, fenced, temporary } => {
                let wanted = Wanted { name: &name, kind: &kind, config: &config, fenced, temporary };
                core.create(peer, wanted).map(Reply::Entry)
            }
            Request::Open { name } => core.open(peer, &name).map(Reply::Entry),
            Request::List { after } => {
                let (entries, more) = core.page(after.as_deref());
                Ok(Reply::Page { entries, more })
            }
            Request::BeginDrop { name } => {
                core.begin_drop(peer, &name).map(|(index, key)| Reply::Dropping { index: index.0, key })
            }
            Request::Free { index, key, census } => {
                core.free(peer, IndexId(index), key, &census).map(|bytes| Reply::Freed { bytes })
            }
            Request::FinishDrop { name, index } => {
                core.finish_drop(peer, &name, IndexId(index)).map(|()| Reply::Done)
            }
            Request::Usage => Ok(Reply::Usage { usage: core.usage(), connections: core.joined() }),
            Request::Nodes { after } => {
                let (nodes, more) = core.nodes_page(after);
                Ok(Reply::Nodes { nodes, more })
            }
            Request::QueuePair { shard, endpoint } => {
                core.queue_pair(peer, ShardId(shard), endpoint).map(Reply::Answer)
            }
            Request::Ping => Ok(Reply::Done),
            Request::Census => core.census(peer).map(|(census, dead)| Reply::Census { census, dead }),
            Request::Fence(census) => {
                core.fence(peer, &census);
                Ok(Reply::Done)
            }
            Request::Dead { after } => {
                core.dead(peer, after).map(|(nodes, more)| Reply::Dead { nodes, more })
            }
            Request::Epoch { oldest, fenced, waits, flush, noting } => {
                core.epoch(peer, Beat { oldest, fenced, waits, flush, noting })
            }
            Request::Hello | Request::Join { .. } | Request::Resume { .. } | Request::Goodbye => {
                Err(ControlError::Protocol { what: "it is part of the handshake".into() })
            }
            of_sweep => core.sweep(peer, of_sweep),
        }
    }
}

impl Session {
    /// Tells whether the client's process has the memory mapped, and may be about to end.
    pub(super) fn may_unmap(&self) -> bool {
        self.core.may_unmap(self.peer)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.core.disconnect(self.peer);
    }
}
