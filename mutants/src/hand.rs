//! Mistakes that no operator makes, by hand: those of a person who almost understands the protocol.

use crate::Result;
use crate::points::Point;

/// A text that occurs once in its file, of which the part between the marks, or all, is replaced. What is replaced is a
/// statement, as is what stands there instead, if it ends with `;` or `}`, and an expression otherwise.
struct Patch {
    name: &'static str,
    file: &'static str,
    find: &'static str,
    replace: &'static str,
}

/// Around what is replaced, where the text that is looked for has more.
const MARKS: [char; 2] = ['⟦', '⟧'];

const SHERMAN: &[Patch] = &[
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
        find: "doubtful && self.has_been_root(meter, new, &mut budget).await?",
        replace: "false",
    },
    Patch {
        name: "a separator is put in although its node begins elsewhere",
        file: "index/src/btree/repair.rs",
        find: "if ⟦!begins⟧ {",
        replace: "false",
    },
];

const CHIME: &[Patch] = &[
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

const SMART: &[Patch] = &[
    Patch {
        name: "a janitor asks once what became of a CAS",
        file: "index/src/shell/nodes.rs",
        find: "⟦(0..ATTEMPTS_MAX)⟧.map",
        replace: "(0..ATTEMPTS_MAX.saturating_sub(64))",
    },
    Patch {
        name: "a leaf goes back after a CAS of unknown outcome (write and CAS in one chain)",
        file: "index/src/smart/new_node.rs",
        find: "if self.has_redirected(meter, redirect, budget).await? {
                        return Ok(self.known(meter, pending, Ok(())));
                    }",
        replace: "",
    },
    Patch {
        name: "a node goes back after a CAS of unknown outcome",
        file: "index/src/smart/new_node.rs",
        find: "if self.has_redirected(meter, redirect, budget).await? {
                        return Ok(Ok(()));
                    }",
        replace: "",
    },
    Patch {
        name: "a CAS of unknown outcome had none if its word has changed since",
        file: "index/src/smart/new_node.rs",
        find: "link != redirect.before && link != redirect.written",
        replace: "false",
    },
    Patch {
        name: "a dropped client's new nodes go back without a look",
        file: "index/src/smart/pending.rs",
        find: "redirected.await?",
        replace: "{ drop(redirected); false }",
    },
    Patch {
        name: "nodes of a dropped client whose link is not given back are lost",
        file: "index/src/smart/pending.rs",
        find: "chain = budget.post_again(&meter, old.ptr(), failed)?;
                }
                ⟦Ok(())⟧",
        replace: "if budget.spent() == 0 { Ok(()) } else { std::future::pending().await }",
    },
    Patch {
        name: "a leaf of a dropped client is not retired when another takes its place",
        file: "index/src/smart/pending.rs",
        find: "⟦self.retire_all(&meter, left.old);⟧
                return Ok(());",
        replace: "",
    },
    Patch {
        name: "a dropped removal retires the leaf if its link has changed",
        file: "index/src/smart/pending.rs",
        find: "link == leaf.link.bits()",
        replace: "!matches!(Link::from_bits(link), Ok(Link::Live(_)))",
    },
    Patch {
        name: "a removal that another client was before retires the leaf",
        file: "index/src/smart/write.rs",
        find: "removal.settle(meter, found == link.bits());",
        replace: "removal.settle(meter, !matches!(Link::from_bits(found), Ok(Link::Live(_))) || found == link.bits());",
    },
    Patch {
        name: "a client retires nodes that another one has taken out",
        file: "index/src/smart/replace.rs",
        find: "unsettled.settle(false);",
        replace: "unsettled.settle(Slot::from_bits(done.atomics[0]) == slot);",
    },
    Patch {
        name: "a link gets its value back in front of the CAS that changed it",
        file: "index/src/smart/pending.rs",
        find: "chain.fence().cas(old.ptr(), link.bits(), before.bits());",
        replace: "chain.cas(old.ptr(), link.bits(), before.bits());",
    },
    Patch {
        name: "a node is frozen when its claimed slots are",
        file: "index/src/smart/replace.rs",
        find: "live_link.is_none() && slots.iter().all(|slot| slot.is_frozen())",
        replace: "live_link.is_none() && slots.iter().filter(|slot| slot.is_claimed()).all(|slot| slot.is_frozen())",
    },
    Patch {
        name: "a slot is redirected before it is known that the link is",
        file: "index/src/smart/split.rs",
        find: "!self.until_linked(meter, &split, new_link, linked, budget).await?",
        replace: "{ drop(linked); false }",
    },
    Patch {
        name: "a prefix mismatch is certain by any snapshot",
        file: "index/src/smart/decide.rs",
        find: "snapshot.fresh || view.link == Link::Live(snapshot.holder)",
        replace: "true",
    },
    Patch {
        name: "another key's leaf is believed by any snapshot",
        file: "index/src/smart/decide.rs",
        find: "parent == snapshot.holder && is_below()",
        replace: "true",
    },
    Patch {
        name: "a leaf that is new is live before it is in the tree",
        file: "index/src/smart/new_node.rs",
        find: "Before::Node(_) => ⟦Link::New⟧,",
        replace: "live",
    },
    Patch {
        name: "a leaf of another slot of the same node is believed by an old snapshot",
        file: "index/src/smart/decide.rs",
        find: "view.begins_as(key, snapshot.next)",
        replace: "true",
    },
    Patch {
        name: "a leaf is retired when the CAS of its slot has ended, whatever it found",
        file: "index/src/smart/out.rs",
        find: "by_us || tree.comes_out(&leaving.leaf).await",
        replace: "{ _ = by_us; true }",
    },
    Patch {
        name: "a scan goes on with slots of an earlier epoch",
        file: "index/src/smart/scan.rs",
        find: "self.since != known",
        replace: "false",
    },
    Patch {
        name: "a frozen node is believed by any snapshot",
        file: "index/src/smart/decide.rs",
        find: "(writes || !snapshot.fresh)",
        replace: "writes",
    },
    Patch {
        name: "a slot is claimed that the node's type does not cover",
        file: "index/src/smart/insert.rs",
        find: "⟦self.cover_slot(meter, &mut snapshot, budget).await?;⟧
        let class",
        replace: "",
    },
    Patch {
        name: "a client that came by a copy of a node tries the next slot without reading it",
        file: "index/src/smart/insert.rs",
        find: "let next = match ⟦snapshot.fresh⟧ {",
        replace: "true",
    },
    Patch {
        name: "a cache keeps what it has when all are emptied",
        file: "index/src/smart/mod.rs",
        find: "⟦state.cache.clear()⟧);",
        replace: "()",
    },
    Patch {
        name: "inner nodes are used again while caches lead there",
        file: "index/src/smart/replace.rs",
        find: "self.allocator.retire_cached(node, bytes)",
        replace: "self.allocator.retire(node, bytes)",
    },
    Patch {
        name: "another's removal is taken for one's own",
        file: "index/src/smart/write.rs",
        find: "found if ⟦found == removed.bits()⟧",
        replace: "matches!(Link::from_bits(found), Ok(Link::Removed { .. }))",
    },
];

const DOLPHIN: &[Patch] = &[
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

const LOCKS: &[Patch] = &[
    Patch {
        name: "a release is redone without a look at the word",
        file: "lock/src/janitor.rs",
        find: "found != pending.claim.word.to_bits()",
        replace: "false",
    },
    Patch {
        name: "a new node is redone without a look whether others have reached it",
        file: "lock/src/janitor.rs",
        find: "lines.any(|(found, written)| found == written)",
        replace: "false",
    },
    Patch {
        name: "the janitor's unlock may overtake the holder's atomics",
        file: "lock/src/janitor.rs",
        find: "table.add_unlock(⟦chain.read(lock, 0..WORD_BYTES).fence()⟧, lock, claim);",
        replace: "&mut chain",
    },
    Patch {
        name: "a lock whose CAS has an unknown outcome is not cleared",
        file: "lock/src/janitor.rs",
        find: "Err(_) => ⟦clear_if_ours(table, lock, claim).await⟧,
        },
        Global::Releasing",
        replace: "Settled::Cleared",
    },
    Patch {
        name: "who is dead is asked once",
        file: "lock/src/deaths.rs",
        find: "if now_ns < table.deaths.ask_from_ns.⟦get()⟧ {",
        replace: "replace(u64::MAX)",
    },
    Patch {
        name: "a taker looks for no intent",
        file: "lock/src/recovery.rs",
        find: "match ⟦found⟧ {\n        Some((Found::NotRecorded",
        replace: "found.filter(|_| false)",
    },
    Patch {
        name: "a lock without an intent is freed, and its node not mended",
        file: "lock/src/recovery.rs",
        find: "intents.mending().filter(|_| ⟦table.carries(lock)⟧)",
        replace: "false",
    },
    Patch {
        name: "an entry of which a part has come stays",
        file: "index/src/layout/hopscotch/mend.rs",
        find: "if ⟦!self.entry_is_of(image, slot, version)⟧ {",
        replace: "false",
    },
    Patch {
        name: "an entry that goes gets the next version of its head",
        file: "index/src/layout/hopscotch/mend.rs",
        find: "let version = ⟦EntryVersion::after(of_lines.chain([EntryVersion::from_bits(head as u8)]))⟧;",
        replace: "{ drop(of_lines); EntryVersion::from_bits(head as u8).next() }",
    },
    Patch {
        name: "keys that hop are not written first",
        file: "index/src/chime/write.rs",
        find: "patch.insert_many(0, ⟦copies⟧);",
        replace: "copies.into_iter().take(0)",
    },
    Patch {
        name: "keys that hop are written first though others change in their words",
        file: "index/src/layout/hopscotch/patch.rs",
        find: "if ⟦later.any(|slot| bytes(slot).start < copy.end && copy.start < bytes(slot).end)⟧ {",
        replace: "later.any(|_| false)",
    },
    Patch {
        name: "a key that has hopped stays in both slots",
        file: "index/src/layout/hopscotch/mend.rs",
        find: "let is_copy = |other: &usize| ⟦*other > slot && self.has_pair_of(image, *other, slot)⟧;",
        replace: "*other > slot && false",
    },
    Patch {
        name: "an update is not recorded",
        file: "index/src/chime/write.rs",
        find: "return Ok(⟦Plan::Patch(layout.update(image, slot, value), slot)⟧);",
        replace: "Plan::Mended(layout.update(image, slot, value), slot)",
    },
    Patch {
        name: "hop bits that a dead writer has left stay",
        file: "index/src/layout/hopscotch/mend.rs",
        find: "if ⟦bits == self.hops(image, home)⟧ {",
        replace: "true",
    },
    Patch {
        name: "vacancies and sum that a dead writer has left stay",
        file: "index/src/layout/hopscotch/mend.rs",
        find: "if ⟦(vacancy, sum) == (self.vacancy(image), self.sum(image))⟧ {",
        replace: "true",
    },
    Patch {
        name: "a home's entry gets a version for its hop bits",
        file: "index/src/layout/hopscotch/patch.rs",
        find: "⟦changed.sort_unstable();⟧\n        changed.dedup();",
        replace: "changed.extend_from_slice(if self.has_hops() { homes } else { &[] }); changed.sort_unstable();",
    },
    Patch {
        name: "a dead node's page is used again while its intent is needed",
        file: "lock/src/intents/mod.rs",
        find: "⟦found == word⟧ || found.tag() == 0",
        replace: "false",
    },
    Patch {
        name: "an intent is not needed while another index has the lock over its word",
        file: "lock/src/intents/mod.rs",
        find: "found == word || ⟦found.tag() == 0⟧",
        replace: "false",
    },
    Patch {
        name: "a taker leaves no copy of the intent",
        file: "lock/src/recovery.rs",
        find: "if let Some(slot) = ⟦&slot⟧ {\n        chain.write(",
        replace: "slot.as_ref().filter(|_| false)",
    },
    Patch {
        name: "an intent stays when its lock is passed on",
        file: "lock/src/held/recording.rs",
        find: "if ⟦pending.mode != UnlockMode::Unlocked⟧ {\n            chain.write_word(self.promised_slot()",
        replace: "pending.mode != UnlockMode::Unlocked && false",
    },
    Patch {
        name: "what goes over a line's end is not recorded",
        file: "lock/src/held/recording.rs",
        find: "is_some_and(|patch| ⟦!patch.crosses_lines()⟧)",
        replace: "true || !patch.crosses_lines()",
    },
    Patch {
        name: "all bits are taken away, and not only those of the dead",
        file: "lock/src/shared/absent.rs",
        find: "owner.is_some_and(|word| ⟦word.keeps_intents() && table.deaths.contain(word.owner())⟧)",
        replace: "word.keeps_intents() || table.deaths.contain(word.owner())",
    },
    Patch {
        name: "the bits of the dead stay",
        file: "lock/src/shared/absent.rs",
        find: "let was = cas(&table.verbs, lock.add(at as u64), word, ⟦word & !dead⟧).await?;",
        replace: "word",
    },
    Patch {
        name: "a word promises an intent where there is no slot for one",
        file: "lock/src/held/recording.rs",
        find: "if ⟦self.slot.is_some()⟧ { word.with_intents() } else { word }",
        replace: "self.table.intents.is_some()",
    },
    Patch {
        name: "a lock is taken over whose owner may live",
        file: "lock/src/table.rs",
        find: "match ⟦self.deaths.contain(word.owner())⟧ {",
        replace: "true",
    },
    Patch {
        name: "the next holder is told when the write-back is posted",
        file: "lock/src/held.rs",
        find: "self.depart(meter, chain, pending);
                without_intent(⟦poll_fn(|cx| self.poll_releasing(meter, cx)).await?⟧",
        replace: "{ if mode == UnlockMode::Kept { self.give_back(Some(claim)); }
                poll_fn(|cx| self.poll_releasing(meter, cx)).await? }",
    },
    Patch {
        name: "the next holder is told when the rear WRITE is posted",
        file: "lock/src/held/rear.rs",
        find: "data, None, pending), pending),
        }
        let buf = without_intent(⟦poll_fn(|cx| self.poll_releasing(meter, cx)).await?⟧",
        replace: "{ if mode == UnlockMode::Kept { self.give_back(Some(claim)); }
                poll_fn(|cx| self.poll_releasing(meter, cx)).await? }",
    },
    Patch {
        name: "one WRITE of several lines clears the word, whatever their order",
        file: "lock/src/held/rear.rs",
        find: "is_one_line || self.table.verbs.capabilities().in_order_write",
        replace: "true",
    },
    Patch {
        name: "after a CAS of unknown outcome another word is tried",
        file: "lock/src/held/taking.rs",
        find: "Global::Unknown { claim } => ⟦claim⟧,
            _ =>",
        replace: "Claim { word: self.table.word(), vacant: self.vacant }",
    },
    Patch {
        name: "the bound of hand-overs is not kept",
        file: "lock/src/handover.rs",
        find: "hinted && depth < handovers_max",
        replace: "hinted && depth < u8::MAX && handovers_max > 0",
    },
    Patch {
        name: "a lock that comes too late is kept",
        file: "lock/src/table.rs",
        find: "self.tell_home(message.lock, ticket, declined(message.lock, grant));",
        replace: "",
    },
    Patch {
        name: "a waiting client joins the window that is open",
        file: "lock/src/window/home.rs",
        find: "joined: ⟦false⟧ });",
        replace: "true",
    },
    Patch {
        name: "a value of an earlier window is taken for this one's",
        file: "lock/src/window/table.rs",
        find: "std::mem::replace(sent, ending) == ending",
        replace: "std::mem::replace(sent, ending) > 0",
    },
];

fn patches() -> impl Iterator<Item = &'static Patch> {
    [SHERMAN, CHIME, SMART, DOLPHIN, LOCKS].into_iter().flatten()
}

/// Yields the points by hand in that file.
///
/// # Errors
/// If a text does not occur there, or more than once: then the file has changed, and the patch has to.
pub(crate) fn points(file: &str, text: &str) -> Result<Vec<Point>> {
    let mut found = Vec::new();
    for patch in patches().filter(|patch| patch.file == file) {
        let whole = patch.find.replace(MARKS, "");
        let mut places = text.match_indices(&whole);
        let (Some((at, _)), None) = (places.next(), places.next()) else {
            return Err(format!("{file} has not once what \"{}\" changes:\n{whole}", patch.name).into());
        };
        let (before, replaced) = match patch.find.split_once(MARKS[0]) {
            Some((before, rest)) => {
                (before, rest.split_once(MARKS[1]).map_or(rest, |(replaced, _)| replaced))
            }
            None => ("", patch.find),
        };
        let start = at + before.len();
        found.push(Point {
            range: start..start + replaced.len(),
            line: text[..start].matches('\n').count() + 1,
            function: String::new(),
            operator: format!("by hand: {}", patch.name),
            mutated: patch.replace.to_owned(),
            is_statement: replaced.ends_with([';', '}']),
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_text_is_in_its_file_once() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for patch in patches() {
            let text = std::fs::read_to_string(repository.join(patch.file)).expect(patch.file);
            let found = points(patch.file, &text).unwrap_or_else(|error| panic!("{error}"));
            assert!(!found.is_empty());
        }
    }
}
