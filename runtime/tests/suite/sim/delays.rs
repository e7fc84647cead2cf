//! Late lines, late messages of the fabric and stalled shards, as they show in virtual time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use farwood_runtime::sim::{Fault, Reordering, Rule};
use farwood_runtime::{Message, Port, ShardId, Verbs};

use super::kit;
use super::kit::{LATE_NS, area, faa, read, rule, run_all, simulation, start};

/// Measures the longest of 300 READs of 1 KiB, and the longest span that their completions report.
fn longest(rules: &[Rule]) -> (u64, u32) {
    let simulation = simulation(1, Reordering { lines: true, ..Reordering::NONE });
    let at = area(&simulation, 0);
    simulation.set_faults(rules);
    let v = simulation.shard(0, 0);
    let client = v.clone();
    let reading = async move {
        let (mut longest, mut span) = (0, 0);
        for _ in 0..300 {
            let before = client.now();
            let done = client.read(&Default::default(), at, 1024).await.unwrap();
            assert!(u64::from(done.span_ns) <= client.now() - before);
            (longest, span) = (longest.max(client.now() - before), span.max(done.span_ns));
        }
        (longest, span)
    };
    simulation.block_on(&v, LATE_NS, reading).unwrap()
}

#[test]
fn late_lines_and_messages_take_their_time() {
    let (calm, span) = longest(&[]);
    assert!(calm < 4_000 && span < 4_000, "{calm}");
    for fault in [Fault::DelayedLine(300_000), Fault::LatencySpike(100_000)] {
        let (rough, span) = longest(&[rule(fault, 20, u32::MAX)]);
        assert!((50_000..310_000).contains(&rough), "{fault:?}: {rough}");
        // The bound covers it: a reader that relies on it reads again.
        assert!(u64::from(span) + 2_000 > rough, "{fault:?}: {span}");
    }
}

/// A line that is late tears the READ around it.
#[test]
fn a_late_line_is_seen_late() {
    let simulation = simulation(2, Reordering { lines: true, ..Reordering::NONE });
    let at = area(&simulation, 0);
    simulation.set_faults(&[rule(Fault::DelayedLine(100_000), 4, u32::MAX)]);
    let alive = Rc::new(Cell::new(0));
    let reading = kit::keep_writing(&simulation.shard(0, 0), &alive, at, 512);
    let v = simulation.shard(1, 0);
    start(&v.clone(), &alive, async move {
        let mut widest = 0;
        for _ in 0..300 {
            let words = read(&v, at, 512).await.unwrap();
            widest = widest.max(words.iter().max().unwrap() - words.iter().min().unwrap());
        }
        assert!(widest > 5, "a line was at most {widest} WRITEs late");
        reading.set(false);
    });
    run_all(&simulation, &alive);
}

/// The rest of a READ comes when WRITEs have overtaken it, as many as the fault says, or when its time is over.
#[test]
fn writes_overtake_a_read() {
    const WRITES: u32 = 32;
    const WITHIN_NS: u64 = 300_000;
    let simulation = simulation(3, Reordering { lines: true, ..Reordering::NONE });
    let at = area(&simulation, 0);
    simulation.set_faults(&[rule(
        Fault::OvertakenRead { writes: WRITES, within_ns: WITHIN_NS },
        4,
        u32::MAX,
    )]);
    let alive = Rc::new(Cell::new(0));
    // A word in each of two lines.
    let reading = kit::keep_writing(&simulation.shard(0, 0), &alive, at.add(56), 16);
    let v = simulation.shard(1, 0);
    start(&v.clone(), &alive, async move {
        let mut overtaken = 0;
        for _ in 0..200 {
            let words = read(&v, at, 128).await.unwrap();
            let apart = words[8].abs_diff(words[7]);
            // A WRITE that is under way may be seen in one line only.
            let is_overtaken = apart.abs_diff(u64::from(WRITES)) <= 1;
            assert!(apart <= 1 || is_overtaken, "{apart}");
            overtaken += u32::from(is_overtaken);
        }
        assert!((20..90).contains(&overtaken), "{overtaken} of 200");
        reading.set(false);
        v.pause(WITHIN_NS).await;
        let (mut longest, mut span) = (0, 0);
        for _ in 0..20 {
            let before = v.now();
            span = span.max(v.read(&Default::default(), at, 128).await.unwrap().span_ns);
            longest = longest.max(v.now() - before);
        }
        assert!((WITHIN_NS..WITHIN_NS + 10_000).contains(&longest), "{longest}");
        assert!(u64::from(span) >= WITHIN_NS, "{span}");
    });
    run_all(&simulation, &alive);
}

/// A stalled shard runs no client, hears no message and looks at no completion; what came meanwhile comes in order.
#[test]
fn a_stalled_shard_does_nothing() {
    const MESSAGES: u64 = 8000;
    let simulation = simulation(6, Reordering::NONE);
    let at = area(&simulation, 0);
    let active: Rc<RefCell<Vec<u64>>> = Rc::default();
    let (v, sender) = (simulation.shard(0, 0), simulation.shard(0, 1));
    let (seen, next, listener) = (Rc::clone(&active), Rc::new(Cell::new(0)), v.clone());
    let heard = Rc::clone(&next);
    v.listen(
        Port(0),
        Rc::new(move |_, message| {
            assert_eq!(message.0[0], heard.get(), "messages came in another order");
            heard.set(heard.get() + 1);
            seen.borrow_mut().push(listener.now());
        }),
    );
    let alive = Rc::new(Cell::new(0));
    let (seen, client) = (Rc::clone(&active), v.clone());
    start(&v, &alive, async move {
        for n in 0..200 {
            faa(&client, at, 1).await.unwrap();
            seen.borrow_mut().push(client.now());
            client.pause(n % 7 * 300).await;
            seen.borrow_mut().push(client.now());
        }
    });
    start(&sender.clone(), &alive, async move {
        for n in 0..MESSAGES {
            sender.send(ShardId(0), Port(0), Message([n, 0, 0]));
            sender.pause(200).await;
        }
    });
    simulation.set_faults(&[rule(Fault::StalledShard(100_000), 60, 3)]);
    run_all(&simulation, &alive);
    let _ = simulation.run(LATE_NS, || next.get() == MESSAGES);
    let active = active.take();
    assert!(active.is_sorted(), "time went back");
    let gaps = active.windows(2).filter(|pair| pair[1] - pair[0] > 10_000).count();
    assert!((1..=3).contains(&gaps), "{gaps}: messages come every 200 ns, but for stalls");
}
