//! A memory server's side: its region, the chunks that it hands out, and its catalog. It knows neither who asks nor how
//! its memory is reached; the embedded fabric and the control service stand on it.
//!
//! ```text
//! region of a memory server
//! +------------+--------------------+--------------+--------------------+----------------------------------+
//! | header     | root words         | host locks   | device area        | chunks, handed out front to back |
//! | 4096 bytes | one line per index | 64-bit words | 64-bit lock words  | and again after an index's drop  |
//! +------------+--------------------+--------------+--------------------+----------------------------------+
//! 0            4096                 69632          next multiple of     next multiple of 4096
//!                                                  4096; may be empty
//! ```
//!
//! The device area stands for the on-chip memory of the server's NIC. It is memory like the rest of the region; a
//! fabric may treat addresses in it as on-chip (the simulator's NIC model makes them cheap).
//!
//! A server's CPU never touches a word that verbs change, but for zeroing chunks and root words that no index uses.

pub(crate) mod catalog;
pub(crate) mod chunks;
mod given;
pub(crate) mod layout;
mod server;

use thiserror::Error;

pub use self::layout::ServerParts;
pub use self::server::MemoryServer;
use crate::mapped::region::RegionError;

/// Why a cluster could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The configuration contradicts itself.
    #[error("{0}")]
    Config(String),
    /// The system gave no memory.
    #[error(transparent)]
    Region(#[from] RegionError),
}
