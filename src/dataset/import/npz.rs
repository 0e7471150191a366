//! Datasets in numpy's `.npz` archives.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use half::f16;
use rayon::prelude::*;
use zip::ZipArchive;
use zip::result::ZipError;

use crate::dataset::Dataset;
use crate::dataset::build::{Origin, Parts, RawFeatures, RawLabels, checked_graph};
use crate::dataset::error::{Error, Result};
use crate::dataset::npy::{Dtype, Header, check_dtype};
use crate::dataset::split::{Members, NAMES};
use crate::graph::rows_mut;

/// Elements that are converted at a time.
const CHUNK: usize = 1 << 16;
/// Deflate cannot do better than about 1 in 1032: more is a lie about the size.
const MOST_DEFLATED: u64 = 1100;

/// Reads an archive of `indptr`, `indices` and, as far as they are there, `x`, `y`, `train`, `val`, `test`.
///
/// Members may be stored or deflated; others are ignored. Rows of the CSR are sorted if they are not.
///
/// # Shapes
/// `indptr`: `[vertices + 1]`; `indices`: `[edges]`, sources by destination; `x`: `[vertices, width]`; `y`: `[vertices]`
/// of integers (-1: none), or u8 `[vertices, classes]`; splits: bool `[vertices]` or ids.
/// # Errors
/// Those of [`Dataset::open`]; `file` is then `ARCHIVE[member]`.
/// # Cost
/// O(size); memory is that of the dataset and a few hundred KB.
pub fn npz(source: &Path) -> Result<Dataset> {
    let file = match File::open(source) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::Missing { path: source.into(), needed: "it is the archive to import" });
        }
        other => other.map_err(Error::io("open", source))?,
    };
    let zip = ZipArchive::new(BufReader::new(file)).map_err(|e| Error::Import {
        file: source.display().to_string(),
        why: format!("is not an archive that can be read ({e})"),
    })?;
    let origin = Origin::Archive(source.to_path_buf());
    let mut archive = Archive { zip, origin: origin.clone() };

    let indptr = archive.required("indptr", &[Dtype::I64, Dtype::I32], "int64 or int32")?;
    let indptr: Vec<u64> = archive.convert(&indptr, "[vertices + 1]", |x: i64| u64::try_from(x).ok())?;
    let member = archive.required("indices", &[Dtype::I32, Dtype::U32, Dtype::I64], "int32, uint32 or int64")?;
    let mut indices: Vec<u32> = archive.convert(&member, "[edges]", |x: i64| u32::try_from(x).ok())?;
    sort_rows(&indptr, &mut indices);
    let graph = checked_graph(&origin, indptr.into(), indices.into())?;
    let stem = source.file_stem().map_or_else(|| "unnamed".into(), |stem| stem.to_string_lossy().into_owned());
    let mut parts = Parts::new(origin, stem, graph);

    if let Some(x) = archive.member("x", &[Dtype::F32, Dtype::F64, Dtype::F16], "float32, float64 or float16")? {
        let [rows, width] = x.header.shape[..] else { return Err(x.wrong_shape("[vertices, width]")) };
        let data: Vec<f32> = archive.elements(&x, |x: f64| Some(x as f32))?;
        parts.features = Some(RawFeatures::Dense { data: data.into(), rows, width });
    }
    if let Some(y) = archive.member("y", &[Dtype::I64, Dtype::I32, Dtype::U8], "int64, int32 or uint8")? {
        parts.labels = Some(match y.header.shape[..] {
            [rows, classes] if y.dtype == Dtype::U8 => {
                let data: Vec<u8> = archive.elements(&y, |x: i64| u8::try_from(x).ok())?;
                RawLabels::Multi { data: data.into(), rows, classes }
            }
            _ => RawLabels::Class(archive.convert(&y, "[vertices]", |x: i64| Some(x))?.into()),
        });
    }
    for (members, name) in parts.splits.iter_mut().zip(NAMES) {
        let expected = "bool of [vertices], or int64 or int32 of vertex ids";
        let Some(split) = archive.member(name, &[Dtype::Bool, Dtype::I64, Dtype::I32], expected)? else { continue };
        let values: Vec<i64> = archive.convert(&split, expected, |x: i64| Some(x))?;
        *members = Some(match split.dtype {
            Dtype::Bool => Members::Mask(values.into_iter().map(|on| on != 0).collect()),
            _ => Members::Ids(values),
        });
    }
    parts.build()
}

/// Sorts rows that are not sorted. Offsets that are no offsets are left to the check of the graph.
fn sort_rows(indptr: &[u64], indices: &mut [u32]) {
    let offsets = indptr.first() == Some(&0) && indptr.is_sorted() && indptr.last() == Some(&(indices.len() as u64));
    if offsets {
        rows_mut(indptr, indices).into_par_iter().filter(|row| !row.is_sorted()).for_each(|row| row.sort_unstable());
    }
}

struct Archive {
    zip: ZipArchive<BufReader<File>>,
    origin: Origin,
}

/// One array of the archive, its header read.
struct Member {
    place: String,
    index: usize,
    header: Header,
    dtype: Dtype,
    /// Elements; their bytes are known to be in the archive.
    len: usize,
}

impl Member {
    fn wrong_shape(&self, expected: &str) -> Error {
        Error::Shape { file: self.place.clone(), found: self.header.shape.clone(), expected: expected.into() }
    }
}

/// A number as wide as the widest of its kind.
trait Wide: Copy + ToString {
    /// Replaces `wide` by the elements in `bytes`. One loop a type, so that each is a straight one.
    fn read(dtype: Dtype, bytes: &[u8], wide: &mut Vec<Self>);
}

/// The elements of `bytes`, `N` bytes each.
fn each<const N: usize, W>(bytes: &[u8], wide: &mut Vec<W>, read: impl Fn([u8; N]) -> W) {
    wide.clear();
    wide.extend(bytes.as_chunks::<N>().0.iter().map(|&element| read(element)));
}

impl Wide for i64 {
    fn read(dtype: Dtype, bytes: &[u8], wide: &mut Vec<Self>) {
        match dtype {
            Dtype::Bool | Dtype::U8 => each(bytes, wide, |[x]| x.into()),
            Dtype::I32 => each(bytes, wide, |x| i32::from_le_bytes(x).into()),
            Dtype::U32 => each(bytes, wide, |x| u32::from_le_bytes(x).into()),
            _ => each(bytes, wide, Self::from_le_bytes),
        }
    }
}

impl Wide for f64 {
    fn read(dtype: Dtype, bytes: &[u8], wide: &mut Vec<Self>) {
        match dtype {
            Dtype::F16 => each(bytes, wide, |x| f16::from_le_bytes(x).to_f64()),
            Dtype::F32 => each(bytes, wide, |x| f32::from_le_bytes(x).into()),
            _ => each(bytes, wide, Self::from_le_bytes),
        }
    }
}

impl Archive {
    fn required(&mut self, name: &str, dtypes: &[Dtype], expected: &'static str) -> Result<Member> {
        let member = self.member(name, dtypes, expected)?;
        member.ok_or_else(|| Error::Import {
            file: self.origin.name(name),
            why: "is missing; an archive needs indptr and indices".into(),
        })
    }

    /// Reads a member's header and checks it against the member's size.
    fn member(&mut self, name: &str, dtypes: &[Dtype], expected: &'static str) -> Result<Option<Member>> {
        let place = self.origin.name(name);
        let Some(index) = self.zip.index_for_name(&format!("{name}.npy")) else {
            return Ok(None);
        };
        let mut file = self.zip.by_index(index).map_err(|e| unreadable(&place, e))?;
        let head = read_head(&mut file).map_err(|e| unreadable(&place, e.into()))?;
        let header = match Header::parse(&head) {
            Ok(header) => header,
            Err(why) => return Err(Error::NotNpy { file: place, why }),
        };
        let dtype = check_dtype(&place, &header, dtypes, expected)?;
        let have = file.size().saturating_sub(header.len as u64);
        let len = header.element_count();
        let need_bytes = len.and_then(|len| len.checked_mul(dtype.size())).map_or(u64::MAX, |need| need as u64);
        let held = file.compressed_size().saturating_mul(MOST_DEFLATED) + 4096;
        match len {
            Some(len) if need_bytes == have && have <= held => Ok(Some(Member { place, index, header, dtype, len })),
            _ if need_bytes < have => Err(Error::TrailingBytes { file: place, extra_bytes: have - need_bytes }),
            _ => Err(Error::Truncated { file: place, need_bytes, have_bytes: have.min(held) }),
        }
    }

    /// The elements of a vector.
    fn convert<W: Wide, T>(&mut self, member: &Member, shape: &str, narrow: impl Fn(W) -> Option<T>) -> Result<Vec<T>> {
        if member.header.shape.len() != 1 {
            return Err(member.wrong_shape(shape));
        }
        self.elements(member, narrow)
    }

    /// The elements, row by row, converted a chunk at a time.
    fn elements<W: Wide, T>(&mut self, member: &Member, narrow: impl Fn(W) -> Option<T>) -> Result<Vec<T>> {
        let mut file = self.zip.by_index(member.index).map_err(|e| unreadable(&member.place, e))?;
        let size = member.dtype.size();
        let mut buffer = vec![0u8; member.header.len.max(CHUNK * size)];
        file.read_exact(&mut buffer[..member.header.len]).map_err(|e| unreadable(&member.place, e.into()))?;
        let mut wide = Vec::with_capacity(CHUNK);
        let mut elements = Vec::with_capacity(member.len);
        while elements.len() < member.len {
            let chunk = &mut buffer[..(member.len - elements.len()).min(CHUNK) * size];
            file.read_exact(chunk).map_err(|e| unreadable(&member.place, e.into()))?;
            W::read(member.dtype, chunk, &mut wide);
            for &number in &wide {
                let Some(element) = narrow(number) else {
                    return Err(Error::Value {
                        file: member.place.clone(),
                        position: elements.len(),
                        found: number.to_string(),
                        expected: "a number that is not negative and fits".into(),
                    });
                };
                elements.push(element);
            }
        }
        // The archive's checksum is compared when its end is read.
        file.read(&mut [0]).map_err(|e| unreadable(&member.place, e.into()))?;
        Ok(elements)
    }
}

/// Enough of the start of a member to hold its header.
fn read_head(file: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    file.by_ref().take(12).read_to_end(&mut head)?;
    let len = match head[..] {
        [.., 1, _, low, high, _, _] => usize::from(u16::from_le_bytes([low, high])),
        [.., low, high, 0, 0] => usize::from(u16::from_le_bytes([low, high])) + 2,
        _ => 0,
    };
    file.by_ref().take(len as u64).read_to_end(&mut head)?;
    Ok(head)
}

fn unreadable(place: &str, error: ZipError) -> Error {
    Error::Import { file: place.into(), why: format!("cannot be read from the archive: {error}") }
}
