//! Hints of whether others wait for the lock that a client wants. Advice only, on which the holder decides to pass the
//! lock on. Pure.

use crate::message::Grant;
use crate::slots::{Delivery, Slots};

/// The clients of one shard that want, or hold, locks. They close their slots when they have given the lock back.
pub(crate) type LockSlots<W> = Slots<Grant, W, Hint>;

/// The hint that such a client has.
#[derive(Clone, Debug)]
pub(crate) struct Hint {
    /// Its lock.
    key: u64,
    /// True if another client waits for that.
    given: bool,
}

impl Hint {
    /// Makes the hint that no other client is known to wait for the lock `key`.
    #[inline]
    pub(crate) fn none(key: u64) -> Self {
        Hint { key, given: false }
    }
}

impl<W> LockSlots<W> {
    /// Notes a Grant, which says whether others wait.
    pub(crate) fn granted(&mut self, token: u32, grant: Grant) -> Delivery<W> {
        if let Some(hint) = self.memo_mut(token) {
            hint.given = grant.hinted;
        }
        self.tell(token, || grant)
    }

    /// Notes that another client waits for the lock `key`. A Hint may come late, and meet a later user of
    /// the token: then it is ignored, unless that one wants the same lock.
    pub(crate) fn hint(&mut self, token: u32, key: u64) {
        if let Some(hint) = self.memo_mut(token)
            && hint.key == key
        {
            hint.given = true;
        }
    }

    /// Tells whether the client has heard that another one waits.
    #[inline]
    pub(crate) fn hinted(&self, token: u32) -> bool {
        self.memo(token).given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_hint_does_not_meet_another_lock() {
        let mut slots = LockSlots::<()>::new();
        let token = slots.open(Hint::none(8));
        slots.hint(token, 16);
        slots.hint(token + 1, 8);
        assert!(!slots.hinted(token));
        slots.hint(token, 8);
        assert!(slots.hinted(token));
    }

    #[test]
    fn a_grant_knows_better_than_the_hints_before() {
        let mut slots = LockSlots::new();
        let token = slots.open(Hint::none(8));
        slots.hint(token, 8);
        assert_eq!(slots.poll(token, || 7), None);
        assert_eq!(slots.granted(token, Grant::default()), Delivery::Waiting(Some(7)));
        assert!(!slots.hinted(token));
        assert_eq!(slots.poll(token, || 7), Some(Grant::default()));
        slots.close(token);
        assert_eq!(slots.len(), 0);
    }
}
