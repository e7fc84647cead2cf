//! Splits of leaves (CHIME section 4.4, "Insert"), where a new key finds no room. How the halves are published, and
//! what becomes of the separator, the levels above know ([`crate::btree::split`]).
//!
//! A leaf is split at its median, or so near to it that either half gets a key of the new key's neighbourhood, all of
//! whose slots are taken then: so either half has a vacancy in it, and the new key goes there without hops. (The paper
//! takes the median of the keys in the way of the failed hops: of so few keys it is often far from the leaf's, and
//! leaves are less full.)
//!
//! The keys of an indirect leaf are in its blocks, which are read first; blocks stay where they are. That of the new
//! pair is written before: a writer of the new leaf might change it as soon as it is reached, so it cannot be redone
//! with the split. Both cost a round trip.

use std::rc::Rc;

use farwood_lock::Held;
use farwood_runtime::{Buf, Meter, Verbs};

use super::Tree;
use super::block::NewBlock;
use crate::btree::separator::{Separator, separator_is_missing};
use crate::btree::split::OldNode;
use crate::error::{AccessError, WriteError};

impl<V: Verbs> Tree<V> {
    /// Splits the leaf in `image`, which is locked and was read whole, for the new pair, and tells the parents.
    pub(super) async fn split_leaf(
        self: &Rc<Self>,
        meter: &Meter,
        held: Held<V>,
        image: Buf,
        key: &[u8],
        value: &[u8],
        block: Option<NewBlock<'_, V>>,
    ) -> Result<(), WriteError> {
        let (node, layout) = (held.node(), self.leaf());
        let keys = self.keys_of(meter, &image).await?;
        let parsed = layout.view(&image).and_then(|leaf| {
            let keys = keys?;
            Ok((leaf.split_key(key, &keys)?, OldNode::of(leaf.header()), keys))
        });
        let (middle, old, keys) = match parsed {
            Ok(parsed) => parsed,
            Err(rejection) => {
                self.unlock(meter, held).await?;
                return Err(AccessError::corrupt(node, rejection).into());
            }
        };
        tracing::debug!(name: "chime.leaf.split", %node, "a leaf is split");
        self.look_after_retired();
        let bytes = layout.node_bytes();
        let mut sibling = match self.new_node(bytes).await {
            Ok(sibling) => sibling,
            Err(error) => {
                self.unlock(meter, held).await?;
                return Err(error);
            }
        };
        let mut buf = self.verbs.lease(2 * bytes);
        let (left, right) = buf.split_at_mut(bytes);
        left.copy_from_slice(&image);
        right.copy_from_slice(&image);
        let right_header = old.right(&middle, self.verbs.random() as u32);
        let is_right = |slot| keys.iter().any(|(other, key)| *other == slot && *key >= middle);
        let pointer = block.as_ref().map(|block| block.at.bits().to_le_bytes());
        let stored = pointer.as_ref().map_or(value, |pointer| pointer);
        let kept = layout
            .keep(left, &old.left(&middle, sibling.node), |slot| !is_right(slot))
            .and_then(|()| layout.keep(right, &right_header, is_right))
            .and_then(|()| {
                layout.unlock(right);
                layout.insert_near(if *key < middle[..] { left } else { right }, key, stored)
            });
        if let Err(rejection) = kept {
            self.unlock(meter, held).await?;
            return Err(AccessError::corrupt(node, rejection).into());
        }
        if let Some(block) = block {
            self.write_block(meter, &block, key, value).await?;
            sibling.join(block.publish());
        }
        let separator = Separator { level: 1, key: middle, child: sibling.node };
        let owed = self.publish_split(meter, held, sibling, buf, separator).await?;
        if let Err(error) = owed.pay(meter).await {
            // The pair is in and the tree whole: a missing separator costs readers a step, not the writer its
            // success.
            separator_is_missing(&error);
        }
        Ok(())
    }
}
