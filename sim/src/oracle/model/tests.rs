//! The map notices every answer that is not its own.

use std::ops::Bound;

use super::*;
use crate::history::{Event, History, ScanEntries, ScanRange};

fn model() -> ModelMap {
    ModelMap::new([(b"a".to_vec(), b"1".to_vec()), (b"c".to_vec(), b"3".to_vec())].into())
}

fn event(op: Op, outcome: Outcome) -> Event {
    Event { process: 0, client: 0, op, outcome, start: 1, end: 2, start_ns: 1, end_ns: 2 }
}

fn point(op: Op, key: &'static str, value: &'static str, outcome: Outcome) -> Operation<'static> {
    let value = (op != Op::Remove && !value.is_empty()).then_some(value.as_bytes());
    Operation { event: event(op, outcome), key: key.as_bytes(), value, scan: None }
}

fn check_scan(model: &mut ModelMap, limit: Option<usize>, pairs: &[(&str, &str)]) -> Result<(), Mismatch> {
    let (mut history, mut entries) = (History::default(), ScanEntries::default());
    pairs.iter().for_each(|(key, value)| entries.push(key.as_bytes(), value.as_bytes()));
    let range = ScanRange { start: Bound::Unbounded, end: Bound::Excluded(b"z"), limit, ended: true };
    history.add_scan(event(Op::Scan, Outcome::Ok), range, &entries);
    history.iter().try_for_each(|operation| model.check(&operation))
}

#[test]
fn answers_of_a_map() {
    use Outcome::{Absent, Exists, Found, Ok as Done};
    let mut model = model();
    for (op, key, value, outcome) in [
        (Op::Get, "a", "1", Found),
        (Op::Get, "b", "", Absent),
        (Op::Put, "b", "2", Done),
        (Op::Get, "b", "2", Found),
        (Op::Insert, "b", "9", Exists),
        (Op::Insert, "d", "4", Done),
        (Op::Update, "a", "5", Done),
        (Op::Update, "e", "9", Absent),
        (Op::Remove, "c", "", Done),
        (Op::Remove, "c", "", Absent),
    ] {
        assert_eq!(model.check(&point(op, key, value, outcome)), Ok(()));
    }
    assert_eq!(check_scan(&mut model, None, &[("a", "5"), ("b", "2"), ("d", "4")]), Ok(()));
    assert_eq!(check_scan(&mut model, Some(1), &[("a", "5")]), Ok(()));
    assert_eq!(model.pairs().len(), 3);
}

#[test]
fn answers_of_no_map() {
    use Outcome::{Absent, Exists, Found, Ok as Done};
    for (op, key, value, outcome) in [
        (Op::Get, "a", "2", Found),
        (Op::Get, "a", "", Absent),
        (Op::Get, "b", "1", Found),
        (Op::Insert, "a", "1", Done),
        (Op::Insert, "b", "1", Exists),
        (Op::Update, "b", "1", Done),
        (Op::Update, "a", "1", Absent),
        (Op::Remove, "b", "", Done),
        (Op::Remove, "a", "", Absent),
    ] {
        assert!(model().check(&point(op, key, value, outcome)).is_err(), "{op} {key} {value} {outcome}");
    }
    let stale = model().check(&point(Op::Get, "a", "2", Found)).unwrap_err().to_string();
    assert!(stale.ends_with(r#"get    -> "2", but a map says found and has "1""#), "{stale}");
}

#[test]
fn scans_of_no_map() {
    for (limit, pairs, why) in [
        (None, &[("a", "1")][..], r#"entry 1 is none, but a map says "c" = "3""#),
        (None, &[("c", "3")], r#"entry 0 is "c" = "3", but a map says "a" = "1""#),
        (None, &[("a", "1"), ("c", "4")], r#"entry 1 is "c" = "4""#),
        (None, &[("a", "1"), ("b", "2"), ("c", "3")], r#"entry 1 is "b" = "2""#),
        (Some(1), &[("c", "3")], r#"entry 0 is "c" = "3""#),
        (Some(1), &[("a", "1"), ("c", "3")], "returned 2 entries"),
        (None, &[("a", "1"), ("a", "1")], r#"returned "a" twice"#),
    ] {
        let mismatch = check_scan(&mut model(), limit, pairs).unwrap_err().to_string();
        assert!(mismatch.contains(why), "{mismatch}");
    }
}

#[test]
fn a_write_of_unknown_outcome_makes_it_believe_anything_of_that_key() {
    let mut model = model();
    model.check(&point(Op::Put, "b", "2", Outcome::Unknown)).unwrap();
    for (value, outcome) in [("2", Outcome::Found), ("", Outcome::Absent)] {
        model.check(&point(Op::Get, "b", value, outcome)).unwrap();
    }
    check_scan(&mut model, None, &[("a", "1"), ("c", "3")]).unwrap();
    check_scan(&mut model, None, &[("a", "1"), ("b", "2"), ("c", "3")]).unwrap();
    check_scan(&mut model, None, &[("a", "1"), ("b", "2")]).unwrap_err();
    assert!(model.unsure().contains(&b"b"[..]) && model.unsure().len() == 1);
}
