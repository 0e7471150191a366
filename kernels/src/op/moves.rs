//! What only moves: rows that other parts read, and parts of an array. Lowering makes these; no program has them.

use super::oracle::Array;
use super::record::Dim::{Any, D, Just, K, N};
use super::record::{Cost, PLAIN, Record, mat, of};
use super::types::DType::{F32, U32};
use crate::reference;

/// Rows or numbers that move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// `(x, rows) -> out[i] = x[rows[i]]`: the rows that other parts read, one after the other.
    Pack,
    /// `(packed, rows) -> halo`: rows that other parts packed, one part's after the other's: what [`crate::Device::fetch`] does, and
    /// never a launch. `packed` is what this part lends, and `rows` says of each row of the halo the place in its owner's pack. Other
    /// parts read `packed` at the same time.
    Fetch,
    /// `(parts..) -> parts[0], parts[1], ..`, one after the other, f32.
    Concat,
}

static PACK: Record = Record {
    name: "pack",
    inputs: &[mat("x", N, D), of(U32, "rows", K, Just(1))],
    outputs: &[mat("out", K, D)],
    reference: |given| vec![reference::pack(&given.mat(0), given.u32s(1)).into()],
    ..PLAIN
};

static FETCH: Record = Record {
    name: "fetch",
    cost: Cost::Nothing,
    inputs: &[mat("packed", N, D), of(U32, "rows", K, Just(1))],
    outputs: &[mat("out", K, D)],
    ..PLAIN
};

static CONCAT: Record = Record {
    name: "concat",
    inputs: &[of(F32, "part", Just(1), Any)],
    outputs: &[of(F32, "out", Just(1), Any)],
    reference: |given| {
        vec![Array::Float((0..given.count_operands()).flat_map(|part| given.floats(part).to_vec()).collect())]
    },
    ..PLAIN
};

impl Move {
    /// What is written down of it.
    pub fn record(&self) -> &'static Record {
        match self {
            Self::Pack => &PACK,
            Self::Fetch => &FETCH,
            Self::Concat => &CONCAT,
        }
    }
}
