//! Partitions from files.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use super::Assignment;
use crate::dataset::npy::{Dtype, NpyFile};
use crate::dataset::{Error, Result};
use crate::plain_file;

/// The most bytes of a file besides those of its parts: a header, or line ends.
const MORE_BYTES: u64 = 1 << 16;

/// The most bytes of a part in a file: those of a text number of 20 digits and a line end.
const PART_BYTES: u64 = 22;

impl Assignment {
    /// Reads the part of each vertex from a file: a `.npy` vector of integers, or a text with one number per line.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read, is not a plain file or has too many bytes; [`Error::Shape`] unless there
    /// is one number per vertex; [`Error::Value`] for what is not a part; the errors of `.npy` files.
    /// # Cost
    /// O(size of the file), which is read whole.
    pub fn read(path: &Path, vertices: usize, count: NonZeroU32) -> Result<Self> {
        let most = MORE_BYTES + PART_BYTES * vertices as u64;
        let bytes = plain_file::read(path, most).map_err(Error::io("read", path))?;
        let file = path.display().to_string();
        let part_of = if bytes.starts_with(b"\x93NUMPY") {
            of_array(file, bytes, vertices, count)?
        } else {
            of_text(&file, &bytes, vertices, count)?
        };
        Ok(Self { part_of, count })
    }
}

fn not_a_part(file: &str, position: usize, found: String, count: NonZeroU32) -> Error {
    let expected = format!("a part, 0 to {}", count.get() - 1);
    Error::Value { file: file.into(), position, found, expected }
}

fn of_array(file: String, bytes: Vec<u8>, vertices: usize, count: NonZeroU32) -> Result<Vec<u32>> {
    let dtypes = [Dtype::U8, Dtype::I32, Dtype::U32, Dtype::I64];
    let npy = NpyFile::from_bytes(file, Arc::new(bytes), &dtypes, "integers ('|u1', '<i4', '<u4' or '<i8')")?;
    npy.expect_len(vertices, "one part per vertex")?;
    let part = |(position, found): (usize, i64)| {
        let part = u32::try_from(found).ok().filter(|&part| part < count.get());
        part.ok_or_else(|| not_a_part(&npy.file, position, found.to_string(), count))
    };
    match npy.dtype {
        Dtype::U8 => npy.array::<u8>().iter().map(|&x| i64::from(x)).enumerate().map(part).collect(),
        Dtype::I32 => npy.array::<i32>().iter().map(|&x| i64::from(x)).enumerate().map(part).collect(),
        Dtype::U32 => npy.array::<u32>().iter().map(|&x| i64::from(x)).enumerate().map(part).collect(),
        _ => npy.array::<i64>().iter().copied().enumerate().map(part).collect(),
    }
}

fn of_text(file: &str, bytes: &[u8], vertices: usize, count: NonZeroU32) -> Result<Vec<u32>> {
    // The last line may lack its end.
    let text = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let lines = if text.is_empty() { 0 } else { 1 + text.iter().filter(|&&byte| byte == b'\n').count() };
    let part = |(position, line): (usize, &[u8])| {
        let line = line.trim_ascii();
        let part = std::str::from_utf8(line).ok().and_then(|line| line.parse::<u32>().ok());
        part.filter(|&part| part < count.get()).ok_or_else(|| {
            let found = format!("`{:.40}`", String::from_utf8_lossy(line));
            not_a_part(file, position, found, count)
        })
    };
    // What is no list of parts at all is called that, whatever its number of lines.
    let part_of = text.split(|&byte| byte == b'\n').take(lines.min(vertices)).enumerate().map(part);
    let part_of = part_of.collect::<Result<Vec<u32>>>()?;
    if lines != vertices {
        let expected = format!("[{vertices}] (one line per vertex)");
        return Err(Error::Shape { file: file.into(), found: vec![lines], expected });
    }
    Ok(part_of)
}
