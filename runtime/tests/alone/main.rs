//! Tests that take all cores, or count descriptors and threads of the process: a file per subject, and one test at a
//! time (`kit::alone`, in every test that does anything). What measures the CPU time of all threads is a program of its
//! own (`idle.rs`), since nodes of other tests leave executors behind.

#[path = "../kit/mod.rs"]
mod kit;

mod node_ends;
mod preempt_hang;
mod reactor;
mod shared_region;
