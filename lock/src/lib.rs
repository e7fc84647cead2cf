//! Hierarchical node locks with hand-over (Sherman section 4.3), for any index over [`farwood_runtime::Verbs`].
//!
//! A lock has two halves. Its *global* half is a word in the lock region of the node's own memory server, or in the
//! node itself: 0 when free, taken by CAS, cleared by a WRITE that travels behind the write-back (by a CAS where WRITEs
//! are not atomic against CASes: `Capabilities::atomic_writes`). Its *local* half is a FIFO queue on one shard of each
//! compute node, the lock's home. Only the holder of the local half touches the word, so clients of one compute node
//! never spin against each other on the network, and a releasing holder may pass the taken word on to the next.
//!
//! ```text
//!   acquire ──> local queue ──> lock_and_read ──> CAS + READ ──> ... ──> release: WRITE(s) + unlock WRITE
//!                    │ handed over                READ ──> ... ──┤  or: WRITE(s), word left taken ──┐
//!                    └───────────────────────────────────────────┴── next in the queue <────────────┘
//! ```
//!
//! Round trips of one read-modify-write under a lock, as the tests assert them:
//!
//! | | lock and READ | write-back and release |
//! |---|---|---|
//! | fused, combined | 1 (CAS, READ) | 1 (WRITE, unlock) |
//! | CAS and READ apart | 2 | |
//! | unlock apart | | 2 |
//! | got by hand-over | 1 (READ) | |
//! | with the image | 0 | |
//! | passed on | | 1 (WRITE) |
//! | rear lock, lines in order | | 1 (WRITE of both) |
//! | words behind the lock | | 1 (WRITE, WRITE of words and unlock) |
//! | recorded | | 1 (WRITE of the intent, WRITE, unlock) |
//! | recorded, passed on | | 1 (WRITE of the intent, WRITE, WRITE: no intent) |
//!
//! A *rear lock* (SMART section 4.1.1) is a word at the end of its node ([`LockTable::acquire_embedded`]), which the
//! write-back itself clears ([`Held::release_rear`]). Words that lie behind one in its line are written with the unlock
//! ([`Held::with_words_behind`]): CHIME's vacancy bitmap. A word in a node may also carry data of that node while it is
//! free, which the CAS brings and the release replaces ([`WordCodec`]).
//!
//! A map: [`LockTable`] (`table`) is a shard's handle and its actor, [`Held`] (`held`) one acquisition, `janitor`
//! cleans up after a dropped one, `backlog` bounds its work. The protocol between shards is pure: `handover` decides at
//! a lock's home, `wait_list` is its queue, `slots` (and `hint`) keeps what waits on a client's shard, `message` is
//! their codec; `images` are what holders leave for the next. `place` says where a node's lock is, `word` what it
//! holds, and what a free one carries; `audit` reads them all, and `deaths` knows whose words protect nothing any more.
//! `backoff` paces attempts, `pace` the janitor's, `patience` ends waits.
//!
//! Where a table has an [`IntentLog`], releases that could leave a node half written first write what they are about to
//! (`intent`), in slots that every holder has (`intents`), and `recovery` takes over the locks of dead compute nodes.
//! A node that tells itself what was begun is mended without an intent (`mending`).
//!
//! [`shared`] adds locks of nodes that many clients share and one has alone: Dolphin's Spear. It lies on the parts
//! above, and none of them knows of it.
//!
//! Beside the locks, [`window`] lets clients of one compute node that want the same key share one operation: read
//! delegation and write combining (SMART section 4.2). Its parts are named like those of the locks, and share
//! `wait_list` and `slots` with them.
//!
//! Deliberately absent: node formats, caches, clocks, and waits for a second lock: a holder only tries one
//! (`table/trying.rs`).

#![forbid(unsafe_code)]

mod audit;
mod backlog;
mod backoff;
mod config;
mod deaths;
mod error;
mod handover;
mod held;
mod hint;
mod images;
mod intent;
mod intents;
mod janitor;
mod mending;
mod message;
mod pace;
mod patience;
mod place;
mod recovery;
pub mod shared;
mod slots;
mod stats;
mod table;
mod wait_list;
pub mod window;
mod word;

pub use backoff::Backoff;
pub use config::LockConfig;
pub use error::{LockError, OnceDead};
pub use held::Held;
pub use images::Images;
pub use intents::{IntentLog, intent_pages};
pub use mending::{Mend, Mending};
pub use place::on_chip_possible;
pub use stats::LockStats;
pub use table::LockTable;
pub use word::{LockWord, WordCodec, tag_of};
