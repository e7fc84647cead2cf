//! Sessions of the control service without sockets: the effect of each request. `control_model.rs` has damaged ones.

use std::collections::BTreeSet;
use std::sync::{Arc, Barrier, Mutex};

use farwood_runtime::control::frame;
use farwood_runtime::control::greeting::{VERSION, greeting};
use farwood_runtime::control::nodes::{NodeBatch, NodeClass, Waits, WantedNodes};
use farwood_runtime::control::seal::SealKey;
use farwood_runtime::control::wire::{Census, Reply, Request};
use farwood_runtime::fabric::{Answer, Endpoint, PeerId, Responder};
use farwood_runtime::message::ShardId;
use farwood_runtime::service::{Close, ServiceCore};
use farwood_runtime::{ControlError, IndexId, Served, ServerId};

use crate::control_kit::{
    self, CHUNK_BYTES, Client, INSTANCE, KEY, chunk_of, core, create, create_of, free_of, join_of, opening,
    served_verbs,
};

fn begin_drop(client: &mut Client, name: &str) -> (u32, SealKey) {
    match client.ask(Request::BeginDrop { name: name.into() }) {
        Ok(Reply::Dropping { index, key }) => (index, key),
        other => panic!("{other:?}"),
    }
}

fn named(name: &str) -> String {
    name.into()
}

#[test]
fn says_why_a_conversation_ends() {
    let core = core(4);
    let ends = |bytes: &[u8]| Client::silent(&core).send(bytes);
    let (replies, ended) = ends(b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!((replies.len(), ended.unwrap_err().to_string()), (0, "the greeting is not Farwood's".into()));

    let mut newer = greeting();
    newer[8] += 1;
    let mut out = Vec::new();
    let ended = Client::silent(&core).session.receive(&newer, &mut out);
    assert_eq!(out, greeting(), "the other side is told which version this is");
    assert!(ended.unwrap_err().to_string().contains(&format!("version {}", VERSION + 1)));

    let mut early = greeting().to_vec();
    frame::put(&(0u32, Request::Usage), &mut early);
    let (replies, _) = ends(&early);
    assert!(matches!(&replies[..], [(0, Err(ControlError::Protocol { what }))] if what.contains("Hello")));

    for (members, what) in [
        (vec![], "1 to 256"),
        (vec![INSTANCE; 257], "1 to 256"),
        (vec![1], "not where"),
        (vec![INSTANCE, 1, 1], "twice"),
    ] {
        let (replies, ended) = ends(&opening(&members, &[]));
        assert!(ended.is_err());
        let said = replies.last().unwrap();
        assert!(
            matches!(said, (1, Err(ControlError::Protocol { what: why })) if why.contains(what)),
            "{said:?}"
        );
    }

    let mut client = Client::alone(&core);
    client.next_number += 1;
    let (replies, ended) = client.send_frame(Request::Ping);
    assert_eq!(ended, Err(Close::Number { expected: 2, found: 3 }));
    assert!(matches!(&replies[..], [(2, Err(ControlError::Protocol { .. }))]));
    assert_eq!(client.send_frame(Request::Ping), (vec![], Err(Close::Ended)));
    assert_eq!(core.nodes().len(), 1, "the session ends when it is dropped");
    drop(client);
    assert_eq!(core.nodes().len(), 0);
}

#[test]
fn an_index_in_use_is_not_dropped() {
    let core = core(4);
    let (mut one, mut two) = (Client::alone(&core), Client::alone(&core));
    let entry = create(&mut one, "a").unwrap();
    assert_eq!(create(&mut two, "a"), Err(ControlError::Exists { name: named("a") }));
    assert_eq!(one.ask(Request::Admit), Ok(Reply::Admitted { node: 1, epoch: 1, sweep: None }));
    let in_use =
        |nodes, connections| Err(ControlError::InUse { name: named("a"), nodes, connections, silent: 0 });
    assert_eq!(two.ask(Request::BeginDrop { name: named("a") }), in_use(vec![1], 1));
    assert_eq!(two.ask(Request::Open { name: named("a") }), Ok(Reply::Entry(entry.clone())));
    assert_eq!(one.ask(Request::BeginDrop { name: named("a") }), in_use(vec![], 1));
    assert!(matches!(one.ask(chunk_of(entry.id)), Ok(Reply::Chunk { .. })));
    let too_early = ControlError::NoSuchIndex { index: IndexId(entry.id) };
    assert_eq!(two.ask(free_of(entry.id)), Err(too_early.clone()));
    drop(one);
    let dropping = begin_drop(&mut two, "a");
    assert_eq!(dropping.0, entry.id, "what the dead had open is free");
    assert_eq!(two.ask(chunk_of(entry.id)), Err(ControlError::BeingDropped { name: named("a") }));
    // It dies in the middle; another completes the drop.
    drop(two);
    let mut three = Client::alone(&core);
    assert_eq!(
        three.ask(Request::Open { name: named("a") }),
        Err(ControlError::BeingDropped { name: named("a") })
    );
    assert_eq!(begin_drop(&mut three, "a"), dropping);
    assert_eq!(three.ask(free_of(entry.id)), Ok(Reply::Freed { bytes: CHUNK_BYTES }));
    let finish = Request::FinishDrop { name: named("a"), index: entry.id };
    assert_eq!(three.ask(finish.clone()), Ok(Reply::Done));
    assert_eq!(three.ask(finish), Err(ControlError::NotFound { name: named("a") }));
    assert_eq!(three.ask(chunk_of(entry.id)), Err(too_early));
    assert_eq!((core.usage().chunk_bytes, core.usage().indexes), (0, 0));
}

#[test]
fn a_server_belongs_to_one_list_while_it_holds_something() {
    let core = core(4);
    let mut first = Client::joined(&core, &[INSTANCE, 2], 0);
    let mut swapped = Client::joined(&core, &[2, INSTANCE], 1);
    assert_eq!(swapped.ask(Request::Agree), Ok(Reply::Done), "nothing is there yet");
    let entry = create(&mut first, "a").unwrap();
    let refused = Err(ControlError::OtherServers { server: ServerId(1) });
    assert_eq!(swapped.ask(Request::Agree), refused);
    assert_eq!(swapped.ask(chunk_of(1)), refused);
    let mut restarted = Client::joined(&core, &[INSTANCE, 3], 0);
    let refused = ControlError::Restarted { server: ServerId(1) };
    assert_eq!(restarted.ask(Request::Open { name: named("a") }), Err(refused.clone()));
    assert_eq!(create(&mut restarted, "b"), Err(refused));
    for home_only in
        [Request::Admit, Request::Open { name: named("a") }, Request::BeginDrop { name: named("a") }]
    {
        assert_eq!(swapped.ask(home_only), Err(ControlError::NotHome));
    }
    // Looking and dropping is allowed, and frees nothing that belongs to another list's first server.
    assert!(matches!(first.ask(chunk_of(entry.id)), Ok(Reply::Chunk { .. })));
    assert_eq!(swapped.ask(free_of(entry.id)), Ok(Reply::Freed { bytes: 0 }));
    assert!(
        matches!(restarted.ask(Request::List { after: None }), Ok(Reply::Page { entries, .. }) if entries.len() == 1)
    );
    drop(first);
    assert_eq!(begin_drop(&mut restarted, "a").0, entry.id);
    assert_eq!(restarted.ask(free_of(entry.id)), Ok(Reply::Freed { bytes: CHUNK_BYTES }));
    let finish = Request::FinishDrop { name: named("a"), index: entry.id };
    assert_eq!(restarted.ask(finish), Ok(Reply::Done));
    assert!(matches!(swapped.ask(chunk_of(1)), Ok(Reply::Chunk { .. })), "nothing is there any more");
}

/// Two lists of servers that begin at the same time: one of them gets the server, never both.
#[test]
fn a_server_belongs_to_one_list_when_two_ask_at_once() {
    for _ in 0..300 {
        let core = core(4);
        let begin = Barrier::new(2);
        let clients = [8, 9].map(|home| Client::joined(&core, &[home, INSTANCE], 1));
        let taken = std::thread::scope(|scope| {
            let asking = clients.map(|mut client| {
                let begin = &begin;
                scope.spawn(move || {
                    begin.wait();
                    let chunk = client.ask(chunk_of(1));
                    chunk.is_ok()
                })
            });
            asking.map(|thread| thread.join().unwrap())
        });
        assert!(taken == [true, false] || taken == [false, true], "{taken:?}");
        assert_eq!(core.usage().chunk_bytes, CHUNK_BYTES);
    }
}

/// A chunk that a dead client's last request would take for an index that was dropped in the meantime is not lost.
#[test]
fn a_dropped_index_gets_no_chunk_from_a_server_without_the_catalog() {
    let core = core(4);
    let mut one = Client::joined(&core, &[7, INSTANCE], 1);
    let mut late = Client::joined(&core, &[7, INSTANCE], 1);
    assert!(matches!(one.ask(chunk_of(1)), Ok(Reply::Chunk { .. })));
    assert!(matches!(one.ask(chunk_of(2)), Ok(Reply::Chunk { .. })));
    assert_eq!(one.ask(free_of(1)), Ok(Reply::Freed { bytes: CHUNK_BYTES }));
    let dropped = Err(ControlError::NoSuchIndex { index: IndexId(1) });
    assert_eq!(late.ask(chunk_of(1)), dropped);
    assert_eq!(core.usage().chunk_bytes, CHUNK_BYTES);
    // Another server 0 numbers its indexes anew.
    assert_eq!(one.ask(free_of(2)), Ok(Reply::Freed { bytes: CHUNK_BYTES }));
    let mut anew = Client::joined(&core, &[8, INSTANCE], 1);
    assert!(matches!(anew.ask(chunk_of(1)), Ok(Reply::Chunk { .. })));
}

fn chunk(client: &mut Client, index: u32) -> (u64, u64) {
    match client.ask(chunk_of(index)) {
        Ok(Reply::Chunk { offset, bytes }) => (offset, bytes),
        other => panic!("{other:?}"),
    }
}

#[test]
fn rests_go_to_the_same_index_first() {
    let core = core(4);
    let (mut one, mut two) = (Client::alone(&core), Client::alone(&core));
    let (a, b) = (create(&mut one, "a").unwrap().id, create(&mut one, "b").unwrap().id);
    let (start, bytes) = chunk(&mut one, a);
    assert_eq!(bytes, CHUNK_BYTES);
    let end = start + bytes;
    let give_back = |index, offset, bytes| Request::GiveBack { index, offset, bytes };
    assert_eq!(one.ask(give_back(a, start + 1024, bytes - 1024)), Ok(Reply::Done));
    assert_eq!(core.usage().chunk_bytes, CHUNK_BYTES, "the chunk is the index's, used or not");
    assert_eq!(chunk(&mut two, b), (end, CHUNK_BYTES), "not another index's");
    // The next client that asks has it, and can return what it leaves of it.
    assert_eq!(chunk(&mut two, a), (start + 1024, bytes - 1024));
    assert_eq!(two.ask(give_back(a, start + 2048, bytes - 2048)), Ok(Reply::Done));
    assert_eq!(chunk(&mut one, a), (start + 2048, bytes - 2048));
    // From the middle: two pieces stay taken.
    assert_eq!(one.ask(give_back(a, start + 16384, 8192)), Ok(Reply::Done));
    assert_eq!(one.ask(give_back(a, start + 24576, bytes - 24576)), Ok(Reply::Done));
    assert_eq!(chunk(&mut two, a), (start + 24576, bytes - 24576), "the largest first");
    drop(two);
    assert_eq!(chunk(&mut one, a), (start + 16384, 8192), "what the dead have taken is not there again");
    assert_eq!(chunk(&mut one, a), (end + CHUNK_BYTES, CHUNK_BYTES));
    assert_eq!(core.usage().chunk_bytes, 3 * CHUNK_BYTES);
    // A drop takes the rests with the chunks.
    assert_eq!(one.ask(give_back(a, start + 16384, 4096)), Ok(Reply::Done));
    for request in [
        Request::BeginDrop { name: named("a") },
        free_of(a),
        Request::FinishDrop { name: named("a"), index: a },
    ] {
        assert!(one.ask(request).is_ok());
    }
    let c = create(&mut one, "c").unwrap().id;
    let mut others: Vec<_> = (0..3).map(|_| chunk(&mut one, c)).collect();
    others.sort_unstable();
    assert!(
        others.iter().all(|(offset, bytes)| *bytes == CHUNK_BYTES && (offset - start) % CHUNK_BYTES == 0)
    );
    assert!(others.windows(2).all(|pair| pair[0] != pair[1]) && core.usage().chunk_bytes == 4 * CHUNK_BYTES);
}

/// Extents that may not be returned: the reply says why, and everything stays as it was.
#[test]
fn what_was_not_taken_is_not_taken_back() {
    let core = core(4);
    let (mut one, mut two) = (Client::alone(&core), Client::alone(&core));
    let (a, b) = (create(&mut one, "a").unwrap().id, create(&mut two, "b").unwrap().id);
    let (first, second) = (chunk(&mut one, a).0, chunk(&mut one, a).0);
    let (of_b, of_two) = (chunk(&mut one, b).0, chunk(&mut two, a).0);
    assert_eq!((second, of_b, of_two), (first + CHUNK_BYTES, second + CHUNK_BYTES, of_b + CHUNK_BYTES));
    let ask = |client: &mut Client, index, offset, bytes| {
        let reply = client.ask(Request::GiveBack { index, offset, bytes });
        let refused = ControlError::NotTaken { index: IndexId(index), offset, bytes };
        assert!(reply == Ok(Reply::Done) || reply == Err(refused), "{reply:?}");
        reply.is_ok()
    };
    assert!(ask(&mut one, a, first + 32768, 8192));
    for (what, offset, bytes) in [
        ("two chunks", first + 8192, CHUNK_BYTES),
        ("over the end of a chunk", second + 8192, CHUNK_BYTES),
        ("before the chunks", 4096, 4096),
        ("behind the chunks", of_two + CHUNK_BYTES, 4096),
        ("another index's", of_b, 4096),
        ("another connection's", of_two, 4096),
        ("a rest", first + 32768, 8192),
        ("a part of a rest", first + 36864, 4096),
        ("up into a rest", first, 36864),
        ("down into a rest", first + 36864, 8192),
        ("around a rest", first, CHUNK_BYTES),
        ("no line", first + 32, 4096),
        ("no lines", first, 4096 + 32),
        ("nothing", first, 0),
        ("too little", first, 4032),
        ("wrapping", first, u64::MAX - 63),
        ("wrapping to 0", first, first.wrapping_neg()),
        ("the end of the world", u64::MAX - 63, 4096),
    ] {
        assert!(!ask(&mut one, a, offset, bytes), "{what}");
        assert_eq!(core.usage().chunk_bytes, 4 * CHUNK_BYTES, "{what}");
    }
    let unknown = ControlError::NoSuchIndex { index: IndexId(99) };
    assert_eq!(one.ask(Request::GiveBack { index: 99, offset: first, bytes: 4096 }), Err(unknown));
    let mut swapped = Client::joined(&core, &[2, INSTANCE], 1);
    let refused = swapped.ask(Request::GiveBack { index: a, offset: first, bytes: 4096 });
    assert_eq!(refused, Err(ControlError::OtherServers { server: ServerId(1) }));
    // All that belongs to a client can still be returned by it: nothing was changed.
    assert!(ask(&mut one, a, first, 32768) && ask(&mut one, a, first + 40960, CHUNK_BYTES - 40960));
    assert!(ask(&mut one, a, second, CHUNK_BYTES) && ask(&mut one, b, of_b, CHUNK_BYTES));
    assert!(ask(&mut two, a, of_two, CHUNK_BYTES));
    let mut rests: Vec<_> = (0..5).map(|_| chunk(&mut two, a)).collect();
    rests.sort_unstable();
    let (low, high) = ((first, 32768), (first + 40960, CHUNK_BYTES - 40960));
    assert_eq!(rests, [low, (first + 32768, 8192), high, (second, CHUNK_BYTES), (of_two, CHUNK_BYTES)]);
    assert!(matches!(two.ask(chunk_of(a)), Err(ControlError::OutOfMemory { .. })));
    assert_eq!(chunk(&mut two, b), (of_b, CHUNK_BYTES));
    // A connection that has died returns nothing over another one.
    drop(two);
    let mut late = Client::alone(&core);
    assert!(!ask(&mut late, a, second, CHUNK_BYTES) && !ask(&mut one, a, second, CHUNK_BYTES));
}

/// Asks for an index's memory: pieces, others, joins.
fn holdings(client: &mut Client, index: u32) -> (Vec<(u64, u64, bool)>, u32, u64) {
    match client.ask(Request::Holdings { index, from: 0 }) {
        Ok(Reply::Holdings { pieces, more: false, others, joins }) => (pieces, others, joins),
        other => panic!("{other:?}"),
    }
}

const CLASS: NodeClass = NodeClass { bytes: 1024, of_kind: false };

fn give_nodes(index: u32, nodes: &[u64]) -> Request {
    let nodes = nodes.iter().map(|node| (*node, None)).collect();
    Request::GiveNodes { index, batch: NodeBatch { class: CLASS, waits: Waits::Epoch(7), nodes } }
}

fn take_nodes(index: u32, epoch: u64) -> Request {
    let wanted = WantedNodes { class: CLASS, epoch, flushed: 0, last_resort: false };
    Request::TakeNodes { index, seal: KEY.seal(), wanted }
}

/// Free nodes go to the client that asks for such, once, and are what others may have until then: no node lies there.
#[test]
fn free_nodes_are_kept_for_the_next_until_the_index_is_dropped() {
    let core = core(4);
    let (mut one, mut two) = (Client::alone(&core), Client::alone(&core));
    let (a, b) = (create(&mut one, "a").unwrap().id, create(&mut two, "b").unwrap().id);
    let (first, _) = chunk(&mut one, a);
    assert_eq!(one.ask(Request::GiveBack { index: a, offset: first + 8192, bytes: 4096 }), Ok(Reply::Done));
    // Who gives them has not taken the chunk.
    assert_eq!(two.ask(give_nodes(a, &[first + 1024, first + 4096])), Ok(Reply::Done));
    let all = [
        (first, 1024, false),
        (first + 1024, 1024, true),
        (first + 2048, 2048, false),
        (first + 4096, 1024, true),
        (first + 5120, 3072, false),
        (first + 8192, 4096, true),
        (first + 12288, CHUNK_BYTES - 12288, false),
    ];
    assert_eq!(holdings(&mut one, a).0, all);
    let none = || Ok(Reply::Batch(None));
    assert_eq!((one.ask(take_nodes(b, 10)), one.ask(take_nodes(a, 9))), (none(), none()));
    let Ok(Reply::Batch(Some(batch))) = one.ask(take_nodes(a, 10)) else { panic!("there are two") };
    assert_eq!(batch.nodes, [(first + 1024, None), (first + 4096, None)]);
    assert_eq!(one.ask(take_nodes(a, 10)), none());
    assert_eq!(one.ask(Request::GiveNodes { index: a, batch }), Ok(Reply::Done));
    drop(two);
    // A repair does not give them back once more.
    let joins = holdings(&mut one, a).2;
    let twice = take_back(a, joins, &[(first, 8192)]);
    assert!(matches!(one.ask(twice), Err(ControlError::NotHeld { .. })));
    for request in [
        Request::BeginDrop { name: named("a") },
        free_of(a),
        Request::FinishDrop { name: named("a"), index: a },
    ] {
        assert!(one.ask(request).is_ok());
    }
    let c = create(&mut one, "c").unwrap().id;
    let all: Vec<_> = (0..4).map(|_| chunk(&mut one, c)).collect();
    assert!(all.contains(&(first, CHUNK_BYTES)));
    assert!(holdings(&mut one, c).0.iter().all(|(_, bytes, is_free)| *bytes == CHUNK_BYTES && !is_free));
    assert_eq!(one.ask(take_nodes(c, 10)), none());
    assert_eq!(one.ask(give_nodes(c, &[first + 1024])), Ok(Reply::Done), "it is this index's, and free");
}

#[test]
fn what_is_no_free_node_is_refused() {
    let core = core(4);
    let (mut one, mut two) = (Client::alone(&core), Client::alone(&core));
    let (a, b) = (create(&mut one, "a").unwrap().id, create(&mut two, "b").unwrap().id);
    let (first, of_b) = (chunk(&mut one, a).0, chunk(&mut two, b).0);
    assert_eq!(one.ask(Request::GiveBack { index: a, offset: first + 8192, bytes: 4096 }), Ok(Reply::Done));
    assert_eq!(two.ask(give_nodes(a, &[first + 1024])), Ok(Reply::Done));
    for (what, nodes) in [
        ("again", &[first + 1024][..]),
        ("a part", &[first + 1536]),
        ("a rest", &[first + 8192]),
        ("down into a rest", &[first + 8192 - 512]),
        ("another index's", &[of_b]),
        ("over the end of the chunk", &[first + CHUNK_BYTES - 512]),
        ("no line", &[first + 32]),
        ("none", &[]),
    ] {
        let refused = one.ask(give_nodes(a, nodes));
        assert!(matches!(refused, Err(ControlError::NotFree { .. })), "{what}: {refused:?}");
    }
    let unknown = ControlError::NoSuchIndex { index: IndexId(99) };
    assert_eq!(one.ask(give_nodes(99, &[first])), Err(unknown.clone()));
    assert_eq!(one.ask(take_nodes(99, 9)), Err(unknown));
    let mut swapped = Client::joined(&core, &[2, INSTANCE], 1);
    let others = ControlError::OtherServers { server: ServerId(1) };
    assert_eq!(swapped.ask(give_nodes(a, &[first])), Err(others.clone()));
    assert_eq!(swapped.ask(take_nodes(a, 10)), Err(others));
    // What a connection took and a part of which was given as nodes is not its own any more.
    let all_of_it = Request::GiveBack { index: a, offset: first, bytes: 8192 };
    assert!(matches!(one.ask(all_of_it), Err(ControlError::NotTaken { .. })));
}

fn take_back(index: u32, joins: u64, extents: &[(u64, u64)]) -> Request {
    Request::TakeBack { index, joins: Some(joins), extents: extents.into() }
}

/// Memory that a dead client had is taken back from one who is alone, and was since it began to look.
#[test]
fn memory_of_the_dead_is_taken_back_when_nobody_else_can_have_it() {
    let core = core(4);
    let (mut one, mut two) = (Client::alone(&core), Client::alone(&core));
    let (a, b) = (create(&mut one, "a").unwrap().id, create(&mut two, "b").unwrap().id);
    let (first, of_b) = (chunk(&mut one, a).0, chunk(&mut two, b).0);
    let second = chunk(&mut two, a).0;
    assert_eq!(one.ask(Request::GiveBack { index: a, offset: first + 8192, bytes: 4096 }), Ok(Reply::Done));
    let all = vec![
        (first, 8192, false),
        (first + 8192, 4096, true),
        (first + 12288, CHUNK_BYTES - 12288, false),
        (second, CHUNK_BYTES, false),
    ];
    assert_eq!(holdings(&mut one, a), (all.clone(), 1, 2));
    assert_eq!(holdings(&mut two, b).0, [(of_b, CHUNK_BYTES, false)]);
    assert_eq!(holdings(&mut two, 99).0, []);
    let take_back = |joins, extents: &[(u64, u64)]| take_back(a, joins, extents);
    let lost = [(first, 8192), (second, 4096)];
    let others = ControlError::OthersConnected { server: ServerId(0), others: 1 };
    assert_eq!(two.ask(take_back(2, &lost)), Err(others));
    // The other one dies; a third comes and goes.
    drop(one);
    let mut three = Client::alone(&core);
    assert_eq!(three.ask(Request::Agree), Ok(Reply::Done));
    drop(three);
    let came = ControlError::OthersCame { server: ServerId(0) };
    assert_eq!(two.ask(take_back(2, &lost)), Err(came));
    let (pieces, others, joins) = holdings(&mut two, a);
    assert_eq!((pieces, others, joins), (all.clone(), 0, 3));
    for (what, wrong) in [
        ("a rest", (first + 8192, 4096)),
        ("up into a rest", (first + 4096, 8192)),
        ("around a rest", (first, 16384)),
        ("another index's", (of_b, 4096)),
        ("over the end of a chunk", (second + 8192, CHUNK_BYTES)),
        ("nothing", (first, 0)),
        ("no line", (first + 32, 4096)),
        ("before the chunks", (4096, 4096)),
        ("behind the chunks", (first + 3 * CHUNK_BYTES, 4096)),
        ("wrapping", (first, u64::MAX - 63)),
    ] {
        let (offset, bytes) = wrong;
        let refused = ControlError::NotHeld { index: IndexId(a), offset, bytes };
        let with_good_ones = [(first, 4096), wrong];
        assert_eq!(two.ask(take_back(3, &[wrong])), Err(refused), "{what}");
        assert!(two.ask(take_back(3, &with_good_ones)).is_err(), "{what}");
    }
    let twice = [(second, 4096), (second, 4096)];
    assert!(
        two.ask(take_back(3, &twice)).is_err()
            && two.ask(take_back(3, &[(second, 4096), (first, 4096)])).is_err()
    );
    assert_eq!(holdings(&mut two, a).0, all, "nothing was changed");
    assert_eq!(two.ask(take_back(3, &lost)), Ok(Reply::Freed { bytes: 8192 + 4096 }));
    // It was its own chunk: what was taken back is not given back once more.
    let again = ControlError::NotTaken { index: IndexId(a), offset: second, bytes: 4096 };
    assert_eq!(two.ask(Request::GiveBack { index: a, offset: second, bytes: 4096 }), Err(again));
    let rest = Request::GiveBack { index: a, offset: second + 4096, bytes: CHUNK_BYTES - 4096 };
    assert_eq!(two.ask(rest), Ok(Reply::Done));
    assert_eq!(chunk(&mut two, a), (second + 4096, CHUNK_BYTES - 4096));
    assert_eq!(chunk(&mut two, a), (first, 8192));
    // What is too small for a part of a chunk is a free node, for which nothing is to be waited.
    let node = second + 4096;
    assert_eq!(two.ask(take_back(3, &[(node, 1024), (node + 2048, 512)])), Ok(Reply::Freed { bytes: 1536 }));
    let Ok(Reply::Batch(Some(batch))) = two.ask(take_nodes(a, 3)) else { panic!("there is one") };
    assert_eq!((batch.class, batch.nodes), (CLASS, vec![(node, None)]));
    let unknown = self::take_back(99, 3, &[(first, 4096)]);
    assert_eq!(two.ask(unknown), Err(ControlError::NoSuchIndex { index: IndexId(99) }));
}

/// A client that has said goodbye, or was fenced, has nothing any more; one that lists the servers otherwise takes
/// nothing back, and sees nothing.
#[test]
fn those_who_are_over_are_no_others() {
    let core = core(4);
    let mut one = Client::of_home(&core, &[7, INSTANCE], 1, 5);
    let mut gone = Client::of_home(&core, &[7, INSTANCE], 1, 4);
    let offset = chunk(&mut gone, 1).0;
    assert_eq!(holdings(&mut one, 1).1, 1);
    let census = Census { newest: 9, open: vec![5] };
    assert_eq!(one.ask(Request::Fence(census)), Ok(Reply::Done));
    let (pieces, others, joins) = holdings(&mut one, 1);
    assert_eq!((pieces, others), (vec![(offset, CHUNK_BYTES, false)], 0));
    let mut other = Client::joined(&core, &[8, INSTANCE], 1);
    assert_eq!(holdings(&mut other, 1).0, [], "another catalog's");
    let take_back = |joins| take_back(1, joins, &[(offset, CHUNK_BYTES)]);
    assert!(matches!(other.ask(take_back(joins + 1)), Err(ControlError::Restarted { .. })));
    assert!(other.send_frame(Request::Goodbye).1.is_err());
    assert_eq!(holdings(&mut one, 1).1, 0);
    assert_eq!(one.ask(take_back(joins + 1)), Ok(Reply::Freed { bytes: CHUNK_BYTES }));
}

#[test]
fn ids_of_nodes_are_reused_after_goodbye_only() {
    let core = core(4);
    let mut given = 0u32;
    let mut admit = |client: &mut Client| {
        given += 1;
        assert_eq!(
            client.ask(Request::Admit),
            Ok(Reply::Admitted { node: given as u16, epoch: 1, sweep: None })
        );
    };
    let (mut polite, mut dying) = (Client::alone(&core), Client::alone(&core));
    admit(&mut polite);
    admit(&mut dying);
    create(&mut dying, "a").unwrap();
    drop(dying);
    assert_eq!(polite.send_frame(Request::Goodbye), (vec![(3, Ok(Reply::Done))], Err(Close::Goodbye)));
    drop(polite);
    let mut many: Vec<Client> = (0..256).map(|_| Client::alone(&core)).collect();
    (2..65_535u32).for_each(|i| admit(&mut many[i as usize % 256]));
    assert_eq!(many[0].ask(Request::Admit), Ok(Reply::Admitted { node: 1, epoch: 1, sweep: None }));
    assert_eq!(many[1].ask(Request::Admit), Err(ControlError::TooManyNodes));
    assert_eq!(many[2].ask(Request::Admit), Err(ControlError::TooManyNodesOfOne { max: 256 }));
}

/// A client that could never reach the memory holds no lock: such connections do not use up ids for good.
#[test]
fn ids_of_clients_that_never_reached_the_memory_are_reused() {
    let core = core(4);
    let mut steady = Client::alone(&core);
    for _ in 0..3 {
        let mut greedy: Vec<Client> = (0..256).map(|_| Client::alone(&core)).collect();
        for client in &mut greedy {
            while client.ask(Request::Admit).is_ok() {}
        }
        assert_eq!(steady.ask(Request::Admit), Err(ControlError::TooManyNodes));
        drop(greedy);
        assert!(matches!(steady.ask(Request::Admit), Ok(Reply::Admitted { .. })));
    }
}

fn dead(client: &mut Client, after: u32) -> Vec<u16> {
    match client.ask(Request::Dead { after }) {
        Ok(Reply::Dead { nodes, more: false }) => nodes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_index_knows_who_had_died_before_it() {
    let core = core(4);
    let mut steady = Client::alone(&core);
    for node in [1, 2, 3] {
        let mut client = Client::alone(&core);
        assert_eq!(client.ask(Request::Admit), Ok(Reply::Admitted { node, epoch: 1, sweep: None }));
        create(&mut client, &node.to_string()).unwrap();
        if node == 2 {
            // It ends well.
            assert_eq!(client.send_frame(Request::Goodbye).1, Err(Close::Goodbye));
        }
    }
    let Ok(Reply::Census { census, dead: count }) = steady.ask(Request::Census) else { panic!() };
    assert_eq!((census.newest, census.open, count), (4, vec![1], 2));
    assert_eq!(
        (dead(&mut steady, 0), dead(&mut steady, 1), dead(&mut steady, 9)),
        (vec![1, 3], vec![3], vec![])
    );
    let create = |client: &mut Client, name: &str, fenced| {
        let (name, kind) = (name.into(), String::new());
        match client.ask(Request::Create { name, kind, config: vec![], fenced, temporary: false }) {
            Ok(Reply::Entry(entry)) => entry.fenced,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(create(&mut steady, "a", 1), 1);
    assert_eq!(create(&mut steady, "b", u32::MAX), 2, "no more than there are");
    let opened = steady.ask(Request::Open { name: "a".into() });
    assert!(
        matches!(opened, Ok(Reply::Entry(entry)) if entry.fenced == 1),
        "for all who open it, and later too"
    );
    let mut elsewhere = Client::joined(&core, &[2, INSTANCE], 1);
    assert_eq!(elsewhere.ask(Request::Census), Err(ControlError::NotHome));
    assert_eq!(elsewhere.ask(Request::Dead { after: 0 }), Err(ControlError::NotHome));
}

/// A server that does not keep the catalog frees what the catalog's server has permitted, and nothing else.
#[test]
fn only_its_key_frees_an_index() {
    let core = core(4);
    let mut one = Client::joined(&core, &[7, INSTANCE], 1);
    let mut two = Client::joined(&core, &[7, INSTANCE], 1);
    chunk(&mut one, 1);
    let free = |key| Request::Free { index: 1, key, census: Census::default() };
    for wrong in [SealKey(0), SealKey(8), SealKey(u128::MAX)] {
        assert_eq!(two.ask(free(wrong)), Ok(Reply::Freed { bytes: 0 }));
    }
    // Nor does it keep the index from taking more.
    chunk(&mut one, 1);
    assert_eq!(core.usage().chunk_bytes, 2 * CHUNK_BYTES);
    assert_eq!(two.ask(free(KEY)), Ok(Reply::Freed { bytes: 2 * CHUNK_BYTES }));
}

/// The queue pairs here of a client that server 0 has given up end before anything is freed.
#[test]
fn a_client_that_the_catalogs_server_gave_up_is_fenced_before_memory_is_freed() {
    let noting = Arc::new(Noting::default());
    let served = Served { instance: INSTANCE, ..served_verbs(4, Arc::clone(&noting) as Arc<dyn Responder>) };
    let core = Arc::new(ServiceCore::new(served));
    let join = |home| Client::of_home(&core, &[7, INSTANCE], 1, home);
    let (mut gone, mut steady, mut newer) = (join(5), join(6), join(10));
    let mut of_another_home = Client::of_home(&core, &[8, INSTANCE], 1, 5);
    let endpoint =
        Endpoint { gid: [1; 16], lid: 0, queue_pair: 9, first_packet: 5, mtu: 1024, reads_max: 16 };
    let pair = Request::QueuePair { shard: 0, endpoint };
    for client in [&mut gone, &mut steady, &mut newer, &mut of_another_home] {
        assert!(matches!(client.ask(pair.clone()), Ok(Reply::Answer(_))));
    }
    chunk(&mut gone, 1);
    let census = Census { newest: 9, open: vec![6] };
    let free = Request::Free { index: 1, key: KEY, census: census.clone() };
    assert_eq!(steady.ask(free), Ok(Reply::Freed { bytes: CHUNK_BYTES }));
    assert_eq!(*noting.forgotten.lock().unwrap(), [1]);
    assert_eq!(*noting.pairs.lock().unwrap(), BTreeSet::from([(2, 0), (3, 0), (4, 0)]));
    assert_eq!(gone.send_frame(pair.clone()).1, Err(Close::Fenced));
    for client in [&mut newer, &mut of_another_home] {
        assert!(matches!(client.ask(pair.clone()), Ok(Reply::Answer(_))));
    }
    assert_eq!(newer.ask(Request::Fence(census)), Ok(Reply::Done));
    assert_eq!(*noting.forgotten.lock().unwrap(), [1, 1], "and who asks is not forgotten");
}

#[test]
fn a_temporary_index_goes_with_its_connection() {
    let (home, other) = (core(4), core(4));
    let mut watching = Client::alone(&home);
    let (mut at_home, mut elsewhere) = (Client::alone(&home), Client::joined(&other, &[7, INSTANCE], 1));
    let create =
        Request::Create { name: named("a"), kind: String::new(), config: vec![], fenced: 0, temporary: true };
    let Ok(Reply::Entry(entry)) = at_home.ask(create) else { panic!() };
    let temporary = ControlError::Temporary { name: named("a") };
    assert_eq!(watching.ask(Request::Open { name: named("a") }), Err(temporary.clone()));
    assert_eq!(watching.ask(chunk_of(entry.id)), Err(temporary));
    assert!(
        entry.temporary && at_home.ask(Request::Open { name: named("a") }) == Ok(Reply::Entry(entry.clone()))
    );
    chunk(&mut at_home, entry.id);
    let take = Request::Chunk { index: entry.id, seal: entry.seal, temporary: true };
    assert!(matches!(elsewhere.ask(take), Ok(Reply::Chunk { .. })));
    chunk(&mut elsewhere, 99);
    assert_eq!((home.usage().chunk_bytes, other.usage().chunk_bytes), (CHUNK_BYTES, 2 * CHUNK_BYTES));
    drop((at_home, elsewhere));
    assert_eq!((home.usage().indexes, home.usage().chunk_bytes), (0, 0));
    assert_eq!(other.usage().chunk_bytes, CHUNK_BYTES, "what is not temporary stays");
    let name = named("a");
    assert_eq!(watching.ask(Request::Open { name }), Err(ControlError::NotFound { name: named("a") }));
}

#[test]
fn lists_come_in_pages_that_fit_frames() {
    let core = core(4);
    let mut client = Client::alone(&core);
    for i in 0..100 {
        let name = format!("{i:03}{}", "x".repeat(252));
        let request = create_of(name, &"k".repeat(32), vec![0xff; 4096]);
        assert!(matches!(client.ask(request), Ok(Reply::Entry(_))));
    }
    let (mut names, mut pages) = (Vec::new(), 0);
    loop {
        let after = names.last().cloned();
        let Ok(Reply::Page { entries, more }) = client.ask(Request::List { after }) else { panic!() };
        names.extend(entries.into_iter().map(|entry| entry.name));
        pages += 1;
        if !more {
            break;
        }
    }
    assert!((6..12).contains(&pages) && names.len() == 100 && names.is_sorted(), "{pages} pages");

    let long = "n".repeat(255);
    let others: Vec<Client> = (0..300)
        .map(|_| {
            let mut other = Client::silent(&core);
            let join = join_of(&[INSTANCE], 0, 0, &long);
            let mut bytes = greeting().to_vec();
            bytes.extend(other.frame(Request::Hello));
            bytes.extend(other.frame(join));
            assert_eq!(other.send(&bytes).1, Ok(()));
            other
        })
        .collect();
    let (mut after, mut seen) = (None, 0);
    loop {
        let Ok(Reply::Nodes { nodes, more }) = client.ask(Request::Nodes { after }) else { panic!() };
        assert!(!nodes.is_empty() && nodes.iter().all(|(number, _)| Some(*number) > after));
        after = nodes.last().map(|(number, _)| *number);
        seen += nodes.len();
        if !more {
            break;
        }
    }
    assert_eq!(seen, others.len() + 1);
    assert_eq!(
        client.ask(Request::Nodes { after: Some(u64::MAX) }),
        Ok(Reply::Nodes { nodes: vec![], more: false })
    );
}

/// Many small requests with large replies: the bytes that wait to be sent stay bounded.
#[test]
fn replies_that_are_not_taken_hold_requests_back() {
    let core = core(4);
    let mut client = Client::alone(&core);
    for i in 0..15 {
        let request = create_of(i.to_string(), "", vec![0; 4096]);
        assert!(matches!(client.ask(request), Ok(Reply::Entry(_))));
    }
    let asked = 500;
    let bytes: Vec<u8> = (0..asked).flat_map(|_| client.frame(Request::List { after: None })).collect();
    let (mut out, mut answered) = (Vec::new(), 0);
    let mut arrived = &bytes[..];
    loop {
        client.session.receive(arrived, &mut out).unwrap();
        assert!(out.len() <= 3 * frame::FRAME_BYTES_MAX + 64, "{} bytes wait", out.len());
        answered += control_kit::replies(&out).len();
        (arrived, out) = (&[], Vec::new());
        if !client.session.pending() {
            break;
        }
    }
    assert_eq!(answered, asked);
}

/// A responder that notes what it is told.
#[derive(Default)]
struct Noting {
    pairs: Mutex<BTreeSet<(u64, u16)>>,
    forgotten: Mutex<Vec<u64>>,
}

impl Responder for Noting {
    fn answer(&self, peer: PeerId, shard: ShardId, theirs: Endpoint) -> Result<Answer, String> {
        if theirs.queue_pair == 0 {
            return Err("é".repeat(3000));
        }
        self.pairs.lock().unwrap().insert((peer.0, shard.0));
        Ok(Answer { endpoint: theirs, region_address: 1 << 40, region_key: 7, write_ns: 500 })
    }

    fn forget(&self, peer: PeerId) {
        self.pairs.lock().unwrap().retain(|(of, _)| *of != peer.0);
        self.forgotten.lock().unwrap().push(peer.0);
    }
}

#[test]
fn queue_pairs_end_with_their_session() {
    let noting = Arc::new(Noting::default());
    let served = Served { instance: INSTANCE, ..served_verbs(4, Arc::clone(&noting) as Arc<dyn Responder>) };
    let core = Arc::new(ServiceCore::new(served));
    let endpoint =
        |queue_pair| Endpoint { gid: [1; 16], lid: 0, queue_pair, first_packet: 5, mtu: 1024, reads_max: 16 };
    let (mut one, mut two) = (Client::alone(&core), Client::alone(&core));
    for client in [&mut one, &mut two] {
        let answer = client.ask(Request::QueuePair { shard: 3, endpoint: endpoint(9) });
        assert!(matches!(answer, Ok(Reply::Answer(answer)) if answer.endpoint == endpoint(9)));
    }
    let refused = one.ask(Request::QueuePair { shard: 3, endpoint: endpoint(0) });
    assert!(
        matches!(&refused, Err(ControlError::QueuePair { server: ServerId(0), reason }) if reason.len() == 1024),
        "{refused:?}"
    );
    drop(one);
    assert_eq!(*noting.pairs.lock().unwrap(), BTreeSet::from([(2, 3)]));
    drop(two);
    assert_eq!(*noting.forgotten.lock().unwrap(), [1, 2]);

    let core = control_kit::core(4);
    let refused = Client::alone(&core).ask(Request::QueuePair { shard: 0, endpoint: endpoint(9) });
    assert!(matches!(refused, Err(ControlError::QueuePair { .. })));
}
