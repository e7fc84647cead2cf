//! Completion queues, and the channels through which they say that a completion has come.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as ffi;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::context::{Context, last_error, non_null};
use super::error::VerbsError;

/// A file descriptor that becomes readable when an armed completion queue gets a completion.
struct Channel {
    raw: NonNull<ffi::ibv_comp_channel>,
    _context: Arc<Context>,
}

// SAFETY: libibverbs is thread-safe.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    fn new(context: &Arc<Context>) -> Result<Self, VerbsError> {
        const ACTION: &str = "make a completion channel";
        // SAFETY: the context is open.
        let raw = unsafe { ffi::ibv_create_comp_channel(context.raw()) };
        let channel = Channel { raw: non_null(ACTION, raw)?, _context: Arc::clone(context) };
        let non_blocking = fcntl(channel.fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
        non_blocking.map_err(|error| VerbsError::refused(ACTION, error.into()))?;
        Ok(channel)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive until `drop`, and its descriptor open.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made in `new`; its completion queue holds it, so that is destroyed.
        let failed = unsafe { ffi::ibv_destroy_comp_channel(self.raw.as_ptr()) };
        if failed != 0 {
            tracing::warn!("cannot destroy a completion channel: {}", last_error(failed));
        }
    }
}

/// A completion queue.
pub(super) struct CompletionQueue {
    raw: NonNull<ffi::ibv_cq>,
    /// Destroyed after the queue.
    channel: Option<Channel>,
    _context: Arc<Context>,
}

// SAFETY: libibverbs is thread-safe: one thread may poll while another takes events.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Makes a queue for `entries` completions, with a channel or without.
    pub(super) fn new(context: &Arc<Context>, entries: u32, has_channel: bool) -> Result<Self, VerbsError> {
        let channel = if has_channel { Some(Channel::new(context)?) } else { None };
        let channel_raw = channel.as_ref().map_or(std::ptr::null_mut(), |channel| channel.raw.as_ptr());
        let none = std::ptr::null_mut();
        // SAFETY: context and channel are alive.
        let raw = unsafe { ffi::ibv_create_cq(context.raw(), entries as i32, none, channel_raw, 0) };
        let raw = non_null("make a completion queue", raw)?;
        Ok(CompletionQueue { raw, channel, _context: Arc::clone(context) })
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_cq {
        self.raw.as_ptr()
    }

    /// Returns the descriptor that becomes readable, if it has a channel.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(Channel::fd)
    }

    /// Takes completions, as many as there are and `into` has room for. `Err` if the queue is
    /// lost; providers do not say why.
    #[inline]
    pub(super) fn poll(&self, into: &mut [ffi::ibv_wc]) -> Result<usize, io::Error> {
        // SAFETY: the context is as libibverbs made it, and stays so while it is open.
        let poll = unsafe { (*(*self.raw()).context).ops.poll_cq }.expect("every provider polls");
        // SAFETY: the queue is alive, and `into` is as long as it says.
        let taken = unsafe { poll(self.raw(), into.len() as i32, into.as_mut_ptr()) };
        usize::try_from(taken).map_err(|_| io::Error::other("the device refuses to be polled (see dmesg)"))
    }

    /// Asks for an event when the next completion comes. Those that have come already cause none.
    pub(super) fn arm(&self) -> Result<(), io::Error> {
        // SAFETY: as in `poll`.
        let arm = unsafe { (*(*self.raw()).context).ops.req_notify_cq }.expect("every provider notifies");
        // SAFETY: the queue is alive.
        let failed = unsafe { arm(self.raw(), 0) };
        if failed == 0 { Ok(()) } else { Err(last_error(failed)) }
    }

    /// Takes the events that have come, without waiting; yields how many there were.
    pub(super) fn take_events(&self) -> u32 {
        let Some(channel) = &self.channel else { return 0 };
        let mut events = 0;
        loop {
            let (mut cq, mut cq_context) = (std::ptr::null_mut(), std::ptr::null_mut());
            // SAFETY: the channel is alive and does not block; the results go to locals.
            let failed = unsafe { ffi::ibv_get_cq_event(channel.raw.as_ptr(), &mut cq, &mut cq_context) };
            if failed != 0 {
                break;
            }
            assert_eq!(cq, self.raw(), "a channel serves one completion queue");
            events += 1;
        }
        if events > 0 {
            // SAFETY: the queue is alive, and that many of its events were taken above.
            unsafe { ffi::ibv_ack_cq_events(self.raw(), events) };
        }
        events
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: made in `new`; queue pairs hold it, so none is left, and all events that were taken are acknowledged.
        let failed = unsafe { ffi::ibv_destroy_cq(self.raw()) };
        if failed != 0 {
            tracing::warn!("cannot destroy a completion queue: {}", last_error(failed));
        }
    }
}
