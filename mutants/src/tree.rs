//! The copy of the repository in which all mistakes are planted at once, each asleep until `FARWOOD_MUTANT` names it,
//! so that there is one build for all of them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

use serde_json::Value;

use crate::Result;
use crate::hand;
use crate::mutant::{Mutant, TARGETS, indexes_of};
use crate::points::{Point, nested, points};

/// The module that every crate with mutants gets. It says on standard error which mutant is reached, once: the chosen
/// one, or all of them.
const SWITCH: &str = r#"
pub(crate) mod mutant {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicBool, Ordering};
    const RECORD: u32 = u32::MAX;
    static CHOSEN: LazyLock<u32> = LazyLock::new(|| match std::env::var("FARWOOD_MUTANT") {
        Ok(text) if text == "record" => RECORD,
        Ok(text) => text.parse().unwrap_or(0),
        Err(_) => 0,
    });
    static REACHED: [AtomicBool; 1 << 20] = [const { AtomicBool::new(false) }; 1 << 20];
    pub(crate) fn is_on(number: u32) -> bool {
        let chosen = *CHOSEN;
        if chosen == number || chosen == RECORD {
            tell(number);
        }
        chosen == number
    }
    #[cold]
    fn tell(number: u32) {
        if !REACHED[number as usize].swap(true, Ordering::Relaxed) {
            eprintln!("mutant reached: {number}");
        }
    }
}
"#;

/// Builds until no mutant is left that does not compile, at most so often.
const ROUNDS_MAX: u32 = 12;

/// Where everything lies, below the repository's `target`.
pub(crate) struct Places {
    pub(crate) repository: PathBuf,
    tree: PathBuf,
    build: PathBuf,
    pub(crate) list: PathBuf,
    pub(crate) verdicts: PathBuf,
    pub(crate) reach: PathBuf,
}

impl Places {
    pub(crate) fn new(repository: &Path) -> Self {
        let own = repository.join("target/mutants");
        Places {
            repository: repository.to_owned(),
            tree: own.join("tree"),
            build: own.join("build"),
            list: own.join("list.json"),
            verdicts: own.join("verdicts.jsonl"),
            reach: own.join("reach.jsonl"),
        }
    }

    /// Yields the program with all mutants.
    pub(crate) fn program(&self) -> PathBuf {
        self.build.join("swarm/farwood")
    }
}

/// A file with its points, numbered.
struct Planted {
    name: String,
    text: String,
    points: Vec<(u32, Point)>,
}

/// Copies, plants and builds; yields the mutants that compile.
pub(crate) fn build(places: &Places) -> Result<Vec<Mutant>> {
    copy(places)?;
    let mut files = plant(places)?;
    for _ in 0..ROUNDS_MAX {
        let ranges = write(places, &files)?;
        let mut wrong = compile(places, "check", &ranges)?;
        if wrong.is_empty() {
            // Some mistakes are found only while code is generated.
            wrong = compile(places, "build", &ranges)?;
        }
        if wrong.is_empty() {
            let mutants: Vec<Mutant> = files.iter().flat_map(mutants_of).collect();
            fs::write(&places.list, serde_json::to_string_pretty(&mutants)?)?;
            return Ok(mutants);
        }
        eprintln!("{} do not compile", wrong.len());
        for file in &mut files {
            file.points.retain(|(number, _)| !wrong.contains(number));
        }
    }
    Err(format!("after {ROUNDS_MAX} rounds there are still mutants that do not compile").into())
}

/// Copies what git knows or would take, and leaves alone what is the same, which then is not built again.
fn copy(places: &Places) -> Result<()> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(&places.repository)
        .output()?;
    let targets: BTreeSet<String> = sources(places)?.into_iter().chain(roots()).collect();
    for name in String::from_utf8(listed.stdout)?.split_terminator('\0') {
        let from = places.repository.join(name);
        if from.is_file() && !targets.contains(name) {
            write_if_new(&places.tree.join(name), &fs::read(from)?)?;
        }
    }
    Ok(())
}

fn write_if_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    fs::write(path, bytes)
}

/// Yields the files that get mutants.
fn sources(places: &Places) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for target in TARGETS {
        let path = places.repository.join(target);
        if path.is_file() {
            names.push((*target).to_owned());
            continue;
        }
        for entry in fs::read_dir(&path).map_err(|error| format!("{target}: {error}"))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let is_test = name.starts_with("test") || name.ends_with("_tests.rs") || name == "exhaustive.rs";
            if name.ends_with(".rs") && !is_test {
                names.push(format!("{target}/{name}"));
            }
        }
    }
    names.sort();
    names.dedup();
    Ok(names)
}

fn roots() -> impl Iterator<Item = String> {
    ["cache", "index", "lock", "runtime"].iter().map(|name| format!("{name}/src/lib.rs"))
}

fn plant(places: &Places) -> Result<Vec<Planted>> {
    let (mut files, mut used) = (Vec::new(), BTreeSet::new());
    for name in sources(places)? {
        let text = fs::read_to_string(places.repository.join(&name))?;
        // By hand first: of two that overlap in part the first stays.
        let by_hand = hand::points(&name, &text)?;
        let found = points(&text).map_err(|error| format!("{name}: {error}"))?;
        let overlaps = |point: &Point| by_hand.iter().any(|own| overlap(&own.range, &point.range));
        let found = found.into_iter().filter(|point| !overlaps(point));
        let all = nested(found.chain(by_hand.iter().cloned()).collect());
        let numbered = all.into_iter().map(|point| (number(&name, &text, &point, &mut used), point));
        files.push(Planted { points: numbered.collect(), name, text });
    }
    Ok(files)
}

/// Yields a number that no other mutant has: it depends on what the mutant is, so that it stays while the code around
/// changes.
fn number(file: &str, text: &str, point: &Point, used: &mut BTreeSet<u32>) -> u32 {
    let original = &text[point.range.clone()];
    let parts = [file, &point.function, &point.operator, original, &point.mutated];
    // FNV-1a, which is the same everywhere and always.
    let hash = parts.join("\n").bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut number = (hash % 1_000_000) as u32 + 1;
    while !used.insert(number) {
        number += 1;
    }
    number
}

/// Tells whether two ranges overlap, and neither contains the other.
fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    let contains = |a: &Range<usize>, b: &Range<usize>| a.start <= b.start && b.end <= a.end;
    a.start < b.end && b.start < a.end && !contains(a, b) && !contains(b, a)
}

fn mutants_of(file: &Planted) -> impl Iterator<Item = Mutant> {
    file.points.iter().map(|(number, point)| Mutant {
        number: *number,
        file: file.name.clone(),
        line: point.line,
        function: point.function.clone(),
        operator: point.operator.clone(),
        original: one_line(&file.text[point.range.clone()]),
        mutated: one_line(&point.mutated),
        indexes: indexes_of(&file.name).to_vec(),
    })
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Where a mutant is in a file of the copy.
struct Placed {
    name: String,
    number: u32,
    range: Range<usize>,
}

fn write(places: &Places, files: &[Planted]) -> Result<Vec<Placed>> {
    let mut placed = Vec::new();
    for file in files {
        let mut writer = Writer { text: &file.text, out: String::new(), placed: Vec::new() };
        writer.write(0..file.text.len(), &file.points);
        placed.extend(writer.placed.into_iter().map(|(number, range)| Placed {
            name: file.name.clone(),
            number,
            range,
        }));
        write_if_new(&places.tree.join(&file.name), writer.out.as_bytes())?;
    }
    for name in roots() {
        let text = fs::read_to_string(places.repository.join(&name))?;
        write_if_new(&places.tree.join(name), (text + SWITCH).as_bytes())?;
    }
    Ok(placed)
}

struct Writer<'t> {
    text: &'t str,
    out: String,
    placed: Vec<(u32, Range<usize>)>,
}

impl Writer<'_> {
    /// Writes a range of the text, with the points within it.
    fn write(&mut self, range: Range<usize>, points: &[(u32, Point)]) {
        let (mut at, mut rest) = (range.start, points);
        while let [(number, point), behind @ ..] = rest {
            self.out += &self.text[at..point.range.start];
            at = point.range.end;
            let inner = behind.iter().take_while(|(_, other)| other.range.end <= at).count();
            let inner = inner.min(behind.iter().take_while(|(_, other)| other.range.start < at).count());
            let start = self.out.len();
            let parenthesis = if point.is_statement { ["", ""] } else { ["(", ")"] };
            self.out += parenthesis[0];
            self.out += &format!("if crate::mutant::is_on({number}) {{ {} }} else {{ ", point.mutated);
            self.write(point.range.clone(), &behind[..inner]);
            self.out += " }";
            self.out += parenthesis[1];
            self.placed.push((*number, start..self.out.len()));
            rest = &behind[inner..];
        }
        self.out += &self.text[at..range.end];
    }
}

/// Runs cargo; yields the mutants that its errors lie in.
fn compile(places: &Places, command: &str, placed: &[Placed]) -> Result<BTreeSet<u32>> {
    let output = Command::new("cargo")
        .args([command, "--profile", "swarm", "-p", "farwood-cli", "--bin", "farwood"])
        .args(["--message-format", "json", "--target-dir"])
        .arg(&places.build)
        .env_remove("FARWOOD_MUTANT")
        .current_dir(&places.tree)
        .stderr(Stdio::inherit())
        .output()?;
    let (mut wrong, mut unexplained) = (BTreeSet::new(), String::new());
    for line in String::from_utf8(output.stdout)?.lines() {
        let message: Value = serde_json::from_str(line)?;
        if message["message"]["level"] != "error" || message["message"]["spans"] == Value::Array(Vec::new()) {
            continue;
        }
        let blamed = blamed(&message["message"], placed);
        if blamed.is_empty() {
            unexplained += message["message"]["rendered"].as_str().unwrap_or_default();
        }
        wrong.extend(blamed);
    }
    if !output.status.success() && wrong.is_empty() {
        return Err(format!("the copy does not compile:\n{unexplained}").into());
    }
    Ok(wrong)
}

/// Yields the innermost mutant around one of a message's places, the primary ones first; or those around the places of
/// its notes, which tell of the other half of a contradiction.
fn blamed(message: &Value, placed: &[Placed]) -> Vec<u32> {
    let spans = |message: &Value| message["spans"].as_array().cloned().unwrap_or_default();
    let mut own = spans(message);
    own.sort_by_key(|span| span["is_primary"] != true);
    if let Some(number) = own.iter().find_map(|span| around(span, placed)) {
        return vec![number];
    }
    let notes = message["children"].as_array().cloned().unwrap_or_default();
    notes.iter().flat_map(spans).filter_map(|span| around(&span, placed)).collect()
}

fn around(span: &Value, placed: &[Placed]) -> Option<u32> {
    let (start, end) = (span["byte_start"].as_u64()? as usize, span["byte_end"].as_u64()? as usize);
    let around = placed.iter().filter(|placed| {
        span["file_name"] == placed.name.as_str() && placed.range.start <= start && end <= placed.range.end
    });
    around.min_by_key(|placed| placed.range.len()).map(|placed| placed.number)
}
