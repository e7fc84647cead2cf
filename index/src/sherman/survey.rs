//! The shape of a tree, found by walking every level along its sibling pointers. Checks on the way that fences meet.

use std::rc::Rc;

use farwood_runtime::{Meter, RemotePtr, Verbs};

use super::Tree;
use crate::error::IndexError;
use crate::layout::{Bytes, Header, Rejection};
use crate::range_index::Survey;
use crate::step::Budget;

/// Walks the tree.
pub(super) async fn run<V: Verbs>(tree: &Rc<Tree<V>>) -> Result<Survey, IndexError> {
    let meter = Meter::default();
    let Some(root) = tree.read_root(&meter).await? else { return Ok(Survey::default()) };
    let mut survey = Survey { height: root.level + 1, ..Survey::default() };
    let mut leftmost = root.ptr;
    for level in (0..=root.level).rev() {
        leftmost = walk_level(tree, &meter, level, leftmost, &mut survey).await?;
    }
    let slots = survey.leaves * tree.leaf().slots() as u64;
    survey.load_factor = survey.keys as f64 / slots as f64;
    survey.used_bytes = survey.leaves * tree.leaf().node_bytes() as u64
        + survey.inner_nodes * tree.inner().node_bytes() as u64;
    Ok(survey)
}

/// What one node contributes.
struct Seen {
    low: Bytes,
    high: Option<Bytes>,
    sibling: RemotePtr,
    keys: u64,
    first_child: Option<RemotePtr>,
}

impl Seen {
    fn of(header: &Header<'_>, level: u8, keys: u64, first_child: Option<RemotePtr>) -> Option<Self> {
        let seen =
            Seen { low: header.low(), high: header.high(), sibling: header.sibling(), keys, first_child };
        (header.level() == level).then_some(seen)
    }
}

/// Walks one level from its leftmost node; yields the leftmost node of the level below.
async fn walk_level<V: Verbs>(
    tree: &Rc<Tree<V>>,
    meter: &Meter,
    level: u8,
    leftmost: RemotePtr,
    survey: &mut Survey,
) -> Result<RemotePtr, IndexError> {
    let mut budget = tree.budget();
    let mut node = leftmost;
    let mut expected = Some(Bytes::new());
    let mut below = RemotePtr::NULL;
    while !node.is_null() {
        let seen = read(tree, meter, level, node, &mut budget).await?;
        if Some(&seen.low) != expected.as_ref() {
            return Err(IndexError::Corrupt {
                node,
                what: "its low fence is not its neighbour's high one".into(),
            });
        }
        if level == 0 {
            survey.leaves += 1;
            survey.keys += seen.keys;
        } else {
            survey.inner_nodes += 1;
        }
        if node == leftmost {
            below = seen.first_child.unwrap_or(RemotePtr::NULL);
        }
        expected = seen.high;
        node = seen.sibling;
    }
    if expected.is_some() {
        return Err(IndexError::Corrupt { node: leftmost, what: format!("level {level} ends too early") });
    }
    Ok(below)
}

/// Reads a node until it can be trusted. One round trip per attempt.
async fn read<V: Verbs>(
    tree: &Rc<Tree<V>>,
    meter: &Meter,
    level: u8,
    node: RemotePtr,
    budget: &mut Budget,
) -> Result<Seen, IndexError> {
    let bytes = if level == 0 { tree.leaf().node_bytes() } else { tree.inner().node_bytes() };
    loop {
        let read = tree.verbs.read(meter, node, bytes).await?;
        let timely = tree.node_version_holds(read.span_ns);
        let image = read.into_buf();
        let rejection = match look(tree, level, &image) {
            Ok(Some(seen)) if timely => return Ok(seen),
            Ok(Some(_)) => None,
            Ok(None) => {
                return Err(IndexError::Corrupt { node, what: format!("it is not of level {level}") });
            }
            Err(rejection @ (Rejection::Torn | Rejection::Malformed(_))) => Some(rejection),
            Err(rejection) => return Err(IndexError::Corrupt { node, what: rejection.to_string() }),
        };
        budget.spend(meter, node, rejection)?;
    }
}

fn look<V: Verbs>(tree: &Tree<V>, level: u8, image: &[u8]) -> Result<Option<Seen>, Rejection> {
    if level == 0 {
        let leaf = tree.leaf().view(image)?;
        return Ok(Seen::of(leaf.header(), level, leaf.len() as u64, None));
    }
    let inner = tree.inner().view(image)?;
    let first = inner.entries().next().transpose()?;
    Ok(Seen::of(inner.header(), level, 0, first.map(|(_, child)| child)))
}
