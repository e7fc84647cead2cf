//! Kinds by their names, and specs by the names of their techniques: what needs no list of all kinds.

use std::fmt;

use super::{IndexKind, IndexSpec};
use crate::shell::options::Options;
use crate::shell::techniques::Switches;

impl IndexKind {
    /// Yields the kind with that name, if there is one.
    ///
    /// ```
    /// # use farwood_index::IndexKind;
    /// assert_eq!(IndexKind::named("smart"), Some(IndexKind::Smart));
    /// assert_eq!(IndexKind::named("warp"), None);
    /// ```
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

impl IndexSpec {
    /// Changes the options of this compute node.
    ///
    #[doc = example!(
        "let changed = spec.with_options(|options| options.retries_max = 9);",
        "assert_eq!(changed.options().retries_max, 9);"
    )]
    pub fn with_options(mut self, change: impl FnOnce(&mut Options<dyn Switches>)) -> Self {
        change(self.options_mut());
        self
    }

    /// Tells whether the technique with that name is on, if there is one.
    ///
    #[doc = example!(r#"assert_eq!((spec.technique("fused"), spec.technique("warp")), (Some(true), None));"#)]
    pub fn technique(&self, name: &str) -> Option<bool> {
        self.techniques().into_iter().find(|(known, _)| *known == name).map(|(_, on)| on)
    }

    /// Switches all techniques off.
    ///
    #[doc = example!("assert!(spec.without_techniques().techniques().iter().all(|(_, on)| !on));")]
    pub fn without_techniques(mut self) -> Self {
        for (name, _) in self.techniques() {
            self.set_technique(name, false);
        }
        self
    }
}

impl Default for IndexKind {
    fn default() -> Self {
        Self::ALL[0]
    }
}

impl fmt::Display for IndexKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
