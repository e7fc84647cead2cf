//! The lists of free and retired nodes of one process, as a sweep wants to know of them: its allocators have them, each
//! of its own shard's thread, and are asked by any thread. It knows no allocator.

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use crate::control::IndexId;
use crate::epoch::NodeEpochs;
use crate::extents::Extents;

/// The lists of one allocator.
pub(crate) trait List: Send + Sync {
    /// Begins to note what leaves the lists, or ends to.
    fn note(&self, is_on: bool);

    /// Adds what is in the lists, and what was noted; false if memory is on its way there.
    fn tell(&self, extents: &mut Extents) -> bool;
}

/// Extents that have left the lists of an allocator since a sweep began; nothing where there is none.
pub(crate) type Noted = Option<Extents>;

/// The lists of the allocators of one process.
#[derive(Default)]
pub struct Lists(Mutex<State>);

#[derive(Default)]
struct State {
    lists: Vec<Entry>,
    sweep: Option<Noting>,
}

struct Entry {
    index: IndexId,
    /// The compute node whose allocator has the lists.
    node: Weak<NodeEpochs>,
    list: Weak<dyn List>,
}

/// The sweep for which the process notes.
struct Noting {
    number: u64,
    index: IndexId,
    /// Extents that allocators have noted which are gone.
    left: Extents,
}

impl Lists {
    /// Adds the lists of an allocator of that compute node. Lists are asked for until they are gone.
    pub(crate) fn add(&self, index: IndexId, node: &Arc<NodeEpochs>, list: Weak<dyn List>) {
        let mut state = self.state();
        if state.is_swept(index) {
            list.upgrade().into_iter().for_each(|list| list.note(true));
        }
        state.lists.retain(|entry| entry.list.strong_count() > 0);
        state.lists.push(Entry { index, node: Arc::downgrade(node), list });
    }

    /// Asks a compute node no more, which has died in a process that lives.
    pub(crate) fn forget(&self, node: &Arc<NodeEpochs>) {
        self.state().lists.retain(|entry| !std::ptr::eq(entry.node.as_ptr(), Arc::as_ptr(node)));
    }

    /// Keeps what an allocator has noted that ends. To be called before its lists are gone.
    pub(crate) fn leave(&self, index: IndexId, noted: &Extents) {
        let mut state = self.state();
        if let Some(sweep) = state.sweep.as_mut().filter(|sweep| sweep.index == index) {
            sweep.left.add_all(noted);
        }
    }

    /// Has all lists of an index noted for that sweep, from now on.
    pub(crate) fn begin(&self, number: u64, index: IndexId) {
        let mut state = self.state();
        if state.number() == number {
            return;
        }
        state.end();
        state.sweep = Some(Noting { number, index, left: Extents::default() });
        state.of_sweep(|list| list.note(true));
    }

    /// Returns the number of the sweep for which this process notes; 0 is none.
    pub(crate) fn noting(&self) -> u64 {
        self.state().number()
    }

    /// Yields what is in the lists, and what was noted, for the sweep of that number; none while memory is on its way
    /// to a list, or if this is not the sweep.
    pub(crate) fn tell(&self, number: u64) -> Option<Extents> {
        let state = self.state();
        let sweep = state.sweep.as_ref().filter(|sweep| sweep.number == number)?;
        let (mut extents, mut is_whole) = (sweep.left.clone(), true);
        state.of_sweep(|list| is_whole &= list.tell(&mut extents));
        is_whole.then_some(extents)
    }

    /// Notes nothing any more.
    pub(crate) fn end(&self) {
        self.state().end();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics while it holds the lists")
    }
}

impl State {
    fn number(&self) -> u64 {
        self.sweep.as_ref().map_or(0, |sweep| sweep.number)
    }

    fn is_swept(&self, index: IndexId) -> bool {
        self.sweep.as_ref().is_some_and(|sweep| sweep.index == index)
    }

    fn of_sweep(&self, each: impl FnMut(Arc<dyn List>)) {
        let theirs = self.lists.iter().filter(|entry| self.is_swept(entry.index));
        theirs.filter_map(|entry| entry.list.upgrade()).for_each(each);
    }

    fn end(&mut self) {
        self.of_sweep(|list| list.note(false));
        self.sweep = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pointer::RemotePtr;

    const INDEX: IndexId = IndexId(3);

    /// One piece, and whether more is on its way.
    struct Fixed {
        at: u64,
        awaits: Mutex<bool>,
        notes: Mutex<bool>,
    }

    impl List for Fixed {
        fn note(&self, is_on: bool) {
            *self.notes.lock().unwrap() = is_on;
        }

        fn tell(&self, extents: &mut Extents) -> bool {
            extents.add(RemotePtr::from_bits(self.at), 64);
            !*self.awaits.lock().unwrap()
        }
    }

    fn added(lists: &Lists, index: IndexId, at: u64) -> (Arc<Fixed>, Arc<NodeEpochs>) {
        let (list, node) =
            (Fixed { at, awaits: Mutex::default(), notes: Mutex::default() }, Arc::new(NodeEpochs::new(1)));
        let list = Arc::new(list);
        let weak: Weak<dyn List> = Arc::<Fixed>::downgrade(&list);
        lists.add(index, &node, weak);
        (list, node)
    }

    fn told(lists: &Lists, number: u64) -> Option<Vec<u64>> {
        let told = lists.tell(number)?;
        Some(told.iter().map(|(at, _)| at.to_bits()).collect())
    }

    #[test]
    fn the_lists_of_the_index_are_told_and_what_the_gone_have_noted() {
        let lists = Lists::default();
        let (one, other) = (added(&lists, INDEX, 4096), added(&lists, IndexId(4), 8192));
        assert_eq!((lists.noting(), told(&lists, 7)), (0, None));
        lists.begin(7, INDEX);
        let late = added(&lists, INDEX, 12_288);
        let notes = |list: &Fixed| *list.notes.lock().unwrap();
        assert!(notes(&one.0) && notes(&late.0) && !notes(&other.0));
        assert_eq!((lists.noting(), told(&lists, 7)), (7, Some(vec![4096, 12_288])));
        assert_eq!(told(&lists, 6), None, "that was another sweep");
        let mut noted = Extents::default();
        noted.add(RemotePtr::from_bits(16_384), 64);
        lists.leave(INDEX, &noted);
        lists.leave(IndexId(4), &noted);
        drop(late);
        assert_eq!(told(&lists, 7), Some(vec![4096, 16_384]));
        *one.0.awaits.lock().unwrap() = true;
        assert_eq!(told(&lists, 7), None, "memory is on its way there");
        lists.forget(&one.1);
        assert_eq!(told(&lists, 7), Some(vec![16_384]));
        lists.begin(8, IndexId(4));
        assert_eq!(told(&lists, 8), Some(vec![8192]), "what was noted for another sweep is forgotten");
        lists.end();
        assert!(!notes(&other.0) && lists.noting() == 0);
    }
}
