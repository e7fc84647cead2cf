//! From a chain to linked work requests that one doorbell posts: first a plan, which is a pure value, then the form
//! that libibverbs takes.

use std::io;

use ibverbs_sys as ffi;
use ibverbs_sys::ibv_send_flags as flags;
use ibverbs_sys::ibv_wr_opcode as opcode;
use smallvec::SmallVec;

use super::memory::Words;
use super::qp::QueuePair;
use crate::chain::{Chain, Op};
use crate::pointer::ServerId;
use crate::verbs::FabricError;

/// Work requests that a chain becomes. READs and WRITEs of no bytes are left out: they have no effect, and devices
/// differ in whether they may name an address.
pub(super) type Plan = SmallVec<[Request; 4]>;

/// One work request, before it has addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub op: Op,
    /// Waits for the READs and atomics before it.
    pub fenced: bool,
    /// Yields a completion: the last of the chain.
    pub signalled: bool,
}

/// Plans `chain` for a server whose region has `region_bytes` bytes. A chain that is refused is refused whole.
pub(super) fn plan(chain: &Chain, region_bytes: u64, requests_max: u32) -> Result<Plan, FabricError> {
    let server = chain.server();
    let mut plan = Plan::new();
    let mut is_fence_left = false;
    for verb in chain.verbs() {
        if let Op::MaskedCas { .. } = verb.op {
            // `ibverbs-sys` does not bind it.
            return Err(FabricError::NoMaskedCas { fabric: "verbs" });
        }
        let (offset, len) = extent(verb.op);
        if offset.checked_add(len).is_none_or(|end| end > region_bytes) {
            return Err(out_of_bounds(server, offset, len, region_bytes));
        }
        // What follows a verb that is left out may rely on its fence.
        is_fence_left |= verb.fenced;
        if len > 0 {
            let fenced = std::mem::take(&mut is_fence_left);
            plan.push(Request { op: verb.op, fenced, signalled: false });
        }
    }
    if plan.len() > requests_max as usize {
        return Err(FabricError::ChainTooLong { verbs: plan.len(), verbs_max: requests_max as usize });
    }
    if let Some(last) = plan.last_mut() {
        last.signalled = true;
    }
    Ok(plan)
}

/// Yields the places of the atomics in a chain's plan.
pub(super) fn atomics(chain: &Chain) -> impl Iterator<Item = u32> {
    let requests = chain.verbs().iter().filter(|verb| extent(verb.op).1 > 0);
    let places = (0u32..).zip(requests);
    places.filter(|(_, verb)| verb.op.is_atomic()).map(|(place, _)| place)
}

/// Returns the part of `plan` from `from` on that can be posted now on a device whose fences are kept by its host: up
/// to the next fence. Nothing, if it begins with a fence and `is_idle`, that nothing is in flight, does not hold. A
/// part is signalled, so that what follows can be posted when it has completed.
pub(super) fn part_before_fence(plan: &Plan, from: usize, is_idle: bool) -> Plan {
    let rest = &plan[from..];
    if rest.first().is_some_and(|first| first.fenced && !is_idle) {
        return Plan::new();
    }
    let fence = rest.iter().skip(1).position(|request| request.fenced).map_or(rest.len(), |place| place + 1);
    let mut part: Plan = rest[..fence].iter().map(|&request| Request { fenced: false, ..request }).collect();
    if let Some(last) = part.last_mut() {
        last.signalled = true;
    }
    part
}

/// Tells whether a work request takes its payload along when it is posted, where it has room for that many bytes.
fn goes_inline(op: Op, inline_bytes: u32) -> bool {
    match op {
        Op::Write { .. } | Op::WriteWord { .. } => extent(op).1 <= u64::from(inline_bytes),
        _ => false,
    }
}

/// Returns offset and length in the region.
fn extent(op: Op) -> (u64, u64) {
    match op {
        Op::Read { at, len, .. } | Op::Write { at, len, .. } => (at, u64::from(len)),
        Op::WriteWord { at, .. } | Op::Cas { at, .. } | Op::MaskedCas { at, .. } | Op::Faa { at, .. } => {
            (at, 8)
        }
    }
}

#[cold]
fn out_of_bounds(server: ServerId, offset: u64, len: u64, region_bytes: u64) -> FabricError {
    FabricError::OutOfBounds { server, offset, len, region_bytes }
}

/// Identity of a completion, in the 64 bits that a work request carries.
///
/// ```text
///   bit 63: the last work request of its chain | 62..16: number of the chain | 15..0: server
/// ```
/// Numbers run per server and wrap after 2^47 chains, months at any rate. Nothing rests on their not wrapping: they are
/// only compared among the chains in flight ([`super::send_queue`]), a few thousand, and no completion is
/// that old, since the completion queue is polled while chains are in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    pub server: u16,
    pub number: u64,
    pub is_last: bool,
}

impl Tag {
    /// The bits of a number that are kept.
    pub(super) const NUMBER_MASK: u64 = (1 << 47) - 1;

    pub(super) fn encode(self) -> u64 {
        u64::from(self.is_last) << 63 | (self.number & Self::NUMBER_MASK) << 16 | u64::from(self.server)
    }

    pub(super) fn decode(word: u64) -> Self {
        Tag { server: word as u16, number: word >> 16 & Self::NUMBER_MASK, is_last: word >> 63 == 1 }
    }
}

/// A server's region, as its device knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemoteRegion {
    pub address: u64,
    pub key: u32,
}

/// The places of a plan's payloads: a server's region, the chain's buffer, and words for what atomics find, or for ones
/// that are written and do not fit into their work request.
pub(super) struct Places<'a> {
    pub region: RemoteRegion,
    /// Address and key of the chain's buffer, if it has one.
    pub buffer: Option<(u64, u32)>,
    pub words: &'a Words,
    /// The word of the plan's first request; the n-th request has the n-th word after it, around the end.
    pub first_word: usize,
    pub words_count: usize,
}

/// Work requests in the form of libibverbs. Kept, so that posting allocates nothing in steady state.
#[derive(Default)]
pub(super) struct WorkRequests {
    requests: Vec<ffi::ibv_send_wr>,
    pieces: Vec<ffi::ibv_sge>,
    /// Payloads of word writes that are copied out when they are posted.
    words: Vec<u64>,
}

impl WorkRequests {
    /// Posts `plan`, which is not empty, by one doorbell. `number` is its chain's.
    ///
    /// # Errors
    /// The device's error; then any prefix was posted.
    ///
    /// # Safety
    /// The chain's buffer, its registration and the words stay, and are not borrowed, until the chain's last work
    /// request has completed or `qp` is destroyed.
    pub(super) unsafe fn post(
        &mut self,
        qp: &QueuePair,
        plan: &Plan,
        server: ServerId,
        number: u64,
        places: &Places,
    ) -> io::Result<()> {
        let first = self.fill(plan, server, number, places, qp.inline_bytes());
        let mut refused = std::ptr::null_mut();
        // SAFETY: the context is as libibverbs made it, and stays so while it is open.
        let post = unsafe { (*(*qp.raw()).context).ops.post_send }.expect("every provider posts");
        // SAFETY: the queue pair is alive; requests, pieces and words stay until the call returns, afterwards the
        // device uses only what the caller vouches for.
        let failed = unsafe { post(qp.raw(), first, &mut refused) };
        if failed == 0 { Ok(()) } else { Err(super::context::last_error(failed)) }
    }

    /// Yields the first request of the linked list.
    fn fill(
        &mut self,
        plan: &Plan,
        server: ServerId,
        number: u64,
        places: &Places,
        inline_bytes: u32,
    ) -> *mut ffi::ibv_send_wr {
        self.words.clear();
        self.words.extend(plan.iter().map(|request| match request.op {
            Op::WriteWord { word, .. } => word.to_le(),
            _ => 0,
        }));
        self.pieces.clear();
        for (place, request) in plan.iter().enumerate() {
            let inline = goes_inline(request.op, inline_bytes);
            self.pieces.push(self.piece(place, request, places, inline));
        }
        self.requests.clear();
        for request in plan {
            let tag = Tag { server: server.0, number, is_last: request.signalled };
            self.requests.push(work_request(request, tag, places.region, inline_bytes));
        }
        // Nothing is pushed or indexed any more: the links stay valid.
        let (first, pieces) = (self.requests.as_mut_ptr(), self.pieces.as_mut_ptr());
        for place in 0..plan.len() {
            let next =
                if place + 1 == plan.len() { std::ptr::null_mut() } else { first.wrapping_add(place + 1) };
            // SAFETY: there is a request and a piece for each place of the plan.
            unsafe {
                let request = first.add(place);
                (*request).sg_list = pieces.add(place);
                (*request).num_sge = 1;
                (*request).next = next;
            }
        }
        first
    }

    fn piece(&self, place: usize, request: &Request, places: &Places, inline: bool) -> ffi::ibv_sge {
        let buffer = || places.buffer.expect("chains check their ranges against their buffer");
        let word = (places.first_word + place) % places.words_count;
        match request.op {
            Op::Read { to: local, len, .. } | Op::Write { from: local, len, .. } => {
                let (address, lkey) = buffer();
                ffi::ibv_sge { addr: address + u64::from(local), length: len, lkey }
            }
            Op::WriteWord { .. } if inline => {
                let word = &raw const self.words[place];
                ffi::ibv_sge { addr: word.expose_provenance() as u64, length: 8, lkey: 0 }
            }
            _ => {
                if let Op::WriteWord { .. } = request.op {
                    places.words.set(word, self.words[place]);
                }
                ffi::ibv_sge { addr: places.words.address(word), length: 8, lkey: places.words.local_key() }
            }
        }
    }
}

fn work_request(request: &Request, tag: Tag, region: RemoteRegion, inline_bytes: u32) -> ffi::ibv_send_wr {
    let mut wr = ffi::ibv_send_wr { wr_id: tag.encode(), ..ffi::ibv_send_wr::default() };
    let flag = |is_set: bool, flag: flags| if is_set { flag.0 } else { 0 };
    wr.send_flags = flag(request.fenced, flags::IBV_SEND_FENCE)
        | flag(goes_inline(request.op, inline_bytes), flags::IBV_SEND_INLINE)
        | flag(request.signalled, flags::IBV_SEND_SIGNALED);
    let remote_addr = region.address + extent(request.op).0;
    let rkey = region.key;
    let atomic = |compare_add, swap| ffi::ibv_send_wr__bindgen_ty_2 {
        atomic: ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr, compare_add, swap, rkey },
    };
    let rdma = ffi::ibv_send_wr__bindgen_ty_2 {
        rdma: ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey },
    };
    (wr.opcode, wr.wr) = match request.op {
        Op::Read { .. } => (opcode::IBV_WR_RDMA_READ, rdma),
        Op::Write { .. } | Op::WriteWord { .. } => (opcode::IBV_WR_RDMA_WRITE, rdma),
        Op::Cas { expected, desired, .. } => (opcode::IBV_WR_ATOMIC_CMP_AND_SWP, atomic(expected, desired)),
        Op::Faa { add, .. } => (opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, atomic(add, 0)),
        Op::MaskedCas { .. } => unreachable!("plans have none"),
    };
    wr
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::BufferPool;
    use crate::chain::needs_fence;
    use crate::pointer::RemotePtr;

    const SERVER: ServerId = ServerId(3);
    const REGION: u64 = 1 << 20;

    fn at(offset: u64) -> RemotePtr {
        RemotePtr::new(SERVER, offset)
    }

    fn chain(bytes: usize) -> Chain {
        Chain::with_buffer(SERVER, BufferPool::new().lease(bytes))
    }

    #[test]
    fn only_the_last_request_is_signalled() {
        let mut chain = chain(256);
        chain.cas(at(0), 1, 2).read(at(64), 0..256).fence().write(at(64), 0..64).write(at(64), 0..72);
        chain.fence().write_word(at(8), 7);
        let plan = plan(&chain, REGION, 5).unwrap();
        let seen: Vec<_> = plan.iter().map(|r| (r.fenced, r.signalled)).collect();
        let (no, yes) = (false, true);
        assert_eq!(seen, [(no, no), (no, no), (yes, no), (no, no), (yes, yes)]);
        assert!(plan.iter().zip(chain.verbs()).all(|(request, verb)| request.op == verb.op));
    }

    #[test]
    fn writes_go_inline_where_there_is_room() {
        let mut chain = chain(256);
        chain.write(at(64), 0..64).write(at(64), 0..72).write_word(at(8), 7).read(at(64), 0..8).faa(at(8), 1);
        let plan = plan(&chain, REGION, 5).unwrap();
        let inline =
            |bytes| plan.iter().filter(|r| goes_inline(r.op, bytes)).map(|r| r.op).collect::<Vec<_>>();
        assert_eq!(inline(64), [plan[0].op, plan[2].op]);
        assert_eq!(inline(72), [plan[0].op, plan[1].op, plan[2].op]);
        assert_eq!(inline(63), [plan[2].op]);
        assert_eq!(inline(8), [plan[2].op]);
        assert_eq!((inline(7), inline(0)), (vec![], vec![]));
    }

    #[test]
    fn nothing_of_no_bytes_is_posted() {
        let mut chain = chain(64);
        chain.read(at(64), 0..0).faa(at(8), 1).write(at(REGION), 8..8).cas(at(8), 1, 2).read(at(0), 64..64);
        let planned = plan(&chain, REGION, 2).unwrap();
        assert_eq!(planned.len(), 2);
        assert!(!planned[0].signalled && planned[1].signalled);
        assert_eq!(atomics(&chain).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(plan(&Chain::new(SERVER), REGION, 2), Ok(Plan::new()));
    }

    #[test]
    fn knows_where_atomics_are() {
        let mut chain = chain(64);
        chain.write_word(at(0), 1).read(at(0), 8..8).cas(at(8), 0, 1).read(at(64), 0..64).faa(at(16), 1);
        assert_eq!(atomics(&chain).collect::<Vec<_>>(), [1, 3]);
    }

    /// Adds a verb of the kind that `kind` chooses.
    fn add(chain: &mut Chain, kind: u32) {
        match kind % 5 {
            0 => chain.read(at(64), 0..64),
            1 => chain.write(at(64), 0..64),
            2 => chain.write_word(at(8), 7),
            3 => chain.cas(at(8), 1, 2),
            _ => chain.faa(at(8), 1),
        };
    }

    /// Yields for each work request of `chain` whether the device is told to wait for what was posted before.
    fn flags_of_fences(chain: &Chain) -> Vec<bool> {
        let region = RemoteRegion { address: 1 << 32, key: 5 };
        let tag = Tag { server: SERVER.0, number: 1, is_last: false };
        let requests = plan(chain, REGION, 9).unwrap();
        let wrs = requests.iter().map(|request| work_request(request, tag, region, 64));
        wrs.map(|wr| wr.send_flags & flags::IBV_SEND_FENCE.0 != 0).collect()
    }

    #[test]
    fn work_requests_have_a_fence_where_the_chain_has_one_and_nowhere_else() {
        let (mut fenced, mut free) = (0, 0);
        for kinds in 0..5u32.pow(4) {
            let kind = |place: u32| kinds / 5u32.pow(place);
            for fences in 0..1u32 << 4 {
                let mut any = chain(64);
                for place in 0..4 {
                    let chain = if fences >> place & 1 == 1 { any.fence() } else { &mut any };
                    add(chain, kind(place));
                }
                assert_eq!(flags_of_fences(&any), (0..4).map(|n| fences >> n & 1 == 1).collect::<Vec<_>>());
            }
            let mut ordered = chain(64);
            (0..4).for_each(|place| add(ordered.fence_if_needed(), kind(place)));
            let verbs = ordered.verbs();
            let needed = (0..4).map(|n| needs_fence(&verbs[..n], verbs[n].op)).collect::<Vec<_>>();
            fenced += needed.iter().filter(|needs| **needs).count();
            free += needed.iter().filter(|needs| !**needs).count();
            assert_eq!(flags_of_fences(&ordered), needed, "{verbs:?}");
        }
        assert!(fenced > 500 && free > 500, "{fenced} and {free}");
    }

    #[test]
    fn the_fence_of_a_verb_that_is_left_out_goes_to_the_next() {
        let mut chain = chain(64);
        chain.read(at(64), 0..64).fence().write(at(64), 0..0).write(at(64), 0..64).write_word(at(8), 7);
        assert_eq!(flags_of_fences(&chain), [false, true, false]);
    }

    #[test]
    fn a_plan_is_cut_at_its_fences() {
        let mut chain = chain(64);
        chain.faa(at(0), 1).read(at(64), 0..64).fence().cas(at(0), 1, 2).fence().write_word(at(8), 1);
        let plan = plan(&chain, REGION, 9).unwrap();
        let lens = |from, is_idle| part_before_fence(&plan, from, is_idle).len();
        assert_eq!([lens(0, false), lens(2, false), lens(2, true), lens(3, true)], [2, 0, 1, 1]);
        let part = part_before_fence(&plan, 0, true);
        assert!(!part[0].signalled && part[1].signalled);
        assert!(!part_before_fence(&plan, 2, true)[0].fenced, "the host has waited");
    }

    #[test]
    fn refuses_what_is_outside_or_too_long() {
        let refused =
            |offset, len| FabricError::OutOfBounds { server: SERVER, offset, len, region_bytes: REGION };
        let mut outside = chain(64);
        outside.write_word(at(0), 1).read(at(REGION - 56), 0..64);
        assert_eq!(plan(&outside, REGION, 9), Err(refused(REGION - 56, 64)));
        let mut outside = chain(64);
        outside.cas(at((1 << 48) - 8), 0, 1);
        assert_eq!(plan(&outside, REGION, 9), Err(refused((1 << 48) - 8, 8)));
        let mut long = chain(64);
        long.read(at(0), 0..64).read(at(0), 0..64).read(at(0), 0..64);
        assert_eq!(plan(&long, REGION, 2), Err(FabricError::ChainTooLong { verbs: 3, verbs_max: 2 }));
        assert!(plan(&long, REGION, 3).is_ok());
    }

    #[test]
    fn tags_come_back() {
        for (server, number) in [(0, 0), (u16::MAX, Tag::NUMBER_MASK), (7, 1 << 46), (0, 1)] {
            for is_last in [false, true] {
                let tag = Tag { server, number, is_last };
                assert_eq!(Tag::decode(tag.encode()), tag);
            }
        }
        let wrapped = Tag { server: 1, number: Tag::NUMBER_MASK + 1, is_last: true };
        assert_eq!(Tag::decode(wrapped.encode()).number, 0);
    }
}
