//! The home's decisions, event by event.

use super::*;
use crate::word::LockWord;

const KEY: u64 = 64;

fn client(token: u32) -> WaiterId {
    WaiterId { shard: ShardId(1), token }
}

fn claim() -> Claim {
    Claim { word: LockWord::new(1, 0, 7), vacant: 5 }
}

fn granted(token: u32, kept: Option<Claim>, depth: u8, hinted: bool) -> Action {
    Action::Grant { to: client(token), grant: Grant { kept, depth, hinted } }
}

fn release(kept: bool) -> Release {
    Release { kept: kept.then(claim), unused: false }
}

/// Makes a home with `count` waiters behind holder 0.
fn queue_of(count: u32) -> Home {
    let mut home = Home::default();
    assert_eq!(home.request(KEY, client(0)), granted(0, None, 0, false));
    for token in 1..=count {
        let action = home.request(KEY, client(token));
        assert_eq!(action, if token == 1 { Action::Hint { to: client(0) } } else { Action::Nothing });
    }
    home
}

#[test]
fn an_uncontended_lock_leaves_no_trace() {
    let mut home = queue_of(0);
    assert_eq!(home.release(KEY, client(0), release(false)), Action::Nothing);
    assert_eq!(home.len(), 0);
}

#[test]
fn hand_overs_count_and_a_cas_starts_anew() {
    let mut home = queue_of(4);
    assert_eq!(home.release(KEY, client(0), release(true)), granted(1, Some(claim()), 1, true));
    assert_eq!(home.release(KEY, client(1), release(true)), granted(2, Some(claim()), 2, true));
    assert_eq!(home.release(KEY, client(2), release(false)), granted(3, None, 0, true));
    assert_eq!(home.release(KEY, client(3), release(true)), granted(4, Some(claim()), 1, false));
    assert_eq!(home.request(KEY, client(5)), Action::Hint { to: client(4) });
}

#[test]
fn a_lock_that_comes_back_unused_counts_as_no_hand_over() {
    let mut home = queue_of(2);
    assert_eq!(home.release(KEY, client(0), release(true)), granted(1, Some(claim()), 1, true));
    assert_eq!(home.cancel(KEY, client(1)), Action::Nothing);
    let unused = Release { kept: Some(claim()), unused: true };
    assert_eq!(home.release(KEY, client(1), unused), granted(2, Some(claim()), 1, false));
}

#[test]
fn a_word_kept_for_a_cancelled_waiter_is_unlocked_before_the_lock_is_free() {
    let mut home = queue_of(1);
    assert_eq!(home.cancel(KEY, client(1)), Action::Cancelled { to: client(1) });
    assert_eq!(home.release(KEY, client(0), release(true)), Action::Unlock { kept: claim() });
    assert_eq!(home.request(KEY, client(2)), Action::Nothing);
    assert_eq!(home.unlocked(KEY), granted(2, None, 0, false));
    assert_eq!(home.release(KEY, client(2), release(true)), Action::Unlock { kept: claim() });
    assert_eq!(home.unlocked(KEY), Action::Nothing);
    assert_eq!(home.len(), 0);
}

#[test]
fn waiters_leave_from_any_place() {
    for gone in 1..=3 {
        let mut home = queue_of(3);
        assert_eq!(home.cancel(KEY, client(gone)), Action::Cancelled { to: client(gone) });
        assert_eq!(home.cancel(KEY, client(gone)), Action::Nothing);
        assert_eq!(home.request(KEY, client(4)), Action::Nothing);
        let mut holder = 0;
        for next in (1..=4).filter(|&token| token != gone) {
            let action = home.release(KEY, client(holder), release(false));
            assert_eq!(action, granted(next, None, 0, next < 4));
            holder = next;
        }
        assert_eq!(home.release(KEY, client(holder), release(false)), Action::Nothing);
    }
}

#[test]
fn locks_do_not_mix_and_memory_is_recycled() {
    let mut home = Home::default();
    let mut bytes = 0;
    for round in 0..100 {
        for key in 0..50 {
            assert_eq!(home.request(key * 8, client(0)), granted(0, None, 0, false));
            assert_eq!(home.request(key * 8, client(1)), Action::Hint { to: client(0) });
        }
        for key in 0..50 {
            assert_eq!(home.release(key * 8, client(0), release(false)), granted(1, None, 0, false));
            assert_eq!(home.release(key * 8, client(1), release(false)), Action::Nothing);
        }
        assert!(round == 0 || home.bytes() == bytes, "{} bytes", home.bytes());
        bytes = home.bytes();
    }
}

#[test]
#[should_panic(expected = "by its holder")]
fn only_the_holder_releases() {
    let _ = queue_of(1).release(KEY, client(1), release(false));
}

#[test]
fn the_limit_and_the_hint_decide() {
    assert!(passes_on(true, 3, 4) && !passes_on(true, 4, 4));
    assert!(!passes_on(false, 0, 4) && !passes_on(true, 0, 0));
}
