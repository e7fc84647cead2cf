//! Accesses to a region outside of any chain, every one checked: for tools and tests that hold a region themselves.
//! Indexes use `Verbs`.

use thiserror::Error;

use super::region::{AccessError, Region};

/// A region's memory, an access at a time. Lines are as whole as with verbs.
#[derive(Clone, Copy)]
pub struct Access<'region>(&'region Region);

/// An access that did not take place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum BadAccess {
    /// The region does not have it.
    #[error("{len} bytes at {at} are not multiples of 8 within the region's {region_bytes} bytes")]
    Outside { at: u64, len: usize, region_bytes: u64 },
    /// Another process is in the middle of one of the lines, and does not go on.
    #[error("process {process} is stopped in the middle of a line of the {len} bytes at {at}")]
    WriterStopped { at: u64, len: usize, process: u32 },
}

impl<'region> Access<'region> {
    /// Makes accesses to `region` possible.
    ///
    /// ```
    /// # use farwood_runtime::mapped::{access::Access, line::LineMode, region::Region};
    /// let region = Region::anonymous(1 << 20, LineMode::Auto)?;
    /// let mut word = [1; 8];
    /// assert_eq!(Access::to(&region).read(4096, &mut word), Ok(()));
    /// assert_eq!(word, [0; 8]);
    /// # Ok::<_, farwood_runtime::mapped::error::RegionError>(())
    /// ```
    pub fn to(region: &'region Region) -> Self {
        Access(region)
    }

    /// Executes a READ of `to.len()` bytes at `at`.
    ///
    /// ```
    /// # use farwood_runtime::mapped::{access::Access, line::LineMode, region::Region};
    /// # let region = Region::anonymous(1 << 20, LineMode::Auto).unwrap();
    /// let mut line = [1; 64];
    /// Access::to(&region).read(4096, &mut line)?;
    /// assert_eq!(line, [0; 64]);
    /// assert!(Access::to(&region).read(1 << 20, &mut line).is_err());
    /// # Ok::<_, farwood_runtime::mapped::access::BadAccess>(())
    /// ```
    ///
    /// # Errors
    /// If it is not aligned to 8 bytes, or not inside the region, or a process is stopped in the middle of a line. As
    /// for all accesses.
    pub fn read(self, at: u64, to: &mut [u8]) -> Result<(), BadAccess> {
        let len = to.len();
        self.of(at, len, || self.0.read(at, to))
    }

    /// Executes a WRITE of `from` at `at`.
    ///
    /// ```
    /// # use farwood_runtime::mapped::{access::Access, line::LineMode, region::Region};
    /// # let region = Region::anonymous(1 << 20, LineMode::Auto).unwrap();
    /// let mut line = [0; 64];
    /// Access::to(&region).write(4096, &[7; 64])?;
    /// Access::to(&region).read(4096, &mut line)?;
    /// assert_eq!(line, [7; 64]);
    /// # Ok::<_, farwood_runtime::mapped::access::BadAccess>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Access::read`].
    pub fn write(self, at: u64, from: &[u8]) -> Result<(), BadAccess> {
        self.of(at, from.len(), || self.0.write(at, from))
    }

    /// Executes a CAS of the word at `at`; yields what was there.
    ///
    /// ```
    /// # use farwood_runtime::mapped::{access::Access, line::LineMode, region::Region};
    /// # let region = Region::anonymous(1 << 20, LineMode::Auto).unwrap();
    /// assert_eq!(Access::to(&region).cas(4096, 0, 7)?, 0);
    /// assert_eq!(Access::to(&region).cas(4096, 0, 8)?, 7, "it was not replaced");
    /// # Ok::<_, farwood_runtime::mapped::access::BadAccess>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Access::read`].
    pub fn cas(self, at: u64, expected: u64, desired: u64) -> Result<u64, BadAccess> {
        self.of(at, 8, || self.0.cas(at, expected, desired))
    }

    /// Executes an FAA of the word at `at`; yields what was there.
    ///
    /// ```
    /// # use farwood_runtime::mapped::{access::Access, line::LineMode, region::Region};
    /// # let region = Region::anonymous(1 << 20, LineMode::Auto).unwrap();
    /// assert_eq!(Access::to(&region).faa(4096, 5)?, 0);
    /// assert_eq!(Access::to(&region).faa(4096, 5)?, 5);
    /// # Ok::<_, farwood_runtime::mapped::access::BadAccess>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Access::read`].
    pub fn faa(self, at: u64, add: u64) -> Result<u64, BadAccess> {
        self.of(at, 8, || self.0.faa(at, add))
    }

    fn of<T>(
        self,
        at: u64,
        len: usize,
        access: impl FnOnce() -> Result<T, AccessError>,
    ) -> Result<T, BadAccess> {
        let outside = BadAccess::Outside { at, len, region_bytes: self.0.bytes() };
        if !at.is_multiple_of(8) || !len.is_multiple_of(8) {
            return Err(outside);
        }
        access().map_err(|error| match error {
            AccessError::OutOfRegion => outside,
            AccessError::WriterStopped(writer) => {
                BadAccess::WriterStopped { at, len, process: writer.process }
            }
        })
    }
}
