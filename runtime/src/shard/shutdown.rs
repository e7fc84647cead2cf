//! The order in which a closing shard comes to rest, as decisions: from what is left and the time follows the next
//! step. It carries nothing out (`closing` does), and knows neither shard nor clock.
//!
//! ```text
//!   for itself       Clients ──drop them──> Deferred ──> Chains ──leave──> Others
//!   for the others   Others  ─────────────> Deferred ──> Chains ──remove actors──> Driver ──> end
//! ```
//! Each stage ends when nothing of its kind is left, at its deadline otherwise. Two have no deadline: shards are homes
//! to locks of all shards, so none goes before all may; and a driver that has stepped aside comes back by itself.

/// The longest wait for the janitor. It gives a server up earlier by itself.
const JANITOR_NS: u64 = 60_000_000_000;
/// The longest wait for chains.
const CHAINS_NS: u64 = 1_000_000_000;

/// A stage of closing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Clients that no task awaits may come to their end.
    Clients { until_ns: u64 },
    /// The janitor clears the locks that were left, which may take long where a server does not answer.
    Deferred { until_ns: u64, round: Round },
    /// Chains are executed.
    Chains { until_ns: u64, round: Round },
    /// The other shards are served, until no shard of the node has anything to do for itself.
    Others,
    /// The driver's task comes back: it must not be away when its executor ends.
    Driver,
}

/// Work that the janitor and chains are waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Round {
    /// The shard's own.
    Own,
    /// Work that serving the others has brought.
    Others,
}

/// Work that is left of a shard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    /// Clients that no task awaits.
    pub clients: usize,
    /// Tasks of the janitor.
    pub deferred: usize,
    /// Chains in flight.
    pub chains: usize,
    /// Set while a shard of the node has something to do for itself.
    pub others: bool,
    /// Set while the driver's task is away.
    pub driver_is_away: bool,
}

/// A step to take before the next look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Wait a little.
    Wait,
    /// Drop the clients that are left; what they hold goes to the janitor.
    DropClients,
    /// Tell the node that this shard has nothing to do for itself any more.
    Leave,
    /// Note what is left, and drop the actors: they hold the shard, and the shard its actors.
    RemoveActors,
    /// Wait until the driver's task is back.
    AwaitDriver,
    /// The shard is closed.
    End,
}

impl State {
    /// Begins closing a shard whose clients get `clients_ns` to end.
    pub(super) fn begin(clients_ns: u64, now_ns: u64) -> Self {
        State::Clients { until_ns: now_ns.saturating_add(clients_ns) }
    }

    /// Yields the next state, and the step that leads to it.
    pub(super) fn next(self, left: &Left, now_ns: u64) -> (Self, Step) {
        match self {
            State::Clients { until_ns } if left.clients > 0 && now_ns < until_ns => (self, Step::Wait),
            State::Clients { .. } => (State::settle(Round::Own, now_ns), Step::DropClients),
            State::Deferred { until_ns, .. } if left.deferred > 0 && now_ns < until_ns => (self, Step::Wait),
            State::Deferred { round, .. } => {
                State::Chains { until_ns: now_ns.saturating_add(CHAINS_NS), round }.next(left, now_ns)
            }
            State::Chains { until_ns, .. } if left.chains > 0 && now_ns < until_ns => (self, Step::Wait),
            State::Chains { round: Round::Own, .. } => (State::Others, Step::Leave),
            State::Chains { round: Round::Others, .. } => (State::Driver, Step::RemoveActors),
            State::Others if left.others => (self, Step::Wait),
            State::Others => State::settle(Round::Others, now_ns).next(left, now_ns),
            State::Driver if left.driver_is_away => (self, Step::AwaitDriver),
            State::Driver => (self, Step::End),
        }
    }

    /// Waits for the janitor first, since it posts chains.
    fn settle(round: Round, now_ns: u64) -> Self {
        State::Deferred { until_ns: now_ns.saturating_add(JANITOR_NS), round }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const NOTHING: Left = Left { clients: 0, deferred: 0, chains: 0, others: false, driver_is_away: false };
    const NOW: u64 = 5;

    /// Yields every combination of something and nothing.
    fn all_left() -> impl Iterator<Item = Left> {
        (0..32_u8).map(|bits| {
            let bit = |place: u8| bits >> place & 1 == 1;
            Left {
                clients: bit(0).into(),
                deferred: bit(1).into(),
                chains: bit(2).into(),
                others: bit(3),
                driver_is_away: bit(4),
            }
        })
    }

    /// Lists all states, with deadlines that have come at [`NOW`] and that have not.
    fn all_states() -> Vec<State> {
        let mut states = vec![State::Others, State::Driver];
        for until_ns in [NOW, NOW + 1] {
            states.push(State::Clients { until_ns });
            for round in [Round::Own, Round::Others] {
                states.extend([State::Deferred { until_ns, round }, State::Chains { until_ns, round }]);
            }
        }
        states
    }

    /// Numbers the states on the way to the end.
    fn stage(state: State) -> u8 {
        match state {
            State::Clients { .. } => 0,
            State::Deferred { round: Round::Own, .. } => 1,
            State::Chains { round: Round::Own, .. } => 2,
            State::Others => 3,
            State::Deferred { round: Round::Others, .. } => 4,
            State::Chains { round: Round::Others, .. } => 5,
            State::Driver => 6,
        }
    }

    /// States the condition of each stage once more: true if it is not over at [`NOW`].
    fn holds(state: State, left: &Left) -> bool {
        let early = |until_ns: u64| NOW < until_ns;
        match state {
            State::Clients { until_ns } => left.clients > 0 && early(until_ns),
            State::Deferred { until_ns, .. } => left.deferred > 0 && early(until_ns),
            State::Chains { until_ns, .. } => left.chains > 0 && early(until_ns),
            State::Others => left.others,
            State::Driver => left.driver_is_away,
        }
    }

    #[test]
    fn stays_in_a_stage_while_it_holds_and_not_longer() {
        for state in all_states() {
            for left in all_left() {
                let (next, step) = state.next(&left, NOW);
                if holds(state, &left) {
                    let wait = if state == State::Driver { Step::AwaitDriver } else { Step::Wait };
                    assert_eq!((next, step), (state, wait), "{left:?}");
                } else if state == State::Driver {
                    assert_eq!((next, step), (state, Step::End), "{left:?}");
                } else {
                    assert!(stage(next) > stage(state), "{state:?} {left:?}: {next:?}");
                }
            }
        }
    }

    #[test]
    fn skips_only_stages_with_nothing_left() {
        for state in all_states() {
            for left in all_left().filter(|left| !holds(state, left)) {
                let (next, step) = state.next(&left, NOW);
                let skipped = stage(state) + 1..stage(next);
                for stage in skipped {
                    let is_empty = match stage {
                        1 | 4 => left.deferred == 0,
                        2 | 5 => left.chains == 0,
                        _ => false,
                    };
                    assert!(is_empty, "{state:?} {left:?}: {next:?} by {step:?}");
                }
            }
        }
    }

    /// Walks over every state that can be reached while anything may come or go between two steps, and the clock stands
    /// still or is past every deadline.
    #[test]
    fn every_way_drops_clients_leaves_and_removes_actors_once_each_in_this_order() {
        let order = [Step::DropClients, Step::Leave, Step::RemoveActors];
        let mut met = BTreeSet::new();
        let mut open = vec![(State::begin(1, 0), 0)];
        while let Some((state, done)) = open.pop() {
            if !met.insert((stage(state), done)) {
                continue;
            }
            for (left, now) in all_left().flat_map(|left| [(left, 0), (left, u64::MAX)]) {
                match state.next(&left, now) {
                    (_, Step::End) => assert_eq!(done, order.len()),
                    (next, Step::Wait | Step::AwaitDriver) => open.push((next, done)),
                    (next, step) => {
                        assert_eq!(Some(&step), order.get(done), "{state:?} {left:?}");
                        open.push((next, done + 1));
                    }
                }
            }
        }
        // One number of steps for each stage: no way around leads back.
        let stages: Vec<_> = met.into_iter().collect();
        assert_eq!(stages, [(0, 0), (1, 1), (2, 1), (3, 2), (4, 2), (5, 2), (6, 3)]);
    }

    #[test]
    fn a_shard_at_rest_ends_without_waiting() {
        let mut state = State::begin(u64::MAX, 7);
        let mut steps = Vec::new();
        while steps.last() != Some(&Step::End) {
            let (next, step) = state.next(&NOTHING, 7);
            state = next;
            steps.push(step);
        }
        assert_eq!(steps, [Step::DropClients, Step::Leave, Step::RemoveActors, Step::End]);
    }

    #[test]
    fn each_deadline_counts_from_the_begin_of_its_stage() {
        let busy = Left { clients: 1, deferred: 1, chains: 1, ..NOTHING };
        let (state, step) = State::begin(10, 100).next(&busy, 109);
        assert_eq!((state, step), (State::Clients { until_ns: 110 }, Step::Wait));
        let (state, step) = state.next(&busy, 120);
        let janitor = State::Deferred { until_ns: 120 + JANITOR_NS, round: Round::Own };
        assert_eq!((state, step), (janitor, Step::DropClients));
        let late = 150 + JANITOR_NS;
        let (state, step) = state.next(&busy, late);
        let chains = State::Chains { until_ns: late + CHAINS_NS, round: Round::Own };
        assert_eq!((state, step), (chains, Step::Wait));
        assert_eq!(state.next(&busy, late + CHAINS_NS), (State::Others, Step::Leave));
    }
}
