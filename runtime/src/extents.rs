//! Sets of bytes of a cluster's memory, as extents: what of two is in both, what in one alone. Arithmetic only: what
//! the bytes are for is not known here.
//!
//! ```text
//!   set         [======)      [=========)[==)      extents that touch are one
//!   a piece           [=============)
//!   gaps               [======)
//!   shared            [)       from the first byte on that is in both
//! ```

use std::collections::BTreeMap;

use crate::pointer::RemotePtr;

/// A set of bytes, by their addresses.
///
/// ```
/// # use farwood_runtime::{Extents, RemotePtr, ServerId};
/// let at = |offset| RemotePtr::new(ServerId(1), offset);
/// let mut nodes = Extents::default();
/// assert_eq!(nodes.add(at(4096), 1024), None);
/// assert_eq!(nodes.add(at(5000), 1024), Some(at(5000)), "the first byte that was in it before");
/// assert_eq!((nodes.bytes(), nodes.gaps(at(4096), 4096)), (1928, vec![(at(6024), 2168)]));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extents {
    /// Where extents begin and end, which neither overlap nor touch.
    ends: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Extents {
    /// Adds `bytes` bytes from `at` on; yields the first of them that was in the set before.
    ///
    /// ```
    /// # use farwood_runtime::{Extents, RemotePtr};
    /// let (mut nodes, at) = (Extents::default(), RemotePtr::from_bits(4096));
    /// assert_eq!((nodes.add(at, 64), nodes.add(at.add(64), 64), nodes.bytes()), (None, None, 128));
    /// ```
    pub fn add(&mut self, at: RemotePtr, bytes: u64) -> Option<RemotePtr> {
        let shared = self.first_shared(at, bytes);
        let (mut begin, mut end) = bounds(at, bytes);
        if begin == end {
            return None;
        }
        // What overlaps it, or touches it.
        while let Some((&from, &to)) = self.ends.range(..=end).next_back().filter(|(_, to)| **to >= begin) {
            self.ends.remove(&from);
            self.bytes -= to - from;
            (begin, end) = (begin.min(from), end.max(to));
        }
        self.ends.insert(begin, end);
        self.bytes += end - begin;
        shared
    }

    /// Counts the bytes of the set.
    ///
    /// ```
    /// # use farwood_runtime::Extents;
    /// assert_eq!(Extents::default().bytes(), 0);
    /// ```
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Yields the extents of the set, ascending.
    ///
    /// ```
    /// # use farwood_runtime::{Extents, RemotePtr};
    /// let (mut nodes, at) = (Extents::default(), RemotePtr::from_bits(4096));
    /// nodes.add(at, 64);
    /// assert!(nodes.iter().eq([(at, 64)]));
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = (RemotePtr, u64)> {
        self.ends.iter().map(|(begin, end)| (RemotePtr::from_bits(*begin), end - begin))
    }

    /// Yields the extents of the set that begin at `from` or behind, ascending.
    ///
    /// ```
    /// # use farwood_runtime::{Extents, RemotePtr};
    /// let (mut nodes, at) = (Extents::default(), RemotePtr::from_bits(4096));
    /// nodes.add(at, 64);
    /// assert_eq!((nodes.iter_from(at).count(), nodes.iter_from(at.add(8)).count()), (1, 0));
    /// ```
    pub fn iter_from(&self, from: RemotePtr) -> impl Iterator<Item = (RemotePtr, u64)> {
        let behind = self.ends.range(from.to_bits()..);
        behind.map(|(begin, end)| (RemotePtr::from_bits(*begin), end - begin))
    }

    /// Adds all bytes of another set.
    ///
    /// ```
    /// # use farwood_runtime::{Extents, RemotePtr};
    /// let (mut one, mut other) = (Extents::default(), Extents::default());
    /// other.add(RemotePtr::from_bits(4096), 64);
    /// one.add_all(&other);
    /// assert_eq!(one, other);
    /// ```
    pub fn add_all(&mut self, other: &Extents) {
        other.iter().for_each(|(at, bytes)| _ = self.add(at, bytes));
    }

    /// Counts the extents of the set.
    ///
    /// ```
    /// # use farwood_runtime::Extents;
    /// assert_eq!(Extents::default().count(), 0);
    /// ```
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// Yields the first of `bytes` bytes from `at` on that is in the set.
    ///
    /// ```
    /// # use farwood_runtime::{Extents, RemotePtr};
    /// let (mut nodes, at) = (Extents::default(), RemotePtr::from_bits(4096));
    /// nodes.add(at.add(64), 64);
    /// assert_eq!((nodes.first_shared(at, 64), nodes.first_shared(at, 65)), (None, Some(at.add(64))));
    /// ```
    pub fn first_shared(&self, at: RemotePtr, bytes: u64) -> Option<RemotePtr> {
        let (begin, end) = bounds(at, bytes);
        let around = self.ends.range(..=begin).next_back().filter(|(_, to)| begin < **to && begin < end);
        let behind = || self.ends.range(begin..end).next().map(|(from, _)| *from);
        around.map(|_| begin).or_else(behind).map(RemotePtr::from_bits)
    }

    /// Lists what of `bytes` bytes from `at` on is not in the set, ascending.
    ///
    /// ```
    /// # use farwood_runtime::{Extents, RemotePtr};
    /// let (mut nodes, at) = (Extents::default(), RemotePtr::from_bits(4096));
    /// nodes.add(at.add(64), 64);
    /// assert_eq!(nodes.gaps(at, 192), [(at, 64), (at.add(128), 64)]);
    /// ```
    pub fn gaps(&self, at: RemotePtr, bytes: u64) -> Vec<(RemotePtr, u64)> {
        let (mut begin, end) = bounds(at, bytes);
        let mut gaps = Vec::new();
        let around = self.ends.range(..begin).next_back().map(|(_, to)| *to);
        begin = begin.max(around.unwrap_or(begin));
        if begin < end {
            for (&from, &to) in self.ends.range(begin..end) {
                if begin < from {
                    gaps.push((RemotePtr::from_bits(begin), from - begin));
                }
                begin = to;
            }
        }
        if begin < end {
            gaps.push((RemotePtr::from_bits(begin), end - begin));
        }
        gaps
    }
}

/// Returns where these bytes begin and end; what is more than addresses have is left out.
fn bounds(at: RemotePtr, bytes: u64) -> (u64, u64) {
    (at.to_bits(), at.to_bits().saturating_add(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 1 << 48;
    const BYTES: u64 = 7;

    fn at(byte: u64) -> RemotePtr {
        RemotePtr::from_bits(BASE + byte)
    }

    /// The bytes of a set of a few, as bits.
    fn bits_of(extents: impl IntoIterator<Item = (RemotePtr, u64)>) -> u32 {
        extents
            .into_iter()
            .flat_map(|(at, bytes)| (0..bytes).map(move |byte| 1 << (at.to_bits() - BASE + byte)))
            .sum()
    }

    fn set_of(bits: u32) -> Extents {
        let mut set = Extents::default();
        (0..BYTES).filter(|byte| bits >> byte & 1 == 1).for_each(|byte| _ = set.add(at(byte), 1));
        set
    }

    /// All sets of seven bytes, and all pieces of them.
    #[test]
    fn every_piece_of_every_set_is_known() {
        for bits in 0..1_u32 << BYTES {
            let set = set_of(bits);
            assert_eq!((bits_of(set.iter()), set.bytes()), (bits, u64::from(bits.count_ones())));
            let touch =
                set.iter().zip(set.iter().skip(1)).any(|((at, bytes), (next, _))| at.add(bytes) >= next);
            assert!(!touch, "{set:?}");
            for begin in 0..BYTES {
                for bytes in 0..=BYTES - begin {
                    let piece = ((1 << bytes) - 1) << begin;
                    let shared = bits & piece;
                    let first = (shared != 0).then(|| at(u64::from(shared.trailing_zeros())));
                    assert_eq!(set.first_shared(at(begin), bytes), first, "{bits:b} {piece:b}");
                    let gaps = set.gaps(at(begin), bytes);
                    assert_eq!(bits_of(gaps.iter().copied()), piece & !bits, "{bits:b} {piece:b}");
                    assert!(gaps.iter().all(|(_, bytes)| *bytes > 0));
                    let mut more = set.clone();
                    assert_eq!(more.add(at(begin), bytes), first, "{bits:b} {piece:b}");
                    assert_eq!(more, set_of(bits | piece), "{bits:b} {piece:b}");
                }
            }
        }
    }

    #[test]
    fn servers_lie_apart() {
        let mut set = Extents::default();
        let of = |server: u64, offset| RemotePtr::from_bits(server << 48 | offset);
        set.add(of(0, 4096), 4096);
        assert_eq!(set.add(of(1, 4096), 4096), None);
        assert_eq!((set.iter().count(), set.bytes()), (2, 8192));
        assert_eq!(set.first_shared(of(2, 4096), u64::MAX), None);
    }
}
