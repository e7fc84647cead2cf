//! The leaves from a key on, as the cached nodes of level 1 have them: what a scan reads next. They may be stale: the
//! leaves themselves say for which keys they answer. No leaf is read here.

use farwood_runtime::{Meter, RemotePtr, Verbs};

use super::BTree;
use crate::error::AccessError;
use crate::shell::handle::Local;
use crate::step::Budget;

impl<A: BTree, V: Verbs> Local<A, V> {
    /// Adds the leaves from the one that should answer for `key` on to `leaves`, in key order, `most` at most; none if
    /// the tree has no node. Costs no round trip when the cache knows, and else those of the way to the first.
    pub(crate) async fn locate_window(
        &self,
        meter: &Meter,
        key: &[u8],
        most: usize,
        leaves: &mut impl Extend<RemotePtr>,
        budget: &mut Budget,
    ) -> Result<(), AccessError> {
        if self.reader().children_in(key, most, leaves) == 0
            && let Some(target) = self.locate_leaf(meter, key, budget).await?
            && self.reader().children_in(key, most, leaves) == 0
        {
            leaves.extend([target.ptr]);
        }
        Ok(())
    }

    /// Drops the cached parent of the leaf that should answer for `key`, since it lacks leaves: the next window reads
    /// it again.
    pub(crate) fn forget_parent(&self, key: &[u8]) {
        if let Some(via) = self.reader().node_of(1, key) {
            self.cache().invalidate(1, via, key);
        }
    }
}
