//! The way back to a server that has given this client up, although the client lives: its process was stopped for long
//! (SIGSTOP, a frozen container), and continues. The client dials again, proves that the connection was its own, and
//! gets back everything it had. Blocking, with a deadline.

use std::time::Duration;

use super::ConnectError;
use super::dial::{self, NEXT_NUMBER};
use crate::control::stream::{Deadline, Stream};
use crate::control::wire::{OfferKind, Reply, Request, Welcome};
use crate::control::{ControlError, ServerAddress};

/// Pause between two requests, while the server has not seen the end of the connection that is to be resumed.
const PAUSE: Duration = Duration::from_millis(5);

/// Everything needed to resume a connection that has ended.
pub(super) struct WayBack {
    address: ServerAddress,
    instance: u128,
    connection: u64,
    pass: u128,
}

impl WayBack {
    /// Keeps the way back to a connection that began with that welcome, where the memory is mapped. A server that is
    /// reached by queue pairs has none: it has destroyed them, and taken the client for dead.
    pub(super) fn to(address: &ServerAddress, welcome: &Welcome) -> Option<Self> {
        let Welcome { instance, connection, pass, .. } = *welcome;
        let way_back = WayBack { address: address.clone(), instance, connection, pass };
        (welcome.offer.kind() == OfferKind::Shm).then_some(way_back)
    }

    /// Connects to the server's address. It may be another server's by now.
    pub(super) fn connect(&self, deadline: &Deadline) -> Result<Stream, ConnectError> {
        dial::connect(&self.address, deadline)
    }

    /// Resumes over that new connection; yields the number of its next request.
    pub(super) fn resume(&self, stream: &Stream, deadline: &Deadline) -> Result<u32, ConnectError> {
        let &WayBack { ref address, instance, connection, pass } = self;
        let refused = |cause| ConnectError::Refused { address: address.clone(), cause };
        if dial::hello(stream, address, deadline)?.instance != instance {
            return Err(refused(ControlError::NotResumed { connection }));
        }
        let mut number = NEXT_NUMBER;
        loop {
            let answer =
                dial::ask(stream, address, (number, Request::Resume { connection, pass }), deadline)?;
            number += 1;
            match answer {
                Ok(Reply::Done) => return Ok(number),
                Ok(_) => return Err(ConnectError::NotFarwood { address: address.clone() }),
                // The server has not seen the end of the old connection yet.
                Err(ControlError::NotEnded { .. }) if deadline.left().is_some() => {
                    std::thread::park_timeout(PAUSE);
                }
                Err(cause) => return Err(refused(cause)),
            }
        }
    }
}
