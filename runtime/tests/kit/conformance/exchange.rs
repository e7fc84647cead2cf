//! Tools that the parts share: shards that meet, counts to wait for, clients, and single verbs with patterns to check.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::{Context, Poll};

use farwood_runtime::{Buf, Chain, ClientPool, Completion, Message, Meter, Port, RemotePtr, ShardId, Waiter};

/// Barriers that no shard passes before all have come there; made of messages.
pub(crate) struct Barrier<V> {
    v: V,
    arrived: Rc<Tally<V>>,
    round: Rc<Cell<u64>>,
}

impl<V: ClientPool> Barrier<V> {
    const PORT: Port = Port(0);

    pub(crate) fn new(v: &V) -> Self {
        Barrier { v: v.clone(), arrived: Tally::listen(v, Self::PORT), round: Rc::default() }
    }

    pub(crate) async fn wait(&self) {
        self.round.set(self.round.get() + 1);
        let shards = self.v.shards() as u16;
        (0..shards).for_each(|to| self.v.send(ShardId(to), Self::PORT, Message::default()));
        self.arrived.reached(self.round.get() * u64::from(shards)).await;
    }
}

impl<V: Clone> Clone for Barrier<V> {
    fn clone(&self) -> Self {
        Barrier { v: self.v.clone(), arrived: Rc::clone(&self.arrived), round: Rc::clone(&self.round) }
    }
}

/// A count that a client can wait for.
pub(crate) struct Tally<V> {
    v: V,
    count: Cell<u64>,
    waiting: RefCell<Vec<Waiter>>,
}

impl<V: ClientPool> Tally<V> {
    pub(crate) fn new(v: V) -> Self {
        Tally { v, count: Cell::new(0), waiting: RefCell::default() }
    }

    /// Counts the messages to a port.
    pub(crate) fn listen(v: &V, port: Port) -> Rc<Self> {
        let tally = Rc::new(Tally::new(v.clone()));
        let counting = Rc::clone(&tally);
        v.listen(port, Rc::new(move |_, _| counting.add()));
        tally
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.get()
    }

    pub(crate) fn add(&self) {
        self.count.set(self.count.get() + 1);
        for waiter in self.waiting.take() {
            self.v.wake(waiter);
        }
    }

    pub(crate) async fn reached(&self, count: u64) {
        poll_fn(|cx: &mut Context<'_>| {
            if self.count.get() >= count {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(self.v.waiter(cx));
            Poll::Pending
        })
        .await;
    }
}

pub(super) async fn maybe_in_client<V: ClientPool, T: 'static>(
    v: &V,
    inside: bool,
    future: impl Future<Output = T> + 'static,
) -> T {
    if inside { v.spawn(future).await } else { future.await }
}

pub(super) async fn run<V: ClientPool>(v: &V, chain: Chain) -> Completion {
    v.submit(&Meter::default(), chain).await.unwrap()
}

/// Reads `counter`, after everything posted before.
pub(super) async fn counted<V: ClientPool>(v: &V, counter: RemotePtr) -> u64 {
    let mut chain = Chain::new(counter.server());
    chain.fence().faa(counter, 0);
    run(v, chain).await.atomics[0]
}

pub(super) async fn read<V: ClientPool>(v: &V, at: RemotePtr, len: usize) -> Buf {
    let mut buf = v.lease(len);
    buf.fill(0xEE);
    let mut chain = Chain::with_buffer(at.server(), buf);
    chain.read(at, 0..len);
    run(v, chain).await.into_buf()
}

pub(super) async fn read_words<V: ClientPool>(v: &V, at: RemotePtr, words: usize) -> Vec<u64> {
    words_of(&read(v, at, words * 8).await)
}

pub(super) async fn write_words<V: ClientPool>(v: &V, at: RemotePtr, words: &[u64]) {
    let mut buf = v.lease(words.len() * 8);
    for (bytes, word) in buf.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let len = buf.len();
    let mut chain = Chain::with_buffer(at.server(), buf);
    chain.write(at, 0..len);
    run(v, chain).await;
}

pub(super) async fn fill<V: ClientPool>(v: &V, at: RemotePtr, len: usize, salt: u64) {
    let mut buf = v.lease(len);
    pattern(&mut buf, salt);
    let mut chain = Chain::with_buffer(at.server(), buf);
    chain.write(at, 0..len);
    run(v, chain).await;
}

/// Keeps the shard busy for a while without parking it: changes the phase of what follows.
pub(super) async fn spin<V: ClientPool>(v: &V, ns: u64) {
    let until = v.now() + ns;
    while v.now() < until {
        v.pause(0).await;
    }
}

pub(super) fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

/// Fills `bytes` so that no two words, and no two salts, are alike.
pub(super) fn pattern(bytes: &mut [u8], salt: u64) {
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = pattern_at(i, salt);
    }
}

pub(super) fn is_pattern(bytes: &[u8], from: usize, salt: u64) -> bool {
    bytes.iter().enumerate().all(|(i, &byte)| byte == pattern_at(from + i, salt))
}

fn pattern_at(i: usize, salt: u64) -> u8 {
    (((i as u64 / 8 * 0x9e37_79b9) ^ salt) >> (i % 8 * 8)) as u8 ^ i as u8
}
