//! One cached node as a string of bits: packed when it comes in, searched where it lies. `change` changes it there.
//!
//! ```text
//! bits   48   |   8   |   3   |   5   | 9     |    6   |  2   |   2    |  1   |  1  | 1 |   1  |  2   |  7
//!       node   depth   prefix   class  claimed  offset   kind   server  stride null END bitmap  base  kind
//!                      bytes                    width    width  width                          bytes
//! then:  prefix | base (from the node's address) | kinds, if not all alike | partials | per slot: kind, child
//! ```
//!
//! Partials are a byte each, or, where there are many and they ascend, a bitmap. A child is the base plus a
//! server and an offset of as few bits as the node needs; children allocated together take two or three bits
//! each, children anywhere in the memory of a few servers about 30.
//!
//! A copy that grows has room: its table of kinds is there in any case, the field "kind", which says nothing then,
//! is a quarter of the slots that there is room for, and unused kinds repeat the first one.

mod change;

use super::RadixImage;
use super::bits::{self, Bits};
use super::slot::{self, CHILD, CHILD_BITS, CHILD_SERVER_SHIFT, CLASS_BITS, END, FROZEN};
use crate::sync::AtomicU64;
pub(super) use change::Change;

/// Most slots of a node that is cached.
pub const SLOTS_MAX: usize = (1 << 9) - 1;
/// Most prefix bytes of a node.
pub const PREFIX_BYTES_MAX: usize = 6;

/// Bits before the variable part.
const FIXED_BITS: usize = 96;
/// Copies begin at multiples of this and take at least [`BITS_MIN`], so that each has a use stamp of its own.
pub(super) const GRANULE_BITS: usize = 32;
const BITS_MIN: usize = 128;
/// From so many slots on a bitmap is smaller than a byte each.
const BITMAP_SLOTS_MIN: usize = 33;
const BITMAP_BITS: usize = 256;
/// A copy with room for more slots has room for a multiple of this, and for at most so many: all key bytes.
const ROOM_UNIT: usize = 4;
const ROOM_MAX: usize = 256;
/// Bits that a child may take more so that children anywhere in the same memory fit as well.
const ROOM_CHILD_BITS: u32 = 4;
/// The widths that the codes of the three fields stand for.
const KIND_WIDTHS: [u32; 4] = [0, 2, 4, 7];
const SERVER_WIDTHS: [u32; 4] = [0, 3, 6, 10];
const BASE_BYTES: [u32; 4] = [1, 2, 4, 6];

const OFFSET_MASK: u64 = (1 << CHILD_SERVER_SHIFT) - 1;
const SERVER_MASK: u64 = CHILD >> CHILD_SERVER_SHIFT;

/// The packing of a copy's slots: the second part of the fixed fields.
#[derive(Clone, Copy)]
struct Shape {
    claimed: usize,
    offset_width: u32,
    kind_code: usize,
    server_code: usize,
    /// Trailing zero bits that all offsets have in common and that are not stored: 0 or 1.
    stride: u32,
    /// An all-zero value stands for child 0, not for the base.
    null: bool,
    end: bool,
    bitmap: bool,
    base_code: usize,
    /// The kind of all slots, if there is one; else the room for slots in units, or 0 if there is no more.
    kind: u8,
}

impl Shape {
    #[inline]
    fn unpack(word: u32) -> Self {
        let field = |at: u32, width: u32| (word >> at) as usize & ((1 << width) - 1);
        Shape {
            claimed: field(0, 9),
            offset_width: field(9, 6) as u32,
            kind_code: field(15, 2),
            server_code: field(17, 2),
            stride: field(19, 1) as u32,
            null: field(20, 1) == 1,
            end: field(21, 1) == 1,
            bitmap: field(22, 1) == 1,
            base_code: field(23, 2),
            kind: field(25, 7) as u8,
        }
    }

    fn pack(&self, bits: &mut Bits) {
        bits.push(self.claimed as u64, 9);
        bits.push(u64::from(self.offset_width), 6);
        bits.push(self.kind_code as u64, 2);
        bits.push(self.server_code as u64, 2);
        bits.push(u64::from(self.stride), 1);
        bits.push(u64::from(self.null), 1);
        bits.push(u64::from(self.end), 1);
        bits.push(u64::from(self.bitmap), 1);
        bits.push(self.base_code as u64, 2);
        bits.push(u64::from(self.kind), 7);
    }

    #[inline]
    fn kind_width(&self) -> u32 {
        KIND_WIDTHS[self.kind_code]
    }

    /// Counts the bits of the table of kinds.
    #[inline]
    fn kinds_bits(&self) -> usize {
        if self.kind_code == 0 { 0 } else { 8 << self.kind_width() }
    }

    /// Counts the slots that there is room for.
    #[inline]
    fn room(&self) -> usize {
        let room = if self.kind_code == 0 { 0 } else { usize::from(self.kind) * ROOM_UNIT };
        self.claimed.max(room)
    }

    #[inline]
    fn partials_bits(&self) -> usize {
        if self.bitmap { BITMAP_BITS } else { self.room() * 8 }
    }

    #[inline]
    fn child_width(&self) -> u32 {
        SERVER_WIDTHS[self.server_code] + self.offset_width
    }
}

/// A node's copy where it lies.
///
/// Lookups have its methods always inlined: the compiler alone leaves calls in so long a loop, and SMART did 3 % less
/// then (YCSB A, one shard).
pub(super) struct Copy<'a> {
    words: &'a [AtomicU64],
    at: usize,
    identity: u64,
    shape_word: u32,
    shape: Shape,
}

impl<'a> Copy<'a> {
    /// Views the copy that begins at bit `at`. Whatever is there, no method fails on it, and the caller finds
    /// out that it was nonsense.
    #[inline]
    pub(super) fn at(words: &'a [AtomicU64], at: usize) -> Self {
        let shape_word = bits::read_half(words, at + 64);
        Copy { words, at, identity: bits::read(words, at), shape_word, shape: Shape::unpack(shape_word) }
    }

    /// Tells whether no slot was added since this view was made: so a slot that was changed after one was
    /// added is not taken for one of the copy without that.
    #[inline]
    pub(super) fn is_still(&self) -> bool {
        bits::read_half(self.words, self.at + 64) == self.shape_word
    }

    /// Yields the node's address.
    #[inline]
    pub(super) fn node(&self) -> u64 {
        self.identity & CHILD
    }

    #[inline]
    pub(super) fn depth(&self) -> u8 {
        (self.identity >> CHILD_BITS) as u8
    }

    #[inline]
    pub(super) fn prefix_len(&self) -> usize {
        (self.identity >> 56) as usize & 7
    }

    #[inline]
    pub(super) fn class(&self) -> u8 {
        (self.identity >> 59) as u8
    }

    #[inline]
    pub(super) fn claimed(&self) -> usize {
        self.shape.claimed
    }

    /// Yields the prefix, its first byte lowest.
    #[inline]
    pub(super) fn prefix(&self) -> u64 {
        bits::low(bits::read(self.words, self.at + FIXED_BITS), self.prefix_len() as u32 * 8)
    }

    /// Tells whether the prefix is `bytes`, which are as many. Most nodes have none.
    #[inline(always)]
    pub(super) fn has_prefix(&self, bytes: &[u8]) -> bool {
        bytes.is_empty() || prefix_word(bytes) == self.prefix()
    }

    /// Tells whether some slot may lead to an inner node: then the copy is not one of the many at the bottom.
    pub(super) fn is_upper(&self) -> bool {
        let leaf = 1 << (slot::KIND_BITS - 1);
        (0..self.shape.claimed).any(|index| self.kind_at(index) & leaf == 0)
    }

    /// Counts the bits of the whole copy, a multiple of [`GRANULE_BITS`].
    pub(super) fn len(&self) -> usize {
        let values = self.shape.room() * (self.shape.kind_width() + self.shape.child_width()) as usize;
        padded(self.values_at() + values - self.at)
    }

    /// Yields the slot at `index`, which is below [`Copy::claimed`].
    #[inline]
    pub(super) fn slot(&self, index: usize) -> u64 {
        let value = self.value(index);
        slot::word(self.partial(index), self.kind(value), self.child(value))
    }

    /// Finds the slot that matches the key byte `byte`, or the key's end.
    #[inline(always)]
    pub(super) fn find(&self, byte: Option<u8>) -> Option<(usize, u64)> {
        let index = match byte {
            Some(byte) if self.shape.bitmap => self.find_in_bitmap(byte),
            Some(byte) => self.find_in_bytes(byte),
            None if self.shape.end => (0..self.shape.claimed).find(|index| self.is_end(*index)),
            None => None,
        }?;
        let partial = byte.unwrap_or(0);
        // Once: it may change between two looks.
        let value = self.value(index);
        Some((index, slot::word(partial, self.kind(value), self.child(value))))
    }

    /// Finds the slot of the last symbol before `byte`. Symbols are ordered as keys are: the end comes first.
    #[inline]
    pub(super) fn last_before(&self, byte: u8) -> Option<(usize, u64)> {
        self.last_below(u32::from(byte))
    }

    /// Finds the slot of the last symbol.
    #[inline]
    pub(super) fn last(&self) -> Option<(usize, u64)> {
        self.last_below(256)
    }

    /// Finds the slot of the last symbol that is the end or a byte below `limit`.
    #[inline]
    fn last_below(&self, limit: u32) -> Option<(usize, u64)> {
        let last = if self.shape.bitmap { self.last_in_bitmap(limit) } else { self.last_of_bytes(limit) };
        let (index, partial) = match last {
            // The byte of an end is 0, too.
            None | Some((_, 0)) if self.shape.end => self.last_of_ends_and_bytes(limit)?,
            last => last?,
        };
        let value = self.value(index);
        Some((index, slot::word(partial, self.kind(value), self.child(value))))
    }

    /// Finds the slot of the first symbol: of all, or of those behind the end of keys (`Some(None)`) or a byte.
    pub(super) fn first_behind(&self, symbol: Option<Option<u8>>) -> Option<u64> {
        let least = match symbol {
            None if self.shape.end => return self.find(None).map(|(_, word)| word),
            None | Some(None) => 0,
            Some(Some(byte)) => byte.checked_add(1)?,
        };
        let first = match self.shape.bitmap {
            true => Some(self.count_below(u32::from(least))).filter(|first| *first < self.shape.claimed),
            // The byte of an end is 0, too.
            false if self.shape.end && least == 0 => {
                let bytes = (0..self.shape.claimed).filter(|index| !self.is_end(*index));
                bytes.min_by_key(|index| self.partial(*index))
            }
            false => self.first_of_bytes(least),
        }?;
        Some(self.slot(first))
    }

    /// Finds the first of the symbols in bytes from `least` on, eight at a time and without branches.
    fn first_of_bytes(&self, least: u8) -> Option<usize> {
        const NONE: u32 = u32::MAX;
        let at = self.partials_at();
        let mut best = NONE;
        for first in (0..self.shape.claimed).step_by(8) {
            let bytes = bits::read(self.words, at + first * 8).to_le_bytes();
            for (index, byte) in (first..).zip(bytes) {
                let is_behind = byte >= least && index < self.shape.claimed;
                // Above the index, so that the least byte wins.
                best = best.min(if is_behind { u32::from(byte) << 16 | index as u32 } else { NONE });
            }
        }
        (best != NONE).then_some((best & 0xFFFF) as usize)
    }

    fn last_in_bitmap(&self, limit: u32) -> Option<(usize, u8)> {
        let at = self.partials_at();
        let below = |word| {
            let width = (limit as usize).saturating_sub(word * 64).min(64);
            bits::low(bits::read(self.words, at + word * 64), width as u32)
        };
        let (word, map) =
            (0..BITMAP_BITS / 64).rev().map(|word| (word, below(word))).find(|(_, map)| *map != 0)?;
        // Memory may be used anew meanwhile.
        let index = self.count_below(limit).checked_sub(1)?;
        Some((index, (word * 64) as u8 + map.ilog2() as u8))
    }

    /// Finds the last of the symbols in bytes below `limit`, eight at a time and without branches: which of them it is
    /// cannot be predicted.
    fn last_of_bytes(&self, limit: u32) -> Option<(usize, u8)> {
        let at = self.partials_at();
        let mut last = 0;
        for first in (0..self.shape.claimed).step_by(8) {
            let bytes = bits::read(self.words, at + first * 8).to_le_bytes();
            for (index, byte) in (first..).zip(bytes) {
                let is_below = u32::from(byte) < limit && index < self.shape.claimed;
                // Above the index, so that the greatest byte wins; 0 is none.
                let candidate = u32::from(is_below) * ((u32::from(byte) + 1) << 16 | index as u32);
                last = last.max(candidate);
            }
        }
        Some(((last & 0xFFFF) as usize, (last >> 16).checked_sub(1)? as u8))
    }

    fn last_of_ends_and_bytes(&self, limit: u32) -> Option<(usize, u8)> {
        let symbol = |index: &usize| match self.partial(*index) {
            0 => (0, !self.is_end(*index)),
            byte => (byte, true),
        };
        let is_below = |index: &usize| u32::from(self.partial(*index)) < limit || self.is_end(*index);
        let last = (0..self.shape.claimed).filter(is_below).max_by_key(symbol)?;
        Some((last, self.partial(last)))
    }

    /// Tells whether this is a copy of `image` and nothing has changed since.
    pub(super) fn is_copy_of(&self, image: &RadixImage<'_>) -> bool {
        let fixed = identity(image) == self.identity && image.slots.len() == self.shape.claimed;
        fixed
            && prefix_word(image.prefix) == self.prefix()
            && image.slots.iter().enumerate().all(|(index, word)| self.slot(index) == *word)
    }

    fn find_in_bytes(&self, byte: u8) -> Option<usize> {
        const LOW: u64 = 0x7F7F_7F7F_7F7F_7F7F;
        let wanted = u64::from(byte) * 0x0101_0101_0101_0101;
        let at = self.partials_at();
        for first in (0..self.shape.claimed).step_by(8) {
            let other = bits::read(self.words, at + first * 8) ^ wanted;
            // The top bit of each byte that is equal, exactly.
            let mut equal = !(((other & LOW) + LOW) | other | LOW);
            while equal != 0 {
                let index = first + equal.trailing_zeros() as usize / 8;
                if index >= self.shape.claimed {
                    return None;
                }
                // The slot of the key's end has partial 0 but is not about a key byte.
                if !self.shape.end || !self.is_end(index) {
                    return Some(index);
                }
                equal &= equal - 1;
            }
        }
        None
    }

    #[inline(always)]
    fn find_in_bitmap(&self, byte: u8) -> Option<usize> {
        let is_there = bits::read_bit(self.words, self.partials_at() + usize::from(byte));
        is_there.then(|| self.count_below(u32::from(byte)))
    }

    /// Counts the bytes below `limit` in the bitmap, or, where that takes fewer words, those from it on: there are as
    /// many as slots. Two words either way, and without branches: which ones it takes cannot be predicted.
    #[inline(always)]
    fn count_below(&self, limit: u32) -> usize {
        const HALF: u32 = BITMAP_BITS as u32 / 2;
        let is_upper = limit >= HALF;
        let (first, others) = if is_upper { (HALF, u64::MAX) } else { (0, 0) };
        let at = self.partials_at() + first as usize;
        let counted = |word: u32| {
            let below = bits::low(u64::MAX, (limit - first).saturating_sub(word * 64));
            (bits::read(self.words, at + word as usize * 64) & (below ^ others)).count_ones() as usize
        };
        let counted = counted(0) + counted(1);
        // Memory may be used anew meanwhile.
        if is_upper { self.shape.claimed.saturating_sub(counted) } else { counted }
    }

    fn partial(&self, index: usize) -> u8 {
        let at = self.partials_at();
        if !self.shape.bitmap {
            return bits::read_byte(self.words, at + index * 8);
        }
        let mut left = index;
        for word in 0..BITMAP_BITS / 64 {
            let mut map = bits::read(self.words, at + word * 64);
            let ones = map.count_ones() as usize;
            if left < ones {
                (0..left).for_each(|_| map &= map - 1);
                return (word * 64) as u8 + map.trailing_zeros() as u8;
            }
            left -= ones;
        }
        0
    }

    #[inline]
    fn is_end(&self, index: usize) -> bool {
        self.kind_at(index) >> CLASS_BITS & 1 == 1
    }

    #[inline]
    fn kind_at(&self, index: usize) -> u8 {
        // Not looked at where all are alike.
        if self.shape.kind_code == 0 { self.shape.kind } else { self.kind(self.value(index)) }
    }

    /// Extracts the kind from a slot's value.
    #[inline(always)]
    fn kind(&self, value: u64) -> u8 {
        if self.shape.kind_code == 0 {
            return self.shape.kind;
        }
        self.listed_kind(bits::low(value, self.shape.kind_width()) as usize)
    }

    #[inline(always)]
    fn listed_kind(&self, number: usize) -> u8 {
        bits::read_byte(self.words, self.kinds_at() + number * 8) & ((1 << slot::KIND_BITS) - 1)
    }

    /// Extracts the child from a slot's value.
    #[inline(always)]
    fn child(&self, value: u64) -> u64 {
        let value = bits::low(value >> self.shape.kind_width(), self.shape.child_width());
        if self.shape.null && value == 0 {
            return 0;
        }
        let base = self.base();
        let offset = bits::low(value, self.shape.offset_width) << self.shape.stride;
        let server = (value >> self.shape.offset_width) + (base >> CHILD_SERVER_SHIFT);
        (server & SERVER_MASK) << CHILD_SERVER_SHIFT | base.wrapping_add(offset) & OFFSET_MASK
    }

    #[inline(always)]
    fn base(&self) -> u64 {
        let width = BASE_BYTES[self.shape.base_code] * 8;
        let distance = bits::read(self.words, self.base_at()) << (64 - width);
        // Signed: the base is behind the node or before it.
        self.node().wrapping_add(((distance as i64) >> (64 - width)) as u64) & CHILD
    }

    /// Reads the slot's kind and child, with what follows.
    #[inline(always)]
    fn value(&self, index: usize) -> u64 {
        bits::read_acquire(self.words, self.value_at(index))
    }

    #[inline(always)]
    fn value_at(&self, index: usize) -> usize {
        let width = self.shape.kind_width() + self.shape.child_width();
        self.values_at() + index * width as usize
    }

    #[inline(always)]
    fn base_at(&self) -> usize {
        self.at + FIXED_BITS + self.prefix_len() * 8
    }

    #[inline(always)]
    fn kinds_at(&self) -> usize {
        self.base_at() + BASE_BYTES[self.shape.base_code] as usize * 8
    }

    #[inline(always)]
    fn partials_at(&self) -> usize {
        self.kinds_at() + self.shape.kinds_bits()
    }

    #[inline(always)]
    fn values_at(&self) -> usize {
        self.partials_at() + self.shape.partials_bits()
    }
}

/// Packs the copy of a node. None if the image makes no sense or may not be cached; see `RadixCache::insert`.
pub(super) fn pack(image: &RadixImage<'_>) -> Option<Bits> {
    pack_with_room(image, 0)
}

/// Packs as [`pack`] does a node that grows: with room for about a quarter more slots.
pub(super) fn pack_growing(image: &RadixImage<'_>) -> Option<Bits> {
    let slots = image.slots.len();
    let room = (slots + slots / 4 + 2).next_multiple_of(ROOM_UNIT).min(ROOM_MAX);
    pack_with_room(image, if room > slots { room } else { 0 })
}

/// Packs a node with room for so many slots, a multiple of [`ROOM_UNIT`]; 0 for no more than there are.
fn pack_with_room(image: &RadixImage<'_>, room: usize) -> Option<Bits> {
    if !is_sound(image) {
        return None;
    }
    let children = if room == 0 { Children::of(image) } else { Children::with_room(image) };
    let kinds = Kinds::of(image.slots, room > 0);
    let first_kind = kinds.list.first().copied().unwrap_or(0);
    // New slots come in any order.
    let bitmap = room == 0
        && image.slots.len() >= BITMAP_SLOTS_MIN
        && image.slots.iter().all(|word| word & END == 0)
        && image.slots.is_sorted_by(|one, next| slot::partial(*one) < slot::partial(*next));
    // Distances wrap around at 48 bits, and are read with their sign.
    let distance = (children.base.wrapping_sub(image.node) << (64 - CHILD_BITS)) as i64 >> (64 - CHILD_BITS);
    let base_code = code_of(|code| {
        let unused = 64 - BASE_BYTES[code] * 8;
        distance << unused >> unused == distance
    });
    let shape = Shape {
        claimed: image.slots.len(),
        offset_width: children.offset_width,
        kind_code: kinds.code,
        server_code: children.server_code,
        stride: children.stride,
        null: children.null,
        end: image.slots.iter().any(|word| word & END != 0),
        bitmap,
        base_code,
        kind: if kinds.code == 0 { first_kind } else { (room / ROOM_UNIT) as u8 },
    };
    let more = shape.room() - shape.claimed;
    let mut bits = Bits::default();
    bits.push(identity(image), 64);
    shape.pack(&mut bits);
    bits.push(prefix_word(image.prefix), image.prefix.len() as u32 * 8);
    bits.push(distance as u64, BASE_BYTES[base_code] * 8);
    for number in 0..shape.kinds_bits() / 8 {
        bits.push(u64::from(kinds.list.get(number).copied().unwrap_or(first_kind)), 8);
    }
    push_partials(&mut bits, image.slots, bitmap);
    bits.push_zeros(more * 8);
    for word in image.slots {
        bits.push(kinds.number(*word), shape.kind_width());
        bits.push(children.value(*word), shape.child_width());
    }
    bits.push_zeros(more * (shape.kind_width() + shape.child_width()) as usize);
    bits.push_zeros(padded(bits.len()) - bits.len());
    Some(bits)
}

/// Tells whether this may be a slot of an image.
pub(super) fn is_sound_slot(word: u64) -> bool {
    let end_has_no_partial = word & END == 0 || slot::partial(word) == 0;
    word != 0 && word & FROZEN == 0 && end_has_no_partial
}

fn is_sound(image: &RadixImage<'_>) -> bool {
    image.node != 0
        && image.node <= CHILD
        && image.class < 1 << CLASS_BITS
        && image.prefix.len() <= PREFIX_BYTES_MAX
        && image.slots.len() <= SLOTS_MAX
        && image.slots.iter().all(|word| is_sound_slot(*word))
}

fn identity(image: &RadixImage<'_>) -> u64 {
    let prefix_len = image.prefix.len() as u64;
    image.node | u64::from(image.depth) << CHILD_BITS | prefix_len << 56 | u64::from(image.class) << 59
}

/// Packs at most six bytes, the first one lowest.
fn prefix_word(prefix: &[u8]) -> u64 {
    prefix.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn push_partials(bits: &mut Bits, slots: &[u64], bitmap: bool) {
    if !bitmap {
        return slots.iter().for_each(|word| bits.push(u64::from(slot::partial(*word)), 8));
    }
    let mut map = [0u64; BITMAP_BITS / 64];
    for word in slots {
        let partial = slot::partial(*word);
        map[usize::from(partial) / 64] |= 1 << (partial % 64);
    }
    map.iter().for_each(|word| bits.push(*word, 64));
}

/// Finds the first of the four codes that is enough.
fn code_of(fits: impl Fn(usize) -> bool) -> usize {
    (0..3).find(|code| fits(*code)).unwrap_or(3)
}

fn padded(bits: usize) -> usize {
    bits.next_multiple_of(GRANULE_BITS).max(BITS_MIN)
}

/// The distinct kinds of a node's slots.
struct Kinds {
    list: smallvec::SmallVec<[u8; 8]>,
    code: usize,
}

impl Kinds {
    fn of(slots: &[u64], with_table: bool) -> Self {
        let mut list = smallvec::SmallVec::new();
        for word in slots {
            let kind = slot::kind(*word);
            if !list.contains(&kind) {
                list.push(kind);
            }
        }
        let fits = |code: usize| list.len() <= 1 << KIND_WIDTHS[code] && (code > 0 || !with_table);
        Kinds { code: code_of(fits), list }
    }

    fn number(&self, word: u64) -> u64 {
        let kind = slot::kind(word);
        self.list.iter().position(|other| *other == kind).expect("the list is of these slots") as u64
    }
}

/// The packing of a node's children.
struct Children {
    base: u64,
    /// The lowest server and offset of a child, and the value that the lowest offset gets.
    server: u64,
    offset: u64,
    first: u64,
    offset_width: u32,
    server_code: usize,
    stride: u32,
    null: bool,
}

impl Children {
    fn of(image: &RadixImage<'_>) -> Self {
        let live = || image.slots.iter().map(|word| word & CHILD).filter(|child| *child != 0);
        let null = live().count() < image.slots.len();
        let (mut server, mut offset) = ((u64::MAX, 0), (u64::MAX, 0));
        for child in live() {
            let parts = (child >> CHILD_SERVER_SHIFT, child & OFFSET_MASK);
            server = (server.0.min(parts.0), server.1.max(parts.0));
            offset = (offset.0.min(parts.1), offset.1.max(parts.1));
        }
        if server.0 > server.1 {
            // No children at all: the base does not matter, so it is as near as possible.
            (server, offset) = ((image.node >> CHILD_SERVER_SHIFT, 0), (image.node & OFFSET_MASK, 0));
            (server.1, offset.1) = (server.0, offset.0);
        }
        let stride = u32::from(live().all(|child| ((child & OFFSET_MASK) - offset.0) & 1 == 0));
        // Where the value 0 stands for no child, the first child gets 1.
        let first = u64::from(null);
        let largest = ((offset.1 - offset.0) >> stride) + first;
        Children {
            base: server.0 << CHILD_SERVER_SHIFT | offset.0.wrapping_sub(first << stride) & OFFSET_MASK,
            server: server.0,
            offset: offset.0,
            first,
            offset_width: u64::BITS - largest.leading_zeros(),
            server_code: code_of(|code| (server.1 - server.0) >> SERVER_WIDTHS[code] == 0),
            stride,
            null,
        }
    }

    /// Chooses a packing that most children to come fit: counted from the beginning of the memory, if that
    /// takes few bits more.
    fn with_room(image: &RadixImage<'_>) -> Self {
        let tight = Self::of(image);
        let live = || image.slots.iter().map(|word| word & CHILD).filter(|child| *child != 0);
        let stride = u32::from(live().all(|child| child & 1 == 0));
        let largest = live().map(|child| (child & OFFSET_MASK) >> stride).max().unwrap_or(0);
        let server = live().map(|child| child >> CHILD_SERVER_SHIFT).max().unwrap_or(0);
        // The value 0 stands for no child of itself.
        let (base, offset, first, null) = (0, 0, 0, false);
        let offset_width = u64::BITS - largest.leading_zeros();
        let server_code = code_of(|code| server >> SERVER_WIDTHS[code] == 0);
        let roomy = Children { base, server: 0, offset, first, offset_width, server_code, stride, null };
        if roomy.width() <= tight.width() + ROOM_CHILD_BITS { roomy } else { tight }
    }

    fn width(&self) -> u32 {
        SERVER_WIDTHS[self.server_code] + self.offset_width
    }

    fn value(&self, word: u64) -> u64 {
        let child = word & CHILD;
        if child == 0 {
            return 0;
        }
        let offset = (((child & OFFSET_MASK) - self.offset) >> self.stride) + self.first;
        ((child >> CHILD_SERVER_SHIFT) - self.server) << self.offset_width | offset
    }
}

#[cfg(test)]
mod tests;
