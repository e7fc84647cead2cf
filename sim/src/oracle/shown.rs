//! Bytes of keys and values, as messages show them.

use std::fmt;

/// The most bytes that are shown.
const BYTES_MAX: usize = 24;

/// Text in quotes, other bytes in hexadecimal, long ones shortened.
pub(super) struct Shown<'a>(pub(super) &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shown(bytes) = *self;
        let shown = &bytes[..bytes.len().min(BYTES_MAX)];
        let readable = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\') || *byte == b' ';
        if shown.iter().all(readable) {
            f.write_str("\"")?;
            shown.iter().try_for_each(|&byte| write!(f, "{}", char::from(byte)))?;
            f.write_str("\"")?;
        } else {
            f.write_str("0x")?;
            shown.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        }
        if shown.len() < bytes.len() {
            write!(f, "... ({} bytes)", bytes.len())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_shown_as_text() {
        let shown = |bytes: &[u8]| Shown(bytes).to_string();
        assert_eq!(shown(b"k 1"), r#""k 1""#);
        assert_eq!(shown(b""), r#""""#);
        assert_eq!(shown(b"\x00\xffa"), "0x00ff61");
        assert_eq!(shown(&[b'x'; 30]), format!(r#""{}"... (30 bytes)"#, "x".repeat(24)));
    }
}
