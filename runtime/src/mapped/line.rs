//! Line atomicity on memory that CPUs share: copies to and from mapped memory in which every aligned 64-byte line is
//! read and written as one access, also when another core works on the same line.
//!
//! Plain copies tear at 8 bytes or less, so a mechanism is chosen per CPU:
//!
//! - [`LineMode::Vector`]: one 64-byte vector load or store per line. A core whose load and store paths and whose
//!   cache interface are 64 bytes wide moves an aligned line in a single access, and coherence hands lines over as a
//!   whole, so nothing can come between. Neither AMD nor Intel promises it in a manual; it was measured on the CPUs
//!   that [`LineMode::detect`] accepts (and never seen to tear), and the stress test below runs wherever the tests do.
//!   Parts of a line are written by one store masked by 8-byte elements, a single word by an ordinary store.
//!   Byte-masked stores do tear and are not used: hence lengths in multiples of 8.
//! - [`LineMode::Sequence`]: a sequence counter per line beside the region (odd while a writer is inside). Rests on
//!   nothing but 8-byte atomics; costs a counter's cache line per 16 lines.
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

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The unit of atomicity, in bytes.
pub const LINE_BYTES: usize = 64;

/// How line atomicity is provided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LineMode {
    /// [`LineMode::Vector`] where the CPU is known to move a line at once, else [`LineMode::Sequence`].
    #[default]
    Auto,
    /// A 64-byte vector access per line. Falls back to `Sequence` where there is no AVX-512.
    Vector,
    /// A sequence counter per line.
    Sequence,
    /// No mechanism: 8-byte accesses that tear between words. Breaks the contract; exists to test the tests.
    Plain,
}

impl LineMode {
    /// The mechanism that this mode means on this CPU.
    pub fn detect(self) -> LineMode {
        match self {
            LineMode::Auto if cpu::moves_lines_at_once() => LineMode::Vector,
            LineMode::Auto => LineMode::Sequence,
            LineMode::Vector if !cpu::has_line_vectors() => LineMode::Sequence,
            mode => mode,
        }
    }
}

/// One line's place: its memory and its counter, where the mode has one.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    /// First byte of the region; aligned to 4096.
    pub base: *mut u8,
    /// One counter per line in `Sequence` mode, else null.
    pub counters: *const AtomicU32,
    pub mode: LineMode,
}

impl Lines {
    /// Copies `len` bytes at `at` to `to`.
    ///
    /// # Safety
    /// `at..at + len` lies inside the region and both are multiples of 8; `to` is valid for `len` bytes.
    #[inline]
    pub(super) unsafe fn read(self, at: usize, to: *mut u8, len: usize) {
        // SAFETY: the caller's promise covers every piece; see `pieces`.
        unsafe {
            match self.mode {
                #[cfg(target_arch = "x86_64")]
                LineMode::Vector => vector::read(self.base.add(at), to, len),
                LineMode::Sequence => {
                    pieces(at, len, |at, done, len| self.read_sequenced(at, to.add(done), len))
                }
                _ => read_words(self.base.add(at), to, len),
            }
        }
    }

    /// Copies `len` bytes at `from` to `at`.
    ///
    /// # Safety
    /// As for [`Lines::read`], with `from` valid for reading.
    #[inline]
    pub(super) unsafe fn write(self, at: usize, from: *const u8, len: usize) {
        // SAFETY: the caller's promise covers every piece; see `pieces`.
        unsafe {
            match self.mode {
                #[cfg(target_arch = "x86_64")]
                LineMode::Vector => vector::write(self.base.add(at), from, len),
                LineMode::Sequence => pieces(at, len, |at, done, len| {
                    self.locked(at, || write_words(self.base.add(at), from.add(done), len));
                }),
                _ => write_words(self.base.add(at), from, len),
            }
        }
    }

    /// Changes the word at `at` atomically by `change` and yields what was there.
    ///
    /// # Safety
    /// `at` is 8-byte aligned and inside the region.
    pub(super) unsafe fn atomic(self, at: usize, change: impl Fn(&AtomicU64) -> u64) -> u64 {
        // SAFETY: inside the region and aligned, by the caller's promise; the memory lives as long as the region.
        let word = unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) };
        match self.mode {
            // An atomic changes a line too: a reader of the whole line must see it before or after.
            LineMode::Sequence => {
                let mut found = 0;
                // SAFETY: as above.
                unsafe { self.locked(at, || found = change(word)) };
                found
            }
            _ => change(word),
        }
    }

    /// # Safety
    /// `at..at + len` lies inside one line of the region; `to` is valid for `len` bytes.
    unsafe fn read_sequenced(self, at: usize, to: *mut u8, len: usize) {
        // SAFETY: one counter per line of the region.
        let counter = unsafe { &*self.counters.add(at / LINE_BYTES) };
        loop {
            let before = counter.load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                // SAFETY: the caller's promise.
                unsafe { read_words(self.base.add(at), to, len) };
                fence(Ordering::Acquire);
                if counter.load(Ordering::Relaxed) == before {
                    return;
                }
            }
            std::hint::spin_loop();
        }
    }

    /// Runs `change` while this thread alone is inside the line of `at`.
    ///
    /// # Safety
    /// `at` lies inside the region.
    unsafe fn locked(self, at: usize, change: impl FnOnce()) {
        // SAFETY: one counter per line of the region.
        let counter = unsafe { &*self.counters.add(at / LINE_BYTES) };
        let before = loop {
            let now = counter.load(Ordering::Relaxed);
            let taken = now.is_multiple_of(2)
                && counter
                    .compare_exchange_weak(now, now.wrapping_add(1), Ordering::Acquire, Ordering::Relaxed)
                    .is_ok();
            if taken {
                break now;
            }
            std::hint::spin_loop();
        };
        // Keeps the stores of `change` behind the odd counter for readers on weakly ordered CPUs.
        fence(Ordering::Release);
        change();
        counter.store(before.wrapping_add(2), Ordering::Release);
    }
}

/// Cuts `at..at + len` at line boundaries: calls `piece(at, bytes done before, len)` in address order.
#[inline]
fn pieces(mut at: usize, len: usize, mut piece: impl FnMut(usize, usize, usize)) {
    let mut done = 0;
    while done < len {
        let step = (LINE_BYTES - at % LINE_BYTES).min(len - done);
        piece(at, done, step);
        at += step;
        done += step;
    }
}

/// # Safety
/// `from` is 8-byte aligned shared memory of `len` bytes, a multiple of 8; `to` is valid for `len` bytes.
unsafe fn read_words(from: *mut u8, to: *mut u8, len: usize) {
    for i in (0..len).step_by(8) {
        // SAFETY: inside both, by the caller's promise; Acquire keeps READ-READ order on weakly ordered CPUs.
        unsafe {
            let word = AtomicU64::from_ptr(from.add(i).cast()).load(Ordering::Acquire);
            to.add(i).cast::<u64>().write_unaligned(word);
        }
    }
}

/// # Safety
/// `to` is 8-byte aligned shared memory of `len` bytes, a multiple of 8; `from` is valid for `len` bytes.
unsafe fn write_words(to: *mut u8, from: *const u8, len: usize) {
    for i in (0..len).step_by(8) {
        // SAFETY: inside both, by the caller's promise; Release keeps WRITE-WRITE order on weakly ordered CPUs.
        unsafe {
            let word = from.add(i).cast::<u64>().read_unaligned();
            AtomicU64::from_ptr(to.add(i).cast()).store(word, Ordering::Release);
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
    pub(super) fn has_line_vectors() -> bool {
        std::arch::is_x86_feature_detected!("avx512f")
    }

    /// AMD's family 1Ah server and desktop cores (Zen 5: 64-byte load, store and fill paths), where it was measured.
    /// Its mobile models and Zen 4 split 64-byte accesses in two; Intel's cores were not at hand to measure.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn moves_lines_at_once() -> bool {
        use std::arch::x86_64::__cpuid;
        let vendor = __cpuid(0);
        let signature = __cpuid(1).eax;
        let amd = (vendor.ebx, vendor.edx, vendor.ecx) == (0x6874_7541, 0x6974_6e65, 0x444d_4163);
        let family = (signature >> 8 & 0xf) + (signature >> 20 & 0xff);
        let model = (signature >> 4 & 0xf) | (signature >> 12 & 0xf0);
        amd && family == 0x1a && (model < 0x20 || (0x40..0x50).contains(&model)) && has_line_vectors()
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn has_line_vectors() -> bool {
        false
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn moves_lines_at_once() -> bool {
        false
    }
}
