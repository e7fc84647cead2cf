//! Nodes that can be made whole without an intent: whatever of a release has arrived, the node itself says what it was
//! about. The index knows how; `recovery` asks it about the node of a dead owner that has recorded nothing.
//!
//! ```text
//!   dead     WRITE entry, WRITE words and unlock: half of the entry ✗
//!   taker             READ pages: no intent ── READ node: half an entry ── CAS dead -> own ── WRITEs, unlock
//! ```
//!
//! The node is read before the lock is taken: as long as the dead one's word is there, no client writes to it, and no
//! word comes back. So a CAS that finds that word has the node which was read. A taker that dies in the middle leaves a
//! node that is mended as well, to the same end: so it needs no slot, and its word promises intents, for there is none.

use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use farwood_runtime::RemotePtr;

/// Makes the image of a node whole; yields the parts to WRITE, in their order, none of which has the lock word in it.
/// None at all if the node is whole; `None` if no release leaves such a node.
pub type Mend = dyn Fn(&mut [u8]) -> Option<Vec<Range<usize>>>;

/// The way to make nodes whole whose lock word is in them ([`crate::LockTable::acquire_embedded`]), all of one shape,
/// after a release that was declared with [`crate::Held::with_mending`] has arrived in part.
///
/// It has to come to the same end from what its own WRITEs leave if they arrive in part, in their order.
#[derive(Clone)]
pub struct Mending {
    /// The place of the lock word in a node.
    pub lock_at: u64,
    /// Bytes of a node.
    pub node_bytes: usize,
    /// Makes the image of one whole.
    pub mend: Rc<Mend>,
}

impl Mending {
    /// Yields the node that has this lock word.
    pub(crate) fn node_of(&self, lock: RemotePtr) -> RemotePtr {
        RemotePtr::new(lock.server(), lock.offset().saturating_sub(self.lock_at))
    }
}

impl fmt::Debug for Mending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mending")
            .field("lock_at", &self.lock_at)
            .field("node_bytes", &self.node_bytes)
            .finish_non_exhaustive()
    }
}
