//! The cluster's epoch at the server that keeps the catalog: whom it waits for, and until when.

use farwood_runtime::control::ControlError;
use farwood_runtime::control::wire::{Reply, Request};

use crate::control_kit::{Client, INSTANCE, chunk_of, core, create};

const NOT_YET: u32 = 0;

/// Acknowledges an epoch; yields the cluster's.
fn beat(client: &mut Client, oldest: u64, fenced: u32) -> u64 {
    match client.ask(Request::Epoch { oldest, fenced, waits: false, flush: 0, noting: 0 }) {
        Ok(Reply::Epoch { epoch, hurry: false, .. }) => epoch,
        other => panic!("{other:?}"),
    }
}

/// Admits a compute node; yields the epoch that it begins with.
fn admit(client: &mut Client) -> u64 {
    match client.ask(Request::Admit) {
        Ok(Reply::Admitted { epoch, .. }) => epoch,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_epoch_waits_for_all_connections_with_compute_nodes() {
    let core = core(4);
    let (mut one, mut two) = (Client::alone(&core), Client::alone(&core));
    let _looks_only = Client::alone(&core);
    assert_eq!((admit(&mut one), beat(&mut one, 1, NOT_YET)), (1, 2));
    assert_eq!((admit(&mut two), beat(&mut one, 2, NOT_YET)), (2, 3));
    // The second one has acknowledged what it was admitted with, and no more.
    assert_eq!((beat(&mut one, 3, NOT_YET), beat(&mut one, 3, NOT_YET)), (3, 3));
    assert_eq!(beat(&mut two, 2, NOT_YET), 3);
    assert_eq!((beat(&mut two, 3, NOT_YET), beat(&mut one, 3, NOT_YET)), (4, 4));
    assert_eq!(two.send_frame(Request::Goodbye).0.len(), 1);
    drop(two);
    assert_eq!(beat(&mut one, 4, NOT_YET), 5);
    // A second node of a connection begins with what the connection holds back.
    assert_eq!((admit(&mut one), beat(&mut one, 4, NOT_YET)), (5, 5));
}

#[test]
fn the_word_that_memory_waits_goes_to_all() {
    let core = core(4);
    let (mut one, mut two) = (Client::alone(&core), Client::alone(&core));
    assert_eq!((admit(&mut one), admit(&mut two)), (1, 1));
    for (client, waits, hurried) in [(&mut two, false, false), (&mut one, true, true)] {
        let Ok(Reply::Epoch { hurry, .. }) =
            client.ask(Request::Epoch { oldest: 1, fenced: NOT_YET, waits, flush: 0, noting: 0 })
        else {
            panic!("a reply")
        };
        assert_eq!(hurry, hurried);
    }
    let heard = two.ask(Request::Epoch { oldest: 1, fenced: NOT_YET, waits: false, flush: 0, noting: 0 });
    assert!(matches!(heard, Ok(Reply::Epoch { hurry: true, .. })));
}

/// A client that has died may have queue pairs to other servers.
#[test]
fn a_dead_member_holds_the_epoch_until_it_is_fenced_on_all_servers() {
    for servers in [1, 2] {
        let core = core(4);
        let members = &[INSTANCE, 77][..servers];
        let mut lives = Client::joined(&core, members, 0);
        let mut dies = Client::joined(&core, members, 0);
        assert_eq!((admit(&mut lives), admit(&mut dies)), (1, 1));
        let index = create(&mut dies, "a").unwrap().id;
        assert!(matches!(dies.ask(chunk_of(index)), Ok(Reply::Chunk { .. })));
        assert_eq!((beat(&mut lives, 1, NOT_YET), beat(&mut lives, 2, NOT_YET)), (2, 2));
        drop(dies);
        if servers > 1 {
            let held =
                lives.ask(Request::Epoch { oldest: 2, fenced: NOT_YET, waits: false, flush: 0, noting: 0 });
            assert_eq!(held, Ok(Reply::Epoch { epoch: 2, dead: 1, hurry: false, flushed: 0, sweep: None }));
        }
        assert_eq!(beat(&mut lives, 2, 1), 3);
    }
}

#[test]
fn only_the_server_that_keeps_the_catalog_counts_epochs() {
    let core = core(4);
    let mut elsewhere = Client::joined(&core, &[77, INSTANCE], 1);
    let asked = elsewhere.ask(Request::Epoch { oldest: 1, fenced: 0, waits: true, flush: 0, noting: 0 });
    assert_eq!(asked, Err(ControlError::NotHome));
}
