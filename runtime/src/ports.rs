//! The way of messages inside a shard: to the actor that listens on their port, or into store until one does.

use std::cell::RefCell;
use std::rc::Rc;

use crate::message::{Envelope, Message, Port, ShardId};
use crate::verbs::{AtRest, Handler};

/// The ports of one shard, by their places.
#[derive(Default)]
pub(crate) struct Ports(RefCell<Vec<Place>>);

struct Place {
    /// Port that has the place now.
    port: Port,
    state: State,
}

enum State {
    /// No actor listens yet; messages that came so far.
    Early(Vec<(ShardId, Message)>),
    Listening(Handler, Option<AtRest>),
    /// The actor has gone, and no other may listen.
    Over,
}

impl Ports {
    /// Passes a message on. Nothing is borrowed while the handler runs: it may listen elsewhere.
    #[inline]
    pub(crate) fn deliver(&self, from: ShardId, envelope: Envelope) {
        let handler = {
            let mut places = self.0.borrow_mut();
            match state(&mut places, envelope.port) {
                Some(State::Early(early)) => {
                    early.push((from, envelope.message));
                    return;
                }
                Some(State::Listening(handler, _)) => Rc::clone(handler),
                // The message comes too late.
                Some(State::Over) | None => return,
            }
        };
        handler(from, envelope.message);
    }

    /// Makes `handler` receive the messages to `port`, beginning with those that have come already.
    ///
    /// # Panics
    /// If another actor listens there, or did.
    pub(crate) fn listen(&self, port: Port, handler: Handler, at_rest: Option<AtRest>) {
        let early = {
            let mut places = self.0.borrow_mut();
            let state = state(&mut places, port).expect("a listener has leased the port");
            match std::mem::replace(state, State::Listening(Rc::clone(&handler), at_rest)) {
                State::Early(early) => early,
                State::Listening(..) | State::Over => panic!("{port:?} has an actor on this shard already"),
            }
        };
        for (from, message) in early {
            handler(from, message);
        }
    }

    /// Tells whether no actor is at work at `port`.
    pub(crate) fn is_at_rest(&self, port: Port) -> bool {
        let at_rest = match state(&mut self.0.borrow_mut(), port) {
            Some(State::Listening(_, at_rest)) => at_rest.clone(),
            Some(State::Early(_) | State::Over) | None => return true,
        };
        // An actor that does not tell stays.
        at_rest.is_some_and(|at_rest| at_rest())
    }

    /// Removes the actor and messages at `port`; yields them, so that the caller drops them.
    pub(crate) fn remove(&self, port: Port) -> Option<Removed> {
        let mut places = self.0.borrow_mut();
        let removed = std::mem::replace(state(&mut places, port)?, State::Over);
        Some(Removed { _state: removed })
    }

    /// Counts the actors that listen.
    pub(crate) fn actors(&self) -> usize {
        self.0.borrow().iter().filter(|place| matches!(place.state, State::Listening(..))).count()
    }

    /// Removes all actors, to break a circle: handlers hold their shard, and the shard its handlers.
    pub(crate) fn clear(&self) {
        let places = std::mem::take(&mut *self.0.borrow_mut());
        drop(places);
    }
}

/// The actor or the messages that were at a port.
pub(crate) struct Removed {
    _state: State,
}

/// Returns the state of a port; nothing if its place belongs to a later port by now.
#[inline]
fn state(places: &mut Vec<Place>, port: Port) -> Option<&mut State> {
    let place = port.place();
    while places.len() <= place {
        places.push(Place { port: Port(places.len() as u32), state: State::Early(Vec::new()) });
    }
    let place = &mut places[place];
    if place.port != port {
        if place.port.is_after(port) {
            return None;
        }
        // The port that had the place before has gone from every shard.
        *place = Place { port, state: State::Early(Vec::new()) };
    }
    Some(&mut place.state)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn tell(ports: &Ports, port: Port) {
        ports.deliver(ShardId(0), Envelope { port, message: Message::default() });
    }

    fn counter() -> (Rc<Cell<u32>>, Handler) {
        let count: Rc<Cell<u32>> = Rc::default();
        let counting = Rc::clone(&count);
        (count, Rc::new(move |_, _| counting.set(counting.get() + 1)))
    }

    #[test]
    fn a_late_message_does_not_reach_the_port_that_has_the_place_now() {
        let ports = Ports::default();
        let (old, new) = (Port(7), Port(7).next());
        let ((old_count, old_handler), (new_count, new_handler)) = (counter(), counter());
        tell(&ports, old);
        ports.listen(old, old_handler, Some(Rc::new(|| true)));
        assert!(ports.is_at_rest(old) && ports.actors() == 1);
        drop(ports.remove(old));
        tell(&ports, old);
        tell(&ports, new);
        tell(&ports, old);
        ports.listen(new, new_handler, None);
        tell(&ports, new);
        tell(&ports, old);
        assert_eq!((old_count.get(), new_count.get(), ports.actors()), (1, 2, 1));
        assert!(ports.is_at_rest(old) && !ports.is_at_rest(new));
        assert!(ports.remove(old).is_none());
    }
}
