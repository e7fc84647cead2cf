//! The types of inner nodes: how many slots a node of a type has, and how much memory it was given.
//!
//! A node grows in place while there is room, and moves to a roomier place afterwards. Types that share a room are of
//! one allocation: the type of a node says both how many of its slots are in use, so that no READ takes more, and how
//! large it is.
//!
//! | types | slots | memory | |
//! |---|---|---|---|
//! | 1 | 6 | 64 B | what a leaf split makes; most nodes of a large tree stay so |
//! | 2, 3, 4 | 14, 22, 30 | 256 B | |
//! | 5, 6, 7 | 46, 62, 94 | 768 B | |
//! | 8, 9, 10 | 126, 190, 262 | 2112 B | every symbol, and the end |
//!
//! The cost: a node that grows from 2 to 256 children moves three times, and each time its slots are frozen by one CAS
//! each, in chains that go out together. With random keys that is a few CAS per hundred inserts. The published code
//! takes 2304 bytes for every inner node, and never moves one.

/// A table of node types. Type 0 is a node that has been replaced.
#[derive(Debug, PartialEq)]
pub struct NodeTypes {
    /// Slots in use at most and slots there is room for, by type from 1 on.
    sizes: &'static [(u16, u16)],
}

/// Bytes of link and header, before the slots.
const HEAD_BYTES: usize = 16;
/// Symbols that a node may have to hold.
const SYMBOLS: u16 = 257;

impl NodeTypes {
    /// Types whose nodes take whole lines of 64 bytes.
    pub const LINES: NodeTypes = NodeTypes {
        sizes: &[
            (6, 6),
            (14, 30),
            (22, 30),
            (30, 30),
            (46, 94),
            (62, 94),
            (94, 94),
            (126, 262),
            (190, 262),
            (262, 262),
        ],
    };

    /// Types in small steps, for tests.
    pub const TINY: NodeTypes =
        NodeTypes { sizes: &[(2, 2), (3, 5), (5, 5), (8, 16), (16, 16), (64, 257), (257, 257)] };

    /// Yields the largest type.
    ///
    /// ```
    /// # use farwood_index::layout::radix::NodeTypes;
    /// assert_eq!(NodeTypes::LINES.largest(), 10);
    /// ```
    pub const fn largest(&self) -> u8 {
        self.sizes.len() as u8
    }

    /// Counts the slots of a node of that type; 0 for a type that does not exist.
    ///
    /// ```
    /// # use farwood_index::layout::radix::NodeTypes;
    /// assert_eq!((NodeTypes::LINES.slots(1), NodeTypes::LINES.slots(2)), (6, 14));
    /// ```
    #[inline]
    pub fn slots(&self, node_type: u8) -> usize {
        self.size(node_type).0
    }

    /// Counts the slots that fit into the room of a node of that type.
    ///
    /// ```
    /// # use farwood_index::layout::radix::NodeTypes;
    /// assert_eq!((NodeTypes::LINES.slots(2), NodeTypes::LINES.room(2)), (14, 30));
    /// ```
    pub fn room(&self, node_type: u8) -> usize {
        self.size(node_type).1
    }

    /// Counts the bytes to read of a node of that type.
    ///
    /// ```
    /// # use farwood_index::layout::radix::NodeTypes;
    /// assert_eq!(NodeTypes::LINES.read_bytes(2), 128);
    /// ```
    #[inline]
    pub fn read_bytes(&self, node_type: u8) -> usize {
        HEAD_BYTES + 8 * self.slots(node_type)
    }

    /// Counts the bytes that a node of that type takes.
    ///
    /// ```
    /// # use farwood_index::layout::radix::NodeTypes;
    /// assert_eq!(NodeTypes::LINES.node_bytes(2), 256);
    /// ```
    pub fn node_bytes(&self, node_type: u8) -> usize {
        HEAD_BYTES + 8 * self.room(node_type)
    }

    /// Yields the smallest type with so many slots, which are no more than symbols.
    ///
    /// ```
    /// # use farwood_index::layout::radix::NodeTypes;
    /// assert_eq!((NodeTypes::LINES.for_slots(6), NodeTypes::LINES.for_slots(7)), (1, 2));
    /// ```
    pub fn for_slots(&self, slots: usize) -> u8 {
        let place = self.sizes.iter().position(|&(most, _)| usize::from(most) >= slots);
        place.expect("the largest type has a slot for every symbol") as u8 + 1
    }

    /// Yields the type of a node of type `node_type` once the slot with that index is in use: the same, or one that
    /// shares its room. None if there is no room.
    ///
    /// ```
    /// # use farwood_index::layout::radix::NodeTypes;
    /// assert_eq!(NodeTypes::LINES.with_slot(2, 14), Some(3), "in the same room");
    /// assert_eq!(NodeTypes::LINES.with_slot(1, 6), None);
    /// ```
    pub fn with_slot(&self, node_type: u8, index: usize) -> Option<u8> {
        if index >= self.room(node_type) {
            return None;
        }
        let larger = self.for_slots(index + 1);
        Some(larger.max(node_type))
    }

    /// Yields the type that a node of type `node_type` has to move to when its room is full; none if it needs no more.
    ///
    /// ```
    /// # use farwood_index::layout::radix::NodeTypes;
    /// assert_eq!((NodeTypes::LINES.beyond(1), NodeTypes::LINES.beyond(10)), (Some(2), None));
    /// ```
    pub fn beyond(&self, node_type: u8) -> Option<u8> {
        let room = self.room(node_type);
        (room < usize::from(SYMBOLS)).then(|| self.for_slots(room + 1))
    }

    #[inline]
    fn size(&self, node_type: u8) -> (usize, usize) {
        match self.sizes.get(usize::from(node_type).wrapping_sub(1)) {
            Some(&(slots, room)) => (usize::from(slots), usize::from(room)),
            None => (0, 0),
        }
    }
}

const fn is_sound(types: &NodeTypes) -> bool {
    let sizes = types.sizes;
    let mut place = 0;
    while place < sizes.len() {
        let (slots, room) = sizes[place];
        if slots > room || place > 0 && (sizes[place - 1].0 >= slots || sizes[place - 1].1 > room) {
            return false;
        }
        // The last type of a room fills it.
        let last = place + 1 == sizes.len() || sizes[place + 1].1 != room;
        if last && slots != room {
            return false;
        }
        place += 1;
    }
    sizes.len() <= 31 && sizes[0].0 >= 2 && sizes[sizes.len() - 1].0 >= SYMBOLS
}

const _: () = assert!(is_sound(&NodeTypes::LINES) && is_sound(&NodeTypes::TINY));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fill_lines() {
        for node_type in 1..=NodeTypes::LINES.largest() {
            assert_eq!(NodeTypes::LINES.read_bytes(node_type) % 64, 0);
            assert_eq!(NodeTypes::LINES.node_bytes(node_type) % 64, 0);
        }
        assert_eq!(NodeTypes::LINES.node_bytes(1), 64);
        assert_eq!(NodeTypes::LINES.node_bytes(10), 2112);
    }

    #[test]
    fn nodes_grow_in_their_room_and_move_beyond() {
        for types in [&NodeTypes::LINES, &NodeTypes::TINY] {
            for node_type in 1..=types.largest() {
                for index in 0..types.room(node_type) {
                    let with = types.with_slot(node_type, index).unwrap();
                    assert_eq!(types.room(with), types.room(node_type), "{node_type} {index}");
                    assert!(index < types.slots(with) && with >= node_type);
                }
                assert_eq!(types.with_slot(node_type, types.room(node_type)), None);
                match types.beyond(node_type) {
                    Some(next) => assert!(types.room(next) > types.room(node_type)),
                    None => assert!(types.room(node_type) >= 257),
                }
            }
            assert_eq!((types.slots(0), types.room(31)), (0, 0));
        }
    }
}
