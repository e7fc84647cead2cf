//! Keys given by a file: one per line, raw bytes up to the newline. An empty line is the empty key; a newline at the
//! end of the file ends its last line. Duplicates are dropped and counted. The order is shuffled, so that ranks are
//! scrambled whatever order the file has.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use crate::error::CliError;
use crate::workload::keys::push_base36;

/// The greatest length of a line.
pub(crate) const LINE_BYTES_MAX: usize = 1024;
/// Bytes that tell a new key from the key of the file that it is made of: a separator and a round in base 36.
const SUFFIX_BYTES_MAX: usize = 1 + 8;

/// The different keys of a file, in a shuffled order.
#[derive(Debug)]
pub(crate) struct FileKeys {
    bytes: Vec<u8>,
    keys: Vec<Line>,
    longest: usize,
    duplicates: u64,
}

/// A line within the file's bytes.
#[derive(Clone, Copy, Debug)]
struct Line {
    start: u64,
    len: u32,
}

impl Line {
    fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start as usize..][..self.len as usize]
    }
}

impl FileKeys {
    /// Reads `path`, or standard input for `-`.
    pub(crate) fn open(path: &Path, seed: u64) -> Result<Self, CliError> {
        if path == Path::new("-") {
            return Self::read(io::stdin().lock(), path, seed);
        }
        let file = File::open(path).map_err(|source| CliError::read(path, source))?;
        Self::read(BufReader::with_capacity(1 << 20, file), path, seed)
    }

    fn read(mut reader: impl BufRead, path: &Path, seed: u64) -> Result<Self, CliError> {
        let (mut bytes, mut keys) = (Vec::new(), Vec::new());
        loop {
            let start = bytes.len();
            // One byte more than a line and its newline: enough to see that a line is too long, whatever follows.
            let limit = LINE_BYTES_MAX as u64 + 2;
            let read = reader.by_ref().take(limit).read_until(b'\n', &mut bytes);
            if read.map_err(|source| CliError::read(path, source))? == 0 {
                break;
            }
            let ended = bytes.last() == Some(&b'\n');
            bytes.truncate(bytes.len() - usize::from(ended));
            let len = bytes.len() - start;
            if len > LINE_BYTES_MAX {
                let rest = if ended { 0 } else { rest_of_line(&mut reader, path)? };
                let line = keys.len() as u64 + 1;
                return Err(CliError::LongLine {
                    path: path.into(),
                    line,
                    bytes: len + rest,
                    max: LINE_BYTES_MAX,
                });
            }
            keys.push(Line { start: start as u64, len: len as u32 });
        }
        if keys.is_empty() {
            return Err(CliError::Usage(format!("the key file {} has no keys", path.display())));
        }
        Ok(Self::new(bytes, keys, seed))
    }

    fn new(bytes: Vec<u8>, mut keys: Vec<Line>, seed: u64) -> Self {
        let lines = keys.len();
        keys.sort_unstable_by(|a, b| a.of(&bytes).cmp(b.of(&bytes)));
        keys.dedup_by(|a, b| a.of(&bytes) == b.of(&bytes));
        // Equal lines are interchangeable, so the order below depends on the file's set of keys and the seed alone.
        keys.shuffle(&mut SmallRng::seed_from_u64(seed));
        let longest = keys.iter().map(|key| key.len as usize).max().unwrap_or(0);
        let duplicates = (lines - keys.len()) as u64;
        FileKeys { bytes, keys, longest, duplicates }
    }

    /// Counts the different keys of the file.
    pub(crate) fn count(&self) -> u64 {
        self.keys.len() as u64
    }

    /// Counts the lines that repeat another one.
    pub(crate) fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Returns the length of the longest key, those that a run adds included if it does.
    pub(crate) fn bytes_max(&self, adds_keys: bool) -> usize {
        let suffix = if adds_keys { SUFFIX_BYTES_MAX } else { 0 };
        (self.longest + suffix).min(LINE_BYTES_MAX)
    }

    /// Appends the key of that number: the file's keys first, then new ones made of them.
    pub(crate) fn write(&self, number: u64, out: &mut Vec<u8>) {
        let (round, at) = (number / self.count(), number % self.count());
        let key = self.keys[at as usize].of(&self.bytes);
        if round == 0 {
            out.extend_from_slice(key);
            return;
        }
        out.extend_from_slice(&key[..key.len().min(LINE_BYTES_MAX - SUFFIX_BYTES_MAX)]);
        out.push(b'+');
        push_base36(round, out);
    }
}

fn rest_of_line(reader: &mut impl BufRead, path: &Path) -> Result<usize, CliError> {
    let mut skipped = 0;
    loop {
        let buffer = reader.fill_buf().map_err(|source| CliError::read(path, source))?;
        let newline = buffer.iter().position(|&byte| byte == b'\n');
        let used = newline.unwrap_or(buffer.len());
        skipped += used;
        if newline.is_some() || used == 0 {
            return Ok(skipped);
        }
        reader.consume(used);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn read(text: &[u8]) -> Result<FileKeys, CliError> {
        FileKeys::read(text, Path::new("keys.txt"), 1)
    }

    fn key(keys: &FileKeys, number: u64) -> Vec<u8> {
        let mut out = Vec::new();
        keys.write(number, &mut out);
        out
    }

    #[test]
    fn lines_are_raw_bytes_and_duplicates_are_counted() {
        let keys = read(b"b\n\xff\x00\r\n\nb\na").unwrap();
        assert_eq!((keys.count(), keys.duplicates()), (4, 1));
        let set: HashSet<Vec<u8>> = (0..4).map(|n| key(&keys, n)).collect();
        let expected: [&[u8]; 4] = [b"", b"a", b"b", b"\xff\x00\r"];
        assert_eq!(set, expected.into_iter().map(Vec::from).collect());
    }

    #[test]
    fn new_keys_are_made_of_old_ones() {
        let keys = read(b"a\nb\n").unwrap();
        let set: HashSet<Vec<u8>> = (0..1000).map(|n| key(&keys, n)).collect();
        assert_eq!(set.len(), 1000);
        assert!(set.contains(&b"a+1"[..]) && set.iter().all(|k| k.len() <= keys.bytes_max(true)));
        assert_eq!(keys.bytes_max(false), 1);
    }

    #[test]
    fn an_over_long_line_is_named() {
        let mut text = b"short\n".to_vec();
        text.extend_from_slice(&[b'x'; LINE_BYTES_MAX]);
        text.push(b'\n');
        assert!(read(&text).is_ok(), "the limit itself is allowed");
        text.extend_from_slice(&[b'y'; 5000]);
        match read(&text) {
            Err(CliError::LongLine { line: 3, bytes: 5000, .. }) => {}
            other => panic!("{other:?}"),
        }
        text.extend_from_slice(b"\nz\n");
        assert!(matches!(read(&text), Err(CliError::LongLine { line: 3, bytes: 5000, .. })));
    }

    #[test]
    fn an_empty_file_is_an_error() {
        assert!(read(b"").unwrap_err().one_line().contains("no keys"));
    }
}
