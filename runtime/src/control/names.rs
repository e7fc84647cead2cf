//! Bounds what users and the network may call indexes and compute nodes, and what they may say of a new index. Catalogs
//! take nothing else, and clients do not even ask: it has to fit into a message.

use super::ControlError;

/// Longest name of an index or of a compute node, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 255;
/// Longest spelling of a kind of index, in bytes.
pub(crate) const KIND_BYTES_MAX: usize = 32;
/// Longest configuration of an index, in bytes.
pub(crate) const CONFIG_BYTES_MAX: usize = 4096;

/// Checks that indexes and compute nodes may have that name. An error carries the length and not the name: there is no
/// use in sending something too long back.
pub(crate) fn check_name(name: &str) -> Result<(), ControlError> {
    let good = (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control);
    if good { Ok(()) } else { Err(ControlError::BadName { bytes: name.len() as u64 }) }
}

/// Checks that an index may be made with that name, kind and configuration.
pub(crate) fn check_new(name: &str, kind: &str, config: &[u8]) -> Result<(), ControlError> {
    check_name(name)?;
    if kind.len() > KIND_BYTES_MAX || kind.chars().any(char::is_control) {
        return Err(ControlError::BadKind { bytes: kind.len() as u64 });
    }
    if config.len() > CONFIG_BYTES_MAX {
        return Err(ControlError::ConfigTooLong { bytes: config.len() as u64 });
    }
    Ok(())
}
