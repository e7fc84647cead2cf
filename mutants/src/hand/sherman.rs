//! Mistakes by hand: Sherman, and what B+trees have above their leaves: splits, separators, roots.

use super::Patch;

pub(super) const PATCHES: &[Patch] = &[
    Patch {
        name: "a split's node is written before its sibling",
        file: "index/src/btree/split.rs",
        find: "if together {
            chain.write(new, bytes..2 * bytes);
        }
        chain.write(node, 0..bytes);",
        replace: "chain.write(node, 0..bytes);
        if together {
            chain.write(new, bytes..2 * bytes);
        }",
    },
    Patch {
        name: "a sibling goes back after a split of unknown outcome",
        file: "index/src/btree/split.rs",
        find: "\"a split may have taken effect, or will\");
            ⟦return Err(error.into());⟧",
        replace: "if let Some(owed) = &owed.separator {
                self.allocator.return_extent(owed.child, bytes as u64);
            }
            return Err(error.into());",
    },
    Patch {
        name: "a dropped split's separator is put in before the split has taken effect",
        file: "index/src/btree/separator.rs",
        find: "if separator.as_ref().is_some_and(|separator| separator.level == 1) {
            A::settle_leaf(&self.tree, &meter, self.node).await?;
        } else {
            self.tree.settle_node(&meter, self.node).await?;
        }",
        replace: "",
    },
    Patch {
        name: "the bound of node versions is not kept",
        file: "index/src/btree/node.rs",
        find: "u64::from(span_ns) < self.version_bound(level, NodeVersion::COUNT)",
        replace: "true",
    },
    Patch {
        name: "the bound of entry versions is not kept",
        file: "index/src/btree/node.rs",
        find: "u64::from(span_ns) < self.version_bound(level, EntryVersion::COUNT)",
        replace: "true",
    },
    Patch {
        name: "a new root goes back after an unknown CAS if there is a root above it",
        file: "index/src/btree/root.rs",
        find: "if ⟦self.has_been_root(meter, new, &mut budget).await?⟧ {",
        replace: "false",
    },
    Patch {
        name: "a separator is put in although its node begins elsewhere",
        file: "index/src/btree/repair.rs",
        find: "if ⟦!begins⟧ {",
        replace: "false",
    },
];
