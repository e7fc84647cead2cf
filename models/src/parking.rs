//! `runtime/src/shard/parking.rs`: a message never meets a sleeping poller.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize as Count;

use futures::task::{ArcWake, waker};

use crate::sync::{AtomicBool, Ordering};

#[path = "../../runtime/src/shard/parking.rs"]
#[expect(dead_code, unreachable_pub, reason = "the rest of it is for the shard")]
mod code;

/// Counts wakes.
struct Woken(Count);

impl ArcWake for Woken {
    fn wake_by_ref(woken: &Arc<Self>) {
        woken.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Models a poller that is about to sleep, and `senders` shards with a message each. A ring orders its messages by
/// itself; here only parking does.
///
/// # Panics
/// If the poller sleeps and no sender wakes it, though there is a message that it has not seen.
pub fn a_message_and_a_poller(senders: usize) {
    let parking = Arc::new(code::Parking::default());
    let messages: Arc<[AtomicBool]> = (0..senders).map(|_| AtomicBool::new(false)).collect();
    let woken = Arc::new(Woken(Count::new(0)));
    let sending = |sender: usize| {
        let (parking, messages) = (Arc::clone(&parking), Arc::clone(&messages));
        loom::thread::spawn(move || {
            messages[sender].store(true, Ordering::Relaxed);
            parking.unpark();
        })
    };
    let threads: Vec<_> = (0..senders).map(sending).collect();
    parking.prepare(&waker(Arc::clone(&woken)));
    let sleeps = messages.iter().any(|message| !message.load(Ordering::Relaxed));
    threads.into_iter().for_each(|thread| thread.join().expect("a sender does not panic"));
    let wakes = woken.0.load(std::sync::atomic::Ordering::Relaxed);
    assert!(!sleeps || wakes > 0, "the poller sleeps beside a message, of {senders}");
}
