//! Mistakes by hand: SMART: nodes that change by CAS, and what leads to them.

use super::Patch;

pub(super) const PATCHES: &[Patch] = &[
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
