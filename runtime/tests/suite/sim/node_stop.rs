//! A compute node that stops: its clients never run again, verbs on the wire take effect or not, other nodes work on.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use farwood_runtime::sim::{Fault, Reordering, Simulation};
use farwood_runtime::{Chain, Message, Meter, Port, RemotePtr, ShardId, Verbs};

use super::kit::{LATE_NS, ROUGH, area, faa, read, rule, simulation, start, write_chain};

type Counts = [Rc<Cell<u64>>; 4];

/// Clients on both nodes that add to a word of their shard, and count their additions.
struct Scene {
    simulation: Simulation,
    /// Address of the words of the shards, a line each.
    at: RemotePtr,
    /// Additions that were posted, by shard.
    posted: Counts,
    /// Additions that are known to have succeeded, by shard.
    done: Counts,
    heard: Rc<Cell<u64>>,
}

fn scene(seed: u64, reordering: Reordering) -> Scene {
    let simulation = simulation(seed, reordering);
    let at = area(&simulation, 0);
    let (posted, done) = (Counts::default(), Counts::default());
    let heard = Rc::new(Cell::new(0));
    let alive = Rc::default();
    for place in 0..4u16 {
        let v = simulation.shard(place / 2, place % 2);
        if place < 2 {
            let heard = Rc::clone(&heard);
            v.listen(Port(0), Rc::new(move |_, _| heard.set(heard.get() + 1)));
        }
        let word = at.add(u64::from(place) * 64);
        for _ in 0..3 {
            let (posted, done) = (Rc::clone(&posted[place as usize]), Rc::clone(&done[place as usize]));
            let v = v.clone();
            start(&v.clone(), &alive, async move {
                loop {
                    posted.set(posted.get() + 1);
                    faa(&v, word, 1).await.unwrap();
                    done.set(done.get() + 1);
                    v.send(ShardId(1 - v.shard().0), Port(0), Message::default());
                    v.pause(500).await;
                }
            });
        }
    }
    Scene { simulation, at, posted, done, heard }
}

#[test]
fn clients_of_a_stopped_node_never_run_again_and_others_go_on() {
    let mut late = [0, 0];
    for seed in 0..30 {
        let Scene { simulation, at, posted, done, heard } = scene(seed, ROUGH);
        let _ = simulation.run(50_000 + seed * 777, || false);
        simulation.stop_node(0);
        assert!(simulation.shard(0, 1).is_dead() && !simulation.shard(1, 0).is_dead());
        let counts = || {
            let counts = posted.iter().chain(&done).map(|count| count.get());
            (counts.collect::<Vec<u64>>(), heard.get())
        };
        let (then, heard_then) = counts();
        let _ = simulation.run(simulation.now() + 200_000, || false);
        let (now, heard_now) = counts();
        assert_eq!((&now[..2], &now[4..6], heard_now), (&then[..2], &then[4..6], heard_then));
        assert!((2..4).all(|other| now[4 + other] > then[4 + other] + 20), "{then:?} {now:?}");
        // Verbs that were on the wire.
        let other = simulation.shard(1, 0);
        let reading = async move { read(&other, at, 128).await.unwrap() };
        let words = simulation.block_on(&simulation.shard(1, 0), LATE_NS, reading).unwrap();
        for shard in 0..2 {
            let (word, done, posted) = (words[shard * 8], now[4 + shard], now[shard]);
            assert!((done..=posted).contains(&word), "{word} is not in {done}..={posted}");
            late[0] += u64::from(word < posted);
            late[1] += u64::from(word > done);
        }
    }
    assert!(late[0] > 3 && late[1] > 3, "lost and late: {late:?}");
}

#[test]
fn a_rule_stops_a_node() {
    let Scene { simulation, done, .. } = scene(3, Reordering::NONE);
    simulation.set_faults(&[rule(Fault::NodeStop, 50, 1)]);
    simulation.keep_notes(10);
    let _ = simulation.run(200_000, || false);
    let dead: Vec<bool> = (0..4).map(|place| simulation.shard(place / 2, place % 2).is_dead()).collect();
    assert!(dead == [true, true, false, false] || dead == [false, false, true, true], "{dead:?}");
    let notes = simulation.notes();
    assert!(notes.len() == 1 && notes[0].contains("NodeStop"), "{notes:?}");
    assert!(done.iter().any(|done| done.get() > 100));
}

/// A chain is cut at any verb boundary, and only there, if no line is late.
#[test]
fn a_chain_is_cut_at_any_verb() {
    let mut prefixes = [0; 6];
    for delay in (0..700).step_by(4) {
        let simulation = simulation(delay, Reordering::NONE);
        let at = area(&simulation, 0);
        let v = simulation.shard(0, 0);
        let alive = Rc::default();
        start(&v.clone(), &alive, async move {
            let mut chain = Chain::new(at.server());
            (0..5).for_each(|n| _ = chain.write_word(at.add(n * 64), 1));
            v.submit(&Meter::default(), chain).await.unwrap();
        });
        // Something that happens every nanosecond, so that the run ends exactly there.
        let ticking = simulation.shard(1, 1);
        let clock = ticking.clone();
        start(&ticking, &alive, async move {
            loop {
                clock.pause(1).await;
            }
        });
        let _ = simulation.run(300 + delay, || false);
        simulation.stop_node(0);
        let _ = simulation.run(20_000, || false);
        let other = simulation.shard(1, 0);
        let reading = async move { read(&other, at, 320).await.unwrap() };
        let words = simulation.block_on(&simulation.shard(1, 0), LATE_NS, reading).unwrap();
        let written: Vec<u64> = words.iter().step_by(8).copied().collect();
        let prefix = written.iter().take_while(|&&word| word == 1).count();
        assert!(written[prefix..].iter().all(|&word| word == 0), "{written:?}");
        prefixes[prefix] += 1;
    }
    assert!(prefixes.iter().all(|&count| count > 0), "{prefixes:?}");
}

/// Returns the parts of a chain (a WRITE of three lines and an unlock behind it) that have taken effect after a rule
/// has stopped its node: a bit for each line, and the highest one for the unlock.
fn parts_written(seed: u64, reordering: Reordering) -> (u8, String) {
    let simulation = simulation(seed, reordering);
    let at = area(&simulation, 0);
    simulation.set_faults(&[rule(Fault::NodeStop, 2, 1)]);
    simulation.keep_notes(10);
    let v = simulation.shard(0, 0);
    start(&v.clone(), &Rc::default(), async move {
        let mut chain = write_chain(&v, at, 3 * 64, 1);
        chain.write_word(at.add(256), 1);
        // A stopped node hears of nothing.
        let _ = v.submit(&Meter::default(), chain).await;
    });
    let _ = simulation.run(LATE_NS, || false);
    simulation.heal();
    let other = simulation.shard(1, 0);
    let reading = async move { read(&other, at, 320).await.unwrap() };
    let words = simulation.block_on(&simulation.shard(1, 0), LATE_NS, reading).unwrap();
    let is_written = |part: usize| u8::from(words[part * 8] == 1) << part.min(3);
    ((0..5).filter(|&part| part != 3).map(is_written).sum(), simulation.notes().join(""))
}

#[test]
fn a_rule_stops_a_node_behind_each_verb_and_within_a_write() {
    let whole = 0b1111;
    for (in_order_write, expected) in [
        (true, BTreeSet::from([0, 0b001, 0b011, 0b111, whole])),
        (false, (0..0b1000).chain([whole]).collect()),
    ] {
        for reordering in [ROUGH, Reordering::NONE] {
            let runs = (0..600).map(|seed| parts_written(seed, Reordering { in_order_write, ..reordering }));
            let (mut seen, mut within) = (BTreeSet::new(), BTreeSet::new());
            for (parts, notes) in runs {
                seen.insert(parts);
                if notes.contains("Within") {
                    within.insert(parts);
                }
            }
            assert_eq!(seen, expected, "in order: {in_order_write}");
            // The requests before it and itself may be lost altogether, but nothing behind it arrives.
            assert!(within.len() > 2 && !within.contains(&whole), "{within:?}");
        }
    }
}

#[test]
fn a_node_comes_back_as_another_and_new_ones_join() {
    for seed in 0..20 {
        let Scene { simulation, at, posted, .. } = scene(seed, ROUGH);
        let _ = simulation.run(30_000, || false);
        simulation.stop_node(0);
        simulation.stop_node(0);
        assert_eq!((simulation.nodes(), simulation.nodes_stopped()), (2, 1));
        let (back, new) = (simulation.add_node(Some(0)), simulation.add_node(None));
        assert_eq!((back, new, simulation.nodes()), (2, 3, 4));
        let ids: BTreeSet<u16> = (0..4).map(|node| simulation.shard(node, 1).node_id()).collect();
        assert_eq!(ids.len(), 4, "{ids:?}");
        assert!(simulation.shard(0, 0).is_dead() && !simulation.shard(back, 0).is_dead());
        let posted_then = posted[0].get();
        for (node, offset) in [(back, 256), (new, 320)] {
            let v = simulation.shard(node, 1);
            let client = v.clone();
            let adding = async move {
                for n in 0..100 {
                    assert_eq!(faa(&client, at.add(offset), 1).await.unwrap(), n);
                }
                // The writes of the stopped node are there.
                read(&client, at, 8).await.unwrap()[0]
            };
            let left = simulation.block_on(&v, LATE_NS, adding).unwrap();
            assert!(left > 0 && left <= posted_then, "{left} of {posted_then}");
        }
        assert_eq!(posted[0].get(), posted_then, "the one that stopped stays so");
    }
}
