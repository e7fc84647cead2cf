//! The oracles: what judging a run costs that simulates thousands of them a minute.

#[path = "../sim/tests/kit/mod.rs"]
mod kit;

use divan::Bencher;
use farwood_sim::history::{Event, Op, Outcome};
use farwood_sim::oracle::check_history;
use kit::Shape;

fn main() {
    divan::main();
}

/// Clients, keys, scans in 1000 operations, given up in 1000 steps.
#[divan::bench(args = [(16, 50, 0, 0), (16, 50, 0, 10), (16, 50, 20, 10), (16, 1, 0, 0), (16, 1, 0, 10)])]
fn check_2000_operations(bencher: Bencher<'_, '_>, (clients, keys, scans, lost): (u32, u32, u32, u32)) {
    let (scans, lost) = (f64::from(scans) / 1000.0, f64::from(lost) / 1000.0);
    let (history, initial) = kit::run(Shape { clients, keys, ops: 2000, scans, lost }, 1);
    bencher.bench_local(|| check_history(&history, &initial).expect("it is right"));
}

/// And the reason found, when the last read is of the first value written.
#[divan::bench(args = [50, 1])]
fn refuse_2000_operations(bencher: Bencher<'_, '_>, keys: u32) {
    let (mut history, initial) = kit::run(Shape { clients: 16, keys, ops: 2000, scans: 0.02, lost: 0.01 }, 1);
    let first = history
        .iter()
        .find(|operation| operation.event.op == Op::Put && operation.event.outcome == Outcome::Ok);
    let first = first.expect("there are puts");
    let (key, value) = (first.key.to_vec(), first.value.map(<[u8]>::to_vec));
    let late = Event { op: Op::Get, outcome: Outcome::Found, start: 1 << 40, end: 1 << 41, ..first.event };
    history.add(late, &key, value.as_deref());
    bencher.bench_local(|| check_history(&history, &initial).expect_err("it is stale"));
}
