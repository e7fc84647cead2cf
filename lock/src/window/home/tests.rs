//! The home's decisions, event by event.

use super::*;

const KEY: KeyId = KeyId::from_words(1, 2);
const READ: Access = Access::Read;
const PUT: Access = Access::Write(0);
const UPDATE: Access = Access::Write(1);
const LEADER: ShardId = ShardId(3);

fn client(token: u32) -> WaiterId {
    WaiterId { shard: ShardId(token as u16 % 2), token }
}

/// Makes a home where clients 0, 1, 2 ... wait behind a leader.
fn waiting(accesses: &[Access]) -> Home {
    let mut home = Home::default();
    assert!(home.open(KEY, LEADER));
    for (token, &access) in (0..).zip(accesses) {
        assert!(!home.open(KEY, ShardId(0)));
        home.wait(KEY, client(token), access);
    }
    home
}

/// Ends the window of `leader`; yields what is to be done and which clients were in the group.
fn finish(home: &mut Home, leader: ShardId) -> (Action, Vec<u32>) {
    let mut group = Vec::new();
    let action = home.finish(KEY, leader, |client, _| group.push(client.token));
    (action, group)
}

fn lead(token: u32, readers: bool) -> Action {
    Action::Lead { to: client(token), readers }
}

/// Yields the windows, one after the other, until no client waits: each one's leader and group.
fn windows(accesses: &[Access]) -> Vec<(u32, Vec<u32>)> {
    let mut home = waiting(accesses);
    let (mut action, group) = finish(&mut home, LEADER);
    assert_eq!(group, [], "no client joins an open window");
    let mut windows = Vec::new();
    while let Action::Lead { to, readers } = action {
        let (next, group) = finish(&mut home, to.shard);
        assert_eq!(readers, group.iter().any(|&token| accesses[token as usize] == READ));
        windows.push((to.token, group));
        action = next;
    }
    assert_eq!((action, home.len(), home.waiters.len()), (Action::Nothing, 0, 0));
    windows
}

#[test]
fn a_lone_client_leaves_no_trace() {
    assert_eq!(windows(&[]), []);
}

#[test]
fn readers_share_one_read_of_the_first() {
    assert_eq!(windows(&[READ]), [(0, vec![])]);
    assert_eq!(windows(&[READ, READ, READ]), [(0, vec![1, 2])]);
}

#[test]
fn the_last_writer_stands_for_all_and_readers_join() {
    assert_eq!(windows(&[PUT, PUT, PUT]), [(2, vec![0, 1])]);
    assert_eq!(windows(&[READ, PUT, READ, PUT, READ]), [(3, vec![0, 1, 2, 4])]);
    assert_eq!(windows(&[READ, UPDATE]), [(1, vec![0])]);
}

#[test]
fn kinds_are_not_mixed_and_the_first_writer_decides() {
    assert_eq!(windows(&[PUT, UPDATE, PUT]), [(2, vec![0]), (1, vec![])]);
    assert_eq!(windows(&[UPDATE, PUT, READ]), [(0, vec![2]), (1, vec![])]);
    let third = Access::Write(2);
    assert_eq!(windows(&[third, PUT, UPDATE, PUT, third]), [(4, vec![0]), (3, vec![1]), (2, vec![])]);
}

/// However many of one kind come, one of the other kind is in the next window.
#[test]
fn no_client_starves() {
    let mut home = waiting(&[PUT, UPDATE]);
    assert_eq!(finish(&mut home, LEADER), (lead(0, false), vec![]));
    for token in 2..10 {
        home.wait(KEY, client(token), PUT);
    }
    assert_eq!(finish(&mut home, client(0).shard), (lead(1, false), vec![]));
    assert_eq!(finish(&mut home, client(1).shard), (lead(9, false), vec![]));
}

#[test]
fn a_failed_window_gives_every_client_its_place_back() {
    let mut home = waiting(&[UPDATE, PUT, READ, UPDATE]);
    assert_eq!(finish(&mut home, LEADER), (lead(3, true), vec![]));
    home.wait(KEY, client(4), UPDATE);
    assert_eq!(home.fail(KEY, client(3).shard), lead(4, true), "the last of what waits now");
    assert_eq!(home.fail(KEY, client(4).shard), lead(0, true));
    assert_eq!(finish(&mut home, client(0).shard), (lead(1, false), vec![2]));
    assert_eq!(home.fail(KEY, client(1).shard), Action::Nothing);
    assert_eq!((home.len(), home.waiters.len()), (0, 0));
}

#[test]
fn a_client_that_waits_or_has_joined_may_leave() {
    for gone in 0..4 {
        for joined in [false, true] {
            let mut home = waiting(&[READ; 4]);
            let mut leader = LEADER;
            if joined {
                assert_eq!(finish(&mut home, leader), (lead(0, true), vec![]));
                leader = client(0).shard;
            }
            let action = home.cancel(KEY, client(gone));
            let was_there = !(joined && gone == 0);
            let expected = if was_there { Action::Cancelled { to: client(gone) } } else { Action::Nothing };
            assert_eq!(action, expected);
            assert_eq!(home.cancel(KEY, client(gone)), Action::Nothing);
            home.wait(KEY, client(4), READ);
            let stay = |from: u32| (from..4).filter(|&token| token != gone).collect::<Vec<u32>>();
            let (action, group) = finish(&mut home, leader);
            if joined {
                assert_eq!((action, group), (lead(4, false), stay(1)));
                continue;
            }
            let mut all = stay(0);
            let first = all.remove(0);
            all.push(4);
            assert_eq!((action, group), (lead(first, true), vec![]));
            assert_eq!(finish(&mut home, client(first).shard), (Action::Nothing, all));
        }
    }
    assert_eq!(Home::default().cancel(KEY, client(0)), Action::Nothing);
}

#[test]
fn keys_do_not_mix_and_memory_is_recycled() {
    let mut home = Home::default();
    let mut bytes = 0;
    for round in 0..100 {
        let key = |low| KeyId::from_words(low, round);
        for low in 0..50 {
            assert!(home.open(key(low), LEADER));
            home.wait(key(low), client(low as u32), READ);
        }
        for low in 0..50 {
            let first = home.finish(key(low), LEADER, |_, _| panic!("no client has joined"));
            assert_eq!(first, lead(low as u32, false));
            assert_eq!(home.finish(key(low), client(low as u32).shard, |_, _| ()), Action::Nothing);
        }
        // Buckets that were used count as taken until the map tidies up: what is free in it varies.
        if round < 10 {
            bytes = home.bytes().max(bytes);
        }
        assert!(home.bytes() <= bytes, "{} bytes", home.bytes());
    }
}

#[test]
#[should_panic(expected = "by its leader")]
fn only_the_leaders_shard_ends_a_window() {
    let _ = finish(&mut waiting(&[]), ShardId(7));
}
