//! The way back to a server that has given this client up, although the client lives: its process was stopped for
//! long (SIGSTOP, a frozen container), and goes on. It dials once more, shows that it is the one that had the
//! connection, and has all again that it had. Blocking, with a deadline.

use std::time::Duration;

use super::ConnectError;
use super::dial::{self, NEXT_NUMBER};
use crate::control::stream::{Deadline, Stream};
use crate::control::wire::{OfferKind, Reply, Request, Welcome};
use crate::control::{ControlError, ServerAddress};

/// Between two requests, while the server has not seen the end of the connection that is to be resumed.
const PAUSE: Duration = Duration::from_millis(5);

/// What it takes to go on with a connection that has ended.
pub(super) struct WayBack {
    address: ServerAddress,
    instance: u128,
    connection: u64,
    pass: u128,
}

impl WayBack {
    /// Keeps what leads back to a connection that began with that welcome, where the memory is mapped. To a server that
    /// is reached by queue pairs no way leads back: it has destroyed them, and taken the client for dead.
    pub(super) fn to(address: &ServerAddress, welcome: &Welcome) -> Option<Self> {
        let Welcome { instance, connection, pass, .. } = *welcome;
        let way_back = WayBack { address: address.clone(), instance, connection, pass };
        (welcome.offer.kind() == OfferKind::Shm).then_some(way_back)
    }

    /// Connects to the server's address. It may be another server's by now.
    pub(super) fn connect(&self, deadline: &Deadline) -> Result<Stream, ConnectError> {
        dial::connect(&self.address, deadline)
    }

    /// Goes on over that new connection; yields the number of its next request.
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
                // The server has not come to the end of the old connection: soon it will.
                Err(ControlError::NotEnded { .. }) if deadline.left().is_some() => {
                    std::thread::park_timeout(PAUSE);
                }
                Err(cause) => return Err(refused(cause)),
            }
        }
    }
}
