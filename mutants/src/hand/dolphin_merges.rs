//! Mistakes by hand: merges of Dolphin's leaves, and what is made in their memory.

use super::Patch;

pub(super) const PATCHES: &[Patch] = &[
    Patch {
        name: "a leaf that is merged is not frozen before",
        file: "index/src/dolphin/merge.rs",
        find: "self.write_word(meter, node, ⟦layout.set_standing(&mut image_right, Standing::Frozen)⟧).await?;",
        replace: "{
                let word = u64::from_le_bytes(image_right[..8].try_into().expect(\"eight bytes\"));
                layout.set_standing(&mut image_right, Standing::Frozen);
                word
            }",
    },
    Patch {
        name: "the left leaf keeps its bound in a merge",
        file: "index/src/dolphin/merge.rs",
        find: "RangeHeader { next: right.next(), high: ⟦right.high.as_deref()⟧, ..left.whole() }",
        replace: "left.high.as_deref()",
    },
    Patch {
        name: "a merged leaf is used again at once",
        file: "index/src/dolphin/merge.rs",
        find: "Ok(word) => ⟦self.allocator.retire_of_kind(node, bytes, word)⟧,",
        replace: "{ let _ = word; self.allocator.return_of_kind(node, bytes) }",
    },
    Patch {
        name: "memory is used again after a merge of unknown outcome",
        file: "index/src/dolphin/merge.rs",
        find: "a merge may have taken effect, or will\");
            ⟦self.allocator.retire_unsettled(node, layout.node_bytes() as u64);⟧",
        replace: "self.allocator.retire_of_kind(node, layout.node_bytes() as u64, 0);",
    },
    Patch {
        name: "a merge waits for a lock while it has one",
        file: "index/src/dolphin/merge.rs",
        find: "let Some((held_right, image_right)) = ⟦self.try_lock_leaf(meter, right.ptr()).await?⟧ else",
        replace: "Some(self.lock_leaf(meter, right.ptr(), true).await?)",
    },
    Patch {
        name: "slots lead to a merged leaf for good",
        file: "index/src/dolphin/merge.rs",
        find: "Ok(⟦self.lead_past_merged(meter, (&right.low, right.high.as_ref()), (freed, at)).await?⟧)",
        replace: "{ let _ = (&right.low, &right.high); }",
    },
    Patch {
        name: "a leaf of another first byte is believed",
        file: "index/src/dolphin/freed.rs",
        find: "let may_lead = found != RangeFound::Before && ⟦low.first() == key.first()⟧;",
        replace: "true",
    },
    Patch {
        name: "slots are led on that are before the leaf",
        file: "index/src/dolphin/freed.rs",
        find: "let behind = self.seen.into_iter().filter(|led| ⟦low <= led.path⟧);",
        replace: "{ let _ = led; true }",
    },
    Patch {
        name: "a leaf that is made again lives before it is linked",
        file: "index/src/dolphin/reused.rs",
        find: "⟦layout.set_standing(&mut image, Standing::Frozen);⟧
        let mut chain",
        replace: "",
    },
    Patch {
        name: "a leaf that is made again begins with the first version",
        file: "index/src/dolphin/reused.rs",
        find: "⟦version_behind(&image)⟧",
        replace: "NodeVersion::default()",
    },
    Patch {
        name: "a leaf is made where one is",
        file: "index/src/dolphin/reused.rs",
        find: "let is_free = ⟦self.leaf().parse(&image).err().is_some_and(is_gone)⟧;",
        replace: "true",
    },
];
