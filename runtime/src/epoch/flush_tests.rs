//! Flushes in a small cluster, in all orders, against what must hold: nothing that caches led to is used again while an
//! operation may have its address, or get it from a cache.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use super::tests::two_nodes;
use super::*;

/// An event of a test's cluster: the first node takes the one thing that there is out of the index, and operations of
/// the second one come there, over the index or its cache.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// An operation begins. While the thing is in the index it finds it there.
    Begin,
    /// The oldest operation looks into the cache.
    Look,
    /// The oldest operation puts what it found in the index into the cache.
    Keep,
    /// The oldest operation ends.
    End,
    Turn(usize),
    /// A node acknowledges; the reply is on its way.
    Beat(usize),
    Learn(usize),
    Retire,
    /// Some memory waits for a flush.
    Want,
}

const EVENTS: [Event; 12] = {
    use Event::*;
    [Begin, Look, Keep, End, Turn(1), Beat(1), Learn(1), Turn(0), Beat(0), Learn(0), Retire, Want]
};

/// The rules that are tried.
#[derive(Clone, Copy)]
struct Rules {
    /// Epochs from the retirement to a flush that counts.
    before: u64,
    /// Epochs from the flush until the thing is free.
    behind: u64,
    /// True if caches are emptied.
    empties: bool,
    /// True if the code is asked, and not the numbers.
    are_ours: bool,
}

/// An operation of the second node.
struct Operation {
    _pin: Pin,
    /// It has found the thing in the index.
    found: bool,
    has_address: bool,
}

struct Small {
    home: EpochHome<usize>,
    nodes: Vec<Arc<NodeEpochs>>,
    pins: Vec<Rc<Pins>>,
    /// The oldest first.
    running: Vec<Operation>,
    /// The cache of the second node leads to the thing.
    cached: bool,
    /// The flush for which it was emptied.
    emptied: u64,
    answered: Vec<Option<(u64, u64)>>,
    retired: Option<u64>,
}

impl Small {
    fn new() -> Self {
        let (home, nodes, pins) = two_nodes();
        // None rests.
        pins.iter().for_each(|pins| drop(pins.pin()));
        let (running, answered) = (Vec::new(), vec![None; 2]);
        Small { home, nodes, pins, running, cached: false, emptied: 0, answered, retired: None }
    }

    /// Lets something happen; false if it cannot.
    fn happen(&mut self, event: Event, rules: Rules) -> bool {
        let running = self.running.len();
        match (event, self.running.first_mut()) {
            (Event::Begin, _) if running < 2 => {
                let found = self.retired.is_none();
                self.running.push(Operation { _pin: self.pins[1].pin(), found, has_address: found });
            }
            (Event::Look, Some(oldest)) => {
                if rules.empties && self.emptied < self.pins[1].flushed() {
                    (self.cached, self.emptied) = (false, self.pins[1].flushed());
                }
                oldest.has_address |= self.cached;
            }
            (Event::Keep, Some(oldest)) => self.cached |= oldest.found,
            (Event::End, Some(_)) => drop(self.running.remove(0)),
            (Event::Turn(at), _) => self.pins[at].turn(),
            (Event::Beat(at), _) if self.answered[at].is_none() => {
                let epoch = self.home.acknowledge(at, self.nodes[at].acknowledged());
                self.answered[at] = Some((epoch, self.home.flushed()));
            }
            (Event::Learn(at), _) => match self.answered[at].take() {
                Some((epoch, flushed)) => self.nodes[at].learn(epoch, flushed),
                None => return false,
            },
            // The operation that retires it has ended: later operations find out less.
            (Event::Retire, _) if self.retired.is_none() => self.retired = Some(self.pins[0].retired_now()),
            (Event::Want, _) => self.home.want_flush(self.nodes[0].known()),
            _ => return false,
        }
        true
    }

    fn is_free(&self, rules: Rules) -> bool {
        let (pins, known, flushed) = (&self.pins[0], self.nodes[0].known(), self.nodes[0].flushed());
        let is_free = |since| flushed >= since + rules.before && known >= flushed + rules.behind;
        let by_code = |since| pins.flushed_since(since).is_some_and(|since| pins.is_over(since));
        self.retired.is_some_and(|since| if rules.are_ours { by_code(since) } else { is_free(since) })
    }

    fn is_reached(&self) -> bool {
        self.running.iter().any(|operation| operation.has_address)
    }

    /// Yields all that the future depends on; epochs are counted from the known one.
    fn shape(&self) -> impl Ord + use<> {
        let base = self.nodes[0].known();
        let ahead = |epoch: u64| epoch.wrapping_sub(base) as i64;
        let flush = |epoch: u64| ahead(epoch).max(-4);
        let pins: Vec<_> =
            self.pins.iter().map(|pins| (ahead(pins.current()), ahead(pins.oldest()))).collect();
        let running: Vec<_> =
            self.running.iter().map(|one| (one._pin.place(), one.found, one.has_address)).collect();
        let answered: Vec<_> = self
            .answered
            .iter()
            .map(|answer| answer.map(|(epoch, flushed)| (ahead(epoch), flush(flushed))))
            .collect();
        let flushes: Vec<_> = self.nodes.iter().map(|node| flush(node.flushed())).collect();
        let home = (ahead(self.home.epoch()), self.home.waits_for(0), self.home.waits_for(1));
        let next = self.home.next_flush().map(ahead);
        let cache = (self.cached, self.emptied < self.nodes[1].flushed(), self.emptied < self.home.flushed());
        (
            (pins, base & 1, running, answered),
            (flushes, flush(self.home.flushed()), next, home),
            (cache, ahead(self.nodes[1].known()), self.retired.map(|since| ahead(since).max(-4))),
        )
    }
}

/// Explores all orders of events up to that many; yields whether the thing was free while an operation had its address,
/// or could get it, and whether it was free at all.
fn explore(events: usize, rules: Rules) -> (bool, bool) {
    let (mut seen, mut freed) = (BTreeSet::new(), false);
    let mut paths: Vec<Vec<Event>> = vec![Vec::new()];
    for _ in 0..events {
        let mut longer = Vec::new();
        for path in paths {
            for event in EVENTS {
                let mut small = Small::new();
                path.iter().for_each(|event| assert!(small.happen(*event, rules)));
                if !small.happen(event, rules) || !seen.insert(small.shape()) {
                    continue;
                }
                if small.is_free(rules) {
                    freed = true;
                    if small.is_reached() {
                        return (true, true);
                    }
                }
                longer.push(path.iter().copied().chain([event]).collect());
            }
        }
        paths = longer;
    }
    (false, freed)
}

/// The numbers of the code.
const RULES: Rules = Rules { before: GRACE, behind: 1, empties: true, are_ours: false };

#[test]
fn nothing_is_free_while_a_cache_may_lead_there() {
    assert_eq!(explore(34, Rules { are_ours: true, ..RULES }), (false, true));
}

/// Negative controls: each rule is one epoch too short, or nothing is emptied.
#[test]
fn each_rule_is_as_short_as_it_can_be() {
    assert_eq!(explore(34, Rules { before: GRACE - 1, ..RULES }), (true, true));
    assert_eq!(explore(34, Rules { behind: 0, ..RULES }), (true, true));
    assert_eq!(explore(34, Rules { empties: false, ..RULES }), (true, true));
}
