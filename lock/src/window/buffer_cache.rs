//! Values that were read by one client for others, each in a buffer of its own; buffers are reused.

use std::cell::RefCell;
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;

/// The largest buffer that is kept, in bytes.
const KEPT_BYTES_MAX: usize = 4 << 10;

/// Buffers that are not in use.
#[derive(Clone, Default)]
pub(crate) struct BufferCache(Rc<RefCell<Vec<Vec<u8>>>>);

impl BufferCache {
    /// Copies `bytes` into a buffer, for [`BufferCache::value`] or [`BufferCache::take_back`].
    pub(crate) fn copy(&self, bytes: &[u8]) -> Vec<u8> {
        let mut copy = self.0.borrow_mut().pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(bytes);
        copy
    }

    pub(crate) fn value(&self, bytes: Vec<u8>) -> SharedValue {
        SharedValue { bytes, buffers: self.clone() }
    }

    pub(crate) fn take_back(&self, bytes: Vec<u8>) {
        if bytes.capacity() <= KEPT_BYTES_MAX {
            self.0.borrow_mut().push(bytes);
        }
    }

    /// Counts the bytes that the buffers take.
    pub(crate) fn bytes(&self) -> usize {
        let kept = self.0.borrow();
        let buffers: usize = kept.iter().map(Vec::capacity).sum();
        buffers + kept.capacity() * size_of::<Vec<u8>>()
    }
}

/// A value that another client has read, or written.
pub struct SharedValue {
    bytes: Vec<u8>,
    buffers: BufferCache,
}

impl Deref for SharedValue {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for SharedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedValue").field(&self.bytes).finish()
    }
}

impl Drop for SharedValue {
    fn drop(&mut self) {
        self.buffers.take_back(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_unless_they_are_large() {
        let buffers = BufferCache::default();
        let long = buffers.value(buffers.copy(&[7; 100]));
        assert_eq!(*long, [7; 100]);
        let place = long.as_ptr();
        drop(long);
        let short = buffers.value(buffers.copy(&[1, 2]));
        assert_eq!((&*short, short.as_ptr()), (&[1, 2][..], place));
        drop(short);
        let bytes = buffers.bytes();
        assert!(bytes >= 100);
        let small = buffers.copy(&[]);
        drop(buffers.value(buffers.copy(&[0; KEPT_BYTES_MAX + 1])));
        buffers.take_back(small);
        assert_eq!(buffers.bytes(), bytes);
    }
}
