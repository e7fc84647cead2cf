//! A node that owns its parts: images borrow them.

use farwood_cache::radix::RadixImage;

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) address: u64,
    pub(crate) class: u8,
    pub(crate) depth: u8,
    pub(crate) prefix: Vec<u8>,
    pub(crate) slots: Vec<u64>,
}

impl Node {
    pub(crate) fn of(image: &RadixImage<'_>) -> Self {
        let RadixImage { node: address, class, depth, prefix, slots } = *image;
        Node { address, class, depth, prefix: prefix.to_vec(), slots: slots.to_vec() }
    }

    /// Makes an image as if only the first slots had been claimed.
    pub(crate) fn image_of_first(&self, slots: usize) -> RadixImage<'_> {
        let Node { address, class, depth, .. } = *self;
        RadixImage { node: address, class, depth, prefix: &self.prefix, slots: &self.slots[..slots] }
    }

    pub(crate) fn image(&self) -> RadixImage<'_> {
        self.image_of_first(self.slots.len())
    }
}
