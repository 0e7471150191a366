//! Reads arrays in numpy's format from files or archives, block by block, with any element type and order.

use std::io::{BufReader, Read};
use std::path::Path;

use half::f16;

use super::numpy::ElementKind;
use super::source::Meter;
use super::weights::check_finite;
use crate::dataset::error::{Error, Result};
use crate::dataset::npy::Header;
use crate::dataset::split::Members;
use crate::host;

/// Elements converted at a time.
const BLOCK: usize = 1 << 16;

/// One array whose header has been read, but not its data.
pub(super) struct Numbers<'a> {
    /// The file or member, for messages.
    pub place: String,
    /// The header.
    pub header: Header,
    pub shape: Vec<usize>,
    kind: ElementKind,
    big_endian: bool,
    fortran_order: bool,
    len: usize,
    body: Box<dyn Read + 'a>,
}

impl<'a> Numbers<'a> {
    /// Opens the array of a `.npy` file.
    pub(super) fn open(meter: &'a Meter<'_>, path: &Path, needed: &'static str) -> Result<Self> {
        let mut file = meter.open(path, needed)?;
        let place = path.display().to_string();
        let bytes = file.bytes;
        let head = read_head(&mut file).map_err(Error::io("read", path))?;
        let header = parse_header(&place, &head)?;
        let have_bytes = bytes.saturating_sub(header.len as u64);
        Self::new(place, &header, have_bytes, Box::new(BufReader::with_capacity(1 << 18, file)))
    }

    /// Takes the array after a header, of which `have_bytes` can follow.
    ///
    /// # Errors
    /// A type that is not a number; a size that differs from `have_bytes`, or exceeds the host's memory.
    pub(super) fn new(file: String, header: &Header, have_bytes: u64, body: Box<dyn Read + 'a>) -> Result<Self> {
        let Some(kind) = ElementKind::parse(&header.descr) else {
            let found = match header.descr.as_str() {
                "|O" => "Python objects, which only running a pickle would make (nothing was run)".into(),
                other => format!("'{other:.40}'"),
            };
            return Err(Error::Dtype { file, found, expected: "bool, integers or floats" });
        };
        let len = header.element_count();
        let need_bytes = len.and_then(|len| len.checked_mul(kind.size())).map_or(u64::MAX, |need| need as u64);
        let len = match len {
            Some(len) if need_bytes == have_bytes => len,
            _ if need_bytes < have_bytes => {
                return Err(Error::TrailingBytes { file, extra_bytes: have_bytes - need_bytes });
            }
            _ => return Err(Error::Truncated { file, need_bytes, have_bytes }),
        };
        Ok(Self {
            place: file,
            shape: header.shape.clone(),
            header: header.clone(),
            kind,
            big_endian: header.descr.starts_with('>'),
            fortran_order: header.fortran_order && header.shape.iter().filter(|&&axis| axis > 1).count() > 1,
            len,
            body,
        })
    }

    pub(super) fn wrong_shape(&self, expected: impl ToString) -> Error {
        Error::Shape { file: self.place.clone(), found: self.shape.clone(), expected: expected.to_string() }
    }

    /// Returns the number of elements of a vector.
    pub(super) fn vector_len(&self, expected: &str) -> Result<usize> {
        match self.shape[..] {
            [len] => Ok(len),
            _ => Err(self.wrong_shape(expected)),
        }
    }

    /// Checks that this is a vector of `len` elements.
    pub(super) fn expect_len(&self, len: usize, why: &str) -> Result<()> {
        if self.shape == [len] { Ok(()) } else { Err(self.wrong_shape(format_args!("[{len}] ({why})"))) }
    }

    pub(super) fn is_bool(&self) -> bool {
        self.kind == ElementKind::Bool
    }

    /// Returns whether a matrix is stored column by column.
    pub(super) fn fortran_order(&self) -> bool {
        self.fortran_order
    }

    fn is_float(&self) -> bool {
        matches!(self.kind, ElementKind::Float(_))
    }

    fn expect_ints(&self) -> Result<()> {
        if self.is_float() {
            let ElementKind::Float(size) = self.kind else { return Ok(()) };
            let found = format!("'f{size}'");
            return Err(Error::Dtype { file: self.place.clone(), found, expected: "integers" });
        }
        Ok(())
    }

    /// Reads the bytes of the next elements and converts them to little-endian.
    fn next_block(&mut self, left: usize, buffer: &mut Vec<u8>) -> Result<()> {
        let size = self.kind.size();
        buffer.resize(left.min(BLOCK) * size, 0);
        self.body
            .read_exact(buffer)
            .map_err(|e| Error::Import { file: self.place.clone(), why: format!("cannot be read to its end: {e}") })?;
        if self.big_endian && size > 1 {
            buffer.chunks_exact_mut(size).for_each(<[u8]>::reverse);
        }
        Ok(())
    }

    /// Calls `each` with all elements as integers in the order of storage, block by block.
    pub(super) fn int_blocks(mut self, mut each: impl FnMut(&[i64]) -> Result<()>) -> Result<()> {
        self.expect_ints()?;
        let (mut buffer, mut wide) = (Vec::new(), Vec::new());
        let mut left = self.len;
        while left > 0 {
            self.next_int_block(&mut left, &mut buffer, &mut wide)?;
            each(&wide)?;
        }
        self.end()
    }

    fn next_int_block(&mut self, left: &mut usize, buffer: &mut Vec<u8>, wide: &mut Vec<i64>) -> Result<()> {
        self.next_block(*left, buffer)?;
        wide.clear();
        ints(self.kind, buffer, wide);
        *left -= wide.len();
        Ok(())
    }

    /// Reads the end of the data, where the archive compares its checksum.
    fn end(mut self) -> Result<()> {
        let why = |e| Error::Import { file: self.place.clone(), why: format!("cannot be read to its end: {e}") };
        self.body.read(&mut [0]).map_err(why)?;
        Ok(())
    }

    fn fits(&self, element_bytes: u64) -> Result<()> {
        match host::lack((self.len as u64).saturating_mul(element_bytes), host::free_bytes()) {
            None => Ok(()),
            Some(shortage) => Err(Error::Import {
                file: self.place.clone(),
                why: format!("has shape {:?}, which {shortage}", self.shape),
            }),
        }
    }

    /// Reads the elements as integers in the order of storage. `narrow` converts each, or refuses it.
    pub(super) fn ints<T>(self, expected: &str, narrow: impl Fn(i64) -> Option<T>) -> Result<Vec<T>> {
        self.fits(size_of::<T>() as u64)?;
        let file = self.place.clone();
        let mut all = Vec::with_capacity(self.len);
        self.int_blocks(|block| {
            for &number in block {
                let Some(element) = narrow(number) else {
                    let (position, found) = (all.len(), number.to_string());
                    return Err(Error::Value { file: file.clone(), position, found, expected: expected.into() });
                };
                all.push(element);
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// Reads a vector of offsets.
    pub(super) fn offsets(self, len: Option<usize>, why: &str) -> Result<Vec<u64>> {
        match len {
            Some(len) => self.expect_len(len, why)?,
            None => drop(self.vector_len(why)?),
        }
        self.ints("an offset: not negative", |x| u64::try_from(x).ok())
    }

    /// Reads the elements as f32 in row-major order, whatever the order of storage.
    pub(super) fn floats(mut self) -> Result<Vec<f32>> {
        self.fits(4)?;
        let mut buffer = Vec::new();
        let mut narrow = Vec::new();
        let mut all = Vec::new();
        let (rows, columns) = match self.shape[..] {
            [rows, columns] if self.fortran_order => (rows, columns),
            _ if self.fortran_order => return Err(Error::FortranOrder { file: self.place }),
            _ => (1, self.len),
        };
        if self.fortran_order {
            all.resize(self.len, 0.0);
        } else {
            all.reserve_exact(self.len);
        }
        let mut done = 0;
        while done < self.len {
            self.next_block(self.len - done, &mut buffer)?;
            narrow.clear();
            floats(self.kind, &buffer, &mut narrow);
            if self.fortran_order {
                for (at, &x) in (done..).zip(&narrow) {
                    all[(at % rows) * columns + at / rows] = x;
                }
            } else {
                all.extend_from_slice(&narrow);
            }
            done += narrow.len();
        }
        self.end()?;
        Ok(all)
    }

    /// Reads one label per vertex; NaN means no label.
    pub(super) fn labels(self) -> Result<Vec<i64>> {
        if !self.is_float() {
            return self.ints("a class", Some);
        }
        let file = self.place.clone();
        let as_label = |(position, x): (usize, f32)| {
            // Every class must be below 2^24, so f32 holds it exactly.
            let label = if x.is_nan() { -1.0 } else { x };
            let whole = label.fract() == 0.0 && label.abs() < 16_777_216.0;
            let expected = "a whole number below 2^24, or NaN for no label".to_string();
            let bad = || Error::Value { file: file.clone(), position, found: x.to_string(), expected };
            if whole { Ok(label as i64) } else { Err(bad()) }
        };
        self.floats()?.into_iter().enumerate().map(as_label).collect()
    }

    /// Reads several labels per vertex in row-major order, 0 or 1 each.
    pub(super) fn bits(self) -> Result<Vec<u8>> {
        if !self.is_float() && !self.fortran_order {
            return self.ints("0 or 1", |x| u8::try_from(x).ok().filter(|&x| x <= 1));
        }
        let file = self.place.clone();
        let bit = |(position, x): (usize, f32)| match x {
            0.0 => Ok(0),
            1.0 => Ok(1),
            other => {
                let expected = "0 or 1".into();
                Err(Error::Value { file: file.clone(), position, found: other.to_string(), expected })
            }
        };
        self.floats()?.into_iter().enumerate().map(bit).collect()
    }

    /// Calls `take` with all elements as f32 in the order of storage, block by block.
    ///
    /// # Errors
    /// An element that is not finite, by its position.
    pub(super) fn finite_blocks(mut self, expected: &str, mut take: impl FnMut(&[f32]) -> Result<()>) -> Result<()> {
        let (mut buffer, mut narrow) = (Vec::new(), Vec::new());
        let mut done = 0;
        while done < self.len {
            self.next_block(self.len - done, &mut buffer)?;
            narrow.clear();
            floats(self.kind, &buffer, &mut narrow);
            check_finite(&self, done, &narrow, expected)?;
            take(&narrow)?;
            done += narrow.len();
        }
        self.end()
    }

    /// Calls `take` with the elements of one column of a matrix, as [`Numbers::finite_blocks`] does. `column` is its
    /// position and the number of columns.
    pub(super) fn column_blocks(
        self,
        (column, columns): (usize, usize),
        expected: &str,
        mut take: impl FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        let (rows, by_column) = (self.len / columns, self.fortran_order);
        let mut picked = Vec::new();
        let mut done = 0;
        self.finite_blocks(expected, |block| {
            picked.clear();
            picked.extend((done..).zip(block).filter_map(|(at, &value): (usize, _)| {
                let of = if by_column { at / rows } else { at % columns };
                (of == column).then_some(value)
            }));
            done += block.len();
            take(&picked)
        })
    }

    /// Counts the elements other than 1.
    pub(super) fn count_other_than_one(mut self) -> Result<u64> {
        let (mut buffer, mut narrow) = (Vec::new(), Vec::new());
        let (mut left, mut others) = (self.len, 0);
        while left > 0 {
            self.next_block(left, &mut buffer)?;
            narrow.clear();
            floats(self.kind, &buffer, &mut narrow);
            others += narrow.iter().filter(|&&x| x != 1.0).count() as u64;
            left -= narrow.len();
        }
        self.end()?;
        Ok(others)
    }

    /// Reads a split: a mask if the elements are bool, otherwise ids.
    pub(super) fn members(self) -> Result<Members> {
        self.vector_len("[vertices] of bool, or [members] of ids")?;
        if self.is_bool() {
            return Ok(Members::Mask(self.ints("a truth value", |x| Some(x != 0))?));
        }
        Ok(Members::Ids(self.ints("a vertex", Some)?))
    }
}

/// Calls `each` with blocks of two vectors of equal length.
pub(super) fn int_pairs(
    mut a: Numbers<'_>,
    mut b: Numbers<'_>,
    mut each: impl FnMut(&[i64], &[i64]) -> Result<()>,
) -> Result<()> {
    a.vector_len("[edges]")?;
    b.expect_len(a.len, &format!("as {}", a.place))?;
    a.expect_ints()?;
    b.expect_ints()?;
    let mut buffer = Vec::new();
    let (mut left, mut left_b) = (a.len, b.len);
    let (mut wide_a, mut wide_b) = (Vec::new(), Vec::new());
    while left > 0 {
        a.next_int_block(&mut left, &mut buffer, &mut wide_a)?;
        b.next_int_block(&mut left_b, &mut buffer, &mut wide_b)?;
        each(&wide_a, &wide_b)?;
    }
    a.end()?;
    b.end()
}

/// Appends the elements of `bytes`, `N` bytes each. There is one instance per type, so each loop has no branches.
fn each<const N: usize, W>(bytes: &[u8], wide: &mut Vec<W>, read: impl Fn([u8; N]) -> W) {
    wide.extend(bytes.as_chunks::<N>().0.iter().map(|&element| read(element)));
}

fn ints(kind: ElementKind, bytes: &[u8], wide: &mut Vec<i64>) {
    match kind {
        ElementKind::Signed(1) => each(bytes, wide, |x| i8::from_le_bytes(x).into()),
        ElementKind::Signed(2) => each(bytes, wide, |x| i16::from_le_bytes(x).into()),
        ElementKind::Signed(4) => each(bytes, wide, |x| i32::from_le_bytes(x).into()),
        ElementKind::Unsigned(2) => each(bytes, wide, |x| u16::from_le_bytes(x).into()),
        ElementKind::Unsigned(4) => each(bytes, wide, |x| u32::from_le_bytes(x).into()),
        // A number of 2^63 or more becomes negative, which every caller refuses.
        ElementKind::Signed(_) | ElementKind::Unsigned(8) => each(bytes, wide, i64::from_le_bytes),
        _ => each(bytes, wide, |[x]| x.into()),
    }
}

fn floats(kind: ElementKind, bytes: &[u8], narrow: &mut Vec<f32>) {
    match kind {
        ElementKind::Float(2) => each(bytes, narrow, |x| f16::from_le_bytes(x).to_f32()),
        ElementKind::Float(4) => each(bytes, narrow, f32::from_le_bytes),
        ElementKind::Float(_) => each(bytes, narrow, |x| f64::from_le_bytes(x) as f32),
        ElementKind::Unsigned(8) => each(bytes, narrow, |x| u64::from_le_bytes(x) as f32),
        _ => {
            let mut wide = Vec::with_capacity(bytes.len() / kind.size());
            ints(kind, bytes, &mut wide);
            narrow.extend(wide.into_iter().map(|x| x as f32));
        }
    }
}

/// Reads enough bytes of an array to contain its header.
pub(super) fn read_head(file: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    file.by_ref().take(12).read_to_end(&mut head)?;
    let len = match head[..] {
        [.., 1, _, low, high, _, _] => usize::from(u16::from_le_bytes([low, high])).saturating_sub(2),
        [.., low, high, 0, 0] => usize::from(u16::from_le_bytes([low, high])),
        _ => 0,
    };
    file.by_ref().take(len as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// Parses a header.
pub(super) fn parse_header(file: &str, head: &[u8]) -> Result<Header> {
    Header::parse(head).map_err(|why| Error::NotNpy { file: file.into(), why })
}
