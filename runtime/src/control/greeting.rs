//! The greeting: the first 16 bytes in each direction. No codec has a part in it, so that sides of different versions
//! can still say so. The client speaks first; a server answers a greeting of any version with its own.
//!
//! ```text
//! 0                       8         10                      16
//! +-----------------------+---------+-----------------------+
//! | magic "FARWOOD\x1a"   | version | reserved, zero        |
//! +-----------------------+---------+-----------------------+
//! ```
//!
//! Authentication and TLS will have their place right after the greeting, before the first frame: a version says
//! whether what follows is wrapped.

use thiserror::Error;

/// Length of a greeting.
pub const GREETING_BYTES: usize = 16;
/// The version of the protocol that this program speaks: it changes with every change of [`super::wire`].
pub const VERSION: u16 = 10;

const MAGIC: [u8; 8] = *b"FARWOOD\x1a";

/// Reasons why a greeting does not lead to a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the message names the field")]
pub enum GreetingError {
    /// Something else speaks there.
    #[error("the greeting is not Farwood's")]
    NotFarwood,
    /// Another version of Farwood speaks there.
    #[error("the other side speaks version {theirs} of the control protocol, this one version {VERSION}")]
    Version { theirs: u16 },
}

/// Returns this program's greeting.
pub fn greeting() -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// Checks that the other side speaks this version of the protocol.
///
/// # Errors
/// If it does not.
pub fn check(theirs: &[u8; GREETING_BYTES]) -> Result<(), GreetingError> {
    if theirs[..8] != MAGIC {
        return Err(GreetingError::NotFarwood);
    }
    let version = u16::from_le_bytes([theirs[8], theirs[9]]);
    if version != VERSION {
        return Err(GreetingError::Version { theirs: version });
    }
    if theirs[10..] != [0; 6] { Err(GreetingError::NotFarwood) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_another_version_from_another_protocol() {
        assert_eq!(check(&greeting()), Ok(()));
        let mut newer = greeting();
        newer[8] += 1;
        newer[12] = 7;
        assert_eq!(
            check(&newer),
            Err(GreetingError::Version { theirs: VERSION + 1 }),
            "whatever it uses the rest for"
        );
        let mut reserved = greeting();
        reserved[15] = 1;
        assert_eq!(check(&reserved), Err(GreetingError::NotFarwood));
        assert_eq!(check(b"HTTP/1.1 400 Bad"), Err(GreetingError::NotFarwood));
    }
}
