//! Audit of the lock words that are taken: a READ of the whole lock region of every server. For an index at rest, where
//! no word should be. It takes no lock, so what it says of a cluster at work is out of date when it is said.

use farwood_runtime::{Buf, FabricError, LockRegion, Meter, RemotePtr, Verbs};

use crate::word::LockWord;

const WORD_BYTES: u64 = 8;
/// Words per READ: 64 KiB.
const PIECE_WORDS: u64 = (64 << 10) / WORD_BYTES;
/// Times that a piece is asked for while queue pairs break.
const ATTEMPTS_MAX: u32 = 10;

/// Reads the words of `regions` that are taken. One round trip per piece of a region.
pub(crate) async fn words_held<V: Verbs>(
    verbs: &V,
    meter: &Meter,
    regions: &[LockRegion],
) -> Result<Vec<(RemotePtr, LockWord)>, FabricError> {
    let mut held = Vec::new();
    for (at, bytes) in regions.iter().flat_map(pieces) {
        let words = read(verbs, meter, at, bytes).await?;
        held.extend(held_in(at, &words[..bytes]));
    }
    Ok(held)
}

/// READs a piece: one round trip, and one more after each failure that passes.
async fn read<V: Verbs>(verbs: &V, meter: &Meter, at: RemotePtr, bytes: usize) -> Result<Buf, FabricError> {
    let mut attempt = 1;
    loop {
        match verbs.read(meter, at, bytes).await {
            Ok(read) => return Ok(read.into_buf()),
            Err(failed) if failed.cause().is_passing() && attempt < ATTEMPTS_MAX => meter.retry(),
            Err(failed) => return Err(failed.into()),
        }
        attempt += 1;
    }
}

/// Divides a region into pieces to READ: address and bytes of each.
fn pieces(region: &LockRegion) -> impl Iterator<Item = (RemotePtr, usize)> {
    let LockRegion { base, count } = *region;
    let firsts = (0..count).step_by(PIECE_WORDS as usize);
    firsts.map(move |first| {
        (base.add(first * WORD_BYTES), (PIECE_WORDS.min(count - first) * WORD_BYTES) as usize)
    })
}

/// Yields the words in `bytes`, which were read at `at`, that are not free.
fn held_in(at: RemotePtr, bytes: &[u8]) -> impl Iterator<Item = (RemotePtr, LockWord)> {
    let (words, _) = bytes.as_chunks::<{ WORD_BYTES as usize }>();
    (0..).zip(words).filter_map(move |(i, word)| {
        let word = LockWord::from_bits(u64::from_le_bytes(*word))?;
        Some((at.add(i * WORD_BYTES), word))
    })
}

#[cfg(test)]
mod tests {
    use farwood_runtime::ServerId;

    use super::*;

    #[test]
    fn pieces_cover_a_region_once() {
        let base = RemotePtr::new(ServerId(3), 4096);
        for count in [0, 1, PIECE_WORDS - 1, PIECE_WORDS, PIECE_WORDS + 1, 3 * PIECE_WORDS + 7] {
            let mut end = base;
            for (at, bytes) in pieces(&LockRegion { base, count }) {
                assert_eq!(at, end);
                assert!((1..=64 << 10).contains(&bytes));
                end = at.add(bytes as u64);
            }
            assert_eq!(end, base.add(8 * count));
        }
    }

    #[test]
    fn finds_the_words_that_are_not_free() {
        let at = RemotePtr::new(ServerId(1), 4096);
        let word = LockWord::new(7, 1, 99);
        let mut bytes = [0; 64];
        assert_eq!(held_in(at, &bytes).count(), 0);
        bytes[16..24].copy_from_slice(&word.to_bits().to_le_bytes());
        bytes[56] = 1;
        let held: Vec<_> = held_in(at, &bytes).collect();
        assert_eq!(held, [(at.add(16), word), (at.add(56), LockWord::from_bits(1).unwrap())]);
    }
}
