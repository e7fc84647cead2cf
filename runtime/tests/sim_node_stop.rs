//! A compute node that stops: its clients never run again, what was on the wire takes effect or not, others go on.

#[path = "kit/simulated.rs"]
mod kit;

use std::cell::Cell;
use std::rc::Rc;

use farwood_runtime::sim::{Fault, Simulation, Weather};
use farwood_runtime::{Chain, Message, Meter, Port, RemotePtr, ShardId, Verbs};

use self::kit::{LATE_NS, ROUGH, area, faa, read, rule, simulation, start};

type Counts = [Rc<Cell<u64>>; 4];

/// Clients on both nodes that add to a word of their shard, and say how often they began and ended.
struct Scene {
    simulation: Simulation,
    /// Where the words of the shards are, a line each.
    at: RemotePtr,
    /// Of each shard: additions that were posted, and that are known to have succeeded.
    posted: Counts,
    done: Counts,
    heard: Rc<Cell<u64>>,
}

fn scene(seed: u64, weather: Weather) -> Scene {
    let simulation = simulation(seed, weather);
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
        // What was on the wire.
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
    let Scene { simulation, done, .. } = scene(3, Weather::CALM);
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
        let simulation = simulation(1, Weather::CALM);
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
