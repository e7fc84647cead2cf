//! A shard's part of the windows: the handle that clients enter with, and the actor that talks to the other shards. It
//! carries out what [`super::home`] decides; it decides nothing itself.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use farwood_runtime::{Message, Meter, Port, ShardId, Verbs, Waiter};

use super::buffer_cache::BufferCache;
use super::config::{Access, WindowConfig};
use super::home::{Action, Home};
use super::key::{KeyHash, KeyId};
use super::lead::{Entered, LeaderGuard, Outcome};
use super::message::{Piece, Value, WindowMessage};
use super::stats::WindowStats;
use crate::handover::WaiterId;
use crate::patience::{Patience, Waited, is_over};
use crate::slots::{Delivery, Slots};
use crate::stats::Counters;

/// A handle to a shard's windows; clones are cheap. There is one table per shard and index, with the same port and
/// configuration on all shards of a compute node.
///
/// ```
/// # use farwood_lock::window::{Access, Entered, Outcome, WindowTable};
/// # use farwood_runtime::{FabricError, Meter, Verbs};
/// # async fn lookup(key: &[u8]) -> Result<Option<Vec<u8>>, FabricError> { Ok(None) }
/// async fn get<V: Verbs>(windows: &WindowTable<V>, key: &[u8]) -> Result<Option<Vec<u8>>, FabricError> {
///     match windows.enter(&Meter::default(), key, Access::Read).await {
///         Entered::Led(lead) => {
///             // An error drops `lead`: the clients that joined wait for another leader.
///             let value = lookup(key).await?;
///             lead.finish(Outcome::read(value.as_deref()));
///             Ok(value)
///         }
///         Entered::Read(value) => Ok(value.map(|value| value.to_vec())),
///         Entered::Bypass => lookup(key).await,
///         Entered::Written { .. } => unreachable!("only writers are told so"),
///     }
/// }
/// ```
pub struct WindowTable<V: Verbs>(Rc<Table<V>>);

impl<V: Verbs> Clone for WindowTable<V> {
    fn clone(&self) -> Self {
        WindowTable(Rc::clone(&self.0))
    }
}

impl<V: Verbs> WindowTable<V> {
    /// Attaches a window table to `verbs`' shard. It receives on `port` for as long as that is leased, or the shard
    /// lives: the shard is the home of keys that clients elsewhere use, also when this handle is gone.
    ///
    /// ```
    /// # use farwood_lock::window::{WindowConfig, WindowTable};
    /// # use farwood_runtime::NodeContext;
    /// # farwood_doctest::run(async |node, shard| {
    /// let port = node.allocate_port();
    /// let windows = WindowTable::attach(shard, port.port(), WindowConfig::default());
    /// assert_eq!(windows.in_use(), (0, 0));
    /// # Ok(()) });
    /// ```
    pub fn attach(verbs: V, port: Port, config: WindowConfig) -> Self {
        let shards = verbs.shards();
        let table = Rc::new(Table {
            me: verbs.shard(),
            shards,
            port,
            config,
            hash: KeyHash::new(config.seed),
            home: RefCell::default(),
            slots: RefCell::new(Slots::new()),
            buffers: BufferCache::default(),
            came: RefCell::new(vec![Vec::new(); shards].into()),
            sent: RefCell::new(vec![0; shards].into()),
            endings: Cell::new(0),
            counters: Counters::default(),
            patience: Patience::new(config.wait_max),
            verbs,
        });
        let actor = Rc::clone(&table);
        let handler = Rc::new(move |from, message| actor.receive(from, message));
        let resting = Rc::clone(&table);
        let at_rest = Rc::new(move || resting.slots.borrow().len() + resting.home.borrow().len() == 0);
        table.verbs.listen_while_leased(port, handler, at_rest);
        WindowTable(table)
    }

    /// Leads a window of `key`, at once if none is open; or waits for the open one to end, and leads the next or
    /// joins it. No round trip; messages to another shard if the key's home is there.
    ///
    /// A client works alone if it waits for too long ([`WindowConfig::wait_max`]), or if its window is kept by a
    /// shard that has ended.
    ///
    /// The client must hold no lock and lead no other window: the client it waits for might wait for it.
    ///
    /// ```
    /// # farwood_doctest::windows!(|shard, windows, meter| {
    /// let read = async || match windows.enter(&meter, b"anna", Access::Read).await {
    ///     Entered::Led(lead) => {
    ///         shard.pause(1000).await; // the READ
    ///         lead.finish(Outcome::read(Some(b"1")));
    ///         "led"
    ///     }
    ///     Entered::Read(Some(value)) if *value == *b"1" => "joined",
    ///     _ => unreachable!("no client writes"),
    /// };
    /// assert_eq!(futures::join!(read(), read(), read()), ("led", "led", "joined"));
    /// # });
    /// ```
    pub fn enter<'a>(
        &'a self,
        meter: &'a Meter,
        key: &[u8],
        access: Access,
    ) -> impl Future<Output = Entered<V>> + use<'a, V> {
        let Table { config, hash, .. } = &*self.0;
        self.enter_identified(meter, config.lets_in(access).then(|| hash.identify(key)), access)
    }

    /// Enters the window of a key; `None` stands for a key whose windows are not for this access.
    async fn enter_identified(&self, meter: &Meter, key: Option<KeyId>, access: Access) -> Entered<V> {
        let table = &self.0;
        let Some(key) = key else { return Entered::Bypass };
        let home = key.home(table.shards);
        if home != table.me && table.verbs.has_ended(home) {
            return Entered::Bypass;
        }
        let Some(token) = table.request(key, home, access) else {
            return Entered::Led(LeaderGuard::new(Rc::clone(table), key, home, access, false));
        };
        let response = Waiting { table, meter, key, home, token: Some(token) }.await;
        match response.unwrap_or(Response::Bypass) {
            Response::Lead { readers } => {
                Entered::Led(LeaderGuard::new(Rc::clone(table), key, home, access, readers))
            }
            Response::Read(value) => {
                tracing::debug!(name: "window.joined", home = home.0, "a read is another client's too");
                table.counters.count(|stats| stats.reads_delegated += 1);
                Entered::Read(value.map(|bytes| table.buffers.value(bytes)))
            }
            Response::Written(applied) => {
                tracing::debug!(name: "window.combined", home = home.0, "a write is overwritten by another client's");
                table.counters.count(|stats| stats.writes_combined += 1);
                Entered::Written { applied }
            }
            Response::Bypass => {
                tracing::debug!(name: "window.bypassed", home = home.0, "a value is too long to be sent");
                table.counters.count(|stats| stats.bypassed += 1);
                Entered::Bypass
            }
        }
    }

    /// Yields the counters of this shard.
    ///
    /// ```
    /// # farwood_doctest::windows!(|shard, windows, meter| {
    /// if let Entered::Led(lead) = windows.enter(&meter, b"anna", Access::Write(0)).await {
    ///     lead.finish(Outcome::written(true, b"1"));
    /// }
    /// assert_eq!(windows.stats().windows, 1);
    /// # });
    /// ```
    pub fn stats(&self) -> WindowStats {
        self.0.counters.read()
    }

    /// Counts the bytes that this shard's part of the table takes: they grow with the largest number of concurrent
    /// clients and what they read, not with keys.
    ///
    /// ```
    /// # farwood_doctest::windows!(|shard, windows, meter| {
    /// assert!(windows.bytes() < 4096, "no client was here");
    /// # });
    /// ```
    pub fn bytes(&self) -> usize {
        let table = &self.0;
        let came: usize = table.came.borrow().iter().map(Vec::capacity).sum();
        size_of::<Table<V>>()
            + table.shards * (size_of::<Vec<u8>>() + size_of::<u64>())
            + came
            + table.home.borrow().bytes()
            + table.slots.borrow().bytes()
            + table.buffers.bytes()
    }

    /// Counts the clients of this shard that wait or are being cancelled, and the keys at home here that have a window.
    /// Both are 0 at rest.
    ///
    /// ```
    /// # farwood_doctest::windows!(|shard, windows, meter| {
    /// let entered = windows.enter(&meter, b"anna", Access::Read).await;
    /// assert_eq!(windows.in_use(), (0, 1));
    /// drop(entered);
    /// assert_eq!(windows.in_use(), (0, 0));
    /// # });
    /// ```
    pub fn in_use(&self) -> (usize, usize) {
        (self.0.slots.borrow().len(), self.0.home.borrow().len())
    }
}

/// State that the handles of one shard share.
pub(super) struct Table<V: Verbs> {
    verbs: V,
    config: WindowConfig,
    counters: Counters<WindowStats>,
    patience: Patience,
    me: ShardId,
    shards: usize,
    port: Port,
    hash: KeyHash,
    home: RefCell<Home>,
    slots: RefCell<Slots<Response, Waiter>>,
    buffers: BufferCache,
    /// The value that came last from each shard, in pieces.
    came: RefCell<Box<[Vec<u8>]>>,
    /// For each shard the last ending of a window of which it was sent the value.
    sent: RefCell<Box<[u64]>>,
    endings: Cell<u64>,
}

/// The answer to a client that waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Response {
    /// It leads a window now.
    Lead { readers: bool },
    /// The value that was read for it; `None` if there is none.
    Read(Option<Vec<u8>>),
    /// The write that overwrote its own was applied, or not.
    Written(bool),
    /// It works for itself.
    Bypass,
}

/// The value at the end of a window, as its home knows it.
#[derive(Clone, Copy)]
enum Found<'a> {
    Absent,
    Known(&'a [u8]),
    TooLong,
}

impl<V: Verbs> Table<V> {
    /// Passes on the outcome of the leader of `key`, which is done.
    #[inline]
    pub(super) fn finish(self: &Rc<Self>, key: KeyId, home: ShardId, readers: bool, outcome: Outcome<'_>) {
        let Outcome { applied, value, .. } = outcome;
        if home == self.me {
            let found = value.map_or(Found::Absent, Found::Known);
            return self.end(key, self.me, applied, found);
        }
        let value = match value {
            Some(value) if readers => self.send_value(home, value),
            _ => Value::Absent,
        };
        self.send(home, WindowMessage::Finish { key, applied, value });
    }

    /// Ends the window of `key`, whose leader has given up.
    #[cold]
    pub(super) fn fail(self: &Rc<Self>, key: KeyId, home: ShardId) {
        tracing::debug!(name: "window.failed", home = home.0, "the leader of a window has given up");
        if home == self.me {
            self.fail_here(key, self.me);
        } else {
            self.send(home, WindowMessage::Fail { key });
        }
    }

    /// Asks for the key. Yields `None` if the client leads at once, which only a home on this shard can tell; otherwise
    /// the token that it waits with.
    #[inline]
    fn request(self: &Rc<Self>, key: KeyId, home: ShardId, access: Access) -> Option<u32> {
        if home == self.me && self.home.borrow_mut().open(key, self.me) {
            self.counters.count(|stats| stats.windows += 1);
            return None;
        }
        let token = self.slots.borrow_mut().open(());
        if home == self.me {
            self.home.borrow_mut().wait(key, WaiterId { shard: self.me, token }, access);
        } else {
            self.send(home, WindowMessage::Enter { key, token, access });
        }
        Some(token)
    }

    fn abandon(self: &Rc<Self>, key: KeyId, home: ShardId, token: u32) {
        let response = self.slots.borrow_mut().abandon(token);
        match response {
            None if home == self.me => {
                let client = WaiterId { shard: self.me, token };
                let action = self.home.borrow_mut().cancel(key, client);
                self.perform(key, action);
            }
            None => self.send(home, WindowMessage::Cancel { key, token }),
            Some(Response::Lead { .. }) => self.fail(key, home),
            Some(Response::Read(Some(bytes))) => self.buffers.take_back(bytes),
            Some(Response::Read(None) | Response::Written(_) | Response::Bypass) => {}
        }
    }

    fn receive(self: &Rc<Self>, from: ShardId, message: Message) {
        let message = WindowMessage::decode(message).expect("the port carries window messages only");
        match message {
            WindowMessage::Piece(piece) => piece.add_to(&mut self.came.borrow_mut()[usize::from(from.0)]),
            WindowMessage::Enter { key, token, access } => {
                self.admit(key, WaiterId { shard: from, token }, access)
            }
            WindowMessage::Cancel { key, token } => {
                let action = self.home.borrow_mut().cancel(key, WaiterId { shard: from, token });
                self.perform(key, action);
            }
            WindowMessage::Finish { key, applied, value } => {
                let came = self.came.borrow();
                let found = match value {
                    Value::Absent => Found::Absent,
                    Value::Sent => Found::Known(&came[usize::from(from.0)]),
                    Value::TooLong => Found::TooLong,
                };
                self.end(key, from, applied, found);
            }
            WindowMessage::Fail { key } => self.fail_here(key, from),
            WindowMessage::Lead { key, token, readers } => self.appoint(key, from, token, readers),
            WindowMessage::Read { token, value } => self.tell(token, || match value {
                Value::Absent => Response::Read(None),
                Value::Sent => {
                    Response::Read(Some(self.buffers.copy(&self.came.borrow()[usize::from(from.0)])))
                }
                Value::TooLong => Response::Bypass,
            }),
            WindowMessage::Written { token, applied } => self.tell(token, || Response::Written(applied)),
            WindowMessage::Cancelled { token } => self.slots.borrow_mut().cancelled(token),
        }
    }

    /// Admits a client of another shard that wants a key at home here.
    fn admit(self: &Rc<Self>, key: KeyId, client: WaiterId, access: Access) {
        let mut home = self.home.borrow_mut();
        if !home.open(key, client.shard) {
            return home.wait(key, client, access);
        }
        drop(home);
        self.perform(key, Action::Lead { to: client, readers: false });
    }

    /// Ends the window of a key that is at home here: answers its whole group, and starts the next.
    #[inline]
    fn end(self: &Rc<Self>, key: KeyId, leader: ShardId, applied: bool, found: Found<'_>) {
        let ending = self.endings.get() + 1;
        self.endings.set(ending);
        let action = self.home.borrow_mut().finish(key, leader, |to, access| match access {
            Access::Read => self.tell_reader(to, found, ending),
            Access::Write(_) if to.shard == self.me => self.tell(to.token, || Response::Written(applied)),
            Access::Write(_) => self.send(to.shard, WindowMessage::Written { token: to.token, applied }),
        });
        self.perform(key, action);
    }

    fn fail_here(self: &Rc<Self>, key: KeyId, leader: ShardId) {
        let action = self.home.borrow_mut().fail(key, leader);
        self.perform(key, action);
    }

    fn tell_reader(&self, to: WaiterId, found: Found<'_>, ending: u64) {
        let WaiterId { shard, token } = to;
        if shard == self.me {
            return self.tell(token, || match found {
                Found::Absent => Response::Read(None),
                Found::Known(value) => Response::Read(Some(self.buffers.copy(value))),
                Found::TooLong => Response::Bypass,
            });
        }
        let value = match found {
            Found::Absent => Value::Absent,
            Found::TooLong => Value::TooLong,
            Found::Known(value) if value.len() > self.config.value_bytes_max => Value::TooLong,
            Found::Known(_) if self.has_been_sent(shard, ending) => Value::Sent,
            Found::Known(value) => self.send_value(shard, value),
        };
        self.send(shard, WindowMessage::Read { token, value });
    }

    /// Tells whether `shard` was sent the value of this ending. If not, the caller sends it now.
    fn has_been_sent(&self, shard: ShardId, ending: u64) -> bool {
        let sent = &mut self.sent.borrow_mut()[usize::from(shard.0)];
        std::mem::replace(sent, ending) == ending
    }

    /// Sends `value` ahead of a message, unless it is too long.
    fn send_value(&self, to: ShardId, value: &[u8]) -> Value {
        if value.len() > self.config.value_bytes_max {
            return Value::TooLong;
        }
        Piece::all_of(value).for_each(|piece| self.send(to, WindowMessage::Piece(piece)));
        Value::Sent
    }

    fn perform(self: &Rc<Self>, key: KeyId, action: Action) {
        match action {
            Action::Nothing => {}
            Action::Lead { to, readers } => {
                self.counters.count(|stats| stats.windows += 1);
                if to.shard == self.me {
                    self.appoint(key, self.me, to.token, readers);
                } else {
                    self.send(to.shard, WindowMessage::Lead { key, token: to.token, readers });
                }
            }
            Action::Cancelled { to } if to.shard == self.me => self.slots.borrow_mut().cancelled(to.token),
            Action::Cancelled { to } => self.send(to.shard, WindowMessage::Cancelled { token: to.token }),
        }
    }

    /// Tells a client here that it leads.
    fn appoint(self: &Rc<Self>, key: KeyId, home: ShardId, token: u32, readers: bool) {
        let delivery = self.slots.borrow_mut().tell(token, || Response::Lead { readers });
        match delivery {
            Delivery::Waiting(waiter) => self.resume(waiter),
            Delivery::Gone => self.fail(key, home),
        }
    }

    /// Answers a client of this shard.
    fn tell(&self, token: u32, response: impl FnOnce() -> Response) {
        let delivery = self.slots.borrow_mut().tell(token, response);
        if let Delivery::Waiting(waiter) = delivery {
            self.resume(waiter);
        }
    }

    fn resume(&self, waiter: Option<Waiter>) {
        if let Some(waiter) = waiter {
            self.verbs.wake(waiter);
        }
    }

    fn send(&self, to: ShardId, message: WindowMessage) {
        self.verbs.send(to, self.port, message.encode());
    }
}

impl<V: Verbs> Waited for Table<V> {
    type Verbs = V;

    fn verbs(&self) -> &V {
        &self.verbs
    }

    fn patience(&self) -> &Patience {
        &self.patience
    }

    fn find_overdue(&self, now_ns: u64, overdue: &mut Vec<Waiter>) -> bool {
        self.slots.borrow_mut().find_overdue(now_ns, overdue)
    }
}

/// A client that waits for a window: ready with nothing if it has waited for too long. Dropping it leaves the queue.
struct Waiting<'a, V: Verbs> {
    table: &'a Rc<Table<V>>,
    meter: &'a Meter,
    key: KeyId,
    home: ShardId,
    /// `None` once it was told something.
    token: Option<u32>,
}

impl<V: Verbs> Future for Waiting<'_, V> {
    type Output = Option<Response>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Response>> {
        let table = self.table;
        let token = self.token.expect("polled after it was ready");
        let polled = table.slots.borrow_mut().poll(token, || table.verbs.waiter(cx));
        match polled {
            Some(response) => {
                table.slots.borrow_mut().close(token);
                self.token = None;
                Poll::Ready(Some(response))
            }
            None => {
                let note = |until_ns| table.slots.borrow_mut().wait_until(token, until_ns);
                if is_over(table, self.meter, note) { Poll::Ready(None) } else { Poll::Pending }
            }
        }
    }
}

impl<V: Verbs> Drop for Waiting<'_, V> {
    fn drop(&mut self) {
        if let Some(token) = self.token {
            self.table.abandon(self.key, self.home, token);
        }
    }
}
