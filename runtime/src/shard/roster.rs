//! The shards of a node as a whole: which are attached, which have left, and the work that they left undone.
//!
//! ```text
//!   free <──────── taken ───> attached ───> leaving ───> gone
//!     refused, or too late        └──────────────┴─────> lost    (its executor ended first)
//! ```
//! A shard begins when all places are attached: one that never comes would leave messages to it unanswered. A shard
//! that is leaving serves the others until all of them are leaving, gone or lost. One that is given up when all are
//! attached is gone at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Abandoned, MeshEnds};
use crate::message::ShardId;

/// The places of a node's shards.
pub(crate) struct Roster {
    members: Mutex<Members>,
    /// Set once any shard is gone or lost: looked at often, and nearly never set.
    any_ended: AtomicBool,
    /// Called when the last shard has gone and none of them may have left a lock behind, or no shard has ever begun.
    ended: Box<dyn Fn() + Send + Sync>,
}

struct Members {
    places: Vec<Place>,
    /// Set once every place was attached at the same time: from then on none is free again.
    is_complete: bool,
    abandoned: Abandoned,
}

enum Place {
    Free(MeshEnds),
    /// A shard is being connected.
    Taken,
    Attached,
    Leaving,
    Gone,
    Lost,
}

impl Place {
    fn has_own_work(&self) -> bool {
        matches!(self, Place::Free(_) | Place::Taken | Place::Attached)
    }
}

impl Roster {
    pub(crate) fn new(mut ends: Vec<MeshEnds>, ended: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        let members = Members {
            places: ends.drain(..).map(Place::Free).collect(),
            is_complete: false,
            abandoned: Abandoned::default(),
        };
        let (members, any_ended) = (Mutex::new(members), AtomicBool::new(false));
        Arc::new(Roster { members, any_ended, ended: Box::new(ended) })
    }

    /// Takes the first place that is free, if one is.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Taken> {
        let mut members = self.members();
        let place = members.places.iter().position(|place| matches!(place, Place::Free(_)))?;
        let Place::Free(ends) = std::mem::replace(&mut members.places[place], Place::Taken) else {
            unreachable!("it was free under the same lock")
        };
        Some(Taken { roster: Arc::clone(self), ends: Some(ends) })
    }

    /// Yields the work that shards that are gone or lost have left undone.
    pub(crate) fn abandoned(&self) -> Abandoned {
        self.members().abandoned
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how a shard of a complete roster ended, once.
    fn end(&self, mut members: MutexGuard<'_, Members>, shard: usize, how: Place, abandoned: Abandoned) {
        let place = &mut members.places[shard];
        if matches!(place, Place::Gone | Place::Lost) {
            return;
        }
        *place = how;
        self.any_ended.store(true, Ordering::Relaxed);
        members.abandoned += abandoned;
        let all_gone = members.places.iter().all(|place| matches!(place, Place::Gone));
        let is_well = all_gone && !members.abandoned.may_hold_locks();
        drop(members);
        if is_well {
            (self.ended)();
        }
    }
}

impl Drop for Roster {
    fn drop(&mut self) {
        if !self.members().is_complete {
            (self.ended)();
        }
    }
}

/// A place that is taken. Dropping it frees the place.
pub(crate) struct Taken {
    roster: Arc<Roster>,
    ends: Option<MeshEnds>,
}

impl Taken {
    pub(crate) fn ends(&self) -> &MeshEnds {
        self.ends.as_ref().expect("the place has its ends until it is given up")
    }

    /// Notes that the shard is connected: now the others are waited for.
    pub(crate) fn attach(&self) {
        let mut members = self.roster.members();
        members.places[self.place()] = Place::Attached;
        members.is_complete |= members.places.iter().all(|place| matches!(place, Place::Attached));
    }

    /// Tells whether all shards have been attached.
    pub(crate) fn is_complete(&self) -> bool {
        self.roster.members().is_complete
    }

    /// Yields the membership of a complete roster, and the ends of the mesh; or the shards that are missing. Then the
    /// place is free again.
    pub(crate) fn join(mut self) -> Result<(Arc<Membership>, MeshEnds), Vec<ShardId>> {
        let roster = Arc::clone(&self.roster);
        let members = roster.members();
        if members.is_complete {
            let ends = self.ends.take().expect("the place has its ends until it is given up");
            let membership = Arc::new(Membership { roster: Arc::clone(&roster), shard: ends.shard() });
            return Ok((membership, ends));
        }
        let missing = members.places.iter().enumerate();
        let missing = missing.filter(|(_, place)| !matches!(place, Place::Attached));
        let missing = missing.map(|(shard, _)| ShardId(shard as u16)).collect();
        // Gives the place back, which takes the lock.
        drop(members);
        Err(missing)
    }

    fn place(&self) -> usize {
        usize::from(self.ends().shard().0)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(ends) = self.ends.take() {
            let place = usize::from(ends.shard().0);
            let mut members = self.roster.members();
            if members.is_complete {
                // Complete in this very moment, but the shard does not begin: it has done nothing, and serves no other.
                self.roster.end(members, place, Place::Gone, Abandoned::default());
            } else {
                members.places[place] = Place::Free(ends);
            }
        }
    }
}

/// A shard's own place.
pub(crate) struct Membership {
    roster: Arc<Roster>,
    shard: ShardId,
}

impl Membership {
    /// Notes that this shard has nothing to do for itself any more.
    pub(crate) fn leave(&self) {
        self.roster.members().places[usize::from(self.shard.0)] = Place::Leaving;
    }

    /// Tells whether no shard has anything to do for itself any more.
    pub(crate) fn all_have_left(&self) -> bool {
        !self.roster.members().places.iter().any(Place::has_own_work)
    }

    /// Tells whether that shard of the node is gone or lost: no message to it is ever answered.
    #[inline]
    pub(crate) fn has_ended(&self, shard: ShardId) -> bool {
        let has_ended = || {
            let place = &self.roster.members().places[usize::from(shard.0)];
            matches!(place, Place::Gone | Place::Lost)
        };
        self.roster.any_ended.load(Ordering::Relaxed) && has_ended()
    }

    /// Notes that the shard is closed, or that its last handle has gone.
    pub(crate) fn go(&self, abandoned: Abandoned) {
        self.end(Place::Gone, abandoned);
    }

    /// Notes that the shard's executor has ended: what is left of the shard stands still.
    pub(crate) fn lose(&self) {
        let place = usize::from(self.shard.0);
        if !matches!(self.roster.members().places[place], Place::Gone | Place::Lost) {
            tracing::warn!(
                name: "shard.lost", shard = self.shard.0,
                "an executor ended before its shard was closed: what the shard served is out of reach for the others"
            );
            self.end(Place::Lost, Abandoned { shards: 1, ..Abandoned::default() });
        }
    }

    fn end(&self, how: Place, abandoned: Abandoned) {
        self.roster.end(self.roster.members(), usize::from(self.shard.0), how, abandoned);
    }
}
