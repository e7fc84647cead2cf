//! Kinds of indexes on the command line: their names as values, and the help texts that differ from kind to kind. All
//! of it follows from the registry. It knows no kind.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use farwood::{IndexKind, Limits};

/// Makes the parser of the name of a kind. Help and errors list the names.
pub(super) fn parser() -> impl TypedValueParser<Value = IndexKind> {
    let names = IndexKind::ALL.iter().map(|kind| PossibleValue::new(kind.name()).help(kind.about()));
    PossibleValuesParser::new(names).map(|name| IndexKind::named(&name).expect("values are names of kinds"))
}

/// Explains an option for a limit of an index, with its default.
pub(super) fn limit_help(what: &str, limit: fn(Limits) -> usize) -> String {
    let usual = each(", ", |kind| format!("{kind} {}", limit(kind.usual_limits())));
    format!("{what} [default: {usual}]")
}

/// Explains the option that switches techniques: which there are, and which are on.
pub(super) fn techniques_help() -> String {
    let names = |kind: IndexKind, on: bool| {
        let techniques = kind.techniques().into_iter().filter(|(_, by_default)| *by_default == on);
        techniques.map(|(name, _)| name).collect::<Vec<_>>().join(", ")
    };
    let of = |kind: IndexKind| {
        let states = [(true, "on"), (false, "off")].map(|(on, state)| (names(kind, on), state));
        let told = states.iter().filter(|(names, _)| !names.is_empty());
        let told: Vec<_> = told.map(|(names, state)| format!("{names} [{state}]")).collect();
        format!("{kind}: {}", told.join(", "))
    };
    format!("Switch a technique of the index. {}", each("; ", of))
}

fn each(between: &str, told: impl Fn(IndexKind) -> String) -> String {
    IndexKind::ALL.iter().copied().map(told).collect::<Vec<_>>().join(between)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Request, parse};

    fn help(words: &[&str]) -> String {
        match parse([&["farwood"], words, &["--help"]].concat()) {
            // Lines are filled: what is on one and what on the next is not asked here.
            Ok(Request::Print(help)) => help.to_string().split_whitespace().collect::<Vec<_>>().join(" "),
            _ => panic!("help of {words:?}"),
        }
    }

    #[test]
    fn help_describes_every_kind() {
        for words in [&["bench"][..], &["create"], &["sim", "run"]] {
            let help = help(words);
            for kind in IndexKind::ALL {
                assert!(help.contains(&format!("- {kind}: {}", kind.about())), "{help}");
            }
        }
    }

    #[test]
    fn help_has_the_defaults_of_every_kind() {
        let (create, bench) = (help(&["create"]), help(&["bench"]));
        for kind in IndexKind::ALL {
            let Limits { max_key, max_value } = kind.usual_limits();
            for (what, limit) in [("key", max_key), ("value", max_value)] {
                let (_, told) =
                    create.split_once(&format!("Bytes of the longest {what} [default: ")).unwrap();
                let (told, _) = told.split_once(']').unwrap();
                assert!(told.split(", ").any(|told| told == format!("{kind} {limit}")), "{create}");
            }
            let (_, told) = bench.split_once(&format!("{kind}: ")).unwrap();
            assert!(kind.techniques().iter().all(|(name, _)| told.contains(name)), "{bench}");
        }
        assert!(bench.contains("two_level, fused [on], delegation, combining [off]"), "{bench}");
    }

    #[test]
    fn names_are_of_kinds() {
        let create = |name| parse(["farwood", "create", "t", "--fabric", "shm:a", "--index", name]);
        for kind in IndexKind::ALL {
            assert!(matches!(create(kind.name()), Ok(Request::Run(_))), "{kind}");
        }
        let error = create("btree").err().expect("there is no such").one_line();
        assert!(IndexKind::ALL.iter().all(|kind| error.contains(kind.name())), "{error}");
        assert!(error.contains("[possible values: ") && error.contains("--index"), "{error}");
    }
}
