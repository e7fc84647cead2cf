//! The tables in `docs/testing.md`: how many mutants of each part were killed, and which survived.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::mutant::{Fate, Verdict};

#[derive(Default)]
struct Row {
    mutants: u32,
    killed: u32,
    hung: u32,
    within: [u32; 3],
}

/// Mutants that no seed can tell from the original, and why.
pub(crate) fn equivalent() -> BTreeMap<u32, &'static str> {
    let lines = include_str!("../equivalent.txt").lines().filter(|line| !line.starts_with('#'));
    let parts = lines.map(|line| line.split_once(": ").expect("numbers, a colon, a reason"));
    let each = parts.flat_map(|(numbers, why)| numbers.split(' ').map(move |number| (number, why)));
    each.map(|(number, why)| (number.parse().expect("a number"), why)).collect()
}

/// Yields the tables, in Markdown; of verdicts on the same mutant the last one counts.
pub(crate) fn tables(verdicts: &[Verdict]) -> String {
    let mut last: BTreeMap<u32, &Verdict> = BTreeMap::new();
    last.extend(verdicts.iter().map(|verdict| (verdict.mutant.number, verdict)));
    let (equivalent, all) = (equivalent(), last.len());
    last.retain(|number, _| !equivalent.contains_key(number));
    let mut text = format!("{} of {all} cannot be told from the original.\n\n", all - last.len());
    text += &by(&last, "operator", |verdict| operator(&verdict.mutant.operator));
    text += "\n";
    text += &by(&last, "part", |verdict| part(&verdict.mutant.file));
    text += "\n| survivor | mistake | seeds | |\n|---|---|---|---|\n";
    for verdict in last.values() {
        let Fate::Survived { seeds } = verdict.fate else { continue };
        let mutant = &verdict.mutant;
        let place = format!("{}:{} {}", mutant.file, mutant.line, mutant.function);
        let reached = if verdict.reached { "" } else { "never reached" };
        writeln!(
            text,
            "| {} {place} | {}: `{}` | {seeds} | {reached} |",
            mutant.number, mutant.operator, mutant.original
        )
        .expect("strings take everything");
    }
    text
}

fn by(last: &BTreeMap<u32, &Verdict>, title: &str, of: impl Fn(&Verdict) -> String) -> String {
    let (mut rows, mut all) = (BTreeMap::<String, Row>::new(), Row::default());
    for verdict in last.values() {
        for row in [rows.entry(of(verdict)).or_default(), &mut all] {
            row.add(&verdict.fate);
        }
    }
    let mut text =
        format!("| {title} | mutants | killed | % | by a hang | first seed | within 10 | within 100 |\n");
    text += "|---|---|---|---|---|---|---|---|\n";
    for (name, row) in rows.iter().map(|(name, row)| (name.as_str(), row)).chain([("all", &all)]) {
        let Row { mutants, killed, hung, within: [first, ten, hundred] } = row;
        let share = f64::from(*killed) * 100.0 / f64::from(*mutants);
        writeln!(
            text,
            "| {name} | {mutants} | {killed} | {share:.1} | {hung} | {first} | {ten} | {hundred} |"
        )
        .expect("strings take everything");
    }
    text
}

impl Row {
    fn add(&mut self, fate: &Fate) {
        self.mutants += 1;
        match fate {
            Fate::Killed { seed, .. } => {
                self.killed += 1;
                for (within, seeds) in self.within.iter_mut().zip([1, 10, 100]) {
                    *within += u32::from(*seed < seeds);
                }
            }
            Fate::Crashed { .. } | Fate::Hung { .. } => {
                self.killed += 1;
                self.hung += 1;
            }
            Fate::Survived { .. } => {}
        }
    }
}

/// Operators that are one kind.
fn operator(name: &str) -> String {
    let kind = match name {
        _ if name.starts_with("by hand") => "by hand",
        _ if name.starts_with("without .") || name.contains("() before .") => {
            "verb of a chain left out, or moved"
        }
        _ if name.parse::<char>().is_ok() => name,
        _ => match name.split_once(" to ") {
            Some((from, _)) if from.parse::<u64>().is_ok() => "integer + 1",
            Some(("true" | "false", _)) => "the other bool",
            Some(("&&" | "||", _)) => "&& and || exchanged",
            Some(("<" | "<=" | ">" | ">=" | "==" | "!=", _)) => "comparison",
            Some(("min" | "max" | "Some", _)) => "min and max exchanged, Some to None",
            Some(_) => "arithmetic and bits",
            None => name,
        },
    };
    kind.to_owned()
}

/// Yields the folder, and of the locks the windows apart.
fn part(file: &str) -> String {
    file.rsplit_once('/').map_or(file, |(folder, _)| folder).to_owned()
}
