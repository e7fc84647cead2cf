//! Writers that die after any line of any of their WRITEs, takers that die in the middle of mending, and readers who
//! look at lines of all these moments.

use std::ops::Range;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::super::super::stream::LINE_BYTES;
use super::super::super::{Patch, Rejection};
use super::super::tests::{Shape, get, header, key, keys, layouts_of, value};
use super::super::{HopLayout, Ring};

/// Entries within a line, over two, and over several; with hop bits of one
/// byte, of two, and none.
const SHAPES: [Shape; 9] = [
    (2, 2, 2, 2),
    (4, 2, 8, 8),
    (8, 4, 3, 40),
    (16, 8, 8, 8),
    (16, 2, 8, 8),
    (15, 3, 20, 40),
    (32, 16, 20, 30),
    (4, 4, 30, 150),
    (4, 2, 20, 100),
];
/// Lines of one WRITE all of whose subsets are tried; of more, random ones.
const LINES_MAX: usize = 5;

/// Answers of a leaf for each key: its value, no such key, or that it is torn.
type Answers = Vec<Result<Option<Vec<u8>>, Rejection>>;

fn answers(layout: &HopLayout, image: &[u8]) -> Answers {
    (0..2 * layout.ring().slots).map(|number| get(layout, image, &key(layout, number))).collect()
}

/// Inserts or removes a key; yields the WRITEs, the words last, and whether keys hop. None if there is no room for it,
/// or it would be recorded.
fn change(layout: &HopLayout, image: &mut [u8], number: usize, rng: &mut SmallRng) -> Option<(Patch, bool)> {
    let (key, value) = (key(layout, number), value(layout, rng.random_range(0..250)));
    let (mut patch, mut hops) = (Patch::new(), false);
    match layout.lookup(image, &key, true).unwrap().found {
        // Leaves are to fill up, so that keys hop.
        Some(_) if rng.random_ratio(2, 3) => return None,
        Some(found) => patch.extend(layout.remove(image, found.slot).unwrap()),
        None => {
            let home = layout.home(&key);
            let placement = match layout.place(image, home).unwrap() {
                Some(placement) => placement,
                None => layout.place_back(image, home).unwrap()?,
            };
            patch = layout.copies_first(&placement)?;
            hops = !patch.is_empty();
            patch.extend(layout.insert(image, &placement, &key, &value));
        }
    }
    patch.push(layout.note_vacancies(image, 0, layout.ring().slots));
    Some((patch, hops))
}

/// Yields what memory may hold when the WRITEs of `patch`, from `before` to `after`, end anywhere: all of those before
/// one, and some lines of that.
fn cut(before: &[u8], after: &[u8], patch: &[Range<usize>], rng: &mut SmallRng) -> Vec<Vec<u8>> {
    let (mut cuts, mut written) = (Vec::new(), before.to_vec());
    for write in patch {
        let mut lines: Vec<Range<usize>> = Vec::new();
        let mut at = write.start;
        while at < write.end {
            let end = write.end.min((at / LINE_BYTES + 1) * LINE_BYTES);
            lines.push(at..end);
            at = end;
        }
        for pick in 0..1_u64 << lines.len().min(LINES_MAX) {
            let pick = if lines.len() <= LINES_MAX { pick } else { rng.random() };
            let mut image = written.clone();
            for (_, line) in lines.iter().enumerate().filter(|(place, _)| pick >> place & 1 != 0) {
                image[line.clone()].copy_from_slice(&after[line.clone()]);
            }
            cuts.push(image);
        }
        written[write.clone()].copy_from_slice(&after[write.clone()]);
    }
    assert_eq!(written, after, "what has changed is sent");
    cuts
}

/// Mends a leaf as a taker does: what it sends is all that it changes, and not the lock.
fn mend(layout: &HopLayout, torn: &[u8]) -> (Vec<u8>, Patch) {
    let mut mended = torn.to_vec();
    let patch = layout.mend(&mut mended).unwrap();
    let mut sent = torn.to_vec();
    for write in &patch {
        assert!(write.start % 8 == 0 && write.end % 8 == 0);
        assert!(write.end <= layout.lock_at() || write.start >= layout.vacancy_at());
        sent[write.clone()].copy_from_slice(&mended[write.clone()]);
    }
    assert_eq!(sent, mended);
    (mended, patch)
}

fn assert_whole(layout: &HopLayout, image: &[u8]) {
    let leaf = layout.view(image).unwrap();
    assert_eq!((leaf.check_hops(), leaf.check_sum()), (Ok(()), Ok(())));
    assert_eq!(layout.vacancy(image), layout.vacancy_of(image));
    assert_eq!(layout.mend(&mut image.to_vec()).as_deref(), Ok(&[][..]), "nothing is left to mend");
    assert!(answers(layout, image).iter().all(Result::is_ok));
}

/// Asserts that what readers have found in a torn leaf, key by key or in a scan, is there when it is mended, and that
/// nothing of what they have not found is.
fn assert_agrees(layout: &HopLayout, torn: &[u8], mended: &[u8]) -> usize {
    let (seen, now) = (answers(layout, torn), answers(layout, mended));
    for (seen, now) in seen.iter().zip(&now) {
        assert!(seen == now || *seen == Err(Rejection::Torn), "{seen:?} was seen, and there is {now:?}");
    }
    if let Ok(scanned) = keys(layout, torn) {
        assert_eq!(Ok(scanned), keys(layout, mended));
    }
    seen.iter().filter(|seen| seen.is_err()).count()
}

fn line_at(image: &mut [u8], line: usize, from: &[u8]) {
    let bytes = line * LINE_BYTES..(line + 1) * LINE_BYTES;
    image[bytes.clone()].copy_from_slice(&from[bytes]);
}

/// Asserts that readers whose lines are of any of those moments see what was there, if they see anything. A key that
/// `hops`, and whose slot another one gets, may seem absent to them: their READ was too long to prove that.
fn assert_read_safely(layout: &HopLayout, history: &[&[u8]], hops: bool, rng: &mut SmallRng) {
    let legal: Vec<Answers> = history.iter().map(|image| answers(layout, image)).collect();
    for is_long in [false, false, true, true] {
        let moments = if is_long { 0..history.len() } else { 0..history.len() - 1 };
        let mut image = history[0].to_vec();
        for line in 0..layout.node_bytes() / LINE_BYTES {
            line_at(&mut image, line, history[rng.random_range(moments.clone())]);
        }
        for (number, answer) in answers(layout, &image).into_iter().enumerate() {
            let was_there = legal.iter().any(|answers| answers[number] == answer);
            let may_hide = is_long && hops && answer == Ok(None);
            assert!(answer == Err(Rejection::Torn) || was_there || may_hide, "{answer:?} was never there");
        }
    }
}

/// Every part of an insert or a remove is mended into the leaf before or after, and every part of that mending, too.
#[test]
fn what_a_dead_writer_leaves_is_mended() {
    let (mut cases, mut torn, mut undone, mut finished, mut again, mut hopped) = (0, 0, 0, 0, 0, 0);
    for layout in layouts_of(&SHAPES, &[false]) {
        let mut rng = SmallRng::seed_from_u64(11);
        let mut image = vec![0; layout.node_bytes()];
        layout.build(&mut image, &header(5), []);
        for _ in 0..70 {
            let before = image.clone();
            let number = rng.random_range(0..2 * layout.ring().slots);
            let Some((patch, hops)) = change(&layout, &mut image, number, &mut rng) else {
                image = before;
                continue;
            };
            let (old, new) = (answers(&layout, &before), answers(&layout, &image));
            let mut next = Vec::new();
            for left in cut(&before, &image, &patch, &mut rng) {
                let (mended, sent) = mend(&layout, &left);
                assert_whole(&layout, &mended);
                torn += assert_agrees(&layout, &left, &mended);
                let ends = answers(&layout, &mended);
                assert!(ends == old || ends == new, "it is another leaf");
                (undone, finished) = (undone + usize::from(ends == old), finished + usize::from(ends == new));
                for left_again in cut(&left, &mended, &sent, &mut rng) {
                    assert_agrees(&layout, &left_again, &mended);
                    let (mended_again, _) = mend(&layout, &left_again);
                    assert_whole(&layout, &mended_again);
                    assert_eq!(answers(&layout, &mended_again), ends, "the next taker ends elsewhere");
                    again += 1;
                    let mut later = mended_again.clone();
                    let _ = change(&layout, &mut later, number, &mut rng);
                    let history: [&[u8]; 5] = [&before, &left, &left_again, &mended_again, &later];
                    assert_read_safely(&layout, &history, hops, &mut rng);
                }
                next.push(mended);
                cases += 1;
                hopped += usize::from(hops);
            }
            // Go on from any of them, so that what one has left does not trouble those that come.
            if rng.random() {
                image = next.swap_remove(rng.random_range(0..next.len()));
            }
        }
    }
    let counts = [cases > 4_000, torn > 10_000, undone > 1_000, finished > 1_000, again > 10_000];
    assert_eq!(counts, [true; 5], "{cases} {torn} {undone} {finished} {again}");
    assert!(hopped > 500, "{hopped}");
}

/// A half written entry may have as many versions as takers have died over it, and one more.
#[test]
fn an_entry_that_goes_gets_a_version_that_none_of_its_lines_has() {
    let layout = HopLayout::new(Ring { slots: 4, reach: 4 }, 30, 150, false).unwrap();
    let mut image = vec![0; layout.node_bytes()];
    layout.build(&mut image, &header(5), []);
    let mut torn = image.clone();
    let slot = layout.place(&image, 0).unwrap().unwrap().slot;
    for _ in 0..40 {
        // The last line alone does not come.
        let lines = layout.entry(slot).further_lines();
        assert!(lines.len() > 1);
        let before = torn.clone();
        layout.take_away(&mut torn, slot);
        assert_ne!(torn[lines.start * LINE_BYTES..][..2], before[lines.start * LINE_BYTES..][..2]);
        assert_ne!(torn[lines.start * LINE_BYTES..][..2], before[(lines.end - 1) * LINE_BYTES..][..2]);
        line_at(&mut torn, lines.end - 1, &before);
    }
}

#[test]
fn a_leaf_that_no_such_write_leaves_is_not_mended() {
    let layout = HopLayout::new(Ring { slots: 8, reach: 4 }, 8, 8, false).unwrap();
    let mut image = vec![0; layout.node_bytes()];
    layout.build(&mut image, &header(5), [(&b"anna"[..], &b"1"[..])]);
    for line in 0..layout.node_bytes() / LINE_BYTES {
        let mut split = image.clone();
        split[line * LINE_BYTES] ^= 1;
        assert!(layout.mend(&mut split).is_err(), "line {line} is of another version of the node");
    }
    assert!(layout.mend(&mut vec![0; layout.node_bytes()]).is_err());
    let mut rng = SmallRng::seed_from_u64(12);
    for _ in 0..2_000 {
        let mut other = image.clone();
        for _ in 0..rng.random_range(1..20) {
            let at = rng.random_range(0..other.len());
            other[at] = rng.random();
        }
        let _ = layout.mend(&mut other);
    }
}
