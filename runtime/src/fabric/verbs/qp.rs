//! Reliable connected queue pairs: made, connected to their other side, broken on purpose, destroyed. A queue pair is
//! connected once; one that failed is replaced.

use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as ffi;
use ibverbs_sys::ibv_access_flags as allow;
use ibverbs_sys::ibv_qp_attr_mask as mask;
use ibverbs_sys::ibv_qp_state as state;

use super::context::{Port, checked, last_error, non_null};
use super::cq::CompletionQueue;
use super::error::VerbsError;
use crate::control::queue_pair::Endpoint;

/// Time that a packet waits for its acknowledgement: 4.096 us * 2^15 = 134 ms (devices may take up to four times that).
/// Far beyond the pauses of a network that is not broken, so that only loss costs that long.
const TIMEOUT: u8 = 15;
/// Times that a packet is sent again: with [`TIMEOUT`] a server that is not there any more is noticed after 1 to 4 s.
/// The field has room for 7, which Soft-RoCE takes for "for ever".
const RETRIES: u8 = 6;
/// One-sided verbs need no receiver that is ready. Should a device ask to wait all the same (for memory that it pages
/// in), then 6 times 0.64 ms; 7 would mean for ever.
const NOT_READY_RETRIES: u8 = 6;
/// 0.64 ms.
const NOT_READY_TIMER: u8 = 12;
const HOPS_MAX: u8 = 64;
/// The first packet's number has 24 bits.
pub(super) const FIRST_PACKET_MASK: u32 = 0xff_ffff;

/// Which side of a connection a queue pair is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Posts one-sided verbs; memory of this host is not reached through it.
    Requester {
        /// Work requests in flight at most.
        work_requests: u32,
    },
    /// Executes what the other side posts.
    Responder,
}

/// A queue pair.
pub(super) struct QueuePair {
    raw: NonNull<ffi::ibv_qp>,
    side: Side,
    port: Arc<Port>,
    first_packet: u32,
    is_destroyed: bool,
    inline_bytes: u32,
    _cq: Arc<CompletionQueue>,
}

// SAFETY: libibverbs is thread-safe.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Makes a queue pair that is not connected yet. The packets it sends are numbered from `first_packet` on.
    pub(super) fn new(
        port: &Arc<Port>,
        cq: &Arc<CompletionQueue>,
        side: Side,
        first_packet: u32,
    ) -> Result<Self, VerbsError> {
        let work_requests = match side {
            Side::Requester { work_requests } => work_requests,
            Side::Responder => 1,
        };
        let make = |inline_bytes| {
            let mut init = ffi::ibv_qp_init_attr {
                send_cq: cq.raw(),
                recv_cq: cq.raw(),
                cap: ffi::ibv_qp_cap {
                    max_send_wr: work_requests,
                    max_recv_wr: 1,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: inline_bytes,
                },
                qp_type: ffi::ibv_qp_type::IBV_QPT_RC,
                // Only what asks for a completion gets one.
                sq_sig_all: 0,
                ..ffi::ibv_qp_init_attr::default()
            };
            // SAFETY: protection domain and completion queue are alive, and the queue pair holds both.
            let raw = unsafe { ffi::ibv_create_qp(port.protection().raw(), &mut init) };
            // What it has is written back.
            non_null("make a queue pair", raw).map(|raw| (raw, inline_bytes.min(init.cap.max_inline_data)))
        };
        let wanted = if side == Side::Responder { 0 } else { port.inline_bytes };
        let (raw, inline_bytes) = with_most_inline(wanted, make)?;
        let first_packet = first_packet & FIRST_PACKET_MASK;
        let port = Arc::clone(port);
        let (is_destroyed, _cq) = (false, Arc::clone(cq));
        let qp = QueuePair { raw, side, port, first_packet, is_destroyed, inline_bytes, _cq };
        qp.initialise()?;
        Ok(qp)
    }

    /// Returns the most bytes of a WRITE that travel inside its work request.
    pub(super) fn inline_bytes(&self) -> u32 {
        self.inline_bytes
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_qp {
        self.raw.as_ptr()
    }

    /// Describes this side to the other one.
    pub(super) fn endpoint(&self) -> Endpoint {
        Endpoint {
            gid: self.port.gid,
            lid: self.port.lid,
            // SAFETY: alive until `drop`.
            queue_pair: unsafe { self.raw.as_ref() }.qp_num,
            first_packet: self.first_packet,
            mtu: self.port.mtu,
            reads_max: self.answers_max(),
        }
    }

    /// Returns the number of READs and atomics of the other side that it has room for. A requester gets none.
    fn answers_max(&self) -> u8 {
        if self.side == Side::Responder { self.port.limits.answers_max } else { 1 }
    }

    fn initialise(&self) -> Result<(), VerbsError> {
        let remote = allow::IBV_ACCESS_REMOTE_READ | allow::IBV_ACCESS_REMOTE_WRITE;
        let remote = remote | allow::IBV_ACCESS_REMOTE_ATOMIC;
        let mut attributes = ffi::ibv_qp_attr {
            qp_state: state::IBV_QPS_INIT,
            pkey_index: 0,
            port_num: self.port.number,
            qp_access_flags: if self.side == Side::Responder { remote.0 } else { 0 },
            ..ffi::ibv_qp_attr::default()
        };
        let which =
            mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS;
        self.modify("initialise a queue pair", &mut attributes, which)
    }

    /// Connects it: from now on it executes what `theirs` sends, and sends what is posted.
    pub(super) fn connect(&self, theirs: &Endpoint) -> Result<(), VerbsError> {
        self.become_ready_to_receive(theirs)?;
        if matches!(self.side, Side::Requester { .. }) {
            self.become_ready_to_send(theirs)?;
        }
        Ok(())
    }

    fn become_ready_to_receive(&self, theirs: &Endpoint) -> Result<(), VerbsError> {
        let mut attributes = ffi::ibv_qp_attr {
            qp_state: state::IBV_QPS_RTR,
            path_mtu: mtu_of(self.port.mtu.min(theirs.mtu)),
            dest_qp_num: theirs.queue_pair,
            rq_psn: theirs.first_packet & FIRST_PACKET_MASK,
            max_dest_rd_atomic: self.answers_max(),
            min_rnr_timer: NOT_READY_TIMER,
            ah_attr: ffi::ibv_ah_attr {
                dlid: theirs.lid,
                port_num: self.port.number,
                ..ffi::ibv_ah_attr::default()
            },
            ..ffi::ibv_qp_attr::default()
        };
        if self.port.is_ethernet {
            attributes.ah_attr.is_global = 1;
            attributes.ah_attr.grh = ffi::ibv_global_route {
                dgid: ffi::ibv_gid { raw: theirs.gid },
                sgid_index: self.port.gid_index,
                hop_limit: HOPS_MAX,
                ..ffi::ibv_global_route::default()
            };
        }
        let which = mask::IBV_QP_STATE
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_MIN_RNR_TIMER;
        self.modify("connect a queue pair", &mut attributes, which)
    }

    fn become_ready_to_send(&self, theirs: &Endpoint) -> Result<(), VerbsError> {
        let mut attributes = ffi::ibv_qp_attr {
            qp_state: state::IBV_QPS_RTS,
            sq_psn: self.first_packet,
            // Beyond what the other side has room for, READs and atomics wait in the send queue.
            max_rd_atomic: self.port.limits.reads_max.min(theirs.reads_max).max(1),
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: NOT_READY_RETRIES,
            ..ffi::ibv_qp_attr::default()
        };
        let which = mask::IBV_QP_STATE
            | mask::IBV_QP_SQ_PSN
            | mask::IBV_QP_MAX_QP_RD_ATOMIC
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY;
        self.modify("open a queue pair's send queue", &mut attributes, which)
    }

    /// Breaks it: nothing more is sent, and every work request in flight comes back as an error.
    pub(super) fn fail(&self) -> Result<(), VerbsError> {
        let mut attributes = ffi::ibv_qp_attr { qp_state: state::IBV_QPS_ERR, ..ffi::ibv_qp_attr::default() };
        self.modify("stop a queue pair", &mut attributes, mask::IBV_QP_STATE)
    }

    /// Destroys it: after `Ok` the device sends nothing more of it, uses none of its buffers, and executes nothing more
    /// that comes for it. If the device refuses, nothing has changed, and it can be tried again.
    pub(super) fn destroy(mut self) -> Result<(), Self> {
        // SAFETY: made in `new` and not destroyed; what it uses is alive, since it holds it.
        let failed = unsafe { ffi::ibv_destroy_qp(self.raw()) };
        if failed == 0 {
            self.is_destroyed = true;
            return Ok(());
        }
        tracing::warn!("cannot destroy a queue pair: {}", last_error(failed));
        Err(self)
    }

    /// Sees to it that nothing more takes effect that comes for it: stops it and destroys it. One that is stopped
    /// discards what comes, so `Err` only if the device refuses both.
    pub(super) fn retire(self) -> Result<(), Self> {
        let stopped = self.fail();
        let left = self.destroy();
        if let (Ok(()), Err(_)) = (&stopped, &left) {
            return Ok(());
        }
        left
    }

    fn modify(
        &self,
        action: &'static str,
        attributes: &mut ffi::ibv_qp_attr,
        which: ffi::ibv_qp_attr_mask,
    ) -> Result<(), VerbsError> {
        // SAFETY: the queue pair is alive, and `which` names the attributes that were set.
        checked(action, unsafe { ffi::ibv_modify_qp(self.raw(), attributes, which.0 as i32) })
    }
}

impl Drop for QueuePair {
    /// Destroys it like [`QueuePair::destroy`], for where nothing depends on whether the device refuses.
    fn drop(&mut self) {
        if self.is_destroyed {
            return;
        }
        // SAFETY: made in `new` and not destroyed; what it uses is alive, since it holds it.
        let failed = unsafe { ffi::ibv_destroy_qp(self.raw()) };
        if failed != 0 {
            // Its buffers are safe all the same: see `memory`.
            tracing::warn!("cannot destroy a queue pair: {}", last_error(failed));
        }
    }
}

/// Makes something with room for `wanted` bytes within a work request, or with as many as the device accepts: no device
/// tells how many it has room for before it is asked. Where it refuses any, the first refusal is told.
fn with_most_inline<T>(
    wanted: u32,
    mut make: impl FnMut(u32) -> Result<T, VerbsError>,
) -> Result<T, VerbsError> {
    let refused = match make(wanted) {
        Ok(made) => return Ok(made),
        Err(refused) => refused,
    };
    // A word is the least that is written.
    let less = std::iter::successors(Some(wanted), |&bytes| match bytes {
        0 => None,
        1..16 => Some(0),
        _ => Some(bytes / 2),
    });
    less.skip(1).find_map(|bytes| make(bytes).ok()).ok_or(refused)
}

fn mtu_of(bytes: u16) -> ffi::ibv_mtu {
    match bytes {
        4096.. => ffi::IBV_MTU_4096,
        2048.. => ffi::IBV_MTU_2048,
        1024.. => ffi::IBV_MTU_1024,
        512.. => ffi::IBV_MTU_512,
        _ => ffi::IBV_MTU_256,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_room_a_device_has_within_work_requests() {
        let most = |wanted, room| {
            let mut asked = Vec::new();
            let make = |bytes: u32| {
                asked.push(bytes);
                let refused = || VerbsError::Loopback { device: "a".into(), cause: bytes.to_string() };
                if Some(bytes) <= room { Ok(bytes) } else { Err(refused()) }
            };
            let made = with_most_inline(wanted, make).map_err(|error| error.to_string());
            (made, asked)
        };
        assert_eq!(most(64, Some(128)), (Ok(64), vec![64]));
        assert_eq!(most(64, Some(60)), (Ok(32), vec![64, 32]));
        assert_eq!(most(64, Some(8)), (Ok(8), vec![64, 32, 16, 8]));
        assert_eq!(most(64, Some(7)), (Ok(0), vec![64, 32, 16, 8, 0]));
        assert_eq!(most(4, Some(0)), (Ok(0), vec![4, 0]));
        assert_eq!(most(0, Some(0)), (Ok(0), vec![0]));
        let (refused, asked) = most(16, None);
        assert!(refused.unwrap_err().contains("(16)"), "the first refusal is told");
        assert_eq!(asked, [16, 8, 0]);
    }

    #[test]
    fn packets_are_no_longer_than_either_side_takes() {
        assert_eq!([0, 256, 511, 512].map(mtu_of), [1, 1, 1, 2]);
        assert_eq!([1024, 1500, 2048, 4095, 4096, u16::MAX].map(mtu_of), [3, 3, 4, 4, 5, 5]);
    }
}
