//! Made-up levels of nodes: what the walk asks for next, and what it finds.

use farwood_runtime::ServerId;

use super::*;

fn ptr(n: u64) -> RemotePtr {
    RemotePtr::new(ServerId(0), 64 * n)
}

fn key(bytes: &[u8]) -> Bytes {
    Bytes::from_slice(bytes)
}

/// Makes a node from `low` to `high` with right neighbour `sibling` (0 for none).
fn node(level: u8, low: &[u8], high: Option<&[u8]>, sibling: u64) -> ObservedNode {
    ObservedNode {
        level,
        low: key(low),
        high: high.map(key),
        sibling: ptr(sibling),
        children: Vec::new(),
        block_bytes: 0,
        blocks: Vec::new(),
        keys: 0,
        pairs: Vec::new(),
        faults: Vec::new(),
    }
}

/// Makes the leaves' level under a root, 1, with these separators.
fn leaves_under(separators: &[(&[u8], u64)]) -> Level {
    let mut top = Level::top(1, ptr(1000), ptr(1));
    let children = separators.iter().map(|(separator, child)| (key(separator), ptr(*child))).collect();
    let root = ObservedNode { children, ..node(1, b"", None, 0) };
    let (visited, mut report) = (BTreeSet::new(), CheckReport::new(100));
    let start = top.next_start(&visited, &mut report).unwrap();
    assert_eq!((start.to, start.link), (ptr(1), Link::Root));
    let visited = BTreeSet::from([ptr(1)]);
    assert_eq!(top.meet(&start, &root, &visited, &mut report), None);
    assert_eq!(top.next_start(&visited, &mut report), None);
    top.finish(&visited, &mut report);
    assert!(report.violations.is_empty() && report.missing_separators.is_empty());
    top.into_below().unwrap()
}

/// Walks over `nodes` by number; one that is not there cannot be read.
fn walk(mut level: Level, nodes: &[(u64, ObservedNode)]) -> (Vec<(u64, Broken)>, CheckReport) {
    let mut visited = BTreeSet::from([ptr(1)]);
    let mut report = CheckReport::new(100);
    while let Some(start) = level.next_start(&visited, &mut report) {
        let mut step = Some(start);
        while let Some(here) = step {
            assert!(visited.insert(here.to), "{} is read twice", here.to);
            let found = nodes.iter().find(|(n, _)| ptr(*n) == here.to);
            step = match found {
                Some((_, seen)) => level.meet(&here, seen, &visited, &mut report),
                None => level.lost(&here, (Rejection::Freed, None), false, &visited, &mut report),
            };
        }
    }
    level.finish(&visited, &mut report);
    let found = report.violations.iter().map(|found| (found.node.offset() / 64, found.broken.clone()));
    (found.collect(), report)
}

/// Makes nodes 2, 3, 4 and 5, from "", "d", "h" and "p" on.
fn healthy() -> (Level, [(u64, ObservedNode); 4]) {
    let level = leaves_under(&[(b"", 2), (b"d", 3), (b"h", 4), (b"p", 5)]);
    let nodes = [
        (2, node(0, b"", Some(b"d"), 3)),
        (3, node(0, b"d", Some(b"h"), 4)),
        (4, node(0, b"h", Some(b"p"), 5)),
        (5, node(0, b"p", None, 0)),
    ];
    (level, nodes)
}

#[test]
fn a_healthy_level_and_one_that_is_owed_a_separator() {
    let (level, nodes) = healthy();
    let (found, report) = walk(level, &nodes);
    assert!(found.is_empty() && report.missing_separators.is_empty());
    let (found, report) = walk(leaves_under(&[(b"", 2), (b"d", 3), (b"p", 5)]), &nodes);
    assert_eq!(found, []);
    let missing = MissingSeparator { node: ptr(4), level: 0, separator: key(b"h"), parent: ptr(1) };
    assert_eq!(report.missing_separators[..], [missing]);
}

#[test]
fn the_level_above_tells_whose_fence_is_wrong() {
    let (level, mut nodes) = healthy();
    nodes[1].1.high = Some(key(b"g"));
    let high = Broken::HighFence { high: key(b"g"), sibling: ptr(4), low: key(b"h") };
    assert_eq!(walk(level, &nodes).0, [(3, high)]);
    let (level, mut nodes) = healthy();
    nodes[2].1.low = key(b"i");
    let low = Broken::LowFence { low: key(b"i"), expected: key(b"h"), from: ptr(3) };
    assert_eq!(walk(level, &nodes).0, [(4, low)]);
    let (level, mut nodes) = healthy();
    nodes[0].1.low = key(b"a");
    let low = Broken::LowFence { low: key(b"a"), expected: key(b""), from: ptr(1) };
    assert_eq!(walk(level, &nodes).0, [(2, low)]);
}

#[test]
fn the_ends_of_a_level() {
    let (level, mut nodes) = healthy();
    nodes[3].1.high = Some(key(b"x"));
    assert_eq!(walk(level, &nodes).0, [(5, Broken::NoSibling { high: key(b"x") })]);
    let (level, mut nodes) = healthy();
    nodes[1].1.high = None;
    assert_eq!(walk(level, &nodes).0, [(3, Broken::NoHighFence { sibling: ptr(4) })]);
    // The walk goes on where the level above knows more.
    let (level, mut nodes) = healthy();
    nodes[1].1.sibling = RemotePtr::NULL;
    assert_eq!(walk(level, &nodes).0, [(3, Broken::NoSibling { high: key(b"h") })]);
}

#[test]
fn sibling_pointers_that_lead_back_or_too_far() {
    for (from, to) in [(4, 2), (4, 3), (4, 4), (5, 2)] {
        let (level, mut nodes) = healthy();
        nodes[from as usize - 2].1.sibling = ptr(to);
        let (found, _) = walk(level, &nodes);
        let revisited = (from, Broken::Revisited { sibling: ptr(to) });
        assert!(found.contains(&revisited) && found.iter().all(|(node, _)| *node == from), "{found:?}");
    }
    let (level, mut nodes) = healthy();
    nodes[0].1.sibling = ptr(4);
    let far = Broken::HighFence { high: key(b"d"), sibling: ptr(4), low: key(b"h") };
    assert_eq!(walk(level, &nodes).0, [(2, far), (3, Broken::OffChain { parent: ptr(1) })]);
}

#[test]
fn child_pointers_to_the_wrong_node() {
    let wrong = |separator, child, begins: u64| {
        let begins = (begins > 0).then(|| ptr(begins));
        (1, Broken::WrongChild { separator: key(separator), child: ptr(child), begins })
    };
    let (_, nodes) = healthy();
    let found = |separators: &[(&[u8], u64)]| walk(leaves_under(separators), &nodes).0;
    assert_eq!(found(&[(b"", 2), (b"d", 3), (b"h", 5), (b"p", 5)]), [wrong(b"h", 5, 4)]);
    assert_eq!(found(&[(b"", 2), (b"d", 3), (b"h", 99), (b"p", 5)]), [wrong(b"h", 99, 4)]);
    assert_eq!(found(&[(b"", 2), (b"d", 3), (b"i", 4), (b"p", 5)]), [wrong(b"i", 4, 0)]);
    // A node of the level above, and one further right as the leftmost.
    assert_eq!(found(&[(b"", 2), (b"d", 1), (b"h", 4), (b"p", 5)]), [wrong(b"d", 1, 3)]);
    assert_eq!(found(&[(b"", 4), (b"d", 3), (b"h", 4), (b"p", 5)]), [wrong(b"", 4, 0)]);
}

#[test]
fn a_node_that_cannot_be_read_is_walked_around() {
    let (level, nodes) = healthy();
    let rest: Vec<_> = nodes.into_iter().filter(|(n, _)| *n != 3).collect();
    let (found, report) = walk(level, &rest);
    assert_eq!(found, [(3, Broken::Unreadable { rejection: Rejection::Freed, from: ptr(2) })]);
    assert!(report.missing_separators.is_empty());
}

#[test]
fn a_torn_node_shows_the_way_on_and_is_exempt_under_a_dead_lock() {
    for exempt in [false, true] {
        let (mut level, nodes) = healthy();
        let (mut visited, mut report) = (BTreeSet::new(), CheckReport::new(100));
        let start = level.next_start(&visited, &mut report).unwrap();
        visited.insert(ptr(2));
        let to_3 = level.meet(&start, &nodes[0].1, &visited, &mut report).unwrap();
        visited.insert(ptr(3));
        let line_0 = Glimpse { kind: crate::layout::Kind::Leaf, level: 0, sibling: ptr(4) };
        let torn = (Rejection::Torn, Some(line_0));
        let to_4 = level.lost(&to_3, torn, exempt, &visited, &mut report).unwrap();
        assert_eq!((to_4.to, &to_4.expected), (ptr(4), &None));
        visited.insert(ptr(4));
        assert!(level.meet(&to_4, &nodes[2].1, &visited, &mut report).is_some());
        assert_eq!((report.violations.total(), report.torn.total()), (u64::from(!exempt), u64::from(exempt)));
    }
}

/// The claims of a node that cannot be read are unknown: none of its children counts as missing its separator.
#[test]
fn what_a_lost_parent_claims_is_unknown() {
    let mut level = leaves_under(&[(b"", 2), (b"h", 4)]);
    level.parents.clear();
    level.parents.insert(key(b""), (ptr(1), Some(key(b"d"))));
    let (_, nodes) = healthy();
    let (found, report) = walk(level, &nodes);
    assert!(found.is_empty() && report.missing_separators.is_empty());
}

#[test]
fn other_levels_than_the_way_there_says() {
    let (level, mut nodes) = healthy();
    nodes[2].1.level = 3;
    assert_eq!(walk(level, &nodes).0, [(4, Broken::Level { found: 3 })]);
}

#[test]
fn wrong_addresses_are_the_fault_of_the_node_that_has_them() {
    let (mut level, nodes) = healthy();
    let (mut visited, mut report) = (BTreeSet::new(), CheckReport::new(100));
    let start = level.next_start(&visited, &mut report).unwrap();
    level.astray(&start, AddressFault::Misaligned, &mut report);
    let start = level.next_start(&visited, &mut report).unwrap();
    assert_eq!(start.to, ptr(3));
    visited.insert(ptr(3));
    let next = level.meet(&start, &nodes[1].1, &visited, &mut report).unwrap();
    level.astray(&next, AddressFault::OutsideRegion, &mut report);
    let found: Vec<_> = report.violations.iter().map(|found| (found.node, found.level)).collect();
    assert_eq!(found, [(ptr(1), Some(1)), (ptr(3), Some(0))]);
}
