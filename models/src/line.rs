//! `runtime/src/mapped/order.rs`: lines with sequence counters, of one process and of several, of which one may die.

use std::array::from_fn;
use std::convert::Infallible;
use std::sync::Arc;

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, killed_at};

#[path = "../../runtime/src/mapped/order.rs"]
mod code;

use code::{LOAD, STORE, Slot};

/// Words of a line that are written and read here; each further one multiplies the work.
const WORDS: usize = 2;
/// Offset of the line in its region.
const AT: usize = 128;

/// A line, its counter and the journal of its region.
struct Line {
    words: [AtomicU64; WORDS],
    counter: AtomicU32,
    slots: [Slot; 2],
    /// The kernel's knowledge of the owners of the slots.
    dead: [AtomicBool; 2],
}

impl Line {
    fn new() -> Arc<Self> {
        Arc::new(Line {
            words: from_fn(|_| AtomicU64::new(0)),
            counter: AtomicU32::new(0),
            slots: Default::default(),
            dead: Default::default(),
        })
    }

    fn store(&self, value: u64) {
        self.words.iter().for_each(|word| word.store(value, STORE));
    }

    /// Writes the line as a thread of a process does whose region has no journal.
    fn write_alone(&self, value: u64) {
        let pause = |_| -> Result<(), Infallible> {
            loom::thread::yield_now();
            Ok(())
        };
        code::alone(&self.counter, || self.store(value), || pause).unwrap();
    }

    fn write(&self, slot: u32, value: u64) {
        let values = [value; WORDS].into_iter();
        let store = || self.store(value);
        let at = (AT, &self.counter);
        self.slots[slot as usize].write(slot, at, values, store, || |found| self.pause(found)).unwrap();
    }

    fn add(&self, slot: u32) -> u64 {
        let next = |found| Some(found + 1);
        let at = (AT, &self.counter);
        self.slots[slot as usize]
            .change(slot, at, &self.words[0], next, || |found| self.pause(found))
            .unwrap()
    }

    fn read(&self) -> [u64; WORDS] {
        let mut found = [0; WORDS];
        let copy = || found = from_fn(|word| self.words[word].load(LOAD));
        code::read(&self.counter, copy, || |found| self.pause(found)).unwrap();
        found
    }

    /// Waits as readers and writers do: finishes what a dead owner has left, or lets others run.
    fn pause(&self, found: u32) -> Result<(), Infallible> {
        let slot = found >> 1;
        if found % 2 == 1 && self.dead[slot as usize].load(Ordering::Acquire) {
            self.finish(slot);
        }
        loom::thread::yield_now();
        Ok(())
    }

    fn finish(&self, slot: u32) {
        // The kernel's lock has one owner at a time; here only one thread ever waits.
        let (slot, number) = (&self.slots[slot as usize], slot);
        let plan = slot.planned();
        assert!(plan.at == AT || plan.words == 0, "the plan is of another line");
        slot.finish(number, &plan, &self.counter, |word, value| self.words[word].store(value, STORE));
    }

    /// Returns the words at rest, when no owner but perhaps a dead one holds the line.
    fn end(&self) -> [u64; WORDS] {
        (0..2).for_each(|slot| self.finish(slot));
        assert_eq!(self.counter.load(Ordering::Relaxed) % 2, 0, "the line is held for good");
        from_fn(|word| self.words[word].load(Ordering::Relaxed))
    }
}

/// Models a thread that writes a line twice, and another that reads it.
///
/// # Panics
/// If a line is read that never was, or goes back.
pub fn a_writer_and_a_reader() {
    let line = Line::new();
    let reader = {
        let line = Arc::clone(&line);
        loom::thread::spawn(move || {
            let first = line.read();
            let second = line.read();
            assert!(first[0] == first[1] && second[0] == second[1], "torn: {first:?}, {second:?}");
            assert!(first <= second, "it went back from {first:?} to {second:?}");
        })
    };
    (1..=2).for_each(|value| line.write_alone(value));
    reader.join().expect("the reader does not panic");
}

/// Models two threads of different processes that add to one word.
///
/// # Panics
/// If an addition is lost.
pub fn two_adders() {
    let line = Line::new();
    let adder = {
        let line = Arc::clone(&line);
        loom::thread::spawn(move || line.add(1))
    };
    let found = [line.add(0), adder.join().expect("it does not panic")];
    assert!(found == [0, 1] || found == [1, 0], "{found:?}");
    assert_eq!(line.end()[0], 2);
}

/// Models a process that writes a line and dies before its store number `stores`; another reads the line meanwhile, and
/// finishes what the dead one has left.
///
/// # Panics
/// If a torn line is read, or remains.
pub fn a_reader_and_a_writer_that_dies(stores: u32) {
    reader_and_dying(stores, |line| line.write(0, 1));
}

/// Models the control: a writer that plans only when it holds the line already.
///
/// # Panics
/// It must, for some `stores`.
pub fn a_reader_and_a_writer_that_plans_late(stores: u32) {
    reader_and_dying(stores, |line| {
        let slot = &line.slots[0];
        let mark = |version| {
            slot.note_version(version);
            code::held_by(0)
        };
        let before = code::take(&line.counter, mark, || |found| line.pause(found)).unwrap();
        // The first word is written when the plan is made.
        line.words[0].store(1, STORE);
        slot.plan(AT, [1; WORDS].into_iter());
        line.words[1].store(1, STORE);
        code::release(&line.counter, before);
    });
}

fn reader_and_dying(stores: u32, life: impl Fn(&Line)) {
    let line = Line::new();
    let reader = {
        let line = Arc::clone(&line);
        loom::thread::spawn(move || {
            let found = line.read();
            assert!(found[0] == found[1], "torn: {found:?}");
            found
        })
    };
    let lived = killed_at(stores, || life(&line));
    line.dead[0].store(true, Ordering::Release);
    let found = reader.join().expect("the reader does not panic");
    let left = line.end();
    assert!(left[0] == left[1], "torn at rest: {left:?}");
    assert!((!lived || left[0] == 1) && found <= left, "{found:?}, then {left:?}");
}

/// Models a process that adds to a word and dies before its store number `stores`; another adds to it too.
///
/// # Panics
/// If an addition took effect twice, or one of the living was lost.
pub fn an_adder_and_one_that_dies(stores: u32) {
    let line = Line::new();
    let dying = {
        let line = Arc::clone(&line);
        loom::thread::spawn(move || {
            let lived = killed_at(stores, || {
                line.add(0);
            });
            line.dead[0].store(true, Ordering::Release);
            lived
        })
    };
    line.add(1);
    let lived = dying.join().expect("it dies, it does not panic");
    let sum = line.end()[0];
    assert!(sum == 2 || (sum == 1 && !lived), "{sum}");
}
