//! The kinds of indexes and their switches, by name. Knows nothing of sizes and clusters.

use farwood::Switches;
use farwood::index::{sherman, smart};
use farwood::{AnyIndex, Verbs};

use crate::error::CliError;

/// A kind of index that this release has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sherman,
    Smart,
}

/// Kinds that are planned, by name.
const LATER: [&str; 2] = ["chime", "dolphin"];

impl Kind {
    /// All of them, the default first.
    pub(crate) const ALL: [Kind; 2] = [Kind::Sherman, Kind::Smart];

    /// The name on the command line, in catalogs and in results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Sherman => sherman::KIND,
            Kind::Smart => smart::KIND,
        }
    }

    /// The kind of that name.
    ///
    /// # Errors
    /// If there is none in this release.
    pub(crate) fn parse(name: &str) -> Result<Kind, CliError> {
        let known = || Kind::ALL.map(Kind::name).join(" or ");
        match Kind::ALL.into_iter().find(|kind| kind.name() == name) {
            Some(kind) => Ok(kind),
            None if LATER.contains(&name) => {
                Err(CliError::Usage(format!("the index {name} is not in this release: choose {}", known())))
            }
            None => Err(CliError::Usage(format!("there is no index '{name}': choose {}", known()))),
        }
    }

    /// The kind of that index.
    pub(crate) fn of<V: Verbs>(index: &AnyIndex<V>) -> Kind {
        match index {
            AnyIndex::Sherman(_) => Kind::Sherman,
            AnyIndex::Smart(_) => Kind::Smart,
            _ => unreachable!("the command opens no other kind"),
        }
    }

    /// What a survey's load factor is about: the nodes that have room for more.
    pub(crate) fn filled(self) -> &'static str {
        match self {
            Kind::Sherman => "leaves",
            Kind::Smart => "inner nodes",
        }
    }

    /// The names of its switches.
    pub(crate) fn techniques(self) -> &'static [&'static str] {
        match self {
            Kind::Sherman => sherman::Techniques::NAMES,
            Kind::Smart => smart::Techniques::NAMES,
        }
    }

    /// What `--technique NAME=on|off` of an index of this kind mean, in the order in which they were written.
    ///
    /// # Errors
    /// If one of them is no switch of this kind.
    pub(crate) fn switches(self, words: &[String]) -> Result<Vec<(&'static str, bool)>, CliError> {
        words.iter().map(|word| self.switch(word)).collect()
    }

    fn switch(self, word: &str) -> Result<(&'static str, bool), CliError> {
        let Some((name, state)) = word.split_once('=') else {
            return Err(CliError::Usage(format!("--technique {word}: write NAME=on or NAME=off")));
        };
        let on = match state {
            "on" => true,
            "off" => false,
            _ => {
                let message = format!("--technique {word}: '{state}' is neither on nor off");
                return Err(CliError::Usage(message));
            }
        };
        // Both two_level and two-level are what people type.
        let spelled = name.replace('-', "_");
        let known = self.techniques();
        match known.iter().find(|known| **known == spelled) {
            Some(name) => Ok((name, on)),
            None => Err(CliError::Usage(format!(
                "{} has no technique '{name}': it has {}",
                self.name(),
                known.join(", ")
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_names() {
        for kind in Kind::ALL {
            assert_eq!(Kind::parse(kind.name()).unwrap(), kind);
        }
        for (name, part) in
            [("chime", "not in this release: choose sherman or smart"), ("btree", "choose sherman")]
        {
            assert!(Kind::parse(name).unwrap_err().one_line().contains(part), "{name}");
        }
    }

    #[test]
    fn switches_belong_to_their_kind() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let two = words(&["fused=off", "two-level=on"]);
        assert_eq!(Kind::Sherman.switches(&two).unwrap(), [("fused", false), ("two_level", true)]);
        let error = Kind::Smart.switches(&two).unwrap_err().one_line();
        assert!(error.contains("smart has no technique 'two-level': it has lock_free_nodes, "), "{error}");
        let error = Kind::Sherman.switches(&words(&["rear_lock=on"])).unwrap_err().one_line();
        assert!(error.contains("sherman has no technique 'rear_lock': it has combine, on_chip, "), "{error}");
    }
}
