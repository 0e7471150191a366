//! Operations that only move data: rows that other parts read, and pieces of an array. Lowering creates them; no
//! program contains them.

use super::oracle::Array;
use super::record::Dim::{Any, D, Just, K, N};
use super::record::{Cost, PLAIN, Record, mat, of};
use super::types::DType::{F32, U32};
use crate::reference;

/// A copy of rows or numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// `(x, rows) -> out[i] = x[rows[i]]`: packs the rows that other parts read.
    Pack,
    /// `(packed, rows) -> halo`: copies the rows that other parts packed, grouped by owner. [`crate::Device::fetch`]
    /// does it, never a kernel launch. `packed` is the pack that this part lends; other parts read it at the same time.
    /// `rows` has, for each row of the halo, its index in the owner's pack.
    Fetch,
    /// `(term) -> sum`, f32: adds the terms of all parts, in an order of the library that does it.
    /// [`crate::Device::all_reduce`] does it, never a kernel launch.
    AllReduce,
    /// `(parts..) -> out`: concatenates f32 arrays.
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

static ALL_REDUCE: Record = Record {
    name: "all_reduce",
    cost: Cost::Nothing,
    inputs: &[of(F32, "term", N, D)],
    outputs: &[of(F32, "sum", N, D)],
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
    /// Returns the operation's record.
    pub fn record(&self) -> &'static Record {
        match self {
            Self::Pack => &PACK,
            Self::Fetch => &FETCH,
            Self::AllReduce => &ALL_REDUCE,
            Self::Concat => &CONCAT,
        }
    }
}
