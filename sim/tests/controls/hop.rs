//! Changes the bytes of hopscotch leaves on their way from the fabric (`farwood_index::layout::hopscotch`), so that one
//! of CHIME's checks sees nothing. Whole leaves stay as they are: others check those.

use std::ops::Range;

use farwood_index::IndexSpec;
use farwood_index::chime::Geometry;
use farwood_index::layout::LINE_BYTES;
use farwood_index::layout::hopscotch::{HopLayout, Ring};

const PAYLOAD: usize = LINE_BYTES - 2;
const WORDS_BYTES: usize = 24;
const HEAD_BYTES: usize = 2;
const PRESENT: u8 = 0x80;
const KEY_SHORT: u8 = 0x40;

/// The format of a tree's leaves.
#[derive(Clone)]
pub(crate) struct Hop {
    layout: HopLayout,
    max_key: usize,
    max_value: usize,
    fences: usize,
}

/// A leaf of which some parts were read.
pub(crate) struct Parts<'i> {
    pub(crate) image: &'i mut [u8],
    pub(crate) read: Vec<Range<usize>>,
}

impl Hop {
    pub(crate) fn new(geometry: Geometry, spec: &IndexSpec) -> Self {
        let Geometry { max_key, max_value, span, neighbourhood, .. } = geometry;
        let is_on = |name| spec.technique(name).expect("CHIME has it");
        let reach = if is_on("hopscotch") { neighbourhood } else { span };
        let has_fences = !is_on("sibling_validation");
        let layout = HopLayout::new(Ring { slots: span, reach }, max_key, max_value, has_fences);
        let fences = if has_fences { 4 + 2 * max_key } else { 0 };
        let layout = layout.expect("the scenario has a tree");
        Hop { layout, max_key, max_value, fences }
    }

    pub(crate) fn node_bytes(&self) -> usize {
        self.layout.node_bytes()
    }

    fn hops_bytes(&self) -> usize {
        let Ring { slots, reach } = self.layout.ring();
        if reach < slots { reach.div_ceil(8) } else { 0 }
    }

    fn replica_bytes(&self) -> usize {
        10 + self.fences
    }

    fn entry_bytes(&self) -> usize {
        HEAD_BYTES + self.hops_bytes() + self.max_key + self.max_value
    }

    /// Yields the stream offset of a group's replica.
    fn replica(&self, group: usize) -> usize {
        let behind = self.layout.lock_at() + WORDS_BYTES;
        let first = behind / LINE_BYTES * PAYLOAD + (behind % LINE_BYTES).saturating_sub(2);
        first + group * (self.replica_bytes() + self.layout.ring().reach * self.entry_bytes())
    }

    fn entry(&self, slot: usize) -> usize {
        let reach = self.layout.ring().reach;
        self.replica(slot / reach) + self.replica_bytes() + slot % reach * self.entry_bytes()
    }

    fn replicas_in(&self, leaf: &Parts<'_>) -> Vec<usize> {
        let Ring { slots, reach } = self.layout.ring();
        let groups = (0..slots / reach).map(|group| self.replica(group));
        groups.filter(|at| leaf.has(*at, self.replica_bytes())).collect()
    }

    fn has_entry(&self, leaf: &Parts<'_>, slot: usize) -> bool {
        leaf.has(self.entry(slot), self.entry_bytes())
    }

    /// Lets the bits of each home whose neighbourhood was read name the slots of its keys.
    pub(crate) fn put_bits_right(&self, leaf: &mut Parts<'_>) {
        let ring = self.layout.ring();
        for home in (0..ring.slots).filter(|_| self.hops_bytes() > 0) {
            let slots: Vec<usize> = (0..ring.reach).map(|steps| ring.ahead(home, steps)).collect();
            if !slots.iter().all(|slot| self.has_entry(leaf, *slot)) {
                continue;
            }
            let is_of =
                |slot: &usize| self.key(leaf, *slot).is_some_and(|key| self.layout.home(&key) == home);
            let named = slots.iter().enumerate().filter(|(_, slot)| is_of(slot));
            let bits = named.fold(0u16, |bits, (steps, _)| bits | 1 << steps);
            let at = self.entry(home) + HEAD_BYTES;
            leaf.write(at, &bits.to_le_bytes()[..self.hops_bytes()]);
        }
    }

    /// Gives the entries that were read, and their lines, the version of the replica that was read with them.
    pub(crate) fn put_versions_right(&self, leaf: &mut Parts<'_>) {
        let [replica] = self.replicas_in(leaf)[..] else { return };
        let version = leaf.byte(replica + 1);
        for slot in 0..self.layout.ring().slots {
            if self.has_entry(leaf, slot) {
                leaf.write(self.entry(slot) + 1, &[version]);
            }
        }
        for line in (0..leaf.image.len()).step_by(LINE_BYTES) {
            if leaf.read.iter().any(|read| read.contains(&line)) {
                leaf.image[line] = version;
            }
        }
    }

    /// Yields the key in a slot, if there is one.
    fn key(&self, leaf: &Parts<'_>, slot: usize) -> Option<Vec<u8>> {
        let (head, at) = (leaf.byte(self.entry(slot)), self.entry(slot) + HEAD_BYTES + self.hops_bytes());
        let room = if head & KEY_SHORT == 0 { 0 } else { usize::from(leaf.byte(at + self.max_key - 1)) };
        let bytes = self.max_key.checked_sub(room).filter(|_| head & PRESENT != 0)?;
        Some((0..bytes).map(|byte| leaf.byte(at + byte)).collect())
    }
}

impl Parts<'_> {
    /// Tells whether so many bytes of the stream from `at` on were read.
    fn has(&self, at: usize, bytes: usize) -> bool {
        let (first, last) = (physical(at), physical(at + bytes - 1));
        self.read.iter().any(|read| read.contains(&first) && read.contains(&last))
    }

    fn byte(&self, at: usize) -> u8 {
        self.image[physical(at)]
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        for (place, byte) in bytes.iter().enumerate() {
            self.image[physical(at + place)] = *byte;
        }
    }
}

/// Yields the place of a byte of the payload stream.
fn physical(at: usize) -> usize {
    at / PAYLOAD * LINE_BYTES + 2 + at % PAYLOAD
}
