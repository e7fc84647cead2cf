//! Sweeps at the server that keeps the catalog: what processes are told, what they tell, and what ends a sweep.

use farwood_runtime::control::ControlError;
use farwood_runtime::control::wire::{Reply, Request};
use farwood_runtime::sweep::Step;

use crate::control_kit::{Client, INSTANCE, core};

/// Takes what a process hears with a sign of life, in which it says for which sweep it notes.
fn beat(client: &mut Client, noting: u64) -> Option<(u64, u32, Step)> {
    match client.ask(Request::Epoch { oldest: 1, fenced: 0, waits: false, flush: 0, noting }) {
        Ok(Reply::Epoch { sweep, .. }) => sweep,
        other => panic!("{other:?}"),
    }
}

fn late(client: &mut Client, sweep: u64, step: Step) -> Result<Vec<u16>, ControlError> {
    client.ask(Request::SweepStep { sweep, step }).map(|reply| match reply {
        Reply::Late { nodes } => nodes,
        other => panic!("{other:?}"),
    })
}

fn begin(client: &mut Client, index: u32) -> Result<u64, ControlError> {
    client.ask(Request::BeginSweep { index }).map(|reply| match reply {
        Reply::Sweep { number } => number,
        other => panic!("{other:?}"),
    })
}

fn tell(client: &mut Client, sweep: u64, pieces: &[(u64, u64)], is_last: bool) {
    let told = client.ask(Request::TellLists { sweep, pieces: pieces.into(), is_last });
    assert_eq!(told, Ok(Reply::Done));
}

#[test]
fn all_processes_with_compute_nodes_note_and_tell() {
    let core = core(4);
    let (mut one, mut two) = (Client::alone(&core), Client::alone(&core));
    let mut looks_only = Client::alone(&core);
    assert!(one.ask(Request::Admit).is_ok() && two.ask(Request::Admit).is_ok());
    assert_eq!(beat(&mut two, 0), None);
    let sweep = begin(&mut one, 5).unwrap();
    assert!(matches!(begin(&mut two, 5), Err(ControlError::Sweeping { .. })));
    assert_eq!(beat(&mut looks_only, 0), None, "it has no lists");
    assert_eq!(late(&mut one, sweep, Step::Notes), Ok(vec![1, 2]));
    assert_eq!(beat(&mut two, 0), Some((sweep, 5, Step::Notes)));
    beat(&mut one, sweep);
    assert_eq!(late(&mut one, sweep, Step::Notes), Ok(vec![2]));
    beat(&mut two, sweep);
    assert_eq!(late(&mut one, sweep, Step::Notes), Ok(vec![]));
    // Who joins now notes from its beginning on.
    let joined = looks_only.ask(Request::Admit);
    let begins_with = Some((sweep, 5));
    assert!(
        matches!(joined, Ok(Reply::Admitted { node: 3, sweep, .. }) if sweep == begins_with),
        "{joined:?}"
    );
    assert_eq!(late(&mut one, sweep, Step::Notes), Ok(vec![]));
    assert_eq!(late(&mut one, sweep, Step::Lists), Ok(vec![1, 2, 3]));
    assert_eq!(beat(&mut two, sweep), Some((sweep, 5, Step::Lists)));
    tell(&mut two, sweep, &[(4096, 64), (8192, 128)], false);
    tell(&mut two, sweep, &[(4160, 64)], true);
    tell(&mut looks_only, sweep, &[], true);
    tell(&mut one, sweep, &[(1 << 48, 64)], true);
    assert_eq!(late(&mut one, sweep, Step::Lists), Ok(vec![]));
    let told = one.ask(Request::SweptLists { sweep, from: 0 });
    let pieces = vec![(4096, 128), (8192, 128), (1 << 48, 64)];
    assert_eq!(told, Ok(Reply::SweptLists { pieces, more: false }));
    assert_eq!(
        two.ask(Request::SweptLists { sweep, from: 0 }),
        Err(ControlError::SweepVoid),
        "it is not theirs"
    );
    assert_eq!(one.ask(Request::EndSweep { sweep: Some(sweep) }), Ok(Reply::Done));
    assert_eq!(beat(&mut two, sweep), None);
}

#[test]
fn a_process_that_ends_before_it_has_told_makes_the_sweep_void() {
    for tells in [false, true] {
        let core = core(4);
        let (mut one, mut two) = (Client::alone(&core), Client::alone(&core));
        assert!(one.ask(Request::Admit).is_ok() && two.ask(Request::Admit).is_ok());
        let sweep = begin(&mut one, 5).unwrap();
        if tells {
            tell(&mut two, sweep, &[(4096, 64)], true);
        }
        assert_eq!(two.send_frame(Request::Goodbye).0.len(), 1);
        drop(two);
        let expected = if tells { Ok(vec![1]) } else { Err(ControlError::SweepVoid) };
        assert_eq!(late(&mut one, sweep, Step::Lists), expected);
    }
}

#[test]
fn a_sweep_ends_with_the_process_that_has_begun_it() {
    let core = core(4);
    let (mut one, mut two) = (Client::alone(&core), Client::alone(&core));
    assert!(one.ask(Request::Admit).is_ok() && two.ask(Request::Admit).is_ok());
    let first = begin(&mut one, 5).unwrap();
    drop(one);
    assert_eq!(beat(&mut two, first), None);
    assert!(begin(&mut two, 5).is_ok_and(|second| second > first));
    let mut elsewhere = Client::joined(&core, &[77, INSTANCE], 1);
    assert_eq!(begin(&mut elsewhere, 5), Err(ControlError::NotHome));
}

#[test]
fn many_pieces_are_told_page_by_page() {
    let core = core(4);
    let mut one = Client::alone(&core);
    assert!(one.ask(Request::Admit).is_ok());
    let sweep = begin(&mut one, 5).unwrap();
    let all: Vec<(u64, u64)> = (1..=9000).map(|n| (n * 4096, 64)).collect();
    for part in all.chunks(3000) {
        tell(&mut one, sweep, part, false);
    }
    tell(&mut one, sweep, &[], true);
    let (mut heard, mut from, mut pages) = (Vec::new(), 0, 0);
    loop {
        let told = one.ask(Request::SweptLists { sweep, from });
        let Ok(Reply::SweptLists { pieces, more }) = told else { panic!("{told:?}") };
        from = pieces.last().map_or(from, |(at, bytes)| at + bytes);
        heard.extend(pieces);
        pages += 1;
        if !more {
            break;
        }
    }
    assert!(heard == all && pages > 1);
}
