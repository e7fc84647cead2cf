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
            chain.write(sibling.node, bytes..2 * bytes);
        }
        chain.write(node, 0..bytes);",
        replace: "chain.write(node, 0..bytes);
        if together {
            chain.write(sibling.node, bytes..2 * bytes);
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
        find: "doubtful && self.is_leftmost(meter, new, &mut budget).await?",
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
        name: "a leaf goes back after a CAS of unknown outcome (write and CAS in one chain)",
        file: "index/src/smart/new_node.rs",
        find: "if self.has_redirected(meter, redirect, budget).await? {
                        return Ok(self.known(pending, Ok(())));
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
        find: "link != 0 && link != redirect.link.bits()",
        replace: "false",
    },
    Patch {
        name: "a dropped client's new nodes go back without a look",
        file: "index/src/smart/pending.rs",
        find: "self.has_redirected(&meter, redirect, &mut budget).await?",
        replace: "false",
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
        find: "snapshot.fresh || parent == snapshot.holder",
        replace: "true",
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
        name: "another's removal is taken for one's own",
        file: "index/src/smart/write.rs",
        find: "found if ⟦found == removed.bits()⟧",
        replace: "matches!(Link::from_bits(found), Ok(Link::Removed { .. }))",
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
        name: "the next holder is told when the write-back is posted",
        file: "lock/src/held.rs",
        find: "self.depart(meter, chain, PendingRelease { claim, mode, unpublished: self.unpublished });
                ⟦poll_fn(|cx| self.poll_releasing(meter, cx)).await?⟧",
        replace: "{ if mode == UnlockMode::Kept { self.give_back(Some(claim)); }
                poll_fn(|cx| self.poll_releasing(meter, cx)).await? }",
    },
    Patch {
        name: "the next holder is told when the rear WRITE is posted",
        file: "lock/src/held.rs",
        find: "self.depart(meter, chain, pending);
        let buf = ⟦poll_fn(|cx| self.poll_releasing(meter, cx)).await?⟧",
        replace: "{ if mode == UnlockMode::Kept { self.give_back(Some(claim)); }
                poll_fn(|cx| self.poll_releasing(meter, cx)).await? }",
    },
    Patch {
        name: "one WRITE of several lines clears the word, whatever their order",
        file: "lock/src/held.rs",
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

/// Yields the points by hand in that file.
///
/// # Errors
/// If a text does not occur there, or more than once: then the file has changed, and the patch has to.
pub(crate) fn points(file: &str, text: &str) -> Result<Vec<Point>> {
    let mut found = Vec::new();
    for patch in [SHERMAN, CHIME, SMART, LOCKS].into_iter().flatten().filter(|patch| patch.file == file) {
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
