//! Mistakes by hand: Dolphin: leaves whose locks are shared, and inner nodes that only steer.

use super::Patch;

pub(super) const PATCHES: &[Patch] = &[
    Patch {
        name: "a dropped client's root is lost if another one was first",
        file: "index/src/dolphin/root.rs",
        find: "Ok(false) => ⟦drop(NewNodes::of(&tree, nodes))⟧,",
        replace: "drop(nodes)",
    },
    Patch {
        name: "a root that is there by its first CAS is taken for another's",
        file: "index/src/dolphin/root.rs",
        find: "[0, word].contains(&done.atomics[0])",
        replace: "done.atomics[0] == 0",
    },
    Patch {
        name: "an inner node that has moved is never retired",
        file: "index/src/dolphin/put_separator.rs",
        find: "leaving.retire();",
        replace: "std::mem::forget(leaving);",
    },
    Patch {
        name: "an insert is visible before its value",
        file: "index/src/layout/range_leaf/patch.rs",
        find: "⟦patch.push(first..first + WORD_BYTES);⟧
        Some(patch)",
        replace: "patch.insert(0, first..first + WORD_BYTES);",
    },
    Patch {
        name: "a removed key comes back without a write of the whole leaf",
        file: "index/src/layout/range_leaf/patch.rs",
        find: "let is_vacant = ⟦State::of(image[self.key_at(slot)]) == State::Vacant⟧;",
        replace: "State::of(image[self.key_at(slot)]) != State::Present",
    },
    Patch {
        name: "a removed key's slot is another one's without a write of the whole leaf",
        file: "index/src/dolphin/leaf_plan.rs",
        find: "⟦return Ok(LeafPlan::Compact(old, pairs));⟧",
        replace: "{
            let view = layout.parse(image)?;
            let is_removed = |slot: &usize| view.state(*slot) == crate::layout::range_leaf::State::Removed;
            let slot = (0..layout.slots()).find(is_removed).expect(\"there is room\");
            image[layout.key_at(slot)] &= 0x3f;
            return Ok(match layout.write_pair(image, slot, key, op.value()) {
                Some(patch) => LeafPlan::Patch(patch, false),
                None => LeafPlan::Compact(old, pairs),
            });
        }",
    },
    Patch {
        name: "an insert looks for its key before it has the lock",
        file: "index/src/dolphin/write.rs",
        find: "let (mut held, mut image) = ⟦self.lock_leaf(meter, node, !is_removal).await?⟧;",
        replace: "{
            let before = self.read_leaf(meter, place.leaf, budget).await?;
            (self.lock_leaf(meter, node, !is_removal).await?.0, before)
        }",
    },
    Patch {
        name: "values do not move with their keys",
        file: "index/src/dolphin/write.rs",
        find: "build(layout, &mut buf, &header, right);",
        replace: "let keys = right.iter().map(|(key, _)| (key.clone(), Bytes::new()));
        build(layout, &mut buf, &header, &keys.collect());",
    },
    Patch {
        name: "lines of several versions are believed",
        file: "index/src/layout/range_leaf/view.rs",
        find: "first == RangeLayout::TORN || ⟦lines.any(|line| line != first)⟧",
        replace: "false",
    },
    Patch {
        name: "a leaf that is being written whole is believed",
        file: "index/src/layout/range_leaf/view.rs",
        find: "⟦first == RangeLayout::TORN⟧ || lines",
        replace: "false",
    },
    Patch {
        name: "a leaf answers for keys beyond it",
        file: "index/src/layout/range_leaf/view.rs",
        find: "if ⟦self.high().is_some_and(|high| self.order(high, key).is_le())⟧ {",
        replace: "false",
    },
    Patch {
        name: "a slow READ is believed",
        file: "index/src/dolphin/lookup.rs",
        find: "u64::from(read.span_ns) >= self.version_bound()",
        replace: "false",
    },
    Patch {
        name: "values are read before keys",
        file: "index/src/dolphin/lookup.rs",
        find: "chain.read(node, keys.clone());
        if keys.end < end {
            chain.read(node.add(keys.end as u64), keys.end..end);
        }",
        replace: "if keys.end < end {
            chain.read(node.add(keys.end as u64), keys.end..end);
        }
        chain.read(node, keys.clone());",
    },
    Patch {
        name: "a value of several lines is written as one of a line",
        file: "index/src/layout/range_leaf/mod.rs",
        find: "self.value_words() <= LINE_WORDS",
        replace: "true",
    },
    Patch {
        name: "a dropped share is not cleaned up",
        file: "lock/src/shared/guard.rs",
        find: "sharing.table().verbs.defer(clean_up(Rc::clone(sharing), task, self.lock, self.bit, left));",
        replace: "drop((task, left));",
    },
    Patch {
        name: "no error names a compute node that shares a lock and is dead",
        file: "lock/src/shared/mod.rs",
        find: "match ⟦other⟧ {
            Some(lane)",
        replace: "other.filter(|_| false)",
    },
    Patch {
        name: "a release of unknown outcome has taken effect",
        file: "lock/src/shared/guard.rs",
        find: "settle(Rc::clone(&self.sharing), self.lock, self.bit, ⟦Own::Unknown⟧)",
        replace: "Own::Clear",
    },
    Patch {
        name: "a dropped release of unknown outcome has taken effect",
        file: "lock/src/shared/guard.rs",
        find: "then: Own::Clear, failed: ⟦Own::Unknown⟧ };
            return",
        replace: "Own::Clear",
    },
    Patch {
        name: "a bit of unknown outcome is taken for clear",
        file: "lock/src/shared/entry.rs",
        find: "Move::Enter => (Own::Set, ⟦Own::Unknown⟧),",
        replace: "Own::Clear",
    },
    Patch {
        name: "a sharer stays that has found the lock taken",
        file: "lock/src/shared/entry.rs",
        find: "if ⟦next == Move::Enter && seen.word == FREE⟧ {",
        replace: "next == Move::Enter",
    },
    Patch {
        name: "a client has the lock alone without those that share it having left",
        file: "lock/src/shared/alone.rs",
        find: "let Some(lane) = ⟦self.sharer(held, &done, parts)⟧ else",
        replace: "None::<u16>",
    },
    Patch {
        name: "what was read before the last sharer has left is believed",
        file: "lock/src/shared/alone.rs",
        find: "⟦self.await_sharers(meter, held, done.into_buf(), parts).await⟧",
        replace: "{
            let bytes = parts.iter().map(|part| part.end).max().unwrap_or(0);
            let scratch = self.table().verbs.lease(bytes);
            self.await_sharers(meter, held, scratch, parts).await?;
            Ok(done)
        }",
    },
    Patch {
        name: "no client goes to the right, and all go down again",
        file: "index/src/dolphin/descend.rs",
        find: "from.is_fresh, ⟦steps⟧) {",
        replace: "2",
    },
    Patch {
        name: "below the slot before a key's the way goes on by the key",
        file: "index/src/dolphin/descend.rs",
        find: "is_before |= !slot.is_of(symbol);
                    at = below;",
        replace: "at = below;",
    },
    Patch {
        name: "only the last node above a wrong leaf is forgotten",
        file: "index/src/dolphin/descend.rs",
        find: "self.reader().forget_before(key);",
        replace: "",
    },
    Patch {
        name: "a separator is given up where the leaf before it has no slot yet",
        file: "index/src/dolphin/separators.rs",
        find: "inner => ⟦inner.map(Below::Last)⟧,
        };
        below.map_or",
        replace: "inner.and(None)",
    },
    Patch {
        name: "the left leaf is taken for the last one before",
        file: "index/src/dolphin/put_separator.rs",
        find: "⟦self.last_leaf(meter, at.below(inner.position, slot), budget).await?⟧",
        replace: "{ let _ = slot; separator.left }",
    },
    Patch {
        name: "ends of prefixes in a new leaf lead to the left one for good",
        file: "index/src/dolphin/put_separator.rs",
        find: "if let Some(fork) = fork {
            self.go_down(meter, separator, Way::High, (fork, nodes), budget).await?;
        }",
        replace: "",
    },
    Patch {
        name: "a dropped split's separator is put in although the split has not taken effect",
        file: "index/src/dolphin/put_separator.rs",
        find: "Ok(Some(end)) if ⟦end <= separator.key⟧ => {",
        replace: "end <= end",
    },
    Patch {
        name: "a leaf that is asked for its end is waited for",
        file: "index/src/dolphin/put_separator.rs",
        find: "let read = ⟦self.fetch_leaf(meter, node, budget).await?⟧;
        let is_slow",
        replace: "{
            self.read_leaf(meter, separator.right, budget).await?;
            self.fetch_leaf(meter, node, budget).await?
        }",
    },
    Patch {
        name: "a split's right leaf goes back after a release of unknown outcome",
        file: "index/src/dolphin/write.rs",
        find: "\"a split may have taken effect, or will\");
            ⟦return Err(error.into());⟧",
        replace: "self.allocator.return_extent(new.ptr(), layout.node_bytes() as u64);
            return Err(error.into());",
    },
];
