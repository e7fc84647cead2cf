//! Input that no index can take: a typed error that says what to do, and an index that is as it was. And
//! input that looks odd and is fine: empty keys, keys of full length, every byte.

mod kit;

use farwood::index::layout::LayoutError;
use farwood::runtime::alloc::AllocError;
use farwood::{ControlError, Geometry, IndexError, NodeSize, Options, RangeIndex, Sherman};
use futures::TryStreamExt;
use futures::executor::block_on;
use kit::{TINY, key, with_tree};

/// The error's message tells what to do: it has all these words.
#[track_caller]
fn assert_says(error: &IndexError, words: &[&str]) {
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "{message:?} does not mention {word:?}");
    }
}

#[test]
fn keys_and_values_that_are_too_long() {
    with_tree(1, TINY, Options::default(), |shard, index| async move {
        for n in 0..20 {
            index.put(&key(n), &key(n)).await.unwrap();
        }
        let (long_key, long_value) = ([7; 9], [7; 200]);
        let key_error = IndexError::KeyTooLong { len: 9, max: 8 };
        assert_says(&key_error, &["9 bytes", "8", "max_key"]);
        assert_eq!(index.get(&long_key).await.unwrap_err(), key_error);
        assert_eq!(index.put(&long_key, b"").await.unwrap_err(), key_error);
        assert_eq!(index.insert(&long_key, b"").await.unwrap_err(), key_error);
        assert_eq!(index.update(&long_key, b"").await.unwrap_err(), key_error);
        assert_eq!(index.remove(&long_key).await.unwrap_err(), key_error);
        assert_eq!(index.multi_get(&[&key(1)[..], &long_key]).await.unwrap_err(), key_error);
        let value_error = IndexError::ValueTooLong { len: 200, max: 8 };
        assert_says(&value_error, &["200 bytes", "8", "max_value"]);
        assert_eq!(index.put(&key(1), &long_value).await.unwrap_err(), value_error);
        assert_eq!(index.insert(&key(99), &long_value).await.unwrap_err(), value_error);
        assert_eq!(index.update(&key(1), &long_value).await.unwrap_err(), value_error);
        // Bounds need not be keys of the index: a longer one lies between two keys.
        let between = [&key(3)[..], b"x"].concat();
        let found: Vec<_> = index.scan(&between[..].., Some(1)).try_collect().await.unwrap();
        assert_eq!(kit::number(&found[0].0), 4);
        let found: Vec<_> = index.scan(..&between[..], None).try_collect().await.unwrap();
        assert_eq!(found.len(), 4);
        let expected = (0..20).map(|n| (key(n).to_vec(), key(n).to_vec())).collect();
        kit::tree::holds_exactly(&shard, &index, TINY, &expected).await;
        kit::at_rest(&shard, &index).await;
    });
}

#[test]
fn bulk_loads_that_cannot_be() {
    with_tree(1, TINY, Options::default(), |shard, index| async move {
        let pairs = |numbers: &[u64]| numbers.iter().map(|n| (key(*n), key(*n))).collect::<Vec<_>>();
        let unsorted = index.bulk_load(pairs(&[1, 2, 3, 9, 4, 10]), 1.0).await.unwrap_err();
        assert_eq!(unsorted, IndexError::Unsorted { position: 4 });
        assert_says(&unsorted, &["ascending", "pair 4"]);
        assert_eq!(index.bulk_load(pairs(&[1, 1]), 1.0).await, Err(IndexError::Unsorted { position: 1 }));
        for fill in [0.0, -1.0, 1.001, f64::NAN, f64::INFINITY] {
            let error = index.bulk_load(pairs(&[1]), fill).await.unwrap_err();
            assert!(matches!(error, IndexError::Fill { .. }));
            assert_says(&error, &["(0, 1]"]);
        }
        let long: Vec<([u8; 9], [u8; 1])> = vec![([1; 9], [1])];
        assert_eq!(index.bulk_load(long, 1.0).await, Err(IndexError::KeyTooLong { len: 9, max: 8 }));
        let mut late = (0..1000).map(|n| (key(n).to_vec(), key(n).to_vec())).collect::<Vec<_>>();
        late.push((key(1000).to_vec(), vec![0; 9]));
        assert_eq!(index.bulk_load(late, 1.0).await, Err(IndexError::ValueTooLong { len: 9, max: 8 }));
        // Nothing of all that is to be seen.
        assert_eq!(index.survey().await.unwrap(), farwood::Survey::default());
        assert!(index.get(&key(1)).await.unwrap().is_none());
        assert_eq!(kit::all_pairs(&index).await, []);
        assert_eq!(index.bulk_load(pairs(&[]), 1.0).await, Ok(0));
        assert_eq!(index.bulk_load(pairs(&[5]), 1.0).await, Ok(1));
        let full = index.bulk_load(pairs(&[6]), 1.0).await.unwrap_err();
        assert_eq!(full, IndexError::NotEmpty);
        assert_says(&full, &["empty", "put"]);
        assert!(index.remove(&key(5)).await.unwrap());
        assert_eq!(
            index.bulk_load(pairs(&[6]), 1.0).await,
            Err(IndexError::NotEmpty),
            "it was written to once"
        );
        kit::at_rest(&shard, &index).await;
    });
}

#[test]
fn names_that_are_taken_and_names_that_are_not() {
    let cluster = kit::cluster();
    let node = kit::node(&cluster, 1);
    let create = |name: &str| block_on(Sherman::create(&node, name, TINY, Options::default()));
    let open = |name: &str| block_on(Sherman::open(&node, name, Options::default()));
    create("a").unwrap();
    let twice = create("a").err().expect("the name is taken");
    assert_eq!(twice, IndexError::Control(ControlError::Exists { name: "a".into() }));
    assert_says(&twice, &["\"a\"", "open"]);
    let missing = open("b").err().expect("there is none");
    assert_eq!(missing, IndexError::Control(ControlError::NotFound { name: "b".into() }));
    assert_says(&missing, &["\"b\"", "create"]);
    assert_eq!(open("a").unwrap().geometry(), TINY);
    // What could not be created has left no entry.
    let impossible = Geometry { max_key: 0, ..TINY };
    assert!(block_on(Sherman::create(&node, "c", impossible, Options::default())).is_err());
    assert!(open("c").is_err());
    create("c").unwrap();
    use farwood::Host;
    let other = block_on(node.control().create("d", "other", b"")).unwrap();
    assert_eq!(other.kind, "other");
    let wrong = open("d").err().expect("it is of another kind");
    assert_says(&wrong, &["\"d\"", "\"other\""]);
    block_on(node.control().create("e", "sherman", b"{}")).unwrap();
    assert_says(&open("e").err().expect("it cannot be read"), &["\"e\"", "unreadable"]);
    for n in 0.. {
        let name = format!("n{n}");
        if let Err(full) = create(&name) {
            assert!(matches!(full, IndexError::Control(ControlError::CatalogFull { .. })));
            assert_says(&full, &["full", "drop"]);
            break;
        }
        assert!(n < 100_000);
    }
}

#[test]
fn geometries_that_make_no_node() {
    let cluster = kit::cluster();
    let node = kit::node(&cluster, 1);
    let refused = |geometry| {
        let created = block_on(Sherman::create(&node, "x", geometry, Options::default()));
        created.err().unwrap_or_else(|| panic!("{geometry:?} was taken"))
    };
    let slots = |leaf, inner| NodeSize::Slots { leaf, inner };
    for (max_key, max_value, size, words) in [
        (0, 8, NodeSize::Bytes(1024), &["keys of up to 0", "choose 1 to"][..]),
        (1 << 20, 8, NodeSize::Bytes(1024), &["keys of up to", "choose 1 to"]),
        (8, 1 << 20, NodeSize::Bytes(1024), &["values of up to", "choose 0 to"]),
        (8, 8, NodeSize::Bytes(0), &["multiple of 64"]),
        (8, 8, NodeSize::Bytes(1000), &["multiple of 64"]),
        (8, 8, NodeSize::Bytes(1 << 30), &["multiple of 64", "up to"]),
        (300, 300, NodeSize::Bytes(512), &["at least", "smaller keys"]),
        (8, 8, slots(1, 4), &["1 slots", "at least 2"]),
        // Inner nodes of two would let trees grow a level per insert.
        (8, 8, slots(4, 2), &["2 slots", "at least 3"]),
        (8, 8, slots(usize::MAX, 4), &["multiple of 64"]),
    ] {
        let error = refused(Geometry { max_key, max_value, size });
        assert!(matches!(error, IndexError::Layout(_)), "{error:?}");
        assert_says(&error, words);
    }
    // The size that the message asks for is one that works.
    let geometry = |bytes| Geometry { max_key: 300, max_value: 300, size: NodeSize::Bytes(bytes) };
    let mut bytes = 64;
    while let IndexError::Layout(LayoutError::TooFewSlots { least_node_bytes, .. }) = refused(geometry(bytes))
    {
        assert!(least_node_bytes > bytes);
        bytes = least_node_bytes;
        if geometry(bytes).layouts().is_ok() {
            break;
        }
    }
    assert!(geometry(bytes).layouts().is_ok());
}

/// Nodes that no chunk holds are found out by the first write.
#[test]
fn nodes_larger_than_chunks() {
    let cluster = farwood::Cluster::embedded(farwood::EmbeddedConfig {
        bytes_per_server: 1 << 20,
        chunk_bytes: 4096,
        locks_per_server: 16,
        ..Default::default()
    })
    .unwrap();
    let geometry = Geometry { size: NodeSize::Bytes(8192), ..Geometry::default() };
    kit::with_parties_on(
        &cluster,
        kit::Parties::Shards(1),
        geometry,
        Options::default(),
        |party| async move {
            let error = party.index.put(b"k", b"v").await.unwrap_err();
            assert_eq!(error, IndexError::Alloc(AllocError::TooLarge { bytes: 8192, chunk_bytes: 4096 }));
            assert_says(&error, &["larger chunks"]);
            assert!(party.index.get(b"k").await.unwrap().is_none());
            party.rest().await;
        },
    );
}

#[test]
fn odd_keys_are_fine() {
    for (max_key, max_value) in [(1, 0), (2, 1), (8, 8), (40, 9), (300, 300)] {
        let geometry = Geometry { max_key, max_value, size: NodeSize::Slots { leaf: 3, inner: 3 } };
        with_tree(1, geometry, Options::default(), move |shard, index| async move {
            let mut expected = std::collections::BTreeMap::new();
            let mut keys = vec![Vec::new()];
            for byte in 0..=255u8 {
                keys.extend([
                    vec![byte],
                    vec![byte; max_key],
                    [vec![byte; max_key - 1], vec![!byte]].concat(),
                ]);
            }
            for (n, key) in keys.into_iter().enumerate() {
                // From empty to full length.
                let value = vec![n as u8; n % (max_value + 1)];
                assert_eq!(index.insert(&key, &value).await.unwrap(), !expected.contains_key(&key));
                expected.entry(key).or_insert(value);
            }
            for (key, value) in &expected {
                assert_eq!(index.get(key).await.unwrap().as_deref(), Some(&value[..]), "{key:?}");
            }
            kit::tree::holds_exactly(&shard, &index, geometry, &expected).await;
            for key in expected.keys() {
                assert!(index.remove(key).await.unwrap());
                assert!(index.get(key).await.unwrap().is_none());
            }
            assert_eq!(kit::all_pairs(&index).await, []);
            kit::at_rest(&shard, &index).await;
        });
    }
}
