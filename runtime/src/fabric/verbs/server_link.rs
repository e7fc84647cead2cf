//! A shard's way to one memory server: the queue pair, the chains on it, the chains that wait for it, and what happens
//! when it breaks.
//!
//! ```text
//!                 a work request fails, none completes        all came back, or
//!   Connected ─────── any more, or the server is gone ──> Draining ── DRAIN_NS passed ──> Destroying: tried until the
//!       ^                                                                                     │    device does it
//!       │   the server has destroyed its side and made a new one:                             │
//!       └── failed chains are reported, then what waited is posted ── Exchanging <────────────┤
//!                                                                       │  ^ asked again      │
//!                                                                       v  │ if refused       │
//!                              no answer, refused for EXCHANGE_NS     Pausing                 │ the server is gone
//!                                                                       └───────> Lost <──────┘
//!   any ── this host's device fails ──> Ending ── SETTLE_NS passed ────────────────^
//! ```
//!
//! A chain that failed is reported only when neither side has the old queue pair any more: nothing of it takes effect
//! after that. Nothing is posted twice. What this cannot cover is a server whose control service does not
//! answer, because it is gone or this host cannot go on: packets that are under way to it may still arrive. The latter
//! case waits for them.
//!
//! A device that does not even destroy a queue pair may use the buffers of its chains forever: clients get
//! copies of those back.

use std::collections::VecDeque;
use std::sync::Arc;

use super::cluster::ShardNumber;
use super::context::Port;
use super::cq::CompletionQueue;
use super::error::VerbsError;
use super::memory::{Access, Arenas, Words};
use super::post::{Places, Plan, RemoteRegion, Tag, WorkRequests, atomics, part_before_fence, plan};
use super::qp::{QueuePair, Side};
use super::send_queue::{Posted, SendQueue};
use crate::chain::{Chain, Op};
use crate::clock::Clock;
use crate::control::ServerInfo;
use crate::control::queue_pair::{Answer, Exchange, Exchanged};
use crate::engine::{Outcome, SlotKey, Slots};
use crate::message::ShardId;
use crate::pointer::ServerId;
use crate::verbs::FabricError;

/// Time that a broken queue pair may take to give back what was in flight. Devices need microseconds.
const DRAIN_NS: u64 = 1_000_000_000;
/// Time that a server may take to connect a new queue pair. One that takes longer counts as gone.
const EXCHANGE_NS: u64 = 10_000_000_000;

/// Between two tries to get a queue pair connected again.
const EXCHANGE_PAUSE_NS: u64 = 100_000_000;
/// Times that a device is asked to destroy a queue pair, and the pause in between.
const DESTROY_TRIES: u32 = 50;
const DESTROY_PAUSE_NS: u64 = 100_000_000;
/// After this nothing is under way any more of a queue pair that does not exist any more.
const SETTLE_NS: u64 = 1_000_000_000;
/// A queue pair that completes nothing for that long is broken, although its device does not say so: it should have
/// given up after 4 s (`qp`).
const STUCK_NS: u64 = 30_000_000_000;

/// Things that the server links of one shard share.
pub(super) struct LinkContext {
    pub arenas: Arenas,
    pub requests: WorkRequests,
    pub cq: Arc<CompletionQueue>,
    pub port: Arc<Port>,
    pub exchange: Arc<dyn Exchange>,
    pub shard: ShardId,
    pub clock: Clock,
    /// Chains whose outcome is known and was not reported.
    pub ended: Vec<(SlotKey, Outcome)>,
    /// As whom servers know the shard.
    pub number: ShardNumber,
}

/// A queue pair and the words that its atomics' findings land in.
struct Requester {
    /// First, so that it is destroyed before the words are deregistered.
    qp: QueuePair,
    words: Words,
}

impl Requester {
    fn new(context: &LinkContext, work_requests: u32) -> Result<Self, VerbsError> {
        let words = Words::new(context.port.protection(), work_requests as usize, Access::Local)?;
        // Packets of an earlier queue pair that had the same number are told apart by theirs.
        let first_packet = (context.clock.now() as u32).wrapping_mul(0x9e37_79b9) >> 8;
        let side = Side::Requester { work_requests };
        Ok(Requester { qp: QueuePair::new(&context.port, &context.cq, side, first_packet)?, words })
    }

    /// Afterwards nothing uses the words, nor the buffers of the chains. If the device refuses it can be tried again.
    fn destroy(self) -> Result<(), Self> {
        let Requester { qp, words } = self;
        qp.destroy().map_err(|qp| Requester { qp, words })
    }
}

/// Times are in ns.
enum State {
    Connected {
        requester: Requester,
        region: RemoteRegion,
    },
    Draining {
        requester: Requester,
        until: u64,
    },
    /// It is tried again at `next`. Afterwards a new one is made, or the link is lost because of `cause`.
    Destroying {
        requester: Requester,
        tries: u32,
        next: u64,
        cause: Option<FabricError>,
    },
    /// Nothing was posted on this queue pair.
    Exchanging {
        requester: Requester,
        answer: Exchanged,
        until: u64,
    },
    Pausing {
        next: u64,
        until: u64,
    },
    Ending {
        cause: FabricError,
        until: u64,
    },
    Lost(FabricError),
}

/// The connection of one shard to one memory server: see the file's head.
pub(super) struct ServerLink {
    state: State,
    server: ServerId,
    region_bytes: u64,
    /// Chains on the queue pair; while it is not connected, those that failed with the last one.
    sent: SendQueue,
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

impl ServerLink {
    /// Makes a queue pair and asks the server to connect it.
    pub(super) fn open(context: &LinkContext, info: &ServerInfo, depth: u32) -> Result<Self, VerbsError> {
        Ok(ServerLink {
            state: exchange(context, info.id, depth, context.clock.now() + EXCHANGE_NS)?,
            server: info.id,
            region_bytes: info.region_bytes,
            sent: SendQueue::new(depth),
            waiting: VecDeque::new(),
            begun: None,
        })
    }

    /// Returns the answer to the first exchange, to be awaited; `None` when it was.
    pub(super) fn first_answer(&mut self) -> Option<&mut Exchanged> {
        match &mut self.state {
            State::Exchanging { answer, .. } => Some(answer),
            _ => None,
        }
    }

    /// Connects the queue pair to the server's side.
    pub(super) fn connect(&mut self, answer: &Answer) -> Result<(), VerbsError> {
        let Answer { endpoint, region_address, region_key, .. } = *answer;
        if region_address.checked_add(self.region_bytes).is_none() {
            let cause = format!("its region cannot be at address {region_address:#x}");
            return Err(VerbsError::Connect { server: self.server.0, cause });
        }
        match self.take_state() {
            State::Exchanging { requester, .. } => {
                requester.qp.connect(&endpoint)?;
                let region = RemoteRegion { address: region_address, key: region_key };
                self.state = State::Connected { requester, region };
            }
            other => self.state = other,
        }
        Ok(())
    }

    /// Tells whether nothing happens on it but completions.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self.state, State::Connected { .. } | State::Lost(_))
    }

    /// Takes a chain over: posts it if there is room, else lets it wait.
    #[inline]
    pub(super) fn post(&mut self, key: SlotKey, chain: &Chain, context: &mut LinkContext) {
        if let State::Lost(cause) = &self.state {
            return context.ended.push((key, Err(cause.clone())));
        }
        match plan(chain, self.region_bytes, self.sent.depth()) {
            Err(refusal) => context.ended.push((key, Err(refusal))),
            Ok(plan) if plan.is_empty() => context.ended.push((key, Ok(()))),
            Ok(plan) if self.takes(&plan) && self.waiting.is_empty() => self.send(key, chain, &plan, context),
            Ok(_) => self.waiting.push_back(key),
        }
    }

    fn takes(&self, plan: &Plan) -> bool {
        matches!(self.state, State::Connected { .. })
            && self.begun.is_none()
            && self.sent.fits(plan.len() as u32)
    }

    /// Posts what waits, as far as there is room.
    pub(super) fn post_waiting(&mut self, slots: &mut Slots, context: &mut LinkContext) {
        if let Some(begun) = self.begun
            && matches!(self.state, State::Connected { .. })
            && self.sent.is_idle()
        {
            let chain = slots.chain_mut(begun.key);
            let plan = self.replan(chain);
            self.send_part(begun, chain, &plan, context);
        }
        while let Some(&key) = self.waiting.front() {
            let chain = slots.chain_mut(key);
            let plan = self.replan(chain);
            if !self.takes(&plan) {
                return;
            }
            self.waiting.pop_front();
            self.send(key, chain, &plan, context);
        }
    }

    fn replan(&self, chain: &Chain) -> Plan {
        plan(chain, self.region_bytes, self.sent.depth()).expect("checked when it came")
    }

    fn send(&mut self, key: SlotKey, chain: &Chain, plan: &Plan, context: &mut LinkContext) {
        let at = context.clock.now();
        if context.port.keeps_fences || !plan.iter().any(|request| request.fenced) {
            let first_request = self.sent.next_request();
            let requests = plan.len() as u32;
            let posted = Posted { key, requests, first_request, at, first_place: 0, is_whole: true };
            self.send_requests(posted, chain, plan, context);
        } else {
            self.send_part(Begun { key, posted: 0, at }, chain, plan, context);
        }
    }

    /// Posts what is left of `plan`, up to its next fence.
    fn send_part(&mut self, begun: Begun, chain: &Chain, plan: &Plan, context: &mut LinkContext) {
        let Begun { key, posted: from, at } = begun;
        let part = part_before_fence(plan, from, self.sent.is_idle());
        let posted = from + part.len();
        let is_whole = posted == plan.len();
        self.begun = (!is_whole).then_some(Begun { key, posted, at });
        if !part.is_empty() {
            let first_request = self.sent.next_request();
            let (requests, first_place) = (part.len() as u32, from as u32);
            let posted = Posted { key, requests, first_request, at, first_place, is_whole };
            self.send_requests(posted, chain, &part, context);
        }
    }

    fn send_requests(&mut self, posted: Posted, chain: &Chain, plan: &Plan, context: &mut LinkContext) {
        let State::Connected { requester, region } = &self.state else {
            unreachable!("chains are sent on connected queue pairs")
        };
        let needs_buffer = plan.iter().any(|r| matches!(r.op, Op::Read { .. } | Op::Write { .. }));
        let buffer = match chain.buffer() {
            Some(buf) if needs_buffer => match context.arenas.local_key(buf) {
                Ok(local_key) => Some((buf.address(), local_key)),
                Err(error) => {
                    self.begun = None;
                    return context.ended.push((posted.key, Err(device_error(&error))));
                }
            },
            _ => None,
        };
        let depth = u64::from(self.sent.depth());
        let places = Places {
            region: *region,
            buffer,
            words: &requester.words,
            first_word: (posted.first_request % depth) as usize,
            words_count: depth as usize,
        };
        let number = self.sent.next_number();
        self.sent.push(posted);
        // SAFETY: the slot keeps the chain, and the chain its buffer, until the chain is reported; that happens when it
        // has completed, or after the queue pair was destroyed. Registrations of arenas stay as long as the device;
        // the words are the requester's, and are deregistered after its queue pair is destroyed. A word is used again
        // only when the chain before has left the send queue, which has no more requests than there are words.
        let posted = unsafe { context.requests.post(&requester.qp, plan, self.server, number, &places) };
        if let Err(cause) = posted {
            // A prefix may be posted: the chain counts as in flight, and its outcome is unknown.
            tracing::warn!(server = self.server.0, "cannot post work requests: {cause}");
            self.fail(context);
        }
    }

    /// Reports a chain whose last work request has succeeded, and those before it.
    #[inline]
    pub(super) fn succeeded(&mut self, tag: Tag, now: u64, slots: &mut Slots) -> usize {
        let (State::Connected { requester, .. } | State::Draining { requester, .. }) = &self.state else {
            return 0;
        };
        let depth = u64::from(self.sent.depth());
        self.sent.moved(now);
        let mut completed = 0;
        for _ in 0..self.sent.completed_by(tag.number) {
            let posted = self.sent.pop().expect("it was counted");
            let (chain, found) = slots.parts(posted.key);
            let places = posted.first_place..posted.first_place + posted.requests;
            let ours = atomics(chain).filter(|place| places.contains(place));
            let words = ours.map(|place| posted.first_request + u64::from(place - posted.first_place));
            found.extend(words.map(|word| requester.words.get((word % depth) as usize)));
            if !posted.is_whole {
                continue;
            }
            let span_ns = now.saturating_sub(posted.at).min(u64::from(u32::MAX)) as u32;
            slots.complete(posted.key, Ok(()), span_ns);
            completed += 1;
        }
        completed
    }

    /// Breaks the queue pair, since a work request came back as an error.
    #[cold]
    pub(super) fn failed(&mut self, tag: Tag, status: &str, context: &mut LinkContext) {
        if self.sent.completed_by(tag.number) == 0 {
            return;
        }
        if matches!(self.state, State::Connected { .. }) {
            tracing::warn!(server = self.server.0, shard = context.shard.0, status, "a queue pair broke");
        }
        if tag.is_last {
            self.sent.flushed(tag.number);
        }
        self.fail(context);
    }

    /// Breaks the queue pair if the server is gone, which nothing else would notice without chains in flight, or if it
    /// is stuck.
    pub(super) fn look_after(&mut self, now: u64, context: &LinkContext) {
        if !matches!(self.state, State::Connected { .. }) {
            return;
        }
        let stands_ns = self.sent.stands_since().map_or(0, |since| now.saturating_sub(since));
        if stands_ns > STUCK_NS {
            tracing::warn!(server = self.server.0, shard = context.shard.0, "a queue pair is stuck");
        }
        if stands_ns > STUCK_NS || context.exchange.is_gone(self.server) {
            self.fail(context);
        }
    }

    /// Gives the queue pair up for good, since this host's device failed.
    pub(super) fn give_up(&mut self, cause: &FabricError, context: &LinkContext) {
        self.fail(context);
        match self.take_state() {
            State::Connected { requester, .. } | State::Draining { requester, .. } => {
                self.state = State::Destroying { requester, tries: 0, next: 0, cause: Some(cause.clone()) };
            }
            State::Destroying { requester, tries, next, .. } => {
                self.state = State::Destroying { requester, tries, next, cause: Some(cause.clone()) };
            }
            State::Exchanging { .. } | State::Pausing { .. } => self.end(cause.clone(), context),
            ending @ (State::Ending { .. } | State::Lost(_)) => self.state = ending,
        }
    }

    fn end(&mut self, cause: FabricError, context: &LinkContext) {
        self.state = State::Ending { cause, until: context.clock.now() + SETTLE_NS };
    }

    /// Breaks the queue pair: nothing more is posted, and everything in flight comes back.
    fn fail(&mut self, context: &LinkContext) {
        match self.take_state() {
            State::Connected { requester, .. } => {
                if let Err(error) = requester.qp.fail() {
                    // It is destroyed when its time is over.
                    tracing::warn!(server = self.server.0, "{error}");
                }
                self.state = State::Draining { requester, until: context.clock.now() + DRAIN_NS };
            }
            other => self.state = other,
        }
    }

    /// Takes a link that is not settled a step further. `is_polled_empty`: the completion queue had nothing more.
    #[cold]
    pub(super) fn advance(
        &mut self,
        now: u64,
        is_polled_empty: bool,
        slots: &mut Slots,
        context: &mut LinkContext,
    ) {
        match self.take_state() {
            State::Draining { requester, until } => {
                if !self.sent.is_drained() && (now < until || !is_polled_empty) {
                    self.state = State::Draining { requester, until };
                    return;
                }
                self.destroy(requester, 0, None, slots, context);
            }
            State::Destroying { requester, tries, next, cause } if now >= next => {
                self.destroy(requester, tries, cause, slots, context);
            }
            State::Exchanging { requester, mut answer, until } => match answer.try_recv() {
                Ok(Some(Ok(answered))) => {
                    self.state = State::Exchanging { requester, answer, until };
                    self.reconnect(&answered, until, slots, context);
                }
                Ok(None) if now < until && !context.exchange.is_gone(self.server) => {
                    self.state = State::Exchanging { requester, answer, until };
                }
                refused => {
                    drop(requester);
                    tracing::warn!(server = self.server.0, ?refused, "a queue pair is not connected again");
                    self.pause(self.server_gone(), until, context);
                }
            },
            State::Pausing { until, .. } if context.exchange.is_gone(self.server) => {
                self.pause(self.server_gone(), until, context);
            }
            State::Pausing { next, until } if now >= next => self.rebuild(until, context),
            State::Ending { cause, until } if now >= until => self.lose(cause, context),
            unchanged => self.state = unchanged,
        }
    }

    /// Destroys a queue pair, if not now then later, and takes the next step.
    fn destroy(
        &mut self,
        requester: Requester,
        tries: u32,
        cause: Option<FabricError>,
        slots: &mut Slots,
        context: &mut LinkContext,
    ) {
        let now = context.clock.now();
        match (requester.destroy(), cause) {
            (Ok(()), None) => self.rebuild(now + EXCHANGE_NS, context),
            (Ok(()), Some(cause)) => self.end(cause, context),
            (Err(requester), cause) if tries < DESTROY_TRIES => {
                self.state =
                    State::Destroying { requester, tries: tries + 1, next: now + DESTROY_PAUSE_NS, cause };
            }
            (Err(requester), cause) => {
                self.abandon(requester, slots, context);
                let refused = || FabricError::Device { cause: "it does not destroy a queue pair".into() };
                self.end(cause.unwrap_or_else(refused), context);
            }
        }
    }

    /// Leaks a queue pair that cannot be destroyed, and whatever its device may still use.
    fn abandon(&mut self, requester: Requester, slots: &mut Slots, context: &LinkContext) {
        tracing::error!(server = self.server.0, "a queue pair cannot be destroyed; its buffers are leaked");
        for key in self.sent.keys() {
            if let Some(buf) = slots.chain_mut(key).buffer_mut() {
                let copy = context.arenas.copy_of(buf);
                std::mem::forget(std::mem::replace(buf, copy));
            }
        }
        std::mem::forget(requester);
    }

    fn rebuild(&mut self, until: u64, context: &mut LinkContext) {
        if context.exchange.is_gone(self.server) {
            return self.lose(self.server_gone(), context);
        }
        match exchange(context, self.server, self.sent.depth(), until) {
            Ok(exchanging) => self.state = exchanging,
            Err(error) => self.end(device_error(&error), context),
        }
    }

    fn reconnect(&mut self, answer: &Answer, until: u64, slots: &mut Slots, context: &mut LinkContext) {
        match self.connect(answer) {
            Ok(()) => {
                self.report_failed(&FabricError::QueuePair { server: self.server }, context);
                self.post_waiting(slots, context);
            }
            Err(error) => {
                tracing::warn!(server = self.server.0, "a queue pair is not connected again: {error}");
                self.pause(device_error(&error), until, context);
            }
        }
    }

    /// Waits before the next try to get a queue pair connected; if there is none, gives the server up with `cause`.
    fn pause(&mut self, cause: FabricError, until: u64, context: &mut LinkContext) {
        let next = context.clock.now() + EXCHANGE_PAUSE_NS;
        if context.exchange.is_gone(self.server) {
            self.lose(self.server_gone(), context);
        } else if next < until {
            self.state = State::Pausing { next, until };
        } else {
            self.lose(cause, context);
        }
    }

    /// Gives the server up: every chain fails with `cause`, now and later.
    fn lose(&mut self, cause: FabricError, context: &mut LinkContext) {
        // A queue pair that is left was never used: what was posted was posted on others, destroyed or leaked since.
        self.state = State::Lost(cause.clone());
        self.report_failed(&cause, context);
        context.ended.extend(self.waiting.drain(..).map(|key| (key, Err(cause.clone()))));
    }

    fn report_failed(&mut self, cause: &FabricError, context: &mut LinkContext) {
        let begun = self.begun.take().map(|begun| begun.key);
        // Between two parts it is not in the send queue; else it is the newest there.
        let mut last = None;
        while let Some(posted) = self.sent.pop() {
            last = Some(posted.key);
            context.ended.push((posted.key, Err(cause.clone())));
        }
        let between = begun.filter(|_| begun != last);
        context.ended.extend(between.map(|key| (key, Err(cause.clone()))));
    }

    fn server_gone(&self) -> FabricError {
        FabricError::ServerGone { server: self.server }
    }

    /// Takes the state out for a step of the state machine, which puts the next one into its place.
    fn take_state(&mut self) -> State {
        let in_between = State::Lost(self.server_gone());
        std::mem::replace(&mut self.state, in_between)
    }
}

/// Makes a new queue pair and asks the server to connect it.
fn exchange(context: &LinkContext, server: ServerId, depth: u32, until: u64) -> Result<State, VerbsError> {
    let requester = Requester::new(context, depth)?;
    let answer = context.exchange.exchange(server, context.number.shard(), requester.qp.endpoint());
    Ok(State::Exchanging { requester, answer, until })
}

fn device_error(error: &VerbsError) -> FabricError {
    FabricError::Device { cause: error.to_string().into() }
}
