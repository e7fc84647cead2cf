//! Runs that are repeated over what is not known of the NIC: where clients spin on remote words, a figure is a band.

use std::thread;

use farwood_runtime::sim::Profile;
use hdrhistogram::Histogram;

use super::cluster::{Measured, Setup, run};
use super::{Class, Row};

/// Varies what is not known of the NIC, and matters where clients spin (TARGETS of the papers' figures): how many
/// requests wait at the responder, and how long atomics take.
fn unknowns(base: Profile) -> [Profile; 4] {
    [
        Profile { responder_slots: 16, ..base },
        Profile { responder_slots: 100, ..base },
        Profile { cas_failure_ns: 490, ..base },
        Profile { on_chip_ns: 60, ..base },
    ]
}

/// Varies how many small READs a ConnectX-6 answers: 80 Mops, where [`Profile::CONNECTX6`] has the least that was seen,
/// 45 (SMART's figure 3, which is of an index).
fn faster_reads(base: Profile) -> [Profile; 1] {
    [Profile { read_ps: 12_500, ..base }]
}

/// Yields the measured run, and the same with each of the unknowns changed, side by side.
pub(super) fn run_band(setup: &Setup) -> Result<(Measured, Vec<Measured>), String> {
    run_over(setup, &unknowns(setup.profile))
}

fn run_over(setup: &Setup, profiles: &[Profile]) -> Result<(Measured, Vec<Measured>), String> {
    let variants: Vec<Setup> = profiles.iter().map(|&profile| Setup { profile, ..setup.clone() }).collect();
    thread::scope(|scope| {
        let variants: Vec<_> = variants.iter().map(|setup| scope.spawn(|| run(setup))).collect();
        let measured = run(setup)?;
        let variants =
            variants.into_iter().map(|run| run.join().map_err(|_| "a run panicked".to_string())?);
        Ok((measured, variants.collect::<Result<_, _>>()?))
    })
}

/// Yields the measured run first, then its variants: all of them as one list.
pub(super) fn run_all(setup: &Setup) -> Result<Vec<Measured>, String> {
    run_band(setup).map(as_list)
}

/// Yields the measured run, and the same with the rate of READs at the band's other end.
pub(super) fn run_read_rates(setup: &Setup) -> Result<Vec<Measured>, String> {
    run_over(setup, &faster_reads(setup.profile)).map(as_list)
}

fn as_list((measured, mut variants): (Measured, Vec<Measured>)) -> Vec<Measured> {
    variants.insert(0, measured);
    variants
}

/// Yields a quantile in microseconds.
pub(super) fn us(latency: &Histogram<u64>, quantile: f64) -> f64 {
    latency.value_at_quantile(quantile) as f64 / 1000.0
}

/// Yields a figure that compares two lists of runs, over the same variant of the model each time: a band where clients
/// spin.
pub(super) fn compare(
    title: (&'static str, String),
    paper: f64,
    class: Class,
    runs: (&[Measured], &[Measured]),
    of: impl Fn(&Measured) -> f64,
) -> Row {
    let row = compare_all(title, paper, class, runs, of);
    if class == Class::Spinning { row } else { Row { band: (row.simulated, row.simulated), ..row } }
}

/// Yields such a figure as a band, whatever its class.
pub(super) fn compare_all(
    (name, figure): (&'static str, String),
    paper: f64,
    class: Class,
    (above, below): (&[Measured], &[Measured]),
    of: impl Fn(&Measured) -> f64,
) -> Row {
    let ratios: Vec<f64> = above.iter().zip(below).map(|(above, below)| of(above) / of(below)).collect();
    Row::new(name, figure, paper, ratios[0], class).within(ratios)
}
