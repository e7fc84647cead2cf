//! Queue pairs that break: every prefix of a chain is an outcome, a WRITE in part, too; after the failure was reported
//! nothing takes effect; the queue pair is in order again; nothing leaks.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::num::NonZero;
use std::rc::Rc;

use farwood_runtime::sim::{Fault, Reordering, SimConfig, SimShard, Simulation};
use farwood_runtime::{Chain, ClientPool, FabricError, Meter, RemotePtr, ServerId, Verbs};

use super::kit;
use super::kit::{LATE_NS, ROUGH, area, cas, config, faa, filled, read, rule, run_all, simulation, start};

const WRITE: usize = 256;
const GONE: FabricError = FabricError::QueuePair { server: ServerId(0) };

/// Returns what a chain of three WRITEs had done when its failure was reported: whole WRITEs, and lines of the next
/// one.
fn after_an_error(seed: u64) -> Option<(usize, usize)> {
    // The three WRITEs take about as long as it takes a fault to strike.
    let simulation = simulation(seed, Reordering { scatter_one_in: 2, scatter_ns: 1_000, ..ROUGH });
    let at = area(&simulation, 0);
    simulation.set_faults(&[rule(Fault::QueuePairError(20_000), 3, 1)]);
    let (v, other) = (simulation.shard(0, 0), simulation.shard(1, 0));
    let probe = v.clone();
    let outcome = simulation.block_on(&v, LATE_NS, async move {
        let mut chain = Chain::with_buffer(at.server(), filled(&probe, 3 * WRITE, 7));
        for n in 0..3 {
            chain.write(at.add((n * WRITE) as u64), n * WRITE..(n + 1) * WRITE);
        }
        let verbs = chain.verbs().to_vec();
        let failed = match probe.submit(&Meter::default(), chain).await {
            Ok(_) => return true,
            Err(failed) => failed,
        };
        assert_eq!(failed, GONE);
        let (_, chain) = failed.into_parts();
        assert_eq!(chain.verbs(), verbs);
        assert!(chain.buffer().is_some_and(|buf| buf.chunks(8).all(|word| word == 7u64.to_le_bytes())));
        false
    });
    if outcome == Ok(true) {
        return None;
    }
    // As it is now, and much later: nothing of it takes effect any more.
    let image = move |other: SimShard| async move { read(&other, at, 3 * WRITE).await.unwrap() };
    let now = simulation.block_on(&other, LATE_NS, image(other.clone())).unwrap();
    let until = simulation.now() + 1_000_000;
    let _ = simulation.run(until, || false);
    let later = simulation.block_on(&other, LATE_NS, image(other.clone())).unwrap();
    assert_eq!(now, later, "seed {seed}: it took effect after its failure was reported");
    let lines: Vec<bool> = now.chunks(8).map(|line| line == [7; 8]).collect();
    let whole = lines.chunks(WRITE / 64).take_while(|write| write.iter().all(|&line| line)).count();
    let next = lines.iter().skip(whole * WRITE / 64).take(WRITE / 64).filter(|&&line| line).count();
    let behind = lines.iter().skip((whole + 1) * WRITE / 64).any(|&line| line);
    assert!(!behind, "seed {seed}: not a prefix: {lines:?}");
    assert!(now.iter().all(|&word| word == 0 || word == 7));

    // It works again.
    let again = v.clone();
    simulation
        .block_on(&v, LATE_NS, async move {
            assert_eq!(faa(&again, at, 1).await.unwrap() & !7, 0);
            assert_eq!((again.buffers_leased(), again.chains_in_flight()), (0, 0));
        })
        .unwrap();
    Some((whole, next))
}

#[test]
fn every_prefix_and_a_part_of_a_write_are_outcomes() {
    let mut prefixes = BTreeSet::new();
    let mut partly = 0;
    for seed in 0..300 {
        if let Some((whole, lines)) = after_an_error(seed) {
            prefixes.insert(whole);
            partly += u64::from(lines > 0);
        }
    }
    assert_eq!(prefixes.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(partly > 5, "{partly}");
}

#[test]
fn a_cas_that_failed_was_executed_or_was_not() {
    let mut executed = [0, 0];
    for seed in 0..200 {
        let simulation = simulation(seed, ROUGH);
        let at = area(&simulation, 0);
        simulation.set_faults(&[rule(Fault::QueuePairError(5_000), 1, 1)]);
        // The other node asks over a queue pair of its own.
        let (v, other) = (simulation.shard(0, 0), simulation.shard(1, 0));
        let client = async move { (cas(&v, at, 0, 1).await.is_err(), read(&other, at, 8).await.unwrap()[0]) };
        let (failed, found) = simulation.block_on(&simulation.shard(0, 0), LATE_NS, client).unwrap();
        assert!(failed || found == 1);
        executed[found as usize] += u64::from(failed);
    }
    assert!(executed[0] > 5 && executed[1] > 5, "{executed:?}");
}

/// Many clients, few credits, errors all the time: an addition that succeeded is there, one that failed is there at
/// most once, chains of different clients do not get mixed up, and all chains, credits and buffers come back.
#[test]
fn nothing_is_mixed_up_or_lost() {
    const ROUNDS: u64 = 150;
    for (seed, credits) in [(1, 2), (2, 4096), (3, 5)] {
        let simulation =
            Simulation::new(&SimConfig { credits: NonZero::new(credits).unwrap(), ..config(seed, ROUGH) })
                .unwrap();
        simulation.set_faults(&[
            rule(Fault::QueuePairError(20_000), 20, u32::MAX),
            rule(Fault::ServerAway(30_000), 300, u32::MAX),
            rule(Fault::DelayedLine(30_000), 50, u32::MAX),
            rule(Fault::StalledShard(20_000), 200, u32::MAX),
        ]);
        let base = [area(&simulation, 0), area(&simulation, 1)];
        let alive = Rc::new(Cell::new(0));
        let failures = Rc::new(Cell::new(0));
        for client in 0..24u64 {
            let v = simulation.shard(client as u16 % 2, client as u16 / 2 % 2);
            let at = base[client as usize % 2].add(client * 1024);
            start(&v.clone(), &alive, adds(v, at, ROUNDS, Rc::clone(&failures)));
        }
        run_all(&simulation, &alive);
        assert!(failures.get() > 100, "{}", failures.get());
        simulation.heal();
        let _ = simulation.run(LATE_NS, || false);
        for (node, shard) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let v = simulation.shard(node, shard);
            assert_eq!((v.buffers_leased(), v.chains_in_flight()), (0, 0));
        }
    }
}

/// Adds to a word of its own and writes beside it; checks the words that come back against what can have happened.
async fn adds(v: SimShard, at: RemotePtr, rounds: u64, failures: Rc<Cell<u64>>) {
    let (mut least, mut most) = (0, 0);
    for n in 1..=rounds {
        let mut chain = Chain::with_buffer(at.server(), filled(&v, 512, n));
        chain.write(at.add(256), 0..256).faa(at, 1).read(at.add(256), 256..512).read(at, 256..264);
        match v.submit(&Meter::default(), chain).await {
            Ok(done) => {
                let found = done.atomics[0];
                assert!((least..=most).contains(&found), "{found} is not in {least}..={most}");
                (least, most) = (found + 1, found + 1);
                let words = kit::words(&done.into_buf());
                assert_eq!((words[32], &words[33..]), (found + 1, &[n; 31][..]));
            }
            Err(failed) => {
                failures.set(failures.get() + 1);
                assert!(
                    failed.cause().is_passing() || matches!(failed.cause(), FabricError::ServerGone { .. })
                );
                most += 1;
            }
        }
    }
}

/// Chains that are posted while a queue pair is broken wait, and go in their order when it is back, also if it breaks
/// once more meanwhile.
#[test]
fn chains_keep_their_order_across_an_error() {
    for seed in 0..40 {
        let simulation = simulation(seed, Reordering::NONE);
        let at = area(&simulation, 0);
        let rules = [rule(Fault::QueuePairError(20_000), 1, 1), rule(Fault::QueuePairError(2_000), 2, 1)];
        simulation.set_faults(&rules);
        let v = simulation.shard(0, 0);
        let inner = v.clone();
        simulation
            .block_on(&v, LATE_NS, async move {
                let found = RefCell::new(Vec::new());
                let mut posted = Vec::new();
                for n in 0..60 {
                    let mut chain = Chain::new(at.server());
                    chain.fence().faa(at, 1);
                    let submission = inner.submit(&Meter::default(), chain);
                    let found = &found;
                    posted.push(async move {
                        if let Ok(done) = submission.await {
                            found.borrow_mut().push((n, done.atomics[0]));
                        }
                    });
                    inner.pause(n % 7 * 150).await;
                    if n % 5 == 0 {
                        // Its doorbell comes much later than its place in line.
                        inner.work(n * 97 % 3000);
                    }
                }
                futures::future::join_all(posted).await;
                let mut found = found.take();
                found.sort_unstable();
                assert!(found.len() > 1 && found.len() < 60);
                assert!(found.is_sorted_by_key(|&(_, ticket)| ticket), "seed {seed}: {found:?}");
            })
            .unwrap();
    }
}
