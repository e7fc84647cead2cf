//! `runtime/src/epoch/`: no memory is used again that an operation may still have the address of.

use std::sync::Arc;

use code::{EpochHome, GRACE, NodeEpochs, Pins};

use crate::sync::{AtomicBool, Ordering};

#[path = "../../runtime/src/epoch/mod.rs"]
#[expect(dead_code, unreachable_pub, unused_imports, reason = "the rest of it is for shards")]
mod code;

/// Operations of the shard that reads, and turns before them: each lets an epoch come.
const OPERATIONS: u64 = GRACE - 1;
/// The node is told of so many epochs: one more than memory waits for.
const EPOCHS: u64 = GRACE + 1;

/// Models a shard whose operations read a node that another thread takes out of the index; that thread also moves the
/// cluster's epoch on, and uses the node again when it may. The fabric orders nothing of what the two do there; only
/// epochs do. An operation pins the first epoch. When it has ended, and before each further one, the shard takes a
/// turn, or `rests`.
///
/// # Panics
/// If an operation finds the node in the index, and then in it what it was used for again.
pub fn a_reader_and_a_node_that_is_used_again(rests: bool) {
    let node = Arc::new(NodeEpochs::new(1));
    let mut home = EpochHome::default();
    node.join(home.join(0));
    let (is_linked, is_reused) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    let pins = Pins::new(Arc::clone(&node), 0);
    let first = pins.pin();
    let reader = loom::thread::spawn({
        let (is_linked, is_reused) = (Arc::clone(&is_linked), Arc::clone(&is_reused));
        move || {
            drop(first);
            for number in 0..OPERATIONS {
                if rests {
                    pins.rest()
                } else {
                    pins.turn()
                }
                let pin = pins.pin();
                if is_linked.load(Ordering::Relaxed) {
                    assert!(
                        !is_reused.load(Ordering::Relaxed),
                        "operation {number} reads what is used again"
                    );
                }
                drop(pin);
            }
        }
    });
    is_linked.store(false, Ordering::Relaxed);
    let since = node.known();
    for _ in 0..EPOCHS {
        let epoch = home.acknowledge(0, node.acknowledged());
        node.learn(epoch, 0);
    }
    if node.known() >= since + GRACE {
        is_reused.store(true, Ordering::Relaxed);
    }
    reader.join().expect("no operation panics");
}
