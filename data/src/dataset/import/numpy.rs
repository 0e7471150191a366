//! The numpy arrays and scipy matrices in a pickle.

use half::f16;

use super::pickle::{Global, Object, Pickle, Value};
use crate::dataset::error::Result;

/// An n-dimensional array whose elements are still bytes.
pub(super) struct Array<'a> {
    kind: ElementKind,
    big_endian: bool,
    pub shape: Vec<usize>,
    fortran_order: bool,
    data: &'a [u8],
}

/// The type of an element, without its byte order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ElementKind {
    Bool,
    Signed(usize),
    Unsigned(usize),
    Float(usize),
}

impl ElementKind {
    /// Parses a type as numpy spells it.
    pub(super) fn parse(text: &str) -> Option<Self> {
        Some(match text.trim_start_matches(['<', '>', '|', '=']) {
            "b1" => Self::Bool,
            "i1" => Self::Signed(1),
            "i2" => Self::Signed(2),
            "i4" => Self::Signed(4),
            "i8" => Self::Signed(8),
            "u1" => Self::Unsigned(1),
            "u2" => Self::Unsigned(2),
            "u4" => Self::Unsigned(4),
            "u8" => Self::Unsigned(8),
            "f2" => Self::Float(2),
            "f4" => Self::Float(4),
            "f8" => Self::Float(8),
            _ => return None,
        })
    }

    /// Returns the bytes per element.
    pub(super) fn size(self) -> usize {
        match self {
            Self::Bool => 1,
            Self::Signed(size) | Self::Unsigned(size) | Self::Float(size) => size,
        }
    }
}

/// Returns the dtype of a value: its kind, and whether it is big-endian.
fn dtype(pickle: &Pickle, value: Value) -> Result<(ElementKind, bool)> {
    let unknown = || pickle.not("an array's dtype is not one of bool, integers and floats");
    let Some(&Object::Instance { class: Global::Dtype, args, state }) = pickle.object(value) else {
        return Err(unknown());
    };
    let name = pickle.items(args).and_then(|items| pickle.text(*items.first()?)).ok_or_else(unknown)?;
    let kind = ElementKind::parse(name)
        .ok_or_else(|| pickle.not(format!("an array has dtype `{name:.20}`, expected bool, integers or floats")))?;
    let order = pickle.items(state).and_then(|items| pickle.text(*items.get(1)?));
    Ok((kind, order.unwrap_or(name).starts_with('>')))
}

impl<'a> Array<'a> {
    /// Reads a value as an array.
    pub(super) fn of(pickle: &'a Pickle, value: Value, what: &str) -> Result<Self> {
        let no_array = || pickle.not(format!("{what} is not a numpy array"));
        let (shape, dtype_value, fortran_order, data) = match *pickle.object(value).ok_or_else(no_array)? {
            Object::Instance { class: Global::Ndarray, state, .. } => {
                match *pickle.items(state).ok_or_else(no_array)? {
                    [_, shape, dtype, order, data] => (shape, dtype, truth(order), data),
                    _ => return Err(no_array()),
                }
            }
            Object::Instance { class: Global::FromBuffer, args, .. } => {
                match *pickle.items(args).ok_or_else(no_array)? {
                    [data, dtype, shape, order] => (shape, dtype, pickle.text(order) == Some("F"), data),
                    _ => return Err(no_array()),
                }
            }
            _ => return Err(no_array()),
        };
        let Value::Bytes(data) = data else { return Err(no_array()) };
        let data = pickle.string(data);
        let (kind, big_endian) = dtype(pickle, dtype_value)?;
        let shape = pickle.items(shape).ok_or_else(no_array)?.iter().map(|&axis| size(axis));
        let shape: Vec<usize> = shape.collect::<Option<_>>().ok_or_else(no_array)?;
        let need = shape.iter().try_fold(kind.size(), |n, &axis| n.checked_mul(axis));
        if need != Some(data.len()) {
            return Err(pickle.not(format!("{what} has shape {shape:?}, which {} bytes do not fill", data.len())));
        }
        Ok(Self { kind, big_endian, shape, fortran_order, data })
    }

    fn element(&self, at: usize) -> [u8; 8] {
        let size = self.kind.size();
        let mut bytes = [0; 8];
        bytes[..size].copy_from_slice(&self.data[at * size..(at + 1) * size]);
        if self.big_endian {
            bytes[..size].reverse();
        }
        bytes
    }

    fn int(&self, at: usize) -> i64 {
        let bytes = self.element(at);
        let raw = i64::from_le_bytes(bytes);
        match self.kind {
            ElementKind::Signed(size) => {
                let unused = 64 - 8 * size as u32;
                raw << unused >> unused
            }
            ElementKind::Bool | ElementKind::Unsigned(_) => raw,
            ElementKind::Float(_) => self.float(at) as i64,
        }
    }

    fn float(&self, at: usize) -> f64 {
        let bytes = self.element(at);
        match self.kind {
            ElementKind::Float(2) => f16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
            ElementKind::Float(4) => f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
            ElementKind::Float(_) => f64::from_le_bytes(bytes),
            _ => self.int(at) as f64,
        }
    }

    /// Returns the positions of the elements in the data, in row-major order.
    fn positions(&self) -> impl Iterator<Item = usize> {
        let len = self.data.len() / self.kind.size();
        let (rows, columns) = match self.shape[..] {
            [rows, columns] if self.fortran_order => (rows, columns),
            _ => (1, len),
        };
        (0..len).map(move |at| (at % columns) * rows + at / columns)
    }

    /// Returns the elements as integers, in row-major order.
    pub(super) fn ints(&self) -> Vec<i64> {
        self.positions().map(|at| self.int(at)).collect()
    }

    /// Returns the elements as f32, in row-major order.
    pub(super) fn floats(&self) -> Vec<f32> {
        self.positions().map(|at| self.float(at) as f32).collect()
    }
}

fn truth(value: Value) -> bool {
    matches!(value, Value::Bool(true)) || matches!(value, Value::Int(n) if n != 0)
}

fn size(value: Value) -> Option<usize> {
    match value {
        Value::Int(n) => usize::try_from(n).ok(),
        _ => None,
    }
}

/// Reads an integer: a Python int or a numpy scalar.
pub(super) fn int(pickle: &Pickle, value: Value) -> Option<i64> {
    if let Value::Int(n) = value {
        return Some(n);
    }
    let &Object::Instance { class: Global::Scalar, args, .. } = pickle.object(value)? else { return None };
    let &[kind, Value::Bytes(data)] = pickle.items(args)? else { return None };
    let (kind, big_endian) = dtype(pickle, kind).ok()?;
    let data = pickle.string(data);
    let whole = !matches!(kind, ElementKind::Float(_)) && data.len() == kind.size();
    whole.then(|| Array { kind, big_endian, shape: vec![1], fortran_order: false, data }.int(0))
}

/// A sparse matrix: rows of (column, value) with strictly ascending columns.
pub(super) struct Matrix {
    pub columns: usize,
    pub rows: Vec<Vec<(u32, f32)>>,
}

impl Matrix {
    /// Reads the CSR matrix in a pickle.
    pub(super) fn of(pickle: &Pickle) -> Result<Self> {
        let no_matrix = || pickle.not("expected a scipy CSR matrix, found something else");
        let Some(&Object::Instance { class: Global::Csr, state, .. }) = pickle.object(pickle.root) else {
            return Err(no_matrix());
        };
        let Some(Object::Dict(state)) = pickle.object(state) else { return Err(no_matrix()) };
        let entry = |name: &str| {
            let found = state.iter().rev().find(|(key, _)| pickle.text(*key) == Some(name));
            found.map(|&(_, value)| value).ok_or_else(|| pickle.not(format!("the CSR matrix has no `{name}`")))
        };
        let shape = pickle.items(entry("_shape").or_else(|_| entry("shape"))?).ok_or_else(no_matrix)?;
        let [Some(rows), Some(columns)] = [shape.first(), shape.get(1)].map(|axis| axis.and_then(|&axis| size(axis)))
        else {
            return Err(no_matrix());
        };
        let indptr = Array::of(pickle, entry("indptr")?, "`indptr`")?.ints();
        let indices = Array::of(pickle, entry("indices")?, "`indices`")?.ints();
        let values = Array::of(pickle, entry("data")?, "`data`")?.floats();
        let offsets_fit = Some(indptr.len()) == rows.checked_add(1)
            && indptr[0] == 0
            && indptr.is_sorted()
            && indptr[rows] == indices.len() as i64
            && indices.len() == values.len();
        if !offsets_fit {
            return Err(pickle.not("the CSR matrix's offsets do not fit its indices and values"));
        }
        let fits = |&c: &i64| c >= 0 && c < columns as i64 && c < i64::from(u32::MAX);
        if let Some(bad) = indices.iter().find(|c| !fits(c)) {
            return Err(pickle.not(format!("the CSR matrix has column {bad}, but {columns} columns")));
        }
        let row = |range: &[i64]| {
            let range = range[0] as usize..range[1] as usize;
            let cells = indices[range.clone()].iter().map(|&c| c as u32).zip(values[range].iter().copied());
            let mut cells: Vec<(u32, f32)> = cells.collect();
            cells.sort_by_key(|&(column, _)| column);
            // scipy adds the values of a cell that occurs twice.
            cells.dedup_by(|again, first| {
                let same = again.0 == first.0;
                if same {
                    first.1 += again.1;
                }
                same
            });
            cells
        };
        Ok(Self { columns, rows: indptr.windows(2).map(row).collect() })
    }
}
