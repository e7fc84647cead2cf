//! Splits of leaves: the pairs of a full leaf and a new one in two halves. How these are published, and what becomes of
//! the separator, the levels above know ([`crate::btree::split`]).

use std::rc::Rc;

use farwood_lock::Held;
use farwood_runtime::{Buf, Meter, Verbs};

use super::Tree;
use crate::btree::separator::{Separator, separator_is_missing};
use crate::btree::split::{OldNode, halve};
use crate::error::{AccessError, WriteError};
use crate::layout::{Bytes, LeafView, Malformed, NodeHeader, Rejection};

impl<V: Verbs> Tree<V> {
    /// Splits the full leaf in `image`, which is locked, for the new pair, and tells the parents.
    pub(super) async fn split_leaf(
        self: &Rc<Self>,
        meter: &Meter,
        held: Held<V>,
        image: Buf,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), WriteError> {
        let node = held.node();
        let parsed = self.leaf().view(&image);
        let parsed = parsed.and_then(|leaf| Ok((leaf_pairs(&leaf, key, value)?, OldNode::of(leaf.header()))));
        let (pairs, old) = match parsed {
            Ok(parsed) => parsed,
            Err(rejection) => {
                self.unlock(meter, held).await?;
                return Err(AccessError::corrupt(node, rejection).into());
            }
        };
        tracing::debug!(name: "sherman.leaf.split", %node, "a leaf is split");
        let halves = halve(pairs);
        let bytes = self.leaf().node_bytes();
        let sibling = match self.leaf_again(meter, &held).await {
            Some(sibling) => Ok(sibling),
            None => self.new_node(bytes).await,
        };
        let sibling = match sibling {
            Ok(sibling) => sibling,
            Err(error) => {
                self.unlock(meter, held).await?;
                return Err(error);
            }
        };
        let middle = halves.right[0].0.clone();
        let mut buf = self.verbs.lease(2 * bytes);
        let (left_image, right_image) = buf.split_at_mut(bytes);
        let pairs = |half: &[(Bytes, Bytes)], image: &mut [u8], header: &NodeHeader<'_>| {
            self.leaf().build(
                image,
                header,
                half.iter().map(|(key, value)| (key.as_slice(), value.as_slice())),
            );
        };
        pairs(&halves.left, left_image, &old.left(&middle, sibling.node));
        let right = old.right(&middle, self.verbs.random() as u32);
        pairs(&halves.right, right_image, &NodeHeader { node_version: sibling.version(), ..right });
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

/// Yields the pairs of a full leaf and the new one, ascending.
fn leaf_pairs(leaf: &LeafView<'_>, key: &[u8], value: &[u8]) -> Result<Vec<(Bytes, Bytes)>, Rejection> {
    let mut pairs = leaf.sorted_pairs()?;
    match pairs.binary_search_by(|(found, _)| found.as_slice().cmp(key)) {
        // The key was not found, and a leaf that is full has other keys.
        Ok(_) => return Err(Malformed::KeyOrder.into()),
        Err(_) if pairs.is_empty() => return Err(Malformed::Count.into()),
        Err(place) => pairs.insert(place, (Bytes::from_slice(key), Bytes::from_slice(value))),
    }
    Ok(pairs)
}
