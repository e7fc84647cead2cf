//! A check of an index at rest: healthy trees pass, and every kind of damage, done by raw WRITEs behind the index's
//! back, is named with its node.

use std::collections::{BTreeMap, BTreeSet};

use farwood::index::check::{AddressFault, Broken, CheckOptions, Pairs};
use farwood::index::layout::{Malformed, NodeHeader, Rejection, bump_node_version};
use farwood::lock::{LockConfig, LockTable, LockWord};
use farwood::runtime::{Port, RemotePtr, ServerId};
use farwood::sherman::Options;
use farwood::{AccessError, AnyIndex, RangeIndex, Shard, Sherman, ShermanIndex, Verbs};
use futures::executor::block_on;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::kit;
use crate::kit::damaged_tree::{
    CHILD, HIGH, HIGH_LEN, LEVEL, LOW, SEPARATOR, SIBLING, lines, names, unreadable, with_damaged_tree,
};
use crate::kit::{NAME, TINY, TestShard, key, with_tree};

/// Asserts that the check finds what the tests' own walker finds.
async fn both_agree(shard: &TestShard, index: &ShermanIndex<TestShard>, model: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let mut pairs = Pairs::default();
    let mut ascending = Vec::new();
    let index = AnyIndex::from(index.clone());
    let visit = |key: &[u8], value: &[u8]| {
        assert!(pairs.insert(key, value), "{key:?} twice");
        ascending.push(key.to_vec());
    };
    let report = index.check_each(&CheckOptions::default(), visit).await.unwrap();
    assert!(report.is_intact(), "{}", lines(&report));
    let found = kit::tree::read(shard, NAME, TINY).await;
    assert!(pairs.iter().eq(found.pairs.iter().map(|(key, value)| (&key[..], &value[..]))));
    assert!(pairs.missing(model.keys()).is_empty() && pairs.len() == model.len());
    assert!(ascending.is_sorted());
    assert_eq!(report.missing_separators.total(), found.orphans as u64);
    assert_eq!(report.survey, index.survey().await.unwrap());
    let leaves = found.levels.first().map_or(0, |leaves| *leaves as u64);
    let nodes: usize = found.levels.iter().sum();
    assert_eq!(usize::from(report.survey.height), found.levels.len());
    assert_eq!(
        (report.survey.leaves, report.survey.leaves + report.survey.inner_nodes),
        (leaves, nodes as u64)
    );
    assert_eq!(report.survey.keys, model.len() as u64);
}

#[test]
fn healthy_trees_pass_and_both_walkers_agree() {
    with_tree(1, TINY, Options::default(), |shard, index| async move {
        let mut model = BTreeMap::new();
        both_agree(&shard, &index, &model).await;
        index.put(&key(7), &key(8)).await.unwrap();
        model.insert(key(7).to_vec(), key(8).to_vec());
        both_agree(&shard, &index, &model).await;
        let mut rng = SmallRng::seed_from_u64(1);
        for step in 0..2000 {
            let (k, v) = (key(rng.random_range(0..300)), key(step));
            if rng.random_bool(0.3) {
                index.remove(&k).await.unwrap();
                model.remove(&k[..]);
            } else {
                index.put(&k, &v).await.unwrap();
                model.insert(k.to_vec(), v.to_vec());
            }
            if step % 400 == 399 {
                kit::at_rest(&shard, &index).await;
                both_agree(&shard, &index, &model).await;
            }
        }
        assert!(index.survey().await.unwrap().height >= 3);
        kit::at_rest(&shard, &index).await;
    });
}

/// Keys that were acknowledged are in the tree, and a client that knows nothing yet finds them.
#[test]
fn every_key_is_found_by_the_walk_and_from_a_cold_cache() {
    let cluster = kit::cluster();
    let first = kit::node(&cluster, 1);
    let tree = block_on(Sherman::create(&first, NAME, TINY, Options::default())).unwrap();
    let pairs = (0..500).map(|n| (key(n), key(n))).collect::<Vec<_>>();
    let loaded = pairs.clone();
    first
        .run(move |shard| {
            let (index, pairs) = (tree.attach(TestShard::Node(shard)), loaded.clone());
            async move { index.bulk_load(pairs, 0.8).await.unwrap() }
        })
        .unwrap();
    let second = kit::node(&cluster, 1);
    let tree = block_on(Sherman::open(&second, NAME, Options::default())).unwrap();
    let main = move |shard: Shard| {
        let (index, keys) =
            (tree.attach(TestShard::Node(shard)), pairs.iter().map(|(key, _)| *key).collect::<Vec<_>>());
        async move {
            let cold = index.stats().cache;
            let mut found = Pairs::default();
            let visit = |key: &[u8], value: &[u8]| assert!(found.insert(key, value));
            let report = index.check_each(&CheckOptions::default(), visit).await.unwrap();
            assert!(report.is_intact() && found.missing(&keys).is_empty());
            assert_eq!(found.missing([key(3), key(500)]), [key(500)]);
            assert_eq!(index.stats().cache, cold, "a check warms no cache");
            for key in &keys {
                assert_eq!(index.get(key).await.unwrap().as_deref(), Some(&key[..]));
            }
        }
    };
    second.run(main).unwrap();
}

#[test]
fn damaged_fences() {
    with_damaged_tree(|tree| async move {
        for node in [tree.leaf(3), tree.inner(1)] {
            let swap = |image: &mut [u8]| {
                let (low, high) = image[LOW..HIGH + 8].split_at_mut(8);
                low.swap_with_slice(high);
            };
            let out_of_order = Rejection::Malformed(Malformed::FenceOrder);
            tree.blames(node, swap, |broken| unreadable(broken) == Some(out_of_order)).await;
            let raise = |at: usize| move |image: &mut [u8]| image[at + 7] ^= 1;
            names(&tree.damaged(node, raise(LOW)).await, node, |b| matches!(b, Broken::LowFence { .. }));
            names(&tree.damaged(node, raise(HIGH)).await, node, |b| matches!(b, Broken::HighFence { .. }));
            let no_end = |image: &mut [u8]| image[HIGH_LEN..][..2].fill(0xff);
            tree.blames(node, no_end, |b| matches!(b, Broken::NoHighFence { .. })).await;
            let too_long = |image: &mut [u8]| image[HIGH_LEN] = 99;
            let length = Rejection::Malformed(Malformed::FenceLength);
            tree.blames(node, too_long, |broken| unreadable(broken) == Some(length)).await;
        }
        let (first, last) = (tree.leaf(0), *tree.levels[0].last().unwrap());
        let low = |image: &mut [u8]| image[LOW - 4] = 8;
        tree.blames(first, low, |b| matches!(b, Broken::LowFence { .. })).await;
        let high = |image: &mut [u8]| {
            image[HIGH_LEN..][..2].copy_from_slice(&[8, 0]);
            image[HIGH..][..8].fill(0xff);
        };
        tree.blames(last, high, |b| matches!(b, Broken::NoSibling { .. })).await;
    });
}

#[test]
fn wrong_levels() {
    with_damaged_tree(|tree| async move {
        let level = Rejection::Malformed(Malformed::Level);
        let set = |level: u8| move |image: &mut [u8]| image[LEVEL] = level;
        tree.blames(tree.leaf(2), set(1), |broken| unreadable(broken) == Some(level)).await;
        tree.blames(tree.inner(1), set(0), |broken| unreadable(broken) == Some(level)).await;
        tree.blames(tree.inner(1), set(2), |broken| *broken == Broken::Level { found: 2 }).await;
        let word = tree.word(tree.root_word).await;
        let true_level = tree.levels.len() as u8 - 1;
        for wrong in [0, true_level - 1, true_level + 1, 63] {
            tree.write(tree.root_word, &(word & !0x3f | u64::from(wrong)).to_le_bytes()).await;
            let report = tree.check().await;
            let expected = Broken::RootLevel { word: wrong, found: true_level };
            names(&report, tree.root(), |broken| *broken == expected);
            assert_eq!(report.violations.total(), 1, "{}", lines(&report));
            assert_eq!(report.survey.keys, 150);
        }
        tree.write(tree.root_word, &word.to_le_bytes()).await;
    });
}

#[test]
fn damaged_keys() {
    with_damaged_tree(|tree| async move {
        let leaf = tree.leaf(4);
        let report = tree.rebuilt(leaf, |pairs| pairs[1].0 = pairs[0].0.clone()).await;
        names(&report, leaf, |broken| matches!(broken, Broken::DuplicateKey { .. }));
        assert_eq!(report.violations.total(), 1, "{}", lines(&report));
        for outside in [key(0), key(u64::MAX)] {
            let report = tree.rebuilt(leaf, |pairs| pairs[0].0 = outside.to_vec()).await;
            names(&report, leaf, |broken| matches!(broken, Broken::KeyOutside { key } if key[..] == outside));
        }
        // Separators: the first is not the low fence, the second outside, or not above the first.
        let inner = tree.inner(1);
        let first = |image: &mut [u8]| image[SEPARATOR + 7] ^= 1;
        names(&tree.damaged(inner, first).await, inner, |b| matches!(b, Broken::FirstSeparator { .. }));
        // Entry 1 begins 17 bytes further and crosses into line 1 within its child.
        let second = |byte| move |image: &mut [u8]| image[SEPARATOR + 17..][..7].fill(byte);
        names(&tree.damaged(inner, second(0xff)).await, inner, |b| {
            matches!(b, Broken::SeparatorOutside { .. })
        });
        let same = |image: &mut [u8]| image.copy_within(SEPARATOR..SEPARATOR + 7, SEPARATOR + 17);
        let report = tree.damaged(inner, same).await;
        assert!(report.violations.iter().any(|found| found.node == inner), "{}", lines(&report));
    });
}

#[test]
fn torn_nodes_and_entries() {
    with_damaged_tree(|tree| async move {
        let torn = |broken: &Broken| unreadable(broken) == Some(Rejection::Torn);
        for node in [tree.leaf(3), tree.inner(1), tree.root()] {
            tree.blames(node, |image| image[64] ^= 1, torn).await;
        }
        // Entry 1 reaches from line 0 into line 1, whose control word has its version.
        let entry_torn = Broken::Entry(Rejection::Torn);
        tree.blames(tree.leaf(3), |image| image[65] ^= 8, |broken| *broken == entry_torn).await;
    });
}

#[test]
fn siblings_that_lead_back_and_children_that_lead_elsewhere() {
    with_damaged_tree(|tree| async move {
        let point = |at: usize, to: RemotePtr| {
            move |image: &mut [u8]| image[at..at + 8].copy_from_slice(&to.to_bits().to_le_bytes())
        };
        let last = *tree.levels[0].last().unwrap();
        for (node, to) in [(tree.leaf(5), tree.leaf(2)), (tree.leaf(5), tree.leaf(5)), (last, tree.leaf(0))] {
            let back = |broken: &Broken| *broken == Broken::Revisited { sibling: to };
            tree.blames(node, point(SIBLING, to), back).await;
        }
        let skips = tree.damaged(tree.leaf(2), point(SIBLING, tree.leaf(4))).await;
        names(&skips, tree.leaf(2), |broken| matches!(broken, Broken::HighFence { .. }));
        names(&skips, tree.leaf(3), |broken| matches!(broken, Broken::OffChain { .. }));
        // The second inner node's first child becomes a leaf elsewhere, an inner node, the root, nothing at all.
        let (parent, elsewhere) = (tree.inner(1), tree.leaf(1));
        for to in [elsewhere, last, tree.inner(0), tree.root(), RemotePtr::new(ServerId(1), 1 << 20)] {
            tree.blames(
                parent,
                point(CHILD, to),
                |b| matches!(b, Broken::WrongChild { child, .. } if *child == to),
            )
            .await;
        }
    });
}

#[test]
fn addresses_that_are_none() {
    with_damaged_tree(|tree| async move {
        let server = tree.leaf(3).server();
        let end = tree.shard.control().servers()[usize::from(server.0)].region_bytes;
        for (to, expected) in [
            (RemotePtr::new(server, end), AddressFault::OutsideRegion),
            (RemotePtr::new(server, end - 64), AddressFault::OutsideRegion),
            (RemotePtr::new(server, (1 << 48) - 64), AddressFault::OutsideRegion),
            (RemotePtr::new(ServerId(77), 64), AddressFault::NoSuchServer),
            (tree.leaf(4).add(8), AddressFault::Misaligned),
            (tree.leaf(4).add(1), AddressFault::Misaligned),
        ] {
            let bits = to.to_bits().to_le_bytes();
            let is = |broken: &Broken| match broken {
                Broken::Address { fault, to: found, .. } => (*fault, *found) == (expected, to),
                _ => false,
            };
            let sibling = |image: &mut [u8]| image[SIBLING..][..8].copy_from_slice(&bits);
            tree.blames(tree.leaf(3), sibling, is).await;
            tree.blames(tree.inner(0), sibling, is).await;
            // The leftmost child: no other way leads to that leaf. One that is not aligned is no child at all.
            let child = |image: &mut [u8]| image[CHILD..][..8].copy_from_slice(&bits);
            let misaligned = Broken::Entry(Malformed::MisalignedChild { slot: 0 }.into());
            match expected {
                AddressFault::Misaligned => {
                    let report = tree.damaged(tree.inner(0), child).await;
                    names(&report, tree.inner(0), |broken| *broken == misaligned);
                }
                _ => tree.blames(tree.inner(0), child, is).await,
            }
        }
        let word = tree.word(tree.root_word).await;
        for (root, expected) in [
            (7, AddressFault::Null),
            (RemotePtr::new(server, end).to_bits(), AddressFault::OutsideRegion),
            (u64::MAX, AddressFault::NoSuchServer),
        ] {
            tree.write(tree.root_word, &root.to_le_bytes()).await;
            let report = tree.check().await;
            names(
                &report,
                tree.root_word,
                |b| matches!(b, Broken::Address { fault, .. } if *fault == expected),
            );
        }
        tree.write(tree.root_word, &word.to_le_bytes()).await;
    });
}

#[test]
fn garbage() {
    with_damaged_tree(|tree| async move {
        for node in [tree.leaf(0), tree.leaf(3), tree.inner(0), tree.inner(1), tree.root()] {
            let not_a_node = |b: &Broken| matches!(unreadable(b), Some(Rejection::NotANode { .. }));
            tree.blames(node, |image| image.fill(0x55), not_a_node).await;
            tree.blames(node, |image| image.fill(0), not_a_node).await;
        }
        // Any byte, any bit: an end, and a report.
        let mut rng = SmallRng::seed_from_u64(2);
        for round in 0..300 {
            let level = rng.random_range(0..tree.levels.len());
            let node = tree.levels[level][rng.random_range(0..tree.levels[level].len())];
            let image = tree.read(node, tree.bytes(node)).await;
            let mut other = image.clone();
            for _ in 0..=round % 5 {
                let at = rng.random_range(0..other.len());
                other[at] = rng.random();
            }
            tree.write(node, &other).await;
            let report = tree.check().await;
            assert!(report.survey.leaves as usize <= tree.levels[0].len());
            if let Err(error) = tree.index.survey().await {
                assert!(matches!(error, AccessError::Corrupt { .. }) && !report.is_intact(), "{error}");
            }
            tree.write(node, &image).await;
        }
        tree.is_healthy().await;
    });
}

#[test]
fn survey_fails_on_a_broken_tree() {
    with_damaged_tree(|tree| async move {
        let node = tree.leaf(3);
        let image = tree.read(node, tree.bytes(node)).await;
        tree.write(node, &[0x55; 64]).await;
        let error = tree.index.survey().await.unwrap_err();
        assert!(matches!(error, AccessError::Corrupt { node: named, .. } if named == node), "{error}");
        tree.write(node, &image).await;
        assert_eq!(tree.index.survey().await.unwrap().keys, 150);
    });
}

#[test]
fn a_missing_separator_is_counted_and_no_violation() {
    with_damaged_tree(|tree| async move {
        let (_, layout) = TINY.layouts().unwrap();
        let (parent, orphan) = (tree.inner(0), tree.leaf(1));
        let image = tree.read(parent, layout.node_bytes()).await;
        let view = layout.view(&image).unwrap();
        let (low, high) = (view.header().low(), view.header().high());
        let header = NodeHeader {
            level: 1,
            low: &low,
            high: high.as_deref(),
            sibling: view.header().sibling(),
            incarnation: 0,
            node_version: view.header().node_version().next(),
        };
        let entries: Vec<_> =
            view.entries().map(Result::unwrap).filter(|(_, child)| *child != orphan).collect();
        let mut without = image.clone();
        layout.build(&mut without, &header, entries.iter().map(|(key, child)| (&key[..], *child)));
        tree.write(parent, &without).await;
        let report = tree.check().await;
        assert!(report.is_intact(), "{}", lines(&report));
        let missing = &report.missing_separators[0];
        assert_eq!((report.missing_separators.total(), missing.node, missing.parent), (1, orphan, parent));
        assert!(missing.to_string().starts_with(&format!("node {orphan} at level 0")), "{missing}");
        assert_eq!(kit::tree::read(&tree.shard, NAME, TINY).await.orphans, 1);
        assert_eq!(tree.index.survey().await.unwrap().keys, 150);
        tree.write(parent, &image).await;
    });
}

#[test]
fn locks_that_are_left_taken() {
    with_damaged_tree(|tree| async move {
        let locks = LockTable::attach(tree.shard.clone(), Port(4711), LockConfig::default());
        let word = LockWord::new(9, 0, 77);
        let (node, at) = (tree.leaf(3), locks.word_of(tree.leaf(3)));
        tree.write(at, &word.to_bits().to_le_bytes()).await;
        let report = tree.check().await;
        names(&report, at, |broken| *broken == Broken::LockHeld { word });
        assert!(report.violations.total() == 1 && report.orphaned.is_empty());
        let dead = CheckOptions { dead: BTreeSet::from([4, 9]), ..CheckOptions::default() };
        let report = tree.index.check(&dead).await.unwrap();
        assert!(report.is_intact() && report.torn.is_empty(), "{}", lines(&report));
        assert_eq!((report.orphaned.total(), report.orphaned[0].at, report.orphaned[0].word), (1, at, word));
        // Its owner died half-way through a write of the whole node, or of an entry.
        let image = tree.read(node, tree.bytes(node)).await;
        let mut next = image.clone();
        bump_node_version(&mut next);
        let half = [&next[..64], &image[64..]].concat();
        let mut half_an_entry = image.clone();
        half_an_entry[65] ^= 8;
        for torn in [half, half_an_entry] {
            tree.write(node, &torn).await;
            let report = tree.index.check(&dead).await.unwrap();
            assert!(report.is_intact(), "{}", lines(&report));
            assert_eq!(report.torn[..], [node]);
            let lost = 150 - report.survey.keys;
            assert!((1..=4).contains(&lost), "{lost} keys were lost with one leaf");
            assert_eq!(report.survey.leaves as usize, tree.levels[0].len());
            assert!(!tree.check().await.is_intact());
        }
        // Another lock's owner excuses nothing here.
        tree.write(at, &[0; 8]).await;
        let elsewhere =
            tree.levels[0].iter().map(|leaf| locks.word_of(*leaf)).find(|word| *word != at).unwrap();
        tree.write(elsewhere, &word.to_bits().to_le_bytes()).await;
        let report = tree.index.check(&dead).await.unwrap();
        names(&report, node, |broken| *broken == Broken::Entry(Rejection::Torn));
        tree.write(elsewhere, &[0; 8]).await;
        tree.write(node, &image).await;
        tree.is_healthy().await;
    });
}

#[test]
fn keeps_no_more_findings_than_asked_for() {
    with_damaged_tree(|tree| async move {
        for leaf in &tree.levels[0] {
            tree.write(*leaf, &[0; 64]).await;
        }
        let few = CheckOptions { kept_max: 3, ..CheckOptions::default() };
        let report = tree.index.check(&few).await.unwrap();
        assert_eq!((report.violations.len(), report.violations.total()), (3, tree.levels[0].len() as u64));
    });
}
