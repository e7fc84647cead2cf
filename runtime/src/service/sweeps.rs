//! Sweeps as the clients of a service ask for them ([`crate::control::sweep`]), at the server that keeps the catalog.

use super::core::{PAGE_BYTES_MAX, ServiceCore};
use crate::control::queue_pair::PeerId;
use crate::control::sweep::{Ended, Step};
use crate::control::wire::{Reply, Request};
use crate::control::{ControlError, IndexId};
use crate::pointer::RemotePtr;

/// Pieces of a page of lists.
const PIECES_OF_A_PAGE: usize = PAGE_BYTES_MAX / 20;
/// Largest number of nodes that are named of those which are late.
const LATE_MAX: usize = 64;

fn void(_: Ended) -> ControlError {
    ControlError::SweepVoid
}

impl ServiceCore {
    /// Serves the requests of sweeps; there are no others that come here.
    pub(super) fn sweep(&self, peer: PeerId, request: Request) -> Result<Reply, ControlError> {
        match request {
            Request::BeginSweep { index } => self.begin_sweep(peer, IndexId(index)),
            Request::SweepStep { sweep, step } => self.sweep_step(peer, sweep, step),
            Request::TellLists { sweep, pieces, is_last } => self.tell_lists(peer, sweep, &pieces, is_last),
            Request::SweptLists { sweep, from } => self.swept_lists(peer, sweep, from),
            Request::EndSweep { sweep } => self.end_sweep(peer, sweep),
            _ => Err(ControlError::Protocol { what: "it is no request of a sweep".into() }),
        }
    }

    /// Begins a sweep of an index; yields its number.
    fn begin_sweep(&self, peer: PeerId, index: IndexId) -> Result<Reply, ControlError> {
        let mut state = self.state();
        state.home_peer(peer)?;
        let number = state.begin_sweep(peer, index)?;
        Ok(Reply::Sweep { number })
    }

    /// Asks all processes for a step of a sweep; yields nodes of those that have not done it. They are asked with their
    /// signs of life, which come sooner now.
    fn sweep_step(&self, peer: PeerId, sweep: u64, step: Step) -> Result<Reply, ControlError> {
        let mut state = self.state();
        state.home_peer(peer)?;
        self.hurry(&mut state);
        let late = state.sweep.waits_for(peer.0, sweep, step).map_err(void)?;
        let nodes = late.into_iter().flat_map(|process| state.nodes_of(process)).take(LATE_MAX).collect();
        Ok(Reply::Late { nodes })
    }

    /// Takes a part of what a process has in its lists.
    fn tell_lists(
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
    fn swept_lists(&self, peer: PeerId, sweep: u64, from: u64) -> Result<Reply, ControlError> {
        let mut state = self.state();
        state.home_peer(peer)?;
        let from = RemotePtr::from_bits(from);
        let (pieces, more) = state.sweep.lists(peer.0, sweep, from, PIECES_OF_A_PAGE).map_err(void)?;
        let pieces = pieces.into_iter().map(|(at, bytes)| (at.to_bits(), bytes)).collect();
        Ok(Reply::SweptLists { pieces, more })
    }

    /// Ends a sweep of that peer.
    fn end_sweep(&self, peer: PeerId, sweep: Option<u64>) -> Result<Reply, ControlError> {
        let mut state = self.state();
        state.home_peer(peer)?;
        state.sweep.end(peer.0, sweep);
        Ok(Reply::Done)
    }
}
