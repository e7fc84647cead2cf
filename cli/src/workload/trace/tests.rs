//! Traces: text in, lines and keys out.

use super::*;
use crate::workload::values::VALUE_BYTES_MAX;

fn read_first(text: &str, lines_max: Option<u64>) -> Result<Trace, CliError> {
    Trace::read(text.as_bytes(), Path::new("cluster8.csv"), lines_max)
}

fn read(text: &str) -> Trace {
    read_first(text, None).unwrap()
}

fn lines(trace: &Trace) -> Vec<(String, TraceOp, usize)> {
    let line = |at| {
        let Line { key, op, value_bytes } = trace.line(at);
        (String::from_utf8_lossy(trace.key(key)).into_owned(), op, value_bytes)
    };
    (0..trace.len()).map(line).collect()
}

#[test]
fn lines_keep_their_order() {
    let trace = read("0,b,8,set\n0,a,0,get\r\n1,b,9,cas\n\n2,\"x\"\"y,4096,add\n2,b,0,delete");
    let expected = [
        ("b", TraceOp::Put, 8),
        ("a", TraceOp::Get, 0),
        ("b", TraceOp::Update, 9),
        ("\"x\"\"y", TraceOp::Insert, 4096),
        ("b", TraceOp::Remove, 0),
    ];
    assert_eq!(lines(&trace), expected.map(|(key, op, bytes)| (key.to_owned(), op, bytes)));
    assert_eq!((trace.keys(), trace.longest_key(), trace.largest_value()), (3, 5, 4096));
}

#[test]
fn every_line_fits_into_its_bytes() {
    for value_bytes in [0, 1, VALUE_BYTES_MAX] {
        for (name, op) in [("get", TraceOp::Get), ("delete", TraceOp::Remove), ("incr", TraceOp::Update)] {
            let text: String = (0..70_000).map(|n| format!("0,{n},{value_bytes},{name}\n")).collect();
            let trace = read(&text);
            let line = Line { key: 69_999, op, value_bytes: value_bytes as usize };
            assert_eq!((trace.line(69_999), trace.key(69_999)), (line, &b"69999"[..]));
        }
    }
}

#[test]
fn keys_that_a_trace_needs_are_loaded() {
    let first = |op: &str| {
        let trace = read(&format!("0,x,7,{op}\n1,x,9,get\n"));
        (trace.loaded(), trace.is_kept(0), trace.loaded_bytes(0))
    };
    for op in ["get", "gets", "replace", "cas", "append", "prepend", "incr", "decr"] {
        assert_eq!(first(op), (1, true, 7), "{op}");
    }
    assert_eq!(first("delete"), (1, false, 7), "it was there, and goes");
    for op in ["set", "add"] {
        assert_eq!(first(op), (0, false, 7), "{op}");
    }
    let trace = read("0,c,1,get\n0,b,1,set\n0,a,1,get\n0,c,0,delete\n0,b,0,get");
    let loaded: Vec<&[u8]> = trace.loaded_sorted().into_iter().map(|number| trace.key(number)).collect();
    assert_eq!((loaded, trace.loaded()), (vec![&b"a"[..], b"c"], 2));
}

#[test]
fn a_key_is_loaded_with_the_first_size_that_is_known() {
    let trace = read("0,miss,0,get\n0,none,0,get\n1,miss,30,set\n2,miss,50,set");
    assert_eq!([0, 1].map(|number| trace.loaded_bytes(number)), [30, 0]);
    assert_eq!(trace.smallest_written(), Some(0));
    assert_eq!(read("0,a,12,set\n0,a,3,get").smallest_written(), Some(12));
    assert_eq!(read("0,a,12,set\n0,b,3,get").smallest_written(), Some(3), "it is loaded");
}

#[test]
fn keys_of_one_hash_are_told_apart() {
    let mut builder = Builder::default();
    let (first, second) = (builder.number_of(b"first"), builder.number_of(b"second"));
    assert_eq!((first, second), (Ok(0), Ok(1)));
    // As if both had the first one's hash.
    let (first, second) = (xxh3_64(b"first"), xxh3_64(b"second"));
    builder.numbers.remove(&second);
    builder.numbers.insert(second, 0);
    assert_eq!(builder.number_of(b"second"), Ok(2), "a key of its own, beside the first one");
    assert_eq!(builder.numbers[&second.wrapping_add(1)], 2);
    assert_eq!((builder.numbers[&first], builder.number_of(b"second")), (0, Ok(2)));
}

#[test]
fn a_part_of_a_trace_is_read_without_the_rest() {
    let text = "0,a,1,get\n0,b,1,get\nnonsense\n";
    assert_eq!(read_first(text, Some(2)).unwrap().len(), 2);
    assert_eq!(read_first("0,a,1,get\n", Some(5)).unwrap().len(), 1);
    assert!(read_first(text, Some(3)).is_err());
}

#[test]
fn errors_name_file_and_line() {
    let error = |text: &str| {
        let error = read_first(text, None).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        error.one_line()
    };
    for end in ["\n", "\r\n"] {
        let told = error(&["0,a,1,get", "0,a,1,get", "0,a,?,get", ""].join(end));
        assert_eq!(told, "cluster8.csv, line 3: column 3 (value size) is \"?\": expected 0 to 4096 bytes");
    }
    assert!(error("0,a,1,get\n0,a,1,8,1,get,0").starts_with("cluster8.csv, line 2: 7 columns: expected 4 ("));
    assert!(error("timestamp,key,value size,operation\n").contains("line 1: column 1 (timestamp) is"));
    assert_eq!(error(""), "the trace cluster8.csv has no lines");
}
