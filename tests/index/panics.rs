//! A shard that panics fails its test and no other: the kit's run ends then, whatever the other shards wait for.

use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};

use farwood::RangeIndex;
use farwood::runtime::ClientPool;

use crate::kit::{IndexKind, Parties, Shape, TestCluster, key, with_parties};

/// Returns the words that a run panics with.
fn panic_of<R: Future<Output = ()> + 'static>(
    parties: Parties,
    main: impl Fn(TestCluster) -> R + Send + Sync + 'static,
) -> String {
    let recipe = Shape::TINY.usual(IndexKind::Sherman);
    let run = AssertUnwindSafe(|| with_parties(parties, recipe, main));
    *catch_unwind(run).expect_err("the run panics").downcast::<String>().expect("a panic with a text")
}

#[test]
fn a_shard_that_panics_ends_all_that_wait_for_it() {
    for parties in Parties::BOTH {
        for place in 0..2 {
            let said = panic_of(parties, move |cluster| async move {
                cluster.index.put(&key(1), &key(1)).await.unwrap();
                assert!(cluster.place != place, "planned");
                cluster.meet().await;
                cluster.meet().await;
            });
            assert!(said.contains("panics.rs") && said.contains("planned"), "{parties:?}, {place}: {said}");
        }
    }
}

/// No task awaits the client, and all wait for ever.
#[test]
fn a_client_that_nobody_awaits_does_so_too() {
    for parties in Parties::BOTH {
        let said = panic_of(parties, |cluster| async move {
            let place = cluster.place;
            drop(cluster.shard.spawn(async move { assert!(place == 0, "planned") }));
            pending::<()>().await;
        });
        assert!(said.contains("panics.rs") && said.contains("planned"), "{parties:?}: {said}");
    }
}
