//! A shard's way to one memory server: the queue pair, the chains on it, the chains that wait for it, and what happens
//! when it breaks.
//!
//! ```text
//!                 a work request fails, the server is gone               all came back, or DRAIN_NS passed
//!   Connected ──────────────────────────────────────────────> Draining ──────────────────────────────────> queue pair
//!       ^                                                                                                   destroyed
//!       │   the server has destroyed its side and made a new one:                                               │
//!       └── failed chains are reported, then what waited is posted ── Exchanging <── a new queue pair ──────────┤
//!                                                                         │                                     │
//!                                                  no answer, gone        v       the server is gone            │
//!                                                                        Lost <─────────────────────────────────┘
//! ```
//!
//! A chain that failed is reported only when neither side has the old queue pair any more: nothing of it takes effect
//! after that. Nothing is posted twice. What this cannot cover is a server that is gone: nobody answers for it, and a
//! packet that is under way to it may still arrive.

use std::collections::VecDeque;
use std::sync::Arc;

use super::context::Port;
use super::cq::CompletionQueue;
use super::error::VerbsError;
use super::memory::{Access, Arenas, Words};
use super::post::{Places, Plan, Tag, WorkRequests, atomics, part_before_fence, plan};
use super::qp::{QueuePair, Side};
use super::window::{Posted, Window};
use crate::chain::{Chain, Op};
use crate::clock::Clock;
use crate::control::ServerInfo;
use crate::engine::{Outcome, SlotKey, Slots};
use crate::fabric::{Answer, Exchange, Exchanged};
use crate::message::ShardId;
use crate::pointer::ServerId;
use crate::verbs::FabricError;

/// How long a broken queue pair may take to give back what was in flight. Devices need microseconds.
const DRAIN_NS: u64 = 1_000_000_000;
/// How long a server may take to connect a new queue pair. One that takes longer counts as gone.
const EXCHANGE_NS: u64 = 10_000_000_000;

/// What a shard's lanes share.
pub(super) struct Tools {
    pub arenas: Arenas,
    pub requests: WorkRequests,
    pub cq: Arc<CompletionQueue>,
    pub port: Arc<Port>,
    pub exchange: Arc<dyn Exchange>,
    pub shard: ShardId,
    pub clock: Clock,
    /// Chains whose outcome is known and was not reported.
    pub ended: Vec<(SlotKey, Outcome)>,
}

/// A queue pair and the words that its atomics' findings land in.
struct Link {
    /// First, so that it is destroyed before the words are deregistered.
    qp: QueuePair,
    words: Words,
}

impl Link {
    fn new(tools: &Tools, work_requests: u32) -> Result<Self, VerbsError> {
        let words = Words::new(tools.port.protection(), work_requests as usize, Access::Local)?;
        // Packets of an earlier queue pair that had the same number are told apart by theirs.
        let first_packet = (tools.clock.now() as u32).wrapping_mul(0x9e37_79b9) >> 8;
        let side = Side::Requester { work_requests };
        Ok(Link { qp: QueuePair::new(&tools.port, &tools.cq, side, first_packet)?, words })
    }
}

enum State {
    Connected { link: Link, region_address: u64, region_key: u32 },
    Draining { link: Link, until: u64 },
    Exchanging { link: Link, answer: Exchanged, until: u64 },
    Lost(FabricError),
}

/// See the file's head.
pub(super) struct Lane {
    state: State,
    server: ServerId,
    region_bytes: u64,
    /// Chains on the queue pair; while it is not connected, those that failed with the last one.
    window: Window,
    /// Chains that were not posted, oldest first.
    waiting: VecDeque<SlotKey>,
    /// A chain that was posted up to one of its fences. Only where the device does not keep fences; everything else
    /// waits behind it.
    begun: Option<Begun>,
}

/// A chain, how many of its work requests were posted, and when the first one was, in ns.
#[derive(Clone, Copy)]
struct Begun {
    key: SlotKey,
    posted: usize,
    at: u64,
}

impl Lane {
    /// Makes a queue pair and asks the server to connect it.
    pub(super) fn open(tools: &Tools, info: &ServerInfo, depth: u32) -> Result<Self, VerbsError> {
        Ok(Lane {
            state: exchange(tools, info.id, depth)?,
            server: info.id,
            region_bytes: info.region_bytes,
            window: Window::new(depth),
            waiting: VecDeque::new(),
            begun: None,
        })
    }

    /// What the first exchange brings, to be awaited; `None` when it was.
    pub(super) fn first_answer(&mut self) -> Option<&mut Exchanged> {
        match &mut self.state {
            State::Exchanging { answer, .. } => Some(answer),
            _ => None,
        }
    }

    /// Connects the queue pair to the server's side.
    pub(super) fn connect(&mut self, answer: &Answer) -> Result<(), VerbsError> {
        let Answer { endpoint, region_address, region_key, .. } = *answer;
        match self.take_state() {
            State::Exchanging { link, .. } => {
                link.qp.connect(&endpoint)?;
                self.state = State::Connected { link, region_address, region_key };
            }
            other => self.state = other,
        }
        Ok(())
    }

    /// Whether nothing happens on it but completions.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self.state, State::Connected { .. } | State::Lost(_))
    }

    /// Takes a chain over: posts it if there is room, else lets it wait.
    #[inline]
    pub(super) fn post(&mut self, key: SlotKey, chain: &Chain, tools: &mut Tools) {
        if let State::Lost(cause) = &self.state {
            return tools.ended.push((key, Err(cause.clone())));
        }
        match plan(chain, self.region_bytes, self.window.depth()) {
            Err(refusal) => tools.ended.push((key, Err(refusal))),
            Ok(plan) if plan.is_empty() => tools.ended.push((key, Ok(()))),
            Ok(plan) if self.takes(&plan) && self.waiting.is_empty() => self.send(key, chain, &plan, tools),
            Ok(_) => self.waiting.push_back(key),
        }
    }

    fn takes(&self, plan: &Plan) -> bool {
        matches!(self.state, State::Connected { .. })
            && self.begun.is_none()
            && self.window.fits(plan.len() as u32)
    }

    /// Posts what waits, as far as there is room.
    pub(super) fn post_waiting(&mut self, slots: &mut Slots, tools: &mut Tools) {
        if let Some(begun) = self.begun
            && matches!(self.state, State::Connected { .. })
            && self.window.is_idle()
        {
            let chain = slots.chain_mut(begun.key);
            let plan = self.replan(chain);
            self.send_part(begun, chain, &plan, tools);
        }
        while let Some(&key) = self.waiting.front() {
            let chain = slots.chain_mut(key);
            let plan = self.replan(chain);
            if !self.takes(&plan) {
                return;
            }
            self.waiting.pop_front();
            self.send(key, chain, &plan, tools);
        }
    }

    fn replan(&self, chain: &Chain) -> Plan {
        plan(chain, self.region_bytes, self.window.depth()).expect("checked when it came")
    }

    fn send(&mut self, key: SlotKey, chain: &Chain, plan: &Plan, tools: &mut Tools) {
        let at = tools.clock.now();
        if tools.port.keeps_fences || !plan.iter().any(|request| request.fenced) {
            let first_request = self.window.next_request();
            let requests = plan.len() as u32;
            let posted = Posted { key, requests, first_request, at, first_place: 0, is_whole: true };
            self.send_requests(posted, chain, plan, tools);
        } else {
            self.send_part(Begun { key, posted: 0, at }, chain, plan, tools);
        }
    }

    /// Posts what is left of `plan`, up to its next fence.
    fn send_part(&mut self, begun: Begun, chain: &Chain, plan: &Plan, tools: &mut Tools) {
        let Begun { key, posted: from, at } = begun;
        let part = part_before_fence(plan, from, self.window.is_idle());
        let posted = from + part.len();
        let is_whole = posted == plan.len();
        self.begun = (!is_whole).then_some(Begun { key, posted, at });
        if !part.is_empty() {
            let first_request = self.window.next_request();
            let (requests, first_place) = (part.len() as u32, from as u32);
            let posted = Posted { key, requests, first_request, at, first_place, is_whole };
            self.send_requests(posted, chain, &part, tools);
        }
    }

    fn send_requests(&mut self, posted: Posted, chain: &Chain, plan: &Plan, tools: &mut Tools) {
        let State::Connected { link, region_address, region_key } = &self.state else {
            unreachable!("chains are sent on connected queue pairs")
        };
        let needs_buffer = plan.iter().any(|r| matches!(r.op, Op::Read { .. } | Op::Write { .. }));
        let buffer = match chain.buffer() {
            Some(buf) if needs_buffer => match tools.arenas.local_key(buf) {
                Ok(local_key) => Some((buf.address(), local_key)),
                Err(error) => {
                    self.begun = None;
                    return tools.ended.push((posted.key, Err(device_error(&error))));
                }
            },
            _ => None,
        };
        let depth = u64::from(self.window.depth());
        let places = Places {
            region_address: *region_address,
            region_key: *region_key,
            buffer,
            words: &link.words,
            first_word: (posted.first_request % depth) as usize,
            words_count: depth as usize,
        };
        let number = self.window.next_number();
        self.window.push(posted);
        // SAFETY: the slot keeps the chain, and the chain its buffer, until the chain is reported; that happens when it
        // has completed, or after the queue pair was destroyed. Registrations of arenas stay as long as the device;
        // the words are the link's, and are deregistered after its queue pair is destroyed. A word is used again only
        // when the chain before has left the window, which has no more requests than there are words.
        let posted = unsafe { tools.requests.post(&link.qp, plan, self.server, number, &places) };
        if let Err(cause) = posted {
            // A prefix may be posted: the chain counts as in flight, and its outcome is unknown.
            tracing::warn!(server = self.server.0, "cannot post work requests: {cause}");
            self.fail(tools);
        }
    }

    /// The last work request of a chain has succeeded: reports it, and what was before it.
    #[inline]
    pub(super) fn succeeded(&mut self, tag: Tag, now: u64, slots: &mut Slots) -> usize {
        let (State::Connected { link, .. } | State::Draining { link, .. }) = &self.state else { return 0 };
        let depth = u64::from(self.window.depth());
        let mut completed = 0;
        for _ in 0..self.window.completed_by(tag.number) {
            let posted = self.window.pop().expect("it was counted");
            let (chain, found) = slots.parts(posted.key);
            let places = posted.first_place..posted.first_place + posted.requests;
            let ours = atomics(chain).filter(|place| places.contains(place));
            let words = ours.map(|place| posted.first_request + u64::from(place - posted.first_place));
            found.extend(words.map(|word| link.words.get((word % depth) as usize)));
            if !posted.is_whole {
                continue;
            }
            let span_ns = now.saturating_sub(posted.at).min(u64::from(u32::MAX)) as u32;
            slots.complete(posted.key, Ok(()), span_ns);
            completed += 1;
        }
        completed
    }

    /// A work request came back as an error: the queue pair is broken.
    #[cold]
    pub(super) fn failed(&mut self, tag: Tag, status: &str, tools: &mut Tools) {
        if self.window.completed_by(tag.number) == 0 {
            return;
        }
        if matches!(self.state, State::Connected { .. }) {
            tracing::warn!(server = self.server.0, shard = tools.shard.0, status, "a queue pair broke");
        }
        if tag.is_last {
            self.window.flushed(tag.number);
        }
        self.fail(tools);
    }

    /// Breaks the queue pair if the server is gone. Without chains in flight nothing else would notice.
    pub(super) fn look_after(&mut self, tools: &mut Tools) {
        if matches!(self.state, State::Connected { .. }) && tools.exchange.is_gone(self.server) {
            self.fail(tools);
        }
    }

    /// From here on nothing is posted, and everything in flight comes back.
    fn fail(&mut self, tools: &Tools) {
        match self.take_state() {
            State::Connected { link, .. } => {
                if let Err(error) = link.qp.fail() {
                    // It is destroyed when its time is over.
                    tracing::warn!(server = self.server.0, "{error}");
                }
                self.state = State::Draining { link, until: tools.clock.now() + DRAIN_NS };
            }
            other => self.state = other,
        }
    }

    /// Takes a lane that is not settled a step further. `is_polled_empty`: the completion queue had nothing more.
    #[cold]
    pub(super) fn advance(&mut self, now: u64, is_polled_empty: bool, slots: &mut Slots, tools: &mut Tools) {
        match self.take_state() {
            State::Draining { link, until } => {
                if !self.window.is_drained() && (now < until || !is_polled_empty) {
                    self.state = State::Draining { link, until };
                    return;
                }
                drop(link);
                self.rebuild(tools);
            }
            State::Exchanging { link, mut answer, until } => match answer.try_recv() {
                Ok(Some(Ok(answered))) => {
                    self.state = State::Exchanging { link, answer, until };
                    self.reconnect(&answered, slots, tools);
                }
                Ok(None) if now < until && !tools.exchange.is_gone(self.server) => {
                    self.state = State::Exchanging { link, answer, until };
                }
                refused => {
                    drop(link);
                    tracing::warn!(server = self.server.0, ?refused, "a queue pair is not connected again");
                    self.lose(self.server_gone(), tools);
                }
            },
            settled => self.state = settled,
        }
    }

    fn rebuild(&mut self, tools: &mut Tools) {
        if tools.exchange.is_gone(self.server) {
            return self.lose(self.server_gone(), tools);
        }
        match exchange(tools, self.server, self.window.depth()) {
            Ok(exchanging) => self.state = exchanging,
            Err(error) => self.lose(device_error(&error), tools),
        }
    }

    fn reconnect(&mut self, answer: &Answer, slots: &mut Slots, tools: &mut Tools) {
        match self.connect(answer) {
            Ok(()) => {
                self.report_failed(&FabricError::QueuePair { server: self.server }, tools);
                self.post_waiting(slots, tools);
            }
            Err(error) => self.lose(device_error(&error), tools),
        }
    }

    /// Gives the server up: every chain fails with `cause`, now and later.
    pub(super) fn lose(&mut self, cause: FabricError, tools: &mut Tools) {
        // Destroys the queue pair, if there is one left, before anything is reported.
        self.state = State::Lost(cause.clone());
        self.report_failed(&cause, tools);
        tools.ended.extend(self.waiting.drain(..).map(|key| (key, Err(cause.clone()))));
    }

    fn report_failed(&mut self, cause: &FabricError, tools: &mut Tools) {
        let begun = self.begun.take().map(|begun| begun.key);
        // Between two parts it is not in the window; else it is the newest there.
        let mut last = None;
        while let Some(posted) = self.window.pop() {
            last = Some(posted.key);
            tools.ended.push((posted.key, Err(cause.clone())));
        }
        let between = begun.filter(|_| begun != last);
        tools.ended.extend(between.map(|key| (key, Err(cause.clone()))));
    }

    fn server_gone(&self) -> FabricError {
        FabricError::ServerGone { server: self.server }
    }

    /// For a step of the state machine, which puts the next state into its place.
    fn take_state(&mut self) -> State {
        let in_between = State::Lost(self.server_gone());
        std::mem::replace(&mut self.state, in_between)
    }
}

/// A new queue pair, and the question to the server.
fn exchange(tools: &Tools, server: ServerId, depth: u32) -> Result<State, VerbsError> {
    let link = Link::new(tools, depth)?;
    let answer = tools.exchange.exchange(server, tools.shard, link.qp.endpoint());
    Ok(State::Exchanging { link, answer, until: tools.clock.now() + EXCHANGE_NS })
}

fn device_error(error: &VerbsError) -> FabricError {
    FabricError::Device { cause: error.to_string().into() }
}
