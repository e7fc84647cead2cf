//! Epochs in a small cluster, in all orders, against what must hold: nothing is used again that an operation may still
//! have the address of.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use futures::FutureExt;

use super::*;

#[test]
fn an_operation_holds_the_epoch_back_until_it_ends() {
    let node = Arc::new(NodeEpochs::new(1));
    let (pins, mut home) = (Pins::new(Arc::clone(&node), 0), EpochHome::default());
    node.join(home.join(0));
    let mut beat = || {
        let epoch = home.acknowledge(0, node.acknowledged());
        node.learn(epoch, 0);
        epoch
    };
    let since = pins.retired_now();
    let pin = pins.pin();
    assert_eq!((beat(), beat(), beat()), (2, 2, 2));
    pins.turn();
    let younger = pins.pin();
    pins.turn();
    assert_eq!(beat(), 2, "the first one pins 1");
    drop(pin);
    pins.turn();
    assert_eq!((beat(), beat()), (3, 3), "the second one pins 2");
    assert!(!pins.is_over(since));
    drop(younger);
    pins.turn();
    assert_eq!(beat(), 4);
    assert!(pins.is_over(since));
}

#[test]
fn a_shard_that_rests_is_not_waited_for_and_pins_the_epoch_of_its_awakening() {
    let node = Arc::new(NodeEpochs::new(2));
    let (idle, busy) = (Pins::new(Arc::clone(&node), 0), Pins::new(Arc::clone(&node), 1));
    drop(busy.pin());
    for epoch in 2..9 {
        assert_eq!(node.acknowledged(), epoch - 1);
        node.learn(epoch, 0);
        busy.turn();
    }
    let pin = idle.pin();
    busy.rest();
    assert_eq!(node.acknowledged(), 8);
    node.learn(9, 0);
    idle.rest();
    assert_eq!((node.acknowledged(), node.known()), (8, 9), "it sleeps, and its operation has not ended");
    drop(pin);
    idle.rest();
    assert_eq!(node.acknowledged(), 9);
    drop(idle.pin());
    drop(idle);
    node.learn(10, 0);
    assert_eq!(node.acknowledged(), 10, "shards that have ended are not waited for");
}

#[test]
fn an_epoch_that_the_node_has_not_let_come_is_not_believed() {
    let node = Arc::new(NodeEpochs::new(1));
    let pins = Pins::new(Arc::clone(&node), 0);
    let pin = pins.pin();
    node.learn(1000, 0);
    assert_eq!(node.known(), 2);
    pins.turn();
    node.learn(u64::MAX, 0);
    assert_eq!((node.known(), node.acknowledged()), (2, 1));
    drop(pin);
}

#[test]
fn the_home_waits_for_members_alone_and_for_the_last_of_them() {
    let mut home = EpochHome::default();
    assert_eq!(home.acknowledge(9, 77), 2, "it has no members");
    assert_eq!((home.join(0), home.join(1)), (2, 2));
    assert_eq!(home.acknowledge(0, 2), 3, "who joins has acknowledged it");
    assert_eq!((home.acknowledge(0, u64::MAX), home.acknowledge(0, 3)), (3, 3));
    assert_eq!([0, 1, 9].map(|member| home.waits_for(member)), [false, true, false]);
    assert_eq!(home.acknowledge(1, 3), 4);
    assert_eq!((home.acknowledge(1, 3), home.acknowledge(1, 4)), (4, 4));
    home.leave(0);
    assert_eq!(home.acknowledge(1, 4), 5);
}

/// An event of a test's cluster: two nodes of a shard each, one message under way in each direction at most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// An operation begins, and finds what is in the index.
    Begin(usize),
    End(usize),
    /// The oldest operation ends, and leaves a chain that has its addresses.
    Leave(usize),
    Execute(usize),
    Turn(usize),
    Rest(usize),
    Ask(usize),
    Acknowledge(usize),
    Learn(usize),
    /// The first node takes the one thing that there is out of the index.
    Retire,
}

/// All that happens to the node that reads, and of the one that retires what makes it do so.
const EVENTS: [Event; 16] = {
    use Event::*;
    [
        Begin(0),
        End(0),
        Turn(0),
        Ask(0),
        Acknowledge(0),
        Learn(0),
        Retire,
        Begin(1),
        End(1),
        Leave(1),
        Execute(1),
        Turn(1),
        Rest(1),
        Ask(1),
        Acknowledge(1),
        Learn(1),
    ]
};

/// Makes two compute nodes of one shard each, and the home server that they have joined.
pub(super) fn two_nodes() -> (EpochHome<usize>, Vec<Arc<NodeEpochs>>, Vec<Rc<Pins>>) {
    let mut home = EpochHome::default();
    let nodes: Vec<_> = (0..2).map(|_| Arc::new(NodeEpochs::new(1))).collect();
    nodes.iter().enumerate().for_each(|(at, node)| node.join(home.join(at)));
    let pins = nodes.iter().map(|node| Pins::new(Arc::clone(node), 0)).collect();
    (home, nodes, pins)
}

struct Small {
    home: EpochHome<usize>,
    nodes: Vec<Arc<NodeEpochs>>,
    pins: Vec<Rc<Pins>>,
    /// The operations, and whether they may have the address.
    running: Vec<Vec<(Pin, bool)>>,
    /// Chains that operations have left, and whether these had the address.
    left: Vec<Vec<(Pin, bool)>>,
    asked: Vec<Option<u64>>,
    answered: Vec<Option<u64>>,
    retired: Option<u64>,
}

impl Small {
    fn new() -> Self {
        let (home, nodes, pins) = two_nodes();
        Small {
            home,
            nodes,
            pins,
            running: vec![Vec::new(), Vec::new()],
            left: vec![Vec::new(), Vec::new()],
            asked: vec![None; 2],
            answered: vec![None; 2],
            retired: None,
        }
    }

    /// Lets something happen; false if it cannot.
    fn happen(&mut self, event: Event) -> bool {
        match event {
            Event::Begin(at) if self.running[at].len() < 2 => {
                self.running[at].push((self.pins[at].pin(), self.retired.is_none()));
            }
            Event::End(at) if !self.running[at].is_empty() => drop(self.running[at].remove(0)),
            Event::Leave(at) if !self.running[at].is_empty() && self.left[at].is_empty() => {
                let (pin, has_address) = self.running[at].remove(0);
                self.left[at].push((self.pins[at].pin_left(), has_address));
                drop(pin);
            }
            Event::Execute(at) if !self.left[at].is_empty() => drop(self.left[at].remove(0)),
            Event::Turn(at) => self.pins[at].turn(),
            Event::Rest(at) => self.pins[at].rest(),
            Event::Ask(at) if self.asked[at].is_none() => {
                self.asked[at] = Some(self.nodes[at].acknowledged())
            }
            Event::Acknowledge(at) if self.answered[at].is_none() => {
                let Some(oldest) = self.asked[at].take() else { return false };
                self.answered[at] = Some(self.home.acknowledge(at, oldest));
            }
            Event::Learn(at) => match self.answered[at].take() {
                Some(epoch) => self.nodes[at].learn(epoch, 0),
                None => return false,
            },
            // Operations retire, which pin.
            Event::Retire if self.retired.is_none() && !self.running[0].is_empty() => {
                self.retired = Some(self.pins[0].retired_now());
            }
            _ => return false,
        }
        true
    }

    fn is_free(&self, grace: u64) -> bool {
        self.retired.is_some_and(|since| self.nodes[0].known() >= since + grace)
    }

    fn is_reached(&self) -> bool {
        self.running.iter().chain(&self.left).flatten().any(|(_, has_address)| *has_address)
    }

    /// Yields all that the future depends on; epochs are counted from the known one.
    fn shape(&self) -> impl Ord + use<> {
        let base = self.nodes[0].known();
        let ahead = |epoch: u64| epoch.wrapping_sub(base) as i64;
        let shards: Vec<_> = (self.pins.iter().zip(self.running.iter().zip(&self.left)))
            .map(|(pins, (running, left))| {
                let of_runs: Vec<_> =
                    running.iter().chain(left).map(|(pin, has)| (pin.place(), *has)).collect();
                (ahead(pins.current()), ahead(pins.oldest()), pins.rests(), base & 1, of_runs)
            })
            .collect();
        let members: Vec<_> = (0..2).map(|at| self.home.waits_for(at)).collect();
        let messages: Vec<_> =
            self.asked.iter().chain(&self.answered).map(|epoch| epoch.map(ahead)).collect();
        let known = ahead(self.nodes[1].known());
        (shards, members, messages, known, ahead(self.home.epoch()), self.retired.map(|since| base - since))
    }
}

/// Explores all orders of events up to that many; yields whether a thing was free while an operation had its address,
/// and whether one was free at all.
fn explore(events: usize, grace: u64) -> (bool, bool) {
    let (mut seen, mut freed) = (BTreeSet::new(), false);
    let mut paths: Vec<Vec<Event>> = vec![Vec::new()];
    for _ in 0..events {
        let mut longer = Vec::new();
        for path in paths {
            for event in EVENTS {
                let mut small = Small::new();
                path.iter().for_each(|event| assert!(small.happen(*event)));
                if !small.happen(event) || !seen.insert(small.shape()) {
                    continue;
                }
                if small.is_free(grace) {
                    freed = true;
                    if small.is_reached() {
                        return (true, true);
                    }
                    continue;
                }
                longer.push(path.iter().copied().chain([event]).collect());
            }
        }
        paths = longer;
    }
    (false, freed)
}

#[test]
fn nothing_is_free_while_an_operation_may_have_its_address() {
    assert_eq!(explore(26, GRACE), (false, true));
}

/// Negative controls: the grace is as short as it can be.
#[test]
fn a_shorter_grace_would_free_what_an_operation_reads() {
    assert_eq!(explore(26, GRACE - 1), (true, true));
    assert_eq!(explore(26, GRACE - 2), (true, true));
}

/// A shard that leaves tasks all the time: each is left by an operation that overlaps with the one before.
#[test]
fn tasks_that_are_always_there_do_not_hold_the_epoch_for_ever() {
    let node = Arc::new(NodeEpochs::new(1));
    let pins = Pins::new(Arc::clone(&node), 0);
    let (mut operation, mut left) = (pins.pin(), VecDeque::from([pins.pin_left()]));
    for _ in 0..100 {
        let next = pins.pin();
        drop(std::mem::replace(&mut operation, next));
        left.push_back(pins.pin_left());
        left.pop_front();
        pins.turn();
        node.learn(node.known() + 1, 0);
    }
    drop((operation, left));
    assert!(node.known() > 30, "{}", node.known());
}

#[test]
fn what_a_task_leaves_is_of_its_operations_epoch() {
    let node = Arc::new(NodeEpochs::new(1));
    let pins = Pins::new(Arc::clone(&node), 0);
    for is_dropped in [false, true] {
        let operation = pins.pin();
        let began = pins.oldest();
        let (left, leaving) = (Rc::new(RefCell::new(Vec::new())), Rc::clone(&pins));
        let keeps = Rc::clone(&left);
        let mut task = Box::pin(pins.leave(async move {
            let _at_the_end = Leaves(Rc::clone(&leaving), Rc::clone(&keeps));
            keeps.borrow_mut().push(leaving.pin_left());
            if is_dropped {
                std::future::pending::<()>().await;
            }
        }));
        drop(operation);
        node.learn(node.known() + 1, 0);
        pins.turn();
        assert_eq!(task.as_mut().now_or_never().is_none(), is_dropped);
        drop(task);
        node.learn(node.known() + 1, 0);
        pins.turn();
        assert_eq!((pins.oldest(), pins.current()), (began, began + 1), "the chains are not executed");
        assert_eq!(left.borrow().len(), 2);
        drop(pins.pin_left());
        left.borrow_mut().clear();
        pins.turn();
        assert_eq!(pins.oldest(), began + 1);
    }
}

/// Leaves a chain when it is dropped.
struct Leaves(Rc<Pins>, Rc<RefCell<Vec<Pin>>>);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.1.borrow_mut().push(self.0.pin_left());
    }
}
