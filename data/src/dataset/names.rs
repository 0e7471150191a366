//! The original names of vertices, in files beside a dataset.

use std::borrow::Cow;
use std::io::Write;
use std::path::Path;

use lapidary_arrays::Shared;

use super::error::{Error, Result};
use super::mmap::{self, Bytes};
use super::npy::{self, Dtype};
use super::open::open_if_there;
use super::write::put_file;
use crate::graph::Permutation;

/// The array of numeric names in a dataset directory.
const NUMBERS: &str = "vertex_ids";
/// The file of numeric names in a dataset directory.
pub(crate) const NUMBERS_FILE: &str = "vertex_ids.npy";
/// The file of other names in a dataset directory.
pub(crate) const NAMES_FILE: &str = "vertex_names.txt";

/// The names that the vertices of a dataset had in the files that it was imported from.
pub struct VertexNames(Kind);

enum Kind {
    Numbers(Shared<i64>),
    /// The text, and where each line of it starts and the last one ends.
    Lines(Bytes, Vec<u64>),
}

impl VertexNames {
    /// Opens the names in the dataset directory `dir`, which has `vertices` vertices. Returns `None` if it has no names.
    ///
    /// # Errors
    /// [`Error::Shape`] if there is not one name per vertex; those of reading an array; [`Error::Io`].
    /// # Cost
    /// O(size of the file) for text, of which 8 bytes per vertex stay in memory.
    pub fn open(dir: &Path, vertices: usize) -> Result<Option<Self>> {
        if let Some(ids) = numbers(dir, vertices)? {
            return Ok(Some(Self(Kind::Numbers(ids))));
        }
        Ok(lines(dir, vertices)?.map(Self))
    }

    /// Returns whether the names are numbers.
    pub fn are_numbers(&self) -> bool {
        matches!(self.0, Kind::Numbers(_))
    }

    /// Returns the name of a vertex if it is a number.
    ///
    /// # Panics
    /// If there is no such vertex.
    pub fn number(&self, vertex: usize) -> Option<i64> {
        match &self.0 {
            Kind::Numbers(ids) => Some(ids[vertex]),
            Kind::Lines(..) => None,
        }
    }

    /// Returns the name of a vertex: a line of a file, which need not be UTF-8, or a number.
    ///
    /// # Panics
    /// If there is no such vertex.
    pub fn get(&self, vertex: usize) -> Cow<'_, [u8]> {
        match &self.0 {
            Kind::Numbers(ids) => ids[vertex].to_string().into_bytes().into(),
            Kind::Lines(text, starts) => {
                let line = &(**text).as_ref()[starts[vertex] as usize..starts[vertex + 1] as usize];
                line.strip_suffix(b"\n").unwrap_or(line).into()
            }
        }
    }
}

/// Opens the numeric names, if there are any.
fn numbers(dir: &Path, vertices: usize) -> Result<Option<Shared<i64>>> {
    let Some(npy) = open_if_there(dir, NUMBERS, &[Dtype::I64], "int64 ('<i8')")? else { return Ok(None) };
    npy.expect_len(vertices, "one id per vertex")?;
    Ok(Some(npy.array()))
}

/// Opens the other names, if there are any.
fn lines(dir: &Path, vertices: usize) -> Result<Option<Kind>> {
    let path = dir.join(NAMES_FILE);
    if matches!(path.try_exists(), Ok(false)) {
        return Ok(None);
    }
    let text = mmap::map(&path, "it was there a moment ago")?;
    let starts = line_starts((*text).as_ref(), vertices).map_err(|found| {
        let expected = format!("[{vertices}] (one line per vertex)");
        Error::Shape { file: path.display().to_string(), found: vec![found], expected }
    })?;
    Ok(Some(Kind::Lines(text, starts)))
}

/// Writes the names of the vertices of the dataset directory `from` to the directory `to`, in another order. Does nothing
/// if there are no names.
///
/// # Errors
/// Those of [`VertexNames::open`].
/// # Cost
/// O(size of the files); 8 bytes per vertex.
pub(crate) fn relabel(from: &Path, order: &Permutation, to: &Path) -> Result<()> {
    let vertices = order.old_of_new().len();
    if let Some(ids) = numbers(from, vertices)? {
        let ids = order.rows(&ids, 1);
        put_file(&to.join(NUMBERS_FILE), |to| npy::write(to, Dtype::I64, &[vertices], &ids))?;
    }
    let Some(names) = lines(from, vertices)?.map(VertexNames) else { return Ok(()) };
    put_file(&to.join(NAMES_FILE), |to| {
        order.old_of_new().iter().try_for_each(|&old| {
            to.write_all(&names.get(old as usize))?;
            to.write_all(b"\n")
        })
    })
}

/// Returns where each of `lines` lines starts, and where the last one ends. The end of the last line may be missing.
///
/// # Errors
/// The number of lines, if it is another one; lines are counted up to one too many.
fn line_starts(text: &[u8], lines: usize) -> std::result::Result<Vec<u64>, usize> {
    let ends = text.iter().enumerate().filter(|&(_, &byte)| byte == b'\n').map(|(at, _)| at as u64 + 1);
    let mut starts = vec![0];
    starts.extend(ends.take(lines + 1));
    let covered = starts[starts.len() - 1];
    if covered < text.len() as u64 && starts.len() <= lines + 1 {
        starts.push(text.len() as u64);
    }
    if starts.len() == lines + 1 { Ok(starts) } else { Err(starts.len() - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_with_or_without_a_last_end() {
        assert_eq!(line_starts(b"a\n\nbc\n", 3), Ok(vec![0, 2, 3, 6]));
        assert_eq!(line_starts(b"a\n\nbc", 3), Ok(vec![0, 2, 3, 5]));
        assert_eq!(line_starts(b"a\nb", 1), Err(2));
        assert_eq!(line_starts(b"a\nb\nc\nd\n", 1), Err(2));
        assert_eq!(line_starts(b"a\n", 2), Err(1));
        assert_eq!(line_starts(b"", 1), Err(0));
    }
}
