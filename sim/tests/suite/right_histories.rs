//! Histories of an index that does everything right pass, whatever the clients and the faults.

use farwood_sim::oracle::{check_history, check_one_client};

use crate::kit::{self, Shape};

#[test]
fn pass() {
    for seed in 0..300 {
        let lost = [0.0, 0.002, 0.02, 0.1][seed as usize % 4];
        let scans = [0.0, 0.05, 0.3][seed as usize % 3];
        let clients = [1, 3, 16, 40][seed as usize / 12 % 4];
        let shape = Shape { clients, keys: 5 + seed as u32 % 60, ops: 1000, scans, lost };
        let (history, initial) = kit::run(shape, seed);
        if let Err(violation) = check_history(&history, &initial) {
            panic!("{shape:?} seed {seed}: {violation}");
        }
    }
}

#[test]
fn pass_with_one_key_that_all_fight_for() {
    for seed in 0..20 {
        let shape = Shape { clients: 16, keys: 1, ops: 2000, scans: 0.02, lost: 0.01 };
        let (history, initial) = kit::run(shape, seed);
        if let Err(violation) = check_history(&history, &initial) {
            panic!("seed {seed}: {violation}");
        }
    }
}

#[test]
fn pass_as_those_of_a_map_if_there_is_one_client() {
    for seed in 0..50 {
        let lost = [0.0, 0.05][seed as usize % 2];
        let (history, initial) = kit::run(Shape { clients: 1, keys: 40, ops: 500, scans: 0.2, lost }, seed);
        if let Err(violation) = check_one_client(&history, initial) {
            panic!("seed {seed}: {violation}");
        }
    }
}
