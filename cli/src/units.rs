//! Sizes, counts and times as they are written on the command line and in tables: `KiB MiB GiB`, `k M G` (powers of
//! ten), `us ms s`. Parsing is exact integer arithmetic; anything that would be rounded or would overflow is an error.

/// A unit and what it multiplies by.
type Unit = (&'static str, u64);

const SIZES: [Unit; 4] = [("", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
const COUNTS: [Unit; 4] = [("", 1), ("k", 1_000), ("M", 1_000_000), ("G", 1_000_000_000)];
const TIMES: [Unit; 3] = [("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

/// Parses a size in bytes: `4GiB`, `1.5MiB`, `4096`.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    parse(text, &SIZES, "a size is a number with KiB, MiB or GiB, or plain bytes")
}

/// Parses a count: `10M`, `2.5k`, `128`.
pub(crate) fn parse_count(text: &str) -> Result<u64, String> {
    parse(text, &COUNTS, "a count is a number, or a number with k, M or G")
}

/// Parses a span of time into nanoseconds: `10s`, `250ms`, `0.5us`; a bare `0` is no time.
pub(crate) fn parse_time(text: &str) -> Result<u64, String> {
    if text == "0" {
        return Ok(0);
    }
    parse(text, &TIMES, "a time is a number with us, ms or s")
}

/// Parses whether something is on or off.
pub(crate) fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("'{text}' is neither on nor off")),
    }
}

fn parse(text: &str, units: &[Unit], expected: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let Some(&(_, factor)) = units.iter().find(|(name, _)| *name == unit) else {
        return Err(expected.to_owned());
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let parsed = whole.parse::<u64>().ok().zip(fraction.parse::<u64>().ok());
    // A fraction of more than 18 digits would overflow the power of ten below.
    let Some((whole_value, fraction_value)) = parsed.filter(|_| fraction.len() <= 18) else {
        let all_digits = !whole.is_empty() && whole.bytes().all(|b| b.is_ascii_digit());
        return Err(if all_digits { "the number is too large".to_owned() } else { expected.to_owned() });
    };
    let scale = 10u128.pow(fraction.len() as u32);
    let scaled = (u128::from(whole_value) * scale + u128::from(fraction_value)) * u128::from(factor);
    if !scaled.is_multiple_of(scale) {
        return Err("the number is not a whole one in its smallest unit".to_owned());
    }
    u64::try_from(scaled / scale).map_err(|_| "the number is too large".to_owned())
}

/// Writes bytes for a table: `512.0 MiB`.
pub(crate) fn show_bytes(bytes: u64) -> String {
    let (name, factor) = SIZES.iter().rev().find(|(_, factor)| bytes >= *factor).unwrap_or(&SIZES[0]);
    match name {
        &"" => format!("{bytes} B"),
        name => format!("{:.1} {name}", bytes as f64 / *factor as f64),
    }
}

/// Writes a count for a table: `12.35 M`.
pub(crate) fn show_count(count: u64) -> String {
    let (name, factor) = COUNTS.iter().rev().find(|(_, factor)| count >= *factor).unwrap_or(&COUNTS[0]);
    match name {
        &"" => count.to_string(),
        name => format!("{:.2} {name}", count as f64 / *factor as f64),
    }
}

/// Writes nanoseconds for a table: `12.4 us`.
pub(crate) fn show_time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_people_write() {
        assert_eq!(parse_size("4GiB"), Ok(4 << 30));
        assert_eq!(parse_size("1.5MiB"), Ok(3 << 19));
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_count("10M"), Ok(10_000_000));
        assert_eq!(parse_count("2.5k"), Ok(2_500));
        assert_eq!(parse_time("10s"), Ok(10_000_000_000));
        assert_eq!(parse_time("0.5us"), Ok(500));
        assert_eq!(parse_time("0"), Ok(0));
        assert_eq!(parse_time("0s"), Ok(0));
    }

    #[test]
    fn refuses_everything_else() {
        for text in ["", "GiB", "4GB", "4 GiB", "-1", "+1", "1.2.3", ".", "1.", ".5k", "1e3", "4gib", "٣"] {
            assert!(parse_size(text).is_err(), "{text:?}");
        }
        for text in ["10m", "10K", "1.5", "0.0001k", "k", "99999999999999999999", "20000000000G"] {
            assert!(parse_count(text).is_err(), "{text:?}");
        }
        for text in ["10", "10m", "1h", "1ns", "s", "0.0001us", "1.00000000000000000000s"] {
            assert!(parse_time(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn shows_what_people_read() {
        assert_eq!(show_bytes(512 << 20), "512.0 MiB");
        assert_eq!(show_bytes(17), "17 B");
        assert_eq!(show_count(12_345_678), "12.35 M");
        assert_eq!(show_count(0), "0");
        assert_eq!(show_time(12_400), "12.4 us");
        assert_eq!(show_time(999), "999 ns");
    }
}
