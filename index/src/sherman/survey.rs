//! The shape of a tree: the walk of `check.rs`, without a look at locks and entries.

use std::collections::BTreeSet;
use std::rc::Rc;

use farwood_runtime::{Meter, Verbs};

use super::Tree;
use super::check::{Depth, Terms, Walk};
use crate::check::CheckReport;
use crate::error::IndexError;
use crate::range_index::Survey;

/// Walks the tree. What is wrong on the way is an error: its shape would mean nothing.
pub(super) async fn run<V: Verbs>(tree: &Rc<Tree<V>>) -> Result<Survey, IndexError> {
    let meter = Meter::default();
    // Writers may be at work: a torn node is read again for as long as the budget lasts.
    let terms = Terms { depth: Depth::Shape, rereads: u32::MAX, exempt: BTreeSet::new() };
    let report = Walk::new(tree, &meter, terms, CheckReport::new(1)).run(|_, _| {}).await?;
    match report.violations.first() {
        None => Ok(report.survey),
        Some(violation) => {
            Err(IndexError::Corrupt { node: violation.node, what: violation.broken.to_string() })
        }
    }
}
