//! Requests that an index or its catalog refuses, with a typed error that says what to do. That every index refuses
//! the same input, and stays as it was, is in `kit/conformance/input.rs` and `bulk.rs`.

use std::error::Error;

use farwood::index::layout::LayoutError;
use farwood::runtime::alloc::AllocError;
use farwood::sherman::{Geometry, NodeSize, Options};
use farwood::{ControlError, LoadError, OpenError, RangeIndex, ReadError, Sherman, WriteError};
use futures::executor::block_on;

use crate::kit;
use crate::kit::TINY;

/// Asserts that the error's message tells what to do: it has all these words.
#[track_caller]
fn assert_says(error: &impl Error, words: &[&str]) {
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "{message:?} does not mention {word:?}");
    }
}

#[test]
fn refusals_say_what_to_do() {
    assert_says(&ReadError::KeyTooLong { len: 9, max: 8 }, &["9 bytes", "8", "max_key"]);
    assert_says(&WriteError::KeyTooLong { len: 9, max: 8 }, &["9 bytes", "8", "max_key"]);
    assert_says(&WriteError::ValueTooLong { len: 200, max: 8 }, &["200 bytes", "8", "max_value"]);
    assert_says(&LoadError::Unsorted { position: 4 }, &["ascending", "pair 4"]);
    assert_says(&LoadError::Fill { fill: 1.001 }, &["(0, 1]"]);
    assert_says(&LoadError::NotEmpty, &["empty", "put"]);
}

#[test]
fn names_that_are_taken_and_names_that_are_not() {
    let cluster = kit::cluster();
    let node = kit::node(&cluster, 1);
    let create = |name: &str| block_on(Sherman::create(&node, name, TINY, Options::default()));
    let open = |name: &str| block_on(Sherman::open(&node, name, Options::default()));
    create("a").unwrap();
    let twice = create("a").err().expect("the name is taken");
    assert_eq!(twice, OpenError::Control(ControlError::Exists { name: "a".into() }));
    assert_says(&twice, &["\"a\"", "open"]);
    let missing = open("b").err().expect("there is none");
    assert_eq!(missing, OpenError::Control(ControlError::NotFound { name: "b".into() }));
    assert_says(&missing, &["\"b\"", "create"]);
    assert_eq!(open("a").unwrap().geometry(), TINY);
    // What could not be created has left no entry.
    let impossible = Geometry { max_key: 0, ..TINY };
    assert!(block_on(Sherman::create(&node, "c", impossible, Options::default())).is_err());
    assert!(open("c").is_err());
    create("c").unwrap();
    use farwood::NodeContext;
    let other = block_on(node.control().create("d", "other", b"")).unwrap();
    assert_eq!(other.kind, "other");
    let wrong = open("d").err().expect("it is of another kind");
    assert_says(&wrong, &["\"d\"", "\"other\""]);
    block_on(node.control().create("e", "sherman", b"{}")).unwrap();
    assert_says(&open("e").err().expect("it cannot be read"), &["\"e\"", "unreadable"]);
    for n in 0.. {
        let name = format!("n{n}");
        if let Err(full) = create(&name) {
            assert!(matches!(full, OpenError::Control(ControlError::CatalogFull { .. })));
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
        assert!(matches!(error, OpenError::Layout(_)), "{error:?}");
        assert_says(&error, words);
    }
    // The size that the message asks for is one that works.
    let geometry = |bytes| Geometry { max_key: 300, max_value: 300, size: NodeSize::Bytes(bytes) };
    let mut bytes = 64;
    while let OpenError::Layout(LayoutError::TooFewSlots { least_node_bytes, .. }) = refused(geometry(bytes))
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
    let recipe = kit::IndexSpec::Sherman { geometry, options: Options::default() };
    kit::with_parties_on(&cluster, kit::Parties::Shards(1), recipe, |cluster| async move {
        let error = cluster.index.put(b"k", b"v").await.unwrap_err();
        assert_eq!(error, WriteError::Alloc(AllocError::TooLarge { bytes: 8192, chunk_bytes: 4096 }));
        assert_says(&error, &["larger chunks"]);
        assert!(cluster.index.get(b"k").await.unwrap().is_none());
        cluster.rest().await;
    });
}
