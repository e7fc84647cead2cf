//! Histories as JSON lines in the order of their starts, bytes in hexadecimal: what `--history` writes. The format is a
//! promise to other checkers; order ticks are not part of it.

use std::io::{self, Write};

use super::{Entries, History, Operation};

/// Writes the histories of all parts of a run as one.
///
/// # Errors
/// If `out` fails.
pub fn write_json_lines(histories: &[History], out: &mut dyn Write) -> io::Result<()> {
    let mut order: Vec<(u64, u32, u32)> = Vec::new();
    for (part, history) in (0u32..).zip(histories) {
        let records = (0u32..).zip(&history.records);
        order.extend(records.map(|(at, record)| (record.event.start_ns, part, at)));
    }
    let record = |part: u32, at: u32| &histories[part as usize].records[at as usize];
    // In virtual time many operations start at once: then the ticks know which was first.
    let key = |&(start_ns, part, at): &(u64, u32, u32)| (start_ns, record(part, at).event.start, part, at);
    order.sort_unstable_by(|left, right| left.0.cmp(&right.0).then_with(|| key(left).cmp(&key(right))));
    for (_, part, at) in order {
        write_operation(&histories[part as usize].operation(record(part, at)), out)?;
    }
    Ok(())
}

fn write_operation(operation: &Operation<'_>, out: &mut dyn Write) -> io::Result<()> {
    let event = &operation.event;
    let (process, client, op) = (event.process, event.client, event.op.name());
    write!(out, r#"{{"process": {process}, "client": {client}, "op": "{op}", "key": ""#)?;
    write_hex(operation.key, out)?;
    match operation.value {
        Some(value) => {
            out.write_all(br#"", "value": ""#)?;
            write_hex(value, out)?;
            out.write_all(b"\"")?;
        }
        None => out.write_all(br#"", "value": null"#)?,
    }
    if let Some(scan) = operation.scan {
        write_entries(scan.entries, out)?;
    }
    let (start, end, result) = (event.start_ns, event.end_ns, event.outcome.name());
    writeln!(out, r#", "start_ns": {start}, "end_ns": {end}, "result": "{result}"}}"#)
}

fn write_entries(entries: Entries<'_>, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(br#", "entries": ["#)?;
    for (at, (key, value)) in entries.enumerate() {
        out.write_all(if at == 0 { b"[\"" } else { b", [\"" })?;
        write_hex(key, out)?;
        out.write_all(br#"", ""#)?;
        write_hex(value, out)?;
        out.write_all(b"\"]")?;
    }
    out.write_all(b"]")
}

fn write_hex(bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for &byte in bytes {
        out.write_all(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]])?;
    }
    Ok(())
}
