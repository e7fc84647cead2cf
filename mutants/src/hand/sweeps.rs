//! Mistakes by hand: memory that is taken for lost while it is in use.

use super::Patch;

pub(super) const PATCHES: &[Patch] = &[
    Patch {
        name: "a sweep waits for no operation of before",
        file: "index/src/shell/sweep.rs",
        find: "⟦self.operations_end().await?;⟧
        let (meter, mut marks)",
        replace: "{}",
    },
    Patch {
        name: "a sweep waits for no operation of meanwhile",
        file: "index/src/shell/sweep.rs",
        find: "⟦self.operations_end().await?;⟧
        sweep.step(Step::Lists)",
        replace: "{}",
    },
    Patch {
        name: "caches lead to memory that was lost",
        file: "index/src/shell/sweep.rs",
        find: "⟦self.caches_are_emptied().await?;⟧
        let (meter, leaf_bytes)",
        replace: "{}",
    },
    Patch {
        name: "no node is noted that leaves a list",
        file: "runtime/src/alloc/state.rs",
        find: "⟦noted.add(node, bytes);⟧",
        replace: "let _ = (&noted, node, bytes);",
    },
    Patch {
        name: "nodes that are about to be retired are not told",
        file: "runtime/src/alloc/state.rs",
        find: "state.free()⟦.chain(leaving)⟧.for_each",
        replace: ".chain(leaving.take(0))",
    },
    Patch {
        name: "a node that is announced leaves no list",
        file: "runtime/src/alloc/awaited.rs",
        find: "⟦state.note(*node, bytes);⟧",
        replace: "let _ = bytes;",
    },
    Patch {
        name: "an allocator that ends has noted nothing",
        file: "runtime/src/alloc.rs",
        find: "⟦noted.into_iter().for_each(|noted| self.control.lists().leave(self.index, &noted));⟧",
        replace: "drop(noted);",
    },
    Patch {
        name: "memory that was handed out meanwhile may be lost",
        file: "index/src/memory.rs",
        find: "let used = ⟦before⟧.iter().flat_map(|held| &held.used);",
        replace: "after",
    },
    Patch {
        name: "children of inner nodes are not marked",
        file: "index/src/btree/mark.rs",
        find: "⟦marks.reach(*child, self.node_bytes(level - 1) as u64);⟧",
        replace: "let _ = child;",
    },
    Patch {
        name: "a sweep goes on though a process has died",
        file: "runtime/src/control/sweep/home.rs",
        find: "⟦sweep.is_void = true;⟧",
        replace: "{}",
    },
];
