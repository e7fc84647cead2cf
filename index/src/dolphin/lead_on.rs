//! Slots that are made to lead on, from a leaf that is not their keys' any more, and inner nodes that are needless by
//! then: all their slots lead to one leaf (`separators.rs`), and so may the slot above. It does not know why a leaf is
//! not the right one, nor when memory is used again (`out.rs`).
//!
//! ```text
//!   slots of C lead on        lock C and read    WRITE slots, WRITE link: leaf X is in the place of C, unlock
//!   C is out of the tree                                                       lock P, WRITE slot: X, unlock
//! ```
//!
//! From the first step on no client changes C: one that comes there under its lock sees the link, does the second
//! step if that was not done, and goes on at P. Readers go on at X, which is what C's slots say for each key: so X may
//! have been split or merged since, as with any slot. If the client dies between the two, the next one that comes by
//! does the second step. If it dies before the link is written, C leads all keys to X, and is noticed by the next
//! client that reads it.
//!
//! With one slot fewer P may be needless, too. The root never is: it stays, and the first leaf for each first byte.
//!
//! A merge of R into L leads all slots of R on, of the nodes on the way to where R began and to where it ended; there
//! are no others ([`LeadOn`]). So a tree from which all keys are removed gets rid of its inner nodes without clients
//! that come by. What dropped or dead janitors leave they come by later, if at all.

use farwood_lock::Held;
use farwood_runtime::{Chain, Meter, Verbs};

use super::Tree;
use super::descend::{Inner, Unread, expected_position};
use super::put_separator::Passed;
use super::separators::{LeadOn, leaf_slot};
use crate::error::AccessError;
use crate::layout::Bytes;
use crate::layout::radix::{Child, Symbol, slot_at};
use crate::layout::range_leaf::heir_of;
use crate::step::Budget;

/// Slots of a node that are changed at a time: chains have to fit into queue pairs.
const SLOTS_MAX: usize = 32;

impl<V: Verbs> Tree<V> {
    /// Makes all slots lead on that lead to a leaf which was merged into its heir, and which had the keys from `low` on
    /// up to `high`: a round trip for each node on the ways to these two, two for each that changes, and one to see
    /// whether the heir has been merged meanwhile.
    ///
    /// ```text
    ///   R into L     L has R's keys ······························ slots of R: to L   READ L: freed   slots of L: to K
    ///   L into K                      K has L's keys   slots of L: to K
    /// ```
    pub(super) async fn lead_past_merged(
        &self,
        meter: &Meter,
        (low, high): (&Bytes, Option<&Bytes>),
        (freed, heir): (Child, Child),
    ) -> Result<(), AccessError> {
        let mut budget = self.budget();
        let high = high.filter(|high| high.first() == low.first());
        let mut lead = LeadOn { low: low.clone(), from: freed, to: heir, is_for_one_node: false };
        loop {
            self.lead_way_on(meter, (low, None), Some(&lead), &mut budget).await?;
            if let Some(high) = high {
                let shared = low.iter().zip(&high[..]).take_while(|(one, other)| one == other).count();
                self.lead_way_on(meter, (high, Some(shared)), Some(&lead), &mut budget).await?;
            }
            let image = self.fetch_leaf(meter, lead.to.ptr(), &mut budget).await?.into_buf();
            let Some((low, heir)) = self.low_of_gone(&image).zip(heir_of(self.leaf(), &image)) else {
                return Ok(());
            };
            budget.spend(meter, lead.to.ptr(), None)?;
            lead = LeadOn { low, from: lead.to, to: heir, ..lead };
        }
    }

    /// Makes the slot of `path`, and those behind it in its node, lead to `right`, if they lead to `wrong`: a round
    /// trip for each node on the way, and two.
    pub(super) async fn lead_on(
        &self,
        meter: &Meter,
        path: &Bytes,
        (wrong, right): (Child, Child),
        budget: &mut Budget,
    ) -> Result<(), AccessError> {
        let lead = LeadOn { low: path.clone(), from: wrong, to: right, is_for_one_node: true };
        self.lead_way_on(meter, (path, None), Some(&lead), budget).await
    }

    /// Leaves it to the janitor to take a node out that was read on the way to `key`, and was needless.
    #[cold]
    pub(super) fn suspect_needless(&self, at: Unread, key: &[u8]) {
        let key = Bytes::from_slice(key);
        self.see_to_later(at.node, async move |tree: &Self| {
            tree.lead_way_on(&Meter::default(), (&key, None), None, &mut tree.budget()).await
        });
    }

    /// Goes down on the way to `key`, has slots of the nodes there lead on, and takes out those nodes that are
    /// needless. Nodes on the way along so many first bytes of the key were read just now.
    async fn lead_way_on(
        &self,
        meter: &Meter,
        (key, known): (&[u8], Option<usize>),
        lead: Option<&LeadOn>,
        budget: &mut Budget,
    ) -> Result<(), AccessError> {
        let Some(root) = self.read_root(meter, budget).await? else { return Ok(()) };
        let (mut at, mut passed) = (self.unread_root(root), Passed::new());
        loop {
            let is_known = known.is_some_and(|known| expected_position(at) <= known);
            let copy = is_known.then(|| self.cached_inner(at)).flatten();
            let mut inner = match copy {
                Some(inner) => inner,
                None => self.read_and_cache(meter, at, budget).await?,
            };
            let prefix = &key[..inner.position.min(key.len())];
            while inner.successor.is_none() && calls_for_change(&inner, prefix, lead) {
                budget.spend(meter, at.node.ptr(), None)?;
                inner = self.change_slots(meter, (at, prefix), lead).await?;
            }
            if let Some(successor) = inner.successor {
                match self.past_gone(meter, at, successor, &mut passed, budget).await? {
                    Some(on) => at = on,
                    None => return Ok(()),
                }
                continue;
            }
            let symbol = Symbol::of(key, inner.position);
            let slot = inner.slots.iter().find(|slot| slot.is_of(symbol) && slot.is_inner());
            match slot.and_then(|slot| at.below(inner.position, *slot)) {
                Some(below) => passed.push(std::mem::replace(&mut at, below)),
                None => return Ok(()),
            }
        }
    }

    /// Locks a node, and changes it as it calls for then. Yields the node.
    async fn change_slots(
        &self,
        meter: &Meter,
        (at, prefix): (Unread, &[u8]),
        lead: Option<&LeadOn>,
    ) -> Result<Inner, AccessError> {
        let (bytes, fused) = (self.inner_bytes(at)?, self.techniques.fused);
        let (held, image) = self.lock_and_read(meter, at.node.ptr(), bytes, fused).await?;
        match self.judge_inner(at, &image) {
            Ok(inner) if inner.successor.is_none() && calls_for_change(&inner, prefix, lead) => {
                self.lead_slots_on(meter, (held, inner), (at, prefix), lead).await
            }
            judged => {
                held.unlock(meter).await?;
                let inner = judged?;
                self.cache_unmoved(at, &inner);
                Ok(inner)
            }
        }
    }

    /// Makes slots of a node that is locked lead on, not too many at a time; and if it is needless then, says in its
    /// link which leaf is in its place. Yields the node.
    pub(super) async fn lead_slots_on(
        &self,
        meter: &Meter,
        (mut held, mut inner): (Held<V>, Inner),
        (at, prefix): (Unread, &[u8]),
        lead: Option<&LeadOn>,
    ) -> Result<Inner, AccessError> {
        let node = at.node.ptr();
        let mut chain = Chain::new(node.server());
        if let Some(lead) = lead {
            let places: Vec<usize> = lead.places(&inner.slots, prefix).take(SLOTS_MAX).collect();
            for place in places {
                let slot = leaf_slot(inner.slots[place].symbol(), lead.to);
                chain.write_word(node.add(slot_at(place)), slot.bits());
                inner.slots[place] = slot;
            }
            tracing::debug!(name: "dolphin.slot.led_on", %node, "slots lead on from a leaf that is gone");
        }
        inner.successor = inner.only_leaf();
        if let Some(successor) = inner.successor {
            tracing::debug!(name: "dolphin.node.needless", %node, "an inner node leads to one leaf only");
            // Behind the slots: what they say is what the link says.
            chain.write_word(node, successor.link().bits());
        }
        // Each of them is one of its own.
        held.with_whole_steps();
        held.release(meter, chain, true).await?;
        self.cache_unmoved(at, &inner);
        Ok(inner)
    }
}

/// Tells whether a node on a way is to be changed.
fn calls_for_change(inner: &Inner, prefix: &[u8], lead: Option<&LeadOn>) -> bool {
    let leads_on = lead.is_some_and(|lead| lead.places(&inner.slots, prefix).next().is_some());
    leads_on || inner.only_leaf().is_some()
}
