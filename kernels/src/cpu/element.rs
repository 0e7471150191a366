//! The numbers of a matrix as kernels read and write them: f32 as they are, bf16 widened in registers when they are read
//! and rounded when they are written. All kernels compute in f32.

use bytemuck::Pod;
use half::bf16;
use pulp::Simd;

use crate::storage_type::{StorageType, round_here, widen_here, widened};

/// Most lanes of a vector of f32.
const LANES: usize = 16;

/// A stored number: f32 or bf16.
pub(super) trait Element: Pod + Send + Sync {
    /// Numbers per cache line.
    const LINE: usize = 64 / size_of::<Self>();

    /// The storage type of these numbers.
    const STORED: StorageType;

    /// Whether numbers are rounded when they are written.
    const ROUNDS: bool;

    /// Returns the number, exactly.
    fn wide(self) -> f32;

    /// Reads `N` vectors; `None` if there are fewer numbers.
    fn vectors<S: Simd, const N: usize>(simd: S, from: &[Self]) -> Option<[S::f32s; N]>;

    /// Reads fewer numbers than a vector has lanes; the other lanes are 0.
    fn part_of_vector<S: Simd>(simd: S, from: &[Self]) -> S::f32s;

    /// Returns the numbers themselves if they are f32.
    fn as_f32(cells: &[Self]) -> Option<&[f32]>;

    /// Does the same for numbers that are written.
    fn as_f32_mut(cells: &mut [Self]) -> Option<&mut [f32]>;

    /// Widens numbers.
    fn widen(from: &[Self], to: &mut [f32]);

    /// Rounds numbers and stores them.
    fn round(wide: &[f32], to: &mut [Self]);
}

impl Element for f32 {
    const STORED: StorageType = StorageType::F32;
    const ROUNDS: bool = false;

    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }

    #[inline(always)]
    fn vectors<S: Simd, const N: usize>(_simd: S, from: &[f32]) -> Option<[S::f32s; N]> {
        S::as_simd_f32s(from).0.first_chunk().copied()
    }

    #[inline(always)]
    fn part_of_vector<S: Simd>(simd: S, from: &[f32]) -> S::f32s {
        simd.partial_load_f32s(from)
    }

    #[inline(always)]
    fn as_f32(cells: &[f32]) -> Option<&[f32]> {
        Some(cells)
    }

    #[inline(always)]
    fn as_f32_mut(cells: &mut [f32]) -> Option<&mut [f32]> {
        Some(cells)
    }

    fn widen(from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    fn round(wide: &[f32], to: &mut [f32]) {
        to.copy_from_slice(wide);
    }
}

impl Element for bf16 {
    const STORED: StorageType = StorageType::Bf16;
    const ROUNDS: bool = true;

    #[inline(always)]
    fn wide(self) -> f32 {
        widened(self)
    }

    #[inline(always)]
    fn vectors<S: Simd, const N: usize>(simd: S, from: &[bf16]) -> Option<[S::f32s; N]> {
        match S::F32_LANES {
            16 => widened_vectors::<S, 16, N>(simd, from),
            8 => widened_vectors::<S, 8, N>(simd, from),
            4 => widened_vectors::<S, 4, N>(simd, from),
            _ => widened_vectors::<S, 1, N>(simd, from),
        }
    }

    #[inline(always)]
    fn part_of_vector<S: Simd>(_simd: S, from: &[bf16]) -> S::f32s {
        S::as_simd_f32s(&part(from)).0[0]
    }

    #[inline(always)]
    fn as_f32(_cells: &[bf16]) -> Option<&[f32]> {
        None
    }

    #[inline(always)]
    fn as_f32_mut(_cells: &mut [bf16]) -> Option<&mut [f32]> {
        None
    }

    fn widen(from: &[bf16], to: &mut [f32]) {
        widen_here(from, to);
    }

    fn round(wide: &[f32], to: &mut [bf16]) {
        round_here(wide, to);
    }
}

/// Widens an array.
// An iterator over the array is not always inlined into code for the best vectors.
#[inline(always)]
pub(super) fn wide_array<E: Element, const N: usize>(from: &[E; N]) -> [f32; N] {
    let (mut wide, mut i) = ([0.0; N], 0);
    while i < N {
        wide[i] = from[i].wide();
        i += 1;
    }
    wide
}

/// Reads `N` vectors of `L` lanes. The compiler makes each of them one instruction that loads and one that shifts.
#[inline(always)]
fn widened_vectors<S: Simd, const L: usize, const N: usize>(simd: S, from: &[bf16]) -> Option<[S::f32s; N]> {
    let from = from.as_chunks::<L>().0.first_chunk::<N>()?;
    let (mut vectors, mut i) = ([simd.splat_f32s(0.0); N], 0);
    while i < N {
        vectors[i] = bytemuck::cast(wide_array(&from[i]));
        i += 1;
    }
    Some(vectors)
}

/// Widens fewer numbers than a vector has. Only the last row of a matrix ends in such a part.
#[cold]
#[inline(never)]
fn part(from: &[bf16]) -> [f32; LANES] {
    let mut wide = [0.0; LANES];
    wide.iter_mut().zip(from).for_each(|(wide, &x)| *wide = x.wide());
    wide
}

/// Has `fill` write f32 numbers, and stores them in `out`: at once, or from `room` if they have to be rounded.
pub(super) fn write<E: Element, R>(out: &mut [E], room: &mut Vec<f32>, fill: impl FnOnce(&mut [f32]) -> R) -> R {
    if let Some(out) = E::as_f32_mut(out) {
        return fill(out);
    }
    room.resize(out.len(), 0.0);
    let filled = fill(room);
    E::round(room, out);
    filled
}

/// Returns the numbers as f32: themselves, or widened into `room`.
pub(super) fn read<'a, E: Element>(from: &'a [E], room: &'a mut Vec<f32>) -> &'a [f32] {
    if let Some(from) = E::as_f32(from) {
        return from;
    }
    room.resize(from.len(), 0.0);
    E::widen(from, room);
    room
}
