//! Reordering and faults, as small values: how lines of one access are scattered in time, and which faults strike how
//! often. Decisions are drawn from the simulation's seed where a rule is applied; nothing here has state.

/// Extent to which the fabric uses the freedom that its contract leaves it, without any fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reordering {
    /// Every line of an access has a time of its own. Off: a READ happens in pieces of 512 bytes (the size of a PCIe
    /// read request), a WRITE at once, which is what timing experiments need.
    pub lines: bool,
    /// Of so many accesses one is scattered: each of its lines is late by up to `scatter_ns`. 0 is none.
    pub scatter_one_in: u32,
    /// See `scatter_one_in`.
    pub scatter_ns: u64,
    /// Each message takes up to so much longer than the profile says. The order on a queue pair is kept.
    pub jitter_ns: u64,
    /// Set if lines of one WRITE become visible in increasing address order.
    pub in_order_write: bool,
}

impl Reordering {
    /// As regular as hardware gets: what timing experiments use.
    pub const NONE: Reordering =
        Reordering { lines: false, scatter_one_in: 0, scatter_ns: 0, jitter_ns: 0, in_order_write: true };
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// One line of an access is late by up to so many ns.
    DelayedLine(u64),
    /// From a line on that others have written together with the one before it, a READ is late until that has happened
    /// so many times more: within so many ns, or then.
    OvertakenRead {
        /// WRITEs to both lines.
        writes: u32,
        /// The longest that it takes.
        within_ns: u64,
    },
    /// A message is late by up to so many ns.
    LatencySpike(u64),
    /// A queue pair breaks: of what was in flight on it any prefix took effect, the last WRITE perhaps in part. It is
    /// back after so many ns.
    QueuePairError(u64),
    /// A compute node stops for good at one of its verbs: before it, behind it, in the middle of its WRITE (of the
    /// lines a prefix arrives, or any of them where WRITEs have no order), or a little later. What is still on its way
    /// may be lost, on each queue pair from some verb on.
    NodeStop,
    /// A memory server cannot be reached for so many ns. Its memory stays.
    ServerAway(u64),
    /// One compute node and one memory server do not reach each other for so many ns: requests, responses or both are
    /// lost. All others do.
    Partition(u64),
    /// A shard does nothing for up to so many ns.
    StalledShard(u64),
    /// A control service's reply is late by up to so many ns.
    LateReply(u64),
    /// A control service does what it is asked for, and the reply is lost: the server seems to be gone.
    LostReply,
    /// A control service does not do what it is asked for: the server seems to be gone.
    FailedRequest,
    /// The memory servers have no chunk left for the one who asks now. If it strikes without bounds, nor for some who
    /// ask next, perhaps until faults end.
    NoMemory,
}

impl Fault {
    /// Tells whether it strikes accesses and messages, which take longer for it.
    ///
    /// ```
    /// # use farwood_runtime::sim::Fault;
    /// assert!(Fault::LatencySpike(1_000).is_delay());
    /// assert!(!Fault::NodeStop.is_delay());
    /// ```
    pub fn is_delay(self) -> bool {
        matches!(self, Fault::DelayedLine(_) | Fault::OvertakenRead { .. } | Fault::LatencySpike(_))
    }

    /// Tells whether it strikes requests to control services, not verbs.
    ///
    /// ```
    /// # use farwood_runtime::sim::Fault;
    /// assert!(Fault::LostReply.is_of_control());
    /// assert!(!Fault::NodeStop.is_of_control());
    /// ```
    pub fn is_of_control(self) -> bool {
        matches!(self, Fault::LateReply(_) | Fault::LostReply | Fault::FailedRequest | Fault::NoMemory)
    }
}

/// A fault that strikes one in `one_in` verbs, up to `most` times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The fault that strikes.
    pub fault: Fault,
    /// Frequency: once in so many verbs that are sent (delays: accesses, messages of the fabric; faults of the control
    /// plane: requests to it), on average; not 0. Verbs of rare paths (the first three atomics on a word, and those of
    /// chains of three verbs and more) are struck 6 times as often, and 30 times by latency spikes and where `most` is
    /// bounded, but at most once in 8 where it is not. Late lines and overtaken READs strike them as all others.
    pub one_in: u32,
    /// It stops after so many times.
    pub most: u32,
}

impl Rule {
    const fn new(fault: Fault, one_in: u32, most: u32) -> Self {
        Rule { fault, one_in, most }
    }
}

/// A named set of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultMix {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its purpose, in a few words.
    pub about: &'static str,
    /// Its rules.
    pub rules: &'static [Rule],
}

/// So many writes bring an entry's version back to what it was (`docs/memory-layout.md`).
const ENTRY_VERSIONS: u32 = 32;
const DELAYS: [Rule; 4] = [
    Rule::new(Fault::DelayedLine(300_000), 200, u32::MAX),
    Rule::new(Fault::OvertakenRead { writes: ENTRY_VERSIONS, within_ns: 2_000_000 }, 50, u32::MAX),
    Rule::new(Fault::LatencySpike(100_000), 300, u32::MAX),
    Rule::new(Fault::StalledShard(200_000), 2_000, u32::MAX),
];
const ERRORS: [Rule; 2] = [
    Rule::new(Fault::QueuePairError(20_000), 250, u32::MAX),
    Rule::new(Fault::DelayedLine(30_000), 200, u32::MAX),
];
/// An outage that is longer than a release keeps asking a server.
const LONG_NS: u64 = 25_000_000;
const OUTAGES: [Rule; 2] =
    [Rule::new(Fault::ServerAway(400_000), 1_500, 3), Rule::new(Fault::ServerAway(LONG_NS), 4_000, 2)];
const CRASHES: [Rule; 2] =
    [Rule::new(Fault::NodeStop, 1_500, 1), Rule::new(Fault::DelayedLine(30_000), 500, u32::MAX)];
const CHURN: [Rule; 2] =
    [Rule::new(Fault::NodeStop, 1_000, 3), Rule::new(Fault::LatencySpike(30_000), 500, u32::MAX)];
/// Time enough for others to repair what a node has left half done that is cut off, and to go on from there.
const REPAIRED_NS: u64 = 2_000_000;
const PARTITIONS: [Rule; 3] = [
    Rule::new(Fault::Partition(REPAIRED_NS), 1_500, 4),
    Rule::new(Fault::Partition(LONG_NS), 4_000, 2),
    Rule::new(Fault::DelayedLine(30_000), 500, u32::MAX),
];
/// Nodes that stop while a server is away leave for good what others finish when it is back.
const WRECKS: [Rule; 3] = [
    Rule::new(Fault::ServerAway(LONG_NS), 1_000, 1),
    Rule::new(Fault::NodeStop, 2_000, 3),
    Rule::new(Fault::QueuePairError(20_000), 500, u32::MAX),
];
const CONTROL: [Rule; 3] = [
    Rule::new(Fault::LateReply(3_000_000), 2, u32::MAX),
    Rule::new(Fault::LostReply, 8, u32::MAX),
    Rule::new(Fault::FailedRequest, 8, u32::MAX),
];
const MEMORY: [Rule; 2] =
    [Rule::new(Fault::NoMemory, 2, u32::MAX), Rule::new(Fault::LateReply(300_000), 4, u32::MAX)];
const EVERYTHING: [Rule; 11] = [
    Rule::new(Fault::DelayedLine(300_000), 400, u32::MAX),
    Rule::new(Fault::LatencySpike(100_000), 600, u32::MAX),
    Rule::new(Fault::StalledShard(200_000), 3_000, u32::MAX),
    Rule::new(Fault::QueuePairError(20_000), 500, u32::MAX),
    Rule::new(Fault::ServerAway(400_000), 6_000, 2),
    Rule::new(Fault::Partition(300_000), 6_000, 2),
    Rule::new(Fault::NodeStop, 6_000, 1),
    Rule::new(Fault::LateReply(1_000_000), 4, u32::MAX),
    Rule::new(Fault::LostReply, 20, u32::MAX),
    Rule::new(Fault::FailedRequest, 20, u32::MAX),
    Rule::new(Fault::NoMemory, 10, u32::MAX),
];

impl FaultMix {
    /// The mixes that the command line knows.
    pub const ALL: [FaultMix; 11] = [
        FaultMix { name: "none", about: "torn and reordered lines only, as the contract allows", rules: &[] },
        FaultMix {
            name: "delays",
            about: "late lines, overtaken READs, latency spikes, stalled shards",
            rules: &DELAYS,
        },
        FaultMix {
            name: "errors",
            about: "queue pairs break, in-flight chains apply in part",
            rules: &ERRORS,
        },
        FaultMix { name: "outages", about: "memory servers cannot be reached for a while", rules: &OUTAGES },
        FaultMix {
            name: "partitions",
            about: "a node and a memory server lose each other",
            rules: &PARTITIONS,
        },
        FaultMix {
            name: "crashes",
            about: "a compute node stops at any verb, or within a WRITE",
            rules: &CRASHES,
        },
        FaultMix { name: "churn", about: "compute nodes stop one after the other", rules: &CHURN },
        FaultMix {
            name: "wrecks",
            about: "compute nodes stop while memory servers are away",
            rules: &WRECKS,
        },
        FaultMix {
            name: "control",
            about: "control services answer late, fail, or their replies are lost",
            rules: &CONTROL,
        },
        FaultMix { name: "memory", about: "memory servers are out of memory now and then", rules: &MEMORY },
        FaultMix { name: "all", about: "everything at once, but for overtaken READs", rules: &EVERYTHING },
    ];

    /// Tells whether one of its rules is of a fault like that.
    ///
    /// ```
    /// # use farwood_runtime::sim::{Fault, FaultMix};
    /// let memory = FaultMix::named("memory").unwrap();
    /// assert!(memory.has(Fault::is_of_control) && !memory.has(Fault::is_delay));
    /// ```
    pub fn has(&self, is_like: impl Fn(Fault) -> bool) -> bool {
        self.rules.iter().any(|rule| is_like(rule.fault))
    }

    /// Finds the mix of that name.
    ///
    /// ```
    /// # use farwood_runtime::sim::FaultMix;
    /// assert_eq!(FaultMix::named("memory").map(|mix| mix.name), Some("memory"));
    /// assert!(FaultMix::named("good luck").is_none());
    /// ```
    pub fn named(name: &str) -> Option<FaultMix> {
        Self::ALL.into_iter().find(|mix| mix.name == name)
    }
}
