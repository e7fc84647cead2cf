//! Accesses to a region outside of any chain, every one checked: for tools and tests that hold a region themselves.
//! Indexes use `Verbs`.

use thiserror::Error;

use super::region::Region;

/// A region's memory, an access at a time. Lines are as whole as with verbs.
#[derive(Clone, Copy)]
pub struct Access<'region>(&'region Region);

/// An access that the region does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{len} bytes at {at} are not multiples of 8 within the region's {region_bytes} bytes")]
pub struct BadAccess {
    at: u64,
    len: usize,
    region_bytes: u64,
}

impl<'region> Access<'region> {
    /// Accesses to `region`.
    pub fn to(region: &'region Region) -> Self {
        Access(region)
    }

    /// READ of `to.len()` bytes at `at`.
    ///
    /// # Errors
    /// If it is not aligned to 8 bytes, or not inside the region. As for all accesses.
    pub fn read(self, at: u64, to: &mut [u8]) -> Result<(), BadAccess> {
        let (bad, len) = (self.bad(at, to.len()), to.len());
        aligned(at, len).and_then(|()| self.0.read(at, to).ok()).ok_or(bad)
    }

    /// WRITE of `from` at `at`.
    ///
    /// # Errors
    /// As for [`Access::read`].
    pub fn write(self, at: u64, from: &[u8]) -> Result<(), BadAccess> {
        aligned(at, from.len()).and_then(|()| self.0.write(at, from).ok()).ok_or(self.bad(at, from.len()))
    }

    /// CAS of the word at `at`; yields what was there.
    ///
    /// # Errors
    /// As for [`Access::read`].
    pub fn cas(self, at: u64, expected: u64, desired: u64) -> Result<u64, BadAccess> {
        aligned(at, 8).and_then(|()| self.0.cas(at, expected, desired).ok()).ok_or(self.bad(at, 8))
    }

    /// FAA of the word at `at`; yields what was there.
    ///
    /// # Errors
    /// As for [`Access::read`].
    pub fn faa(self, at: u64, add: u64) -> Result<u64, BadAccess> {
        aligned(at, 8).and_then(|()| self.0.faa(at, add).ok()).ok_or(self.bad(at, 8))
    }

    fn bad(self, at: u64, len: usize) -> BadAccess {
        BadAccess { at, len, region_bytes: self.0.bytes() }
    }
}

fn aligned(at: u64, len: usize) -> Option<()> {
    (at.is_multiple_of(8) && len.is_multiple_of(8)).then_some(())
}
