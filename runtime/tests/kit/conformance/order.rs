//! Order on one queue pair, as the shard itself and other shards see it.

use farwood_runtime::chain::Op;
use farwood_runtime::{Chain, ClientPool, Completion, Message, Meter, Port, RemotePtr, ShardId};
use futures::future::join;

use super::Site;
use super::exchange::{Barrier, Tally, read, read_words, spin, words_of, write_words};

/// Checks that every verb behind a WRITE takes effect after it, and a READ after an atomic: inside a chain, between
/// chains that were posted one behind the other, and between chains that were awaited.
pub(crate) async fn chains_keep_their_order<V: ClientPool>(v: V, site: Site, _: Barrier<V>) {
    let base = site.own(0, v.shard());
    for n in 1..500 {
        // One chain; several posted at once; several awaited.
        for cut in [Cut::Nowhere, Cut::Posted, Cut::Awaited] {
            let at = base.add(n * 64);
            let tag = n * 4 + cut as u64;
            let write = Op::WriteWord { at: at.offset(), word: tag };
            let again = Op::WriteWord { at: at.offset(), word: tag + (1 << 32) };
            let cas = Op::Cas { at: at.offset(), expected: tag + (1 << 32), desired: tag + (2 << 32) };
            let faa = Op::Faa { at: at.offset(), add: 1 << 32 };
            let (reads, atomics) = in_order(&v, at, &[write, again], cut).await;
            assert_eq!((reads, atomics), (vec![], vec![]));
            assert_eq!(words_of(&read(&v, at, 8).await), [tag + (1 << 32)], "WRITE-WRITE {cut:?}");

            let (reads, atomics) = in_order(&v, at, &[write, READ, again, READ], cut).await;
            assert_eq!((reads, atomics), (vec![tag, tag + (1 << 32)], vec![]), "WRITE-READ {cut:?}");

            let (reads, atomics) = in_order(&v, at, &[write, again, cas, READ], cut).await;
            assert_eq!(atomics, [tag + (1 << 32)], "WRITE-CAS {cut:?}");
            assert_eq!(reads, [tag + (2 << 32)], "CAS-READ {cut:?}");

            let (reads, atomics) = in_order(&v, at, &[write, faa, READ], cut).await;
            assert_eq!((reads, atomics), (vec![tag + (1 << 32)], vec![tag]), "WRITE-FAA-READ {cut:?}");
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Cut {
    Nowhere,
    Posted,
    Awaited,
}

/// A stand-in for a READ of the word in question.
const READ: Op = Op::Read { at: 0, to: 0, len: 8 };

/// Executes verbs on the word at `at` in one chain or one chain each; yields what READs and atomics found.
async fn in_order<V: ClientPool>(v: &V, at: RemotePtr, ops: &[Op], cut: Cut) -> (Vec<u64>, Vec<u64>) {
    let meter = Meter::default();
    let per_chain = if matches!(cut, Cut::Nowhere) { ops.len() } else { 1 };
    let mut posted = Vec::new();
    let (mut reads, mut atomics) = (Vec::new(), Vec::new());
    for (i, ops) in ops.chunks(per_chain).enumerate() {
        let mut chain = Chain::with_buffer(at.server(), v.lease(8 * ops.len()));
        let mut landed = 0;
        for (j, &op) in ops.iter().enumerate() {
            let overtakes = i + j > 0 && !matches!(op, Op::Read { .. });
            let chain = if overtakes { chain.fence() } else { &mut chain };
            match op {
                Op::Read { .. } => {
                    landed += 8;
                    chain.read(at, landed - 8..landed)
                }
                Op::WriteWord { word, .. } => chain.write_word(at, word),
                Op::Cas { expected, desired, .. } => chain.cas(at, expected, desired),
                Op::Faa { add, .. } => chain.faa(at, add),
                Op::Write { .. } | Op::MaskedCas { .. } => unreachable!("words are enough here"),
            };
        }
        let submission = v.submit(&meter, chain);
        if matches!(cut, Cut::Awaited) {
            take(submission.await.unwrap(), landed, &mut reads, &mut atomics);
        } else {
            posted.push((submission, landed));
        }
    }
    for (submission, landed) in posted {
        take(submission.await.unwrap(), landed, &mut reads, &mut atomics);
    }
    (reads, atomics)
}

fn take(done: Completion, landed: usize, reads: &mut Vec<u64>, atomics: &mut Vec<u64>) {
    atomics.extend_from_slice(&done.atomics);
    reads.extend(words_of(&done.into_buf()[..landed]));
}

/// Lets one shard write data, then a flag that says so; another that reads the flag, then the data, never finds less.
pub(crate) async fn order_is_seen_by_others<V: ClientPool>(v: V, site: Site, barrier: Barrier<V>) {
    const ROUNDS: u64 = 20_000;
    let (flag, data) = (site.common(), site.common().add(4096));
    let writes = v.shard().0 == 0;
    let reads = usize::from(v.shard().0) + 1 == v.shards();
    barrier.wait().await;
    let writer = {
        let v = v.clone();
        async move {
            let meter = Meter::default();
            for n in (1..=ROUNDS).filter(|_| writes) {
                let mut chain = Chain::new(data.server());
                chain.write_word(data, n).write_word(data.add(256), n);
                if n % 2 == 0 {
                    // The flag in a chain of its own; the outcome of the first is not waited for.
                    drop(v.submit(&meter, chain));
                    chain = Chain::new(flag.server());
                }
                chain.write_word(flag, n);
                v.submit(&meter, chain).await.unwrap();
            }
        }
    };
    let reader = {
        let v = v.clone();
        async move {
            let meter = Meter::default();
            let mut seen = [0; 3];
            while reads && seen[0] < ROUNDS {
                let mut chain = Chain::with_buffer(flag.server(), v.lease(24));
                chain.read(flag, 0..8).read(data, 8..16).read(data.add(256), 16..24);
                let now = words_of(&v.submit(&meter, chain).await.unwrap().into_buf());
                assert!(
                    now[1] >= now[0] && now[2] >= now[0],
                    "flag {} before its data {:?}",
                    now[0],
                    &now[1..]
                );
                assert!(now.iter().zip(seen).all(|(&now, before)| now >= before), "time went back");
                seen.copy_from_slice(&now);
            }
        }
    };
    join(v.spawn(writer), v.spawn(reader)).await;
}

/// Runs WRITE x; READ y beside WRITE y; READ x: both READs must never miss the other's WRITE.
///
/// ```text
///   shard 0             shard 1
///   WRITE x = i         WRITE y = j
///   READ y  < j         READ x  < i     <- forbidden: whichever WRITE came second follows the other
/// ```
/// Neither shard waits for the other: every pair of rounds `(i, j)` is judged afterwards.
pub(crate) async fn store_buffer_litmus<V: ClientPool>(v: V, site: Site, barrier: Barrier<V>) {
    const ROUNDS: u64 = 12_000;
    let me = u64::from(v.shard().0);
    let words = [site.common(), site.common().add(1024)];
    let records = |shard: u64| site.common().add(4096 + shard * ROUNDS * 8);
    for repeat in 0..4 {
        let (own, other) = (words[me as usize], words[1 - me as usize]);
        let mut seen = Vec::with_capacity(ROUNDS as usize);
        barrier.wait().await;
        for n in 1..=ROUNDS {
            let stamp = repeat * ROUNDS + n;
            seen.push(write_then_read(&v, own, stamp, other, n % 2 == 0).await - repeat * ROUNDS);
            if n % 64 == 0 {
                spin(&v, v.random() % 2000).await;
            }
        }
        write_words(&v, records(me), &seen).await;
        barrier.wait().await;
        let theirs = read_words(&v, records(1 - me), ROUNDS as usize).await;
        for (i, &y) in (1u64..).zip(&seen) {
            // The other shard's first round that this READ missed.
            let Some(&x) = theirs.get(y as usize) else { continue };
            assert!(x >= i, "rounds {i} and {}: both READs missed the other's WRITE", y + 1);
        }
        barrier.wait().await;
        if me == 0 {
            // The next repetition counts from where both ended.
            write_words(&v, words[0], &[(repeat + 1) * ROUNDS]).await;
            write_words(&v, words[1], &[(repeat + 1) * ROUNDS]).await;
        }
        barrier.wait().await;
    }
}

async fn write_then_read<V: ClientPool>(
    v: &V,
    own: RemotePtr,
    stamp: u64,
    other: RemotePtr,
    split: bool,
) -> u64 {
    let meter = Meter::default();
    let mut chain = Chain::with_buffer(own.server(), v.lease(8));
    if split {
        let mut first = Chain::new(own.server());
        first.write_word(own, stamp);
        drop(v.submit(&meter, first));
    } else {
        chain.write_word(own, stamp);
    }
    chain.read(other, 0..8);
    words_of(&v.submit(&meter, chain).await.unwrap().into_buf())[0]
}

/// Checks that a message follows what its sender wrote and awaited before: the receiver's READ sees it.
pub(crate) async fn messages_follow_writes<V: ClientPool>(v: V, site: Site, barrier: Barrier<V>) {
    const ROUNDS: u64 = 3000;
    let at = site.common();
    let received = Tally::listen(&v, Port(1));
    barrier.wait().await;
    let other = ShardId(1 - v.shard().0);
    for n in (1..=ROUNDS).filter(|n| n % 2 == u64::from(v.shard().0)) {
        if n > 1 {
            received.reached(n / 2).await;
            assert_eq!(read_words(&v, at, 1).await, [n - 1], "a message was faster than the WRITE before it");
        }
        write_words(&v, at, &[n]).await;
        v.send(other, Port(1), Message([n, 0, 0]));
    }
    barrier.wait().await;
}
