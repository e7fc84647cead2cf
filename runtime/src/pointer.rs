//! Addresses in disaggregated memory. Knows nothing of what is stored there.
//!
//! ```text
//!  63            48 47                                            0
//! +----------------+-----------------------------------------------+
//! | memory server  | byte offset inside that server's region       |
//! +----------------+-----------------------------------------------+
//! ```
//!
//! Offset 0 of every region holds the region's header, so address 0 is free to mean "null".

use std::fmt;

use serde::{Deserialize, Serialize};

const OFFSET_BITS: u32 = 48;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;

/// A memory server of the cluster, by its position in the cluster's list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ServerId(pub u16);

/// The address of a byte in disaggregated memory: a memory server and an offset in its region.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RemotePtr(u64);

impl RemotePtr {
    /// The address that no object has.
    pub const NULL: RemotePtr = RemotePtr(0);

    /// Makes the address of the byte at `offset` of `server`'s region. Offsets have 48 bits; a larger one is a bug of
    /// the caller.
    ///
    /// ```
    /// # use farwood_runtime::{RemotePtr, ServerId};
    /// let at = RemotePtr::new(ServerId(2), 0x1000);
    /// assert_eq!(at.to_string(), "2:0x1000");
    /// ```
    pub const fn new(server: ServerId, offset: u64) -> Self {
        assert!(offset <= OFFSET_MASK, "offsets have 48 bits");
        RemotePtr((server.0 as u64) << OFFSET_BITS | offset)
    }

    /// Returns the memory server that holds the byte.
    ///
    /// ```
    /// # use farwood_runtime::{RemotePtr, ServerId};
    /// assert_eq!(RemotePtr::new(ServerId(2), 0x1000).server(), ServerId(2));
    /// ```
    pub const fn server(self) -> ServerId {
        ServerId((self.0 >> OFFSET_BITS) as u16)
    }

    /// Returns the byte's offset in the server's region.
    ///
    /// ```
    /// # use farwood_runtime::{RemotePtr, ServerId};
    /// assert_eq!(RemotePtr::new(ServerId(2), 0x1000).offset(), 0x1000);
    /// ```
    pub const fn offset(self) -> u64 {
        self.0 & OFFSET_MASK
    }

    /// Tells whether this is [`RemotePtr::NULL`].
    ///
    /// ```
    /// # use farwood_runtime::{RemotePtr, ServerId};
    /// assert!(RemotePtr::NULL.is_null());
    /// assert!(!RemotePtr::new(ServerId(0), 64).is_null());
    /// ```
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// Returns the address `bytes` further on the same server.
    ///
    /// ```
    /// # use farwood_runtime::{RemotePtr, ServerId};
    /// let second_line = RemotePtr::new(ServerId(2), 0x1000).add(64);
    /// assert_eq!(second_line, RemotePtr::new(ServerId(2), 0x1040));
    /// ```
    pub const fn add(self, bytes: u64) -> Self {
        RemotePtr::new(self.server(), self.offset() + bytes)
    }

    /// Returns the 64-bit form in which nodes and root words store the address.
    ///
    /// ```
    /// # use farwood_runtime::{RemotePtr, ServerId};
    /// assert_eq!(RemotePtr::new(ServerId(2), 0x1000).to_bits(), 0x0002_0000_0000_1000);
    /// ```
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Reads the form of [`RemotePtr::to_bits`]. Every bit pattern is an address; whether anything is there, the
    /// fabric tells when it is used.
    ///
    /// ```
    /// # use farwood_runtime::{RemotePtr, ServerId};
    /// let child = RemotePtr::new(ServerId(2), 0x1000);
    /// let stored: [u8; 8] = child.to_bits().to_le_bytes();
    /// assert_eq!(RemotePtr::from_bits(u64::from_le_bytes(stored)), child);
    /// ```
    pub const fn from_bits(bits: u64) -> Self {
        RemotePtr(bits)
    }
}

impl fmt::Debug for RemotePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#x}", self.server().0, self.offset())
    }
}

impl fmt::Display for RemotePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_server_and_offset_apart() {
        let ptr = RemotePtr::new(ServerId(7), 0x1234_5678);
        assert_eq!((ptr.server(), ptr.offset()), (ServerId(7), 0x1234_5678));
        assert_eq!(RemotePtr::from_bits(ptr.to_bits()), ptr);
        assert_eq!(ptr.add(8).offset(), 0x1234_5680);
        assert!(RemotePtr::NULL.is_null() && !ptr.is_null());
    }

    #[test]
    #[should_panic(expected = "48 bits")]
    fn rejects_an_offset_that_would_spill_into_the_server() {
        let _ = RemotePtr::new(ServerId(0), 1 << 48);
    }
}
