//! Clients of the tests: they add one to a counter that lives in a node, under the node's lock. Not atomic on purpose:
//! READ, +1, WRITE. Every client has a word of its own in the node, which the others copy along, so a lost update shows
//! as a word that goes back. Each line has a stamp, so a torn node shows as stamps that differ. The last word but one
//! of a node is its embedded lock. Where that carries something, it is the stamp's low bits: a payload that was lost
//! shows as one that is not the node's.

use std::cell::Cell;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::slice;
use std::task::{Context, Poll};

use farwood_lock::{Held, LockConfig, LockError, LockTable, Mending, WordCodec};
use farwood_runtime::chain::MASKED_BYTES;
use farwood_runtime::{Buf, Chain, Meter, RemotePtr, Verbs};

pub(crate) use crate::fake::NODE_BYTES;
use crate::fake::{Fake, NODES, World, embedded, node};

/// The offset of the first line's stamp in a node.
const STAMP: usize = 56;
/// The offset of an embedded lock word: but for 8 bytes behind it, the rest of a node is before it.
pub(crate) const DATA_BYTES: usize = NODE_BYTES - 16;

/// The part of a node that a masked CAS of its embedded word brings.
pub(crate) const AROUND_WORD: Range<usize> = NODE_BYTES - MASKED_BYTES..NODE_BYTES;

/// The way in which a client works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Style {
    pub(crate) fused: bool,
    pub(crate) combine: bool,
    /// The mistake of the paper's figure 6, for the negative control: the lock is passed on when the write-back is
    /// posted, not when it has completed.
    pub(crate) pass_on_early: bool,
    pub(crate) place: Place,
    /// True if lines of one WRITE happen in address order.
    pub(crate) in_order: bool,
    /// True if a CAS that does not fit never undoes a WRITE.
    pub(crate) atomic_writes: bool,
    /// Bits of the stamp that an embedded lock word carries.
    pub(crate) carries: u32,
    /// True if it leaves the node's image to the next holder.
    pub(crate) leaves: bool,
    /// True if it takes an embedded lock by a masked CAS, and reads the node afterwards.
    pub(crate) masked: bool,
    /// True if a node is mended that a dead compute node has half written, and nothing recorded.
    pub(crate) mends: bool,
}

/// The place of a node's lock word, and the way in which it is cleared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Region,
    /// In the node, cleared by a WRITE of its own.
    Embedded,
    /// In the node, cleared with the write-back.
    Rear,
    /// In the node, cleared with what is behind it: the second line's stamp.
    Front,
}

impl Style {
    pub(crate) const FAST: Style = Style {
        fused: true,
        combine: true,
        pass_on_early: false,
        place: Place::Region,
        in_order: true,
        atomic_writes: true,
        carries: 0,
        leaves: false,
        masked: false,
        mends: false,
    };
    pub(crate) const EMBEDDED: Style = Style { place: Place::Embedded, ..Style::FAST };
    pub(crate) const REAR: Style = Style { place: Place::Rear, ..Style::FAST };
    pub(crate) const FRONT: Style = Style { place: Place::Front, ..Style::FAST };
    pub(crate) const LEAVING: Style = Style { leaves: true, ..Style::FAST };
    /// Every place of the lock word and way to clear it, and with images, which rear locks do not have.
    pub(crate) const PLACES: [Style; 8] = [
        Style::FAST,
        Style::EMBEDDED,
        Style::REAR,
        Style { in_order: false, ..Style::REAR },
        Style::FRONT,
        Style::LEAVING,
        Style { leaves: true, ..Style::FRONT },
        Style { masked: true, ..Style::FRONT },
    ];
    /// Styles in which the word carries something: so little that payloads come back soon, and as much as there may be.
    pub(crate) const CARRYING: [Style; 6] = [
        Style { carries: 2, leaves: true, ..Style::EMBEDDED },
        Style { carries: WordCodec::PAYLOAD_BITS_MAX, ..Style::EMBEDDED },
        Style { carries: 1, ..Style::REAR },
        Style { carries: 3, in_order: false, ..Style::REAR },
        Style { carries: 2, in_order: false, ..Style::FRONT },
        Style { carries: 2, masked: true, ..Style::FRONT },
    ];

    /// Styles in which torn nodes are mended.
    pub(crate) const MENDED: [Style; 3] = [
        Style { mends: true, ..Style::EMBEDDED },
        Style { mends: true, in_order: false, ..Style::FRONT },
        Style { mends: true, atomic_writes: false, ..Style::FRONT },
    ];
    /// Every place of the lock word where only a CAS may clear it.
    pub(crate) const CLEARED_BY_CAS: [Style; 6] = [
        Style { atomic_writes: false, ..Style::FAST },
        Style { atomic_writes: false, combine: false, ..Style::FAST },
        Style { atomic_writes: false, ..Style::EMBEDDED },
        Style { atomic_writes: false, in_order: false, ..Style::REAR },
        Style { atomic_writes: false, ..Style::FRONT },
        Style { atomic_writes: false, carries: 2, ..Style::FRONT },
    ];

    /// Makes a world of `nodes` compute nodes of `shards` shards each, on a fabric as the style has it.
    pub(crate) fn world(self, seed: u64, nodes: u16, shards: u16) -> World {
        let world = World::new(seed, nodes, shards).with_lines(self.in_order);
        world.with_atomic_writes(self.atomic_writes).with_masked_atomic(self.masked)
    }

    /// Counts the chains of an operation before its write-back.
    pub(crate) fn chains_to_read(self) -> usize {
        if self.fused && !self.masked { 1 } else { 2 }
    }

    /// Yields the offsets of the lines' stamps in a node.
    fn stamps(self) -> [usize; 2] {
        [STAMP, if self.place == Place::Front { NODE_BYTES - 8 } else { DATA_BYTES - 8 }]
    }

    /// Yields how a torn node is mended: the first line, which has the counters of clients below 7, is right.
    pub(crate) fn mending(self) -> Option<Mending> {
        let [first, second] = self.stamps();
        let mend = move |image: &mut [u8]| {
            let is_torn = image[first..first + 8] != image[second..second + 8];
            image.copy_within(first..first + 8, second);
            Some(is_torn.then_some(second..second + 8).into_iter().collect())
        };
        let lock_at = embedded(0).offset() - node(0).offset();
        self.mends.then(|| Mending { lock_at, node_bytes: NODE_BYTES, mend: Rc::new(mend) })
    }

    pub(crate) fn codec(self) -> WordCodec {
        WordCodec::carrying(self.carries)
    }

    /// Yields the configuration of tables whose clients work in this style.
    pub(crate) fn config(self, config: LockConfig) -> LockConfig {
        LockConfig { codec: self.codec(), ..config }
    }
}

/// One client and what it knows of its own word.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) fake: Fake,
    pub(crate) table: LockTable<Fake>,
    /// The client's number, below 12: that decides on its word in each node.
    pub(crate) word: usize,
    pub(crate) style: Style,
    /// The least and the most that the word may hold: operations that were cut or failed count for the most only.
    pub(crate) bounds: Rc<Cell<(u64, u64)>>,
    /// Times that it held something else, or the node was torn.
    pub(crate) lost: Rc<Cell<u32>>,
    /// The payload that it saw last.
    pub(crate) carried: Rc<Cell<u64>>,
}

impl Client {
    pub(crate) fn new((fake, table): &(Fake, LockTable<Fake>), word: usize, style: Style) -> Self {
        let (bounds, lost, carried) = Default::default();
        Client { fake: fake.clone(), table: table.clone(), word, style, bounds, lost, carried }
    }

    /// Adds one to the client's word in `node`. Updates the bounds by what is seen on the way.
    pub(crate) async fn add_one(&self, meter: &Meter, node: RemotePtr) -> Result<(), LockError> {
        let mut buf = self.fake.lease(NODE_BYTES);
        let mut held = self.acquire(meter, node).await?;
        if self.style.carries > 0 {
            held.expect_payload(self.carried.get());
        }
        let stamps = self.style.stamps();
        let mut came_with_cas = None;
        if self.style.masked && !held.was_handed_over() {
            let around = slice::from_ref(&AROUND_WORD);
            buf = held.lock_and_read_parts(meter, buf, around, true).await?.into_buf();
            came_with_cas = Some(word_in(&buf, stamps[1]));
        }
        let done = held.lock_and_read(meter, buf, NODE_BYTES, self.style.fused).await?;
        let mut buf = done.into_buf();
        let [stamp, other] = stamps.map(|at| word_in(&buf, at));
        // A torn node, or one that has changed under the lock.
        let is_torn = stamp != other || came_with_cas.is_some_and(|came| came != stamp);
        self.lost.set(self.lost.get() + u32::from(is_torn));
        if self.style.carries > 0 {
            self.carry(&mut held, stamp);
        }
        let value = word_in(&buf, self.place());
        self.see(value);
        self.bounds.set((value, value + 1));
        for (at, word) in [(self.place(), value + 1), (stamps[0], stamp + 1), (stamps[1], stamp + 1)] {
            buf[at..][..8].copy_from_slice(&word.to_le_bytes());
        }
        if self.style.place == Place::Rear {
            let buf = held.release_rear(meter, buf, 0..DATA_BYTES).await?;
            assert_eq!(buf.len(), NODE_BYTES);
            self.bounds.set((value + 1, value + 1));
            return Ok(());
        }
        let mut chain = Chain::with_buffer(node.server(), buf);
        chain.write(node, 0..DATA_BYTES);
        if self.style.place == Place::Front {
            held.with_words_behind(NODE_BYTES - 8..NODE_BYTES);
        }
        if self.style.mends {
            held.with_mending();
        }
        if self.style.pass_on_early {
            let writing = self.fake.submit(meter, chain);
            held.release(meter, Chain::new(node.server()), true).await?;
            writing.await?;
        } else {
            let whole = 0..NODE_BYTES;
            let known = if self.style.leaves { slice::from_ref(&whole) } else { &[] };
            held.release_with_image(meter, chain, self.style.combine, known).await?;
        }
        self.bounds.set((value + 1, value + 1));
        Ok(())
    }

    pub(crate) async fn acquire(&self, meter: &Meter, node: RemotePtr) -> Result<Held<Fake>, LockError> {
        match self.style.place {
            Place::Region => self.table.acquire(meter, node).await,
            Place::Embedded | Place::Rear | Place::Front => {
                let index = (node.offset() - NODES) / NODE_BYTES as u64;
                self.table.acquire_embedded(meter, node, embedded(index)).await
            }
        }
    }

    /// Compares what the lock word carried with the node's stamp, and gives it the next one.
    fn carry(&self, held: &mut Held<Fake>, stamp: u64) {
        let payload_max = self.style.codec().payload_max();
        self.lost.set(self.lost.get() + u32::from(held.payload() != stamp & payload_max));
        self.carried.set((stamp + 1) & payload_max);
        held.set_payload(self.carried.get());
    }

    /// Compares what the word holds with what it may hold.
    fn see(&self, value: u64) {
        let (least, most) = self.bounds.get();
        self.lost.set(self.lost.get() + u32::from(!(least..=most).contains(&value)));
    }

    /// Counts the updates that were lost, the word's last value being `value`.
    pub(crate) fn lost(&self, value: u64) -> u32 {
        self.see(value);
        self.lost.get()
    }

    /// Reads what its word in node `index` holds.
    pub(crate) fn value(&self, world: &World, index: u64) -> u64 {
        world.word(NODES + index * NODE_BYTES as u64 + self.place() as u64)
    }

    /// Yields the offset of its word in a node, behind the first line's stamp if need be.
    fn place(&self) -> usize {
        (self.word + usize::from(self.word >= STAMP / 8)) * 8
    }
}

/// Asserts that no line of a node is older than the others.
pub(crate) fn assert_whole(world: &World, index: u64, style: Style) {
    let [first, second] = style.stamps().map(|at| world.word(NODES + index * NODE_BYTES as u64 + at as u64));
    assert_eq!(first, second, "node {index} stays torn");
}

/// Asserts that the lock word of a node is free, and carries what it should.
pub(crate) fn assert_carried(world: &World, index: u64, style: Style) {
    let stamp = world.word(NODES + index * NODE_BYTES as u64 + STAMP as u64);
    let carried = world.word(embedded(index).offset());
    assert_eq!(carried, stamp & style.codec().payload_max(), "node {index} has another's payload");
}

fn word_in(buf: &Buf, at: usize) -> u64 {
    u64::from_le_bytes(buf[at..][..8].try_into().expect("8 bytes"))
}

/// A future that drops `future` after `polls` polls that left it pending: at once, or when it would be polled the next
/// time (what it waited for has come, and it has not noticed). Yields `None` then.
pub(crate) struct Cut<F> {
    future: Option<Pin<Box<F>>>,
    polls: u32,
    at_once: bool,
}

impl<F: Future> Cut<F> {
    pub(crate) fn after(polls: u32, at_once: bool, future: F) -> Self {
        Cut { future: Some(Box::pin(future)), polls, at_once }
    }
}

impl<F: Future> Future for Cut<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.polls > 0 {
            let future = self.future.as_mut().expect("polled after it was ready");
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            self.polls -= 1;
            if self.polls > 0 || !self.at_once {
                return Poll::Pending;
            }
        }
        self.future = None;
        Poll::Ready(None)
    }
}
