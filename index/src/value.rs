//! What a lookup returns: the value, still in the buffer that it was read into.

use std::fmt;
use std::ops::{Deref, Range};

use farwood_runtime::Buf;

use crate::layout::{StreamRange, make_contiguous};

/// A value, as bytes. It keeps a leased buffer: copy it out (`to_vec`) to keep it for long.
pub struct Value {
    buf: Buf,
    range: Range<usize>,
}

impl Value {
    /// The bytes of `stream` in the node image in `buf`.
    pub(crate) fn in_node(mut buf: Buf, stream: StreamRange) -> Self {
        let range = make_contiguous(&mut buf, stream);
        Value { buf, range }
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buf[self.range.clone()]
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for Value {
    fn eq(&self, other: &T) -> bool {
        **self == *other.as_ref()
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
