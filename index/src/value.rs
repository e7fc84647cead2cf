//! The value that a lookup returns: still in the buffer that it was read into, in one that clients share, or copied.

use std::fmt;
use std::ops::{Deref, Range};

use farwood_lock::window::SharedValue;
use farwood_runtime::Buf;

use crate::layout::{Bytes, StreamRange, make_contiguous};

/// A value, as bytes. It may keep a leased buffer: copy it out (`to_vec`) to keep it for long.
///
/// ```
/// # use farwood_index::Value;
/// # farwood_doctest::index!(|index| {
/// index.put(b"anna", b"1").await?;
/// let value: Value = index.get(b"anna").await?.expect("it was put");
/// assert_eq!(value, b"1");
/// let kept: Vec<u8> = value.to_vec();
/// assert_eq!(kept, value.as_ref());
/// # });
/// ```
pub struct Value(Kept);

/// Place of a value.
enum Kept {
    /// In the buffer that it was read into.
    Leased { buf: Buf, range: Range<usize> },
    /// Read by another client, or written.
    Shared(SharedValue),
    /// Copied out.
    Copied(Bytes),
}

impl Value {
    /// Makes a value of the bytes of `stream` in the node image in `buf`.
    pub(crate) fn in_node(mut buf: Buf, stream: StreamRange) -> Self {
        let range = make_contiguous(&mut buf, stream);
        Value(Kept::Leased { buf, range })
    }

    /// Makes a value of the bytes at `range` of `buf`.
    ///
    /// ```
    /// # use farwood_index::Value;
    /// # farwood_doctest::run(async |_, shard| {
    /// # use farwood_runtime::Verbs;
    /// let mut buf = shard.lease(16);
    /// buf[4..7].copy_from_slice(b"abc");
    /// assert_eq!(Value::at(buf, 4..7), "abc");
    /// # Ok(()) });
    /// ```
    pub fn at(buf: Buf, range: Range<usize>) -> Self {
        Value(Kept::Leased { buf, range })
    }

    /// Makes a value of one that another client has read or written.
    pub(crate) fn shared(value: SharedValue) -> Self {
        Value(Kept::Shared(value))
    }
}

impl Deref for Value {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Kept::Leased { buf, range } => &buf[range.clone()],
            Kept::Shared(value) => value,
            Kept::Copied(value) => value,
        }
    }
}

impl From<Bytes> for Value {
    fn from(value: Bytes) -> Self {
        Value(Kept::Copied(value))
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
