//! CAS and FAA: the words that they find and change, and that none is lost.

use farwood_runtime::chain::MASKED_BYTES;
use farwood_runtime::{Chain, ClientPool, FabricError, Meter, RemotePtr};
use futures::future::join_all;

use super::Site;
use super::exchange::{Barrier, fill, is_pattern, read, read_words, run, words_of, write_words};

/// Checks that CAS and FAA yield what they found, in posting order, and change the word as they should.
pub(crate) async fn atomics<V: ClientPool>(v: V, site: Site, _: Barrier<V>) {
    let at = site.own(0, v.shard());
    let mut chain = Chain::new(at.server());
    chain
        .write_word(at, 5)
        .cas(at, 5, u64::MAX)
        .fence()
        .cas(at, 5, 6)
        .fence()
        .faa(at, 3)
        .fence()
        .faa(at, u64::MAX);
    assert_eq!(run(&v, chain).await.atomics[..], [5, u64::MAX, u64::MAX, 2]);
    assert_eq!(read_words(&v, at, 1).await, [1]);

    // Beside the word nothing changes, whatever its place in the line.
    fill(&v, at, 192, 9).await;
    for place in 0..24u64 {
        let word = at.add(place * 8);
        let before = read_words(&v, word, 1).await[0];
        let mut chain = Chain::new(at.server());
        chain.cas(word, before, 1 << 40).fence().faa(word, before.wrapping_sub(1 << 40));
        assert_eq!(run(&v, chain).await.atomics[..], [before, 1 << 40]);
        assert!(is_pattern(&read(&v, at, 192).await, 0, 9), "word {place}");
    }
}

/// Checks that a masked CAS changes its word as a CAS does, and brings the bytes around it as they were at that moment;
/// or is refused where the fabric has none, and changes nothing.
pub(crate) async fn masked_cas<V: ClientPool>(v: V, site: Site, barrier: Barrier<V>) {
    let at = site.own(0, v.shard());
    if !v.capabilities().masked_atomic {
        let mut chain = Chain::with_buffer(at.server(), v.lease(MASKED_BYTES));
        chain.write_word(at, 1).masked_cas(at, 1, 7, 0);
        let failed = v.submit(&Meter::default(), chain).await.unwrap_err();
        assert!(matches!(failed.cause(), FabricError::NoMaskedCas { .. }) && failed.cause().is_refusal());
        assert!(read_words(&v, at, 1).await[0] <= 1);
        return;
    }
    fill(&v, at, 192, 9).await;
    for place in 0..24usize {
        let word = at.add(place as u64 * 8);
        let before = read_words(&v, word, 1).await[0];
        // The second one does not fit.
        let mut chain = Chain::with_buffer(at.server(), v.lease(3 * MASKED_BYTES));
        chain.masked_cas(word, before, !before, MASKED_BYTES).fence().masked_cas(word, before, 7, 0);
        chain.fence().write_word(word, before);
        let done = run(&v, chain).await;
        assert_eq!(done.atomics[..], [before, !before]);
        let mut buf = done.into_buf();
        let around = place * 8 / MASKED_BYTES * MASKED_BYTES;
        assert!(is_pattern(&buf[MASKED_BYTES..2 * MASKED_BYTES], around, 9), "word {place}");
        buf[place * 8 - around..][..8].copy_from_slice(&before.to_le_bytes());
        assert!(is_pattern(&buf[..MASKED_BYTES], around, 9), "word {place}");
        assert!(is_pattern(&read(&v, at, 192).await, 0, 9), "word {place}");
    }
    barrier.wait().await;
    masked_cas_beside_writes(v, site.common()).await;
}

/// Lets one shard write a line while another brings half of it by a masked CAS that never fits: it is of one WRITE.
async fn masked_cas_beside_writes<V: ClientPool>(v: V, line: RemotePtr) {
    const ROUNDS: u64 = 2_000;
    if v.shard().0 == 0 {
        for n in 1..=ROUNDS {
            write_words(&v, line, &[n; 8]).await;
        }
    } else {
        let mut seen = [0; MASKED_BYTES / 8];
        while seen[0] < ROUNDS {
            let mut chain = Chain::with_buffer(line.server(), v.lease(MASKED_BYTES));
            chain.masked_cas(line.add(40), u64::MAX, 0, 0);
            let done = run(&v, chain).await;
            let found = done.atomics[0];
            seen.copy_from_slice(&words_of(&done.into_buf()));
            assert_eq!(seen, [found; MASKED_BYTES / 8]);
        }
    }
}

/// Checks that with many clients of all shards no increment by FAA or by a loop of CAS is lost, and no two FAAs find
/// one value.
pub(crate) async fn atomics_lose_no_increment<V: ClientPool>(v: V, site: Site, barrier: Barrier<V>) {
    const CLIENTS: u64 = 8;
    const ROUNDS: u64 = 200;
    let (counter, swapped) = (site.common(), site.common().add(64));
    let tickets = site.common().add(4096);
    barrier.wait().await;
    let client = |v: V| async move {
        for _ in 0..ROUNDS {
            let mut chain = Chain::new(counter.server());
            chain.faa(counter, 1);
            let ticket = run(&v, chain).await.atomics[0];
            let mut chain = Chain::new(counter.server());
            chain.cas(tickets.add(ticket * 8), 0, 1);
            assert_eq!(run(&v, chain).await.atomics[0], 0, "two FAAs found {ticket}");
            let mut guess = 0;
            loop {
                let mut chain = Chain::new(counter.server());
                chain.cas(swapped, guess, guess + 1);
                let found = run(&v, chain).await.atomics[0];
                if found == guess {
                    break;
                }
                guess = found;
            }
        }
    };
    join_all((0..CLIENTS).map(|_| v.spawn(client(v.clone())))).await;
    barrier.wait().await;
    let all = v.shards() as u64 * CLIENTS * ROUNDS;
    assert_eq!(read_words(&v, counter, 1).await, [all]);
    assert_eq!(read_words(&v, swapped, 1).await, [all]);
}

/// Lets one shard change words while another tries a CAS on them that never fits: what was written is there afterwards.
/// Only atomics change a word where WRITEs are not atomic against them.
///
/// ```text
///   writer              WRITE n ····················· READ: n
///   other    CAS: finds n - 1, does not fit ──> must not put n - 1 back
/// ```
pub(crate) async fn a_cas_that_does_not_fit_changes_nothing<V: ClientPool>(
    v: V,
    site: Site,
    barrier: Barrier<V>,
) {
    const ROUNDS: u64 = 4_000;
    const WORDS: usize = 32;
    let at = site.common();
    let words = || (0..WORDS as u64).map(|place| at.add(place * 8));
    let by_write = v.capabilities().atomic_writes;
    barrier.wait().await;
    if v.shard().0 == 0 {
        for n in 1..=ROUNDS {
            let mut chain = Chain::with_buffer(at.server(), v.lease(WORDS * 8));
            words().for_each(|word| match by_write {
                true => _ = chain.write_word(word, n),
                false => _ = chain.cas(word, n - 1, n),
            });
            chain.read(at, 0..WORDS * 8);
            let found = words_of(&run(&v, chain).await.into_buf());
            assert_eq!(found, [n; WORDS], "a CAS that did not fit has undone a change");
        }
    } else {
        let mut found = 0;
        while found < ROUNDS {
            let mut chain = Chain::new(at.server());
            words().for_each(|word| _ = chain.cas(word, u64::MAX, 0));
            found = run(&v, chain).await.atomics[0];
        }
    }
}
