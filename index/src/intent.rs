//! What an operation that changes one key wants. Pure.

/// What an operation wants of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent<'v> {
    /// Set its value, whether it is present or not.
    Put(&'v [u8]),
    /// Set its value if it is absent.
    Insert(&'v [u8]),
    /// Set its value if it is present.
    Update(&'v [u8]),
    /// Make it absent.
    Remove,
}

impl<'v> Intent<'v> {
    /// Yields the new value; empty for a removal.
    pub fn value(self) -> &'v [u8] {
        match self {
            Intent::Put(value) | Intent::Insert(value) | Intent::Update(value) => value,
            Intent::Remove => b"",
        }
    }

    /// Tells whether it makes a key that was absent present.
    pub fn creates(self) -> bool {
        matches!(self, Intent::Put(_) | Intent::Insert(_))
    }
}
