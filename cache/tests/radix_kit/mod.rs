//! Radix trees as the tree would build them, without a tree: from sorted keys, bottom up, with addresses as a
//! bulk load gives them. Shared by tests and the benchmark.

use std::ops::Range;

use farwood_cache::radix::slot::{CHILD_SERVER_SHIFT, CLASS_SHIFT, END, LEAF, PARTIAL_SHIFT};
use farwood_cache::radix::{PREFIX_BYTES_MAX, RadixImage};

/// Bytes of the unit of addresses.
const UNIT_BYTES: u64 = 64;
const UNITS_PER_CHUNK: u64 = (8 << 20) / UNIT_BYTES;
/// The class of all leaves.
const LEAF_CLASS: u64 = 1;

/// Hands out memory one after the other, in chunks of 8 MiB that go round the servers.
pub(crate) struct Allocator {
    next: u64,
    servers: u64,
    leaf_units: u64,
}

impl Allocator {
    /// Makes an allocator for leaves of so many units.
    pub(crate) fn new(servers: u64, leaf_units: u64) -> Self {
        Allocator { next: 1, servers, leaf_units }
    }

    fn take(&mut self, units: u64) -> u64 {
        let (chunk, unit) = (self.next / UNITS_PER_CHUNK, self.next % UNITS_PER_CHUNK);
        self.next += units;
        let offset = chunk / self.servers * UNITS_PER_CHUNK + unit;
        (chunk % self.servers) << CHILD_SERVER_SHIFT | offset
    }
}

/// Yields an inner node's type for so many slots.
fn class(slots: usize) -> u8 {
    slots.max(2).next_power_of_two().ilog2() as u8
}

/// Builds a tree over `keys`, which ascend strictly: `node` is called for each inner node, children first,
/// with its image. Returns the root's slot word.
pub(crate) fn build<K: AsRef<[u8]>>(
    keys: &[K],
    memory: &mut Allocator,
    leaf: &mut impl FnMut(&mut Allocator) -> u64,
    node: &mut impl FnMut(&RadixImage<'_>),
) -> u64 {
    let mut builder = Builder { keys, memory, leaf, node };
    builder.subtree(0..keys.len(), 0)
}

/// Yields the address of a leaf in the order of keys.
pub(crate) fn in_order(memory: &mut Allocator) -> u64 {
    memory.take(memory.leaf_units)
}

struct Builder<'a, K, L, N> {
    keys: &'a [K],
    memory: &'a mut Allocator,
    leaf: &'a mut L,
    node: &'a mut N,
}

impl<K: AsRef<[u8]>, L: FnMut(&mut Allocator) -> u64, N: FnMut(&RadixImage<'_>)> Builder<'_, K, L, N> {
    /// Builds the word for the slot that leads to these keys, without its partial. They agree before `depth`.
    fn subtree(&mut self, range: Range<usize>, depth: usize) -> u64 {
        if range.len() == 1 {
            return LEAF | LEAF_CLASS << CLASS_SHIFT | (self.leaf)(self.memory);
        }
        let (first, last) = (self.keys[range.start].as_ref(), self.keys[range.end - 1].as_ref());
        let common =
            (depth..).take_while(|at| first.get(*at).is_some() && first.get(*at) == last.get(*at)).count();
        let common = common.min(PREFIX_BYTES_MAX);
        let pos = depth + common;
        let mut slots = Vec::new();
        let mut start = range.start;
        while start < range.end {
            let byte = self.keys[start].as_ref().get(pos).copied();
            let same = |key: &K| key.as_ref().get(pos).copied() == byte;
            let end = start + self.keys[start..range.end].partition_point(same);
            let word = self.subtree(start..end, pos + 1);
            slots.push(match byte {
                Some(byte) => word | u64::from(byte) << PARTIAL_SHIFT,
                None => word | END,
            });
            start = end;
        }
        let class = class(slots.len());
        let units = (24 + (8u64 << class)).div_ceil(UNIT_BYTES);
        let address = self.memory.take(units);
        let prefix = &first[depth..pos];
        (self.node)(&RadixImage { node: address, class, depth: depth as u8, prefix, slots: &slots });
        u64::from(class) << CLASS_SHIFT | address
    }
}
