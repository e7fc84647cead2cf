//! The epochs of this process's compute nodes, as server 0 hears of them: what they acknowledge goes with the signs of
//! life, more often while memory waits for the epoch, and the replies bring the cluster's epoch ([`crate::epoch`]).
//! They say as well what a sweep wants ([`crate::control::sweep`]): what is in this process's lists goes in place of
//! signs of life.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use crate::control::IndexId;
use crate::control::sweep::{Lists, Step};
use crate::control::wire::{Reply, Request};
use crate::epoch::NodeEpochs;

/// Time between two signs of life while memory waits, here or elsewhere.
const HURRY: Duration = Duration::from_millis(50);

/// Pieces of one part of the lists.
const PIECES_OF_A_PART: usize = 3_000;

/// The epochs of a process, between its compute nodes and its connection to server 0.
#[derive(Default)]
pub(super) struct ProcessEpochs {
    nodes: Mutex<Vec<Weak<NodeEpochs>>>,
    /// The cluster's epoch, as it was said last.
    known: AtomicU64,
    /// Set when memory of this process waits, until the next sign of life.
    waits: AtomicBool,
    /// An epoch since which memory of this process waits for a flush, until the next sign of life; 0 is none.
    flush: AtomicU64,
    /// Set while memory of others waits.
    hurry: AtomicBool,
    /// Set while the thread that sends signs of life sleeps until a usual one.
    sleeps: AtomicBool,
    /// Nodes that have died, and those of them that are fenced on all servers, as far as is known here.
    dead: AtomicU32,
    fenced: AtomicU32,
    /// The lists of free and retired nodes of this process.
    pub(super) lists: Lists,
    /// Parts of what was in them that server 0 was not told yet.
    untold: Mutex<VecDeque<Request>>,
}

impl ProcessEpochs {
    /// Notes the epoch that a compute node was admitted in, and the sweep that was under way.
    pub(super) fn admitted(&self, epoch: u64, sweep: Option<(u64, u32)>) {
        self.known.fetch_max(epoch, Ordering::AcqRel);
        sweep.into_iter().for_each(|(number, index)| self.lists.begin(number, IndexId(index)));
    }

    /// Adds a compute node.
    pub(super) fn join(&self, node: &Arc<NodeEpochs>) {
        let mut nodes = self.nodes.lock().expect("nothing panics while it holds the nodes");
        node.join(self.known.load(Ordering::Acquire));
        nodes.retain(|node| node.strong_count() > 0);
        nodes.push(Arc::downgrade(node));
    }

    /// Notes that retired memory waits for the next epoch. Yields true if the thread that sends signs of life sleeps
    /// until a usual one: it is to be woken, once.
    pub(super) fn want(&self) -> bool {
        if !self.waits.load(Ordering::Relaxed) {
            self.waits.store(true, Ordering::SeqCst);
        }
        self.sleeps.load(Ordering::SeqCst) && self.sleeps.swap(false, Ordering::SeqCst)
    }

    /// Notes that memory which was retired in that epoch waits for a flush. Yields what [`ProcessEpochs::want`] does.
    pub(super) fn want_flush(&self, since: u64) -> bool {
        self.flush.fetch_max(since, Ordering::Relaxed);
        self.want()
    }

    /// Returns the time to the next sign of life, `usual` where no memory waits.
    pub(super) fn interval(&self, usual: Duration) -> Duration {
        if !self.untold().is_empty() {
            return Duration::ZERO;
        }
        // First: memory that waits from now on finds it set.
        self.sleeps.store(true, Ordering::SeqCst);
        let waits = self.waits.load(Ordering::SeqCst) || self.hurry.load(Ordering::Relaxed);
        if waits {
            self.sleeps.store(false, Ordering::Relaxed);
            return usual.min(HURRY);
        }
        usual
    }

    /// Makes the next sign of life. Before it has compute nodes, a process has nothing to say: server 0 may not have
    /// let it join yet.
    pub(super) fn beat(&self) -> Request {
        if let Some(part) = self.untold().pop_front() {
            return part;
        }
        let nodes = self.nodes.lock().expect("nothing panics while it holds the nodes");
        if nodes.is_empty() {
            return Request::Ping;
        }
        let acknowledged = nodes.iter().filter_map(Weak::upgrade).map(|node| node.acknowledged());
        let oldest = acknowledged.fold(self.known.load(Ordering::Acquire), u64::min);
        Request::Epoch {
            oldest,
            fenced: self.fenced.load(Ordering::Relaxed),
            waits: self.waits.swap(false, Ordering::Relaxed),
            flush: self.flush.swap(0, Ordering::Relaxed),
            noting: self.lists.noting(),
        }
    }

    /// Takes the reply to a sign of life.
    pub(super) fn hear(&self, reply: &Reply) {
        let Reply::Epoch { epoch, dead, hurry, flushed, sweep } = *reply else { return };
        match sweep {
            None => self.lists.end(),
            Some((number, index, step)) => {
                self.lists.begin(number, IndexId(index));
                if step == Step::Lists && self.untold().is_empty() {
                    self.untold().extend(self.parts());
                }
            }
        }
        self.hurry.store(hurry, Ordering::Relaxed);
        self.dead.fetch_max(dead, Ordering::Relaxed);
        let nodes = self.nodes.lock().expect("nothing panics while it holds the nodes");
        self.known.fetch_max(epoch, Ordering::AcqRel);
        nodes.iter().filter_map(Weak::upgrade).for_each(|node| node.learn(epoch, flushed));
    }

    /// Makes the requests that tell server 0 what is in the lists, for the sweep that is under way; none if there is no
    /// sweep, or if memory is on its way to a list.
    pub(super) fn parts(&self) -> Vec<Request> {
        let sweep = self.lists.noting();
        let Some(told) = self.lists.tell(sweep) else { return Vec::new() };
        let pieces: Vec<_> = told.iter().map(|(at, bytes)| (at.to_bits(), bytes)).collect();
        let part = |pieces: &[_], is_last| Request::TellLists { sweep, pieces: pieces.to_vec(), is_last };
        let parts = pieces.chunks(PIECES_OF_A_PART).map(|pieces| part(pieces, false));
        parts.chain([part(&[], true)]).collect()
    }

    fn untold(&self) -> MutexGuard<'_, VecDeque<Request>> {
        self.untold.lock().expect("nothing panics while it holds the parts")
    }

    /// Notes that the first `fenced` dead are fenced on all servers.
    pub(super) fn note_fenced(&self, fenced: u32) {
        self.fenced.fetch_max(fenced, Ordering::Relaxed);
    }

    /// Tells whether the epoch may wait for a dead node that is to be fenced.
    pub(super) fn is_held_by_the_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed) > self.fenced.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch::Pins;

    fn beat(process: &ProcessEpochs) -> (u64, u32, bool) {
        match process.beat() {
            Request::Epoch { oldest, fenced, waits, flush: 0, noting: 0 } => (oldest, fenced, waits),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_oldest_of_all_nodes_is_acknowledged_and_the_epoch_comes_to_all() {
        let process = ProcessEpochs::default();
        assert_eq!(process.beat(), Request::Ping, "it may not have joined");
        process.admitted(7, None);
        let nodes = [1, 2].map(|shards| Arc::new(NodeEpochs::new(shards)));
        nodes.iter().for_each(|node| process.join(node));
        let pin = Pins::new(Arc::clone(&nodes[1]), 1).pin();
        process.hear(&Reply::Epoch { epoch: 8, dead: 0, hurry: false, flushed: 0, sweep: None });
        assert_eq!(nodes.each_ref().map(|node| node.known()), [8, 8]);
        assert_eq!(beat(&process), (7, 0, false));
        drop(pin);
        assert_eq!(beat(&process), (8, 0, false));
        drop(nodes);
        let late = Arc::new(NodeEpochs::new(1));
        process.join(&late);
        assert_eq!((late.known(), beat(&process)), (8, (8, 0, false)));
    }

    #[test]
    fn signs_of_life_come_more_often_while_memory_waits() {
        let (process, usual) = (ProcessEpochs::default(), Duration::from_secs(1));
        process.join(&Arc::new(NodeEpochs::new(1)));
        assert_eq!(process.interval(usual), usual);
        assert!(process.want() && !process.want(), "it is to be woken once");
        assert_eq!(process.interval(usual), HURRY);
        assert!(beat(&process).2 && !beat(&process).2);
        assert_eq!(process.interval(usual), usual);
        process.hear(&Reply::Epoch { epoch: 1, dead: 0, hurry: true, flushed: 0, sweep: None });
        assert_eq!(process.interval(usual), HURRY);
    }

    #[test]
    fn a_flush_is_asked_for_once_and_known_with_its_epoch() {
        let process = ProcessEpochs::default();
        let node = Arc::new(NodeEpochs::new(1));
        process.join(&node);
        process.want_flush(1);
        process.want_flush(3);
        let asked = |process: &ProcessEpochs| match process.beat() {
            Request::Epoch { waits, flush, .. } => (waits, flush),
            other => panic!("{other:?}"),
        };
        assert_eq!((asked(&process), asked(&process)), ((true, 3), (false, 0)));
        process.hear(&Reply::Epoch { epoch: 2, dead: 0, hurry: false, flushed: 2, sweep: None });
        assert_eq!((node.known(), node.flushed()), (2, 2));
        process.hear(&Reply::Epoch { epoch: 3, dead: 0, hurry: false, flushed: u64::MAX, sweep: None });
        assert_eq!((node.known(), node.flushed()), (3, 3), "none is to come");
    }

    #[test]
    fn the_dead_hold_the_epoch_until_they_are_fenced() {
        let process = ProcessEpochs::default();
        process.hear(&Reply::Epoch { epoch: 1, dead: 2, hurry: false, flushed: 0, sweep: None });
        assert!(process.is_held_by_the_dead());
        process.note_fenced(2);
        process.join(&Arc::new(NodeEpochs::new(1)));
        assert!(!process.is_held_by_the_dead());
        assert_eq!(beat(&process).1, 2);
    }
}
