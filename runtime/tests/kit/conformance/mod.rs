//! The fabric contract as one test body for every fabric: what `farwood_runtime::verbs` promises, checked through
//! `Verbs` alone, so that a simulated or a real fabric cannot keep it differently from the embedded one.
//!
//! A fabric implements [`Fabric`] and names its tests with `conformance_tests!`; every part runs on all its settings.
//! Where the contract leaves an order open (a WRITE or an atomic after a READ or an atomic) the body fences.
#![allow(dead_code, clippy::allow_attributes, reason = "a fabric may run a part of it")]

mod access;
mod atomics;
mod exchange;
mod failure;
mod messages;
mod order;
mod tasks;

use std::sync::Arc;

use farwood_runtime::{ClientPool, RemotePtr, ShardId};
use futures::future::LocalBoxFuture;

pub(crate) use self::access::{round_trips, verbs_match_a_model};
pub(crate) use self::atomics::{
    a_cas_that_does_not_fit_changes_nothing, atomics, atomics_lose_no_increment, masked_cas,
};
pub(crate) use self::exchange::Barrier;
pub(crate) use self::failure::{
    credits_are_first_come_first_served, dropped_submissions, errors_are_typed_and_local,
    refused_chains_come_back, servers_in_parallel,
};
pub(crate) use self::messages::{early_messages_are_kept, messages_arrive_in_order, messages_from_handlers};
pub(crate) use self::order::{
    chains_keep_their_order, messages_follow_writes, order_is_seen_by_others, store_buffer_litmus,
};
pub(crate) use self::tasks::{combinators, deferred_tasks, pauses, time_never_goes_back, timeouts, waiters};

/// The function that every shard of a test runs.
pub(crate) type Main<V> = Arc<dyn Fn(V, Site) -> LocalBoxFuture<'static, ()> + Send + Sync>;

/// A fabric, as the body needs it.
pub(crate) trait Fabric<V> {
    /// Runs `main` on every shard of a fresh node with `shards` shards and a fresh cluster of two servers, once per
    /// setting (line mode, credits, kind of task) that makes a difference there, and waits for all of them.
    fn run(&self, shards: usize, main: &Main<V>);
}

/// Zeroed memory that the body has to itself; all shards share it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site {
    /// First byte on server 0 and on server 1.
    pub starts: [RemotePtr; 2],
    /// Its size on each server, 1 MiB at least.
    pub bytes: u64,
}

impl Site {
    /// Returns the quarter of it on `server` that is `shard`'s own; the last quarter is [`Site::common`].
    fn own(&self, server: usize, shard: ShardId) -> RemotePtr {
        assert!(shard.0 < 3);
        self.starts[server].add(u64::from(shard.0) * self.quarter())
    }

    fn common(&self) -> RemotePtr {
        self.starts[0].add(3 * self.quarter())
    }

    fn quarter(&self) -> u64 {
        self.bytes / 4
    }
}

/// Defines one `#[test]` per part of the body for a [`Fabric`].
macro_rules! conformance_tests {
    ($fabric:ident) => {
        conformance_tests!($fabric:
            round_trips [1, 2], verbs_match_a_model [1, 2], chains_keep_their_order [1, 2],
            order_is_seen_by_others [1, 2], atomics [1, 2], masked_cas [1, 2], atomics_lose_no_increment [1, 2],
            errors_are_typed_and_local [1, 2], dropped_submissions [1, 2], credits_are_first_come_first_served [1, 2],
            servers_in_parallel [1, 2], messages_arrive_in_order [1, 2], early_messages_are_kept [1, 2],
            messages_from_handlers [1, 2], pauses [1, 2], timeouts [1, 2], waiters [1, 2], deferred_tasks [1, 2],
            combinators [1, 2], refused_chains_come_back [1, 2], time_never_goes_back [1, 2], store_buffer_litmus [2],
            messages_follow_writes [2], a_cas_that_does_not_fit_changes_nothing [2]);
    };
    ($fabric:ident: $($part:ident [$($shards:literal),+]),+) => {
        $(#[test]
        fn $part() {
            crate::conformance::run_part(&$fabric, &[$($shards),+], |v, site, barrier| {
                Box::pin(crate::conformance::$part(v, site, barrier))
            });
        })+
    };
}
pub(crate) use conformance_tests;

/// Runs a part of the body on nodes of so many `shards`. Afterwards nothing may be left.
pub(crate) fn run_part<V: ClientPool>(
    fabric: &dyn Fabric<V>,
    shards: &[usize],
    part: fn(V, Site, Barrier<V>) -> LocalBoxFuture<'static, ()>,
) {
    let main: Main<V> = Arc::new(move |v: V, site| {
        Box::pin(async move {
            let barrier = Barrier::new(&v);
            part(v.clone(), site, barrier.clone()).await;
            nothing_is_left(&v, &barrier).await;
        })
    });
    shards.iter().for_each(|shards| fabric.run(*shards, &main));
}

/// Checks that every shard is done, all chains are executed and all buffers are back.
async fn nothing_is_left<V: ClientPool>(v: &V, barrier: &Barrier<V>) {
    while v.chains_in_flight() > 0 {
        v.pause(10_000).await;
    }
    assert_eq!(v.buffers_leased(), 0);
    barrier.wait().await;
}
