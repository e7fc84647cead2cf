//! Takes a Rust text apart into words and marks, each with its line: without comments, strings, characters and
//! lifetimes, in which anything may stand. It knows no grammar.

use std::iter::Peekable;
use std::str::Chars;

/// Line and piece.
pub(crate) type Token = (usize, Piece);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A name, a keyword or a number.
    Word(String),
    /// `::`
    Colons,
    Mark(char),
}

impl Piece {
    pub(crate) fn is(&self, word: &str) -> bool {
        matches!(self, Piece::Word(own) if own == word)
    }

    pub(crate) fn is_mark(&self, mark: char) -> bool {
        *self == Piece::Mark(mark)
    }

    pub(crate) fn word(&self) -> Option<&str> {
        match self {
            Piece::Word(word) => Some(word),
            _ => None,
        }
    }
}

pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let mut reader = Reader { chars: text.chars().peekable(), line: 1 };
    let mut found = Vec::new();
    while let Some(first) = reader.next() {
        let line = reader.line;
        match first {
            '/' if reader.peek() == Some('/') => reader.skip_line(),
            '/' if reader.peek() == Some('*') => reader.skip_block_comment(),
            '"' => reader.skip_string(),
            '\'' => reader.skip_character_or_lifetime(),
            ':' if reader.peek() == Some(':') => {
                reader.next();
                found.push((line, Piece::Colons));
            }
            _ if is_of_word(first) => found.extend(reader.word(first).map(|word| (line, Piece::Word(word)))),
            _ if first.is_whitespace() => {}
            _ => found.push((line, Piece::Mark(first))),
        }
    }
    found
}

fn is_of_word(of: char) -> bool {
    of == '_' || of.is_alphanumeric()
}

struct Reader<'a> {
    chars: Peekable<Chars<'a>>,
    line: usize,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let next = self.chars.next();
        self.line += usize::from(next == Some('\n'));
        next
    }

    fn peek(&mut self) -> Option<char> {
        self.chars.peek().copied()
    }

    fn skip_line(&mut self) {
        while self.peek().is_some_and(|next| next != '\n') {
            self.next();
        }
    }

    /// Skips a block comment: they nest.
    fn skip_block_comment(&mut self) {
        let (mut depth, mut last) = (0, '/');
        while let Some(next) = self.next() {
            match (last, next) {
                ('/', '*') => depth += 1,
                ('*', '/') => depth -= 1,
                _ => {
                    last = next;
                    continue;
                }
            }
            if depth == 0 {
                return;
            }
            // Neither half belongs to another pair.
            last = ' ';
        }
    }

    /// Skips a string, from behind its first quote.
    fn skip_string(&mut self) {
        while let Some(next) = self.next() {
            match next {
                '"' => return,
                '\\' => drop(self.next()),
                _ => {}
            }
        }
    }

    /// Skips a raw string, from behind the `r`.
    fn skip_raw_string(&mut self) {
        let mut hashes = 0;
        while self.peek() == Some('#') {
            self.next();
            hashes += 1;
        }
        self.next();
        let mut seen = None;
        while let Some(next) = self.next() {
            seen = match (next, seen) {
                ('"', _) => Some(0),
                ('#', Some(seen)) => Some(seen + 1),
                _ => None,
            };
            if seen == Some(hashes) {
                return;
            }
        }
    }

    /// Skips `'x'`, `'\n'` or `'life`, from behind the quote.
    fn skip_character_or_lifetime(&mut self) {
        match self.next() {
            Some('\\') => {
                self.next();
                while self.next().is_some_and(|next| next != '\'') {}
            }
            Some(first) if self.peek() == Some('\'') || !is_of_word(first) => drop(self.next()),
            _ => {
                while self.peek().is_some_and(is_of_word) {
                    self.next();
                }
            }
        }
    }

    /// Reads the word that begins so; yields nothing if that was the beginning of a string.
    fn word(&mut self, first: char) -> Option<String> {
        let mut word = String::from(first);
        while let Some(next) = self.peek().filter(|next| is_of_word(*next)) {
            word.push(next);
            self.next();
        }
        let raw = ["r", "br", "cr"].contains(&word.as_str());
        match self.peek() {
            Some('"') if raw => self.skip_raw_string(),
            Some('"') if ["b", "c"].contains(&word.as_str()) => {
                self.next();
                self.skip_string();
            }
            Some('#') if raw => {
                // `r#"text"#`, or `r#name`, of which the name is left.
                let mut ahead = self.chars.clone().skip_while(|next| *next == '#');
                if ahead.next() == Some('"') {
                    self.skip_raw_string();
                } else {
                    self.next();
                    return self.next().and_then(|first| self.word(first));
                }
            }
            _ => return Some(word),
        }
        None
    }
}

#[test]
fn reads_words() {
    let words = |text| -> String {
        let piece = |(_, piece)| match piece {
            Piece::Word(word) => word,
            Piece::Colons => "::".into(),
            Piece::Mark(mark) => mark.to_string(),
        };
        tokens(text).into_iter().map(piece).collect::<Vec<String>>().join(" ")
    };
    assert_eq!(words("use crate::a::{b, c as d};"), "use crate :: a :: { b , c as d } ;");
    assert_eq!(words("a // crate::b \"\nc /* d /* e */ f */ g /**/ h"), "a c g h");
    assert_eq!(words(r##"a("x \" y", b"z", r#"q " "q"#, br"\", r#type) b"##), "a ( , , , , type ) b");
    assert_eq!(
        words("f<'a>('{', '\\'', '\\u{7d}', 'ä', '_', b'x', &'static str)"),
        "f < > ( , , , , , b , & str )"
    );
    assert_eq!(words("a:b 1.5_f32..2"), "a : b 1 . 5_f32 . . 2");
    assert_eq!(tokens("a\n\"\n\"\nb")[1], (4, Piece::Word("b".into())));
}
