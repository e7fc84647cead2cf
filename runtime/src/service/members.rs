//! The list of servers that a memory server's chunks and indexes belong to.
//!
//! Addresses name servers by their position in a list. Two clients that list the servers in different orders, or one
//! that lists a restarted server, would take each other's memory for their own. So a server is *bound* to the first
//! list that put something on it, until nothing is left.

use crate::control::ControlError;
use crate::pointer::ServerId;

/// The instance numbers of a list of servers.
pub(super) type Members = std::sync::Arc<[u128]>;

/// The list that a server is bound to, if any.
#[derive(Default)]
pub(super) struct Binding {
    bound: Option<Members>,
}

impl Binding {
    /// Checks that a client with that list may use what the server holds; `own` is the server's position in it.
    pub(super) fn agree(&self, members: &Members, own: ServerId) -> Result<(), ControlError> {
        match &self.bound {
            Some(bound) if bound != members => Err(difference(bound, members, own)),
            _ => Ok(()),
        }
    }

    /// Tells whether the indexes of which the server holds parts are numbered by that list's first server.
    pub(super) fn has_home_of(&self, members: &Members) -> bool {
        self.bound.as_ref().is_some_and(|bound| bound.first() == members.first())
    }

    /// Binds to a list that agrees; yields whether it was bound to none before.
    pub(super) fn bind(&mut self, members: &Members) -> bool {
        let fresh = self.bound.is_none();
        self.bound = Some(Members::clone(members));
        fresh
    }

    /// Unbinds: nothing is left on the server.
    pub(super) fn release(&mut self) {
        self.bound = None;
    }
}

/// Names the difference between two lists. If the known and the new list differ at a few positions by servers that the
/// other list does not have at all, those were restarted; else the client lists other servers, or in another order.
fn difference(bound: &Members, members: &Members, own: ServerId) -> ControlError {
    let same_length = bound.len() == members.len();
    let mut differing = (0..).zip(bound.iter().zip(members.iter())).filter(|(_, (old, new))| old != new);
    let replaced = |old: &u128, new: &u128| !members.contains(old) && !bound.contains(new);
    match differing.next() {
        Some((position, (old, new))) if same_length && replaced(old, new) => {
            ControlError::Restarted { server: ServerId(position) }
        }
        _ => ControlError::OtherServers { server: own },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(members: &[u128]) -> Members {
        members.into()
    }

    #[test]
    fn says_what_differs() {
        let mut binding = Binding::default();
        let own = ServerId(1);
        assert_eq!(binding.agree(&list(&[9, 2]), own), Ok(()), "not bound yet");
        assert!(binding.bind(&list(&[1, 2, 3])) && !binding.bind(&list(&[1, 2, 3])));
        assert_eq!(binding.agree(&list(&[1, 2, 3]), own), Ok(()));
        for other in [&[2, 1, 3][..], &[1, 2], &[2], &[1, 2, 3, 4], &[1, 3, 2], &[3, 2, 9]] {
            let refused = Err(ControlError::OtherServers { server: own });
            assert_eq!(binding.agree(&list(other), own), refused, "{other:?}");
        }
        for (other, server) in [(&[9, 2, 3], 0), (&[1, 2, 9], 2), (&[9, 2, 8], 0)] {
            let refused = Err(ControlError::Restarted { server: ServerId(server) });
            assert_eq!(binding.agree(&list(other), own), refused, "{other:?}");
        }
        assert!(binding.has_home_of(&list(&[1])) && !binding.has_home_of(&list(&[2, 1])));
        binding.release();
        assert_eq!(binding.agree(&list(&[2, 1]), own), Ok(()));
        assert!(!binding.has_home_of(&list(&[1])));
    }
}
