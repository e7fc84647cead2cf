//! House rules that no other tool checks, over every Rust file of the repository: lengths of files, functions and
//! lines, a `//!` on top, nothing left lying about, `unsafe` and glommio only where they live, no paths of one machine,
//! no summaries that ask, no words that hide a subject (in documents neither).
//!
//! It reads text, line by line, as rustfmt leaves it; strings that look like code can deceive it.

#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/imports.rs"]
mod imports;
#[path = "tidy/words.rs"]
mod words;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;
const LINE_COLUMNS_MAX: usize = 120;
/// Lines of code of `examples/own_index/index`, comments and blank lines not counted.
const OWN_INDEX_LINES_MAX: usize = 300;
/// Put together here, so that this file does not contain them.
const LEFT_BEHIND: [&str; 5] = [
    concat!("dbg", "!("),
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];
const ONE_MACHINE: [&str; 3] = [concat!("..", "/shared"), concat!("/wo", "rk/"), concat!("/home", "/")];
/// Openings of lines of documentation that ask instead of saying what a thing is or does.
const QUESTIONS: [&str; 7] = ["What", "Whether", "Who", "Whose", "Whom", "How", "The same"];
/// Put together here, so that this file does not contain them.
const NO_SUBJECT: [&str; 5] = [
    concat!("who", "ever"),
    concat!("whom", "ever"),
    concat!("no", "body"),
    concat!("some", "body"),
    concat!("any", "body"),
];
/// Where unsafe code may be (CONTRIBUTING.md).
const UNSAFE_HOMES: [&str; 4] = [
    "runtime/src/mapped/",
    "runtime/src/buffer.rs",
    "runtime/src/fabric/verbs/",
    "tests/kit/counting_allocator.rs",
];
/// Where the sources may use glommio. Everything else is neutral to the executor that runs it.
const EXECUTOR_HOMES: [&str; 1] = ["runtime/src/executor/"];
/// Where documents and messages may name it, for those who bring executors of their own.
const EXECUTOR_TOLD: [&str; 2] = ["runtime/src/lib.rs", "runtime/src/node/mod.rs"];
const SKIPPED: [&str; 3] = ["target", ".git", "node_modules"];

#[test]
fn the_repository_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    collect(root, &mut files);
    assert!(files.len() > 50, "only {} files under {}", files.len(), root.display());
    files.sort();
    let mut report = String::new();
    let mut read = Vec::new();
    for path in &files {
        let name = path.strip_prefix(root).expect("collected below the root").to_string_lossy();
        match fs::read_to_string(path) {
            Ok(text) => {
                violations(&name, &text, |line, what| {
                    writeln!(report, "{name}:{line}: {what}").expect("strings take everything");
                });
                read.push((name.into_owned(), text));
            }
            // An editor may be at work in the tree: a file that is gone needs no check.
            Err(error) => assert!(!path.exists(), "{name}: {error}"),
        }
    }
    report += &circles::violations(&read);
    assert!(report.is_empty(), "not tidy:\n{report}");
}

/// Newcomers read the example first when they write an index: it stays small (docs/own-index.md).
#[test]
fn an_index_takes_few_lines() {
    let mut files = Vec::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/own_index/index"), &mut files);
    let text: String = files.iter().map(|path| fs::read_to_string(path).expect("it was found")).collect();
    let code = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
    let lines = code.count();
    assert!(
        (1..=OWN_INDEX_LINES_MAX).contains(&lines),
        "{lines} lines of code, {OWN_INDEX_LINES_MAX} are the most"
    );
}

/// Collects the Rust files, the scripts and the documents below `folder`.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the repository is readable").flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() {
            if !SKIPPED.contains(&name.as_str()) {
                collect(&path, files);
            }
        } else if [".rs", ".toml", ".md"].iter().any(|end| name.ends_with(end)) || path.ends_with(".ci/run") {
            files.push(path);
        }
    }
}

fn violations(name: &str, text: &str, mut report: impl FnMut(usize, String)) {
    let is_prose = name.ends_with(".rs") || name.ends_with(".md");
    for (number, line) in (1..).zip(text.lines()) {
        for found in ONE_MACHINE.iter().filter(|path| line.contains(**path)) {
            report(number, format!("{found:?} is a path of one machine"));
        }
        for found in without_subject(line).filter(|_| is_prose) {
            report(number, format!("{found:?}: name the subject (client, shard, reader, server)"));
        }
    }
    if !name.ends_with(".rs") {
        return;
    }
    if !text.starts_with("//!") {
        report(1, "the first line does not say with //! what the file is".into());
    }
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX {
        report(lines, format!("{lines} lines, {FILE_LINES_MAX} are the most"));
    }
    for (number, line) in (1..).zip(text.lines()) {
        let columns = line.chars().count();
        if columns > LINE_COLUMNS_MAX {
            report(number, format!("{columns} columns, {LINE_COLUMNS_MAX} are the most"));
        }
        for found in QUESTIONS.iter().filter(|question| asks(line, question)) {
            report(number, format!("{found:?}: begin with a verb (\"Yields\", \"Tells whether\") or a noun"));
        }
        for found in LEFT_BEHIND.iter().filter(|word| line.contains(**word)) {
            report(number, format!("{found:?} was left behind"));
        }
        if has_unsafe(line) && !may_be_unsafe(name) {
            report(number, "unsafe code outside of its homes".into());
        }
        if uses_executor(name, line) {
            report(number, format!("glommio outside of {}", EXECUTOR_HOMES.join(", ")));
        }
    }
    for (start, length) in functions(text) {
        if length > FUNCTION_LINES_MAX {
            report(start, format!("a function of {length} lines, {FUNCTION_LINES_MAX} are the most"));
        }
    }
}

/// Yields the line's words that stand for a subject and name none.
fn without_subject(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|part: char| !part.is_alphanumeric() && part != '_');
    words.filter(|word| NO_SUBJECT.iter().any(|other| other.eq_ignore_ascii_case(word)))
}

/// Tells whether the line is documentation that begins with this word or these words.
fn asks(line: &str, question: &str) -> bool {
    let line = line.trim_start();
    let text = line.strip_prefix("/// ").or_else(|| line.strip_prefix("//! "));
    let behind = text.and_then(|text| text.strip_prefix(question));
    behind.is_some_and(|behind| !behind.starts_with(|next: char| next.is_alphanumeric() || next == '_'))
}

fn has_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let keyword = concat!("unsafe", " ");
    code.match_indices(keyword).any(|(at, _)| {
        let after = &code[at + keyword.len()..];
        ["{", "impl", "fn", "extern", "trait"].iter().any(|next| after.starts_with(next))
    })
}

fn may_be_unsafe(name: &str) -> bool {
    UNSAFE_HOMES.iter().any(|home| name.starts_with(home))
}

/// Tells whether a line of the sources names glommio where it must not: at all, or in code.
fn uses_executor(name: &str, line: &str) -> bool {
    let is_source = name.starts_with("src/") || name.contains("/src/");
    if !is_source || EXECUTOR_HOMES.iter().any(|home| name.starts_with(home)) {
        return false;
    }
    let code = line.split("//").next().unwrap_or_default();
    match EXECUTOR_TOLD.contains(&name) {
        true => ["glommio::", "use glommio"].iter().any(|used| code.contains(used)),
        false => line.contains("glommio"),
    }
}

/// Yields first line and length of every function with a body: from its `fn` to the brace in the same column.
fn functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate().filter(|(_, line)| begins_function(line)) {
        let close = format!("{}}}", " ".repeat(indent(line)));
        let end = lines[start..].iter().position(|end| **end == close);
        let one_line = line.ends_with('}') || line.ends_with(';');
        if let Some(end) = end.filter(|_| !one_line) {
            // A declaration without a body ends before any brace.
            let body =
                lines[start..start + end].iter().find(|line| line.ends_with('{') || line.ends_with(';'));
            if body.is_some_and(|line| line.ends_with('{')) {
                found.push((start + 1, end + 1));
            }
        }
    }
    found
}

fn begins_function(line: &str) -> bool {
    let mut words = line.split_whitespace();
    words.find(|word| {
        let modifier = ["const", "async", "unsafe", "extern"].contains(word) || word.starts_with("pub");
        !modifier && !word.starts_with('"') && !matches!(*word, "super)" | "crate)")
    }) == Some("fn")
}

#[test]
fn finds_what_it_looks_for() {
    let found = |name: &str, text: &str| {
        let mut found = Vec::new();
        violations(name, text, |line, what| found.push((line, what)));
        found
    };
    let first = |name: &str, text: &str| found(name, text).first().cloned().unwrap_or_default();
    assert_eq!(found("a.rs", "//! Fine.\n\nfn f() {\n    unsafe_name();\n}\n"), []);
    assert_eq!(first("a.rs", "fn f() {}\n").0, 1);
    assert_eq!(first("a.md", &format!("x\n{}", ONE_MACHINE[1])).0, 2);
    for word in LEFT_BEHIND {
        assert_eq!(first("a.rs", &format!("//! x\n{word}")).0, 2, "{word}");
    }
    let block = concat!("//! x\nlet x = unsafe", " { y };\n");
    assert_eq!(first("index/src/a.rs", block).0, 2);
    assert_eq!(found("runtime/src/mapped/a.rs", block), []);
    let (sleep, doc) = ("//! x\n    glommio::timer::sleep(ns).await;\n", "//! x\n/// On glommio's.\n");
    for (name, of_sleep, of_doc) in [
        ("runtime/src/executor/poller.rs", 0, 0),
        ("runtime/src/node/mod.rs", 1, 0),
        ("runtime/src/shard/mod.rs", 1, 1),
        ("index/src/a.rs", 1, 1),
        ("runtime/tests/idle.rs", 0, 0),
        ("examples/a.rs", 0, 0),
    ] {
        assert_eq!([sleep, doc].map(|text| found(name, text).len()), [of_sleep, of_doc], "{name}");
    }
    let wide = format!("//! x\n// {}\n", "ä".repeat(LINE_COLUMNS_MAX - 3));
    assert_eq!(found("a.rs", &wide), []);
    assert_eq!(first("a.rs", &wide.replace("// ", "//  ")).0, 2);
    let long = format!(
        "//! x\nimpl A {{\n    pub async fn f(\n    ) {{\n{}    }}\n}}\n",
        "        g();\n".repeat(FUNCTION_LINES_MAX)
    );
    assert_eq!(functions(&long), [(3, FUNCTION_LINES_MAX + 3)]);
    assert_eq!(first("a.rs", &long).0, 3);
    assert_eq!(first("a.rs", &format!("//! x\n{}", "\n".repeat(FILE_LINES_MAX))).0, FILE_LINES_MAX + 1);
    assert_eq!(functions("    fn f(&self) -> u8;\n\n    fn g(&self) {\n    }\n"), [(3, 2)]);
    for question in QUESTIONS {
        assert_eq!(first("a.rs", &format!("//! x\n    /// {question} is it")).0, 2, "{question}");
        assert_eq!(first("a.rs", &format!("//! x\n//! {question}: it")).0, 2, "{question}");
        let fine = format!("//! {question}ly\n// {question} is it\n/// Tells {question}");
        assert_eq!(found("a.rs", &fine), [], "{question}");
        assert_eq!(found("a.md", &format!("/// {question} is it")), [], "{question}");
    }
    for word in NO_SUBJECT {
        assert_eq!(first("a.rs", &format!("//! x\n// {}, then", word.to_uppercase())).0, 2, "{word}");
        assert_eq!(first("a.md", &format!("x\n`{word}`")).0, 2, "{word}");
        assert_eq!(found("a.md", &format!("{word}s for_{word}")), [], "{word}");
        assert_eq!(found("a.toml", word), [], "{word}");
    }
}
