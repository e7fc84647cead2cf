//! The simulated fabric tears READs between lines, in both directions, and never inside a line.

use std::cell::Cell;
use std::rc::Rc;

use farwood_runtime::sim::Reordering;

use super::kit::{ROUGH, area, read, run_all, simulation, start, write};

const LINES: usize = 8;
const READS: u64 = 1000;

/// Counts the READs that found an earlier line older than a later one, and those that found it newer.
fn torn(seed: u64, reordering: Reordering) -> (u64, u64) {
    let simulation = simulation(seed, reordering);
    let at = area(&simulation, 0);
    let (alive, readers) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(1)));
    let old_first = Rc::new(Cell::new(0));
    let new_first = Rc::new(Cell::new(0));
    let (writer, reading) = (simulation.shard(0, 0), Rc::clone(&readers));
    start(&writer.clone(), &alive, async move {
        let mut n = 0;
        while reading.get() > 0 {
            n += 1;
            write(&writer, at, LINES * 64, n).await.unwrap();
        }
    });
    let reader = simulation.shard(1, 0);
    let counts = (Rc::clone(&old_first), Rc::clone(&new_first));
    start(&reader.clone(), &alive, async move {
        for _ in 0..READS {
            let words = read(&reader, at, LINES * 64).await.unwrap();
            let lines: Vec<u64> = words
                .chunks(8)
                .map(|line| {
                    assert!(line.iter().all(|&word| word == line[0]), "a line was torn: {line:?}");
                    line[0]
                })
                .collect();
            counts.0.set(counts.0.get() + u64::from(lines.windows(2).any(|pair| pair[0] < pair[1])));
            counts.1.set(counts.1.get() + u64::from(lines.windows(2).any(|pair| pair[0] > pair[1])));
        }
        readers.set(0);
    });
    run_all(&simulation, &alive);
    (old_first.get(), new_first.get())
}

#[test]
fn lines_of_a_read_are_read_in_any_order() {
    for seed in 0..3 {
        let (old_first, new_first) = torn(seed, ROUGH);
        assert!(old_first > 20 && new_first > 20, "seed {seed}: {old_first} and {new_first} of {READS}");
    }
}

#[test]
fn lines_of_a_read_are_read_in_any_order_although_writes_are_in_order() {
    let (old_first, new_first) = torn(7, Reordering { in_order_write: true, ..ROUGH });
    assert!(old_first > 20 && new_first > 20, "{old_first} and {new_first} of {READS}");
}

#[test]
fn small_reads_are_whole_without_reordering() {
    assert_eq!(torn(1, Reordering::NONE), (0, 0));
}
