//! Seals let a memory server know that an index is being dropped, although another server keeps the catalog and memory
//! servers do not talk to each other.
//!
//! ```text
//!   catalog:          key = random          seal = hash(key) -------> who creates and opens the index
//!   other servers:    a chunk belongs to (index, seal) <------------- who takes it shows the seal
//!                     free if hash(key) == seal <------ key <-------- who drops shows the key, given by the catalog
//!                                                                     only when no other has the index open
//! ```

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The key that lets an index's chunks be freed: known to the catalog, and to the client that drops the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SealKey(pub u128);

/// The hash of an index's [`SealKey`], with which its chunks are taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Seal([u8; 16]);

impl SealKey {
    /// Returns the only seal that this key opens.
    pub fn seal(self) -> Seal {
        let hash = Sha256::digest(self.0.to_le_bytes());
        Seal(*hash.first_chunk().expect("it has 32 bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_opens_its_own_seal() {
        assert_eq!(SealKey(7).seal(), SealKey(7).seal());
        assert_ne!(SealKey(7).seal(), SealKey(8).seal());
        assert_ne!(SealKey(0).seal(), Seal::default());
    }
}
