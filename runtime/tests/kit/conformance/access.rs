//! READs and WRITEs: a READ yields what was written, at every alignment and length, also in random chains.

use farwood_runtime::chain::{MASKED_BYTES, Op};
use farwood_runtime::{Chain, ClientPool, Meter, RemotePtr};

use super::Site;
use super::exchange::{Barrier, fill, is_pattern, pattern, read, run, words_of};

/// Checks that bytes of every alignment and length come back as they were written, and nothing beside them changes.
pub(crate) async fn round_trips<V: ClientPool>(v: V, site: Site, _: Barrier<V>) {
    for server in 0..2 {
        let base = site.own(server, v.shard());
        for start in (0..=64).step_by(8) {
            for len in (0..=208).step_by(8).chain([1000, 1024, 4096, 16384]) {
                round_trip(&v, base, 64 + start, len).await;
            }
        }
    }
}

async fn round_trip<V: ClientPool>(v: &V, base: RemotePtr, start: usize, len: usize) {
    let window = start + len + 128;
    let salt = v.random();
    fill(v, base, window, salt).await;
    let mut buf = v.lease(len);
    pattern(&mut buf, !salt);
    let mut chain = Chain::with_buffer(base.server(), buf);
    chain.write(base.add(start as u64), 0..len);
    let buf = run(v, chain).await.into_buf();
    assert!(is_pattern(&buf, 0, !salt), "the fabric changed what it was to write");

    let all = read(v, base, window).await;
    assert!(is_pattern(&all[..start], 0, salt) && is_pattern(&all[start + len..], start + len, salt));
    assert!(is_pattern(&all[start..start + len], 0, !salt), "{len} bytes at {start}");
    let part = read(v, base.add(start as u64), len).await;
    assert!(is_pattern(&part, 0, !salt), "a READ of {len} bytes at {start}");
}

/// Compares random chains, several in flight, with a plain array that executes them in posting order.
pub(crate) async fn verbs_match_a_model<V: ClientPool>(v: V, site: Site, _: Barrier<V>) {
    const WORDS: usize = 64;
    let meter = Meter::default();
    let base = site.own(1, v.shard());
    let mut model = [0u64; WORDS];
    for _ in 0..300 {
        let mut posted = Vec::new();
        // A READ or an atomic before, also of an earlier chain, may be overtaken unless the verb is fenced.
        for _ in 0..1 + v.random() % 8 {
            let chain = random_chain(&v, base, WORDS);
            let expected = model_chain(&mut model, base, &chain);
            posted.push((v.submit(&meter, chain), expected));
        }
        for (submission, (atomics, reads)) in posted {
            let done = submission.await.unwrap();
            assert_eq!(done.atomics[..], atomics[..]);
            let buf = done.into_buf();
            for (to, words) in reads {
                assert_eq!(words_of(&buf[to..to + words.len() * 8]), words);
            }
        }
    }
    let all = read(&v, base, WORDS * 8).await;
    assert_eq!(words_of(&all), model);
    assert!(meter.usage().round_trips > 300 && meter.usage().reads > 300);
}

fn random_chain<V: ClientPool>(v: &V, base: RemotePtr, words: usize) -> Chain {
    const BUF_WORDS: usize = 256;
    let mut buf = v.lease(BUF_WORDS * 8);
    pattern(&mut buf, v.random());
    let mut chain = Chain::with_buffer(base.server(), buf);
    // Verbs use the buffer front to back, so that no READ lands where a WRITE takes from.
    let mut local = 0;
    for _ in 0..1 + v.random() % 6 {
        let first = v.random() as usize % words;
        let len = (v.random() as usize % (words - first + 1)).min(BUF_WORDS.saturating_sub(local));
        let at = base.add(first as u64 * 8);
        let range = local * 8..(local + len) * 8;
        let has_masked = v.capabilities().masked_atomic && local * 8 + MASKED_BYTES <= BUF_WORDS * 8;
        match v.random() % (6 + u64::from(has_masked)) {
            0 | 1 => chain.read(at, range),
            2 => chain.fence().write(at, range),
            3 => chain.fence().write_word(at, v.random() % 4),
            // Words of 0..4 make that some succeed.
            4 => chain.fence().cas(at, v.random() % 4, v.random()),
            5 => chain.fence().faa(at, v.random() % 4),
            _ => {
                local += MASKED_BYTES / 8;
                chain.fence().masked_cas(at, v.random() % 4, v.random(), local * 8 - MASKED_BYTES)
            }
        };
        local += len;
    }
    chain
}

type Expected = (Vec<u64>, Vec<(usize, Vec<u64>)>);

fn model_chain(model: &mut [u64], base: RemotePtr, chain: &Chain) -> Expected {
    let buf = words_of(chain.buffer().unwrap());
    let place = |at: u64| ((at - base.offset()) / 8) as usize;
    let (mut atomics, mut reads) = (Vec::new(), Vec::new());
    for verb in chain.verbs() {
        match verb.op {
            Op::Read { at, to, len } => {
                reads.push((to as usize, model[place(at)..][..len as usize / 8].to_vec()));
            }
            Op::Write { at, from, len } => {
                let (from, len) = (from as usize / 8, len as usize / 8);
                model[place(at)..][..len].copy_from_slice(&buf[from..from + len]);
            }
            Op::WriteWord { at, word } => model[place(at)] = word,
            Op::Cas { at, expected, desired } => {
                let word = &mut model[place(at)];
                atomics.push(*word);
                *word = if *word == expected { desired } else { *word };
            }
            Op::MaskedCas { at, expected, desired, to } => {
                let around = place(at) * 8 / MASKED_BYTES * MASKED_BYTES / 8;
                reads.push((to as usize, model[around..][..MASKED_BYTES / 8].to_vec()));
                let word = &mut model[place(at)];
                atomics.push(*word);
                *word = if *word == expected { desired } else { *word };
            }
            Op::Faa { at, add } => {
                let word = &mut model[place(at)];
                atomics.push(*word);
                *word = word.wrapping_add(add);
            }
        }
    }
    (atomics, reads)
}
