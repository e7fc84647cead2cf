//! Mistakes by hand: CHIME: its leaves, and the blocks of its long pairs.

use super::Patch;

pub(super) const PATCHES: &[Patch] = &[
    Patch {
        name: "a block that a pair leaves is lost",
        file: "index/src/chime/write.rs",
        find: "before.into_iter().for_each(OldBlock::retire);",
        replace: "match op {
            WriteOp::Remove => before.into_iter().for_each(OldBlock::retire),
            _ => std::mem::forget(before),
        }",
    },
    Patch {
        name: "an absence needs no right hop bits",
        file: "index/src/layout/hopscotch/lookup.rs",
        find: "(seen.found.is_some() || ⟦self.bits_are_of_keys(image, home)?⟧)",
        replace: "true",
    },
    Patch {
        name: "entries of other versions of the node than the replica's are believed",
        file: "index/src/layout/hopscotch/lookup.rs",
        find: "let whole = ⟦self.entry_is_of(image, slot, version)⟧;",
        replace: "self.entry_is_of(image, slot, ShortVersion((self.head(image, slot) >> 8) as u8))",
    },
    Patch {
        name: "a leaf's sibling is not compared with the parent's",
        file: "index/src/chime/lookup.rs",
        find: "None if ⟦next != Some(sibling)⟧ =>",
        replace: "false",
    },
    Patch {
        name: "a put takes the first vacancy, and does not look for its key behind it",
        file: "index/src/chime/write.rs",
        find: "(None, _) => ⟦Some(found.slot)⟧,",
        replace: "{
                let (ring, home) = (layout.ring(), layout.home(key));
                let nearer = (0..ring.reach).map(|steps| ring.ahead(home, steps));
                let mut nearer = nearer.take_while(|slot| *slot != found.slot);
                let is_hidden = matches!(op, WriteOp::Put(_)) && nearer.any(|slot| layout.is_vacant(image, slot));
                (!is_hidden).then_some(found.slot)
            }",
    },
    Patch {
        name: "a slow READ proves that a key is absent",
        file: "index/src/chime/lookup.rs",
        find: "let in_time = ⟦noticed(WRITES_THAT_HIDE)⟧;",
        replace: "true",
    },
    Patch {
        name: "one interval more is allowed than versions vouch for",
        file: "index/src/btree/node.rs",
        find: "wrap_ns(⟦writes⟧, self.verbs",
        replace: "writes + 1",
    },
    Patch {
        name: "two slow READs prove an absence however far they are apart",
        file: "index/src/chime/lookup.rs",
        find: "now_ns - self.since_ns < bound_ns",
        replace: "true",
    },
    Patch {
        name: "a scan does not compare the keys of a leaf with their sum",
        file: "index/src/chime/leaf.rs",
        find: "self.check_sum()?;
        HopView::copy_sorted",
        replace: "HopView::copy_sorted",
    },
    Patch {
        name: "a hotspot is believed whatever key is in it",
        file: "index/src/layout/hopscotch/lookup.rs",
        find: "if ⟦!self.is_of(image, slot, key, Self::hash(key))?⟧ {
            return Ok(None);",
        replace: "false",
    },
];
