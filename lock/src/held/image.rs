//! The image that goes with a lock which is handed over: taken in place of a READ, left behind a write-back. What is in
//! it, and for which hand-over it is, [`crate::images`] knows.

use std::ops::Range;

use farwood_runtime::{Buf, Completion, Verbs};

use super::{Global, Held};
use crate::images::{HandOver, rest_ns};
use crate::word::Claim;

impl<V: Verbs> Held<V> {
    /// Takes those parts of the image that the holder before has left for this one, in place of a READ. Yields the
    /// buffer as it is if that has left none, or not all of them.
    pub(super) async fn take_image(
        &mut self,
        mut buf: Buf,
        parts: &[Range<usize>],
    ) -> Result<Completion, Buf> {
        let (true, Global::Taken { claim }) = (std::mem::take(&mut self.may_have_image), &self.global) else {
            return Err(buf);
        };
        let by = HandOver { node: self.node, word: claim.word, depth: self.depth };
        let (table, lock) = (&self.table, self.lock);
        let Some(written_ns) = table.images.take(by, parts, &mut buf) else { return Err(buf) };
        table.counters.count(|stats| stats.images += 1);
        tracing::debug!(name: "lock.handover.image", %lock, "a node's image was handed over with its lock");
        let bytes = parts.iter().map(|part| part.len()).sum();
        let rest_ns =
            rest_ns(table.verbs.capabilities().write_interval_ns, bytes, written_ns, table.verbs.now());
        if rest_ns > 0 {
            table.verbs.pause(rest_ns).await;
        }
        Ok(Completion { buf: Some(buf), atomics: Default::default(), span_ns: 0 })
    }

    /// Leaves what is known of the node to the next holder, which gets the lock with that claim. The write-back has
    /// completed.
    pub(super) fn leave_image(&self, claim: Claim, known: &[Range<usize>], image: &Buf) {
        let table = &self.table;
        if table.config.image_handover {
            let to = HandOver { node: self.node, word: claim.word, depth: self.depth + 1 };
            table.images.leave(to, known, image, table.verbs.now());
        }
    }
}
