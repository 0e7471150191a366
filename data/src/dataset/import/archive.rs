//! Members of `.npz` archives, which are zip archives of `.npy` files.
//!
//! Members are looked up by name and read from within the archive. Nothing is unpacked to disk, so no name in an
//! archive can write to a path outside.

use std::collections::BTreeSet;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use zip::ZipArchive;
use zip::result::ZipError;

use super::numbers::{Numbers, parse_header, read_head};
use super::source::{Meter, Metered};
use super::text::shown;
use crate::dataset::error::{Error, Result};

/// Deflate compresses to about 1 in 1032 at best: a higher ratio means that the stated size is false.
const MOST_DEFLATED: u64 = 1100;
/// The directory of an archive ends with 22 bytes and a comment of less than 64 KiB.
const MOST_END_BYTES: u64 = 22 + (1 << 16);
/// The longest text that is read from a member.
const MAX_TEXT_BYTES: usize = 64;

/// An open archive.
pub(super) struct Archive<'m> {
    zip: ZipArchive<BufReader<Metered<'m>>>,
    path: PathBuf,
    /// The arrays that have been read.
    read: BTreeSet<String>,
}

impl<'m> Archive<'m> {
    pub(super) fn open(meter: &'m Meter<'_>, path: &Path) -> Result<Self> {
        let mut file = meter.open(path, "it is the archive to import")?;
        if !ends_like_an_archive(&mut file).map_err(Error::io("read", path))? {
            let why = "is not an archive that can be read (it has no directory at its end)".into();
            return Err(Error::Import { file: path.display().to_string(), why });
        }
        let zip = ZipArchive::new(BufReader::new(file)).map_err(|e| Error::Import {
            file: path.display().to_string(),
            why: format!("is not an archive that can be read ({e})"),
        })?;
        Ok(Self { zip, path: path.into(), read: BTreeSet::new() })
    }

    /// Returns the name of a member for messages.
    pub(super) fn place(&self, name: &str) -> String {
        format!("{}[{name}]", self.path.display())
    }

    /// Returns an error about the archive itself.
    pub(super) fn wrong(&self, why: impl Into<String>) -> Error {
        Error::Import { file: self.path.display().to_string(), why: why.into() }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.zip.index_for_name(&format!("{name}.npy")).is_some()
    }

    /// Returns the names of the arrays, at most eight of them, for messages.
    pub(super) fn names(&self) -> String {
        let mut names: Vec<String> =
            self.zip.file_names().map(|name| format!("{:.40}", name.trim_end_matches(".npy"))).take(9).collect();
        names.sort();
        if names.len() > 8 {
            names[8] = "...".into();
        }
        names.join(", ")
    }

    /// Returns a note that lists the arrays that were not read, if there are any.
    pub(super) fn unread(&self) -> Option<String> {
        let name = |file: &str| file.strip_suffix(".npy").unwrap_or(file).to_string();
        let mut unread: Vec<String> =
            self.zip.file_names().map(name).filter(|name| !self.read.contains(name)).collect();
        unread.sort();
        (!unread.is_empty()).then(|| {
            let names: Vec<String> = unread.iter().map(|name| format!("`{}`", shown(name.as_bytes()))).collect();
            format!("arrays that were not used: {}", names.join(", "))
        })
    }

    /// Leaves an array out of [`Archive::unread`], since another note names it.
    pub(super) fn noted(&mut self, name: &str) {
        self.read.insert(name.into());
    }

    /// Reads a required member.
    pub(super) fn numbers(&mut self, name: &str, needed: &str) -> Result<Numbers<'_>> {
        if !self.has(name) {
            return Err(Error::Import { file: self.place(name), why: format!("is missing; {needed}") });
        }
        self.member(name)
    }

    /// Reads an optional member.
    pub(super) fn optional(&mut self, name: &str) -> Result<Option<Numbers<'_>>> {
        if self.has(name) { self.member(name).map(Some) } else { Ok(None) }
    }

    fn member(&mut self, name: &str) -> Result<Numbers<'_>> {
        let place = self.place(name);
        self.read.insert(name.into());
        let mut file = self.zip.by_name(&format!("{name}.npy")).map_err(|e| unreadable(&place, e))?;
        let head = read_head(&mut file).map_err(|e| unreadable(&place, e.into()))?;
        let header = parse_header(&place, &head)?;
        let held = file.compressed_size().saturating_mul(MOST_DEFLATED) + 4096;
        let have_bytes = file.size().min(held).saturating_sub(header.len as u64);
        Numbers::new(place, &header, have_bytes, Box::new(file))
    }

    /// Reads the text of a member of numpy bytes, such as scipy's `format`. Returns `None` if there is no such member.
    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>> {
        let place = self.place(name);
        if !self.has(name) {
            return Ok(None);
        }
        self.read.insert(name.into());
        let mut file = self.zip.by_name(&format!("{name}.npy")).map_err(|e| unreadable(&place, e))?;
        let head = read_head(&mut file).map_err(|e| unreadable(&place, e.into()))?;
        parse_header(&place, &head)?;
        let mut text = Vec::new();
        file.take(MAX_TEXT_BYTES as u64).read_to_end(&mut text).map_err(|e| unreadable(&place, e.into()))?;
        // A character takes 1 byte or 4, depending on the type.
        text.retain(|&byte| byte != 0);
        Ok(Some(String::from_utf8_lossy(&text).into_owned()))
    }

    /// Reads the rows and columns of a matrix from its `shape` member.
    pub(super) fn matrix_shape(&mut self, name: &str) -> Result<[usize; 2]> {
        let shape = self.numbers(name, "it says how large the matrix is")?;
        let place = shape.place.clone();
        if shape.shape != [2] {
            return Err(shape.wrong_shape("[2] (rows, columns)"));
        }
        let sides = shape.ints("a size", |x| usize::try_from(x).ok())?;
        match sides[..] {
            [rows, columns] => Ok([rows, columns]),
            _ => Err(Error::Shape { file: place, found: vec![sides.len()], expected: "[2] (rows, columns)".into() }),
        }
    }
}

/// Returns whether the mark of an archive's directory is where it can be. Without it, the whole file would be searched.
/// The file is then at its start.
fn ends_like_an_archive(file: &mut Metered<'_>) -> std::io::Result<bool> {
    let mut end = Vec::new();
    let tail = file.bytes.min(MOST_END_BYTES);
    file.seek(SeekFrom::Start(file.bytes - tail))?;
    file.by_ref().take(tail).read_to_end(&mut end)?;
    file.rewind()?;
    Ok(memchr::memmem::rfind(&end, b"PK\x05\x06").is_some())
}

fn unreadable(place: &str, error: ZipError) -> Error {
    Error::Import { file: place.into(), why: format!("cannot be read from the archive: {error}") }
}
