//! A mutant as it is listed, the files that get some, and what the swarm says of one.

use serde::{Deserialize, Serialize};

/// Behind the name of an index: its swarm with takeovers.
pub(crate) const TAKEOVER: &str = "+takeover";
/// The swarms that run code of takeovers, and nothing else of which the others do not.
pub(crate) const WITH_TAKEOVER: [&str; 4] =
    ["sherman+takeover", "chime+takeover", "smart+takeover", "dolphin+takeover"];

/// The files, or all in a folder (not in those below it).
pub(crate) const TARGETS: &[&str] = &[
    "cache/src/hotspot.rs",
    "cache/src/radix/reader.rs",
    "cache/src/reader.rs",
    "index/src/btree/blocks.rs",
    "index/src/btree/descend.rs",
    "index/src/btree/format.rs",
    "index/src/btree/freed.rs",
    "index/src/btree/lower.rs",
    "index/src/btree/mark.rs",
    "index/src/btree/merge.rs",
    "index/src/btree/node.rs",
    "index/src/btree/repair.rs",
    "index/src/btree/retired.rs",
    "index/src/btree/root.rs",
    "index/src/btree/scan.rs",
    "index/src/btree/separator.rs",
    "index/src/btree/split.rs",
    "index/src/btree/window.rs",
    "index/src/chime/block.rs",
    "index/src/chime/leaf.rs",
    "index/src/chime/lookup.rs",
    "index/src/chime/split.rs",
    "index/src/chime/write.rs",
    "index/src/dolphin/descend.rs",
    "index/src/dolphin/divide.rs",
    "index/src/dolphin/freed.rs",
    "index/src/dolphin/lead_on.rs",
    "index/src/dolphin/leaf_plan.rs",
    "index/src/dolphin/lookup.rs",
    "index/src/dolphin/mark.rs",
    "index/src/dolphin/merge.rs",
    "index/src/dolphin/out.rs",
    "index/src/dolphin/put_separator.rs",
    "index/src/dolphin/reused.rs",
    "index/src/dolphin/root.rs",
    "index/src/dolphin/scan.rs",
    "index/src/dolphin/separators.rs",
    "index/src/dolphin/write.rs",
    "index/src/layout/block.rs",
    "index/src/layout/hopscotch/entry.rs",
    "index/src/layout/hopscotch/frozen.rs",
    "index/src/layout/hopscotch/lookup.rs",
    "index/src/layout/hopscotch/mend.rs",
    "index/src/layout/hopscotch/patch.rs",
    "index/src/layout/hopscotch/ring.rs",
    "index/src/layout/hopscotch/unite.rs",
    "index/src/layout/hopscotch/vacancy.rs",
    "index/src/layout/hopscotch/view.rs",
    "index/src/layout/range_leaf",
    "index/src/memory.rs",
    "index/src/shell/merging.rs",
    "index/src/shell/nodes.rs",
    "index/src/shell/scan.rs",
    "index/src/shell/sweep.rs",
    "index/src/sherman/lookup.rs",
    "index/src/sherman/split.rs",
    "index/src/sherman/write.rs",
    "index/src/smart/decide.rs",
    "index/src/smart/descend.rs",
    "index/src/smart/insert.rs",
    "index/src/smart/lookup.rs",
    "index/src/smart/mark.rs",
    "index/src/smart/new_node.rs",
    "index/src/smart/out.rs",
    "index/src/smart/pending.rs",
    "index/src/smart/replace.rs",
    "index/src/smart/scan.rs",
    "index/src/smart/split.rs",
    "index/src/smart/turns.rs",
    "index/src/smart/write.rs",
    "lock/src/deaths.rs",
    "lock/src/handover.rs",
    "lock/src/held.rs",
    "lock/src/held/keeping.rs",
    "lock/src/held/rear.rs",
    "lock/src/held/recording.rs",
    "lock/src/held/taking.rs",
    "lock/src/hint.rs",
    "lock/src/intent.rs",
    "lock/src/intents",
    "lock/src/janitor.rs",
    "lock/src/mending.rs",
    "lock/src/patience.rs",
    "lock/src/place.rs",
    "lock/src/recovery.rs",
    "lock/src/shared",
    "lock/src/slots.rs",
    "lock/src/table.rs",
    "lock/src/wait_list.rs",
    "lock/src/window",
    "runtime/src/alloc",
    "runtime/src/alloc.rs",
    "runtime/src/control/sweep",
    "runtime/src/epoch",
    "runtime/src/extents.rs",
    "runtime/src/memory/given.rs",
];

/// Files of which some code runs where a merger has died.
const MERGES: [&str; 6] = ["/format.rs", "/freed.rs", "/lower.rs", "/merge.rs", "/retired.rs", "/reused.rs"];

/// A mistake that was planted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Mutant {
    pub(crate) number: u32,
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) function: String,
    pub(crate) operator: String,
    pub(crate) original: String,
    pub(crate) mutated: String,
    /// The indexes that it is in, those first that judge faster.
    pub(crate) indexes: Vec<String>,
}

impl Mutant {
    pub(crate) fn is_by_hand(&self) -> bool {
        self.operator.starts_with("by hand")
    }
}

/// The fate of a mutant.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Fate {
    /// By the failure of this seed of this index.
    Killed { index: String, seed: u64 },
    /// The program came to an end of its own.
    Crashed { index: String },
    /// A seed took too long.
    Hung { index: String },
    /// So many seeds passed altogether.
    Survived { seeds: u64 },
}

/// The last word on a mutant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Verdict {
    pub(crate) mutant: Mutant,
    pub(crate) fate: Fate,
    /// True if its place was reached at all.
    pub(crate) reached: bool,
    /// Seeds that were run, each of which reaches it.
    #[serde(default)]
    pub(crate) runs: u64,
    pub(crate) seconds: u64,
}

/// Yields the indexes that run code of that file.
pub(crate) fn indexes_of(file: &str) -> Vec<String> {
    let indexes: &[&str] = match file {
        _ if ["/mend.rs", "/mending.rs"].iter().any(|end| file.ends_with(end)) => &["chime+takeover"],
        // What is not recorded shows when its writer dies.
        _ if ["/chime/write.rs", "/hopscotch/patch.rs"].iter().any(|end| file.ends_with(end)) => {
            &["chime", "chime+takeover"]
        }
        _ if ["/chime/", "/hopscotch/", "/hotspot", "/block"].iter().any(|part| file.contains(part)) => {
            &["chime"]
        }
        _ if file.ends_with("/absent.rs") => &["dolphin+takeover"],
        // What a merger leaves behind shows when it dies.
        _ if MERGES.iter().any(|end| file.ends_with(end)) && file.contains("/dolphin/") => {
            &["dolphin", "dolphin+takeover"]
        }
        _ if MERGES.iter().any(|end| file.ends_with(end)) => {
            &["sherman", "chime", "sherman+takeover", "chime+takeover"]
        }
        _ if ["/dolphin/", "/range_leaf/", "/shared/"].iter().any(|part| file.contains(part)) => &["dolphin"],
        _ if ["/recording", "/intent", "/recovery", "/deaths"].iter().any(|part| file.contains(part)) => {
            &WITH_TAKEOVER
        }
        _ if file.contains("/btree/") => &["sherman", "chime"],
        _ if file.contains("/sherman/") => &["sherman"],
        _ if file.contains("/smart/") => &["smart"],
        _ if file.contains("/radix/") => &["smart", "dolphin"],
        _ if file.starts_with("cache/") => &["sherman"],
        _ => &["smart", "sherman", "chime", "dolphin"],
    };
    indexes.iter().map(|&name| name.to_owned()).collect()
}
