//! Mistakes by hand: epochs, flushes, and memory that is used again.

use super::Patch;

pub(super) const PATCHES: &[Patch] = &[
    Patch {
        name: "two epochs are enough",
        file: "runtime/src/epoch/pins.rs",
        find: "self.node.known() >= retired + ⟦GRACE⟧",
        replace: "(GRACE - 1)",
    },
    Patch {
        name: "a flush counts from its own epoch",
        file: "runtime/src/epoch/pins.rs",
        find: "(⟦flushed >= retired + GRACE⟧).then(|| flushed - 2)",
        replace: "flushed >= retired + 1 && flushed >= 2",
    },
    Patch {
        name: "no epoch is waited for behind a flush",
        file: "runtime/src/epoch/pins.rs",
        find: ".then(|| ⟦flushed - 2⟧)",
        replace: "flushed - GRACE",
    },
    Patch {
        name: "what an operation leaves behind pins nothing",
        file: "runtime/src/epoch/pins.rs",
        find: "let is_free = ⟦self.held[oldest].get() + self.held[LEFT + oldest].get() == 0⟧;",
        replace: "self.held[oldest].get() == 0",
    },
    Patch {
        name: "cached nodes wait for no flush",
        file: "runtime/src/alloc.rs",
        find: "⟦state.cached.push_back(Retired { since, node, bytes, of_kind: false, first_word: None });⟧
            ",
        replace: "state.waiting.push_back(Retired { since, node, bytes, of_kind: false, first_word: None });",
    },
    Patch {
        name: "nodes of a kind become any nodes",
        file: "runtime/src/alloc/state.rs",
        find: "match ⟦of_kind⟧ {
            true => self.give_back_of_kind(node, bytes, first_word)",
        replace: "of_kind && first_word.is_some()",
    },
    Patch {
        name: "batches that wait for other epochs are joined",
        file: "runtime/src/memory/given.rs",
        find: "Some(last) if ⟦last.waits == batch.waits⟧ &&",
        replace: "true",
    },
    Patch {
        name: "a batch is handed out before it is free",
        file: "runtime/src/memory/given.rs",
        find: "let is_free = |batch: &NodeBatch| ⟦batch.waits.are_over(epoch, flushed)⟧;",
        replace: "{ let _ = (batch, epoch, flushed); true }",
    },
];
