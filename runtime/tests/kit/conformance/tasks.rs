//! Time, wakes, deferred tasks and combinators, for clients of the pool and for tasks of the executor.

use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn, ready};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use farwood_runtime::{Chain, ClientPool, Message, Meter, Port, ShardId, TimedOut, Waiter};
use futures::future::{join, join_all, select};
use futures::stream::{FuturesUnordered, StreamExt};

use super::Site;
use super::exchange::{Barrier, Tally, counted, maybe_in_client, read_words, run};

/// Checks that a pause lasts at least its time, and that pauses of many clients end in the order of their deadlines.
pub(crate) async fn pauses<V: ClientPool>(v: V, _: Site, _: Barrier<V>) {
    for ns in [0, 1, 999, 50_000, 150_000, 250_000, 1_000_000, 5_000_000] {
        let before = v.now();
        v.pause(ns).await;
        assert!(v.now() - before >= ns, "{ns} ns took {}", v.now() - before);
    }
    // A thread that is interrupted between reading the clock and asking for a pause gets a later deadline than it
    // meant. Such a round proves nothing; an undisturbed one must come.
    let mut in_order = false;
    for _ in 0..20 {
        in_order |= many_pauses(&v).await;
    }
    assert!(in_order, "pauses end in another order than that of their deadlines");
    // The longer one is dropped; its deadline wakes no client.
    let before = v.now();
    drop(select(v.pause(3_600_000_000_000), v.pause(100_000)).await);
    assert!(v.now() - before >= 100_000);
}

/// Checks that an operation that ends in time has its outcome; another one is dropped, and what it had posted is
/// executed.
pub(crate) async fn timeouts<V: ClientPool>(v: V, site: Site, _: Barrier<V>) {
    let (limit, at) = (Duration::from_micros(200), site.own(0, v.shard()));
    let before = v.now();
    assert_eq!(v.timeout(limit, pending::<()>()).await, Err(TimedOut { limit }));
    assert!(v.now() - before >= 200_000);
    assert_eq!(v.timeout(Duration::MAX, async { v.pause(1_000).await }).await, Ok(()));
    assert_eq!(v.timeout(Duration::ZERO, ready(7)).await, Ok(7));
    let begun = Rc::new(Cell::new(0));
    let adds = async |stays: bool| {
        let mut chain = Chain::new(at.server());
        chain.faa(at, 1);
        begun.set(begun.get() + 1);
        let posted = v.submit(&Meter::default(), chain);
        if stays {
            pending::<()>().await;
        }
        posted.await.unwrap().atomics[0]
    };
    assert!(v.timeout(limit, adds(true)).await.is_err());
    assert_eq!(v.timeout(Duration::from_secs(3600), adds(false)).await, Ok(1));
    assert_eq!(begun.get(), 2);
}

/// Lets 50 clients pause; tells whether they went on in the order of their deadlines.
async fn many_pauses<V: ClientPool>(v: &V) -> bool {
    let ended = Rc::new(RefCell::new(Vec::new()));
    let start = v.now();
    let clients = (0..50u64).map(|i| {
        let until = start + 2_000_000 + (i * 37 % 50) * 20_000;
        let (v, ended) = (v.clone(), Rc::clone(&ended));
        async move {
            v.pause(until.saturating_sub(v.now())).await;
            assert!(v.now() >= until);
            ended.borrow_mut().push(until);
        }
    });
    join_all(clients.map(|client| v.spawn(client))).await;
    let ended = ended.take();
    assert_eq!(ended.len(), 50);
    ended.is_sorted()
}

/// Checks that time does not go back, for clients and handlers.
pub(crate) async fn time_never_goes_back<V: ClientPool>(v: V, site: Site, barrier: Barrier<V>) {
    let latest = Rc::new(Cell::new(0));
    let clock = (v.clone(), Rc::clone(&latest));
    let look = Rc::new(move || {
        let now = clock.0.now();
        assert!(now >= clock.1.replace(now), "time went back");
    });
    let looking = Rc::clone(&look);
    v.listen(Port(30), Rc::new(move |_, _| looking()));
    barrier.wait().await;
    let at = site.own(0, v.shard());
    for n in 0..300 {
        (0..v.shards() as u16).for_each(|to| v.send(ShardId(to), Port(30), Message([n, 0, 0])));
        // Posting takes its time, in which messages come.
        let posted = (0..n % 12).map(|_| {
            let mut chain = Chain::new(at.server());
            chain.faa(at, 1);
            v.submit(&Meter::default(), chain)
        });
        let posted: Vec<V::Submission> = posted.collect();
        look();
        join_all(posted).await;
        look();
        v.pause(n % 3 * 200).await;
        look();
    }
    barrier.wait().await;
}

/// Checks that waiters resume clients, tasks and futures inside combinators, from clients and from tasks; late, early
/// and double wakes do no harm.
pub(crate) async fn waiters<V: ClientPool>(v: V, _: Site, _: Barrier<V>) {
    for waiting_in_client in [false, true] {
        for waking_in_client in [false, true] {
            for combined in [false, true] {
                let tally = Rc::new(Tally::new(v.clone()));
                let (seen, other) = (Rc::clone(&tally), v.clone());
                let waiting = async move {
                    for n in 1..=100 {
                        if combined {
                            join_all((0..3).map(|_| seen.reached(n))).await;
                        } else {
                            seen.reached(n).await;
                        }
                        other.pause(0).await;
                    }
                };
                let (adding, other) = (Rc::clone(&tally), v.clone());
                let waking = async move {
                    for n in 0..100 {
                        other.pause(n % 3 * 1000).await;
                        adding.add();
                    }
                };
                join(
                    maybe_in_client(&v, waiting_in_client, waiting),
                    maybe_in_client(&v, waking_in_client, waking),
                )
                .await;
            }
        }
    }
    // One that waits no longer, and one that is woken twice.
    let kept: Rc<RefCell<Vec<Waiter>>> = Rc::default();
    let keeping = (Rc::clone(&kept), v.clone());
    v.spawn(poll_fn(move |cx| {
        keeping.0.borrow_mut().push(keeping.1.waiter(cx));
        Poll::Ready(())
    }))
    .await;
    let once = poll_fn(|cx| Poll::Ready(v.waiter(cx))).await;
    let twice = poll_fn(|cx| Poll::Ready(v.waiter(cx))).await;
    for waiter in kept.take().into_iter().chain([once, twice]) {
        v.wake(waiter);
    }
    v.pause(1000).await;
}

/// Checks that a deferred task runs by itself, apart from its caller, also when it defers more.
pub(crate) async fn deferred_tasks<V: ClientPool>(v: V, site: Site, _: Barrier<V>) {
    let at = site.own(0, v.shard());
    let tally = Rc::new(Tally::new(v.clone()));
    for _ in 0..100 {
        let (inner, outer_tally) = (v.clone(), Rc::clone(&tally));
        v.defer(async move {
            let (v, tally) = (inner.clone(), Rc::clone(&outer_tally));
            inner.defer(async move {
                let mut chain = Chain::new(at.server());
                chain.faa(at, 1);
                run(&v, chain).await;
                v.pause(v.random() % 1000).await;
                tally.add();
            });
            outer_tally.add();
        });
    }
    assert_eq!(tally.count(), 0, "apart from the caller");
    tally.reached(200).await;
    assert_eq!(read_words(&v, at, 1).await, [100]);
}

/// Checks that futures that are polled with wakers of a combinator's own complete, in the pool and outside.
pub(crate) async fn combinators<V: ClientPool>(v: V, site: Site, _: Barrier<V>) {
    for inside in [false, true] {
        let inner = v.clone();
        let at = site.own(0, v.shard()).add(if inside { 4096 } else { 0 });
        maybe_in_client(&v, inside, async move {
            let v = inner;
            let add = |n: u64| {
                let mut chain = Chain::new(at.server());
                chain.faa(at, n);
                v.submit(&Meter::default(), chain)
            };
            let mut unordered: FuturesUnordered<V::Submission> = (0..64).map(|_| add(1)).collect();
            let mut left = 500;
            while let Some(done) = unordered.next().await {
                done.unwrap();
                if left > 0 {
                    left -= 1;
                    unordered.push(add(1));
                }
            }
            // More than `join_all` polls one by one.
            let all = join_all((0..100).map(|n| {
                let (add, pause) = (add(1), v.pause(n * 1000));
                async move { (pause.await, add.await.unwrap()).1 }
            }))
            .await;
            assert_eq!(all.len(), 100);
            assert_eq!(counted(&v, at).await, 664);
            // A pool client waits for others through their handles.
            let clients = (0..50u64).map(|n| v.spawn(std::future::ready(n)));
            let mut ends: FuturesUnordered<_> = clients.collect();
            let mut sum = 0;
            while let Some(n) = ends.next().await {
                sum += n;
            }
            assert_eq!(sum, 49 * 50 / 2);
        })
        .await;
    }
}
