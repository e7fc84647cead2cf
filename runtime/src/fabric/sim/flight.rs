//! Work that is on its way: chains as groups of flights, one flight per verb, and the state of queue pairs. Plain data.

use std::collections::VecDeque;

use crate::chain::{MASKED_BYTES, Op};
use crate::engine::SlotKey;
use crate::mapped::line::LINE_BYTES;
use crate::pointer::ServerId;
use crate::verbs::FabricError;

const LINE: u64 = LINE_BYTES as u64;

/// A verb on its way, by its place in the slab.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FlightId(pub(super) u32);

/// A chain on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct GroupId(pub(super) u32);

/// A queue pair: one per shard and server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QpId(pub(super) u32);

/// A posted chain.
pub(super) struct Group {
    /// The shard that posted it, among all of the simulation.
    pub(super) core: u32,
    pub(super) slot: SlotKey,
    pub(super) server: ServerId,
    pub(super) qp: QpId,
    pub(super) posted_ns: u64,
    /// Bytes that it READs.
    pub(super) read_bytes: u64,
    /// Responses that are still to come: of READs, of atomics, and of the last verb.
    pub(super) pending: u32,
    /// Flights that are not over. The group goes when it is announced and they are.
    pub(super) flights: u32,
    /// When the last payload will be in the requester's memory.
    pub(super) done_ns: u64,
    pub(super) state: GroupState,
}

/// Progress of a chain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum GroupState {
    Running,
    /// It has failed; its shard will hear of it.
    Failed(FabricError),
    /// Its shard knows.
    Announced,
}

/// A posted verb.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) group: GroupId,
    pub(super) qp: QpId,
    pub(super) op: Op,
    pub(super) fenced: bool,
    /// Set if a response is waited for.
    pub(super) answered: bool,
    /// Atomics of its chain that come before it.
    pub(super) atomic: u16,
    /// Machines of the two ends.
    pub(super) from: u16,
    pub(super) to: u16,
    /// Pieces of a READ or WRITE that are still to happen.
    pub(super) pieces: u16,
    /// Lines of a WRITE that arrive, a bit each; the last bit is that of all lines behind it as well.
    pub(super) arriving: u64,
    /// Set if the word is, or the payload goes to, the NIC's own memory.
    pub(super) on_chip: bool,
    /// Set if it counts among its queue pair's `unanswered`, and among its `atomics`.
    pub(super) is_unanswered: bool,
    pub(super) is_executing: bool,
    pub(super) state: FlightState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FlightState {
    /// Behind a fence at the requester.
    Fenced,
    /// Between the requester's queue and the responder's slots.
    Out,
    /// At the responder, in a slot.
    InSlot,
    /// At the responder, a READ behind atomics.
    Held,
    /// Executed; its response waits for those before it.
    Ready,
    /// Its response is on the way.
    Back,
    /// It takes no effect any more, and goes when its next event comes up.
    Cancelled,
}

impl Flight {
    /// Counts the bytes that travel with the request.
    pub(super) fn request_payload(&self) -> u64 {
        match self.op {
            Op::Read { .. } => 0,
            Op::Write { len, .. } => u64::from(len),
            Op::WriteWord { .. } => 8,
            Op::Cas { .. } | Op::Faa { .. } => 16,
            // What to compare and what to swap, each with its mask.
            Op::MaskedCas { .. } => 4 * MASKED_BYTES as u64,
        }
    }

    /// Counts the bytes that travel with the response.
    pub(super) fn response_payload(&self) -> u64 {
        match self.op {
            Op::Read { len, .. } => u64::from(len),
            Op::Cas { .. } | Op::Faa { .. } => 8,
            Op::MaskedCas { .. } => MASKED_BYTES as u64,
            Op::Write { .. } | Op::WriteWord { .. } => 0,
        }
    }

    pub(super) fn offset(&self) -> u64 {
        let (Op::Read { at, .. }
        | Op::Write { at, .. }
        | Op::WriteWord { at, .. }
        | Op::Cas { at, .. }
        | Op::MaskedCas { at, .. }
        | Op::Faa { at, .. }) = self.op;
        at
    }

    /// Counts the bytes that are accessed.
    pub(super) fn len(&self) -> u64 {
        match self.op {
            Op::Read { len, .. } | Op::Write { len, .. } => u64::from(len),
            Op::WriteWord { .. } | Op::Cas { .. } | Op::MaskedCas { .. } | Op::Faa { .. } => 8,
        }
    }

    /// Counts the lines that it changes, if it is a WRITE.
    pub(super) fn lines_written(&self) -> u64 {
        match self.op {
            Op::Write { at, len, .. } => (at % LINE + u64::from(len)).div_ceil(LINE),
            Op::WriteWord { .. } => 1,
            _ => 0,
        }
    }

    /// Tells whether only some of its lines arrive.
    pub(super) fn is_torn(&self) -> bool {
        self.arriving != u64::MAX
    }

    /// Tells whether that piece of it arrives.
    pub(super) fn arrives(&self, piece: u16) -> bool {
        self.arriving >> piece.min(63) & 1 == 1
    }

    pub(super) fn is_atomic(&self) -> bool {
        self.op.is_atomic()
    }

    pub(super) fn is_read(&self) -> bool {
        matches!(self.op, Op::Read { .. })
    }
}

/// State of a queue pair at its two ends.
#[derive(Default)]
pub(super) struct Qp {
    // At the requester.
    /// No later chain reaches the NIC before this.
    pub(super) posted_ns: u64,
    /// READs and atomics without their response: what a fence waits for.
    pub(super) unanswered: u32,
    /// A fenced verb, and all behind it.
    pub(super) fenced: VecDeque<FlightId>,
    /// No later verb is sent before this.
    pub(super) sent_ns: u64,
    /// No later verb arrives before this.
    pub(super) arrived_ns: u64,
    /// No later response arrives before this.
    pub(super) answered_ns: u64,
    /// It is broken until then.
    pub(super) down_until_ns: u64,
    /// No request arrives until then, and no response.
    pub(super) requests_lost_until_ns: u64,
    pub(super) responses_lost_until_ns: u64,
    /// Its requester has stopped; and a request of it was lost, so that none behind it arrives.
    pub(super) is_orphan: bool,
    pub(super) is_cut: bool,
    /// Chains that were posted while it was broken, in that order.
    pub(super) waiting: VecDeque<GroupId>,
    // At the responder.
    /// All WRITEs so far are visible from then on.
    pub(super) written_ns: u64,
    /// All READs so far have been executed then.
    pub(super) read_ns: u64,
    /// Atomics that were not executed yet.
    pub(super) atomics: u32,
    /// READs that wait for those.
    pub(super) held: VecDeque<FlightId>,
    /// Requests that are to be answered, in the order of their arrival, which responses keep.
    pub(super) answers: VecDeque<FlightId>,
}
