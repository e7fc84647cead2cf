//! Where messages go inside a shard: to the handler that listens on their port, or into store until one does.

use std::cell::RefCell;
use std::rc::Rc;

use crate::message::{Envelope, Message, Port, ShardId};
use crate::verbs::Handler;

/// The ports of one shard.
#[derive(Default)]
pub(crate) struct Ports(RefCell<Vec<State>>);

enum State {
    /// Nobody listens yet; what came so far.
    Early(Vec<(ShardId, Message)>),
    Listening(Handler),
}

impl Ports {
    /// Passes a message on. Nothing is borrowed while the handler runs: it may listen elsewhere.
    #[inline]
    pub(crate) fn deliver(&self, from: ShardId, envelope: Envelope) {
        let handler = {
            let mut ports = self.0.borrow_mut();
            match state(&mut ports, envelope.port) {
                State::Early(early) => {
                    early.push((from, envelope.message));
                    return;
                }
                State::Listening(handler) => Rc::clone(handler),
            }
        };
        handler(from, envelope.message);
    }

    /// From now on `handler` gets what comes to `port`, beginning with what has come already.
    ///
    /// # Panics
    /// If somebody listens there.
    pub(crate) fn listen(&self, port: Port, handler: Handler) {
        let early = {
            let mut ports = self.0.borrow_mut();
            let state = state(&mut ports, port);
            match std::mem::replace(state, State::Listening(Rc::clone(&handler))) {
                State::Early(early) => early,
                State::Listening(_) => panic!("port {} has an actor on this shard already", port.0),
            }
        };
        for (from, message) in early {
            handler(from, message);
        }
    }

    /// Nobody listens any more. Handlers hold their shard, and the shard its handlers.
    pub(crate) fn clear(&self) {
        let ports = std::mem::take(&mut *self.0.borrow_mut());
        drop(ports);
    }
}

#[inline]
fn state(ports: &mut Vec<State>, port: Port) -> &mut State {
    let place = port.0 as usize;
    while ports.len() <= place {
        ports.push(State::Early(Vec::new()));
    }
    &mut ports[place]
}
