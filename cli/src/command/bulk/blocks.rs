//! A stream of bytes as blocks of whole lines: each line judged, and routed by the hash of its key to one client of one
//! shard. Lines with the same key come to the same client in the order of the file, so the last one wins, or the first
//! one removes it. Pure but for the reading.
//!
//! ```text
//! buffer   | rest of the last read | one read ............ \n | begins the next block |
//!            <------------------- one block -------------->
//! ```
//!
//! A block ends with what one read brought, so that lines from a slow pipe do not wait for more to come.

use std::io::{self, Read};

use farwood::Limits;
use farwood::index::layout::MAX_NODE_BYTES;
use xxhash_rust::xxh3::xxh3_64;

use super::operation::Operation;
use super::rejects::{Reason, Rejects};

/// Bytes of a block at most.
const BLOCK_BYTES: usize = 1 << 20;
// A line that fills a block is too long for any index.
const _: () = assert!(2 * MAX_NODE_BYTES < BLOCK_BYTES);

/// Whole lines, divided among shards.
pub(super) struct Block {
    bytes: Vec<u8>,
    /// Number of the first line, counted from 1.
    first: u64,
    /// Number of lines, rejected ones included.
    lines: u64,
    /// Lines to be done, by shard; in the order of the hashes of keys, equal keys in the order of the file.
    shares: Vec<Vec<Line>>,
}

/// A line within a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// Its place among the lines of the block.
    place: u32,
    start: u32,
    len: u32,
    key_len: u32,
    /// Half of the key's hash, which decides which client of the shard does it.
    hash: u32,
}

impl Line {
    /// Chooses the client that does it, of so many.
    pub(super) fn client(self, clients: usize) -> usize {
        self.hash as usize % clients
    }
}

impl Block {
    /// Returns the lines that the shard is to do.
    pub(super) fn share(&self, shard: usize) -> &[Line] {
        &self.shares[shard]
    }

    /// Returns key and value of a line; the value of one that is a key alone is empty.
    pub(super) fn pair(&self, line: Line) -> (&[u8], &[u8]) {
        let (key, rest) =
            self.bytes[line.start as usize..][..line.len as usize].split_at(line.key_len as usize);
        (key, rest.get(1..).unwrap_or_default())
    }

    /// Returns the number of a line in the file.
    pub(super) fn number(&self, line: Line) -> u64 {
        self.first + u64::from(line.place)
    }

    /// Returns the number of the last line, 0 if there never was one.
    pub(super) fn last(&self) -> u64 {
        self.first + self.lines - 1
    }
}

/// The blocks of a stream.
pub(super) struct Blocks<R> {
    input: R,
    operation: Operation,
    limits: Limits,
    shards: usize,
    /// Bytes that were read and are in no block yet: the begin of a line.
    rest: Vec<u8>,
    /// Number of the line that comes next.
    next_line: u64,
    /// True while the rest of an over-long line is still to come; the line has its number and was rejected.
    skipping: bool,
    bytes: u64,
    ended: bool,
}

impl<R: Read> Blocks<R> {
    pub(super) fn new(input: R, operation: Operation, limits: Limits, shards: usize) -> Self {
        let (rest, next_line, skipping, bytes, ended) = (Vec::new(), 1, false, 0, false);
        Blocks { input, operation, limits, shards, rest, next_line, skipping, bytes, ended }
    }

    /// Counts the lines read so far.
    pub(super) fn lines(&self) -> u64 {
        self.next_line - 1
    }

    /// Counts the bytes read so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Yields the next block, after one read that brought the end of a line; none at the end.
    ///
    /// # Errors
    /// If reading fails. What came before was in blocks already, but for an incomplete line.
    pub(super) fn next(&mut self, rejects: &mut Rejects) -> io::Result<Option<Block>> {
        while !self.ended {
            let fresh = self.rest.len();
            let count = self.read()?;
            self.bytes += count as u64;
            self.ended = count == 0;
            let mut from = 0;
            if self.skipping {
                let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') else {
                    self.rest.clear();
                    continue;
                };
                self.skipping = false;
                from = end + 1;
            }
            let newline = self.rest[fresh.max(from)..].iter().rposition(|&byte| byte == b'\n');
            let end = match newline {
                Some(at) => fresh.max(from) + at + 1,
                None if self.ended => self.rest.len(),
                None => {
                    self.rest.drain(..from);
                    self.reject_if_full(rejects);
                    continue;
                }
            };
            let mut bytes = std::mem::take(&mut self.rest);
            self.rest.extend_from_slice(&bytes[end..]);
            bytes.truncate(end);
            if end > from {
                return Ok(Some(self.block(bytes, from, rejects)));
            }
        }
        Ok(None)
    }

    /// Reads once, behind the rest.
    fn read(&mut self) -> io::Result<usize> {
        let filled = self.rest.len();
        self.rest.resize(BLOCK_BYTES, 0);
        let count = loop {
            match self.input.read(&mut self.rest[filled..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.rest.truncate(filled + *count.as_ref().unwrap_or(&0));
        count
    }

    /// Rejects a line that does not end within a block: it is too long, whatever follows.
    fn reject_if_full(&mut self, rejects: &mut Rejects) {
        if self.rest.len() == BLOCK_BYTES {
            let reason = match self.operation.judge(&self.rest, self.limits) {
                Err(Reason::NoTab) => Reason::NoTabWithin { bytes: BLOCK_BYTES },
                Err(reason) => reason,
                Ok(_) => unreachable!("key and value of any index are shorter than a block"),
            };
            rejects.push(self.next_line, reason);
            self.next_line += 1;
            self.skipping = true;
            self.rest.clear();
        }
    }

    fn block(&mut self, bytes: Vec<u8>, from: usize, rejects: &mut Rejects) -> Block {
        let mut shares = vec![Vec::new(); self.shards];
        let (first, mut start) = (self.next_line, from);
        while start < bytes.len() {
            let rest = &bytes[start..];
            let len = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
            match self.operation.judge(&rest[..len], self.limits) {
                Ok(key_len) => {
                    let hash = xxh3_64(&rest[..key_len]);
                    // Independent halves of the hash choose shard and client.
                    shares[hash as u32 as usize % self.shards].push(Line {
                        place: (self.next_line - first) as u32,
                        start: start as u32,
                        len: len as u32,
                        key_len: key_len as u32,
                        hash: (hash >> 32) as u32,
                    });
                }
                Err(reason) => rejects.push(self.next_line, reason),
            }
            self.next_line += 1;
            start += len + 1;
        }
        for share in &mut shares {
            // Files are often sorted: in their order, all clients would want the lock of the same leaf.
            share.sort_unstable_by_key(|line| (line.hash, line.place));
        }
        Block { bytes, first, lines: self.next_line - first, shares }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { max_key: 4, max_value: 6 };
    const SHARDS: usize = 3;

    /// A stream that yields at most so many bytes at a time.
    struct Drip<'t>(&'t [u8], usize);

    impl Read for Drip<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let len = self.1.min(out.len());
            self.0.read(&mut out[..len])
        }
    }

    /// Pairs with the numbers of their lines, in the order of the lines; how many lines; what was rejected.
    type Found = (Vec<(u64, Vec<u8>, Vec<u8>)>, u64, Vec<String>);

    fn read(operation: Operation, text: &[u8], piece: usize) -> Found {
        let mut rejects = Rejects::default();
        let mut blocks = Blocks::new(Drip(text, piece), operation, LIMITS, SHARDS);
        let mut pairs = Vec::new();
        let mut last = 0;
        while let Some(block) = blocks.next(&mut rejects).unwrap() {
            assert!(block.last() > last, "blocks ascend");
            last = block.last();
            for &line in (0..SHARDS).flat_map(|shard| block.share(shard)) {
                let (key, value) = block.pair(line);
                pairs.push((block.number(line), key.to_vec(), value.to_vec()));
            }
        }
        assert_eq!(blocks.bytes(), text.len() as u64);
        pairs.sort();
        (pairs, blocks.lines(), rejects.shown())
    }

    fn pair(number: u64, key: &str, value: &str) -> (u64, Vec<u8>, Vec<u8>) {
        (number, key.into(), value.into())
    }

    #[test]
    fn lines_are_divided_at_their_first_tab() {
        let text = b"a\t1\n\t\nnone\nb\t2\t3\nlonger\tx\nc\tlonger!\n\nabcd\t123456\nlast\tone";
        for piece in [1, 2, 3, 7, 1000] {
            let (pairs, lines, rejects) = read(Operation::Put, text, piece);
            let expected = [
                pair(1, "a", "1"),
                pair(2, "", ""),
                pair(4, "b", "2\t3"),
                pair(8, "abcd", "123456"),
                pair(9, "last", "one"),
            ];
            assert_eq!((pairs.as_slice(), lines), (&expected[..], 9), "in pieces of {piece}");
            let parts = [
                "line 3: there is no TAB",
                "line 5: the key",
                "line 6: the value",
                "line 7: there is no TAB",
            ];
            assert_eq!(rejects.len(), parts.len());
            assert!(rejects.iter().zip(parts).all(|(line, part)| line.starts_with(part)), "{rejects:?}");
        }
    }

    #[test]
    fn a_key_to_remove_is_a_line() {
        let text = b"a\n\nb\t1\nlonger\nabcd\n\xff\0 \r\na\nlast";
        for piece in [1, 2, 3, 7, 1000] {
            let (pairs, lines, rejects) = read(Operation::Remove, text, piece);
            let keys: Vec<_> = pairs.iter().map(|(number, key, _)| (*number, key.as_slice())).collect();
            let expected: [(u64, &[u8]); 6] =
                [(1, b"a"), (2, b""), (5, b"abcd"), (6, b"\xff\0 \r"), (7, b"a"), (8, b"last")];
            assert_eq!((keys.as_slice(), lines), (&expected[..], 8), "in pieces of {piece}");
            assert!(pairs.iter().all(|(.., value)| value.is_empty()), "{pairs:?}");
            assert_eq!(rejects.len(), 2);
            assert!(rejects[0].starts_with("line 3: there is a TAB"), "{rejects:?}");
            assert!(rejects[1].starts_with("line 4: the key"), "{rejects:?}");
        }
    }

    #[test]
    fn nothing_is_no_line() {
        for operation in [Operation::Put, Operation::Remove] {
            assert_eq!(read(operation, b"", 10), (Vec::new(), 0, Vec::new()));
            assert_eq!(read(operation, b"a\tb\n", 10).1, 1);
            assert_eq!(read(operation, b"a", 10).1, 1);
            assert_eq!(read(operation, b"\n\n", 1).1, 2);
        }
    }

    /// Lines longer than a block are not kept in memory, and neither they nor those around them are lost count of.
    #[test]
    fn an_over_long_line_is_one_line() {
        for length in [BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES] {
            for begin in ["", "a\t", "abcdefg\t"] {
                let long = format!("{begin}{}", "x".repeat(length - begin.len()));
                for (text, lines) in [
                    (format!("a\t1\n{long}\nb\t2\n"), 3),
                    (format!("a\t1\n{long}"), 2),
                    (format!("{long}\n"), 1),
                ] {
                    let (pairs, found, rejects) = read(Operation::Put, text.as_bytes(), 100_000);
                    assert_eq!((found, rejects.len()), (lines, 1), "{length} {begin:?}");
                    assert_eq!(pairs.iter().any(|(number, ..)| *number == 3), lines == 3);
                    let reason = match begin {
                        "" => "no TAB",
                        "a\t" => "the value",
                        _ => "the key",
                    };
                    assert!(rejects[0].contains(reason), "{rejects:?}");
                }
            }
        }
    }

    #[test]
    fn an_over_long_key_is_one_line() {
        for length in [BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES] {
            for (begin, reason) in [("", "line 2: the key"), ("a\t", "line 2: there is a TAB")] {
                let text = format!("a\n{begin}{}\nb", "x".repeat(length - begin.len()));
                let (pairs, lines, rejects) = read(Operation::Remove, text.as_bytes(), 100_000);
                assert_eq!(
                    (pairs, lines),
                    (vec![pair(1, "a", ""), pair(3, "b", "")], 3),
                    "{length} {begin:?}"
                );
                assert!(rejects.len() == 1 && rejects[0].starts_with(reason), "{rejects:?}");
            }
        }
    }

    #[test]
    fn equal_keys_come_to_the_same_client_in_order() {
        let text: String = (0..1000).map(|n| format!("k{}\t{n}\n", n % 10)).collect();
        let mut rejects = Rejects::default();
        let mut blocks = Blocks::new(text.as_bytes(), Operation::Put, LIMITS, SHARDS);
        let block = blocks.next(&mut rejects).unwrap().unwrap();
        let mut seen = std::collections::BTreeMap::new();
        for shard in 0..SHARDS {
            for &line in block.share(shard) {
                let (at, number) = ((shard, line.client(5)), block.number(line));
                let before = seen.insert(block.pair(line).0.to_vec(), (at, number));
                assert!(before.is_none_or(|(same, before)| same == at && before < number));
            }
        }
        assert_eq!(seen.len(), 10);
    }
}
