//! Errors, cancellation and backpressure: nothing is lost, nothing is stuck, buffers come back.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use farwood_runtime::{Chain, ClientPool, FabricError, Meter, RemotePtr, ServerId};
use futures::future::{Either, join, join_all, select};

use super::Site;
use super::exchange::{Barrier, Tally, counted, read, read_words, run, words_of, write_words};

/// Checks that out of bounds and unknown servers are typed errors: verbs before it in the chain may have taken effect,
/// those behind it have not; buffers come back, and the shard works on.
pub(crate) async fn errors_are_typed_and_local<V: ClientPool>(v: V, site: Site, _: Barrier<V>) {
    let at = site.own(0, v.shard());
    let server = ServerId(0);
    let region_bytes = v.control().servers()[0].region_bytes;
    let far = |offset: u64| RemotePtr::new(server, offset);
    let refused = |offset: u64, len: u64| FabricError::OutOfBounds { server, offset, len, region_bytes };
    type Case = fn(&mut Chain, RemotePtr) -> &mut Chain;
    let cases: [(Case, u64, u64); 7] = [
        (|chain, at| chain.read(at, 0..64), region_bytes, 64),
        (|chain, at| chain.read(at, 0..64), region_bytes - 56, 64),
        (|chain, at| chain.write(at, 0..16), region_bytes - 8, 16),
        (|chain, at| chain.write_word(at, 1), region_bytes, 8),
        (|chain, at| chain.cas(at, 0, 1), region_bytes + 8, 8),
        (|chain, at| chain.faa(at, 1), (1 << 48) - 8, 8),
        (|chain, at| chain.read(at, 0..8), (1 << 48) - 8, 8),
    ];
    for (n, (case, offset, len)) in (1u64..).zip(cases) {
        write_words(&v, at, &[n, n]).await;
        let mut chain = Chain::with_buffer(server, v.lease(64));
        chain.write_word(at, 100 + n).fence();
        case(&mut chain, far(offset));
        chain.fence().write_word(at.add(8), 100 + n);
        assert_eq!(v.submit(&Meter::default(), chain).await.unwrap_err(), refused(offset, len));
        assert_eq!(v.buffers_leased(), 0, "the buffer of a failed chain came back");
        let after = read_words(&v, at, 2).await;
        assert!((after[0] == n || after[0] == 100 + n) && after[1] == n, "not a prefix: {after:?}");
    }
    // The last bytes are inside.
    read(&v, far(region_bytes - 8), 8).await;

    for id in [2, 7, u16::MAX] {
        let unknown = ServerId(id);
        let submissions: Vec<V::Submission> = (0..20)
            .map(|_| {
                let mut chain = Chain::with_buffer(unknown, v.lease(8));
                chain.read(RemotePtr::new(unknown, 64), 0..8);
                v.submit(&Meter::default(), chain)
            })
            .collect();
        for submission in submissions {
            assert_eq!(
                submission.await.unwrap_err(),
                FabricError::NoSuchServer { server: unknown, servers: v.control().servers().len() }
            );
        }
    }
    let mut chain = Chain::new(ServerId(9));
    chain.faa(RemotePtr::new(ServerId(9), 8), 1);
    drop(v.submit(&Meter::default(), chain));
    assert_eq!(run(&v, Chain::new(server)).await.atomics.len(), 0, "an empty chain is one, too");
    write_words(&v, at, &[77]).await;
    assert_eq!(read_words(&v, at, 1).await, [77]);
}

/// Checks that nothing behind a refused verb takes effect, fenced or not, and the chain comes back as it was posted:
/// without the verb that was refused it can be posted again.
pub(crate) async fn refused_chains_come_back<V: ClientPool>(v: V, site: Site, _: Barrier<V>) {
    let at = site.own(0, v.shard());
    let far = RemotePtr::new(at.server(), (1 << 48) - 64);
    for n in 1..=200u64 {
        write_words(&v, at, &[0; 40]).await;
        let mut buf = v.lease(320);
        buf.fill(n as u8);
        let mut chain = Chain::with_buffer(at.server(), buf);
        match n % 4 {
            0 => chain.read(far, 256..320),
            1 => chain.write(far, 0..64),
            2 => chain.write_word(far, n),
            _ => chain.cas(far, 0, n),
        };
        // A WRITE may overtake a READ and an atomic, but not their failure.
        chain.write(at, 0..256).write_word(at.add(256), n);
        let verbs = chain.verbs().to_vec();
        let failed = v.submit(&Meter::default(), chain).await.unwrap_err();
        assert!(failed.cause().is_refusal() && !failed.cause().is_passing(), "{}", failed.cause());
        let (_, mut chain) = failed.into_parts();
        assert_eq!(chain.verbs(), verbs);
        assert!(chain.buffer().is_some_and(|buf| buf[..256].iter().all(|&byte| byte == n as u8)));
        assert_eq!(read_words(&v, at, 40).await, [0; 40], "what is behind a refused verb took effect");
        chain.skip(1);
        assert!(chain.is_idempotent());
        for _ in 0..2 {
            let mut again = Chain::with_buffer(at.server(), v.lease(320));
            again.write_word(at.add(264), n);
            drop(run(&v, again).await);
        }
        drop(v.submit(&Meter::default(), chain).await.unwrap());
        let words = read_words(&v, at, 34).await;
        assert!(words[..32].iter().all(|&word| word == n * 0x0101_0101_0101_0101) && words[32..] == [n, n]);
    }
}

/// Checks that a submission that is dropped, at any moment, is executed all the same and gives its buffer back.
pub(crate) async fn dropped_submissions<V: ClientPool>(v: V, site: Site, _: Barrier<V>) {
    let (counter, at) = (site.own(0, v.shard()), site.own(0, v.shard()).add(64));
    let post = || {
        let mut chain = Chain::with_buffer(at.server(), v.lease(256));
        chain.read(at, 0..256).fence().faa(counter, 1);
        v.submit(&Meter::default(), chain)
    };
    let mut dropped = 0;
    for round in 0..50 {
        for _ in 0..20 {
            drop(post());
            let mut polled = post();
            let early = poll_fn(|cx| Poll::Ready(Pin::new(&mut polled).poll(cx).is_ready())).await;
            assert!(!early, "posting does not execute");
            drop(polled);
            dropped += 2;
        }
        // These are executed before the next chain has come back, and were not polled yet.
        let late: Vec<V::Submission> = (0..5).map(|_| post()).collect();
        dropped += 5;
        assert_eq!(counted(&v, counter).await, dropped);
        drop(late);
        assert_eq!(v.buffers_leased(), 0);
        // A timeout: whether it or the completion comes first, the chain is executed once.
        let pause = v.pause(v.random() % (1 + round * 40));
        dropped += 1;
        match select(post(), pause).await {
            Either::Left((done, pause)) => drop((done.unwrap(), pause)),
            Either::Right(((), submission)) => drop(submission),
        }
        let mut outside = Chain::with_buffer(at.server(), v.lease(64));
        outside.read(RemotePtr::new(at.server(), (1 << 48) - 64), 0..64);
        drop(v.submit(&Meter::default(), outside));
        assert_eq!(counted(&v, counter).await, dropped);
    }
    // A client that ends, or whose future is dropped, with chains under way.
    let inner = v.clone();
    v.spawn(async move {
        let meter = Meter::default();
        let chains = (0..100).map(|_| {
            let mut chain = Chain::with_buffer(at.server(), inner.lease(64));
            chain.faa(counter, 1);
            inner.submit(&meter, chain)
        });
        drop(join_all(chains));
    })
    .await;
    assert_eq!(counted(&v, counter).await, dropped + 100);
}

/// Posts more chains than there are credits: all of them are executed, in the order in which they were submitted.
pub(crate) async fn credits_are_first_come_first_served<V: ClientPool>(v: V, site: Site, _: Barrier<V>) {
    // More than the default credits of a queue pair.
    const CHAINS: u64 = 5000;
    let at = site.own(1, v.shard());
    let meter = Meter::default();
    let posted: Vec<V::Submission> = (0..CHAINS)
        .map(|_| {
            let mut chain = Chain::new(at.server());
            chain.fence().faa(at, 1);
            v.submit(&meter, chain)
        })
        .collect();
    let tally = Rc::new(Tally::new(v.clone()));
    let waiting = Rc::clone(&tally);
    let inner = v.clone();
    v.defer(async move {
        // This one comes last and overtakes no other.
        assert_eq!(counted(&inner, at).await, CHAINS);
        waiting.add();
    });
    // The order of the awaits does not matter.
    for (i, submission) in posted.into_iter().enumerate().rev() {
        assert_eq!(submission.await.unwrap().atomics[..], [i as u64]);
    }
    tally.reached(1).await;
    assert_eq!(meter.usage().round_trips, CHAINS as u32);
}

/// Checks that chains to two servers are in flight together and do not mix.
pub(crate) async fn servers_in_parallel<V: ClientPool>(v: V, site: Site, _: Barrier<V>) {
    let meter = Meter::default();
    let at = [site.own(0, v.shard()), site.own(1, v.shard())];
    for n in 1..1000 {
        meter.round_trip();
        let posted = at.map(|at| {
            let mut chain = Chain::with_buffer(at.server(), v.lease(8));
            chain.write_word(at, n * 2 + u64::from(at.server().0)).read(at, 0..8).fence().faa(at.add(8), 1);
            v.post(&meter, chain)
        });
        let [first, second] = posted;
        let (first, second) = join(second, first).await;
        let (second, first) = (first.unwrap(), second.unwrap());
        assert_eq!((first.atomics[0], second.atomics[0]), (n - 1, n - 1));
        assert_eq!(words_of(&first.into_buf()), [n * 2]);
        assert_eq!(words_of(&second.into_buf()), [n * 2 + 1]);
    }
    assert_eq!(meter.usage().round_trips, 999);
}
