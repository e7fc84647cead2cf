//! Lines under fire: one shard writes lines whole and in parts, another reads them, and every line read must be one
//! that was written. Without a mechanism the same stress sees lines that never existed: the test can fail.
//! A program of its own, since `.ci/run` starts it by name.

mod kit;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farwood_runtime::mapped::line::LineMode;
use farwood_runtime::{Chain, Meter, RemotePtr, Shard, Verbs};

const LINES: u64 = 8;
const LINE_WORDS: usize = 8;
/// Steps of the writer on a line, repeated, by words of the line. The first is a whole line, so that every state is
/// known from the last round on.
const STEPS: [Step; 14] = [
    Step::Write(0..8),
    Step::Write(3..5), // 16 bytes across byte 32
    Step::Write(2..5), // 24 bytes
    Step::Cas(0),
    Step::Write(1..6), // 40 bytes
    Step::Word(7),
    Step::Write(0..8),
    Step::Write(4..8),
    Step::Faa(3),
    Step::Write(0..4),
    Step::Write(5..8),
    Step::Word(4),
    Step::Cas(6),
    Step::Write(2..6),
];
const IN_FLIGHT: usize = 8;

enum Step {
    Write(Range<usize>),
    Word(usize),
    Cas(usize),
    Faa(usize),
}

impl Step {
    fn words(&self) -> Range<usize> {
        match self {
            Step::Write(words) => words.clone(),
            Step::Word(word) | Step::Cas(word) | Step::Faa(word) => *word..word + 1,
        }
    }
}

/// Returns each word of a line after step `t`: the last step that wrote it, and its place.
fn state(t: u64) -> [u64; LINE_WORDS] {
    let phase = t % STEPS.len() as u64;
    std::array::from_fn(|word| {
        let writes = |back: &u64| STEPS[(phase - back) as usize].words().contains(&word);
        let age = (0..=phase).find(writes).expect("the first step writes every word");
        (t - age) * LINE_WORDS as u64 + word as u64
    })
}

/// Returns the latest step that words `first..` of a line show, if they belong to one of its states.
fn recognise(words: &[u64], first: usize, states: &States) -> Option<u64> {
    let t = words.iter().max().expect("no READ is empty") / LINE_WORDS as u64;
    states.is(t, first, words).then_some(t)
}

/// [`state`] as a table of ages, by phase: the reader is to read, not to compute.
struct States([[u64; LINE_WORDS]; STEPS.len()]);

impl States {
    fn new() -> Self {
        let steps = STEPS.len() as u64;
        let age = |phase: u64, state: u64| steps + phase - state / LINE_WORDS as u64;
        States(std::array::from_fn(|phase| state(steps + phase as u64).map(|word| age(phase as u64, word))))
    }

    fn is(&self, t: u64, first: usize, words: &[u64]) -> bool {
        let ages = &self.0[(t % STEPS.len() as u64) as usize];
        let expected = |word: usize| (t - ages[word]) * LINE_WORDS as u64 + word as u64;
        words.iter().enumerate().all(|(i, &found)| found == expected(first + i))
    }
}

#[derive(Debug)]
struct Seen {
    line_reads: u64,
    steps: u64,
    tear: Option<Vec<u64>>,
}

/// A guard that stops the other shard, also when this one panics.
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

async fn write_lines(shard: Shard, base: RemotePtr, stop: Stop) {
    let meter = Meter::default();
    let mut in_flight = VecDeque::new();
    let mut t = 0;
    while !stop.0.load(Ordering::Relaxed) {
        if in_flight.len() == IN_FLIGHT {
            check(in_flight.pop_front().expect("it is full")).await;
        }
        t += 1;
        let (before, now) = (state(t - 1), state(t));
        let mut buf = shard.lease(64);
        for (bytes, word) in buf.chunks_exact_mut(8).zip(now) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let mut chain = Chain::with_buffer(base.server(), buf);
        let mut expected = Vec::new();
        for line in 0..LINES {
            let at = |word: usize| base.add(line * 64 + word as u64 * 8);
            match &STEPS[(t % STEPS.len() as u64) as usize] {
                Step::Write(words) => {
                    chain.write(at(words.start), words.start * 8..words.end * 8);
                }
                &Step::Word(word) => {
                    chain.write_word(at(word), now[word]);
                }
                &Step::Cas(word) => {
                    chain.fence().cas(at(word), before[word], now[word]);
                    expected.push(before[word]);
                }
                &Step::Faa(word) => {
                    chain.fence().faa(at(word), now[word] - before[word]);
                    expected.push(before[word]);
                }
            }
        }
        in_flight.push_back((shard.submit(&meter, chain), expected));
    }
    for submitted in in_flight {
        check(submitted).await;
    }
}

async fn check(
    (submission, expected): (
        farwood_runtime::shard::Submission<impl farwood_runtime::engine::Device>,
        Vec<u64>,
    ),
) {
    assert_eq!(submission.await.unwrap().atomics[..], expected[..], "another shard only reads");
}

/// Reads until a line is torn, or `line_reads` lines were read, or `ns` have passed.
async fn read_lines(shard: Shard, base: RemotePtr, line_reads: u64, ns: u64, stop: Stop) -> Seen {
    /// Words of a line that are read apart from the rest, in turns.
    const PARTS: [Range<usize>; 6] = [3..5, 2..5, 1..6, 0..8, 4..8, 6..7];
    let meter = Meter::default();
    let states = States::new();
    let until = shard.now() + ns;
    let mut in_flight = VecDeque::new();
    let mut latest = [0; LINES as usize];
    let mut seen = Seen { line_reads: 0, steps: 0, tear: None };
    for round in 0.. {
        let part = &PARTS[round % PARTS.len()];
        let mut chain = Chain::with_buffer(base.server(), shard.lease(LINES as usize * 64 + 64));
        let whole = LINES as usize * 64;
        chain.read(base, 0..whole).read(base.add(part.start as u64 * 8), whole..whole + part.len() * 8);
        in_flight.push_back((shard.submit(&meter, chain), part));
        if in_flight.len() < IN_FLIGHT {
            continue;
        }
        let (submission, part) = in_flight.pop_front().expect("it is full");
        let words = words_of(&submission.await.unwrap().into_buf());
        let lines = words[..LINES as usize * LINE_WORDS].chunks_exact(LINE_WORDS).map(|line| (0, line));
        let rest = &words[LINES as usize * LINE_WORDS..][..part.len()];
        for (i, (first, line)) in lines.chain([(part.start, rest)]).enumerate() {
            let Some(t) = recognise(line, first, &states) else {
                seen.tear = Some(line.to_vec());
                break;
            };
            if let Some(latest) = latest.get_mut(i) {
                assert!(t >= *latest, "line {i} went back from {latest} to {t}");
                seen.steps += u64::from(t > *latest);
                *latest = t;
            }
            seen.line_reads += 1;
        }
        if seen.tear.is_some() || seen.line_reads >= line_reads || shard.now() > until {
            break;
        }
    }
    drop(stop);
    seen
}

fn stress(line_mode: LineMode, line_reads: u64, seconds: u64) -> Seen {
    let _alone = kit::alone();
    let _watchdog = kit::Watchdog::new("line stress", seconds + 60);
    let cluster = kit::cluster(line_mode);
    let base = kit::area(&cluster, 0);
    let stopped = Arc::new(AtomicBool::new(false));
    let results = kit::node(&cluster, 2, 50).run(move |shard| {
        let stop = Stop(Arc::clone(&stopped));
        async move {
            // The state before the first step, for readers and CAS alike.
            let mut buf = shard.lease(64);
            buf.chunks_exact_mut(8)
                .zip(state(0))
                .for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_le_bytes()));
            let mut chain = Chain::with_buffer(base.server(), buf);
            if shard.id().0 == 0 {
                (0..LINES).for_each(|line| drop_ref(chain.write(base.add(line * 64), 0..64)));
                shard.submit(&Meter::default(), chain).await.unwrap();
                write_lines(shard, base, stop).await;
                return None;
            }
            chain.read(base.add(LINES * 64 - 8), 0..8);
            let mut found = shard.submit(&Meter::default(), chain).await.unwrap().into_buf();
            while words_of(&found)[0] == 0 {
                let mut chain = Chain::with_buffer(base.server(), found);
                chain.read(base.add(LINES * 64 - 8), 0..8);
                found = shard.submit(&Meter::default(), chain).await.unwrap().into_buf();
            }
            drop(found);
            Some(read_lines(shard, base, line_reads, seconds * 1_000_000_000, stop).await)
        }
    });
    let seen = results.unwrap().pop().flatten().expect("shard 1 reads");
    let Seen { line_reads, steps, .. } = seen;
    kit::say(&format!(
        "{line_mode:?} ({:?}): {line_reads} lines read, {steps} steps seen",
        line_mode.detect()
    ));
    seen
}

fn drop_ref(_: &mut Chain) {}

fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

fn never_tears(line_mode: LineMode, line_reads: u64) {
    let seen = stress(line_mode, line_reads, 120);
    assert_eq!(seen.tear, None, "after {} line reads", seen.line_reads);
    assert!(
        seen.line_reads >= line_reads && seen.steps > line_reads / 10_000,
        "the shards hardly met: {seen:?}"
    );
}

#[test]
fn the_chosen_mode_never_tears() {
    never_tears(LineMode::Auto, 3_000_000);
}

#[test]
fn lines_of_every_mode_of_this_cpu_never_tear() {
    // One that is Auto as well was under fire already.
    let auto = LineMode::Auto.detect().unwrap();
    kit::line_modes().into_iter().filter(|mode| *mode != auto).for_each(|mode| never_tears(mode, 3_000_000));
}

/// CI looks for the output of this.
#[test]
fn modes_of_this_cpu_are_said_and_the_chosen_one_is_among_them() {
    assert!(kit::line_modes().contains(&LineMode::Auto.detect().unwrap()));
}

#[test]
fn plain_copies_tear() {
    let seen = stress(LineMode::Plain, u64::MAX, 20);
    assert!(seen.tear.is_some(), "the stress cannot fail: no tear in {} line reads", seen.line_reads);
}

#[test]
fn states_follow_from_steps() {
    let mut line = state(0);
    let states = States::new();
    for t in 1..100 {
        for word in STEPS[(t % STEPS.len() as u64) as usize].words() {
            line[word] = t * LINE_WORDS as u64 + word as u64;
        }
        assert_eq!(state(t), line);
        assert_eq!(recognise(&line[2..6], 2, &states).is_some(), states.is(t, 2, &line[2..6]));
        assert_eq!(recognise(&line, 0, &states), Some(t));
        let mut torn = line;
        torn[5] = state(t + STEPS.len() as u64)[5];
        assert_eq!(recognise(&torn, 0, &states), None);
    }
}

/// The lines of one WRITE become visible front to back: a reader that sees a later line new, then reads an earlier one,
/// sees that new as well.
#[test]
fn lines_of_one_write_become_visible_in_order() {
    const WRITE_LINES: u64 = 16;
    const ROUNDS: u64 = 60_000;
    /// Pairs of READs that fall into a WRITE, at least. Where cores are busy the shards may hardly meet for long, so it
    /// goes on until there were so many, for this many rounds at most.
    const SPLIT_MIN: u64 = 20;
    const ROUNDS_MAX: u64 = 50 * ROUNDS;
    for line_mode in kit::line_modes() {
        let _alone = kit::alone();
        let _watchdog = kit::Watchdog::new("lines in order", 120);
        let cluster = kit::cluster(line_mode);
        let base = kit::area(&cluster, 0);
        let stopped = Arc::new(AtomicBool::new(false));
        let split = kit::node(&cluster, 2, 50).run(move |shard| {
            let stop = Stop(Arc::clone(&stopped));
            async move {
                assert!(shard.capabilities().in_order_write);
                if shard.id().0 == 0 {
                    write_in_order(shard, base, WRITE_LINES, stop).await;
                    return 0;
                }
                let is_over = |rounds, split| match split {
                    SPLIT_MIN.. => rounds >= ROUNDS,
                    _ => rounds >= ROUNDS_MAX,
                };
                read_against_the_order(shard, base, WRITE_LINES, is_over, stop).await
            }
        });
        let split = split.unwrap()[1];
        println!("{line_mode:?}: {split} pairs of READs fell into a WRITE");
        assert!(split >= SPLIT_MIN, "the shards hardly met");
    }
}

/// Writes many lines at once, beginning and ending inside a line, each WRITE full of its number.
async fn write_in_order(shard: Shard, base: RemotePtr, lines: u64, stop: Stop) {
    let meter = Meter::default();
    for n in 1u64.. {
        if stop.0.load(Ordering::Relaxed) {
            break;
        }
        let len = lines as usize * 64 - 48;
        let mut buf = shard.lease(len);
        buf.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&n.to_le_bytes()));
        let mut chain = Chain::with_buffer(base.server(), buf);
        chain.write(base.add(24), 0..len);
        shard.submit(&meter, chain).await.unwrap();
    }
}

/// Reads pairs of lines until it `is_over`, of which that gets the number so far. Yields, and tells it, how many saw
/// two different WRITEs.
async fn read_against_the_order(
    shard: Shard,
    base: RemotePtr,
    lines: u64,
    is_over: impl Fn(u64, u64) -> bool,
    stop: Stop,
) -> u64 {
    let meter = Meter::default();
    let (mut rounds, mut split) = (0, 0);
    while !is_over(rounds, split) {
        rounds += 1;
        let early = shard.random() % (lines - 1);
        let late = early + 1 + shard.random() % (lines - 1 - early);
        let mut chain = Chain::with_buffer(base.server(), shard.lease(32));
        // Words 3 and 4 of a line are in every WRITE.
        chain.read(base.add(late * 64 + 24), 0..16).read(base.add(early * 64 + 24), 16..32);
        let words = words_of(&shard.submit(&meter, chain).await.unwrap().into_buf());
        assert!(words[0] == words[1] && words[2] == words[3], "torn: {words:?}");
        assert!(
            words[2] >= words[0],
            "line {late} of WRITE {} before line {early}, still {}",
            words[0],
            words[2]
        );
        split += u64::from(words[2] > words[0]);
    }
    drop(stop);
    split
}
