//! Mistakes by hand: locks, hand-over, takeovers and windows.

use super::Patch;

pub(super) const PATCHES: &[Patch] = &[
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
