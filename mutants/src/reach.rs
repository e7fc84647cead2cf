//! Which seeds reach which mutants, from one run of all without any mistake: a mutant that few seeds reach is judged by
//! those, and not by a hundred times as many.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::judge::{Bounds, End, RECORD, run};
use crate::tree::Places;

/// The mutants that a seed of an index has reached.
#[derive(Serialize, Deserialize)]
struct Line {
    index: String,
    seed: u64,
    mutants: BTreeSet<u32>,
}

/// The seeds of each index, in their order, with what they reach.
#[derive(Default)]
pub(crate) struct Reach(BTreeMap<String, BTreeMap<u64, BTreeSet<u32>>>);

impl Reach {
    pub(crate) fn read(places: &Places) -> Result<Self> {
        let text = fs::read_to_string(&places.reach).unwrap_or_default();
        let mut reach = Reach::default();
        for line in text.lines() {
            let Line { index, seed, mutants } = serde_json::from_str(line)?;
            reach.0.entry(index).or_default().insert(seed, mutants);
        }
        Ok(reach)
    }

    /// Yields the first `most` seeds of `index` that reach the mutant.
    pub(crate) fn seeds(&self, index: &str, mutant: u32, most: usize) -> Vec<u64> {
        let seeds = self.0.get(index).into_iter().flatten();
        seeds.filter(|(_, mutants)| mutants.contains(&mutant)).map(|(seed, _)| *seed).take(most).collect()
    }

    fn knows(&self, index: &str, seed: u64) -> bool {
        self.0.get(index).is_some_and(|seeds| seeds.contains_key(&seed))
    }
}

/// Adds the seeds below `seeds` of `index` that are not known yet. One that fails without any mistake is left out.
pub(crate) fn record(places: &Places, program: &Path, index: &str, seeds: u64, bounds: Bounds) -> Result<()> {
    let known = Reach::read(places)?;
    let new: Vec<u64> = (0..seeds).filter(|seed| !known.knows(index, *seed)).collect();
    let mut file = OpenOptions::new().create(true).append(true).open(&places.reach)?;
    let mut wrong = Vec::new();
    run(program, RECORD, index, &new, bounds, |seed, end, mutants| {
        if end != End::Passed {
            return wrong.push(format!("seed {seed} of {index}, without any mistake: {end:?}"));
        }
        let line = Line { index: index.to_owned(), seed, mutants: mutants.into_iter().collect() };
        let written = serde_json::to_string(&line).map(|line| writeln!(file, "{line}"));
        if !matches!(written, Ok(Ok(()))) {
            wrong.push(format!("seed {seed} of {index}: {written:?}"));
        }
    })?;
    wrong.iter().for_each(|wrong| eprintln!("{wrong}"));
    Ok(())
}
