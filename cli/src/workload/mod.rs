//! Workloads: their names and mixes of operations, the keys that they ask for, the form of keys and values, and the
//! lines of a trace. Nothing here knows of an index, a shard or a clock; files are read before a run.

pub(crate) mod distribution;
pub(crate) mod frontier;
pub(crate) mod key_file;
pub(crate) mod keys;
pub(crate) mod mix;
pub(crate) mod trace;
pub(crate) mod values;

use mix::{OpMix, Step};

/// A named workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// Inserts of all keys into an empty index.
    Load,
    /// YCSB A: half reads, half updates.
    YcsbA,
    /// YCSB B: 95 % reads, 5 % updates.
    YcsbB,
    /// YCSB C: reads only.
    YcsbC,
    /// YCSB D: 95 % reads of the latest keys, 5 % inserts.
    YcsbD,
    /// YCSB E: 95 % scans, 5 % inserts.
    YcsbE,
    /// YCSB F: half reads, half read-modify-writes (a get and an update, counted as such).
    YcsbF,
    /// Updates only.
    UpdateOnly,
    /// Sherman table 3: puts only.
    WriteOnly,
    /// Sherman table 3: half puts, half gets.
    WriteIntensive,
    /// Sherman table 3: 5 % puts, 95 % gets.
    ReadIntensive,
    /// Sherman table 3: scans only.
    RangeOnly,
    /// Sherman table 3: half puts, half scans.
    RangeWrite,
    /// Half inserts, half removes, of twice as many keys as are loaded: so many are there at all times.
    Churn,
    /// Acquire and release of locks, without an index.
    Lock,
    /// READs of one leaf's size at random places, without an index.
    Raw,
    /// The lines of a trace, which has no name of its own.
    Trace,
}

/// Every workload that has a name, with this name on the command line.
pub(crate) const WORKLOADS: [(&str, Workload); 16] = [
    ("load", Workload::Load),
    ("ycsb-a", Workload::YcsbA),
    ("ycsb-b", Workload::YcsbB),
    ("ycsb-c", Workload::YcsbC),
    ("ycsb-d", Workload::YcsbD),
    ("ycsb-e", Workload::YcsbE),
    ("ycsb-f", Workload::YcsbF),
    ("update-only", Workload::UpdateOnly),
    ("write-only", Workload::WriteOnly),
    ("write-intensive", Workload::WriteIntensive),
    ("read-intensive", Workload::ReadIntensive),
    ("range-only", Workload::RangeOnly),
    ("range-write", Workload::RangeWrite),
    ("churn", Workload::Churn),
    ("lock", Workload::Lock),
    ("raw", Workload::Raw),
];

impl Workload {
    /// Finds the workload of that name.
    pub(crate) fn parse(name: &str) -> Result<Self, String> {
        WORKLOADS.iter().find(|(known, _)| *known == name).map(|(_, workload)| *workload).ok_or_else(|| {
            let names: Vec<&str> = WORKLOADS.iter().map(|(name, _)| *name).collect();
            format!("there is no workload '{name}': choose one of {}", names.join(", "))
        })
    }

    /// Returns its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        WORKLOADS.iter().find(|(_, workload)| *workload == self).map_or("trace", |(name, _)| name)
    }

    /// Tells whether it works on an index at all.
    pub(crate) fn uses_index(self) -> bool {
        !matches!(self, Workload::Lock | Workload::Raw)
    }

    /// Tells whether it has an end of its own: then it has no warm-up either, which would take from it.
    pub(crate) fn ends_by_itself(self) -> bool {
        matches!(self, Workload::Load | Workload::Trace)
    }

    /// Tells whether the keys are in the index before the run.
    pub(crate) fn is_preloaded(self) -> bool {
        self.uses_index() && self != Workload::Load
    }

    /// Tells whether it adds keys beyond the loaded ones.
    pub(crate) fn adds_keys(self) -> bool {
        self.uses_index()
            && self.mix().has(|step| matches!(step, Step::Insert | Step::PutNew | Step::InsertAny))
    }

    /// Returns the operations that its clients choose from, and their shares. Empty where there is no choice.
    pub(crate) fn mix(self) -> OpMix {
        // Of the puts of Sherman's mixes about two thirds are updates of existing keys (paper section 5.1.3).
        let puts = |share: f64| [(share * 2.0 / 3.0, Step::PutOld), (share / 3.0, Step::PutNew)];
        let with_puts = |share: f64, other: (f64, Step)| {
            let [old, new] = puts(share);
            OpMix::new(&[old, new, other])
        };
        match self {
            Workload::Load => OpMix::new(&[(1.0, Step::Insert)]),
            Workload::YcsbA => OpMix::new(&[(0.5, Step::Get), (0.5, Step::Update)]),
            Workload::YcsbB => OpMix::new(&[(0.95, Step::Get), (0.05, Step::Update)]),
            Workload::YcsbC => OpMix::new(&[(1.0, Step::Get)]),
            Workload::YcsbD => OpMix::new(&[(0.95, Step::Get), (0.05, Step::Insert)]),
            Workload::YcsbE => OpMix::new(&[(0.95, Step::Scan), (0.05, Step::Insert)]),
            Workload::YcsbF => OpMix::new(&[(0.5, Step::Get), (0.5, Step::ReadModifyWrite)]),
            Workload::UpdateOnly => OpMix::new(&[(1.0, Step::Update)]),
            Workload::WriteOnly => OpMix::new(&puts(1.0)),
            Workload::WriteIntensive => with_puts(0.5, (0.5, Step::Get)),
            Workload::ReadIntensive => with_puts(0.05, (0.95, Step::Get)),
            Workload::RangeOnly => OpMix::new(&[(1.0, Step::Scan)]),
            Workload::RangeWrite => with_puts(0.5, (0.5, Step::Scan)),
            Workload::Churn => OpMix::new(&[(0.5, Step::InsertAny), (0.5, Step::RemoveAny)]),
            Workload::Lock | Workload::Raw | Workload::Trace => OpMix::new(&[]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_parse_back() {
        for (name, workload) in WORKLOADS {
            assert_eq!(Workload::parse(name), Ok(workload));
            assert_eq!(workload.name(), name);
        }
        let error = Workload::parse("ycsb-g").unwrap_err();
        assert!(error.contains("'ycsb-g'") && error.contains("write-intensive"), "{error}");
    }

    #[test]
    fn knows_who_adds_keys() {
        let adding: Vec<_> = WORKLOADS.iter().filter(|(_, w)| w.adds_keys()).map(|(name, _)| *name).collect();
        let expected = [
            "load",
            "ycsb-d",
            "ycsb-e",
            "write-only",
            "write-intensive",
            "read-intensive",
            "range-write",
            "churn",
        ];
        assert_eq!(adding, expected);
    }
}
