//! Mistakes by hand: merges of the nodes of B+trees, roots that get lower, and blocks of dropped writes.

use super::Patch;

pub(super) const PATCHES: &[Patch] = &[
    Patch {
        name: "a node that is merged is not frozen before",
        file: "index/src/btree/merge.rs",
        find: "⟦self.write_whole(&mut chain, level, freed, marked);⟧
        let frozen = held_right",
        replace: "{ drop(marked); self.write_whole(&mut chain, level, freed, 0..0); }",
    },
    Patch {
        name: "a merged node thaws",
        file: "index/src/btree/merge.rs",
        find: "let marked = ⟦self.format(level).free(&mut right, node)⟧;",
        replace: "self.format(level).thaw(&mut right)",
    },
    Patch {
        name: "the left node keeps its fence in a merge",
        file: "index/src/btree/merge.rs",
        find: "old.united(⟦plan.high.as_deref()⟧, plan.sibling)",
        replace: "Some(&plan.low[..])",
    },
    Patch {
        name: "the left node keeps its sibling in a merge",
        file: "index/src/btree/merge.rs",
        find: "old.united(plan.high.as_deref(), ⟦plan.sibling⟧)",
        replace: "pair.right",
    },
    Patch {
        name: "a merge waits for a lock while it has one",
        file: "index/src/btree/merge.rs",
        find: "let Some((held_right, right)) = ⟦self.try_lock_whole(meter, level, pair.right).await?⟧ else",
        replace: "Some(self.lock_whole(meter, level, pair.right).await?)",
    },
    Patch {
        name: "memory is used again after a merge of unknown outcome",
        file: "index/src/btree/merge.rs",
        find: "a merge may have taken effect, or will\");
                ⟦self.allocator.retire_unsettled(freed, bytes as u64);⟧",
        replace: "self.retire(level, freed, plan.low.clone());",
    },
    Patch {
        name: "a merge does not look at what its parent has behind",
        file: "index/src/btree/merge.rs",
        find: "⟦behind != high⟧ ||",
        replace: "false",
    },
    Patch {
        name: "inner nodes are used again at once",
        file: "index/src/btree/merge.rs",
        find: "⟦self.retire(level, freed, plan.low);⟧",
        replace: "match level {
            0 => self.retire(level, freed, plan.low),
            _ => self.allocator.return_extent(freed, bytes as u64),
        }",
    },
    Patch {
        name: "a merge is not gone on with below",
        file: "index/src/btree/merge.rs",
        find: "is_united_low.then_some(level), ⟦level.checked_sub(1)⟧]",
        replace: "None",
    },
    Patch {
        name: "an inner node names an heir",
        file: "index/src/btree/format.rs",
        find: "mark_freed(image, ⟦if self.level == 0 { heir } else { RemotePtr::NULL }⟧)",
        replace: "heir",
    },
    Patch {
        name: "a leaf names no heir",
        file: "index/src/btree/format.rs",
        find: "if self.level == 0 { ⟦heir⟧ } else { RemotePtr::NULL }",
        replace: "RemotePtr::NULL",
    },
    Patch {
        name: "a frozen node always thaws",
        file: "index/src/btree/freed.rs",
        find: "let written = match ⟦decide(frozen.as_ref().map(|(low, _)| low), low, node, edge)⟧ {",
        replace: "if frozen.is_some() { Fate::Thawed } else { Fate::Left }",
    },
    Patch {
        name: "a frozen node is always freed",
        file: "index/src/btree/freed.rs",
        find: "let frozen = format.low_of(&image).filter(|(_, rejection)| ⟦*rejection == Rejection::Frozen⟧);",
        replace: "{ let _ = rejection; true }",
    },
    Patch {
        name: "a freed root stays in the cache",
        file: "index/src/btree/freed.rs",
        find: "// The cache believes in no lower root.
            ⟦self.cache().clear();⟧",
        replace: "",
    },
    Patch {
        name: "the node before a freed one is taken for the last one",
        file: "index/src/btree/freed.rs",
        find: "Some((before, Rejection::Freed)) if ⟦before < low⟧ => low = before",
        replace: "false",
    },
    Patch {
        name: "a freed node's separator stays",
        file: "index/src/btree/freed.rs",
        find: "Some((low, Rejection::Freed)) if ⟦!low.is_empty()⟧ =>",
        replace: "false",
    },
    Patch {
        name: "a frozen root is settled without asking what leads there",
        file: "index/src/btree/lower.rs",
        find: "let marked = if ⟦self.first_of(meter, level, budget).await? == Some(node)⟧ {",
        replace: "true",
    },
    Patch {
        name: "a root is not frozen before another one is",
        file: "index/src/btree/lower.rs",
        find: "⟦self.write_whole(&mut chain, root.level, root.ptr, frozen);⟧",
        replace: "{ drop(frozen); self.write_whole(&mut chain, root.level, root.ptr, 0..0); }",
    },
    Patch {
        name: "a CAS of unknown outcome has not made the root lower",
        file: "index/src/btree/lower.rs",
        find: "|| ⟦is_doubtful && self.first_of(meter, root.level, &mut budget).await? != Some(root.ptr)⟧",
        replace: "is_doubtful && false",
    },
    Patch {
        name: "what was a root is used again at once",
        file: "index/src/btree/lower.rs",
        find: "(true, Ok(_)) => ⟦self.allocator.retire_cached(root.ptr, bytes)⟧,",
        replace: "self.allocator.return_extent(root.ptr, bytes)",
    },
    Patch {
        name: "the cache keeps the root that has become lower",
        file: "index/src/btree/lower.rs",
        find: "// It believes in no lower root.
                ⟦self.cache().clear();⟧",
        replace: "",
    },
    Patch {
        name: "a root that was freed since has never been one",
        file: "index/src/btree/root.rs",
        find: "Ok(⟦matches!(kind_of(&line), Err(Rejection::Frozen | Rejection::Freed))⟧)",
        replace: "{ drop(line); false }",
    },
    Patch {
        name: "the parents of inner nodes are not asked",
        file: "index/src/btree/retired.rs",
        find: "let found = ⟦self.take_out(&Meter::default(), &separator, &mut self.budget()).await⟧;",
        replace: "match level {
                0 => self.take_out(&Meter::default(), &separator, &mut self.budget()).await,
                _ => Ok(TakenOut::Before),
            }",
    },
    Patch {
        name: "the parents of leaves are not asked",
        file: "index/src/btree/retired.rs",
        find: "let found = self.take_out(&Meter::default(), ⟦&separator⟧, &mut self.budget()).await;",
        replace: "&match level {
                0 => Separator { child: RemotePtr::NULL, ..separator.clone() },
                _ => separator.clone(),
            }",
    },
    Patch {
        name: "a leaf of CHIME waits for no flush",
        file: "index/src/btree/retired.rs",
        find: "Ok(TakenOut::Before) if ⟦level > 0 || A::Leaf::TOLD_BY_ADDRESS⟧ =>",
        replace: "level > 0",
    },
    Patch {
        name: "a leaf of CHIME without blocks waits for no flush",
        file: "index/src/btree/retired.rs",
        find: "Ok(TakenOut::Before) if level > 0 || ⟦A::Leaf::TOLD_BY_ADDRESS⟧ =>",
        replace: "A::Leaf::TOLD_BY_ADDRESS && self.leaf().blocks().is_some()",
    },
    Patch {
        name: "inner nodes wait for no flush",
        file: "index/src/btree/retired.rs",
        find: "Ok(TakenOut::Before) if ⟦level > 0⟧ ||",
        replace: "false",
    },
    Patch {
        name: "merged nodes wait for no epoch",
        file: "index/src/btree/retired.rs",
        find: "oldest_if(|since| ⟦self.verbs.pins().is_over(since)⟧) else",
        replace: "since > 0",
    },
    Patch {
        name: "a leaf that is made again begins with the first version",
        file: "index/src/btree/retired.rs",
        find: "again.version = ⟦version_behind(&image)⟧;",
        replace: "NodeVersion::default()",
    },
    Patch {
        name: "a leaf is made where one is",
        file: "index/src/btree/retired.rs",
        find: "image.filter(⟦is_gone⟧) {",
        replace: "|image: &Buf| { let _ = is_gone(image); true }",
    },
    Patch {
        name: "a block of a dropped write is free at once",
        file: "index/src/chime/block.rs",
        find: "if ⟦self.is_out⟧ {
            return tree.allocator.retire",
        replace: "true",
    },
    Patch {
        name: "a block of a dropped write is lost",
        file: "index/src/chime/block.rs",
        find: "Ok(()) => ⟦tree.allocator.retire(block, bytes)⟧,",
        replace: "tree.allocator.retire_unsettled(block, bytes)",
    },
    Patch {
        name: "no remove waits for merges",
        file: "index/src/shell/merging.rs",
        find: "⟦is_awaited.then_some(end)⟧",
        replace: "{ drop(end); None }",
    },
    Patch {
        name: "an empty leaf is not looked at again",
        file: "index/src/shell/merging.rs",
        find: "while ⟦matches!(merged, Ok(false)) && merging(&tree).is_called_again(node)⟧ {",
        replace: "false",
    },
    Patch {
        name: "a frozen node that begins elsewhere is settled",
        file: "index/src/shell/merging.rs",
        find: "_ if ⟦frozen_low != Some(low)⟧ => Fate::Left",
        replace: "frozen_low.is_none()",
    },
];
