//! The slots in which a shard keeps its intents ([`crate::intent`]): pages of the index's own memory, on the servers of
//! the locks. It does not know what an intent is.
//!
//! A client that takes a lock has a slot first, so that no release has to ask for memory. Its lock word says so
//! ([`crate::word`]): a word that says it has an owner with a page on its server, and what that owner has not recorded
//! it has not begun to write, or the node tells of it ([`crate::mending`]). Where there is no memory for a slot the
//! word says nothing, and is not taken over.
//!
//! ```text
//!   holder   has a slot ── CAS word ──> ... ──> WRITE intent, WRITE node, unlock ── the slot is free again
//!   first    no slot: a page is asked for, in the background                 no memory: CAS word without the promise
//! ```
//!
//! A slot is free again when the chains that may write to it, or need what is in it, have ended for certain. Pages
//! belong to the shard until its last handle goes; then they are free for others, and stay in the list. Those of a
//! compute node that is dead, and fenced, are free as well, as soon as no lock has the word of an intent that is in
//! them, or another index's word that stands for it ([`crate::word`]): then none will have it again.

pub(crate) mod page;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use farwood_runtime::alloc::{AllocError, Allocated, Expected};
use farwood_runtime::{FabricError, Failed, NodeAllocator, RemotePtr, ServerId, Verbs};

use self::page::{HEADER_BYTES, Owner, Page, Shape};
use crate::intent;
use crate::mending::Mending;
use crate::pace::{ATTEMPTS_MAX, PAUSE_NS_MIN, Pace};
use crate::word::LockWord;

/// The most slots of a page.
const SLOTS_MAX: u64 = 16;
/// A page is a chunk divided by this at most, unless that is too little for one slot.
const CHUNK_SHARE: u64 = 8;
/// Slots are whole lines.
const LINE_BYTES: u64 = 64;
/// Bytes of an intent beside the node's: its header, and some WRITEs.
const INTENT_BYTES: u64 = 128;
/// The time until memory is asked for again after there was none, in ns.
const ASK_AGAIN_NS: u64 = 10_000_000;
/// The time until the control plane is asked again which compute nodes are dead, in ns.
const DEAD_AGAIN_NS: u64 = 100_000_000;
/// The pauses of a table that ends while some of its slots are in use, and how many they are.
const END_PAUSE_NS: u64 = 1_000_000;
const END_PAUSES_MAX: u32 = 1_000;

/// Memory for intents: what another compute node needs to finish a node that a dead one has half written.
#[derive(Clone)]
pub struct IntentLog {
    /// The word in which the list of the index's pages begins. It is 0 in a new index.
    pub head: RemotePtr,
    /// Memory of the index, for pages.
    pub allocator: Rc<NodeAllocator>,
    /// Bytes of the largest node that is written back under a lock.
    pub node_bytes: u64,
    /// The way to make nodes whole that a dead owner has left without an intent, if there is one.
    pub mending: Option<Mending>,
}

/// The slots of one lock table.
pub(crate) struct Intents {
    head: RemotePtr,
    owner: Owner,
    node_bytes: u64,
    mending: Option<Mending>,
    /// None when the table has ended.
    allocator: RefCell<Option<Rc<NodeAllocator>>>,
    servers: RefCell<Vec<Pages>>,
    page_bytes: Cell<u64>,
    dead: RefCell<Dead>,
}

/// Compute nodes that are dead, and fenced, as the control plane said when it was asked last.
#[derive(Default)]
struct Dead {
    ids: Arc<[u16]>,
    ask_from_ns: u64,
}

/// The pages of one server.
#[derive(Default)]
struct Pages {
    places: Vec<Place>,
    /// Those of them that are free.
    free: Vec<u32>,
    listed: Vec<(RemotePtr, Shape)>,
    /// A page of which it is not known whether it is in the list.
    unlisted: Option<Unlisted>,
    is_asked: bool,
    ask_from_ns: u64,
}

/// A page that is put in the list.
struct Unlisted {
    at: RemotePtr,
    shape: Shape,
    /// It may be in no list for long: it is not lost meanwhile.
    _expected: Option<Expected>,
}

/// A place for one intent.
#[derive(Clone, Copy)]
struct Place {
    at: RemotePtr,
    bytes: u32,
}

/// A client's right to a place for one intent, which is free again when this is dropped. Two words: each lock that is
/// held has one of these, or room for it.
pub(crate) struct Slot {
    of: Rc<Intents>,
    server: ServerId,
    place: u32,
}

impl Slot {
    pub(crate) fn at(&self) -> RemotePtr {
        self.place().at
    }

    pub(crate) fn bytes(&self) -> usize {
        self.place().bytes as usize
    }

    /// Leaves what is in it for good: it may be needed when this compute node has died.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }

    fn place(&self) -> Place {
        self.of.at_server(self.server, |pages| pages.places[self.place as usize])
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.of.at_server(self.server, |pages| pages.free.push(self.place));
    }
}

/// Lists the pages of intents of the index whose list begins in `head`, each with its bytes; `None` if the list does
/// not come to an end. One round trip for each page. They stay in the list until the index is dropped.
///
/// ```
/// # use farwood_lock::intent_pages;
/// # farwood_doctest::locks!(|shard, locks, node, meter| {
/// // A word that is zero.
/// assert_eq!(intent_pages(&shard, node).await?, Some(vec![]));
/// # });
/// ```
///
/// # Errors
/// If a memory server cannot be read.
pub async fn intent_pages<V: Verbs>(
    verbs: &V,
    head: RemotePtr,
) -> Result<Option<Vec<(RemotePtr, u64)>>, FabricError> {
    let pages = page::list(verbs, head).await?;
    Ok(pages.map(|pages| pages.into_iter().map(|page| (page.at, page.shape.page_bytes())).collect()))
}

/// Chooses the shape of pages for nodes of so many bytes, on a server with such chunks. `None` if a chunk has no room
/// for a slot.
fn shape_for(node_bytes: u64, chunk_bytes: u64) -> Option<Shape> {
    let room = |bytes: u64| bytes.saturating_sub(HEADER_BYTES) / LINE_BYTES * LINE_BYTES;
    let slot_bytes = (node_bytes + INTENT_BYTES).next_multiple_of(LINE_BYTES).min(room(chunk_bytes));
    let slots = room(chunk_bytes / CHUNK_SHARE).checked_div(slot_bytes)?.clamp(1, SLOTS_MAX);
    Some(Shape { slot_bytes: u32::try_from(slot_bytes).ok()?, slots: slots as u32 })
}

impl Intents {
    pub(crate) fn new(log: IntentLog, owner: Owner) -> Rc<Self> {
        let IntentLog { head, allocator, node_bytes, mending } = log;
        Rc::new(Intents {
            head,
            owner,
            node_bytes,
            mending,
            allocator: RefCell::new(Some(allocator)),
            servers: RefCell::default(),
            page_bytes: Cell::default(),
            dead: RefCell::default(),
        })
    }

    /// Yields where the list of pages begins.
    pub(crate) fn head(&self) -> RemotePtr {
        self.head
    }

    /// Yields how nodes are made whole whose owner has recorded nothing.
    pub(crate) fn mending(&self) -> Option<&Mending> {
        self.mending.as_ref()
    }

    /// Counts the bytes of pages that were allocated here.
    pub(crate) fn page_bytes(&self) -> u64 {
        self.page_bytes.get()
    }

    /// Yields a slot on that server, if one is free.
    pub(crate) fn take(self: &Rc<Self>, server: ServerId) -> Option<Slot> {
        let place = self.at_server(server, |pages| pages.free.pop())?;
        Some(Slot { of: Rc::clone(self), server, place })
    }

    /// Yields the ids of the dead, ascending. The control plane is asked now and then, and not for each page.
    async fn dead<V: Verbs>(&self, verbs: &V) -> Arc<[u16]> {
        if verbs.now() >= self.dead.borrow().ask_from_ns {
            match verbs.control().dead().await {
                Ok(ids) => self.dead.borrow_mut().ids = ids,
                Err(error) => tracing::debug!(%error, "it cannot be found out which compute nodes are dead"),
            }
            self.dead.borrow_mut().ask_from_ns = verbs.now() + DEAD_AGAIN_NS;
        }
        Arc::clone(&self.dead.borrow().ids)
    }

    fn at_server<T>(&self, server: ServerId, change: impl FnOnce(&mut Pages) -> T) -> T {
        let (mut servers, place) = (self.servers.borrow_mut(), usize::from(server.0));
        if servers.len() <= place {
            servers.resize_with(place + 1, Pages::default);
        }
        change(&mut servers[place])
    }

    /// Adds the slots of a page that is in the list, and this table's.
    fn add(&self, page: RemotePtr, shape: Shape) {
        self.at_server(page.server(), |pages| {
            pages.unlisted = None;
            pages.listed.push((page, shape));
            let first = pages.places.len() as u32;
            let places = shape.slots_of(page).map(|at| Place { at, bytes: shape.slot_bytes });
            pages.places.extend(places);
            pages.free.extend(first..pages.places.len() as u32);
        });
    }
}

/// Waits for a slot on that server: no round trip. `None` if there is no memory for one.
pub(crate) async fn slot<V: Verbs>(verbs: &V, intents: &Rc<Intents>, server: ServerId) -> Option<Slot> {
    if let Some(slot) = intents.take(server) {
        return Some(slot);
    }
    Box::pin(wait_for_slot(verbs, intents, server)).await
}

#[cold]
async fn wait_for_slot<V: Verbs>(verbs: &V, intents: &Rc<Intents>, server: ServerId) -> Option<Slot> {
    loop {
        if let Some(slot) = intents.take(server) {
            return Some(slot);
        }
        let (is_asked, ask_from_ns) = intents.at_server(server, |pages| (pages.is_asked, pages.ask_from_ns));
        if !is_asked {
            if verbs.now() < ask_from_ns || intents.allocator.borrow().is_none() {
                return None;
            }
            intents.at_server(server, |pages| pages.is_asked = true);
            verbs.attend(ask_for_page(verbs.clone(), Rc::clone(intents), server));
        }
        verbs.pause(PAUSE_NS_MIN).await;
    }
}

/// Gets one more page on that server, if it can be had. No client has this task, so none loses the page.
async fn ask_for_page<V: Verbs>(verbs: V, intents: Rc<Intents>, server: ServerId) {
    let mut pace = Pace::after(0);
    let got = loop {
        // A page that is allocated is in the list before the epoch ends: a sweep looks for it in one of the two.
        let pin = verbs.pins().pin();
        let asked = get_page(&verbs, &intents, server).await;
        drop(pin);
        let cause = match asked {
            Ok(got) => break got,
            Err(failed) => FabricError::from(failed),
        };
        let pause_ns = pace.failed(&cause, u32::MAX);
        if pace.attempts() >= ATTEMPTS_MAX || cause.is_refusal() {
            break false;
        }
        verbs.pause(pause_ns).await;
    };
    if !got {
        tracing::debug!(name: "lock.intent.no_memory", server = server.0, "there is no page for intents");
    }
    let again_ns = if got { 0 } else { verbs.now() + ASK_AGAIN_NS };
    intents.at_server(server, |pages| (pages.is_asked, pages.ask_from_ns) = (false, again_ns));
}

/// Takes a free page of the list, or adds one to it; yields whether there was one to be had.
async fn get_page<V: Verbs>(verbs: &V, intents: &Rc<Intents>, server: ServerId) -> Result<bool, Failed> {
    let owner = intents.owner;
    let chunk_bytes = verbs.control().servers().get(usize::from(server.0)).map_or(0, |info| info.chunk_bytes);
    let Some(shape) = shape_for(intents.node_bytes, chunk_bytes) else { return Ok(false) };
    let unlisted =
        intents.at_server(server, |pages| pages.unlisted.as_ref().map(|page| (page.at, page.shape)));
    if unlisted.is_none() {
        let Some(pages) = page::list(verbs, intents.head).await? else { return Ok(false) };
        let (own, others) = pages
            .into_iter()
            .filter(|page| page.at.server() == server && page.shape.slot_bytes >= shape.slot_bytes)
            .partition::<Vec<_>, _>(|page| [Owner::NONE, owner].contains(&page.owner));
        let is_known =
            |at| intents.at_server(server, |pages| pages.listed.iter().any(|(page, _)| *page == at));
        for page in own.into_iter().filter(|page| !is_known(page.at)) {
            if take_page(verbs, intents, page, Owner::NONE).await? {
                return Ok(true);
            }
        }
        for page in others {
            if is_left_by_the_dead(verbs, intents, page).await?
                && take_page(verbs, intents, page, page.owner).await?
            {
                tracing::debug!(name: "lock.intent.inherited", page = %page.at, "a dead node's page is used again");
                return Ok(true);
            }
        }
    }
    let (at, may_be_listed) = match unlisted {
        Some((at, _)) => (at, true),
        None => match allocate(intents, server, shape).await {
            Some(Allocated { at, zeroed }) => {
                let allocator = intents.allocator.borrow().clone();
                let _expected = allocator.map(|allocator| allocator.expect_node(at, shape.page_bytes()));
                intents.at_server(server, |pages| pages.unlisted = Some(Unlisted { at, shape, _expected }));
                (at, !zeroed)
            }
            None => return Ok(false),
        },
    };
    // Memory that was a node before. Whether a page is in the list is not asked of one that was never written to.
    if may_be_listed {
        page::clear(verbs, at, shape).await?;
    }
    page::put_in_list(verbs, intents.head, Page { at, owner, shape }, may_be_listed).await?;
    intents.add(at, shape);
    Ok(true)
}

/// Makes a page of the list this table's, if it still is `from`'s: two round trips.
async fn take_page<V: Verbs>(verbs: &V, intents: &Intents, page: Page, from: Owner) -> Result<bool, Failed> {
    let was = page::change_owner(verbs, page.at, from, intents.owner).await?;
    // Its own word: an attempt before had taken the page, or a table that was this one's like before it.
    let is_taken = was == from || was == intents.owner;
    if is_taken {
        page::clear(verbs, page.at, page.shape).await?;
        intents.add(page.at, page.shape);
    }
    Ok(is_taken)
}

/// Tells whether a page's owner is dead, and no lock has the word of an intent that is in it, or may get it back: a
/// round trip, and one more for each intent.
///
/// ```text
///   owner 7, index a   CAS 0 -> 7a, WRITE intent, WRITE half a node ✗ dies
///   owner 8, index b                  CAS 7a -> 80 ············· WRITE 7a          80 stands for 7a
///   other, index a                              READ 80: needed, too
/// ```
async fn is_left_by_the_dead<V: Verbs>(verbs: &V, intents: &Intents, page: Page) -> Result<bool, Failed> {
    if intents.dead(verbs).await.binary_search(&page.owner.node()).is_err() {
        return Ok(false);
    }
    for slot in page::read_slots(verbs, page).await? {
        let Some((lock, word)) = intent::under(&slot) else { continue };
        let found = LockWord::from_bits(page::read_word(verbs, lock).await?);
        if found.is_some_and(|found| found == word || found.tag() == 0) {
            tracing::debug!(name: "lock.intent.needed", page = %page.at, %lock, "a dead node's lock awaits its taker");
            return Ok(false);
        }
    }
    Ok(true)
}

async fn allocate(intents: &Intents, server: ServerId, shape: Shape) -> Option<Allocated> {
    let allocator = intents.allocator.borrow().clone()?;
    match allocator.allocate_on(server, shape.page_bytes()).await {
        Ok(page) => {
            intents.page_bytes.set(intents.page_bytes.get() + shape.page_bytes());
            Some(page)
        }
        Err(error @ AllocError::OutOfMemory { .. }) => {
            tracing::debug!(%error, "there is no memory for intents");
            None
        }
        Err(error) => {
            tracing::debug!(%error, "memory for intents cannot be had now");
            None
        }
    }
}

/// Gives the pages of a table whose last handle is gone to the next table that needs some. One with a slot that is
/// still in use stays as it is.
pub(crate) async fn give_back<V: Verbs>(verbs: V, intents: Rc<Intents>) {
    *intents.allocator.borrow_mut() = None;
    let mut pauses = 0;
    while intents.are_in_use() && pauses < END_PAUSES_MAX {
        verbs.pause(END_PAUSE_NS).await;
        pauses += 1;
    }
    let unused: Vec<RemotePtr> =
        intents.servers.borrow_mut().iter_mut().flat_map(Pages::take_unused).collect();
    for page in unused {
        let mut pace = Pace::after(0);
        while let Err(failed) = page::change_owner(&verbs, page, intents.owner, Owner::NONE).await {
            let pause_ns = pace.failed(failed.cause(), ATTEMPTS_MAX);
            if pace.attempts() >= ATTEMPTS_MAX {
                tracing::debug!(name: "lock.intent.kept", %page, "a page could not be given back");
                return;
            }
            verbs.pause(pause_ns).await;
        }
    }
}

impl Pages {
    /// Takes away the pages of which all slots are free.
    fn take_unused(&mut self) -> Vec<RemotePtr> {
        let free: Vec<RemotePtr> = self.free.drain(..).map(|place| self.places[place as usize].at).collect();
        let is_unused =
            |(page, shape): &(RemotePtr, Shape)| shape.slots_of(*page).all(|slot| free.contains(&slot));
        self.listed.extract_if(.., |listed| is_unused(listed)).map(|(page, _)| page).collect()
    }
}

impl Intents {
    fn are_in_use(&self) -> bool {
        self.servers.borrow().iter().any(|pages| {
            let slots: usize = pages.listed.iter().map(|(_, shape)| shape.slots as usize).sum();
            pages.is_asked || pages.free.len() < slots
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_fit_into_a_chunk() {
        for chunk_bytes in [4 << 10, 16 << 10, 64 << 10, 8 << 20] {
            for node_bytes in [0, 24, 64, 300, 1024, 5000, 1 << 20, 1 << 30] {
                let shape = shape_for(node_bytes, chunk_bytes).unwrap();
                let most = if shape.slots == 1 { chunk_bytes } else { chunk_bytes / 8 };
                assert!(shape.page_bytes() <= most, "{shape:?} of {chunk_bytes}");
                assert!((1..=16).contains(&shape.slots) && shape.slot_bytes.is_multiple_of(64));
                let is_whole = u64::from(shape.slot_bytes) >= node_bytes + INTENT_BYTES;
                assert_eq!(is_whole, node_bytes + INTENT_BYTES + HEADER_BYTES <= chunk_bytes);
            }
        }
        assert_eq!(shape_for(1024, 8 << 20), Some(Shape { slot_bytes: 1152, slots: 16 }));
        assert_eq!(shape_for(1024, 4 << 10), Some(Shape { slot_bytes: 1152, slots: 1 }));
        assert_eq!(shape_for(64, 512), Some(Shape { slot_bytes: 192, slots: 1 }));
        assert_eq!((shape_for(64, 64), shape_for(64, 0)), (None, None));
    }
}
