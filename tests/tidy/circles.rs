//! Checks that no crate's modules import each other in a circle: what one rests on does not rest on it.
//!
//! Looked at are the units of a crate, which are the folders and files directly below its `src`; `a.rs` and the folder
//! `a` are one. Within a unit, files may know each other. The root (`lib.rs`, `main.rs`) is no unit, since it names all
//! of them; what others import from it by way of a re-export is where it comes from. How a text is read: `imports.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::imports::{Import, Path, read};

/// Circles that are not opened yet, each with its crate, its units, in order, and why it is there. One that is no
/// longer there has to go from here, and so has one whose units are others now.
const KNOWN: &[(&str, &[&str], &str)] = &[
    ("cache", &["node_cache", "reader"], "a reader holds its cache, which makes it: `NodeCache::reader`"),
    ("cli", &["config", "footprint"], "a configuration is checked against the memory that it takes"),
    (
        "lock",
        &["deaths", "held", "janitor", "recovery", "table"],
        "what works on the table lies beside it, not below it",
    ),
];

/// A Rust file: its name from the root of the repository on, and its text.
pub(crate) type File = (String, String);

/// For each import of one unit from another, where it is.
type Imports = BTreeMap<(String, String), Vec<String>>;

#[derive(Default)]
struct Crate {
    /// Modules with their imports and the names of their files.
    modules: Vec<(Path, Vec<Import>, String)>,
    /// Modules that are compiled for tests only.
    tests: Vec<Path>,
}

/// Reports what is wrong with the circles of these files' crates, line by line.
pub(crate) fn violations(files: &[File]) -> String {
    judge(&crates(files), KNOWN)
}

fn judge(crates: &BTreeMap<String, Crate>, known: &[(&str, &[&str], &str)]) -> String {
    let mut report = String::new();
    let mut met = BTreeSet::new();
    for (name, own) in crates {
        let imports = own.imports();
        for circle in circles(&imports) {
            if known.iter().any(|(crate_name, units, _)| crate_name == name && circle.iter().eq(units.iter()))
            {
                met.insert((name.clone(), circle));
                continue;
            }
            let units = circle.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            writeln!(report, "{name}: these import each other in a circle: {units}")
                .expect("strings take everything");
            for ((from, to), places) in &imports {
                if circle.contains(from) && circle.contains(to) {
                    let places = places.join(", ");
                    writeln!(report, "    {from} imports {to}: {places}").expect("strings take everything");
                }
            }
        }
    }
    for (name, units, _) in known {
        let circle = units.iter().map(ToString::to_string).collect::<Vec<_>>();
        if !met.contains(&(name.to_string(), circle)) {
            writeln!(report, "{name}: no longer a circle, take it from the list: {}", units.join(", "))
                .expect("strings take everything");
        }
    }
    report
}

/// Yields the crates whose sources are among these files, by the folder that has their `src`.
fn crates(files: &[File]) -> BTreeMap<String, Crate> {
    let mut crates = BTreeMap::<String, Crate>::new();
    for (name, text) in files {
        let Some((folder, file)) = source(name) else { continue };
        let path = module(file);
        let read = read(&path, text);
        let own = crates.entry(folder.to_string()).or_default();
        own.tests.extend(read.tests);
        own.modules.push((path, read.imports, name.clone()));
    }
    crates
}

/// Yields the crate's folder and the file's name below its `src`. Programs in `bin` are crates of their own; tests are
/// no part of theirs.
fn source(name: &str) -> Option<(&str, &str)> {
    let (folder, file) = match name.strip_prefix("src/") {
        Some(file) => (".", file),
        None => name.split_once("/src/")?,
    };
    let test = file.ends_with("_tests.rs") || file.starts_with("bin/");
    (file.ends_with(".rs") && !test).then_some((folder, file))
}

fn module(file: &str) -> Path {
    let mut path: Path = file.trim_end_matches(".rs").split('/').map(String::from).collect();
    let root = path.len() == 1 && ["lib", "main"].contains(&path[0].as_str());
    if root || path.last().is_some_and(|last| last == "mod") {
        path.pop();
    }
    path
}

impl Crate {
    fn imports(&self) -> Imports {
        let units: BTreeSet<&str> = self.modules.iter().filter_map(|(path, ..)| first(path)).collect();
        // What the root calls by a name of its own, and the unit that this comes from.
        let names: BTreeMap<&str, &str> = self
            .modules
            .iter()
            .filter(|(path, ..)| path.is_empty())
            .flat_map(|(_, imports, _)| imports)
            .filter_map(|import| Some((import.name.as_deref()?, first(&import.path)?)))
            .collect();
        let mut found = Imports::new();
        for (path, imports, file) in &self.modules {
            let Some(from) = first(path).filter(|_| !self.is_test(path)) else { continue };
            for Import { line, path, .. } in imports {
                let Some(name) = first(path) else { continue };
                // Everything of the root: whatever it has.
                let all = if name == "*" { names.values().copied().collect() } else { Vec::new() };
                let one = units.get(name).or_else(|| names.get(name)).copied();
                for to in all.into_iter().chain(one).filter(|to| *to != from && units.contains(to)) {
                    let places = found.entry((from.to_string(), to.to_string())).or_default();
                    let place = format!("{file}:{line}");
                    if places.last() != Some(&place) {
                        places.push(place);
                    }
                }
            }
        }
        found
    }

    fn is_test(&self, path: &[String]) -> bool {
        self.tests.iter().any(|test| path.starts_with(test))
    }
}

fn first(path: &[String]) -> Option<&str> {
    path.first().map(String::as_str)
}

/// Yields the units of each circle, in order: those that reach each other.
fn circles(imports: &Imports) -> BTreeSet<Vec<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        imports.keys().map(|(from, _)| (from, reached(imports, from))).collect();
    let reaches = |from: &String, to: &String| reached.get(from).is_some_and(|all| all.contains(to));
    let circle = |unit: &&String| -> Vec<String> {
        reached[*unit].iter().filter(|other| reaches(other, unit)).map(ToString::to_string).collect()
    };
    reached.keys().map(circle).filter(|circle| !circle.is_empty()).collect()
}

fn reached<'a>(imports: &'a Imports, from: &String) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut todo = vec![from];
    while let Some(unit) = todo.pop() {
        for (_, to) in imports.keys().filter(|(from, _)| from == unit) {
            if reached.insert(to) {
                todo.push(to);
            }
        }
    }
    reached
}

#[cfg(test)]
fn judged(files: &[(&str, &str)], known: &[(&str, &[&str], &str)]) -> String {
    let files: Vec<File> = files.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect();
    judge(&crates(&files), known)
}

#[test]
fn finds_circles() {
    let a = ("x/src/a/mod.rs", "use crate::b::B;");
    let b = ("x/src/b.rs", "\nfn f(c: &super::c::C) {}");
    let deep = ("x/src/c/d/e.rs", "use super::super::super::a::{self, A};");
    assert_eq!(judged(&[a, b], &[]), "");
    assert_eq!(
        judged(&[a, b, deep], &[]),
        "x: these import each other in a circle: a, b, c\n    \
         a imports b: x/src/a/mod.rs:1\n    \
         b imports c: x/src/b.rs:2\n    \
         c imports a: x/src/c/d/e.rs:1\n"
    );
    // Not within a unit, nor between crates.
    assert_eq!(judged(&[("x/src/a.rs", "use crate::a::b;"), ("x/src/a/b.rs", "use super::c;")], &[]), "");
    assert_eq!(judged(&[a, b, ("y/src/c.rs", "use crate::a;")], &[]), "");
    // Nor by way of tests.
    let tests = ("x/src/c/tests.rs", "use crate::a;");
    assert_eq!(judged(&[a, b, ("x/src/c/mod.rs", "#[cfg(test)]\nmod tests;"), tests], &[]), "");
    assert!(judged(&[a, b, ("x/src/c/mod.rs", "mod tests;"), tests], &[]).contains("a, b, c"));
    assert_eq!(judged(&[a, b, ("x/src/c/d_tests.rs", "use crate::a;")], &[]), "");
}

#[test]
fn follows_the_roots_names() {
    let root = ("src/lib.rs", "mod a; mod b;\npub use a::A;\npub use b::inner::B as C;");
    let a = ("src/a.rs", "use crate::C;");
    let circle = "a imports b: src/a.rs:1\n    b imports a: src/b.rs:1\n";
    for back in ["use crate::A;", "fn f(_: super::A) {}", "use super::*;"] {
        let report = judged(&[root, a, ("src/b.rs", back)], &[]);
        assert!(report.starts_with(".: ") && report.ends_with(circle), "{back}: {report}");
    }
    assert_eq!(judged(&[root, a, ("src/b.rs", "use crate::root_item;")], &[]), "");
}

#[test]
fn keeps_to_the_list_of_known_circles() {
    let files = [("x/src/a.rs", "use crate::b;"), ("x/src/b.rs", "use crate::a;")];
    assert_eq!(judged(&files, &[("x", &["a", "b"], "why")]), "");
    assert!(judged(&files, &[("y", &["a", "b"], "why")]).contains("y: no longer a circle"));
    let more = [files[0], ("x/src/b.rs", "use crate::{a, c};"), ("x/src/c.rs", "use crate::a;")];
    let report = judged(&more, &[("x", &["a", "b"], "why")]);
    assert!(report.contains("circle: a, b, c") && report.contains("no longer a circle"), "{report}");
}
