//! What an operation that changes one key wants. Pure.

/// What an operation wants of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent<'v> {
    Put(&'v [u8]),
    Insert(&'v [u8]),
    Update(&'v [u8]),
    Remove,
}

impl<'v> Intent<'v> {
    pub(crate) fn value(self) -> &'v [u8] {
        match self {
            Intent::Put(value) | Intent::Insert(value) | Intent::Update(value) => value,
            Intent::Remove => b"",
        }
    }

    /// Whether it makes a key that was absent present.
    pub(crate) fn creates(self) -> bool {
        matches!(self, Intent::Put(_) | Intent::Insert(_))
    }
}
