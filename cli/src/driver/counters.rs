//! Counters of a shard: those of its index, and of the workloads that use none.

use farwood::index::{IndexStats, KindStats, OpKind};
use farwood::runtime::counters;

/// Classes of operations that are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpClass {
    /// An operation of an index.
    Index(OpKind),
    /// A lock that was taken and given back.
    Lock,
    /// A READ of the bare fabric.
    Read,
}

impl OpClass {
    /// All classes.
    pub(crate) fn all() -> impl Iterator<Item = OpClass> {
        OpKind::ALL.into_iter().map(OpClass::Index).chain([OpClass::Lock, OpClass::Read])
    }

    /// Yields the name in tables and JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            OpClass::Index(kind) => kind.name(),
            OpClass::Lock => "lock",
            OpClass::Read => "read",
        }
    }

    /// Yields the place among all classes.
    #[inline]
    pub(crate) fn place(self) -> usize {
        match self {
            OpClass::Index(kind) => kind as usize,
            OpClass::Lock => OpKind::ALL.len(),
            OpClass::Read => OpKind::ALL.len() + 1,
        }
    }
}

/// Counters of one shard, or of all of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    /// Counters of the index; without one, of the locks alone.
    pub(crate) index: IndexStats,
    /// Locks that were taken and given back.
    pub(crate) lock: KindStats,
    /// READs of the bare fabric.
    pub(crate) read: KindStats,
}

counters!(Counters { sum: index lock read; });

impl Counters {
    /// Yields the counters of one class.
    pub(crate) fn of(&self, class: OpClass) -> &KindStats {
        match class {
            OpClass::Index(kind) => self.index.kind(kind),
            OpClass::Lock => &self.lock,
            OpClass::Read => &self.read,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_its_place() {
        assert!(OpClass::all().map(OpClass::place).eq(0..8));
    }
}
