//! Costs of operations on an index of usual nodes, with a warm cache and one client: the table of each kind. A kind
//! without a table here is held to what it says itself of its gets and updates (`Algorithm::round_trips`).

mod chime;
mod dolphin;
mod sherman;
mod smart;

use std::ops::RangeInclusive;

use farwood::OpKind;
use farwood::index::KindStats;

use farwood::IndexSpec;

/// An operation on the loaded index.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// A get of a key that is there, or is not.
    Get { present: bool },
    /// A scan of 100 pairs.
    ScanOf100,
    /// A change that takes effect: an insert of an absent key, an update or a remove of a present one. A put is
    /// either.
    Change(OpKind),
    /// A change that takes none.
    VainChange(OpKind),
}

/// The cost of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    pub(crate) round_trips: u64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) cas: u64,
    pub(crate) faa: u64,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
}

/// The costs that an operation may have.
#[derive(Clone, Debug)]
pub(crate) enum Costs {
    /// Exactly one of these.
    OneOf(Vec<Cost>),
    /// Of everything at least the first, and at most the second.
    Between(Cost, Cost),
}

/// Yields what `work` may cost with `mix`.
pub(crate) fn costs(mix: IndexSpec, work: Work) -> Costs {
    match mix.effective(true) {
        IndexSpec::Sherman { options, .. } => sherman::costs(&options, work),
        IndexSpec::Smart { options, .. } => smart::costs(options.techniques, work),
        IndexSpec::Chime { options, geometry } if geometry.indirect => {
            chime::indirect(options.techniques, work)
        }
        IndexSpec::Chime { options, .. } => chime::costs(options.techniques, work),
        IndexSpec::Dolphin { options, .. } => dolphin::costs(options.techniques, work),
        other => own_word(&other, work),
    }
}

/// Counts how often `work` always reads again: what a cache says of absent keys may be out of date, and
/// one READ may not prove that a key is absent.
pub(crate) fn second_looks(mix: IndexSpec, work: Work) -> RangeInclusive<u64> {
    match mix {
        IndexSpec::Smart { .. } => {
            let looks = smart::second_looks(work);
            looks..=looks
        }
        IndexSpec::Chime { .. } => 0..=chime::second_looks_max(work),
        _ => 0..=0,
    }
}

/// Yields the costs that follow from what a kind says itself of its round trips.
fn own_word(spec: &IndexSpec, work: Work) -> Costs {
    let (get, update) = spec.round_trips();
    let (least, most) = match work {
        Work::Get { present: true } => get.into_inner(),
        Work::Change(OpKind::Update) => update.into_inner(),
        _ => (1, u64::MAX),
    };
    let with = |round_trips, others| Cost { round_trips, ..Cost::of([others; 7]) };
    Costs::Between(with(least, 0), with(most, u64::MAX))
}

impl Costs {
    pub(crate) fn allow(&self, found: &Cost) -> bool {
        match self {
            Costs::OneOf(costs) => costs.contains(found),
            Costs::Between(least, most) => {
                let (least, found, most) = (least.parts(), found.parts(), most.parts());
                least.iter().zip(found).all(|(least, found)| *least <= found)
                    && found.iter().zip(most).all(|(found, most)| *found <= most)
            }
        }
    }

    /// Multiplies the costs by `n`, without a difference between one time and the next.
    pub(crate) fn times(self, n: u64) -> Self {
        match self {
            Costs::OneOf(costs) => Costs::OneOf(costs.into_iter().map(|cost| cost.times(n)).collect()),
            Costs::Between(least, most) => Costs::Between(least.times(n), most.times(n)),
        }
    }
}

impl Cost {
    fn parts(&self) -> [u64; 7] {
        let Cost { round_trips, reads, writes, cas, faa, bytes_read, bytes_written } = *self;
        [round_trips, reads, writes, cas, faa, bytes_read, bytes_written]
    }

    fn of(parts: [u64; 7]) -> Self {
        let [round_trips, reads, writes, cas, faa, bytes_read, bytes_written] = parts;
        Cost { round_trips, reads, writes, cas, faa, bytes_read, bytes_written }
    }

    /// Yields what the cost would be if its last CAS, which clears a lock, were a WRITE: with what lies beside the
    /// word, or of the word alone.
    pub(crate) fn with_unlock_by_write(&self) -> [Self; 2] {
        let Cost { writes, cas, bytes_written, .. } = *self;
        let beside = Cost { cas: cas.saturating_sub(1), bytes_written: bytes_written + 8, ..*self };
        [beside, Cost { writes: writes + 1, ..beside }]
    }

    fn times(self, n: u64) -> Self {
        Self::of(self.parts().map(|part| part.saturating_mul(n)))
    }

    fn and(&self, other: &Self) -> Self {
        let (own, other) = (self.parts(), other.parts());
        Self::of(std::array::from_fn(|i| own[i] + other[i]))
    }
}

impl From<&KindStats> for Cost {
    fn from(stats: &KindStats) -> Self {
        let KindStats { round_trips, reads, writes, cas, faa, bytes_read, bytes_written, .. } = *stats;
        Cost { round_trips, reads, writes, cas, faa, bytes_read, bytes_written }
    }
}
