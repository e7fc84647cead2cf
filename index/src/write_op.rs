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
    ///
    /// ```
    /// # use farwood_index::write_op::WriteOp;
    /// assert_eq!(WriteOp::Update(b"1").value(), b"1");
    /// assert_eq!(WriteOp::Remove.value(), b"");
    /// ```
    pub fn value(self) -> &'v [u8] {
        match self {
            WriteOp::Put(value) | WriteOp::Insert(value) | WriteOp::Update(value) => value,
            WriteOp::Remove => b"",
        }
    }

    /// Tells whether the operation has an effect on a key that is present, or else on one that is absent.
    pub fn applies(self, is_present: bool) -> bool {
        match self {
            WriteOp::Put(_) => true,
            WriteOp::Insert(_) => !is_present,
            WriteOp::Update(_) | WriteOp::Remove => is_present,
        }
    }

    /// Tells whether the operation makes an absent key present.
    ///
    /// ```
    /// # use farwood_index::write_op::WriteOp;
    /// assert!(WriteOp::Put(b"1").creates() && WriteOp::Insert(b"1").creates());
    /// assert!(!WriteOp::Update(b"1").creates() && !WriteOp::Remove.creates());
    /// ```
    pub fn creates(self) -> bool {
        matches!(self, WriteOp::Put(_) | WriteOp::Insert(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_apply_to_keys_that_are_present_or_absent() {
        let applies = |op: WriteOp<'_>| [true, false].map(|is_present| op.applies(is_present));
        assert_eq!(applies(WriteOp::Put(b"")), [true, true]);
        assert_eq!(applies(WriteOp::Insert(b"")), [false, true]);
        assert_eq!(applies(WriteOp::Update(b"")), [true, false]);
        assert_eq!(applies(WriteOp::Remove), [true, false]);
    }
}
