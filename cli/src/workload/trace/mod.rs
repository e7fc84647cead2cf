//! Traces of operations, read once and kept in compact form: six bytes for each line, and each key once. A trace of
//! 100 M lines takes 600 MB, and its keys their bytes and ten more each; no text is parsed in a run.
//!
//! Keys that the trace uses before it sets them were there when it was recorded: they are to be loaded beforehand.

mod row;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use csv::{ByteRecord, ReaderBuilder};
use xxhash_rust::xxh3::xxh3_64;

pub(crate) use self::row::TraceOp;
use self::row::{Form, Row};
use crate::error::{CliError, shown};

/// A trace.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    lines: Vec<Packed>,
    /// All keys, one after the other.
    bytes: Vec<u8>,
    /// The end of each key in `bytes`.
    ends: Vec<u64>,
    /// Notes on each key: [`LOADED`], [`REMOVED`], and the first size of its value that is not 0.
    notes: Vec<u16>,
    loaded: u64,
    longest_key: usize,
    largest_value: u16,
}

/// A line: the number of its key, low half first, and behind it the place of its operation and the bytes of its value.
type Packed = [u16; 3];

const SIZE_BITS: u32 = 13;
const SIZE: u16 = (1 << SIZE_BITS) - 1;
/// The note of a key that is loaded before the run.
const LOADED: u16 = 1 << 15;
/// The note of a key that the trace removes somewhere.
const REMOVED: u16 = 1 << 14;

/// A line of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// The number of the key, in order of appearance.
    pub(crate) key: u32,
    /// The operation.
    pub(crate) op: TraceOp,
    /// Bytes of the value that it writes, if it writes one.
    pub(crate) value_bytes: usize,
}

impl Trace {
    /// Reads `path`, or standard input for `-`: all lines, or the first `lines_max`.
    pub(crate) fn open(path: &Path, lines_max: Option<u64>) -> Result<Self, CliError> {
        if path == Path::new("-") {
            return Self::read(io::stdin().lock(), path, lines_max);
        }
        let file = File::open(path).map_err(|source| CliError::read(path, source))?;
        Self::read(file, path, lines_max)
    }

    fn read(input: impl Read, path: &Path, lines_max: Option<u64>) -> Result<Self, CliError> {
        // Keys are raw bytes: quotes mean nothing.
        let mut csv = ReaderBuilder::new();
        csv.has_headers(false).flexible(true).quoting(false).buffer_capacity(1 << 20);
        let mut csv = csv.from_reader(input);
        let (mut record, mut builder, mut form) = (ByteRecord::new(), Builder::default(), None);
        while lines_max.is_none_or(|max| builder.trace.len() < max) {
            let read = csv.read_byte_record(&mut record);
            if !read.map_err(|error| CliError::read(path, error.into()))? {
                break;
            }
            // The reader's own count is one behind where lines end with \r\n.
            let line = builder.trace.len() + 1;
            let wrong = |what: String| CliError::Usage(format!("{}, line {line}: {what}", shown(path)));
            let form = match form {
                Some(form) => form,
                None => *form.insert(Form::of(&record).map_err(wrong)?),
            };
            form.read(&record).and_then(|row| builder.add(&row)).map_err(wrong)?;
        }
        if builder.trace.lines.is_empty() {
            return Err(CliError::Usage(format!("the trace {} has no lines", shown(path))));
        }
        Ok(builder.trace)
    }

    /// Counts the lines.
    pub(crate) fn len(&self) -> u64 {
        self.lines.len() as u64
    }

    /// Returns the line at that place, counted from 0.
    #[inline]
    pub(crate) fn line(&self, at: u64) -> Line {
        let [low, high, what] = self.lines[at as usize];
        Line {
            key: u32::from(high) << 16 | u32::from(low),
            op: TraceOp::ALL[usize::from(what >> SIZE_BITS)],
            value_bytes: usize::from(what & SIZE),
        }
    }

    /// Counts the different keys.
    pub(crate) fn keys(&self) -> u64 {
        self.ends.len() as u64
    }

    /// Returns the key of that number.
    #[inline]
    pub(crate) fn key(&self, number: u32) -> &[u8] {
        let at = number as usize;
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.bytes[start as usize..self.ends[at] as usize]
    }

    /// Counts the keys that are loaded before the run.
    pub(crate) fn loaded(&self) -> u64 {
        self.loaded
    }

    /// Returns the numbers of the keys that are loaded before the run, in ascending order of the keys.
    pub(crate) fn loaded_sorted(&self) -> Vec<u32> {
        let numbers = 0..self.ends.len() as u32;
        let mut numbers: Vec<u32> =
            numbers.filter(|&number| self.notes[number as usize] & LOADED != 0).collect();
        numbers.sort_unstable_by(|&a, &b| self.key(a).cmp(self.key(b)));
        numbers
    }

    /// Returns the bytes of the value that a key is loaded with: the first size that the trace has for it, 0 if it has
    /// none.
    pub(crate) fn loaded_bytes(&self, number: u32) -> usize {
        usize::from(self.notes[number as usize] & SIZE)
    }

    /// Tells whether the key is there throughout the run: loaded, and never removed.
    #[inline]
    pub(crate) fn is_kept(&self, number: u32) -> bool {
        self.notes[number as usize] & (LOADED | REMOVED) == LOADED
    }

    /// Returns the bytes of the longest key.
    pub(crate) fn longest_key(&self) -> usize {
        self.longest_key
    }

    /// Returns the bytes of the largest value on any line.
    pub(crate) fn largest_value(&self) -> usize {
        usize::from(self.largest_value)
    }

    /// Returns the bytes of the smallest value that is loaded or written.
    pub(crate) fn smallest_written(&self) -> Option<usize> {
        let writes = |op| !matches!(op, TraceOp::Get | TraceOp::Remove);
        let written = (0..self.len()).map(|at| self.line(at)).filter(|line| writes(line.op));
        let loaded = self.notes.iter().filter(|note| **note & LOADED != 0);
        let loaded = loaded.map(|note| usize::from(note & SIZE));
        written.map(|line| line.value_bytes).chain(loaded).min()
    }
}

/// A trace that is being read.
#[derive(Default)]
struct Builder {
    trace: Trace,
    /// Numbers of the keys by their hashes. Where two keys have one hash the later one has the next that is free.
    numbers: HashMap<u64, u32>,
}

impl Builder {
    fn add(&mut self, row: &Row<'_>) -> Result<(), String> {
        let known = self.trace.ends.len();
        let key = self.number_of(row.key)?;
        let Trace { lines, notes, loaded, largest_value, .. } = &mut self.trace;
        if key as usize == known {
            let needs_key = row.op.needs_key();
            notes.push(if needs_key { LOADED } else { 0 });
            *loaded += u64::from(needs_key);
        }
        let note = &mut notes[key as usize];
        if row.op == TraceOp::Remove {
            *note |= REMOVED;
        }
        if *note & SIZE == 0 {
            *note |= row.value_bytes;
        }
        *largest_value = (*largest_value).max(row.value_bytes);
        lines.push([key as u16, (key >> 16) as u16, (row.op as u16) << SIZE_BITS | row.value_bytes]);
        Ok(())
    }

    /// Finds the number of a key, or gives it the next one.
    fn number_of(&mut self, key: &[u8]) -> Result<u32, String> {
        let mut hash = xxh3_64(key);
        loop {
            match self.numbers.entry(hash) {
                Entry::Occupied(known) if self.trace.key(*known.get()) == key => return Ok(*known.get()),
                Entry::Occupied(_) => hash = hash.wrapping_add(1),
                Entry::Vacant(vacant) => {
                    let Trace { bytes, ends, longest_key, .. } = &mut self.trace;
                    let number = u32::try_from(ends.len());
                    let number = number.map_err(|_| "more than 2^32 different keys: use --ops for a part")?;
                    bytes.extend_from_slice(key);
                    ends.push(bytes.len() as u64);
                    *longest_key = (*longest_key).max(key.len());
                    return Ok(*vacant.insert(number));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
