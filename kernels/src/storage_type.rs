//! Storage types: how the numbers of a matrix are stored.

use half::bf16;
use pulp::{Arch, Simd, WithSimd};

use crate::team::for_each;

/// The storage type of a matrix. Kernels always compute in `f32`, and sums are always stored as `f32`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StorageType {
    /// IEEE single precision.
    #[default]
    F32,
    /// bfloat16, the upper half of an f32: the same range, with 8 instead of 24 bits of precision. Stored numbers are
    /// rounded to nearest, ties to even.
    Bf16,
}

impl StorageType {
    /// Returns the bytes of one number.
    pub fn byte_count(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// Returns the short name, as in PyTorch: `f32` or `bf16`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }

    /// Returns the storage type with this name.
    ///
    /// ```
    /// use lapidary_kernels::StorageType;
    ///
    /// assert_eq!(StorageType::named("bf16"), Some(StorageType::Bf16));
    /// assert_eq!(StorageType::named("f16"), None);
    /// ```
    pub fn named(name: &str) -> Option<Self> {
        [Self::F32, Self::Bf16].into_iter().find(|float| float.name() == name)
    }
}

/// Element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// bfloat16, the upper half of an f32.
    Bf16,
    /// 32-bit unsigned.
    U32,
    /// 64-bit unsigned.
    U64,
    /// 8-bit unsigned.
    U8,
}

impl DType {
    /// Returns the storage type of a matrix with these elements, if they are floating-point numbers.
    pub fn float(self) -> Option<StorageType> {
        match self {
            Self::F32 => Some(StorageType::F32),
            Self::Bf16 => Some(StorageType::Bf16),
            Self::U32 | Self::U64 | Self::U8 => None,
        }
    }

    /// Returns the size of one element in bytes.
    pub fn byte_count(self) -> u64 {
        match self {
            Self::U8 => 1,
            Self::Bf16 => 2,
            Self::F32 | Self::U32 => 4,
            Self::U64 => 8,
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::U8 => "u8",
        })
    }
}

impl From<StorageType> for DType {
    fn from(float: StorageType) -> Self {
        match float {
            StorageType::F32 => Self::F32,
            StorageType::Bf16 => Self::Bf16,
        }
    }
}

/// A name that is not a storage type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is no storage type; expected f32 or bf16")]
pub struct UnknownStorageType {
    /// The unknown name.
    pub found: String,
}

impl std::str::FromStr for StorageType {
    type Err = UnknownStorageType;

    fn from_str(name: &str) -> Result<Self, UnknownStorageType> {
        Self::named(name).ok_or_else(|| UnknownStorageType { found: name.into() })
    }
}

impl std::fmt::Display for StorageType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Numbers per task.
const CHUNK: usize = 1 << 16;

/// Converts stored numbers to `f32`, exactly.
///
/// # Panics
/// If the slices differ in length.
pub fn widen(stored: &[bf16], wide: &mut [f32]) {
    assert_eq!(stored.len(), wide.len());
    for_each(wide.chunks_mut(CHUNK).zip(stored.chunks(CHUNK)), |(wide, stored)| widen_here(stored, wide));
}

/// Rounds each number to nearest, ties to even, and stores it.
///
/// # Panics
/// If the slices differ in length.
pub fn round(wide: &[f32], stored: &mut [bf16]) {
    assert_eq!(stored.len(), wide.len());
    for_each(stored.chunks_mut(CHUNK).zip(wide.chunks(CHUNK)), |(stored, wide)| round_here(wide, stored));
}

/// Does [`widen`] on this thread, in vectors.
pub(crate) fn widen_here(stored: &[bf16], wide: &mut [f32]) {
    Arch::new().dispatch(Widen { stored, wide });
}

/// Does [`round`] on this thread, in vectors.
pub(crate) fn round_here(wide: &[f32], stored: &mut [bf16]) {
    Arch::new().dispatch(Round { wide, stored });
}

struct Widen<'a> {
    stored: &'a [bf16],
    wide: &'a mut [f32],
}

impl WithSimd for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        self.wide.iter_mut().zip(self.stored).for_each(|(wide, &stored)| *wide = widened(stored));
    }
}

struct Round<'a> {
    wide: &'a [f32],
    stored: &'a mut [bf16],
}

impl WithSimd for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        self.stored.iter_mut().zip(self.wide).for_each(|(stored, &wide)| *stored = rounded(wide));
    }
}

/// Converts a number to `f32`, exactly.
#[inline(always)]
pub(crate) fn widened(stored: bf16) -> f32 {
    f32::from_bits(u32::from(stored.to_bits()) << 16)
}

/// Rounds to nearest, ties to even; a NaN stays one. Has no branch, so that loops over it become vector code.
#[inline(always)]
pub(crate) fn rounded(wide: f32) -> bf16 {
    let bits = wide.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 0x40;
    bf16::from_bits(if wide.is_nan() { quiet } else { nearest } as u16)
}
