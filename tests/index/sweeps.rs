//! Sweeps: memory that a compute node had in its lists when it died comes back while others work.

use std::cell::Cell;
use std::rc::Rc;

use farwood::index::SweepReport;
use farwood::runtime::sim::SimShard;
use farwood::{RangeIndex, Verbs};

use crate::kit::{IndexKind, key};
use crate::repairs::{Index, KEYS, Site, is_removed};

/// Lets a client put keys in and remove them, over and over: nodes are split, merged, retired and used again.
fn work(worker: &(SimShard, Index), over: &Rc<Cell<bool>>) {
    let (index, over) = (worker.1.clone(), Rc::clone(over));
    drop(worker.0.spawn(async move {
        while !over.get() {
            for n in (0..KEYS).filter(|n| is_removed(*n)) {
                assert!(index.insert(&key(n), &key(n)).await.unwrap());
                assert_eq!(index.get(&key(n)).await.unwrap().as_deref(), Some(&key(n)[..]));
            }
            for n in (0..KEYS).filter(|n| is_removed(*n)) {
                assert!(index.remove(&key(n)).await.unwrap());
            }
        }
    }));
}

fn sweep(site: &Site, (shard, index): &(SimShard, Index)) -> SweepReport {
    let index = index.clone();
    site.on(shard, async move { index.sweep().await.unwrap() })
}

/// Makes an index with all keys, of which the process that has removed some has died with their nodes in its lists.
fn after_a_death(kind: IndexKind) -> Site {
    let site = Site::new(kind);
    let [victim, _other] = site.attached(true);
    site.insert(&victim, |_| true);
    site.remove(&victim);
    site.kill(&victim);
    site
}

#[test]
fn lost_memory_comes_back_while_clients_work() {
    for &kind in IndexKind::ALL {
        let site = after_a_death(kind);
        let handed_out = site.handed_out();
        let ([worker, _], [sweeper, _]) = (site.attached(false), site.attached(false));
        let over = Rc::new(Cell::new(false));
        work(&worker, &over);
        let first = sweep(&site, &sweeper);
        let lost = first.given_back_bytes + first.left_bytes;
        assert!(lost > handed_out / 8, "{kind}: {first:?} of {handed_out}");
        assert_eq!(first.left_bytes > 0, kind.name() == "dolphin", "{kind}: {first:?}");
        let second = sweep(&site, &sweeper);
        assert_eq!((second.given_back_bytes, second.left_bytes), (0, first.left_bytes), "{kind}");
        over.set(true);
        site.rest(&worker.0);
        site.insert(&sweeper, is_removed);
        site.has_all(&sweeper);
    }
}

/// Nothing is lost while processes live: what they have in their lists, and what passes through them, stays theirs.
#[test]
fn a_sweep_takes_nothing_from_clients_that_live() {
    for &kind in IndexKind::ALL {
        let site = Site::new(kind);
        let [one, other] = site.attached(true);
        site.insert(&one, |_| true);
        site.remove(&one);
        let over = Rc::new(Cell::new(false));
        work(&other, &over);
        for _ in 0..4 {
            let SweepReport { given_back_bytes, left_bytes, listed_bytes, .. } = sweep(&site, &one);
            assert_eq!((given_back_bytes, left_bytes), (0, 0), "{kind}");
            assert!(listed_bytes > 0, "{kind}: two shards have lists");
        }
        over.set(true);
        site.rest(&other.0);
        site.insert(&one, is_removed);
        site.has_all(&one);
    }
}

/// A process that dies has not told what it had noted: the sweep begins anew.
#[test]
fn a_process_that_dies_meanwhile_keeps_no_memory() {
    for &kind in IndexKind::ALL {
        let site = after_a_death(kind);
        let ([worker, _], [sweeper, _]) = (site.attached_with(false, true), site.attached_with(false, true));
        let over = Rc::new(Cell::new(false));
        work(&worker, &over);
        let (index, swept) = (sweeper.1.clone(), Rc::new(Cell::new(None)));
        let done = Rc::clone(&swept);
        drop(sweeper.0.spawn(async move { done.set(Some(index.sweep().await)) }));
        site.on(&sweeper.0, sweeper.0.pause(100_000));
        site.kill(&worker);
        for _ in 0..1000 {
            site.on(&sweeper.0, sweeper.0.pause(1_000_000));
            if let Some(swept) = swept.take() {
                assert!(swept.unwrap().given_back_bytes > 0, "{kind}");
                over.set(true);
                break;
            }
        }
        assert!(over.get(), "{kind}: the sweep does not end");
        assert_eq!(sweep(&site, &sweeper).given_back_bytes, 0, "{kind}: nothing was left");
    }
}
