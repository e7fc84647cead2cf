//! Operations that change one key. Pure.

/// Change of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOp<'v> {
    /// Set its value, whether it is present or not.
    Put(&'v [u8]),
    /// Set its value if it is absent.
    Insert(&'v [u8]),
    /// Set its value if it is present.
    Update(&'v [u8]),
    /// Make it absent.
    Remove,
}

impl<'v> WriteOp<'v> {
    /// Yields the new value; empty for a removal.
    pub fn value(self) -> &'v [u8] {
        match self {
            WriteOp::Put(value) | WriteOp::Insert(value) | WriteOp::Update(value) => value,
            WriteOp::Remove => b"",
        }
    }

    /// Tells whether the operation makes an absent key present.
    pub fn creates(self) -> bool {
        matches!(self, WriteOp::Put(_) | WriteOp::Insert(_))
    }
}
