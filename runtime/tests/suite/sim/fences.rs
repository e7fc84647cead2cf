//! The use of fences: chains whose verbs must take effect in posting order, on NICs that keep fences and on NICs that
//! ignore them. On the latter some seed catches a READ that brings what a WRITE or an atomic behind it wrote.

use std::cell::Cell;
use std::rc::Rc;

use farwood_runtime::chain::Op;
use farwood_runtime::sim::{Reordering, SimConfig, SimShard, Simulation};
use farwood_runtime::{Chain, Meter, RemotePtr, Verbs};

use super::kit::{ROUGH, area, config, faa, read, run_all, start, words};

const SEEDS: u64 = 60;
const CHAINS: u64 = 40;
/// Words that a chain works on.
const WORDS: u64 = 2;
/// Atomics on words so many bytes apart wait for each other.
const BUCKETS_BYTES: u64 = 4096;
const VERBS_MAX: u64 = 5;

/// Chains that did not do what their verbs do in posting order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Caught {
    /// A READ brought what a later verb of its own chain wrote.
    reads_of_later_writes: u64,
    /// Something else was found or left.
    others: u64,
}

/// Findings of a chain whose verbs take effect in posting order, on words that are 0.
struct InOrder {
    memory: [u64; WORDS as usize],
    reads: Vec<u64>,
    atomics: Vec<u64>,
}

impl InOrder {
    fn of(ops: &[(usize, Op)]) -> Self {
        let mut run = InOrder { memory: [0; WORDS as usize], reads: Vec::new(), atomics: Vec::new() };
        for &(place, op) in ops {
            let word = &mut run.memory[place];
            match op {
                Op::Read { .. } => run.reads.push(*word),
                Op::WriteWord { word: written, .. } => *word = written,
                Op::Cas { expected, desired, .. } => {
                    run.atomics.push(*word);
                    *word = if *word == expected { desired } else { *word };
                }
                Op::Faa { add, .. } => {
                    run.atomics.push(*word);
                    *word += add;
                }
                Op::Write { .. } | Op::MaskedCas { .. } => unreachable!("words are enough here"),
            }
        }
        run
    }
}

/// Draws verbs on the words at `places`. Every WRITE and atomic leaves a value that no earlier verb left.
fn draw(v: &SimShard, places: &[RemotePtr]) -> Vec<(usize, Op)> {
    let (mut ops, mut last) = (Vec::new(), [0; WORDS as usize]);
    for n in 1..=2 + v.random() % (VERBS_MAX - 1) {
        let place = (v.random() % WORDS) as usize;
        let (at, value) = (places[place].offset(), n << 32);
        let op = match v.random() % 5 {
            0 | 1 => Op::Read { at, to: 0, len: 8 },
            2 => Op::WriteWord { at, word: value },
            3 => Op::Cas { at, expected: last[place], desired: value },
            _ => Op::Faa { at, add: 1 << n },
        };
        ops.push((place, op));
        last = InOrder::of(&ops).memory;
    }
    ops
}

/// Posts the verbs in one chain that keeps their order; yields what its READs and atomics found.
async fn post(v: &SimShard, places: &[RemotePtr], ops: &[(usize, Op)]) -> (Vec<u64>, Vec<u64>) {
    let mut chain = Chain::with_buffer(places[0].server(), v.lease(8 * ops.len()));
    let mut landed = 0;
    for &(place, op) in ops {
        let (chain, at) = (chain.fence_if_needed(), places[place]);
        match op {
            Op::Read { .. } => {
                landed += 8;
                chain.read(at, landed - 8..landed)
            }
            Op::WriteWord { word, .. } => chain.write_word(at, word),
            Op::Cas { expected, desired, .. } => chain.cas(at, expected, desired),
            Op::Faa { add, .. } => chain.faa(at, add),
            Op::Write { .. } | Op::MaskedCas { .. } => unreachable!("words are enough here"),
        };
    }
    let done = v.submit(&Meter::default(), chain).await.unwrap();
    let atomics = done.atomics.to_vec();
    (words(&done.into_buf()[..landed]), atomics)
}

/// Tells whether one of the READs, which found `reads`, brought what a verb behind it wrote.
fn has_read_later_write(ops: &[(usize, Op)], reads: &[u64]) -> bool {
    let is_read = |op: Op| matches!(op, Op::Read { .. });
    let positions = (0..ops.len()).filter(|&n| is_read(ops[n].1));
    positions.zip(reads).any(|(n, &found)| {
        let after = |end: usize| InOrder::of(&ops[..end]).memory[ops[n].0];
        found != after(n) && (n + 1..=ops.len()).any(|end| found == after(end))
    })
}

fn caught(seed: u64, reordering: Reordering, ignores_fences: bool) -> Caught {
    let simulation = Simulation::new(&SimConfig { ignores_fences, ..config(seed, reordering) }).unwrap();
    let base = area(&simulation, 0);
    let alive = Rc::new(Cell::new(0));
    // Others keep the bucket of all words busy, so that atomics wait.
    let going_on = Rc::new(Cell::new(true));
    for client in 0..8 {
        let (v, going_on) = (simulation.shard(1, client % 2), Rc::clone(&going_on));
        start(&v.clone(), &alive, async move {
            while going_on.get() {
                faa(&v, base, 1).await.unwrap();
            }
        });
    }
    let result = Rc::new(Cell::new(Caught::default()));
    let (v, seen) = (simulation.shard(0, 0), Rc::clone(&result));
    start(&v.clone(), &alive, async move {
        let mut caught = Caught::default();
        for n in 1..=CHAINS {
            let places: Vec<_> =
                (0..WORDS).map(|word| base.add((n * WORDS + word) * BUCKETS_BYTES)).collect();
            let ops = draw(&v, &places);
            let (reads, atomics) = post(&v, &places, &ops).await;
            let mut left = Vec::new();
            for &place in &places {
                left.extend(read(&v, place, 8).await.unwrap());
            }
            let expected = InOrder::of(&ops);
            let is_later = has_read_later_write(&ops, &reads);
            let is_in_order =
                (reads, atomics, &left[..]) == (expected.reads, expected.atomics, &expected.memory);
            caught.reads_of_later_writes += u64::from(is_later);
            caught.others += u64::from(!is_later && !is_in_order);
        }
        going_on.set(false);
        seen.set(caught);
    });
    run_all(&simulation, &alive);
    result.get()
}

#[test]
fn a_chain_whose_fences_are_ignored_is_caught_reading_its_own_later_write() {
    for reordering in [Reordering::NONE, ROUGH] {
        let (mut caught_seeds, mut others) = (0, 0);
        for seed in 0..SEEDS {
            assert_eq!(
                caught(seed, reordering, false),
                Caught::default(),
                "seed {seed}: a fence was overtaken"
            );
            let unfenced = caught(seed, reordering, true);
            caught_seeds += u64::from(unfenced.reads_of_later_writes > 0);
            others += unfenced.others;
        }
        assert!(caught_seeds > SEEDS / 2, "only {caught_seeds} of {SEEDS} seeds saw that fences are ignored");
        assert!(others > 0, "no atomic was overtaken");
    }
}
