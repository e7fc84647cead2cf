//! Line atomicity on memory that CPUs share: copies to and from mapped memory in which every aligned 64-byte line is
//! read and written as one access, also when another core works on the same line.
//!
//! Plain copies tear at 8 bytes or less, so a mechanism is chosen per CPU:
//!
//! - [`LineMode::Vector`]: one 64-byte vector load or store per line. A core whose load and store paths and whose
//!   cache interface are 64 bytes wide moves an aligned line in a single access, and coherence hands lines over as a
//!   whole, so nothing can come between. Neither AMD nor Intel promises it in a manual; it was measured on the CPUs
//!   that [`LineMode::detect`] accepts (and never seen to tear), and the stress test runs wherever these are. On other
//!   CPUs with AVX-512 (Zen 4, for one) 64-byte accesses do tear: there the mode is refused, even if asked for.
//!   Parts of a line are written by one store masked by 8-byte elements, a single word by an ordinary store.
//!   Byte-masked stores do tear and are not used: hence lengths in multiples of 8.
//! - [`LineMode::Sequence`]: a sequence counter per line beside the region (odd while a writer is inside). Rests on
//!   nothing but 8-byte atomics; costs a counter's cache line per 16 lines. Where several processes write, one that is
//!   killed inside a line must not keep it: there the counter names the writer's slot in a journal (`journal.rs`).
//!
//! ```text
//! what goes wrong without either (LineMode::Plain, for the test that the stress test can fail):
//!   reader                 writer
//!   load word 0  (old)
//!                          store word 0 (new)
//!                          store word 7 (new)
//!   load word 7  (new)     -> a line that never existed
//! ```

#![expect(unsafe_code, reason = "shared memory is accessed through raw pointers")]

use std::convert::Infallible;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::journal::{Held, Journal};
use super::order::{self, LOAD, STORE};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The unit of atomicity, in bytes.
pub const LINE_BYTES: usize = 64;
/// Looks at a line that another holds before its holder's life is doubted: some 10 us.
const PATIENCE: u32 = 256;

/// The environment variable that [`LineMode::Auto`] obeys.
const ENVIRONMENT: &str = "FARWOOD_LINE_MODE";

/// A line that cannot be had: its writer is stopped (SIGSTOP, a frozen cgroup, a debugger) in the middle of it. One
/// pointer: accesses that succeed pay nothing for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WriterStopped(Box<StoppedWriter>);

/// The writer, and an access that waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoppedWriter {
    /// The writer's process, in its own pid namespace.
    pub(crate) process: u32,
    /// Time since it was first waited for in this line.
    pub(crate) waited: Duration,
    /// Bytes of a WRITE before the line: these are written.
    pub(crate) done: usize,
}

impl WriterStopped {
    #[cold]
    pub(super) fn new(process: u32, waited: Duration) -> Self {
        WriterStopped(Box::new(StoppedWriter { process, waited, done: 0 }))
    }

    /// Notes that so many bytes before the line are written.
    #[cold]
    fn behind(mut self, done: usize) -> Self {
        self.0.done = done;
        self
    }
}

impl Deref for WriterStopped {
    type Target = StoppedWriter;

    fn deref(&self) -> &StoppedWriter {
        &self.0
    }
}

/// Mechanism of line atomicity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LineMode {
    /// The mode that the environment variable `FARWOOD_LINE_MODE` names (`vector` or `sequence`); without it
    /// [`LineMode::Vector`] where the CPU is known to move a line at once, else [`LineMode::Sequence`].
    #[default]
    Auto,
    /// A 64-byte vector access per line. Refused where the CPU is not known to move a line at once.
    Vector,
    /// A sequence counter per line.
    Sequence,
    /// No mechanism: 8-byte accesses that tear between words. Breaks the contract; exists to test the tests.
    Plain,
}

/// Why a mode cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LineModeRefused {
    /// Lines could tear.
    #[error(
        "line mode vector: this CPU is not known to move 64 bytes at once, so lines could tear; choose sequence, or \
         leave it to the CPU (FARWOOD_LINE_MODE not set)"
    )]
    Vector,
    /// The environment asks for something that there is not.
    #[error("FARWOOD_LINE_MODE={0:?}: write vector or sequence, or leave it to the CPU (not set)")]
    Unknown(String),
}

impl LineMode {
    /// Chooses the mechanism that this mode means on this CPU.
    ///
    /// ```
    /// # use farwood_runtime::mapped::line::LineMode;
    /// let mode = LineMode::Auto.detect()?;
    /// assert!(mode == LineMode::Vector || mode == LineMode::Sequence);
    /// # Ok::<_, farwood_runtime::mapped::line::LineModeRefused>(())
    /// ```
    ///
    /// # Errors
    /// If it would not keep lines whole here, or the environment asks for a mode that does not exist.
    pub fn detect(self) -> Result<LineMode, LineModeRefused> {
        match self {
            LineMode::Auto => match LineMode::wanted()? {
                LineMode::Auto if cpu::moves_lines_at_once() => Ok(LineMode::Vector),
                LineMode::Auto => Ok(LineMode::Sequence),
                wanted => wanted.detect(),
            },
            LineMode::Vector if !cpu::moves_lines_at_once() => Err(LineModeRefused::Vector),
            mode => Ok(mode),
        }
    }

    /// Reads the mode that the environment asks for.
    fn wanted() -> Result<LineMode, LineModeRefused> {
        let Some(wanted) = std::env::var_os(ENVIRONMENT) else { return Ok(LineMode::Auto) };
        match wanted.to_str() {
            Some("vector") => Ok(LineMode::Vector),
            Some("sequence") => Ok(LineMode::Sequence),
            _ => Err(LineModeRefused::Unknown(wanted.to_string_lossy().into_owned())),
        }
    }
}

/// Effect of an atomic verb on a word. Words are little-endian, as they are in memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Store { word: u64 },
    Swap { expected: u64, desired: u64 },
    Add { add: u64 },
}

impl Change {
    /// Changes `word` and yields what was there.
    #[inline]
    fn apply(self, word: &AtomicU64) -> u64 {
        let (set, fetch) = (Ordering::SeqCst, Ordering::SeqCst);
        match self {
            Change::Store { word: new } => {
                word.store(new, Ordering::Release);
                0
            }
            Change::Swap { expected, desired } => {
                word.compare_exchange(expected, desired, set, fetch).unwrap_or_else(|found| found)
            }
            Change::Add { .. } => {
                word.fetch_update(set, fetch, |found| self.next(found)).unwrap_or_else(|found| found)
            }
        }
    }

    /// Returns what `found` becomes, if it is changed.
    #[inline]
    fn next(self, found: u64) -> Option<u64> {
        match self {
            Change::Store { word } => Some(word),
            Change::Swap { expected, desired } => (found == expected).then_some(desired),
            Change::Add { add } => Some(u64::from_le(found).wrapping_add(add).to_le()),
        }
    }
}

/// State of a wait for a line.
#[derive(Default)]
struct Wait {
    looks: u32,
    held: Held,
}

/// The lines of a region: their memory, and what the mode needs to keep them whole.
#[derive(Clone, Copy)]
pub(super) struct Lines<'region> {
    /// First byte of the region; aligned to 4096.
    pub base: *mut u8,
    /// One counter per line in `Sequence` mode, else null.
    pub counters: *const AtomicU32,
    /// In `Sequence` mode, if other processes may write as well.
    pub journal: Option<&'region Arc<Journal>>,
    pub mode: LineMode,
}

impl Lines<'_> {
    /// Copies `len` bytes at `at` to `to`.
    ///
    /// # Safety
    /// `at..at + len` lies inside the region and both are multiples of 8; `to` is valid for `len` bytes.
    #[inline]
    pub(super) unsafe fn read(self, at: usize, to: *mut u8, len: usize) -> Result<(), WriterStopped> {
        // SAFETY: the caller's promise covers every piece; see `pieces`.
        unsafe {
            match self.mode {
                #[cfg(target_arch = "x86_64")]
                LineMode::Vector => vector::read(self.base.add(at), to, len),
                LineMode::Sequence => {
                    return try_pieces(at, len, |at, done, len| self.read_sequenced(at, to.add(done), len));
                }
                _ => read_words(self.base.add(at), to, len),
            }
        }
        Ok(())
    }

    /// Copies `len` bytes at `from` to `at`.
    ///
    /// # Safety
    /// As for [`Lines::read`], with `from` valid for reading.
    #[inline]
    pub(super) unsafe fn write(self, at: usize, from: *const u8, len: usize) -> Result<(), WriterStopped> {
        // SAFETY: the caller's promise covers every piece; see `pieces`.
        unsafe {
            match self.mode {
                #[cfg(target_arch = "x86_64")]
                LineMode::Vector => vector::write(self.base.add(at), from, len),
                LineMode::Sequence => return self.write_sequenced(at, from, len),
                _ => write_words(self.base.add(at), from, len),
            }
        }
        Ok(())
    }

    /// Changes the word at `at` atomically and yields what was there (for `Store`: anything).
    ///
    /// # Safety
    /// `at` is 8-byte aligned and inside the region.
    #[inline]
    pub(super) unsafe fn atomic(self, at: usize, change: Change) -> Result<u64, WriterStopped> {
        // SAFETY: inside the region and aligned, by the caller's promise; the memory lives as long as the region.
        let word = unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) };
        match self.mode {
            // An atomic changes a line too: a reader of the whole line must see it before or after.
            // SAFETY: as above.
            LineMode::Sequence => unsafe { self.atomic_sequenced(at, word, change) },
            _ => Ok(change.apply(word)),
        }
    }

    /// # Safety
    /// `at..at + len` lies inside one line of the region; `to` is valid for `len` bytes.
    #[inline]
    unsafe fn read_sequenced(self, at: usize, to: *mut u8, len: usize) -> Result<(), WriterStopped> {
        // SAFETY: the caller's promise.
        let counter = unsafe { self.counter(at) };
        // SAFETY: the caller's promise.
        order::read(
            counter,
            move || unsafe { read_words(self.base.add(at), to, len) },
            move || self.patience(at),
        )
    }

    /// # Safety
    /// As for [`Lines::write`].
    unsafe fn write_sequenced(self, at: usize, from: *const u8, len: usize) -> Result<(), WriterStopped> {
        let Some(journal) = self.journal else {
            return try_pieces(at, len, |at, done, len| {
                // SAFETY: a part of one line inside both, and the counter of that line.
                let (counter, from) = unsafe { (self.counter(at), from.add(done)) };
                // SAFETY: as above.
                order::alone(
                    counter,
                    move || unsafe { write_words(self.base.add(at), from, len) },
                    move || self.patience(at),
                )
            });
        };
        journal.with_slot(|number, slot| {
            try_pieces(at, len, |at, done, len| {
                // SAFETY: a part of one line inside both, and the counter of that line.
                let (counter, from) = unsafe { (self.counter(at), from.add(done)) };
                // SAFETY: as above.
                let words =
                    (0..len / 8).map(|word| unsafe { from.add(word * 8).cast::<u64>().read_unaligned() });
                // SAFETY: as above.
                let store = || unsafe { write_words(self.base.add(at), from, len) };
                let written = slot.write(number, (at, counter), words, store, move || self.patience(at));
                written.map_err(|stopped| stopped.behind(done))
            })
        })
    }

    /// # Safety
    /// `word` is the one at `at`, inside the region.
    #[inline]
    unsafe fn atomic_sequenced(
        self,
        at: usize,
        word: &AtomicU64,
        change: Change,
    ) -> Result<u64, WriterStopped> {
        // SAFETY: the caller's promise.
        let counter = unsafe { self.counter(at) };
        let Some(journal) = self.journal else {
            let mut found = 0;
            order::alone(counter, || found = change.apply(word), move || self.patience(at))?;
            return Ok(found);
        };
        journal.with_slot(|number, slot| {
            slot.change(number, (at, counter), word, |found| change.next(found), move || self.patience(at))
        })
    }

    /// Yields the pause of those that wait for the line of `at`: it is given what the counter was.
    fn patience(self, at: usize) -> impl FnMut(u32) -> Result<(), WriterStopped> {
        let mut wait = Wait::default();
        move |found| self.pause(at, found, &mut wait)
    }

    /// Waits a moment for the line of `at`, whose counter was `found`.
    fn pause(self, at: usize, found: u32, wait: &mut Wait) -> Result<(), WriterStopped> {
        std::hint::spin_loop();
        if let Some(journal) = self.journal {
            wait.looks = wait.looks.wrapping_add(1);
            if wait.looks.is_multiple_of(PATIENCE) && !found.is_multiple_of(2) {
                return journal.help(at, found, &mut wait.held);
            }
        }
        Ok(())
    }

    /// # Safety
    /// `at` lies inside the region, which has counters.
    #[inline]
    unsafe fn counter<'a>(self, at: usize) -> &'a AtomicU32 {
        // SAFETY: one counter per line of the region.
        unsafe { &*self.counters.add(at / LINE_BYTES) }
    }
}

/// Cuts `at..at + len` at line boundaries: calls `piece(at, bytes done before, len)` in address order.
#[inline]
fn try_pieces<E>(
    mut at: usize,
    len: usize,
    mut piece: impl FnMut(usize, usize, usize) -> Result<(), E>,
) -> Result<(), E> {
    let mut done = 0;
    while done < len {
        let step = (LINE_BYTES - at % LINE_BYTES).min(len - done);
        piece(at, done, step)?;
        at += step;
        done += step;
    }
    Ok(())
}

/// Cuts like [`try_pieces`], for a `piece` that cannot fail.
#[inline]
fn pieces(at: usize, len: usize, mut piece: impl FnMut(usize, usize, usize)) {
    let Ok(()) = try_pieces::<Infallible>(at, len, |at, done, len| {
        piece(at, done, len);
        Ok(())
    });
}

/// # Safety
/// `from` is 8-byte aligned shared memory of `len` bytes, a multiple of 8; `to` is valid for `len` bytes.
#[inline]
unsafe fn read_words(from: *mut u8, to: *mut u8, len: usize) {
    // SAFETY: inside both, by the caller's promise.
    let read = |i| unsafe {
        let word = AtomicU64::from_ptr(from.add(i).cast()).load(LOAD);
        to.add(i).cast::<u64>().write_unaligned(word);
    };
    // Most pieces are whole lines, and a loop of known length is unrolled.
    if len == LINE_BYTES {
        (0..LINE_BYTES).step_by(8).for_each(read);
    } else {
        (0..len).step_by(8).for_each(read);
    }
}

/// # Safety
/// `to` is 8-byte aligned shared memory of `len` bytes, a multiple of 8; `from` is valid for `len` bytes.
unsafe fn write_words(to: *mut u8, from: *const u8, len: usize) {
    for i in (0..len).step_by(8) {
        // SAFETY: inside both, by the caller's promise.
        unsafe {
            let word = from.add(i).cast::<u64>().read_unaligned();
            AtomicU64::from_ptr(to.add(i).cast()).store(word, STORE);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod vector {
    //! One `vmovdqu64` of 64 bytes per line. In assembly, because the memory is shared: the compiler must neither
    //! split, merge nor assume anything about these accesses.

    use std::arch::asm;

    use super::{LINE_BYTES, pieces};

    /// # Safety
    /// As for `Lines::read`; AVX-512F is there.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn read(from: *mut u8, to: *mut u8, len: usize) {
        if (from as usize | len).is_multiple_of(LINE_BYTES) {
            for i in (0..len).step_by(LINE_BYTES) {
                // SAFETY: a whole line inside both.
                unsafe {
                    asm!("vmovdqa64 {line}, [{from}]", "vmovdqu64 [{to}], {line}",
                         from = in(reg) from.add(i), to = in(reg) to.add(i), line = out(zmm_reg) _,
                         options(nostack, preserves_flags));
                }
            }
        } else {
            pieces(from as usize, len, |at, done, len| {
                // SAFETY: a part of one line inside both; masked-off elements are neither read nor written.
                unsafe { masked(at as *const u8, to.add(done), len) }
            });
        }
    }

    /// # Safety
    /// As for `Lines::write`; AVX-512F is there.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn write(to: *mut u8, from: *const u8, len: usize) {
        pieces(to as usize, len, |at, done, len| {
            // SAFETY: a part of one line inside both; masked-off elements are neither read nor written.
            unsafe {
                if len == LINE_BYTES {
                    asm!("vmovdqu64 {line}, [{from}]", "vmovdqa64 [{to}], {line}",
                         from = in(reg) from.add(done), to = in(reg) at, line = out(zmm_reg) _,
                         options(nostack, preserves_flags));
                } else {
                    masked(from.add(done), at as *mut u8, len);
                }
            }
        });
    }

    /// Copies `len < 64` bytes, a multiple of 8, by one load and one store masked by 8-byte elements.
    ///
    /// # Safety
    /// Both pointers are valid for `len` bytes; AVX-512F is there.
    #[target_feature(enable = "avx512f")]
    unsafe fn masked(from: *const u8, to: *mut u8, len: usize) {
        let mask: u32 = (1 << (len / 8)) - 1;
        // SAFETY: elements outside the mask are not accessed.
        unsafe {
            asm!("kmovw {k}, {mask:e}",
                 "vmovdqu64 {line}{{{k}}}{{z}}, [{from}]",
                 "vmovdqu64 [{to}]{{{k}}}, {line}",
                 mask = in(reg) mask, from = in(reg) from, to = in(reg) to,
                 k = out(kreg) _, line = out(zmm_reg) _, options(nostack, preserves_flags));
        }
    }
}

mod cpu {
    //! Which CPUs move an aligned line at once.

    #[cfg(target_arch = "x86_64")]
    pub(in super::super) fn has_line_vectors() -> bool {
        std::arch::is_x86_feature_detected!("avx512f")
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) fn moves_lines_at_once() -> bool {
        use std::arch::x86_64::__cpuid;
        let (vendor, signature) = (__cpuid(0), __cpuid(1).eax);
        is_measured((vendor.ebx, vendor.edx, vendor.ecx), signature) && has_line_vectors()
    }

    /// Accepts AMD's family 1Ah server and desktop cores (Zen 5: 64-byte load, store and fill paths), where it was
    /// measured. Its mobile models and Zen 4 split 64-byte accesses in two; Intel's cores were not at hand to measure.
    #[cfg(target_arch = "x86_64")]
    fn is_measured(vendor: (u32, u32, u32), signature: u32) -> bool {
        let amd = vendor == (0x6874_7541, 0x6974_6e65, 0x444d_4163);
        let family = (signature >> 8 & 0xf) + (signature >> 20 & 0xff);
        let model = (signature >> 4 & 0xf) | (signature >> 12 & 0xf0);
        amd && family == 0x1a && (model < 0x20 || (0x40..0x50).contains(&model))
    }

    #[cfg(all(test, not(target_arch = "x86_64")))]
    pub(in super::super) fn has_line_vectors() -> bool {
        false
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn moves_lines_at_once() -> bool {
        false
    }

    #[cfg(all(test, target_arch = "x86_64"))]
    mod tests {
        use super::*;

        #[test]
        fn only_cpus_that_were_measured_are_trusted() {
            let amd =
                (u32::from_le_bytes(*b"Auth"), u32::from_le_bytes(*b"enti"), u32::from_le_bytes(*b"cAMD"));
            let intel =
                (u32::from_le_bytes(*b"Genu"), u32::from_le_bytes(*b"ineI"), u32::from_le_bytes(*b"ntel"));
            for (vendor, signature, name, trusted) in [
                (amd, 0x00b0_0f21, "Turin, Zen 5", true),
                (amd, 0x00b4_0f40, "Granite Ridge, Zen 5", true),
                (amd, 0x00b2_0f40, "Strix Point, mobile Zen 5", false),
                (amd, 0x00a1_0f11, "Genoa, Zen 4", false),
                (amd, 0x00a6_0f12, "Raphael, Zen 4", false),
                (intel, 0x000c_06f2, "Emerald Rapids", false),
                (intel, 0x00b0_0f21, "none: Turin's numbers of another vendor", false),
            ] {
                assert_eq!(is_measured(vendor, signature), trusted, "{name}");
            }
        }
    }
}

#[cfg(test)]
pub(super) use self::cpu::has_line_vectors;

#[cfg(test)]
mod tests {
    use super::*;

    /// AVX-512 alone is no reason: 64-byte accesses of Zen 4 tear.
    #[test]
    fn vector_lines_are_refused_where_they_are_not_known_to_be_whole() {
        let known = cpu::moves_lines_at_once();
        assert_eq!(
            LineMode::Vector.detect(),
            if known { Ok(LineMode::Vector) } else { Err(LineModeRefused::Vector) }
        );
        assert_eq!(LineMode::Sequence.detect(), Ok(LineMode::Sequence));
    }
}
