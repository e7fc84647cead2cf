//! The addresses of a node's children in as few bits as they need, bit-packed into 64-bit words. Lossless for
//! every address; nodes are aligned and regions smaller than 2^48 bytes, so that a child takes 3 to 5 bytes
//! instead of 8.
//!
//! ```text
//! per child:  | server | offset >> shift |     as wide as the largest server and offset of the node
//! ```

use farwood_runtime::{RemotePtr, ServerId};

/// The packing of the children of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packing {
    /// Bits per child, 1 to 64.
    pub(crate) bits: u8,
    /// Bits of these, the low ones, that are the offset; the rest is the server.
    pub(crate) offset_bits: u8,
    /// Trailing zero bits that all offsets have in common and that are not stored.
    pub(crate) shift: u8,
}

impl Packing {
    /// Chooses the tightest packing that loses nothing of `children`.
    pub(crate) fn of(children: impl Iterator<Item = RemotePtr>) -> Self {
        // The OR of all values has the widest value's width, and as many trailing zeros as they all have.
        let (offsets, servers) = children
            .fold((0, 0), |(offsets, servers), child| (offsets | child.offset(), servers | child.server().0));
        let shift = if offsets == 0 { 0 } else { offsets.trailing_zeros() };
        let offset_bits = u64::BITS - (offsets >> shift).leading_zeros();
        let server_bits = u16::BITS - servers.leading_zeros();
        let bits = (offset_bits + server_bits).max(1);
        Packing { bits: bits as u8, offset_bits: offset_bits as u8, shift: shift as u8 }
    }

    /// Appends `children` to `words`.
    pub(crate) fn pack(self, children: impl Iterator<Item = RemotePtr>, words: &mut Vec<u64>) {
        let (mut filled, mut word) = (0, 0u64);
        for child in children {
            let value = u64::from(child.server().0) << self.offset_bits | child.offset() >> self.shift;
            word |= value << filled;
            filled += u32::from(self.bits);
            if filled >= u64::BITS {
                words.push(word);
                filled -= u64::BITS;
                // What did not fit. Shifted by 64 where all of it did.
                word = value.checked_shr(u32::from(self.bits) - filled).unwrap_or(0);
            }
        }
        if filled > 0 {
            words.push(word);
        }
    }

    /// Unpacks the child at `index` of those packed in `words`, which may hold more words than that.
    #[inline]
    pub(crate) fn get(self, words: &[u64], index: usize) -> RemotePtr {
        let at = index * usize::from(self.bits);
        let (word, bit) = (at / 64, at % 64);
        // A child that ends in its own word does not need the next one, which then may not exist.
        let next = words[(word + 1).min(words.len() - 1)];
        let value = words[word] >> bit | (next << 1) << (63 - bit);
        let value = value & (u64::MAX >> (64 - u32::from(self.bits)));
        let offset = value & ((1 << self.offset_bits) - 1);
        RemotePtr::new(ServerId((value >> self.offset_bits) as u16), offset << self.shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(children: &[RemotePtr]) -> Packing {
        let packing = Packing::of(children.iter().copied());
        let mut words = Vec::new();
        packing.pack(children.iter().copied(), &mut words);
        assert_eq!(words.len(), (children.len() * usize::from(packing.bits)).div_ceil(64));
        let read: Vec<_> = (0..children.len()).map(|index| packing.get(&words, index)).collect();
        assert_eq!(read, children);
        packing
    }

    #[test]
    fn aligned_offsets_of_a_few_servers_take_few_bits() {
        let children: Vec<_> = (0..50)
            .map(|leaf: u64| RemotePtr::new(ServerId(leaf as u16 % 8), (1 << 30) + leaf * 1088))
            .collect();
        assert!(round_trip(&children).bits <= 28);
    }

    #[test]
    fn every_width_survives() {
        for width in 1..=48 {
            for server in [0, 1, 255, u16::MAX] {
                let children: Vec<_> = (0..67u64)
                    .map(|index| {
                        RemotePtr::new(ServerId(server), (1 << (width - 1)) | (index % (1 << (width - 1))))
                    })
                    .collect();
                round_trip(&children);
            }
        }
    }

    #[test]
    fn null_and_the_largest_address_survive() {
        assert_eq!(round_trip(&[RemotePtr::NULL]).bits, 1);
        let largest = RemotePtr::from_bits(u64::MAX);
        assert_eq!(round_trip(&[largest, RemotePtr::NULL, largest]).bits, 64);
    }
}
