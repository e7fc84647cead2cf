//! Indexes as the command line speaks of them: of a kind, with `--technique NAME=on|off`, up to some limits. It knows
//! no kind.

use farwood::IndexKind;
use farwood::index::shell::Options;
use farwood::runtime::CatalogEntry;
use farwood::{AnyTree, IndexSpec, Limits, NodeContext, Nodes, Switches};

use crate::error::CliError;
use crate::units::parse_switch;

/// The longest name of an index, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Fails if no index can have that name.
pub(crate) fn check_name(name: &str) -> Result<(), CliError> {
    let problem = match name {
        "" => "it is empty",
        name if name.len() > NAME_BYTES_MAX => "it is longer than 255 bytes",
        name if name.chars().any(char::is_control) => "it has a control character",
        _ => return Ok(()),
    };
    Err(CliError::Usage(format!("{name:?} cannot be the name of an index: {problem}")))
}

/// Yields what `--technique NAME=on|off` of an index of that kind mean, in the order in which they were written.
///
/// # Errors
/// If one of them is no switch of this kind.
pub(crate) fn switches(kind: IndexKind, words: &[String]) -> Result<Vec<(&'static str, bool)>, CliError> {
    words.iter().map(|word| switch(kind, word)).collect()
}

fn switch(kind: IndexKind, word: &str) -> Result<(&'static str, bool), CliError> {
    let Some((name, state)) = word.split_once('=') else {
        return Err(CliError::Usage(format!("--technique {word}: write NAME=on or NAME=off")));
    };
    let on = parse_switch(state).map_err(|error| CliError::Usage(format!("--technique {word}: {error}")))?;
    // Both two_level and two-level are what people type.
    let spelled = name.replace('-', "_");
    let known: Vec<_> = kind.techniques().into_iter().map(|(known, _)| known).collect();
    match known.iter().find(|known| **known == spelled) {
        Some(name) => Ok((name, on)),
        None => {
            Err(CliError::Usage(format!("{kind} has no technique '{name}': it has {}", known.join(", "))))
        }
    }
}

/// Makes the specification of an index with those limits and the switches that `words` name.
///
/// # Errors
/// If no node is large enough, or a word names no switch of the kind.
pub(crate) fn spec(kind: IndexKind, limits: Limits, words: &[String]) -> Result<IndexSpec, CliError> {
    let mut spec = kind.spec(limits, Nodes::Usual);
    spec.check().map_err(CliError::usage)?;
    for (name, on) in switches(kind, words)? {
        assert!(spec.set_technique(name, on), "{name} is a name of the kind's own");
    }
    Ok(spec)
}

/// Creates an index and opens it.
///
/// # Errors
/// If the catalog refuses.
pub(crate) async fn create(
    node: &impl NodeContext,
    name: &str,
    spec: &IndexSpec,
) -> Result<AnyTree, CliError> {
    spec.create(node, name).await.map_err(CliError::failed)
}

/// Opens the index of that name, with the options that its kind has by default but for what `change` does to them.
///
/// # Errors
/// If there is none, or it is of a kind that this release does not know.
pub(crate) async fn open(
    node: &impl NodeContext,
    name: &str,
    change: impl FnOnce(&mut Options<dyn Switches>),
) -> Result<AnyTree, CliError> {
    let entry = node.control().open(name).await.map_err(CliError::failed)?;
    let Some(kind) = IndexKind::named(&entry.kind) else {
        return Err(CliError::Failed(format!(
            "the index {name:?} is of kind {:?}, which this farwood cannot open: use the one that created it",
            entry.kind
        )));
    };
    // Its creator's geometry counts.
    let spec = kind.spec(kind.usual_limits(), Nodes::Usual);
    spec.with_options(change).open(node, name).await.map_err(CliError::failed)
}

/// Reads the limits of the index of a catalog entry, if this release can.
pub(crate) fn limits_of(entry: &CatalogEntry) -> Option<Limits> {
    IndexKind::named(&entry.kind)?.limits_of(entry).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn names_are_text_on_one_line() {
        for name in ["a", "users 2026", "\u{e4}"] {
            check_name(name).unwrap();
        }
        for name in ["", "a\nb", "a\tb", &"a".repeat(256)] {
            assert_eq!(check_name(name).unwrap_err().exit_code(), 2, "{name:?}");
        }
    }

    #[test]
    fn switches_belong_to_their_kind() {
        let two = words(&["fused=off", "two-level=on"]);
        assert_eq!(switches(IndexKind::Sherman, &two).unwrap(), [("fused", false), ("two_level", true)]);
        let error = switches(IndexKind::Smart, &two).unwrap_err().one_line();
        assert!(error.contains("smart has no technique 'two-level': it has lock_free_nodes, "), "{error}");
        let error = switches(IndexKind::Sherman, &words(&["rear_lock=on"])).unwrap_err().one_line();
        assert!(error.contains("sherman has no technique 'rear_lock': it has combine, on_chip, "), "{error}");
    }

    #[test]
    fn a_spec_has_the_switches_that_are_named() {
        let limits = Limits { max_key: 8, max_value: 8 };
        for &kind in IndexKind::ALL {
            let spec = spec(kind, limits, &words(&["delegation=off", "combining=on"])).unwrap();
            let switched = (spec.technique("delegation"), spec.technique("combining"));
            assert_eq!(switched, (Some(false), Some(true)), "{kind}");
        }
        assert!(spec(IndexKind::Smart, limits, &words(&["two_level=on"])).is_err());
    }

    #[test]
    fn limits_that_make_no_node_are_refused() {
        for &kind in IndexKind::ALL {
            for (max_key, max_value) in [(1 << 20, 8), (8, 1 << 20)] {
                let error = spec(kind, Limits { max_key, max_value }, &[]).unwrap_err();
                assert_eq!(error.exit_code(), 2, "{kind} {max_key} {max_value}");
            }
            assert!(spec(kind, kind.usual_limits(), &[]).is_ok());
        }
    }
}
