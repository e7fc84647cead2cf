//! The first bytes of a region file: what a client must know before it maps the rest. Bytes only: this file does not
//! know where they come from, and trusts none of them.
//!
//! ```text
//! region file, all of it little-endian
//! +---------------------------------+----------------------------+-----------------------+
//! | region, `region_bytes`          | Sequence mode only: one    | Sequence mode only:   |
//! | +--------+--------------------+ | 4-byte counter per line of | `journal_slots` slots |
//! | | header | see memory/mod.rs  | | the region                 | of 128 bytes, see     |
//! | +--------+--------------------+ |                            | journal.rs            |
//! +---------------------------------+----------------------------+-----------------------+
//! 0         4096     region_bytes   both parts begin at the next multiple of 4096          file_bytes
//!
//! header (the rest of its 4096 bytes is zero)
//!  0                8         12        16               32             40           48           52              56
//! +----------------+---------+---------+----------------+--------------+------------+------------+---------------+
//! | "FARWOODm"     | layout  | line    | instance of    | region_bytes | file_bytes | process id | journal_slots |
//! | written last   | version | mode    | the server     |              |            | of server  |               |
//! +----------------+---------+---------+----------------+--------------+------------+------------+---------------+
//! ```

use thiserror::Error;

use super::line::{LINE_BYTES, LineMode};

/// Bytes of a region that belong to the header.
pub(super) const HEADER_BYTES: u64 = 4096;
/// Bytes of the header that mean something.
pub(super) const CODED_BYTES: usize = 56;
/// The first bytes of every region file of every version.
pub(super) const MAGIC: [u8; 8] = *b"FARWOODm";
/// Changes with every change of what lies where in a region file, and of what a region contains.
pub(super) const LAYOUT_VERSION: u32 = 1;
/// Bytes of a journal slot.
pub(super) const SLOT_BYTES: u64 = 128;

const PART_ALIGN: u64 = 4096;

/// Header of a region file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub mode: LineMode,
    /// Which run of a memory server made it.
    pub instance: u128,
    /// Bytes that verbs reach, a multiple of 4096.
    pub region_bytes: u64,
    /// Bytes of the file; there may be padding behind the last part.
    pub file_bytes: u64,
    /// Process id of the memory server, as it sees itself.
    pub server_pid: u32,
    /// Slots of the journal: 0 without one.
    pub journal_slots: u32,
}

/// Why bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum Rejected {
    #[error("it does not begin as a Farwood region does")]
    Magic,
    #[error("its layout has version {found}")]
    Version { found: u32 },
    #[error("its header contradicts itself")]
    Nonsense,
}

/// Where the parts of a region file begin, and where the last one ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    pub counters: u64,
    pub journal: u64,
    pub end: u64,
}

impl Parts {
    /// Lays out a file around `region_bytes` bytes of region; yields nothing if that is more than can be counted.
    pub(super) fn of(region_bytes: u64, journal_slots: u32) -> Option<Parts> {
        let counters = region_bytes.checked_next_multiple_of(PART_ALIGN)?;
        if journal_slots == 0 {
            return Some(Parts { counters, journal: counters, end: counters });
        }
        let counter_bytes = region_bytes / LINE_BYTES as u64 * 4;
        let journal = counters.checked_add(counter_bytes)?.checked_next_multiple_of(PART_ALIGN)?;
        let end = journal.checked_add(u64::from(journal_slots) * SLOT_BYTES)?;
        Some(Parts { counters, journal, end: end.checked_next_multiple_of(PART_ALIGN)? })
    }
}

impl Header {
    /// Returns its bytes.
    pub(super) fn encode(&self) -> [u8; CODED_BYTES] {
        let mode: u32 = match self.mode {
            LineMode::Auto => unreachable!("a region's mode has been detected"),
            LineMode::Vector => 1,
            LineMode::Sequence => 2,
            LineMode::Plain => 3,
        };
        let mut bytes = [0; CODED_BYTES];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, &MAGIC);
        put(8, &LAYOUT_VERSION.to_le_bytes());
        put(12, &mode.to_le_bytes());
        put(16, &self.instance.to_le_bytes());
        put(32, &self.region_bytes.to_le_bytes());
        put(40, &self.file_bytes.to_le_bytes());
        put(48, &self.server_pid.to_le_bytes());
        put(52, &self.journal_slots.to_le_bytes());
        bytes
    }

    /// Decodes `bytes`. Fewer than a header has are not a header.
    pub(super) fn decode(bytes: &[u8]) -> Result<Header, Rejected> {
        let bytes: &[u8; CODED_BYTES] =
            bytes.get(..CODED_BYTES).and_then(|bytes| bytes.try_into().ok()).ok_or(Rejected::Magic)?;
        if bytes[..8] != MAGIC {
            return Err(Rejected::Magic);
        }
        let found = u32::from_le_bytes(part(bytes, 8));
        if found != LAYOUT_VERSION {
            return Err(Rejected::Version { found });
        }
        let mode = match u32::from_le_bytes(part(bytes, 12)) {
            1 => LineMode::Vector,
            2 => LineMode::Sequence,
            3 => LineMode::Plain,
            _ => return Err(Rejected::Nonsense),
        };
        let header = Header {
            mode,
            instance: u128::from_le_bytes(part(bytes, 16)),
            region_bytes: u64::from_le_bytes(part(bytes, 32)),
            file_bytes: u64::from_le_bytes(part(bytes, 40)),
            server_pid: u32::from_le_bytes(part(bytes, 48)),
            journal_slots: u32::from_le_bytes(part(bytes, 52)),
        };
        let sequenced = (mode == LineMode::Sequence) == (header.journal_slots > 0);
        let whole = header.region_bytes >= HEADER_BYTES && header.region_bytes.is_multiple_of(PART_ALIGN);
        let inside = Parts::of(header.region_bytes, header.journal_slots)
            .is_some_and(|parts| parts.end <= header.file_bytes && header.file_bytes <= i64::MAX as u64);
        if sequenced && whole && inside { Ok(header) } else { Err(Rejected::Nonsense) }
    }

    /// Returns where its parts are.
    pub(super) fn parts(&self) -> Parts {
        Parts::of(self.region_bytes, self.journal_slots).expect("checked when it was made or decoded")
    }
}

fn part<const N: usize>(bytes: &[u8; CODED_BYTES], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("N bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            mode: LineMode::Sequence,
            instance: 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210,
            region_bytes: 3 << 12,
            file_bytes: 4 << 20,
            server_pid: 77,
            journal_slots: 5,
        }
    }

    #[test]
    fn decodes_what_it_encodes() {
        for mode in [LineMode::Vector, LineMode::Sequence, LineMode::Plain] {
            let journal_slots = if mode == LineMode::Sequence { 5 } else { 0 };
            let header = Header { mode, journal_slots, ..header() };
            assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
    }

    #[test]
    fn rejects_what_no_server_wrote() {
        let good = header().encode();
        for len in 0..CODED_BYTES {
            assert_eq!(Header::decode(&good[..len]), Err(Rejected::Magic));
        }
        let with = |at: usize, part: &[u8]| {
            let mut bytes = good;
            bytes[at..at + part.len()].copy_from_slice(part);
            Header::decode(&bytes)
        };
        assert_eq!(with(0, b"ELF"), Err(Rejected::Magic));
        assert_eq!(with(8, &9u32.to_le_bytes()), Err(Rejected::Version { found: 9 }));
        for (at, word) in [(32, 0u64), (32, 4097), (32, u64::MAX), (32, 4 << 20), (40, 4096), (40, u64::MAX)]
        {
            assert_eq!(with(at, &word.to_le_bytes()), Err(Rejected::Nonsense), "{word} at {at}");
        }
        for (at, word) in [(12, 0u32), (12, 1), (12, 4), (52, 0), (52, u32::MAX)] {
            assert_eq!(with(at, &word.to_le_bytes()), Err(Rejected::Nonsense), "{word} at {at}");
        }
    }

    #[test]
    fn parts_do_not_overlap() {
        assert_eq!(Parts::of(8192, 0), Some(Parts { counters: 8192, journal: 8192, end: 8192 }));
        let parts = Parts::of(1 << 20, 3).unwrap();
        assert_eq!((parts.counters, parts.journal), (1 << 20, (1 << 20) + (1 << 16)));
        assert_eq!(parts.end, parts.journal + 4096);
        assert_eq!(Parts::of(u64::MAX - 5, 1), None);
    }
}
