//! Mistakes that no operator makes, by hand: those of a person who almost understands the protocol. Each file has those
//! of one subject; here is how they are found.

mod chime;
mod dolphin;
mod dolphin_merges;
mod locks;
mod memory;
mod merges;
mod sherman;
mod smart;
mod sweeps;

use crate::Result;
use crate::points::Point;

/// A text that occurs once in its file, of which the part between the marks, or all, is replaced. What is replaced is a
/// statement, as is what stands there instead, if it ends with `;` or `}`, and an expression otherwise.
struct Patch {
    name: &'static str,
    file: &'static str,
    find: &'static str,
    replace: &'static str,
}

/// Around what is replaced, where the text that is looked for has more.
const MARKS: [char; 2] = ['⟦', '⟧'];

fn patches() -> impl Iterator<Item = &'static Patch> {
    let subjects = [
        sherman::PATCHES,
        merges::PATCHES,
        chime::PATCHES,
        smart::PATCHES,
        dolphin::PATCHES,
        dolphin_merges::PATCHES,
        locks::PATCHES,
        memory::PATCHES,
        sweeps::PATCHES,
    ];
    subjects.into_iter().flatten()
}

/// Yields the points by hand in that file.
///
/// # Errors
/// If a text does not occur there, or more than once: then the file has changed, and the patch has to.
pub(crate) fn points(file: &str, text: &str) -> Result<Vec<Point>> {
    let mut found = Vec::new();
    for patch in patches().filter(|patch| patch.file == file) {
        let whole = patch.find.replace(MARKS, "");
        let mut places = text.match_indices(&whole);
        let (Some((at, _)), None) = (places.next(), places.next()) else {
            return Err(format!("{file} has not once what \"{}\" changes:\n{whole}", patch.name).into());
        };
        let (before, replaced) = match patch.find.split_once(MARKS[0]) {
            Some((before, rest)) => {
                (before, rest.split_once(MARKS[1]).map_or(rest, |(replaced, _)| replaced))
            }
            None => ("", patch.find),
        };
        let start = at + before.len();
        found.push(Point {
            range: start..start + replaced.len(),
            line: text[..start].matches('\n').count() + 1,
            function: String::new(),
            operator: format!("by hand: {}", patch.name),
            mutated: patch.replace.to_owned(),
            is_statement: replaced.ends_with([';', '}']),
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_text_is_in_its_file_once() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for patch in patches() {
            let text = std::fs::read_to_string(repository.join(patch.file)).expect(patch.file);
            let found = points(patch.file, &text).unwrap_or_else(|error| panic!("{error}"));
            assert!(!found.is_empty());
        }
    }
}
