//! Overtaking on one queue pair: WRITEs and atomics overtake READs and atomics unless they are fenced; READs overtake
//! neither atomics nor READs.

use std::cell::Cell;
use std::rc::Rc;

use farwood_runtime::sim::{Reordering, SimShard};
use farwood_runtime::{Chain, Meter, RemotePtr, Verbs};

use super::kit::{ROUGH, area, faa, run_all, simulation, start, words};

const TRIES: u64 = 400;

/// Counts of pairs whose second verb took effect before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Overtaken {
    read_by_write: u64,
    read_by_atomic: u64,
    atomic_by_write: u64,
}

/// One client's pairs of verbs, posted in one chain or in two.
struct Pairs {
    v: SimShard,
    at: RemotePtr,
    is_fenced: bool,
    is_split: bool,
}

impl Pairs {
    /// Posts `second` behind `first`; yields what READs into the buffer's two words, and what atomics found.
    async fn post(
        &self,
        first: impl FnOnce(&mut Chain),
        second: impl FnOnce(&mut Chain),
    ) -> ([u64; 2], Vec<u64>) {
        let fresh = || Chain::with_buffer(self.at.server(), self.v.lease(16));
        let (mut chain, mut posted) = (fresh(), Vec::new());
        first(&mut chain);
        if self.is_split {
            posted.push(self.v.submit(&Meter::default(), chain));
            chain = fresh();
        }
        if self.is_fenced {
            chain.fence();
        }
        second(&mut chain);
        posted.push(self.v.submit(&Meter::default(), chain));
        let (mut bufs, mut atomics) = (Vec::new(), Vec::new());
        for submission in posted {
            let done = submission.await.unwrap();
            atomics.extend_from_slice(&done.atomics);
            bufs.push(words(&done.into_buf()));
        }
        ([bufs[0][0], bufs[bufs.len() - 1][1]], atomics)
    }
}

fn overtaken(seed: u64, reordering: Reordering, is_fenced: bool) -> Overtaken {
    let simulation = simulation(seed, reordering);
    let at = area(&simulation, 0);
    let hot = at.add(8192);
    let alive = Rc::new(Cell::new(0));
    // Other clients keep the bucket of one word busy, so that atomics there wait. They use the word's upper half.
    let going_on = Rc::new(Cell::new(true));
    for client in 0..12 {
        let (v, going_on) = (simulation.shard(1, client % 2), Rc::clone(&going_on));
        start(&v.clone(), &alive, async move {
            while going_on.get() {
                faa(&v, hot, 1 << 32).await.unwrap();
            }
        });
    }
    let result = Rc::new(Cell::new(Overtaken::default()));
    let (v, seen) = (simulation.shard(0, 0), Rc::clone(&result));
    start(&v.clone(), &alive, async move {
        let mut count = Overtaken::default();
        for n in 1..=TRIES {
            let word = at.add(n * 8);
            let pairs = Pairs { v: v.clone(), at, is_fenced, is_split: n % 2 == 0 };
            let read = |chain: &mut Chain| _ = chain.read(word, 0..8);
            let (found, _) = pairs.post(read, |chain| _ = chain.write_word(word, n)).await;
            count.read_by_write += u64::from(found[0] == n);
            let (found, _) = pairs.post(read, |chain| _ = chain.faa(word, n)).await;
            count.read_by_atomic += u64::from(found[0] == 2 * n);
            let add = |chain: &mut Chain| _ = chain.faa(hot, 0);
            let (_, atomics) = pairs.post(add, |chain| _ = chain.write_word(hot, n)).await;
            count.atomic_by_write += u64::from(atomics[0] as u32 == n as u32);
            // Behind atomics of which the first one waits.
            let slow = |chain: &mut Chain| _ = chain.faa(hot, 0).faa(word, n);
            let (found, atomics) = pairs.post(slow, |chain| _ = chain.read(word, 8..16)).await;
            assert_eq!((found[1], atomics[1]), (3 * n, 2 * n), "a READ overtook an atomic");
        }
        going_on.set(false);
        seen.set(count);
    });
    run_all(&simulation, &alive);
    result.get()
}

#[test]
fn unfenced_verbs_overtake_and_fenced_ones_never() {
    for (seed, reordering) in [(1, ROUGH), (2, ROUGH), (3, Reordering::NONE)] {
        let free = overtaken(seed, reordering, false);
        let least = free.read_by_write.min(free.read_by_atomic).min(free.atomic_by_write);
        assert!(least > 10, "seed {seed}: {free:?}");
        assert_eq!(
            overtaken(seed, reordering, true),
            Overtaken::default(),
            "seed {seed}: a fence was overtaken"
        );
    }
}

/// READ a, then READ b, while another writes b, then a: to see the new a and the old b is forbidden.
#[test]
fn reads_do_not_overtake_reads() {
    let simulation = simulation(5, ROUGH);
    let (a, b) = (area(&simulation, 0), area(&simulation, 0).add(4096));
    let (alive, reading) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(true)));
    let (v, goes_on) = (simulation.shard(0, 0), Rc::clone(&reading));
    start(&v.clone(), &alive, async move {
        let mut n = 0;
        while goes_on.get() {
            n += 1;
            let mut chain = Chain::new(a.server());
            chain.write_word(b, n).write_word(a, n);
            v.submit(&Meter::default(), chain).await.unwrap();
        }
    });
    let v = simulation.shard(1, 0);
    start(&v.clone(), &alive, async move {
        let mut changed = 0;
        for n in 0..1000 {
            let pairs = Pairs { v: v.clone(), at: a, is_fenced: false, is_split: n % 2 == 0 };
            let first = |chain: &mut Chain| _ = chain.read(a, 0..8);
            let (found, _) = pairs.post(first, |chain| _ = chain.read(b, 8..16)).await;
            assert!(found[1] >= found[0], "a READ overtook a READ: {found:?}");
            changed += u64::from(found[1] > found[0]);
        }
        assert!(changed > 10, "the WRITEs never came in between");
        reading.set(false);
    });
    run_all(&simulation, &alive);
}
