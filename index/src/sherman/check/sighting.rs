//! What a check takes from one node's image, and what is wrong inside it. Pure; what its neighbours and its parent say
//! is `level.rs`'s business.

use farwood_runtime::RemotePtr;

use crate::check::Broken;
use crate::layout::{Bytes, Header, InnerLayout, LeafLayout, Position, Rejection};

/// How far a walk looks into leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::sherman) enum Depth {
    /// It counts their keys.
    Shape,
    /// It reads every entry.
    Entries,
}

/// A node whose lines agree and whose header can be read.
#[derive(Debug)]
pub(super) struct Sighting {
    pub(super) level: u8,
    pub(super) low: Bytes,
    pub(super) high: Option<Bytes>,
    pub(super) sibling: RemotePtr,
    /// Separators and children, ascending, but for those among the faults.
    pub(super) children: Vec<(Bytes, RemotePtr)>,
    /// Keys that are in a leaf.
    pub(super) keys: u64,
    /// The pairs of a leaf, ascending.
    pub(super) pairs: Vec<(Bytes, Bytes)>,
    pub(super) faults: Vec<Broken>,
}

impl Sighting {
    fn new(header: &Header<'_>) -> Self {
        Sighting {
            level: header.level(),
            low: header.low(),
            high: header.high(),
            sibling: header.sibling(),
            children: Vec::new(),
            keys: 0,
            pairs: Vec::new(),
            faults: Vec::new(),
        }
    }

    pub(super) fn leaf(layout: &LeafLayout, image: &[u8], depth: Depth) -> Result<Self, Rejection> {
        let view = layout.view(image)?;
        let mut seen = Sighting::new(view.header());
        if depth == Depth::Shape {
            seen.keys = view.len() as u64;
            return Ok(seen);
        }
        for entry in view.entries() {
            match entry {
                Ok(entry) => seen.pairs.push((entry.key, entry.value)),
                Err(rejection) => seen.faults.push(Broken::Entry(rejection)),
            }
        }
        seen.keys = seen.pairs.len() as u64;
        seen.pairs.sort();
        let twice = seen.pairs.windows(2).filter(|pair| pair[0].0 == pair[1].0);
        seen.faults.extend(twice.map(|pair| Broken::DuplicateKey { key: pair[0].0.clone() }));
        let keys = seen.pairs.iter().map(|(key, _)| key);
        let outside = keys.clone().filter(|key| view.header().position(key) != Position::Here);
        seen.faults.extend(outside.map(|key| Broken::KeyOutside { key: key.clone() }));
        let not_found = keys.filter(|key| matches!(view.find(key), Ok(None)));
        seen.faults.extend(not_found.map(|key| Broken::Fingerprint { key: key.clone() }));
        Ok(seen)
    }

    pub(super) fn inner(layout: &InnerLayout, image: &[u8]) -> Result<Self, Rejection> {
        let view = layout.view(image)?;
        let mut seen = Sighting::new(view.header());
        for (slot, entry) in view.entries().enumerate() {
            let (separator, child) = match entry {
                Ok(entry) => entry,
                Err(rejection) => {
                    seen.faults.push(Broken::Entry(rejection));
                    continue;
                }
            };
            if slot == 0 && separator != seen.low {
                seen.faults.push(Broken::FirstSeparator { separator, low: seen.low.clone() });
            } else if view.header().position(&separator) != Position::Here {
                seen.faults.push(Broken::SeparatorOutside { separator });
            } else if seen.children.last().is_some_and(|(last, _)| *last >= separator) {
                seen.faults.push(Broken::SeparatorOrder { separator });
            } else {
                seen.children.push((separator, child));
            }
        }
        Ok(seen)
    }

    /// Whether an entry's lines are of different versions.
    pub(super) fn has_torn_entry(&self) -> bool {
        self.faults.contains(&Broken::Entry(Rejection::Torn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{NodeHeader, NodeVersion};

    fn header(level: u8) -> NodeHeader<'static> {
        NodeHeader {
            level,
            low: b"b",
            high: Some(b"m"),
            sibling: RemotePtr::from_bits(640),
            incarnation: 1,
            node_version: NodeVersion::default(),
        }
    }

    fn key(bytes: &[u8]) -> Bytes {
        Bytes::from_slice(bytes)
    }

    #[test]
    fn keys_outside_the_fences_and_keys_twice_are_faults() {
        let layout = LeafLayout::for_slots(6, 4, 4).unwrap();
        let mut image = vec![0; layout.node_bytes()];
        let pairs: [(&[u8], &[u8]); 5] =
            [(b"m", b"1"), (b"c", b"2"), (b"a", b"3"), (b"c", b"4"), (b"b", b"5")];
        layout.build(&mut image, &header(0), pairs);
        let seen = Sighting::leaf(&layout, &image, Depth::Entries).unwrap();
        let outside = |bytes| Broken::KeyOutside { key: key(bytes) };
        assert_eq!(seen.faults, [Broken::DuplicateKey { key: key(b"c") }, outside(b"a"), outside(b"m")]);
        assert!(seen.pairs.is_sorted() && seen.keys == 5 && !seen.has_torn_entry());
        let shape = Sighting::leaf(&layout, &image, Depth::Shape).unwrap();
        assert!(shape.keys == 5 && shape.faults.is_empty() && shape.pairs.is_empty());
    }

    #[test]
    fn a_key_that_no_lookup_finds_is_a_fault() {
        let layout = LeafLayout::for_slots(6, 4, 4).unwrap();
        let mut image = vec![0; layout.node_bytes()];
        let faults = |image: &[u8]| Sighting::leaf(&layout, image, Depth::Entries).unwrap().faults;
        let pairs: [(&[u8], &[u8]); 2] = [(b"c", b"1"), (b"d", b"2")];
        layout.build(&mut image, &header(0), pairs);
        assert_eq!(faults(&image), []);
        // The first fingerprint, behind the control word and the header.
        image[2 + 20 + 2 * 4] ^= 1;
        assert_eq!(faults(&image), [Broken::Fingerprint { key: key(b"c") }]);
    }

    #[test]
    fn separators_that_no_writer_leaves_are_faults_and_no_children() {
        let layout = InnerLayout::for_slots(4, 4).unwrap();
        let child = |n: u64| RemotePtr::from_bits(64 * n);
        let mut image = vec![0; layout.node_bytes()];
        let entries: [(&[u8], _); 4] =
            [(b"b", child(1)), (b"dddd", child(2)), (b"eeee", child(3)), (b"ffff", child(4))];
        layout.build(&mut image, &header(1), entries);
        let with = |old: u8, new: u8| {
            let mut image = image.clone();
            image.iter_mut().filter(|byte| **byte == old).for_each(|byte| *byte = new);
            Sighting::inner(&layout, &image).unwrap()
        };
        assert_eq!(with(0, 0).children.len(), 4);
        let seen = with(b'e', b'c');
        assert_eq!(seen.faults, [Broken::SeparatorOrder { separator: key(b"cccc") }]);
        assert_eq!(seen.children.last(), Some(&(key(b"ffff"), child(4))));
        let seen = with(b'f', b'm');
        assert_eq!(seen.faults, [Broken::SeparatorOutside { separator: key(b"mmmm") }]);
        assert_eq!(seen.children.len(), 3);
    }
}
