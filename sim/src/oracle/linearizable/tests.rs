//! The checker against all orders tried one by one, on every small history and on random ones; and the anomalies that
//! it is there for, by their names.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::history::Outcome::{Absent, Exists, Found as Seen, Ok, Unknown};

/// An operation, its end and its value; values are letters, 0 is none.
type Kind = (Op, Outcome, u8);

const KINDS: [Kind; 18] = [
    (Op::Get, Seen, b'a'),
    (Op::Get, Seen, b'b'),
    (Op::Get, Absent, 0),
    (Op::Get, Unknown, 0),
    (Op::Put, Ok, b'a'),
    (Op::Put, Ok, b'b'),
    (Op::Put, Unknown, b'a'),
    (Op::Insert, Ok, b'a'),
    (Op::Insert, Exists, b'b'),
    (Op::Insert, Unknown, b'a'),
    (Op::Insert, Unknown, b'b'),
    (Op::Update, Ok, b'b'),
    (Op::Update, Absent, b'a'),
    (Op::Update, Unknown, b'a'),
    (Op::Update, Unknown, b'b'),
    (Op::Remove, Ok, 0),
    (Op::Remove, Absent, 0),
    (Op::Remove, Unknown, 0),
];

#[derive(Clone, Copy, Debug)]
struct Case {
    kind: Kind,
    start: u64,
    end: u64,
}

impl Case {
    fn value(&self) -> Option<&[u8]> {
        (self.kind.2 != 0).then(|| std::slice::from_ref(&self.kind.2))
    }
}

fn verdict_within(initial: u8, cases: &[Case], rest: Option<u64>, steps_max: u64) -> Verdict {
    let initial = [initial];
    let mut history = KeyHistory::new(b"k", (initial != [0]).then_some(&initial), rest);
    for (client, case) in (0..).zip(cases) {
        let (op, outcome, _) = case.kind;
        let Case { start, end, .. } = *case;
        assert!(op == Op::Scan || op.admits(outcome));
        let event = Event { process: 0, client, op, outcome, start, end, start_ns: start, end_ns: end };
        history.push(event, case.value());
    }
    check(&history, steps_max)
}

fn verdict(initial: u8, cases: &[Case], rest: Option<u64>) -> Verdict {
    verdict_within(initial, cases, rest, STEPS_MAX)
}

/// Tries every order, and every choice of the operations of unknown outcome that take effect.
fn has_order(state: u8, cases: &[Case], rest: Option<u64>) -> bool {
    let sure = |case: &Case| case.kind.1 != Unknown;
    if !cases.iter().any(sure) {
        return true;
    }
    let is_late = |tick: u64| cases.iter().any(|other| sure(other) && other.end < tick);
    if let Some(rest) = rest.filter(|rest| !is_late(*rest)) {
        let left = cases.iter().filter(|case| sure(case) || case.end > rest);
        if has_order(state, &left.copied().collect::<Vec<_>>(), None) {
            return true;
        }
    }
    (0..cases.len()).any(|next| {
        let case = cases[next];
        if is_late(case.start) || rest.is_some_and(|rest| rest < case.start) {
            return false;
        }
        let left: Vec<Case> = [&cases[..next], &cases[next + 1..]].concat();
        after(state, case.kind).is_some_and(|state| has_order(state, &left, rest))
    })
}

/// Yields what a map holds after an operation, if a map can answer so. One of unknown outcome may always be.
fn after(state: u8, (op, outcome, value): Kind) -> Option<u8> {
    let (says, then) = match (op, state) {
        (Op::Get | Op::Scan, 0) => (Absent, 0),
        (Op::Get | Op::Scan, _) => (Seen, state),
        (Op::Put, _) => (Ok, value),
        (Op::Insert, 0) => (Ok, value),
        (Op::Insert, _) => (Exists, state),
        (Op::Update | Op::Remove, 0) => (Absent, 0),
        (Op::Update, _) => (Ok, value),
        (Op::Remove, _) => (Ok, 0),
    };
    let fits = outcome == Unknown || outcome == says && (says != Seen || value == state);
    fits.then_some(then)
}

fn assert_same(initial: u8, cases: &[Case], rest: Option<u64>) -> bool {
    let expected = has_order(initial, cases, rest);
    match verdict(initial, cases, rest) {
        Verdict::Linearizable => assert!(expected, "accepted: {initial} {cases:?}"),
        Verdict::Contradicts(why) => {
            assert!(!expected, "refused: {initial} {cases:?}");
            // The reason is one, and needs every part of it.
            let core: Vec<usize> = why.core.iter().map(|claim| claim.event.client as usize).collect();
            let only = |core: &[usize]| -> Vec<Case> {
                let keep =
                    |(at, case): (usize, &Case)| if core.contains(&at) { *case } else { weakened(*case) };
                cases.iter().enumerate().map(keep).collect()
            };
            assert!(!has_order(initial, &only(&core), rest), "not to blame: {why}");
            for left_out in 0..core.len() {
                let others = [&core[..left_out], &core[left_out + 1..]].concat();
                assert!(has_order(initial, &only(&others), rest), "blamed for nothing: {why}");
            }
        }
        Verdict::Undecided => panic!("a small history: {cases:?}"),
    }
    expected
}

/// Yields the operation with nothing known of its end.
fn weakened(case: Case) -> Case {
    let (op, outcome, value) = case.kind;
    let had_effect = matches!(outcome, Ok | Unknown) && !matches!(op, Op::Get | Op::Scan);
    Case { kind: if had_effect { (op, Unknown, value) } else { (Op::Get, Unknown, 0) }, ..case }
}

/// Yields all ways in which so many operations can begin and end.
fn shapes(ops: usize) -> Vec<Vec<(u64, u64)>> {
    fn go(at: u64, begun: &mut Vec<(u64, u64)>, ops: usize, found: &mut Vec<Vec<(u64, u64)>>) {
        if begun.len() == ops && begun.iter().all(|(_, end)| *end > 0) {
            found.push(begun.clone());
        }
        if begun.len() < ops {
            begun.push((at, 0));
            go(at + 1, begun, ops, found);
            begun.pop();
        }
        for op in 0..begun.len() {
            if begun[op].1 == 0 {
                begun[op].1 = at;
                go(at + 1, begun, ops, found);
                begun[op].1 = 0;
            }
        }
    }
    let mut found = Vec::new();
    go(1, &mut Vec::new(), ops, &mut found);
    found
}

#[test]
fn every_history_of_three_operations() {
    let shapes = shapes(3);
    assert_eq!(shapes.len(), 15);
    let (mut accepted, mut refused) = (0, 0);
    for initial in [0, b'a', b'c'] {
        for shape in &shapes {
            for kinds in 0..KINDS.len().pow(3) {
                let kind = |at: usize| KINDS[kinds / KINDS.len().pow(at as u32) % KINDS.len()];
                let case = |at: usize| Case { kind: kind(at), start: shape[at].0, end: shape[at].1 };
                let same = assert_same(initial, &[case(0), case(1), case(2)], None);
                *if same { &mut accepted } else { &mut refused } += 1;
            }
        }
    }
    assert!(accepted > 50_000 && refused > 50_000, "{accepted} {refused}");
}

#[test]
fn random_histories_of_up_to_eight_operations() {
    let mut rng = SmallRng::seed_from_u64(1);
    let (mut accepted, mut refused) = (0, 0);
    while accepted < 6_000 || refused < 6_000 {
        let len = rng.random_range(4..=8);
        // Few ticks, so that some are equal.
        let span = rng.random_range(4..20);
        let cases: Vec<Case> = (0..len)
            .map(|_| {
                let kind = KINDS[rng.random_range(0..KINDS.len())];
                let start = rng.random_range(0..span);
                Case { kind, start, end: start + rng.random_range(0..=span / 2) }
            })
            .collect();
        let initial = [0, b'a', b'b', b'c'][rng.random_range(0..4)];
        let rest = [None, Some(rng.random_range(0..span * 3 / 2))][rng.random_range(0..2)];
        *if assert_same(initial, &cases, rest) { &mut accepted } else { &mut refused } += 1;
    }
}

/// Draws operations that happened one after another, each with a start and an end around its moment.
fn real_history(rng: &mut SmallRng, len: u64, lost: f64) -> Vec<Case> {
    let mut state = 0;
    let mut cases = Vec::new();
    for at in 1..=len {
        let value = rng.random_range(b'a'..=b'd');
        let op = [Op::Get, Op::Put, Op::Insert, Op::Update, Op::Remove][rng.random_range(0..5)];
        let outcome = [Ok, Seen, Absent, Exists].into_iter().find(|outcome| {
            after(state, (op, *outcome, if *outcome == Seen { state } else { value })).is_some()
        });
        let value = if op == Op::Get { state } else { value };
        let kind = (op, outcome.expect("a map answers something"), if op == Op::Remove { 0 } else { value });
        let (moment, spread) = (at * 10, 40);
        let start = moment - rng.random_range(0..spread.min(moment));
        let end = moment + rng.random_range(0..spread);
        if op != Op::Get && rng.random_bool(lost) {
            // It took effect, after its end perhaps, or it did not.
            if rng.random_bool(0.5) {
                state = after(state, kind).expect("it was the answer");
            }
            let end = start + rng.random_range(0..5);
            cases.push(Case { kind: (op, Unknown, kind.2), start, end });
            continue;
        }
        state = after(state, kind).expect("it was the answer");
        cases.push(Case { kind, start, end });
    }
    cases
}

#[test]
fn what_really_happened_passes() {
    let mut rng = SmallRng::seed_from_u64(2);
    for round in 0..400 {
        let lost = [0.0, 0.05, 0.3][round % 3];
        let cases = real_history(&mut rng, 300, lost);
        assert!(matches!(verdict(0, &cases, None), Verdict::Linearizable), "{round}: {cases:?}");
    }
}

#[test]
fn a_change_that_makes_it_wrong_is_found() {
    let mut rng = SmallRng::seed_from_u64(3);
    let mut refused = 0;
    for _ in 0..5_000 {
        let mut cases = real_history(&mut rng, 7, 0.1);
        let at = rng.random_range(0..cases.len());
        match rng.random_range(0..3) {
            0 => cases[at].kind = KINDS[rng.random_range(0..KINDS.len())],
            1 => cases[at].start = rng.random_range(cases[at].start..=cases[at].end),
            _ => drop(cases.remove(at)),
        }
        refused += u32::from(!assert_same(0, &cases, None));
    }
    assert!(refused > 500, "{refused}");
}

fn case(start: u64, end: u64, op: Op, outcome: Outcome, value: u8) -> Case {
    Case { kind: (op, outcome, value), start, end }
}

/// Asserts that the history is refused, and for these operations only.
fn assert_blames(initial: u8, cases: &[Case], blamed: &[u32]) -> Contradiction {
    match verdict(initial, cases, None) {
        Verdict::Contradicts(why) => {
            let clients: Vec<u32> = why.core.iter().map(|claim| claim.event.client).collect();
            assert_eq!(clients, blamed, "{why}");
            why
        }
        verdict => panic!("{verdict:?} {cases:?}"),
    }
}

#[test]
fn stale_read() {
    let why = assert_blames(
        0,
        &[
            case(1, 2, Op::Put, Ok, b'a'),
            case(3, 4, Op::Get, Seen, b'a'),
            case(5, 6, Op::Put, Ok, b'b'),
            case(7, 9, Op::Get, Seen, b'b'),
            case(8, 10, Op::Get, Seen, b'b'),
            case(11, 12, Op::Get, Seen, b'a'),
            case(13, 14, Op::Put, Ok, b'c'),
        ],
        &[0, 2, 5],
    );
    let expected = r#"no order explains these operations, whatever the 4 others on the key did
  [     1 ..      2] node 0 client 0   put    "a" -> ok
  [     5 ..      6] node 0 client 2   put    "b" -> ok
  [    11 ..     12] node 0 client 5   get    -> "a""#;
    assert_eq!(why.to_string(), format!(r#"key "k", absent before all of it: {expected}"#));
}

#[test]
fn reads_that_go_back() {
    let cases =
        [case(1, 20, Op::Put, Ok, b'b'), case(2, 4, Op::Get, Seen, b'b'), case(5, 6, Op::Get, Seen, b'a')];
    assert_blames(b'a', &cases, &[1, 2]);
}

#[test]
fn lost_update() {
    let cases =
        [case(1, 2, Op::Update, Ok, b'b'), case(3, 4, Op::Update, Ok, b'c'), case(5, 6, Op::Get, Seen, b'b')];
    assert_blames(b'a', &cases, &[0, 1, 2]);
}

#[test]
fn double_insert() {
    let cases = [case(1, 5, Op::Insert, Ok, b'a'), case(2, 6, Op::Insert, Ok, b'b')];
    assert_blames(0, &cases, &[0, 1]);
}

#[test]
fn resurrected_remove() {
    let cases = [
        case(1, 2, Op::Get, Seen, b'a'),
        case(3, 4, Op::Remove, Ok, 0),
        case(5, 6, Op::Get, Absent, 0),
        case(7, 8, Op::Get, Seen, b'a'),
    ];
    assert_blames(b'a', &cases, &[1, 3]);
}

#[test]
fn a_value_from_nowhere() {
    let why = assert_blames(
        b'a',
        &[case(1, 2, Op::Get, Seen, b'b'), case(3, 4, Op::Put, Ok, b'b'), case(1, 9, Op::Put, Ok, b'c')],
        &[0],
    );
    assert_eq!((why.writers.len(), why.others), (1, 1));
    assert!(why.to_string().contains("were written by\n  [     3 ..      4] node 0 client 1   put"), "{why}");
}

#[test]
fn a_write_of_unknown_outcome_takes_effect_late() {
    let cases = [
        case(1, 2, Op::Put, Unknown, b'a'),
        case(3, 4, Op::Put, Ok, b'b'),
        case(5, 6, Op::Get, Seen, b'b'),
        case(7, 8, Op::Get, Seen, b'a'),
    ];
    assert!(matches!(verdict(0, &cases, None), Verdict::Linearizable));
    // But once only.
    let again = [case(9, 10, Op::Put, Ok, b'c'), case(11, 12, Op::Get, Seen, b'a')];
    assert_blames(0, &[&cases[..], &again].concat(), &[3, 4, 5]);
}

#[test]
fn at_rest_a_write_of_unknown_outcome_has_taken_effect_or_never_will() {
    let mut cases = vec![
        case(1, 2, Op::Put, Unknown, b'a'),
        case(3, 4, Op::Put, Ok, b'b'),
        case(5, 6, Op::Get, Seen, b'b'),
        case(8, 9, Op::Get, Seen, b'a'),
    ];
    let verdict_at = |rest, cases: &[Case]| verdict(0, cases, rest);
    assert!(matches!(verdict_at(Some(7), &cases), Verdict::Linearizable));
    // What was seen at rest pins it.
    cases.insert(3, case(8, 9, Op::Get, Seen, b'b'));
    cases[4] = case(10, 11, Op::Get, Seen, b'a');
    assert!(matches!(verdict_at(None, &cases), Verdict::Linearizable));
    let Verdict::Contradicts(why) = verdict_at(Some(7), &cases) else { panic!("it came after the rest") };
    assert_eq!(why.core.iter().map(|claim| claim.event.client).collect::<Vec<_>>(), [3, 4], "{why}");
    // An operation that was still under way then is not meant, nor one that was not given up before.
    for end in [7, 8, 12] {
        cases[0] = case(1, end, Op::Put, Unknown, b'a');
        assert_eq!(matches!(verdict_at(Some(7), &cases), Verdict::Linearizable), end > 7);
    }
    // A put that brings the value back may.
    cases.push(case(9, 10, Op::Put, Ok, b'a'));
    assert!(matches!(verdict_at(Some(7), &cases), Verdict::Linearizable));
}

#[test]
fn a_lost_write_before_the_rest_may_be_seen_after_one_that_it_hides_from() {
    // At rest there is a: the get that finds nothing is after the remove, though what was there before fits it too.
    let cases = [
        case(1, 2, Op::Put, Unknown, b'a'),
        case(5, 20, Op::Get, Absent, 0),
        case(6, 20, Op::Get, Seen, b'a'),
        case(7, 20, Op::Remove, Ok, 0),
    ];
    assert!(matches!(verdict(0, &cases, Some(4)), Verdict::Linearizable));
}

#[test]
fn a_write_of_unknown_outcome_takes_no_effect_before_it_began() {
    let cases = [case(1, 2, Op::Get, Seen, b'a'), case(3, 4, Op::Put, Unknown, b'a')];
    assert_blames(0, &cases, &[0]);
}

#[test]
fn many_lost_writes_do_not_make_it_slow() {
    let ops = [Op::Put, Op::Insert, Op::Update, Op::Remove];
    let mut cases: Vec<Case> =
        (0..400).map(|at| case(at, at + 1, ops[at as usize % 4], Unknown, b'a' + (at % 3) as u8)).collect();
    for at in 0..40 {
        let start = 500 + 10 * at;
        cases.push(case(start, start + 15, Op::Insert, Ok, b'x'));
        cases.push(case(start + 1, start + 8, Op::Get, Seen, b'a'));
        cases.push(case(start + 2, start + 9, Op::Update, Absent, b'y'));
    }
    assert!(matches!(verdict_within(0, &cases, None, 100_000), Verdict::Linearizable));
    // There are 100 removes that may have happened, and 60 are needed.
    cases.push(case(2_000, 2_001, Op::Get, Seen, b'z'));
    assert!(matches!(verdict_within(0, &cases, None, 100_000), Verdict::Contradicts(_)));
}

#[test]
fn a_search_that_is_too_long_is_no_pass() {
    let mut rng = SmallRng::seed_from_u64(4);
    let cases = real_history(&mut rng, 100, 0.1);
    assert!(matches!(verdict_within(0, &cases, None, 50), Verdict::Undecided));
}

#[test]
fn the_same_history_takes_the_same_steps() {
    let mut rng = SmallRng::seed_from_u64(5);
    let cases = real_history(&mut rng, 100, 0.1);
    let is_enough = |steps: &u64| matches!(verdict_within(0, &cases, None, *steps), Verdict::Linearizable);
    let needed = (0..10_000).find(is_enough);
    assert!(needed.is_some_and(|needed| needed < 1_000), "{needed:?}");
    assert_eq!((0..10_000).find(is_enough), needed);
}
