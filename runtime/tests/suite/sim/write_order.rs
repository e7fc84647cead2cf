//! Lines of one WRITE become visible out of address order where the fabric does not promise otherwise, and in order
//! where it does. WRITEs on one queue pair are visible in order in either case.

use std::cell::Cell;
use std::rc::Rc;

use farwood_runtime::Verbs;
use farwood_runtime::sim::Reordering;

use super::kit::{ROUGH, area, run_all, simulation, start, submit, words, write_chain};

const BYTES: usize = 4 * 64;
const READS: u64 = 1000;

/// Counts how often a later line of a WRITE was seen while an earlier one was not.
fn inversions(seed: u64, reordering: Reordering) -> u64 {
    let simulation = simulation(seed, reordering);
    let at = area(&simulation, 0);
    let behind = at.add(4096);
    let (alive, reading) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(true)));
    let (writer, goes_on) = (simulation.shard(0, 0), Rc::clone(&reading));
    assert_eq!(writer.capabilities().in_order_write, reordering.in_order_write);
    start(&writer.clone(), &alive, async move {
        let mut n = 0;
        while goes_on.get() {
            n += 1;
            let mut chain = write_chain(&writer, at, BYTES, n);
            chain.write_word(behind, n);
            writer.submit(&Default::default(), chain).await.unwrap();
            writer.pause(writer.random() % 3000).await;
        }
    });
    let inverted = Rc::new(Cell::new(0));
    let (reader, count) = (simulation.shard(1, 0), Rc::clone(&inverted));
    start(&reader.clone(), &alive, async move {
        for _ in 0..READS {
            // READs on one queue pair are executed one after the other: what the first one saw is still there.
            let seen = submit(&reader, at.server(), 64, |chain| {
                chain.read(behind, 0..8).read(at.add(192), 8..16).read(at.add(64), 16..24).read(at, 24..32);
            });
            let seen = words(&seen.await.unwrap().into_buf()[..32]);
            count.set(count.get() + u64::from(seen[1] > seen[3] || seen[2] > seen[3]));
            assert!(seen[1..].iter().all(|&line| line >= seen[0]), "a WRITE overtook a WRITE: {seen:?}");
        }
        reading.set(false);
    });
    run_all(&simulation, &alive);
    inverted.get()
}

#[test]
fn lines_of_a_write_come_in_any_order_only_where_none_is_promised() {
    for seed in 0..3 {
        let inverted = inversions(seed, ROUGH);
        assert!(inverted > 10, "seed {seed}: {inverted} of {READS}");
        assert_eq!(inversions(seed, Reordering { in_order_write: true, ..ROUGH }), 0);
    }
}
