//! There is no order between queue pairs: of two shards, or of one shard to two servers. On one there is.

use std::cell::Cell;
use std::rc::Rc;

use farwood_runtime::{Chain, Meter, Verbs};

use super::kit::{ROUGH, area, faa, read, run_all, simulation, start};

const TRIES: u64 = 300;

/// The chain posted second takes effect first, now and then, if another shard posts it, and never if the same does.
#[test]
fn chains_of_two_shards_overtake_each_other() {
    for other_shard in [1, 0] {
        let simulation = simulation(3, ROUGH);
        let at = area(&simulation, 0);
        let alive = Rc::new(Cell::new(0));
        let overtaken = Rc::new(Cell::new(0));
        let (first, second) = (simulation.shard(0, 0), simulation.shard(0, other_shard));
        let count = Rc::clone(&overtaken);
        start(&first.clone(), &alive, async move {
            for _ in 0..TRIES {
                let earlier = faa(&first, at, 1);
                let later = async {
                    // 300 ns after the first doorbell.
                    second.pause(300).await;
                    let mut chain = Chain::new(at.server());
                    chain.fence().faa(at, 1);
                    second.submit(&Meter::default(), chain).await.unwrap().atomics[0]
                };
                let (earlier, later) = futures::future::join(earlier, later).await;
                count.set(count.get() + u64::from(later < earlier.unwrap()));
            }
        });
        run_all(&simulation, &alive);
        if other_shard == 0 {
            assert_eq!(overtaken.get(), 0);
        } else {
            assert!((10..TRIES - 10).contains(&overtaken.get()), "{} of {TRIES}", overtaken.get());
        }
    }
}

/// WRITE x on server 0, then WRITE y on server 1, both in flight: another shard that reads y, and then x, finds the
/// new y and the old x.
#[test]
fn chains_to_two_servers_overtake_each_other() {
    for is_one_server in [false, true] {
        let simulation = simulation(4, ROUGH);
        let x = area(&simulation, 0);
        let y = if is_one_server { x.add(4096) } else { area(&simulation, 1) };
        let (alive, reading) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(true)));
        let (v, goes_on) = (simulation.shard(0, 0), Rc::clone(&reading));
        start(&v.clone(), &alive, async move {
            let mut n = 0;
            while goes_on.get() {
                n += 1;
                let posted = [x, y].map(|at| {
                    let mut chain = Chain::new(at.server());
                    chain.write_word(at, n);
                    v.submit(&Meter::default(), chain)
                });
                futures::future::join_all(posted).await;
                v.pause(v.random() % 2000).await;
            }
        });
        let v = simulation.shard(1, 0);
        start(&v.clone(), &alive, async move {
            let mut overtaken = 0;
            for _ in 0..2000 {
                let y = read(&v, y, 8).await.unwrap()[0];
                overtaken += u64::from(read(&v, x, 8).await.unwrap()[0] < y);
            }
            assert_eq!(overtaken == 0, is_one_server, "{overtaken} of 2000");
            reading.set(false);
        });
        run_all(&simulation, &alive);
    }
}
