//! One shard's part of the work: a feeder gives the lines of each block to the clients that their keys belong to; every
//! client does its lines one after the other. A few blocks are at work at the same time, so that a client with many
//! lines in one block does not hold up the others.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use farwood::RangeIndex;
use farwood::runtime::Waiter;
use futures::StreamExt;
use futures::future::{Either, select};

use super::CLIENTS;
use super::blocks::{Block, Line};
use super::operation::{Counts, Operation};
use super::reader::Inbox;
use crate::driver::barrier::FirstError;
use crate::driver::bench_shard::BenchShard;
use crate::driver::in_flight::{InFlight, PATIENCE_NS};
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::progress::Progress;

/// Blocks that a shard works on at the same time.
const BLOCKS_MAX: usize = 3;
/// Time between two looks at the interrupt by a feeder that waits for the reader.
const LOOK_NS: u64 = 20_000_000;
/// Lines between two reports of a shard's progress.
const TOLD_EVERY: u64 = 256;

/// State that shards and reader share.
pub(super) struct Shared {
    /// Operation for each line.
    pub(super) operation: Operation,
    /// Interrupt that ends it early.
    pub(super) interrupt: Interrupt,
    first_error: FirstError,
    /// Progress of all shards.
    pub(super) progress: Arc<Progress>,
}

impl Shared {
    pub(super) fn new(operation: Operation, interrupt: Interrupt, progress: Arc<Progress>) -> Self {
        Shared { operation, interrupt, first_error: FirstError::default(), progress }
    }

    /// Tells whether it was interrupted.
    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupt.is_set()
    }

    /// Takes the error that ended it, if there is one.
    pub(super) fn failure(&self) -> Option<CliError> {
        self.first_error.take()
    }

    fn is_over(&self) -> bool {
        self.interrupt.is_set() || self.first_error.is_set()
    }
}

/// Lines that one shard has done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Applied {
    /// Number of lines, by what came of them.
    pub(super) counts: Counts,
    /// Number of a line up to which none is missing here.
    pub(super) through: u64,
}

/// Does the lines that come to the inbox, to its end or until all is over.
pub(super) async fn apply<V: BenchShard, I: RangeIndex>(
    shard: V,
    index: I,
    mut inbox: Inbox,
    shared: Arc<Shared>,
) -> Applied {
    let me = usize::from(shard.shard().0);
    let part = Rc::new(Part {
        shard: shard.clone(),
        shared,
        clients: (0..CLIENTS).map(|_| Queue::default()).collect(),
        blocks: RefCell::default(),
        counts: Cell::default(),
        through: Cell::new(0),
        clients_alive: Cell::new(CLIENTS),
        is_fed: Cell::new(true),
        feeder: Cell::new(None),
        in_flight: InFlight::default(),
    });
    for client in 0..CLIENTS {
        shard.spawn(run_client(Rc::clone(&part), client, index.clone()));
    }
    while let Some(block) = part.next_block(&mut inbox).await {
        part.feed(me, block);
        part.until(|part| part.shared.is_over() || part.blocks.borrow().len() < BLOCKS_MAX).await;
    }
    // The reader must not wait for this shard.
    drop(inbox);
    part.end_of_lines();
    part.end_clients().await;
    Applied { counts: part.counts.get(), through: part.through.get() }
}

/// State that the feeder and the clients of a shard share.
struct Part<V> {
    shard: V,
    shared: Arc<Shared>,
    clients: Box<[Queue]>,
    /// Blocks that are not done yet, and those behind them.
    blocks: RefCell<VecDeque<Rc<Work>>>,
    counts: Cell<Counts>,
    through: Cell<u64>,
    clients_alive: Cell<usize>,
    /// True while there may be more lines.
    is_fed: Cell<bool>,
    feeder: Cell<Option<Waiter>>,
    in_flight: InFlight,
}

/// Lines that a client still has to do.
#[derive(Default)]
struct Queue {
    lines: RefCell<VecDeque<(Rc<Work>, Line)>>,
    waiter: Cell<Option<Waiter>>,
}

/// A block and how many of its lines are still to be done here.
struct Work {
    block: Arc<Block>,
    left: Cell<usize>,
}

impl<V: BenchShard> Part<V> {
    /// Yields the next block of the inbox; none at its end or when all is over.
    async fn next_block(&self, inbox: &mut Inbox) -> Option<Arc<Block>> {
        while !self.shared.is_over() {
            match select(inbox.next(), self.shard.pause(LOOK_NS)).await {
                Either::Left((block, _)) => return block,
                Either::Right(((), _)) => {}
            }
        }
        None
    }

    fn feed(&self, me: usize, block: Arc<Block>) {
        let share = block.share(me);
        let work = Rc::new(Work { left: Cell::new(share.len()), block: Arc::clone(&block) });
        self.blocks.borrow_mut().push_back(Rc::clone(&work));
        for &line in share {
            self.clients[line.client(CLIENTS)].lines.borrow_mut().push_back((Rc::clone(&work), line));
        }
        if share.is_empty() {
            self.blocks_done();
        }
        self.wake_clients();
    }

    fn end_of_lines(&self) {
        self.is_fed.set(false);
        self.wake_clients();
    }

    fn wake_clients(&self) {
        for client in &self.clients {
            // Also a client without lines: it finds out whether there will be more.
            if let Some(waiter) = client.waiter.take() {
                self.shard.wake(waiter);
            }
        }
    }

    /// Waits until `is_so`. What makes it so has to wake the feeder: clients do, when they come to the end of a block
    /// or when they end, as they do when all is over.
    async fn until(&self, is_so: impl Fn(&Self) -> bool) {
        while !is_so(self) {
            self.rest().await;
        }
    }

    /// Waits until a client wakes the feeder, but not for long: a signal does not wake it.
    async fn rest(&self) {
        let mut rests = false;
        let woken = poll_fn(|cx| {
            // The client that wakes it takes the waiter.
            let feeder = self.feeder.take();
            if rests && feeder.is_none() {
                return Poll::Ready(());
            }
            rests = true;
            self.feeder.set(Some(self.shard.waiter(cx)));
            Poll::Pending
        });
        select(woken, self.shard.pause(LOOK_NS)).await;
    }

    /// Waits until all clients have ended. If all is over, their operations are abandoned after a while.
    async fn end_clients(&self) {
        let mut give_up_ns = None;
        while self.clients_alive.get() > 0 {
            let now = self.shard.now();
            if self.shared.is_over() && now >= *give_up_ns.get_or_insert(now + PATIENCE_NS) {
                self.in_flight.abandon(&self.shard);
            }
            self.rest().await;
        }
    }

    fn wake_feeder(&self) {
        if let Some(feeder) = self.feeder.take() {
            self.shard.wake(feeder);
        }
    }

    fn poll_line(&self, client: usize, cx: &mut Context<'_>) -> Poll<Option<(Rc<Work>, Line)>> {
        if self.shared.is_over() {
            return Poll::Ready(None);
        }
        let queue = &self.clients[client];
        match queue.lines.borrow_mut().pop_front() {
            Some(line) => Poll::Ready(Some(line)),
            None if self.is_fed.get() => {
                queue.waiter.set(Some(self.shard.waiter(cx)));
                Poll::Pending
            }
            None => Poll::Ready(None),
        }
    }

    fn line_done(&self, work: &Work, has_changed: bool) {
        let mut counts = self.counts.get();
        counts.add(has_changed);
        self.counts.set(counts);
        if counts.total().is_multiple_of(TOLD_EVERY) {
            self.shared.progress.set_ops(usize::from(self.shard.shard().0), counts.total());
        }
        work.left.set(work.left.get() - 1);
        if work.left.get() == 0 {
            self.blocks_done();
        }
    }

    /// Forgets the blocks that are done, but for those behind one that is not.
    fn blocks_done(&self) {
        let mut blocks = self.blocks.borrow_mut();
        while let Some(work) = blocks.front().filter(|work| work.left.get() == 0) {
            self.through.set(work.block.last());
            blocks.pop_front();
        }
        drop(blocks);
        self.wake_feeder();
    }
}

async fn run_client<V: BenchShard, I: RangeIndex>(part: Rc<Part<V>>, client: usize, index: I) {
    part.in_flight.enlist(&part.shard).await;
    let lines = async {
        while let Some((work, line)) = poll_fn(|cx| part.poll_line(client, cx)).await {
            let (key, value) = work.block.pair(line);
            let has_changed = match part.shared.operation {
                Operation::Put => index.put(key, value).await.map(|()| true),
                Operation::Remove => index.remove(key).await,
            };
            match has_changed {
                Ok(has_changed) => part.line_done(&work, has_changed),
                Err(error) => {
                    let number = work.block.number(line);
                    part.shared.first_error.set(CliError::Failed(format!("line {number}: {error}")));
                }
            }
        }
    };
    // An abandoned line is not done, as far as is known.
    let _ = part.in_flight.until_abandoned(pin!(lines)).await;
    part.clients_alive.set(part.clients_alive.get() - 1);
    part.wake_feeder();
}
