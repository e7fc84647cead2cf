//! A shard's verbs device: one link per memory server, one completion queue for all of them.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use futures::FutureExt;
use ibverbs_sys as ffi;

use super::cluster::ShardNumber;
use super::context::Port;
use super::cq::CompletionQueue;
use super::cq_event_thread::{CqEventThread, Watched};
use super::error::VerbsError;
use super::memory::Arenas;
use super::post::{Tag, WorkRequests};
use super::server_link::{LinkContext, ServerLink};
use crate::buffer::BufferPool;
use crate::chain::Chain;
use crate::clock::Clock;
use crate::control::ServerInfo;
use crate::control::queue_pair::{Answer, Exchange, Exchanged};
use crate::engine::{Device, SlotKey, Slots};
use crate::fabric::DeviceContext;
use crate::verbs::{Capabilities, FabricError};

/// Completions taken in one turn.
const COMPLETIONS_PER_POLL: usize = 16;
/// Work requests that a credit is worth; longer chains wait for each other.
const REQUESTS_PER_CREDIT: u32 = 4;
/// Bounds of a send queue: so many work requests keep any network busy, and a chain may have as many verbs as the
/// smallest one.
const SEND_QUEUE_MIN: u32 = 256;
const SEND_QUEUE_MAX: u32 = 4096;
/// Turns between two looks at whether servers are gone, while the shard does not sleep: some 100 us.
const LOOK_AFTER_TURNS: u32 = 1024;
/// Time that a server may take to connect a shard's first queue pair.
const FIRST_EXCHANGE_NS: u64 = 10_000_000_000;
/// No network writes faster.
const WRITE_NS_MIN: u32 = 500;

/// Executes chains by RDMA.
///
/// Dropped in this order: the watch on the completion queue, queue pairs (from then on the device touches no buffer),
/// registrations, buffers. The engine drops its device before its chains, whose buffers are what the device was using.
pub struct VerbsDevice {
    watched: Watched,
    links: Vec<ServerLink>,
    link_context: LinkContext,
    capabilities: Capabilities,
    completions: [ffi::ibv_wc; COMPLETIONS_PER_POLL],
    /// Completions that were taken while the shard was about to sleep.
    held: usize,
    /// Set if a link may be unsettled.
    is_unsettled: bool,
    /// Set if the device itself failed.
    is_lost: bool,
    turns: u32,
}

impl VerbsDevice {
    /// Connects a shard to all servers. Waits for their answers.
    pub(super) fn new(
        port: &Arc<Port>,
        exchange: Arc<dyn Exchange>,
        servers: &[ServerInfo],
        events: &Arc<CqEventThread>,
        context: &DeviceContext,
        number: ShardNumber,
    ) -> Result<Self, VerbsError> {
        let limits = port.limits;
        let count = servers.len().max(1) as u32;
        let room = limits.work_requests_max.min(limits.completions_max / count);
        let depth = send_queue_depth(context.credits.get(), room);
        let cq = Arc::new(CompletionQueue::new(port.context(), depth * count, true)?);
        let watched = events.watch(&cq, context.unpark.clone())?;
        let link_context = LinkContext {
            arenas: Arenas::new(port.protection())?,
            requests: WorkRequests::default(),
            cq,
            port: Arc::clone(port),
            exchange,
            shard: context.shard,
            clock: context.clock.clone(),
            ended: Vec::new(),
            number,
        };
        let links = servers
            .iter()
            .map(|info| ServerLink::open(&link_context, info, depth))
            .collect::<Result<_, _>>()?;
        let mut device = VerbsDevice {
            watched,
            links,
            link_context,
            capabilities: Capabilities {
                fabric: "verbs",
                // Holds for a NIC that writes over PCIe without relaxed ordering; Soft-RoCE copies as it likes.
                in_order_write: false,
                atomic_writes: port.has_atomic_writes,
                masked_atomic: false,
                device_memory: 0,
                write_interval_ns: u32::MAX,
            },
            completions: [ffi::ibv_wc::default(); COMPLETIONS_PER_POLL],
            held: 0,
            is_unsettled: false,
            is_lost: false,
            turns: 0,
        };
        device.connect(&context.clock)?;
        Ok(device)
    }

    fn connect(&mut self, clock: &Clock) -> Result<(), VerbsError> {
        let until = clock.now() + FIRST_EXCHANGE_NS;
        for (server, link) in self.links.iter_mut().enumerate() {
            let refused = |cause| VerbsError::Connect { server: server as u16, cause };
            let answer = link.first_answer().expect("it was asked for when the link was opened");
            let answer = wait(answer, until, clock).map_err(refused)?;
            link.connect(&answer)?;
            let interval_ns = &mut self.capabilities.write_interval_ns;
            *interval_ns = answer.write_ns.max(WRITE_NS_MIN).min(*interval_ns);
        }
        Ok(())
    }

    /// Passes completions on to their links; yields how many chains they completed.
    fn take_completions(&mut self, taken: usize, slots: &mut Slots) -> usize {
        let now = self.link_context.clock.now();
        let mut completed = 0;
        for place in 0..taken {
            let entry = &self.completions[place];
            let tag = Tag::decode(entry.wr_id());
            let Some(link) = self.links.get_mut(usize::from(tag.server)) else { continue };
            match entry.error() {
                None => {
                    completed += link.succeeded(tag, now, slots);
                    link.post_waiting(slots, &mut self.link_context);
                }
                Some((status, vendor)) => {
                    link.failed(tag, &status_text(status, vendor), &mut self.link_context);
                }
            }
            self.is_unsettled |= !link.is_settled();
        }
        completed
    }

    /// Handles the exceptions: servers that are gone, queue pairs that are replaced.
    #[cold]
    fn look_after(&mut self, is_polled_empty: bool, slots: &mut Slots) {
        if self.watched.is_lost() {
            self.lose("it was removed");
        }
        let now = self.link_context.clock.now();
        self.is_unsettled = false;
        for link in &mut self.links {
            link.look_after(now, &self.link_context);
            link.advance(now, is_polled_empty, slots, &mut self.link_context);
            self.is_unsettled |= !link.is_settled();
        }
    }

    /// Gives the device up: the outcome of no chain can be known any more.
    #[cold]
    fn lose(&mut self, cause: &str) {
        if !std::mem::replace(&mut self.is_lost, true) {
            let cause = FabricError::Device { cause: cause.into() };
            self.links.iter_mut().for_each(|link| link.give_up(&cause, &self.link_context));
            self.is_unsettled = true;
        }
    }
}

impl Device for VerbsDevice {
    type Host = Clock;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn post(&mut self, key: SlotKey, chain: &Chain) {
        let server = chain.server();
        match self.links.get_mut(usize::from(server.0)) {
            Some(link) => {
                link.post(key, chain, &mut self.link_context);
                self.is_unsettled |= !link.is_settled();
            }
            None => {
                let missing = FabricError::NoSuchServer { server, servers: self.links.len() };
                self.link_context.ended.push((key, Err(missing)));
            }
        }
    }

    fn poll(&mut self, slots: &mut Slots) -> usize {
        let held = std::mem::take(&mut self.held);
        let taken = match held {
            _ if self.is_lost => Ok(0),
            0 => self.link_context.cq.poll(&mut self.completions),
            held => Ok(held),
        };
        let mut completed = 0;
        match taken {
            Ok(0) => {}
            Ok(taken) => completed += self.take_completions(taken, slots),
            Err(ref cause) => self.lose(&format!("its completion queue failed: {cause}")),
        }
        self.turns = self.turns.wrapping_add(1);
        if self.is_unsettled || self.turns.is_multiple_of(LOOK_AFTER_TURNS) {
            let is_polled_empty = held == 0 && taken.is_ok_and(|taken| taken < COMPLETIONS_PER_POLL);
            self.look_after(is_polled_empty, slots);
        }
        completed += self.link_context.ended.len();
        for (key, outcome) in self.link_context.ended.drain(..) {
            slots.complete(key, outcome, 0);
        }
        completed
    }

    fn buffers(&self) -> BufferPool {
        self.link_context.arenas.pool().clone()
    }

    fn arm(&mut self) -> bool {
        // A shard that sleeps again and again takes too few turns for the look in `poll`.
        if self.watched.is_lost() {
            self.lose("it was removed");
        }
        let now = self.link_context.clock.now();
        for link in &mut self.links {
            link.look_after(now, &self.link_context);
            self.is_unsettled |= !link.is_settled();
        }
        if self.is_unsettled || !self.link_context.ended.is_empty() || self.held > 0 {
            return false;
        }
        if self.is_lost {
            // Nothing is in flight, and nothing will be.
            return true;
        }
        // A completion that comes before this call causes no event: it is taken here, one that comes later causes one.
        if self.link_context.cq.arm().is_err() {
            return false;
        }
        self.held = self.link_context.cq.poll(&mut self.completions).unwrap_or(0);
        self.held == 0
    }
}

/// Returns the work requests of a send queue for so many credits, on a device that has room for `room`.
fn send_queue_depth(credits: usize, room: u32) -> u32 {
    let wanted = u32::try_from(credits).unwrap_or(u32::MAX).saturating_mul(REQUESTS_PER_CREDIT);
    wanted.clamp(SEND_QUEUE_MIN, SEND_QUEUE_MAX).min(room).max(1)
}

fn status_text(status: ffi::ibv_wc_status::Type, vendor: u32) -> String {
    // SAFETY: every status has a text that is never freed.
    let text = unsafe { std::ffi::CStr::from_ptr(ffi::ibv_wc_status_str(status)) };
    format!("{} (vendor error {vendor:#x})", text.to_string_lossy())
}

struct Unparker(Thread);

impl Wake for Unparker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks this thread until the answer is there. Only at the start: nothing else of the shard runs yet.
fn wait(answer: &mut Exchanged, until: u64, clock: &Clock) -> Result<Answer, String> {
    let waker = Waker::from(Arc::new(Unparker(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        match answer.poll_unpin(&mut cx) {
            Poll::Ready(Ok(answered)) => return answered.map_err(|error| error.to_string()),
            Poll::Ready(Err(_)) => {
                return Err("its control connection was closed; is it still running?".into());
            }
            Poll::Pending => {}
        }
        let now = clock.now();
        if now >= until {
            return Err("its control service does not answer; is it still running?".into());
        }
        std::thread::park_timeout(Duration::from_nanos(until - now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn send_queues_keep_to_their_bounds() {
        assert_eq!(send_queue_depth(1, u32::MAX), SEND_QUEUE_MIN);
        assert_eq!(send_queue_depth(100, u32::MAX), 400);
        assert_eq!(send_queue_depth(4096, u32::MAX), SEND_QUEUE_MAX);
        assert_eq!(send_queue_depth(usize::MAX, u32::MAX), SEND_QUEUE_MAX);
        assert_eq!(send_queue_depth(4096, 1000), 1000);
        assert_eq!(send_queue_depth(4096, 0), 1, "and the device says that it is too many");
    }
}
