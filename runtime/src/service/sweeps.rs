//! Sweeps as the clients of a service ask for them ([`crate::sweep`]), at the server that keeps the catalog.

use super::core::{PAGE_BYTES_MAX, ServiceCore};
use crate::control::queue_pair::PeerId;
use crate::control::wire::Reply;
use crate::control::{ControlError, IndexId};
use crate::pointer::RemotePtr;
use crate::sweep::{Ended, Step};

/// Pieces of a page of lists.
const PIECES_OF_A_PAGE: usize = PAGE_BYTES_MAX / 20;
/// Largest number of nodes that are named of those which are late.
const LATE_MAX: usize = 64;

fn void(_: Ended) -> ControlError {
    ControlError::SweepVoid
}

impl ServiceCore {
    /// Begins a sweep of an index; yields its number.
    pub(super) fn begin_sweep(&self, peer: PeerId, index: IndexId) -> Result<Reply, ControlError> {
        let mut state = self.state();
        state.home_peer(peer)?;
        let number = state.begin_sweep(peer, index)?;
        Ok(Reply::Sweep { number })
    }

    /// Asks all processes for a step of a sweep; yields nodes of those that have not done it. They are asked with their
    /// signs of life, which come sooner now.
    pub(super) fn sweep_step(&self, peer: PeerId, sweep: u64, step: Step) -> Result<Reply, ControlError> {
        let mut state = self.state();
        state.home_peer(peer)?;
        self.hurry(&mut state);
        let late = state.sweep.waits_for(peer.0, sweep, step).map_err(void)?;
        let nodes = late.into_iter().flat_map(|process| state.nodes_of(process)).take(LATE_MAX).collect();
        Ok(Reply::Late { nodes })
    }

    /// Takes a part of what a process has in its lists.
    pub(super) fn tell_lists(
        &self,
        peer: PeerId,
        sweep: u64,
        pieces: &[(u64, u64)],
        is_last: bool,
    ) -> Result<Reply, ControlError> {
        let mut state = self.state();
        state.home_peer(peer)?;
        let pieces: Vec<_> = pieces.iter().map(|(at, bytes)| (RemotePtr::from_bits(*at), *bytes)).collect();
        state.sweep.told(peer.0, sweep, &pieces, is_last);
        Ok(Reply::Done)
    }

    /// Lists what processes have told, from that address on, as much as fits a frame.
    pub(super) fn swept_lists(&self, peer: PeerId, sweep: u64, from: u64) -> Result<Reply, ControlError> {
        let mut state = self.state();
        state.home_peer(peer)?;
        let from = RemotePtr::from_bits(from);
        let (pieces, more) = state.sweep.lists(peer.0, sweep, from, PIECES_OF_A_PAGE).map_err(void)?;
        let pieces = pieces.into_iter().map(|(at, bytes)| (at.to_bits(), bytes)).collect();
        Ok(Reply::SweptLists { pieces, more })
    }

    /// Ends a sweep of that peer.
    pub(super) fn end_sweep(&self, peer: PeerId, sweep: Option<u64>) -> Result<Reply, ControlError> {
        let mut state = self.state();
        state.home_peer(peer)?;
        state.sweep.end(peer.0, sweep);
        Ok(Reply::Done)
    }
}
