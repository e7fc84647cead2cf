//! Ids of compute nodes. They are the owners in lock words: an id whose node died may still hold locks, and is never
//! given to another. The dead are kept in the order of their deaths: an index that is created knows how many were dead
//! and fenced before it.

use std::collections::VecDeque;
use std::sync::Arc;

use super::ControlError;

/// Ids from 1 on; when all were given, the ids of nodes that ended well are given again, the oldest first.
#[derive(Default)]
pub(crate) struct NodeIds {
    given: u16,
    returned: VecDeque<u16>,
    dead: Vec<u16>,
}

impl NodeIds {
    pub(crate) fn take(&mut self) -> Result<u16, ControlError> {
        if let Some(fresh) = self.given.checked_add(1) {
            self.given = fresh;
            return Ok(fresh);
        }
        self.returned.pop_front().ok_or(ControlError::TooManyNodes)
    }

    /// Takes back ids whose nodes hold no lock.
    pub(crate) fn give_back(&mut self, ids: &[u16]) {
        self.returned.extend(ids);
    }

    /// Marks ids whose nodes have died, and may have left locks.
    pub(crate) fn died(&mut self, ids: &[u16]) {
        self.dead.extend(ids);
    }

    /// Lists the dead in the order of their deaths, at most 65,535.
    pub(crate) fn dead(&self) -> &[u16] {
        &self.dead
    }

    /// Lists the first `count` of the dead, ascending.
    pub(crate) fn first_dead(&self, count: usize) -> Arc<[u16]> {
        let mut dead = self.dead[..count].to_vec();
        dead.sort_unstable();
        dead.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reuses_only_what_was_given_back_and_only_when_it_must() {
        let mut ids = NodeIds::default();
        assert_eq!((ids.take(), ids.take()), (Ok(1), Ok(2)));
        ids.give_back(&[2, 1]);
        let fresh: Vec<_> = (3..=u16::MAX).map(|_| ids.take().unwrap()).collect();
        assert!(fresh.into_iter().eq(3..=u16::MAX));
        assert_eq!((ids.take(), ids.take()), (Ok(2), Ok(1)));
        assert_eq!(ids.take(), Err(ControlError::TooManyNodes));
        ids.give_back(&[7]);
        assert_eq!(ids.take(), Ok(7));
    }
}
