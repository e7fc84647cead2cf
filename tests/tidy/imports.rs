//! Finds which modules of its own crate a Rust text names: in `use` and in the middle of code, from `crate`, `super` or
//! `self` on. What is compiled for tests only is left out.
//!
//! It reads words. What a macro puts together it does not see, nor a path that begins at an alias of the crate's root.

use crate::words::{Piece, Token, tokens};

/// Where a module is in its crate: names from the root on, none for the root itself.
pub(crate) type Path = Vec<String>;

/// A path of the own crate that occurs in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Import {
    pub(crate) line: usize,
    /// From the root on; `*` at the end if everything there is meant.
    pub(crate) path: Path,
    /// Its name here, if it is imported.
    pub(crate) name: Option<String>,
}

/// Imports and test modules of a file.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    pub(crate) imports: Vec<Import>,
    /// Modules in files of their own that are compiled for tests only.
    pub(crate) tests: Vec<Path>,
}

/// Reads the text of the file that is this module.
pub(crate) fn read(module: &[String], text: &str) -> Reading {
    let tokens = tokens(text);
    let mut reader = Reader { tokens: &tokens, at: 0, module: module.to_vec(), reading: Reading::default() };
    reader.body();
    reader.reading
}

struct Reader<'a> {
    tokens: &'a [Token],
    at: usize,
    module: Path,
    reading: Reading,
}

impl Reader<'_> {
    fn piece(&self, ahead: usize) -> Option<&Piece> {
        self.tokens.get(self.at + ahead).map(|(_, piece)| piece)
    }

    fn is(&self, ahead: usize, word: &str) -> bool {
        self.piece(ahead).is_some_and(|piece| piece.is(word))
    }

    fn is_mark(&self, ahead: usize, mark: char) -> bool {
        self.piece(ahead).is_some_and(|piece| piece.is_mark(mark))
    }

    fn is_path(&self, ahead: usize, word: &str) -> bool {
        self.is(ahead, word) && self.piece(ahead + 1) == Some(&Piece::Colons)
    }

    /// Reads up to the end, or to the brace that closes the module.
    fn body(&mut self) {
        let mut open = 0;
        while let Some(piece) = self.piece(0) {
            match piece {
                Piece::Mark('}') if open == 0 => return,
                Piece::Mark('}') => open -= 1,
                Piece::Mark('{') => open += 1,
                Piece::Mark('#') if self.is_mark(1, '!') && self.is_for_tests(2) => {
                    self.at = self.tokens.len()
                }
                Piece::Mark('#') if self.is_for_tests(1) => {
                    self.skip_item();
                    continue;
                }
                Piece::Word(word) if word == "mod" && self.is_mark(2, '{') => {
                    self.module.extend(self.piece(1).and_then(Piece::word).map(String::from));
                    self.at += 3;
                    self.body();
                    self.module.pop();
                }
                Piece::Word(word) if word == "use" => {
                    self.at += 1;
                    // A root names its own modules without a prefix; in other places such a path leads to another
                    // crate or into the module itself.
                    if self.module.is_empty()
                        && !["crate", "self", "super"].iter().any(|word| self.is(0, word))
                    {
                        self.tree(Vec::new(), true);
                    } else if !self.is_mark(0, '{') {
                        self.path(true);
                    }
                    continue;
                }
                // `pub(crate)`, `pub(in crate::a)`: only says who may see something.
                Piece::Word(word) if word == "pub" && self.is_mark(1, '(') => {
                    self.at += 1;
                    if self.is(1, "in") || self.is_mark(2, ')') {
                        self.skip_group();
                    }
                    continue;
                }
                Piece::Word(_) => {
                    self.path(false);
                    continue;
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    /// Reads a path of the own crate, if there is one. Behind it, or behind one word.
    fn path(&mut self, import: bool) {
        let base = if self.is_path(0, "crate") {
            self.at += 2;
            Vec::new()
        } else if self.is_path(0, "self") || self.is_path(0, "super") {
            let mut base = self.module.clone();
            while self.is_path(0, "self") || self.is_path(0, "super") {
                if self.is(0, "super") {
                    base.pop();
                }
                self.at += 2;
            }
            base
        } else {
            // The rest of a path that begins elsewhere: `other::crate_name::x`.
            self.at += 1;
            while self.piece(0) == Some(&Piece::Colons) && matches!(self.piece(1), Some(Piece::Word(_))) {
                self.at += 2;
            }
            return;
        };
        self.tree(base, import);
    }

    /// Reads the paths behind the `::` after `base`.
    fn tree(&mut self, mut base: Path, import: bool) {
        let line = self.tokens.get(self.at).map_or(0, |(line, _)| *line);
        loop {
            match self.piece(0) {
                Some(Piece::Word(word)) => {
                    if word != "self" {
                        base.push(word.clone());
                    }
                    self.at += 1;
                    if self.piece(0) != Some(&Piece::Colons) {
                        break;
                    }
                    self.at += 1;
                }
                Some(Piece::Mark('{')) => return self.group(&base, import),
                Some(Piece::Mark('*')) => {
                    base.push("*".into());
                    self.at += 1;
                    break;
                }
                // `crate::a::f::<T>()`, or the end.
                _ => break,
            }
        }
        let mut name = base.last().cloned();
        if import && self.is(0, "as") {
            name = self.piece(1).and_then(Piece::word).map(String::from);
            self.at += 2;
        }
        self.reading.imports.push(Import { line, path: base, name: name.filter(|_| import) });
    }

    /// Reads `{a, b::c}`, at the brace.
    fn group(&mut self, base: &[String], import: bool) {
        self.at += 1;
        while let Some(piece) = self.piece(0) {
            match piece {
                Piece::Mark('}') => {
                    self.at += 1;
                    return;
                }
                Piece::Mark(',') => self.at += 1,
                // `use {crate::a, b::c}`, in the root.
                Piece::Word(_)
                    if base.is_empty() && ["crate", "super"].iter().any(|word| self.is(0, word)) =>
                {
                    self.path(import);
                }
                _ => {
                    let before = self.at;
                    self.tree(base.to_vec(), import);
                    assert!(self.at > before, "line {}: a strange import", self.tokens[self.at].0);
                }
            }
        }
    }

    /// Tells whether an attribute follows that keeps an item for tests: `[cfg(test)]`, `[cfg(all(test, ...))]`.
    fn is_for_tests(&self, ahead: usize) -> bool {
        let begins = self.is_mark(ahead, '[') && self.is(ahead + 1, "cfg") && self.is_mark(ahead + 2, '(');
        let all = self.is(ahead + 3, "all") && self.is(ahead + 5, "test");
        begins && (self.is(ahead + 3, "test") || all)
    }

    /// Skips, from the `#` of an attribute on, it, those that follow, and the item that they belong to.
    fn skip_item(&mut self) {
        while self.is_mark(0, '#') {
            self.at += 1;
            self.skip_group();
        }
        while self.is(0, "pub") || self.is_mark(0, '(') {
            match self.is_mark(0, '(') {
                true => self.skip_group(),
                false => self.at += 1,
            }
        }
        if self.is(0, "mod") && self.is_mark(2, ';') {
            let own = self.piece(1).and_then(Piece::word).map(String::from);
            self.reading.tests.push(self.module.iter().cloned().chain(own).collect());
        }
        let function = ["fn", "async", "unsafe", "extern"].iter().any(|word| self.is(1, word));
        let statement = ["use", "static", "type", "let"].iter().any(|word| self.is(0, word))
            || self.is(0, "const") && !function;
        let item =
            ["fn", "mod", "impl", "struct", "enum", "trait", "union", "async", "unsafe", "extern", "const"]
                .iter()
                .any(|word| self.is(0, word));
        while let Some(piece) = self.piece(0) {
            match piece {
                Piece::Mark(';') => break,
                // A field, an arm or an element.
                Piece::Mark(',') if !item && !statement => break,
                Piece::Mark('}' | ')' | ']') => return,
                Piece::Mark('{') if !statement => return self.skip_group(),
                Piece::Mark('{' | '(' | '[') => self.skip_group(),
                _ => self.at += 1,
            }
        }
        self.at += 1;
    }

    /// Skips from an opening bracket to behind the one that closes it.
    fn skip_group(&mut self) {
        let mut open = 0;
        while let Some(piece) = self.piece(0) {
            match piece {
                Piece::Mark('{' | '(' | '[') => open += 1,
                Piece::Mark('}' | ')' | ']') => open -= 1,
                _ => {}
            }
            self.at += 1;
            if open <= 0 {
                return;
            }
        }
    }
}

#[cfg(test)]
fn found(module: &str, text: &str) -> Vec<String> {
    let module: Path = module.split("::").filter(|name| !name.is_empty()).map(String::from).collect();
    let import = |import: Import| {
        let name = import.name.map(|name| format!(" as {name}")).unwrap_or_default();
        format!("{}:{}{name}", import.line, import.path.join("::"))
    };
    read(&module, text).imports.into_iter().map(import).collect()
}

#[test]
fn reads_imports() {
    assert_eq!(found("a", "use crate::b;\npub use crate::c::D;"), ["1:b as b", "2:c::D as D"]);
    assert_eq!(
        found("a", "use crate::{b, c::{self, D as E},\n    f::*};"),
        ["1:b as b", "1:c as c", "1:c::D as E", "2:f::* as *"]
    );
    assert_eq!(
        found("a::b", "use super::c; use super::super::d::E; use self::f;"),
        ["1:a::c as c", "1:d::E as E", "1:a::b::f as f"]
    );
    assert_eq!(found("a", "use {crate::{b, c::C}, super::d, std::fmt};"), ["1:b", "1:c::C", "1:d"]);
    assert_eq!(found("a", "use std::io; use other::crate_name; use child::X;"), Vec::<String>::new());
    // The root's own.
    assert_eq!(
        found("", "pub use b::C; use self::d::{E as F, G};"),
        ["1:b::C as C", "1:d::E as F", "1:d::G as G"]
    );
    assert_eq!(found("", "use {b::C, crate::d};"), ["1:b::C as C", "1:d as d"]);
}

#[test]
fn reads_paths_in_code() {
    let text = "fn f(a: &crate::b::C) -> super::d::E<F> {\n    crate::g::h::<u8>(self.i, Self::J)\n}";
    assert_eq!(found("a", text), ["1:b::C", "1:d::E", "2:g::h"]);
    assert_eq!(
        found("a", "mod m { use super::super::b; mod n { super::super::c(); } } use super::d;"),
        ["1:b as b", "1:a::c", "1:d as d"]
    );
    assert_eq!(
        found("a", "macro_rules! m { () => { $crate::b::c!() } } // crate::d\n\"crate::e\""),
        ["1:b::c"]
    );
    assert_eq!(
        found("a", "pub(in crate::b) struct S(pub (crate::c::C, u8)); for x in crate::d::all() {}"),
        ["1:c::C", "1:d::all"]
    );
}

#[test]
fn leaves_out_what_is_for_tests() {
    let text = "
        #[cfg(test)] mod tests { use crate::b; fn f() { { } } }
        #[cfg(all(test, feature = \"x\"))] use crate::{c, d};
        #[cfg(test)] #[path = \"x.rs\"] pub(crate) mod kit;
        struct S { #[cfg(test)] e: crate::e::E, f: crate::f::F }
        fn g() { #[cfg(test)] crate::g::h(); S { #[cfg(test)] e: crate::h::E { x: 1 } } }
        #[cfg(test)] const I: crate::i::I = crate::i::I { x: 1 };
        #[cfg(test)] impl<A, B> J for crate::j::J { fn k() {} }
        #[cfg(not(test))] use crate::l;
        #[cfg(any(test, feature = \"x\"))] use crate::m;
    ";
    assert_eq!(found("a", text), ["5:f::F", "9:l as l", "10:m as m"]);
    assert_eq!(read(&["a".into()], text).tests, [["a", "kit"]]);
    assert_eq!(found("a", "use crate::b;\n#![cfg(test)]\nuse crate::c;"), ["1:b as b"]);
}
