//! The control word that opens each line of a node: node version and entry version.
//!
//! ```text
//!  15       11 10                      0
//! +-----------+-------------------------+
//! | EV 5 bits | NV 11 bits              |   little-endian, the first two bytes of each 64-byte line
//! +-----------+-------------------------+
//! ```
//!
//! - NV is the same in all lines of a node; a write of the whole node increments it in all of them. A reader that
//!   finds two different ones has read across such a write.
//! - EV belongs to the entry that reaches into the line from the line before (there is at most one); it equals the
//!   EV in that entry's head, and each write of the entry increments both. An entry inside one line needs none:
//!   the line is atomic.
//!
//! The CHIME paper's figure 7 has this pair in every line. Both wrap (2048 and 32 writes): the caller bounds the
//! duration of a read so that a wrap cannot happen inside it. This file does not know what entries are.

use super::stream::LINE_BYTES;

const NODE_BITS: u32 = 11;
const NODE_MASK: u16 = (1 << NODE_BITS) - 1;
const ENTRY_MASK: u8 = 0x1f;
/// Half of all node versions.
const HALF: u16 = 1 << (NODE_BITS - 1);

/// The version of a node as a whole: 11 bits, wrapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeVersion(u16);

impl NodeVersion {
    /// The number of different versions: a read must be shorter than the time from the first of this many node writes
    /// to the last ([`wrap_ns`]).
    pub const COUNT: u32 = 1 << NODE_BITS;

    /// Makes the version with the number `number` modulo [`NodeVersion::COUNT`].
    ///
    /// ```
    /// # use farwood_index::layout::NodeVersion;
    /// assert_eq!(NodeVersion::new(2049), NodeVersion::new(1));
    /// ```
    pub const fn new(number: u16) -> Self {
        NodeVersion(number & NODE_MASK)
    }

    /// Yields the version of the next write of the whole node.
    ///
    /// ```
    /// # use farwood_index::layout::NodeVersion;
    /// assert_eq!(NodeVersion::new(2047).next(), NodeVersion::new(0));
    /// ```
    #[must_use]
    pub const fn next(self) -> Self {
        NodeVersion::new(self.0 + 1)
    }

    /// Yields the version's number, below [`NodeVersion::COUNT`].
    ///
    /// ```
    /// # use farwood_index::layout::NodeVersion;
    /// assert_eq!(NodeVersion::new(7).next().number(), 8);
    /// ```
    pub const fn number(self) -> u16 {
        self.0
    }
}

/// Yields the least time in ns from the first of so many writes to the last, one after the other, each of which locks,
/// reads `bytes` bytes, and writes: so many versions wrap around in it. The fabric says how long a lock and a write
/// take at least; none reads more than a line per ns.
///
/// ```text
///   writes          1       2              32
///   READ      line 3                          line 4        the version of before 1: 31 intervals are enough
/// ```
///
/// ```
/// # use farwood_index::layout::wrap_ns;
/// assert_eq!(wrap_ns(32, 150, 1024), 31 * (150 + 16));
/// ```
#[inline]
pub fn wrap_ns(writes: u32, write_interval_ns: u32, bytes: usize) -> u64 {
    u64::from(writes - 1) * (u64::from(write_interval_ns) + (bytes / LINE_BYTES) as u64)
}

/// The version of one entry: 5 bits, wrapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EntryVersion(u8);

impl EntryVersion {
    /// The number of different versions: a read must be shorter than the time from the first of this many writes of one
    /// entry to the last ([`wrap_ns`]).
    pub const COUNT: u32 = 1 << 5;

    /// Yields the version in the low 5 bits of `bits`.
    pub(super) const fn from_bits(bits: u8) -> Self {
        EntryVersion(bits & ENTRY_MASK)
    }

    pub(super) const fn bits(self) -> u8 {
        self.0
    }

    pub(super) const fn next(self) -> Self {
        EntryVersion::from_bits(self.0 + 1)
    }

    /// Yields the version behind the newest of these: the one with the most versions behind it that are not among them.
    pub(super) fn after(versions: impl Iterator<Item = Self>) -> Self {
        let there = versions.fold(0_u32, |there, version| there | 1 << version.0);
        let is_there = |bits: &u8| there >> bits & 1 != 0;
        let unused_behind = |bits: &u8| there.rotate_right(u32::from(bits + 1)).trailing_zeros();
        let newest = (0..Self::COUNT as u8).filter(is_there).max_by_key(unused_behind);
        EntryVersion(newest.unwrap_or_default()).next()
    }
}

/// Yields the node version of the image's first line; the node's, if [`node_versions_agree`].
pub(super) fn node_version(image: &[u8]) -> NodeVersion {
    NodeVersion::new(control_word(image, 0))
}

/// Yields the node version that the control word of line `line` carries.
pub(super) fn line_version(image: &[u8], line: usize) -> NodeVersion {
    NodeVersion::new(control_word(image, line))
}

/// Tells whether all lines carry the same node version.
#[inline]
pub(super) fn node_versions_agree(image: &[u8]) -> bool {
    let (lines, _) = image.as_chunks::<LINE_BYTES>();
    let first = control_word(image, 0);
    // A branch per line, all predictable. Without them, compilers gather the words into vectors, which takes
    // longer.
    lines.iter().all(|line| (u16::from_le_bytes([line[0], line[1]]) ^ first) & NODE_MASK == 0)
}

/// Yields the node version of all lines; none if there are different ones.
pub(super) fn node_version_of_all(image: &[u8]) -> Option<NodeVersion> {
    node_versions_agree(image).then(|| node_version(image))
}

/// Gives all lines the node version `version`.
pub(super) fn set_node_version(image: &mut [u8], version: NodeVersion) {
    for line in 0..image.len() / LINE_BYTES {
        let word = control_word(image, line) & !NODE_MASK | version.0;
        set_control_word(image, line, word);
    }
}

/// Yields the version for a new node in the place of `image`, of which writes may have come to a part only: the one
/// behind the newest of all lines.
///
/// ```
/// # farwood_doctest::leaf!(|layout, image| {
/// assert_eq!(version_behind(&image), NodeVersion::new(8));
/// # });
/// ```
pub fn version_behind(image: &[u8]) -> NodeVersion {
    let first = node_version(image);
    let lines = (0..image.len() / LINE_BYTES).map(|line| line_version(image, line));
    // They are few versions apart, on either side of the first one.
    let ahead = |version: NodeVersion| NodeVersion::new(version.0.wrapping_sub(first.0).wrapping_add(HALF)).0;
    lines.max_by_key(|version| ahead(*version)).unwrap_or(first).next()
}

/// Increments the node version in all lines of a modified image, which is then to be written as a whole. Returns
/// the new version.
///
/// ```
/// # farwood_doctest::leaf!(|layout, image| {
/// assert_eq!(bump_node_version(&mut image), NodeVersion::new(8));
/// assert!(layout.view(&image).is_ok(), "all lines have it");
/// # });
/// ```
pub fn bump_node_version(image: &mut [u8]) -> NodeVersion {
    let version = node_version(image).next();
    set_node_version(image, version);
    version
}

/// Increments the node version of each line by itself: lines that have different ones still do.
pub(super) fn bump_lines(image: &mut [u8]) {
    for line in 0..image.len() / LINE_BYTES {
        let word = control_word(image, line) & !NODE_MASK | line_version(image, line).next().0;
        set_control_word(image, line, word);
    }
}

/// Yields the entry version that the control word of line `line` carries.
#[inline]
pub(super) fn entry_version(image: &[u8], line: usize) -> EntryVersion {
    EntryVersion((control_word(image, line) >> NODE_BITS) as u8)
}

/// Sets the entry version in the control word of line `line`.
pub(super) fn set_entry_version(image: &mut [u8], line: usize, version: EntryVersion) {
    let word = control_word(image, line) & NODE_MASK | u16::from(version.0) << NODE_BITS;
    set_control_word(image, line, word);
}

#[inline]
fn control_word(image: &[u8], line: usize) -> u16 {
    let at = line * LINE_BYTES;
    u16::from_le_bytes([image[at], image[at + 1]])
}

fn set_control_word(image: &mut [u8], line: usize, word: u16) {
    let at = line * LINE_BYTES;
    image[at..at + 2].copy_from_slice(&word.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_node_has_a_version_behind_all_lines() {
        for first in [0, 7, 2046, 2047] {
            let behind = |ahead: [u16; 4]| {
                let mut image = [0; 4 * LINE_BYTES];
                for (line, ahead) in ahead.into_iter().enumerate() {
                    set_control_word(&mut image, line, 5 << NODE_BITS | NodeVersion::new(first + ahead).0);
                }
                version_behind(&image)
            };
            let version = |ahead| NodeVersion::new(first + ahead);
            assert_eq!(behind([0, 0, 0, 0]), version(1));
            assert_eq!(behind([1, 0, 0, 1]), version(2));
            assert_eq!(behind([0, 1, 2, 0]), version(3));
            assert_eq!(behind([2, 0, 1, 0]), version(3));
        }
    }

    #[test]
    fn the_newest_of_some_versions_is_before_the_widest_gap() {
        let after = |versions: &[u8]| EntryVersion::after(versions.iter().map(|bits| EntryVersion(*bits))).0;
        for first in 0..32 {
            let ahead = |steps: u8| (first + steps) % 32;
            assert_eq!(after(&[first]), ahead(1));
            assert_eq!(after(&[ahead(2), first]), ahead(3));
            assert_eq!(after(&[first, ahead(5), ahead(3), first]), ahead(6));
        }
        let all: Vec<u8> = (0..32).collect();
        assert!(after(&all) < 32);
    }

    #[test]
    fn versions_wrap_and_leave_each_other_alone() {
        let mut image = vec![0xff; 3 * LINE_BYTES];
        set_node_version(&mut image, NodeVersion::new(2047));
        for number in 0..2 * EntryVersion::COUNT {
            let before = entry_version(&image, 1);
            set_entry_version(&mut image, 1, before.next());
            assert_eq!(u32::from(entry_version(&image, 1).bits()), number % EntryVersion::COUNT);
            assert_eq!(entry_version(&image, 2).bits(), 31);
            assert_eq!(bump_node_version(&mut image).number(), number as u16);
            assert!(node_versions_agree(&image));
        }
        assert!(image.iter().enumerate().all(|(at, byte)| at % LINE_BYTES < 2 || *byte == 0xff));
        set_entry_version(&mut image[LINE_BYTES..], 0, EntryVersion::default());
        assert!(node_versions_agree(&image));
        for bit in 0..11 {
            let mut torn = image.clone();
            torn[2 * LINE_BYTES + bit / 8] ^= 1 << (bit % 8);
            assert!(!node_versions_agree(&torn));
        }
    }
}
