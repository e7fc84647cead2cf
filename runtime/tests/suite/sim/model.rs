//! Predictions of the model of the NICs: atomics on one word are served one by one, waiting atomics hold up others when
//! they fill the responder's slots, and both roles of a machine share its NIC.

use std::cell::Cell;
use std::rc::Rc;

use farwood_runtime::sim::{Profile, Reordering, SimConfig, Simulation};
use farwood_runtime::{RemotePtr, Verbs};

use super::kit;
use super::kit::{LATE_NS, area, cas, config, faa, read, run_all, simulation, start};

/// Measures nanoseconds per CAS when 16 clients do 100 each; `next` chooses the word, the expected and the desired
/// value.
fn ns_per_cas(next: impl Fn(&Simulation, u64, u64) -> (RemotePtr, u64, u64) + Copy + 'static) -> u64 {
    const CLIENTS: u64 = 16;
    const ROUNDS: u64 = 100;
    let simulation = simulation(1, Reordering::NONE);
    let alive = Rc::new(Cell::new(0));
    for client in 0..CLIENTS {
        let v = simulation.shard(client as u16 % 2, client as u16 / 2 % 2);
        let plan: Vec<_> = (0..ROUNDS).map(|round| next(&simulation, client, round)).collect();
        start(&v.clone(), &alive, async move {
            for (at, expected, desired) in plan {
                cas(&v, at, expected, desired).await.unwrap();
            }
        });
    }
    run_all(&simulation, &alive);
    simulation.now() / (CLIENTS * ROUNDS)
}

fn locks(simulation: &Simulation, is_on_chip: bool) -> RemotePtr {
    let control = simulation.shard(0, 0).control().clone();
    let info = &control.servers()[0];
    if is_on_chip { info.device_locks.expect("the profile has some").base } else { info.locks.base }
}

#[test]
fn atomics_on_one_word_are_served_one_by_one() {
    let profile = Profile::CONNECTX5;
    let is_near = |ns: u64, wanted: u64| ns.abs_diff(wanted) * 20 <= wanted;
    // Every CAS succeeds: it puts in what it expects.
    let succeeding = ns_per_cas(|simulation, _, _| (locks(simulation, false), 0, 0));
    assert!(is_near(succeeding, profile.cas_success_ns), "{succeeding}");
    let failing = ns_per_cas(|simulation, _, _| (locks(simulation, false), 1, 2));
    assert!(is_near(failing, profile.cas_failure_ns), "{failing}");
    for expected in [0, 1] {
        let on_chip = if expected == 0 {
            ns_per_cas(|simulation, _, _| (locks(simulation, true), 0, 0))
        } else {
            ns_per_cas(|simulation, _, _| (locks(simulation, true), 1, 2))
        };
        // 16 clients are too few to keep a word on the chip busy all the time; it cannot be faster than it is.
        assert!((profile.on_chip_ns..2 * profile.on_chip_ns).contains(&on_chip), "{on_chip}");
    }
    // Words that share a bucket are as one; others are not.
    let colliding =
        ns_per_cas(|simulation, client, _| (locks(simulation, false).add(client % 2 * 4096), 0, 0));
    assert!(is_near(colliding, profile.cas_success_ns), "{colliding}");
    let apart = ns_per_cas(|simulation, client, _| (locks(simulation, false).add(client * 8), 0, 0));
    assert!(apart < profile.cas_success_ns / 2, "{apart}");
}

/// Measures the duration of a READ while `waiting` clients of another node hammer one lock word.
fn read_beside(waiting: u64, responder_slots: usize) -> u64 {
    let profile = Profile { responder_slots, ..Profile::CONNECTX5 };
    let simulation = Simulation::new(&SimConfig { profile, ..config(1, Reordering::NONE) }).unwrap();
    let (lock, at) = (locks(&simulation, false), area(&simulation, 0));
    let alive = Rc::new(Cell::new(0));
    for client in 0..waiting {
        let v = simulation.shard(0, client as u16 % 2);
        start(&v.clone(), &alive, async move {
            loop {
                faa(&v, lock, 1).await.unwrap();
            }
        });
    }
    let v = simulation.shard(1, 0);
    let client = v.clone();
    let reading = async move {
        client.pause(300_000).await;
        let before = client.now();
        for _ in 0..20 {
            read(&client, at, 64).await.unwrap();
        }
        (client.now() - before) / 20
    };
    simulation.block_on(&v, LATE_NS, reading).unwrap()
}

#[test]
fn a_full_house_of_waiting_atomics_holds_up_others() {
    let (alone, some, full, roomy) =
        (read_beside(0, 80), read_beside(60, 80), read_beside(200, 80), read_beside(200, 400));
    assert!(some < alone + 300, "there are slots left: {some} after {alone}");
    assert!(full > 10 * alone, "there is none: {full} after {alone}");
    assert!(roomy < alone + 300, "it is the slots: {roomy} after {alone}");
}

/// Measures the bytes per us that node 1 reads from server 0, while the node of that machine, if it has one, reads from
/// server 1.
fn read_rate(colocated: bool, is_disturbed: bool) -> u64 {
    const BYTES: usize = 4096;
    let simulation = Simulation::new(&SimConfig { colocated, ..config(1, Reordering::NONE) }).unwrap();
    let (at, other) = (area(&simulation, 0), area(&simulation, 1));
    let alive = Rc::new(Cell::new(0));
    if is_disturbed {
        for client in 0..48 {
            let v = simulation.shard(0, client % 2);
            start(&v.clone(), &alive, async move {
                loop {
                    kit::write(&v, other, BYTES, 1).await.unwrap();
                }
            });
        }
    }
    let readers = Rc::new(Cell::new(0));
    for client in 0..16 {
        let v = simulation.shard(1, client % 2);
        start(&v.clone(), &readers, async move {
            for _ in 0..100 {
                read(&v, at, BYTES).await.unwrap();
            }
        });
    }
    run_all(&simulation, &readers);
    16 * 100 * BYTES as u64 * 1000 / simulation.now()
}

/// Bytes that server 0 returns and bytes that node 0 writes leave over one link.
#[test]
fn both_roles_of_a_machine_share_its_nic() {
    let (alone, shared) = (read_rate(true, false), read_rate(true, true));
    assert!(shared * 10 < alone * 9, "{shared} of {alone} bytes per us");
    let (apart, beside) = (read_rate(false, false), read_rate(false, true));
    assert!(beside * 50 > apart * 49, "machines of their own: {beside} of {apart} bytes per us");
}
