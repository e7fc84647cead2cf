//! Files that results go to. They are checked before a run starts, and appear whole or not at all: written beside their
//! place under another name, then renamed.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::error::CliError;

/// Fails if a file could not be written at `path`. Leaves nothing behind.
pub(crate) fn check_file(path: &Path) -> Result<(), CliError> {
    let failed = |source| CliError::Usage(CliError::write(path, source).to_string());
    match fs::metadata(path) {
        Ok(meta) if meta.is_dir() => Err(failed(io::ErrorKind::IsADirectory.into())),
        // A device or a pipe: opening it might block or have an effect.
        Ok(meta) if !meta.is_file() => Ok(()),
        _ => probe(&beside(path)).map_err(failed),
    }
}

/// Fails if `path` is not a directory that can be written to, and could not become one. Leaves nothing behind.
pub(crate) fn check_directory(path: &Path) -> Result<(), CliError> {
    let failed = |source| CliError::Usage(CliError::write(path, source).to_string());
    // The nearest thing that exists decides: the rest would be made inside it.
    let existing = path.ancestors().map(|at| if at == Path::new("") { Path::new(".") } else { at });
    let Some(existing) = existing.into_iter().find(|at| at.exists()) else {
        return Err(failed(io::ErrorKind::NotFound.into()));
    };
    if !existing.is_dir() {
        return Err(failed(io::ErrorKind::NotADirectory.into()));
    }
    probe(&existing.join(temporary("farwood"))).map_err(failed)
}

/// Writes a file by way of `write`: whole, or not at all.
pub(crate) fn write_file(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), CliError> {
    write_whole(path, write).map_err(|source| CliError::write(path, source))
}

fn write_whole(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let special = fs::metadata(path).is_ok_and(|meta| !meta.is_file());
    let target = if special { path.to_owned() } else { beside(path) };
    let written = File::options().write(true).create(true).truncate(true).open(&target).and_then(|file| {
        let mut writer = BufWriter::with_capacity(1 << 20, file);
        write(&mut writer)?;
        writer.flush()
    });
    if special {
        return written;
    }
    let placed = written.and_then(|()| fs::rename(&target, path));
    if placed.is_err() {
        // The error that matters is the first one.
        let _ = fs::remove_file(&target);
    }
    placed
}

fn probe(path: &Path) -> io::Result<()> {
    File::options().write(true).create(true).truncate(true).open(path)?;
    fs::remove_file(path)
}

fn beside(path: &Path) -> PathBuf {
    path.with_file_name(temporary(path.file_name().unwrap_or_default()))
}

fn temporary(name: impl Into<OsString>) -> OsString {
    let mut name = name.into();
    name.push(format!(".{}.tmp", std::process::id()));
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_appear_whole_or_not_at_all() {
        let directory = std::env::temp_dir().join(format!("farwood-files-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("result.json");
        check_file(&path).unwrap();
        let failed = write_file(&path, |out| {
            out.write_all(b"half")?;
            Err(io::ErrorKind::Other.into())
        });
        assert!(failed.is_err());
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0, "nothing is left");
        write_file(&path, |out| out.write_all(b"whole")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        check_directory(&directory.join("new/deeper")).unwrap();
        assert!(check_directory(&path).is_err());
        assert!(check_file(&directory).is_err());
        assert!(check_file(&directory.join("none/result.json")).is_err());
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        fs::remove_dir_all(&directory).unwrap();
    }
}
