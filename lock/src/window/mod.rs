//! Read delegation and write combining (SMART section 4.2): clients of one compute node that want the same key at the
//! same time let one of them work for all. For any index: what a key leads to is not known here.
//!
//! A *window* of a key is the time in which one client, its leader, works on it. A client that finds no window open
//! leads one at once, alone. Otherwise it waits until the open one ends; then one of the waiting clients leads the next
//! window, and all others that fit join it: readers, and writers if the leader is the last of them. They share its
//! result.
//!
//! ```text
//!   A  get ─> leads ═══ READ ═══> finish
//!   B      get ─> waits ·········· joins ════════════════════════════> has D's value
//!   C          put ─> waits ······ joins, is overwritten by D ═══════> done
//!   D              put ─> waits ·· leads ═══ lock, WRITE ═══> finish
//!   E                                      get ─> waits ·········· leads ═══ READ ═══> finish
//!             window of A         │         window of D           │       window of E
//! ```
//!
//! # Why this is linearizable
//!
//! The paper's readers join a window that is open already, and so a READ that may have happened before their call: two
//! compute nodes can then order a write and a read that followed it the wrong way round. Here a client joins only a
//! window that *starts after its call began*, because only waiting clients join, at the start. The leader begins its
//! operation after the start and finishes it before any client is told. So the moment at which the leader's operation
//! takes effect lies within the call of every one of its group, and all of them may take effect there, in this order:
//! the writes of the group, the leader's last; then the reads.
//!
//! - Reads of a window that a reader leads: the same read, at the same moment.
//! - Writes of one kind: each is overwritten by the next, and the last by the leader's, before any client can look.
//!   Whether they were applied is the same for all of them, since a write of such a kind does not change whether the
//!   next one is applied (an update finds the key or not; a put always is). Kinds that have this property only with
//!   themselves are not mixed: hence the numbers.
//! - Reads of a window that a writer leads: the value that was written, or, if it was not applied, that there is
//!   none: a kind that may fail to apply must mean by it that the key is absent.
//!
//! Everything that does not come through a window (inserts, removes, scans, other compute nodes, a kind that is
//! switched off) works on the index directly, and so does each leader. For them a window is one operation like any
//! other, which is why every mix of the switches is right: with `delegation` alone groups are readers of one read,
//! with `combining` alone they are writers of one write.
//!
//! A leader that fails, or is dropped, publishes no result: its group waits on in the order in which it came, and the
//! next leader is chosen. What the failed operation still does, it does to the index, like any operation that was given
//! up.
//!
//! # How
//!
//! Each key has a home among the shards of its compute node, which knows the open window and its waiters (`home`, pure;
//! the client's side is that of locks). Nothing is kept of a key without an open window. On the home shard all is
//! direct calls; between shards there are messages (`message`), by which values travel 16 bytes at a time. They go from
//! the leader to the home and from there once to each shard that has readers. Values too long for that are read by the
//! readers themselves, outside of any window.
//!
//! Fairness: the first waiting writer is in the next window, and so are all readers. No client waits for more windows
//! than there are kinds of writes.
//!
//! A client leads one window at a time and enters it before it takes any lock: so a client that waits for a window
//! waits for one that waits for nothing here.

mod buffer_cache;
mod config;
mod home;
mod key;
mod lead;
mod message;
mod stats;
mod table;

pub use buffer_cache::SharedValue;
pub use config::{Access, WindowConfig};
pub use lead::{Entered, LeaderGuard, Outcome};
pub use stats::WindowStats;
pub use table::WindowTable;

#[cfg(test)]
mod exhaustive;
