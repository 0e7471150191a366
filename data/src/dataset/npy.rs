//! The `.npy` format: reading headers and typed arrays from mapped bytes, and writing.
//!
//! This module does not use `ndarray-npy`, for three reasons. An array may have one of several element types, half
//! floats among them, and is used in place whichever it has. A header is untrusted, and must not be able to exhaust the
//! stack or the memory. Files must be the same bytes as numpy writes.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use bytemuck::Pod;
use lapidary_arrays::Shared;

use super::error::{Error, Result};
use super::mmap::{self, Bytes};

#[cfg(target_endian = "big")]
compile_error!("dataset files are little-endian and used in place");

const MAGIC: &[u8] = b"\x93NUMPY";
/// The longest header that is accepted. A plain array never needs a longer one.
const MAX_HEADER_BYTES: usize = 1 << 16;

/// The element types of dataset files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// `|b1`.
    Bool,
    /// `|u1`.
    U8,
    /// `<u4`.
    U32,
    /// `<i4`.
    I32,
    /// `<i8`.
    I64,
    /// `<f2`.
    F16,
    /// `<f4`.
    F32,
    /// `<f8`.
    F64,
}

impl Dtype {
    const ALL: [(Self, &'static str, usize); 8] = [
        (Self::Bool, "|b1", 1),
        (Self::U8, "|u1", 1),
        (Self::U32, "<u4", 4),
        (Self::I32, "<i4", 4),
        (Self::I64, "<i8", 8),
        (Self::F16, "<f2", 2),
        (Self::F32, "<f4", 4),
        (Self::F64, "<f8", 8),
    ];

    fn parse(descr: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, name, _)| *name == descr).map(|&(dtype, _, _)| dtype)
    }

    fn row(self) -> (Self, &'static str, usize) {
        *Self::ALL.iter().find(|(dtype, _, _)| *dtype == self).unwrap_or(&Self::ALL[0])
    }

    /// Returns the type as numpy spells it.
    pub fn descr(self) -> &'static str {
        self.row().1
    }

    /// Returns the bytes per element.
    pub fn size(self) -> usize {
        self.row().2
    }
}

/// The header of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub descr: String,
    pub fortran_order: bool,
    pub shape: Vec<usize>,
    /// Bytes of the header, which is where the data starts.
    pub len: usize,
}

impl Header {
    /// Parses the header at the start of `bytes`.
    pub(crate) fn parse(bytes: &[u8]) -> std::result::Result<Self, String> {
        let short = || "it ends within its header".to_string();
        if !bytes.starts_with(MAGIC) {
            return Err("it does not start with \\x93NUMPY".into());
        }
        let version = *bytes.get(6).ok_or_else(short)?;
        let (start, text_len) = match version {
            1 => (10, bytes.get(8..10).map(|b| usize::from(u16::from_le_bytes([b[0], b[1]])))),
            2 | 3 => (12, bytes.get(8..12).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize)),
            other => return Err(format!("its format version is {other}, expected 1, 2 or 3")),
        };
        let text_len = text_len.ok_or_else(short)?;
        if text_len > MAX_HEADER_BYTES {
            return Err(format!("its header claims {text_len} bytes, expected at most {MAX_HEADER_BYTES}"));
        }
        let text = bytes.get(start..start + text_len).ok_or_else(short)?;
        let text = std::str::from_utf8(text).map_err(|_| "its header is not text".to_string())?;
        let mut header = Literal { rest: text }.dict().ok_or_else(|| {
            format!("its header is not a plain array's: {:.80}", text.trim_end().replace(|c: char| c.is_control(), "?"))
        })?;
        header.len = start + text_len;
        Ok(header)
    }

    /// Returns the number of elements, or `None` if it overflows.
    pub(crate) fn element_count(&self) -> Option<usize> {
        self.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
    }
}

/// A cursor over the Python literal in a header. It does not recurse, since nothing in the literal nests.
struct Literal<'a> {
    rest: &'a str,
}

impl<'a> Literal<'a> {
    fn eat(&mut self, token: &str) -> Option<()> {
        self.rest = self.rest.trim_start().strip_prefix(token)?;
        Some(())
    }

    fn string(&mut self) -> Option<&'a str> {
        let quote = if self.eat("'").is_some() {
            '\''
        } else {
            self.eat("\"")?;
            '"'
        };
        let (text, rest) = self.rest.split_once(quote)?;
        self.rest = rest;
        Some(text)
    }

    fn shape(&mut self) -> Option<Vec<usize>> {
        self.eat("(")?;
        let mut shape = Vec::new();
        while self.eat(")").is_none() {
            self.rest = self.rest.trim_start();
            let digits = self.rest.bytes().take_while(u8::is_ascii_digit).count();
            shape.push(self.rest[..digits].parse().ok()?);
            self.rest = &self.rest[digits..];
            // Python 2 wrote long integers with an L.
            let _ = self.eat("L");
            if self.eat(",").is_none() {
                self.eat(")")?;
                break;
            }
        }
        Some(shape)
    }

    fn dict(&mut self) -> Option<Header> {
        let (mut descr, mut order, mut shape) = (None, None, None);
        self.eat("{")?;
        while self.eat("}").is_none() {
            let key = self.string()?;
            self.eat(":")?;
            match key {
                "descr" => descr = Some(self.string()?.to_string()),
                "fortran_order" if self.eat("True").is_some() => order = Some(true),
                "fortran_order" if self.eat("False").is_some() => order = Some(false),
                "shape" => shape = Some(self.shape()?),
                _ => return None,
            }
            if self.eat(",").is_none() {
                self.eat("}")?;
                break;
            }
        }
        if !self.rest.trim().is_empty() {
            return None;
        }
        Some(Header { descr: descr?, fortran_order: order?, shape: shape?, len: 0 })
    }
}

/// One array file, with a checked header. The data is not checked yet.
pub(crate) struct NpyFile {
    /// The path, for messages.
    pub file: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    bytes: Bytes,
    offset: usize,
}

impl NpyFile {
    /// Maps a file and checks its header, dtype, order and length. `expected` lists the dtypes in words.
    pub(crate) fn open(path: &Path, needed: &'static str, dtypes: &[Dtype], expected: &'static str) -> Result<Self> {
        let bytes = mmap::map(path, needed)?;
        Self::from_bytes(path.display().to_string(), bytes, dtypes, expected)
    }

    /// Does the same for bytes in memory.
    pub(crate) fn from_bytes(file: String, bytes: Bytes, dtypes: &[Dtype], expected: &'static str) -> Result<Self> {
        let all: &[u8] = (*bytes).as_ref();
        let header = match Header::parse(all) {
            Ok(header) => header,
            Err(why) => return Err(Error::NotNpy { file, why }),
        };
        let dtype = check_dtype(&file, &header, dtypes, expected)?;
        let need = header.element_count().and_then(|n| n.checked_mul(dtype.size()));
        let have = all.len() - header.len;
        match need {
            Some(need) if need == have => {}
            Some(need) if need < have => {
                return Err(Error::TrailingBytes { file, extra_bytes: (have - need) as u64 });
            }
            need => {
                let need_bytes = need.map_or(u64::MAX, |n| n as u64);
                return Err(Error::Truncated { file, need_bytes, have_bytes: have as u64 });
            }
        }
        Ok(Self { file, dtype, shape: header.shape, bytes, offset: header.len })
    }

    /// Returns where the elements begin, in bytes.
    pub(crate) fn data_offset(&self) -> u64 {
        self.offset as u64
    }

    /// Returns the elements: in place if the map is aligned for them, otherwise a copy.
    ///
    /// # Panics
    /// If the size of `T` differs from the dtype's. The caller has matched on the dtype.
    pub(crate) fn array<T: Pod + Send + Sync>(&self) -> Shared<T> {
        assert_eq!(size_of::<T>(), self.dtype.size(), "the element type was chosen by the dtype");
        let len = self.shape.iter().product();
        Shared::from_owner(self.bytes.clone(), self.offset, len).unwrap_or_else(|| {
            let data = &(*self.bytes).as_ref()[self.offset..];
            Shared::from(bytemuck::pod_collect_to_vec::<u8, T>(data))
        })
    }

    /// Returns the length of a vector.
    pub(crate) fn vector_len(&self, expected: impl fmt::Display) -> Result<usize> {
        match self.shape[..] {
            [len] => Ok(len),
            _ => Err(self.wrong_shape(expected)),
        }
    }

    /// Checks that this is a vector of `len` elements.
    pub(crate) fn expect_len(&self, len: usize, why: &str) -> Result<()> {
        match self.shape[..] {
            [found] if found == len => Ok(()),
            _ => Err(self.wrong_shape(format_args!("[{len}] ({why})"))),
        }
    }

    /// Checks that this is a matrix with `rows` rows, and returns its number of columns.
    pub(crate) fn expect_rows(&self, rows: usize, why: &str) -> Result<usize> {
        match self.shape[..] {
            [found, columns] if found == rows => Ok(columns),
            _ => Err(self.wrong_shape(format_args!("[{rows}, columns] ({why})"))),
        }
    }

    pub(crate) fn wrong_shape(&self, expected: impl fmt::Display) -> Error {
        Error::Shape { file: self.file.clone(), found: self.shape.clone(), expected: expected.to_string() }
    }
}

/// Returns the dtype of a header, if it is one of `dtypes` and the array is in C order.
pub(crate) fn check_dtype(file: &str, header: &Header, dtypes: &[Dtype], expected: &'static str) -> Result<Dtype> {
    let dtype = Dtype::parse(&header.descr).filter(|dtype| dtypes.contains(dtype)).ok_or_else(|| {
        let order = if header.descr.starts_with('>') { " (big-endian)" } else { "" };
        Error::Dtype { file: file.into(), found: format!("'{:.40}'{order}", header.descr), expected }
    })?;
    // An array with at most one axis longer than 1 is the same in both orders.
    if header.fortran_order && header.shape.iter().filter(|&&d| d > 1).count() > 1 {
        return Err(Error::FortranOrder { file: file.into() });
    }
    Ok(dtype)
}

/// Writes an array as numpy would, byte for byte.
///
/// # Errors
/// Those of the writer.
pub fn write<T: Pod>(mut to: impl Write, dtype: Dtype, shape: &[usize], data: &[T]) -> io::Result<()> {
    write_header(&mut to, dtype, shape)?;
    to.write_all(bytemuck::cast_slice(data))
}

/// Writes the header of an array, as [`write()`] does. The elements follow it.
pub(crate) fn write_header(mut to: impl Write, dtype: Dtype, shape: &[usize]) -> io::Result<()> {
    let axes: Vec<String> = shape.iter().map(ToString::to_string).collect();
    let shape = if axes.len() == 1 { format!("({},)", axes[0]) } else { format!("({})", axes.join(", ")) };
    let text = format!("{{'descr': '{}', 'fortran_order': False, 'shape': {shape}, }}", dtype.descr());
    let total = (10 + text.len() + 1).next_multiple_of(64);
    to.write_all(MAGIC)?;
    to.write_all(&[1, 0])?;
    to.write_all(&((total - 10) as u16).to_le_bytes())?;
    write!(to, "{text:<width$}", width = total - 11)?;
    to.write_all(b"\n")
}
