//! The least time of a WRITE: measured by a memory server from its device to itself, where no network is between.
//! It bounds how fast two writes of one entry can follow each other
//! ([`crate::control::queue_pair::Answer::write_ns`]). Also the first proof that the device works.

use std::sync::Arc;

use ibverbs_sys as ffi;
use smallvec::smallvec;

use super::context::Port;
use super::cq::CompletionQueue;
use super::error::VerbsError;
use super::memory::{Access, Words};
use super::post::{Places, Plan, RemoteRegion, Request, WorkRequests};
use super::qp::{QueuePair, Side};
use crate::chain::Op;
use crate::clock::Clock;
use crate::pointer::ServerId;

/// Enough that one of them is not disturbed.
const WRITES: u32 = 64;
/// When a WRITE counts as lost; beyond what the queue pair tries again.
const LOST_NS: u64 = 10_000_000_000;

/// Measures the fastest of some WRITEs of a word, in ns.
pub(super) fn measure_write(port: &Arc<Port>, clock: &Clock) -> Result<u32, VerbsError> {
    let lost = |cause: String| VerbsError::Loopback { device: port.device().into(), cause };
    let cq = Arc::new(CompletionQueue::new(port.context(), 16, false)?);
    let side = Side::Requester { work_requests: 4 };
    // Declared before the queue pairs, so freed after them.
    let words = Words::new(port.protection(), 8, Access::Remote)?;
    let sender = QueuePair::new(port, &cq, side, clock.now() as u32)?;
    let receiver = QueuePair::new(port, &cq, Side::Responder, clock.now() as u32)?;
    receiver.connect(&sender.endpoint())?;
    sender.connect(&receiver.endpoint())?;
    let places = Places {
        region: RemoteRegion { address: words.address(0), key: words.remote_key() },
        buffer: None,
        words: &words,
        first_word: 1,
        words_count: 8,
    };
    let mut requests = WorkRequests::default();
    let mut fastest = u64::MAX;
    for word in 1..=u64::from(WRITES) {
        let op = Op::WriteWord { at: 0, word };
        let plan: Plan = smallvec![Request { op, fenced: false, signalled: true }];
        let begun = clock.now();
        // SAFETY: the words outlive both queue pairs, and nothing else is in flight.
        unsafe { requests.post(&sender, &plan, ServerId(0), word, &places) }
            .map_err(|cause| lost(cause.to_string()))?;
        completion(&cq, begun + LOST_NS, clock).map_err(lost)?;
        fastest = fastest.min(clock.now() - begun);
        if words.get(0) != word.to_le() {
            return Err(lost("a WRITE completed and is not there".into()));
        }
    }
    Ok(u32::try_from(fastest).unwrap_or(u32::MAX))
}

fn completion(cq: &CompletionQueue, until: u64, clock: &Clock) -> Result<(), String> {
    let mut entry = [ffi::ibv_wc::default()];
    while clock.now() < until {
        match cq.poll(&mut entry) {
            Ok(0) => std::hint::spin_loop(),
            Ok(_) => return entry[0].error().map_or(Ok(()), |(status, _)| Err(format!("status {status}"))),
            Err(cause) => return Err(cause.to_string()),
        }
    }
    Err("no completion came".into())
}
