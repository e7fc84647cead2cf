//! Work of the one writer: it finds room for copies, empties segments, and keeps the table. Everything here
//! runs under the cache's lock.
//!
//! All memory is segments; each is free, open (being filled), filled, or divided into pages of the table. One
//! segment, existing or still within the budget, is kept back so that another can be emptied into it.

use super::arena::{Arena, Place};
use super::bits::Bits;
use super::copy::{Copy, GRANULE_BITS};
use super::table::{self, PAGES_PER_SEGMENT, Page, Table};
use super::victim::{Candidate, Chooser, Filled};
use crate::sync::Ordering;

/// The first granule of a segment is not used: an entry of 0 is none.
const FIRST: u32 = 1;
/// The use clock goes on by fewer epochs than this while a writer has the lock.
const AHEAD_MAX: u8 = 16;

/// State that the writer shares with the readers.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a> {
    pub(super) arena: &'a Arena,
    pub(super) table: &'a Table,
    /// The use clock.
    pub(super) epoch: u8,
}

/// The writer's books. They take all their memory when they are opened.
pub(super) struct Store {
    chooser: Chooser,
    budget: usize,
    bytes: usize,
    /// By segment number: those that exist.
    filled: Vec<Filled>,
    free: Vec<u32>,
    open: Option<u32>,
    begun: u64,
    /// Segments that the table has, and how many of their pages it uses, in this order.
    table_segments: Vec<u32>,
    pages_used: usize,
    nodes: usize,
    evicted: usize,
}

/// The choice of copies that stay when a segment is emptied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// All that there is room for.
    All,
    /// Those that the policy lets stay.
    ByPolicy,
}

impl Store {
    /// Opens the books; `fixed_bytes` are what the cache takes besides them and the segments.
    pub(super) fn new(chooser: Chooser, budget: usize, fixed_bytes: usize, arena: &Arena) -> Self {
        let segments = arena.segments_max();
        let mut store = Store {
            chooser,
            budget,
            bytes: fixed_bytes,
            filled: Vec::with_capacity(segments),
            free: Vec::with_capacity(segments),
            open: None,
            begun: 0,
            table_segments: Vec::with_capacity(segments),
            pages_used: 0,
            nodes: 0,
            evicted: 0,
        };
        store.bytes += store.filled.capacity() * size_of::<Filled>()
            + (store.free.capacity() + store.table_segments.capacity()) * size_of::<u32>();
        store
    }

    /// Counts the bytes of everything.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts the copies that can be found.
    pub(super) fn nodes(&self) -> usize {
        self.nodes
    }

    /// Counts the copies that went to make room, so far.
    pub(super) fn evicted(&self) -> usize {
        self.evicted
    }

    /// Counts the segments begun so far, and those in use now: the use clock goes by both.
    pub(super) fn renewal(&self) -> (u64, usize) {
        (self.begun, self.filled.len() - self.free.len())
    }

    /// Puts a copy in place of the node's present one, if there is one. False if there is no room for it at all.
    pub(super) fn insert(&mut self, shared: Shared<'_>, node: u64, copy: &Bits) -> bool {
        let granules = (copy.len() / GRANULE_BITS) as u32;
        if granules > shared.arena.granules() - FIRST {
            return false;
        }
        let mut present = shared.table.locate(shared.arena, node);
        if present.is_none() && !self.room_for_entry(shared, node) {
            return false;
        }
        let begun = self.begun;
        let Some(place) = self.room_for_copy(shared, granules) else { return false };
        if present.is_some() && self.begun != begun {
            // Emptying a segment may have moved the present copy, or evicted it.
            present = shared.table.locate(shared.arena, node);
        }
        self.write(shared, place, copy, shared.epoch);
        match present {
            Some((number, index, old)) => {
                self.filled[old.segment as usize].live -= granules_at(shared, old);
                self.point(shared, (number, index), node, place);
            }
            None => {
                let number = shared.table.page_number(table::hash(node)).expect("its page has room");
                shared.table.put(page(shared, number), node, shared.arena.encode(place));
                *self.entries(number) += 1;
                self.nodes += 1;
            }
        }
        true
    }

    /// Yields the node's copy, if there is one.
    pub(super) fn present<'a>(&self, shared: Shared<'a>, node: u64) -> Option<Copy<'a>> {
        let (_, _, place) = shared.table.locate(shared.arena, node)?;
        Some(shared.arena.segment(place.segment).copy(place.granule))
    }

    /// Forgets a node. False if it is not there.
    pub(super) fn remove(&mut self, shared: Shared<'_>, node: u64) -> bool {
        let Some((number, index, place)) = shared.table.locate(shared.arena, node) else { return false };
        self.take_out(shared, (number, index), place);
        true
    }

    /// Forgets the copy at `place`, which the entry points to.
    fn take_out(&mut self, shared: Shared<'_>, (number, index): (u32, usize), place: Place) {
        self.filled[place.segment as usize].live -= granules_at(shared, place);
        shared.table.take_out(shared.arena, page(shared, number), index);
        *self.entries(number) -= 1;
        self.nodes -= 1;
    }

    /// Forgets everything. The memory stays for what comes.
    pub(super) fn clear(&mut self, shared: Shared<'_>) {
        for slot in shared.table.directory() {
            slot.store(0, Ordering::Release);
        }
        for number in 0..self.pages_used {
            page(shared, self.page_number(number)).clear();
        }
        for (number, filled) in (0..).zip(&mut self.filled) {
            if filled.begun > 0 {
                shared.arena.segment(number).begin_anew();
                self.free.push(number);
            }
            *filled = Filled::default();
        }
        self.open = None;
        self.pages_used = 0;
        self.nodes = 0;
    }

    /// Takes room for `granules` from the open segment.
    fn room_for_copy(&mut self, shared: Shared<'_>, granules: u32) -> Option<Place> {
        let full = |open: u32| self.filled[open as usize].used + granules > shared.arena.granules();
        if self.open.is_none_or(full) {
            self.open = None;
            self.open_next(shared, granules);
        }
        let segment = self.open?;
        Some(Place { segment, granule: self.filled[segment as usize].used })
    }

    /// Opens a segment with room for `granules`: another one, one that waste is moved out of, or one that is
    /// emptied. Opens none if the budget does not allow a single one.
    fn open_next(&mut self, shared: Shared<'_>, granules: u32) {
        let wasteful = self.chooser.wasteful(&self.filled, shared.arena.granules());
        let grows = wasteful.is_none() && self.spare(shared) > 1;
        let (victim, keep) = match wasteful {
            _ if grows => (None, Keep::All),
            Some(wasteful) => (Some(wasteful), Keep::All),
            None => (self.chooser.segment(&self.filled, None), Keep::ByPolicy),
        };
        let fresh = self.take(shared);
        if let Some(fresh) = fresh {
            self.begin(fresh);
        }
        if let Some(victim) = victim {
            self.empty(shared, victim, fresh.map(|fresh| (fresh, granules)), keep);
            match fresh {
                Some(_) => self.free.push(victim),
                None => self.begin(victim),
            }
        }
    }

    fn begin(&mut self, number: u32) {
        self.begun += 1;
        self.filled[number as usize] = Filled { used: FIRST, begun: self.begun, ..Filled::default() };
        self.open = Some(number);
    }

    /// Takes everything out of `victim`: copies that stay go to the segment `into`, which keeps room for so many
    /// granules; the others are evicted.
    fn empty(&mut self, shared: Shared<'_>, victim: u32, into: Option<(u32, u32)>, keep: Keep) {
        let segment = shared.arena.segment(victim);
        let mut granule = FIRST;
        while granule < self.filled[victim as usize].used {
            let place = Place { segment: victim, granule };
            let copy = segment.copy(granule);
            granule += (copy.len() / GRANULE_BITS) as u32;
            // Replaced or forgotten ones are still here, but not in the table.
            let found = shared.table.locate_place(shared.arena, copy.node(), place);
            let Some(entry) = found else { continue };
            match into.and_then(|into| self.place_to_stay(shared, place, &copy, into, keep)) {
                Some(stays) => {
                    let bits =
                        Bits::copied(segment.words(), place.granule as usize * GRANULE_BITS, copy.len());
                    let stamp = segment.stamp(place.granule).load(Ordering::Relaxed);
                    self.write(shared, stays, &bits, stamp);
                    self.point(shared, entry, copy.node(), stays);
                }
                None => {
                    self.take_out(shared, entry, place);
                    self.count_evicted();
                }
            }
        }
        self.filled[victim as usize] = Filled::default();
        segment.begin_anew();
    }

    fn place_to_stay(
        &mut self,
        shared: Shared<'_>,
        place: Place,
        copy: &Copy<'_>,
        (into, reserved): (u32, u32),
        keep: Keep,
    ) -> Option<Place> {
        let granules = shared.arena.granules();
        let used = self.filled[into as usize].used;
        // What the policy wants to keep must not fill the segment, or the next insertion would empty another.
        let limit = if keep == Keep::All { granules } else { granules / 4 * 3 };
        let end = used + (copy.len() / GRANULE_BITS) as u32;
        let fits = end <= limit && end + reserved <= granules;
        let stays = fits && (keep == Keep::All || self.policy_keeps(shared, place, copy));
        stays.then_some(Place { segment: into, granule: used })
    }

    fn policy_keeps(&mut self, shared: Shared<'_>, place: Place, copy: &Copy<'_>) -> bool {
        let candidate = Candidate { idle: idle(shared, place), upper: copy.is_upper() };
        self.chooser.keeps(&candidate, |random| {
            let slot = random as usize % shared.table.directory().len();
            let number = shared.table.directory()[slot].load(Ordering::Relaxed).checked_sub(1)?;
            let page = page(shared, number);
            match page.entry((random >> 32) as usize % page.capacity()) {
                0 => None,
                entry => Some(idle(shared, shared.arena.decode(entry))),
            }
        })
    }

    /// Writes a copy to the end of the open segment, where no reader looks yet.
    fn write(&mut self, shared: Shared<'_>, place: Place, copy: &Bits, stamp: u8) {
        let segment = shared.arena.segment(place.segment);
        copy.store(segment.words(), place.granule as usize * GRANULE_BITS);
        segment.stamp(place.granule).store(stamp, Ordering::Relaxed);
        let granules = (copy.len() / GRANULE_BITS) as u32;
        let filled = &mut self.filled[place.segment as usize];
        filled.used += granules;
        filled.live += granules;
    }

    /// Lets an entry point to another place.
    fn point(&mut self, shared: Shared<'_>, (number, index): (u32, usize), node: u64, place: Place) {
        let entry = shared.table.tag(table::hash(node)) | shared.arena.encode(place);
        page(shared, number).set(index, entry);
    }

    /// Counts the segments that exist or that the budget still allows, and that are empty.
    fn spare(&self, shared: Shared<'_>) -> usize {
        let allowed = self.budget.saturating_sub(self.bytes) / shared.arena.segment_bytes();
        self.free.len() + allowed.min(shared.arena.segments_max() - self.filled.len())
    }

    fn take(&mut self, shared: Shared<'_>) -> Option<u32> {
        if self.spare(shared) == 0 {
            return None;
        }
        Some(self.free.pop().unwrap_or_else(|| {
            let number = self.filled.len() as u32;
            shared.arena.add(number);
            self.filled.push(Filled::default());
            self.bytes += shared.arena.segment_bytes();
            number
        }))
    }

    /// Ensures that the page for `node` can take one more entry.
    fn room_for_entry(&mut self, shared: Shared<'_>, node: u64) -> bool {
        let hash = table::hash(node);
        loop {
            let Some(number) = shared.table.page_number(hash) else {
                let Some(first) = self.next_page(shared) else { return false };
                for slot in shared.table.directory() {
                    slot.store(first + 1, Ordering::Release);
                }
                continue;
            };
            if usize::from(*self.entries(number)) < page(shared, number).limit() {
                return true;
            }
            if !self.split(shared, hash, number) {
                self.evict_from(shared, number);
            }
        }
    }

    /// Gives half of a page's hashes to a new page. False if there is no page left, or if the directory
    /// cannot tell halves apart.
    fn split(&mut self, shared: Shared<'_>, hash: u64, number: u32) -> bool {
        let directory = shared.table.directory();
        let slot = shared.table.slot(hash);
        let is_same = |slot: usize| directory[slot].load(Ordering::Relaxed) == number + 1;
        // The page's slots are an aligned power of two.
        let mut slots = 1;
        while slots < directory.len() && is_same(slot & !(slots * 2 - 1)) && is_same(slot | (slots * 2 - 1)) {
            slots *= 2;
        }
        if slots == 1 {
            return false;
        }
        let Some(new) = self.next_page(shared) else { return false };
        let (old_page, new_page) = (page(shared, number), page(shared, new));
        let entries: Vec<u32> = (0..old_page.capacity()).map(|index| old_page.entry(index)).collect();
        let upper = (slot & !(slots - 1)) + slots / 2;
        old_page.clear();
        for slot in &directory[upper..upper + slots / 2] {
            slot.store(new + 1, Ordering::Release);
        }
        (*self.entries(number), *self.entries(new)) = (0, 0);
        for entry in entries.into_iter().filter(|entry| *entry != 0) {
            let place = shared.arena.decode(entry);
            let node = shared.arena.node_at(place);
            let goes_up = shared.table.slot(table::hash(node)) >= upper;
            let (number, page) = if goes_up { (new, new_page) } else { (number, old_page) };
            shared.table.put(page, node, shared.arena.encode(place));
            *self.entries(number) += 1;
        }
        true
    }

    /// Yields another page for the table, empty. The table gets a segment when it needs one, if need be one
    /// of copies.
    fn next_page(&mut self, shared: Shared<'_>) -> Option<u32> {
        if self.pages_used == self.table_segments.len() * PAGES_PER_SEGMENT as usize {
            let segment = if self.spare(shared) > 1 || self.filled.is_empty() {
                self.take(shared)?
            } else {
                let victim = self.chooser.segment(&self.filled, self.open)?;
                self.empty(shared, victim, None, Keep::ByPolicy);
                victim
            };
            let words = shared.arena.segment(segment).words();
            words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            self.table_segments.push(segment);
        }
        self.pages_used += 1;
        Some(self.page_number(self.pages_used - 1))
    }

    fn page_number(&self, index: usize) -> u32 {
        let index = index as u32;
        let segment = self.table_segments[(index / PAGES_PER_SEGMENT) as usize];
        segment * PAGES_PER_SEGMENT + index % PAGES_PER_SEGMENT
    }

    /// Evicts the copy of a page that was used least recently: the last resort when the page cannot be split.
    fn evict_from(&mut self, shared: Shared<'_>, number: u32) {
        let page = page(shared, number);
        let places = (0..page.capacity())
            .map(|index| page.entry(index))
            .filter(|entry| *entry != 0)
            .map(|entry| shared.arena.decode(entry));
        let oldest = places.max_by_key(|place| idle(shared, *place)).expect("the page is full");
        self.remove(shared, shared.arena.node_at(oldest));
        self.count_evicted();
    }

    fn count_evicted(&mut self) {
        self.evicted += 1;
        tracing::debug!(name: "cache.evicted", "a node goes for want of room");
    }

    fn entries(&mut self, number: u32) -> &mut u16 {
        let (segment, page) = (number / PAGES_PER_SEGMENT, number % PAGES_PER_SEGMENT);
        &mut self.filled[segment as usize].pages[page as usize]
    }
}

fn page<'a>(shared: Shared<'a>, number: u32) -> Page<'a> {
    shared.table.page(shared.arena, number).expect("the table's segments stay")
}

fn granules_at(shared: Shared<'_>, place: Place) -> u32 {
    (shared.arena.segment(place.segment).copy(place.granule).len() / GRANULE_BITS) as u32
}

/// Counts the epochs since the copy was last used.
fn idle(shared: Shared<'_>, place: Place) -> u8 {
    let stamp = shared.arena.segment(place.segment).stamp(place.granule).load(Ordering::Relaxed);
    match shared.epoch.wrapping_sub(stamp) {
        // A reader has seen a newer epoch than this writer: that is "just now", not "ages ago".
        ahead if ahead > u8::MAX - AHEAD_MAX => 0,
        idle => idle,
    }
}

#[cfg(test)]
impl Store {
    /// Compares the books with the segments; `nodes` are in the table.
    pub(super) fn check(&self, shared: Shared<'_>, nodes: usize) {
        assert_eq!(self.nodes, nodes);
        let mut entries = 0;
        for (number, filled) in (0..).zip(&self.filled) {
            let segment = shared.arena.segment(number);
            let (mut granule, mut live) = (FIRST, 0);
            while granule < filled.used {
                let copy = segment.copy(granule);
                let granules = (copy.len() / GRANULE_BITS) as u32;
                let found = shared.table.locate(shared.arena, copy.node());
                if found.is_some_and(|(_, _, place)| place == Place { segment: number, granule }) {
                    live += granules;
                }
                granule += granules;
            }
            assert_eq!(live, filled.live, "segment {number}");
            assert_eq!(granule, filled.used.max(FIRST), "segment {number}");
            let in_pages: u16 = filled.pages.iter().sum();
            assert!(in_pages == 0 || self.table_segments.contains(&number));
            entries += usize::from(in_pages);
            let roles = usize::from(filled.begun > 0)
                + usize::from(self.free.contains(&number))
                + usize::from(self.table_segments.contains(&number));
            assert_eq!(roles, 1, "segment {number}");
        }
        assert_eq!(entries, nodes);
        let segments = self.filled.len() * shared.arena.segment_bytes();
        let books = self.filled.capacity() * size_of::<Filled>() + 8 * self.free.capacity();
        let fixed = size_of::<super::part::Part>();
        let directories = shared.arena.directory_bytes() + shared.table.bytes();
        assert_eq!(self.bytes, fixed + directories + books + segments);
    }
}
