//! Messages between shards: in order, never lost, never blocking.

use std::cell::RefCell;
use std::rc::Rc;

use farwood_runtime::{Chain, ClientPool, Message, Meter, Port, ShardId};

use super::Site;
use super::exchange::{Barrier, Tally, read_words};

/// Lets all shards send to all, themselves included, far more than any ring holds and all at once: nothing is lost or
/// overtaken, and no shard waits for another.
pub(crate) async fn messages_arrive_in_order<V: ClientPool>(v: V, _: Site, barrier: Barrier<V>) {
    const MESSAGES: u64 = 100_000;
    const PORTS: u32 = 2;
    let shards = v.shards() as u16;
    let tally = Rc::new(Tally::new(v.clone()));
    for port in 0..PORTS {
        let next = RefCell::new(vec![0; usize::from(shards)]);
        let tally = Rc::clone(&tally);
        v.listen(
            Port(10 + port),
            Rc::new(move |from, message| {
                let next = &mut next.borrow_mut()[usize::from(from.0)];
                assert_eq!(message, Message([*next, !*next, u64::from(from.0)]), "from {from:?}");
                *next += 1;
                tally.add();
            }),
        );
    }
    barrier.wait().await;
    for n in 0..MESSAGES {
        for to in 0..shards {
            let message = Message([n / u64::from(PORTS), !(n / u64::from(PORTS)), u64::from(v.shard().0)]);
            v.send(ShardId(to), Port(10 + (n % u64::from(PORTS)) as u32), message);
        }
        // The first half in one breath.
        if n > MESSAGES / 2 && n % 3000 == 0 {
            v.pause(v.random() % 100_000).await;
        }
    }
    tally.reached(MESSAGES * u64::from(shards)).await;
    barrier.wait().await;
    assert_eq!(tally.count(), MESSAGES * u64::from(shards));
}

/// Checks that messages to a port without an actor reach the actor that listens later, before newer ones.
pub(crate) async fn early_messages_are_kept<V: ClientPool>(v: V, _: Site, barrier: Barrier<V>) {
    const EARLY: u64 = 3000;
    let send = |range: std::ops::Range<u64>| {
        for n in range {
            (0..v.shards() as u16).for_each(|to| v.send(ShardId(to), Port(300), Message([n, 0, 0])));
        }
    };
    send(0..EARLY);
    // Rings are drained in order: a shard that has seen all at the barrier has the early ones.
    barrier.wait().await;
    let heard: Rc<RefCell<Vec<Vec<u64>>>> = Rc::new(RefCell::new(vec![Vec::new(); v.shards()]));
    let inside = Rc::clone(&heard);
    let tally = Rc::new(Tally::new(v.clone()));
    let seen = Rc::clone(&tally);
    send(EARLY..EARLY + 1000);
    v.listen(
        Port(300),
        Rc::new(move |from, message| {
            inside.borrow_mut()[usize::from(from.0)].push(message.0[0]);
            seen.add();
        }),
    );
    assert!(heard.borrow().iter().all(|heard| heard.len() >= EARLY as usize), "at once on listening");
    send(EARLY + 1000..EARLY + 1100);
    tally.reached((EARLY + 1100) * v.shards() as u64).await;
    for heard in heard.borrow().iter() {
        assert!(heard.iter().copied().eq(0..EARLY + 1100));
    }
}

/// Checks that a handler may send, post and wake: it is called with nothing of the shard borrowed.
pub(crate) async fn messages_from_handlers<V: ClientPool>(v: V, site: Site, barrier: Barrier<V>) {
    const HOPS: u64 = 2000;
    let at = site.own(0, v.shard());
    let tally = Rc::new(Tally::new(v.clone()));
    let (inner, done) = (v.clone(), Rc::clone(&tally));
    v.listen(
        Port(20),
        Rc::new(move |_, Message([hop, ..])| {
            let mut chain = Chain::new(at.server());
            chain.faa(at, 1);
            let submission = inner.submit(&Meter::default(), chain);
            let done = Rc::clone(&done);
            inner.defer(async move { drop((submission.await.unwrap(), done.add())) });
            if hop < HOPS {
                let next = (inner.shard().0 + 1) % inner.shards() as u16;
                inner.send(ShardId(next), Port(20), Message([hop + 1, 0, 0]));
            }
        }),
    );
    barrier.wait().await;
    if v.shard().0 == 0 {
        v.send(ShardId(0), Port(20), Message([1, 0, 0]));
    }
    let expected = HOPS / v.shards() as u64;
    tally.reached(expected).await;
    barrier.wait().await;
    assert_eq!(read_words(&v, at, 1).await, [expected]);
}
