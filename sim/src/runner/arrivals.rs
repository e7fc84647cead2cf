//! Compute nodes that come in the middle of the work, new ones and such that were stopped before, and a count of those
//! clients that are still at it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use farwood_index::AnyTree;
use farwood_runtime::Verbs;

use super::phases::{Member, Run};

/// A compute node that comes back does so within that time.
const BACK_WITHIN_NS: u64 = 1 << 18;

/// Clients that have not ended, by the places of their shards.
#[derive(Default)]
pub(super) struct Busy {
    left: RefCell<Vec<usize>>,
    ended: Cell<u64>,
}

impl Busy {
    pub(super) fn begin(&self, place: usize) {
        let mut left = self.left.borrow_mut();
        if left.len() <= place {
            left.resize(place + 1, 0);
        }
        left[place] += 1;
    }

    pub(super) fn end(&self, place: usize) {
        self.left.borrow_mut()[place] -= 1;
        self.ended.set(self.ended.get() + 1);
    }

    /// Counts clients that have ended.
    pub(super) fn ended(&self) -> u64 {
        self.ended.get()
    }

    /// Counts clients that have not ended, but for those of compute nodes that have stopped.
    pub(super) fn left(&self, fleet: &[Member]) -> usize {
        let left = self.left.borrow();
        let alive = fleet.iter().zip(left.iter()).filter(|(member, _)| !member.shard.is_dead());
        alive.map(|(_, left)| left).sum()
    }
}

/// A tree on a compute node that has come, or why there is none.
type Opened = (u16, Result<AnyTree, String>);

/// Compute nodes that come in the middle of the work.
pub(super) struct Arrivals<'a, 'r> {
    run: &'a Run<'r>,
    joined: Cell<u16>,
    /// Compute nodes that have stopped and are known to have.
    mourned: RefCell<BTreeSet<u16>>,
    opening: RefCell<BTreeSet<u16>>,
    opened: Rc<RefCell<Vec<Opened>>>,
}

impl<'a, 'r> Arrivals<'a, 'r> {
    pub(super) fn new(run: &'a Run<'r>) -> Self {
        Arrivals {
            run,
            joined: Cell::default(),
            mourned: RefCell::default(),
            opening: RefCell::default(),
            opened: Rc::default(),
        }
    }

    /// Yields a number that changes when there is something to do.
    pub(super) fn news(&self) -> u64 {
        u64::from(self.is_due()) + self.opened.borrow().len() as u64
    }

    /// Tells whether no compute node is on its way.
    pub(super) fn are_over(&self) -> bool {
        self.opening.borrow().is_empty()
    }

    /// Lets compute nodes begin to open the tree if it is their time; yields those that have opened it.
    pub(super) fn come(&self) -> Result<Vec<(u16, AnyTree)>, String> {
        let simulation = self.run.simulation;
        let is_dead = |node: &u16| simulation.shard(*node, 0).is_dead();
        for node in (0..simulation.nodes()).filter(is_dead) {
            if self.mourned.borrow_mut().insert(node) && self.run.scenario.adversary.comes_back {
                self.begin(Some(node));
            }
        }
        while self.is_due() {
            self.joined.set(self.joined.get() + 1);
            self.begin(None);
        }
        self.opening.borrow_mut().retain(|node| !is_dead(node));
        let mut come = Vec::new();
        for (node, tree) in self.opened.take() {
            if self.opening.borrow_mut().remove(&node) {
                come.push((node, tree?));
            }
        }
        Ok(come)
    }

    /// Tells whether clients have done so much that the next compute node joins: they come at equal distances.
    fn is_due(&self) -> bool {
        let (joined, joiners) =
            (u64::from(self.joined.get()), u64::from(self.run.scenario.adversary.joiners));
        let all = self.run.scenario.clients() as u64 * u64::from(self.run.scenario.work.ops);
        joined < joiners && self.run.crew.begun() * (joiners + 1) >= all * (joined + 1)
    }

    fn begin(&self, beside: Option<u16>) {
        let Run { scenario, simulation, .. } = self.run;
        let node = simulation.add_node(beside);
        self.run.crew.meet(simulation.shard(node, 0));
        let opening = self.run.opening(node, scenario.spec_of(node), false);
        let (shard, opened) = (simulation.shard(node, 0), Rc::clone(&self.opened));
        let pause_ns = beside.map_or(0, |_| shard.random() % BACK_WITHIN_NS);
        self.opening.borrow_mut().insert(node);
        let verbs = shard.clone();
        drop(shard.spawn(async move {
            verbs.pause(pause_ns).await;
            let tree = opening.await;
            opened.borrow_mut().push((node, tree));
        }));
    }
}
