//! The content of one node's image as a check needs it, with the faults inside it: of an inner node here, of a leaf by
//! its format. Pure; `check/level.rs` compares it with its neighbours and parents.

use farwood_runtime::RemotePtr;

use crate::check::Broken;
use crate::layout::{Bytes, Header, InnerLayout, Position, Rejection};

/// Depth to which a walk looks into leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// Their keys are counted.
    Shape,
    /// Every entry is read.
    Entries,
}

/// A node whose lines agree and whose header can be read.
#[derive(Debug)]
pub struct ObservedNode {
    pub(crate) level: u8,
    pub(crate) low: Bytes,
    pub(crate) high: Option<Bytes>,
    pub(crate) sibling: RemotePtr,
    /// Separators and children, ascending, without those among the faults.
    pub(crate) children: Vec<(Bytes, RemotePtr)>,
    /// Keys that are in a leaf.
    pub(crate) keys: u64,
    /// Bytes of the blocks that a leaf leads to.
    pub(crate) block_bytes: u64,
    /// These blocks, and their bytes, if a walk has looked at them.
    pub(crate) blocks: Vec<(RemotePtr, u64)>,
    /// The pairs of a leaf, ascending.
    pub(crate) pairs: Vec<(Bytes, Bytes)>,
    pub(crate) faults: Vec<Broken>,
}

impl ObservedNode {
    /// Makes a node of what its header says, without entries.
    pub(crate) fn new(header: &Header<'_>) -> Self {
        ObservedNode {
            level: header.level(),
            low: header.low(),
            high: header.high(),
            sibling: header.sibling(),
            children: Vec::new(),
            keys: 0,
            block_bytes: 0,
            blocks: Vec::new(),
            pairs: Vec::new(),
            faults: Vec::new(),
        }
    }

    pub(super) fn inner(layout: &InnerLayout, image: &[u8]) -> Result<Self, Rejection> {
        let view = layout.view(image)?;
        let mut seen = ObservedNode::new(view.header());
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

    /// Judges the pairs of a leaf, and sorts them: those that are there twice, or outside the fences, are faults.
    pub(crate) fn judge_pairs(&mut self) {
        self.pairs.sort();
        let twice = self.pairs.windows(2).filter(|pair| pair[0].0 == pair[1].0);
        self.faults.extend(twice.map(|pair| Broken::DuplicateKey { key: pair[0].0.clone() }));
        let (low, high) = (&self.low, &self.high);
        let is_outside = |key: &Bytes| key < low || high.as_ref().is_some_and(|high| key >= high);
        let outside = self.pairs.iter().map(|(key, _)| key).filter(|key| is_outside(key));
        self.faults.extend(outside.map(|key| Broken::KeyOutside { key: key.clone() }));
    }

    /// Tells whether an entry's lines are of different versions.
    pub(crate) fn has_torn_entry(&self) -> bool {
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
            ObservedNode::inner(&layout, &image).unwrap()
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
