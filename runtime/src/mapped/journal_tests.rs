//! Tests of the journal: writers that die at every step. A second opening of the file stands for another process: for
//! the kernel's locks it is one.

use std::path::Path;

use super::super::access::Access;
use super::super::file::RegionFile;
use super::super::file::tests::Folder;
use super::super::line::LineMode;
use super::super::order::{held_by, place};
use super::super::region::{AccessError, Region, RegionConfig, RegionError};
use super::*;
use crate::control::ControlError;
use crate::control::seal::SealKey;
use crate::memory::catalog::NewIndex;
use crate::memory::{MemoryServer, ServerParts};

pub(crate) const AT: usize = 4096 + 2 * LINE_BYTES;
pub(crate) const OLD: [u64; LINE_WORDS] = [1, 2, 3, 4, 5, 6, 7, 8];

/// A client that can be stopped at any step.
pub(crate) struct Victim {
    journal: Arc<Journal>,
    /// The line that it writes.
    at: usize,
    _file: RegionFile,
}

impl Victim {
    pub(crate) fn open(path: &Path) -> Self {
        let file = RegionFile::open(path, 1).unwrap();
        let parts = file.header.parts();
        let base = file.mapping.start();
        // SAFETY: parts of the mapping, which is dropped after the journal.
        let journal = unsafe {
            let counters = base.add(parts.counters as usize).cast();
            let lines = Lines { base, counters, journal: None, mode: LineMode::Sequence };
            let slots = base.add(parts.journal as usize).cast_const().cast();
            Journal::new(file.share().unwrap(), slots, lines, file.header.region_bytes)
        };
        Victim { journal: journal.unwrap().unwrap(), at: AT, _file: file }
    }

    /// Makes it write the line at `at`.
    pub(crate) fn at(self, at: usize) -> Self {
        Victim { at, ..self }
    }

    /// Makes it a thread of that process.
    pub(crate) fn of(self, process: u32) -> Self {
        self.journal.with_slot(|_, slot| slot.pid.store(process, Ordering::Relaxed));
        self
    }

    fn counter(&self) -> &AtomicU32 {
        self.journal.counter(self.at)
    }

    fn word(&self, word: usize) -> &AtomicU64 {
        // SAFETY: inside the region.
        unsafe { AtomicU64::from_ptr(self.journal.region.base.add(self.at + word * 8).cast()) }
    }

    fn take(&self, number: u32, slot: &Slot) -> u32 {
        let version = self.counter().load(Ordering::Relaxed);
        assert!(version.is_multiple_of(2));
        slot.note_version(version);
        self.counter().store(held_by(number), Ordering::Relaxed);
        version
    }

    /// Writes `words` to the line from its word `first` on, and stops before step `end`. Yields whether it is done.
    pub(crate) fn write(&self, first: usize, words: &[u64], end: usize) -> bool {
        self.journal.with_slot(|number, slot| {
            slot.plan(self.at + first * 8, words.iter().copied());
            if end == 0 {
                return false;
            }
            let version = self.take(number, slot);
            for (i, &word) in words.iter().enumerate() {
                if end == i + 1 {
                    return false;
                }
                self.word(first + i).store(word, Ordering::Relaxed);
            }
            if end == words.len() + 1 {
                return false;
            }
            self.counter().store(version.wrapping_add(2), Ordering::Relaxed);
            true
        })
    }

    /// Writes the rest of `words`, and leaves the line.
    pub(crate) fn go_on(&self, first: usize, words: &[u64]) {
        for (i, &word) in words.iter().enumerate() {
            self.word(first + i).store(word, Ordering::Relaxed);
        }
        let version = self.journal.with_slot(|_, slot| slot.before.load(Ordering::Relaxed));
        self.counter().store(version.wrapping_add(2), Ordering::Release);
    }

    /// Adds 100 to the first word and stops before step `end`.
    fn add(&self, end: usize) {
        self.journal.with_slot(|number, slot| {
            slot.plan(self.at, std::iter::empty());
            self.take(number, slot);
            if end == 0 {
                return;
            }
            let next = self.word(0).load(Ordering::Relaxed) + 100;
            slot.plan(self.at, std::iter::once(next));
            if end == 1 {
                return;
            }
            self.word(0).store(next, Ordering::Relaxed);
        })
    }
}

pub(crate) fn server(path: &Path) -> Region {
    let config = RegionConfig { line_mode: LineMode::Sequence, ..RegionConfig::new(64 << 10, 1) };
    let region = Region::create(path, &config).unwrap();
    put(&region, OLD);
    region
}

pub(crate) fn put(region: &Region, words: [u64; LINE_WORDS]) {
    Access::to(region).write(AT as u64, words.map(u64::to_le_bytes).as_flattened()).unwrap();
}

pub(crate) fn line(region: &Region) -> [u64; LINE_WORDS] {
    let mut bytes = [0; LINE_BYTES];
    Access::to(region).read(AT as u64, &mut bytes).unwrap();
    std::array::from_fn(|word| u64::from_le_bytes(bytes[word * 8..][..8].try_into().unwrap()))
}

/// Only the client that makes an index waits for a writer that is stopped in its root word's line.
#[test]
fn a_stopped_writer_keeps_only_those_who_want_its_line() {
    let folder = Folder::new("journal-root");
    let path = folder.path("a");
    let config = RegionConfig { line_mode: LineMode::Sequence, ..RegionConfig::new(128 << 10, 1) };
    let parts = ServerParts { locks: 64, device_bytes: 0, chunk_bytes: 4096 };
    let server = MemoryServer::new(Arc::new(Region::create(&path, &config).unwrap()), parts).unwrap();
    let create = |name| {
        let (key, fenced, temporary_of) = (SealKey(1), 0, None);
        let new = NewIndex { name, kind: "", config: b"", key, fenced, temporary_of };
        server.reserve_root(&new).and_then(|root| server.create(new, root))
    };
    for name in ["a", "b"] {
        assert!(create(name).unwrap().root < AT as u64);
    }
    let victim = Victim::open(&path);
    assert!(!victim.write(0, &[70, 71], 2));
    let asked = std::thread::scope(|scope| {
        let third = scope.spawn(|| create("c"));
        let mut asked = 0;
        while !third.is_finished() {
            assert_eq!(server.usage().indexes, 2, "it is not there yet");
            asked += 1;
            std::thread::park_timeout(Duration::from_millis(1));
        }
        let stopped = Err(ControlError::WriterStopped { process: std::process::id() });
        assert_eq!(third.join().unwrap(), stopped);
        asked
    });
    assert!(asked > 20, "others were answered {asked} times in 2 s");
    drop(victim);
    let made = create("c").unwrap();
    assert_eq!((made.root, line(server.region())), (AT as u64, [0; LINE_WORDS]));
}

/// A writer lives and does not go on: no client waits for it without end, and all go on when it does, or has died.
#[test]
fn a_writer_that_is_stopped_is_named_until_it_goes_on() {
    let folder = Folder::new("journal-stopped");
    let region = server(&folder.path("a"));
    for dies in [false, true] {
        put(&region, OLD);
        let victim = Victim::open(&folder.path("a"));
        assert!(!victim.write(0, &[70, 71], 2));
        for _ in 0..3 {
            let read = region.read(AT as u64, &mut [0; LINE_BYTES]);
            let written = region.write(AT as u64 - 56, &[1; 64]);
            let swapped = region.cas(AT as u64, 1, 5).map(|_| ());
            for (outcome, bytes) in [(read, 0), (written, 56), (swapped, 0)] {
                let Err(AccessError::WriterStopped(writer)) = outcome else { panic!("{outcome:?}") };
                assert_eq!((writer.process, writer.done), (std::process::id(), bytes));
            }
        }
        assert_eq!(
            region.read(AT as u64 - 64, &mut [0; LINE_BYTES]),
            Ok(()),
            "other lines are not concerned"
        );
        if dies {
            drop(victim);
        } else {
            victim.go_on(0, &[70, 71]);
        }
        assert_eq!(line(&region), [70, 71, 3, 4, 5, 6, 7, 8]);
    }
}

/// Once it was taken to be stopped still, since two lines had the same version.
#[test]
fn a_writer_that_has_gone_on_to_another_line_is_not_stopped() {
    let folder = Folder::new("journal-other-line");
    let _region = server(&folder.path("a"));
    let (victim, other) = (Victim::open(&folder.path("a")), Victim::open(&folder.path("a")));
    assert!(!victim.write(0, &[70, 71], 2));
    let held = victim.counter().load(Ordering::Relaxed);
    let version = victim.journal.with_slot(|_, slot| slot.before.load(Ordering::Relaxed));
    let mut wait = Held::default();
    while other.journal.help(AT, held, &mut wait).is_ok() {}
    victim.go_on(0, &[70, 71]);
    let victim = victim.at(AT + LINE_BYTES);
    victim.counter().store(version, Ordering::Relaxed);
    assert!(!victim.write(0, &[70, 71], 2));
    assert_eq!(victim.counter().load(Ordering::Relaxed), held, "by the same slot");
    other.journal.help(AT + LINE_BYTES, held, &mut Held::default()).unwrap();
}

#[test]
fn finishes_a_write_that_was_begun_and_forgets_one_that_was_not() {
    let folder = Folder::new("journal-write");
    let region = server(&folder.path("a"));
    for (first, count) in [(0, 8), (3, 2), (7, 1)] {
        let words: Vec<u64> = (0..count as u64).map(|i| 70 + i).collect();
        for end in 0..count + 3 {
            put(&region, OLD);
            let victim = Victim::open(&folder.path("a"));
            let done = victim.write(first, &words, end);
            assert_eq!(done, end == count + 2);
            drop(victim);
            let mut expected = OLD;
            if end > 0 {
                expected[first..first + count].copy_from_slice(&words);
            }
            assert_eq!(line(&region), expected, "{count} words from {first}, killed before step {end}");
            assert_eq!(Access::to(&region).faa(AT as u64, 1), Ok(expected[0]), "the line is free");
        }
    }
}

#[test]
fn an_atomic_of_the_dead_takes_effect_once_or_not_at_all() {
    let folder = Folder::new("journal-atomic");
    let region = server(&folder.path("a"));
    for (end, expected) in [(0, 1), (1, 101), (2, 101)] {
        put(&region, OLD);
        let victim = Victim::open(&folder.path("a"));
        victim.add(end);
        drop(victim);
        // An heir that writes, not one that reads.
        assert_eq!(Access::to(&region).cas(AT as u64, expected, 9), Ok(expected), "killed before step {end}");
        assert_eq!(line(&region)[..2], [9, 2]);
    }
}

/// Versions go on where they were: a reader that was inside the line before sees that it has changed.
#[test]
fn versions_never_go_back() {
    let folder = Folder::new("journal-version");
    let region = server(&folder.path("a"));
    let watcher = Victim::open(&folder.path("a"));
    let version = || watcher.journal.counter(AT).load(Ordering::Relaxed);
    let before = version();
    let victim = Victim::open(&folder.path("a"));
    victim.write(0, &[5; 8], 4);
    assert_eq!(version() % 2, 1);
    drop(victim);
    assert_eq!(line(&region), [5; 8]);
    assert_eq!(version(), before.wrapping_add(2));
}

#[test]
fn waits_for_a_writer_that_lives() {
    let folder = Folder::new("journal-lives");
    let region = server(&folder.path("a"));
    let (victim, other) = (Victim::open(&folder.path("a")), Victim::open(&folder.path("a")));
    victim.write(0, &[5; 8], 4);
    let held = victim.journal.counter(AT).load(Ordering::Relaxed);
    for asker in [&other, &victim] {
        for _ in 0..10 {
            asker.journal.help(AT, held, &mut Held::default()).unwrap();
        }
        assert_eq!(victim.journal.counter(AT).load(Ordering::Relaxed), held);
        assert_eq!(
            victim.word(7).load(Ordering::Relaxed),
            8,
            "the rest of the write is its writer's business"
        );
    }
    drop(victim);
    other.journal.help(AT, held, &mut Held::default()).unwrap();
    assert_eq!(line(&region), [5; 8]);
}

/// No thread waits for the line, but the slot is needed; and an heir may die, too.
#[test]
fn who_takes_a_slot_finishes_what_was_left_in_it() {
    let folder = Folder::new("journal-slot");
    let region = server(&folder.path("a"));
    let victim = Victim::open(&folder.path("a"));
    let slot = victim.journal.with_slot(|number, _| number);
    victim.write(0, &[5; 8], 4);
    drop(victim);
    let heir = open_raw(&folder.path("a"));
    assert!(range_lock::try_lock(&heir, SLOTS + i64::from(slot), Kind::Exclusive).unwrap());
    drop(heir);
    let next = Victim::open(&folder.path("a"));
    let taken = next.journal.with_slot(|number, _| number);
    assert!(taken <= slot);
    assert!(next.journal.counter(AT).load(Ordering::Relaxed).is_multiple_of(2));
    assert_eq!(line(&region), [5; 8]);
}

#[test]
fn threads_share_a_slot_when_none_is_left() {
    let folder = Folder::new("journal-full");
    let path = folder.path("a");
    let region = server(&path);
    let others = open_raw(&path);
    let lock = |slot: u32| range_lock::try_lock(&others, SLOTS + i64::from(slot), Kind::Exclusive).unwrap();
    let locked = (0..SLOTS_MAX).filter(|&slot| lock(slot)).count();
    assert!(locked < SLOTS_MAX as usize, "the server has some");
    let error = Region::open(&path, 1).err().expect("there is no slot");
    assert!(matches!(error, RegionError::TooManyWriters { slots: SLOTS_MAX, .. }), "{error}");
    range_lock::unlock(&others, SLOTS + 99).unwrap();
    let client = Region::open(&path, 1).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..1000).all(|_| Access::to(&client).faa(AT as u64, 1).is_ok()));
        }
    });
    assert_eq!(line(&region)[0], 3001);
}

#[test]
fn slots_of_threads_that_ended_are_used_again() {
    let folder = Folder::new("journal-idle");
    let region = server(&folder.path("a"));
    let client = Victim::open(&folder.path("a"));
    let slot_of_a_thread = || {
        std::thread::scope(|scope| {
            scope.spawn(|| client.journal.with_slot(|number, _| number)).join().unwrap()
        })
    };
    let first = slot_of_a_thread();
    assert_eq!(slot_of_a_thread(), first);
    let mine = client.journal.with_slot(|number, _| number);
    assert_eq!(mine, first, "the only idle one");
    assert_ne!(slot_of_a_thread(), first);
    drop(region);
}

/// A journal that others have spoilt must not lead this process out of the region.
#[test]
fn a_spoilt_slot_is_not_followed() {
    let folder = Folder::new("journal-spoilt");
    let region = server(&folder.path("a"));
    for spoilt in [u64::MAX, place(64 << 10, 8), place(AT, 1) + 15, place(AT + 8, 8), place(1 << 40, 1)] {
        let victim = Victim::open(&folder.path("a"));
        victim.journal.with_slot(|_, slot| slot.place.store(spoilt, Ordering::Relaxed));
        drop(victim);
        drop(Victim::open(&folder.path("a")));
        assert_eq!(line(&region), OLD);
    }
}

fn open_raw(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}
