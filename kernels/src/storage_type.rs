//! How the numbers of a matrix are stored.

use half::bf16;

use crate::team::for_each;

/// How the numbers of a matrix are stored. Whatever it is, kernels compute with `f32`, in which every sum is held as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StorageType {
    /// IEEE single precision.
    #[default]
    F32,
    /// The upper half of a single: as far as `f32` reaches, with 8 binary digits of the 24. A number is rounded to the nearest
    /// when it is stored, to the even one of two.
    Bf16,
}

impl StorageType {
    /// Bytes of one number.
    pub fn byte_count(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// Its name, as in PyTorch for short: `f32` or `bf16`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }

    /// That of this name.
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
    /// The upper half of a single.
    Bf16,
    /// 32-bit unsigned.
    U32,
    /// 64-bit unsigned.
    U64,
    /// 8-bit unsigned.
    U8,
}

impl DType {
    /// How a matrix of it is stored, if it is of floating-point numbers.
    pub fn float(self) -> Option<StorageType> {
        match self {
            Self::F32 => Some(StorageType::F32),
            Self::Bf16 => Some(StorageType::Bf16),
            Self::U32 | Self::U64 | Self::U8 => None,
        }
    }

    /// Size of one element, in bytes.
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

/// A name that is no storage type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is no storage type; expected f32 or bf16")]
pub struct UnknownStorageType {
    /// The name.
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

/// Numbers that one thread takes at a time.
const CHUNK: usize = 1 << 16;

/// What was stored, as `f32`: exactly.
///
/// # Panics
/// If there are not as many places as numbers.
pub fn widen(stored: &[bf16], wide: &mut [f32]) {
    assert_eq!(stored.len(), wide.len());
    for_each(wide.chunks_mut(CHUNK).zip(stored.chunks(CHUNK)), |(wide, stored)| {
        wide.iter_mut().zip(stored).for_each(|(wide, stored)| *wide = stored.to_f32());
    });
}

/// Each number rounded to the nearest that can be stored, to the even one of two.
///
/// # Panics
/// If there are not as many places as numbers.
pub fn round(wide: &[f32], stored: &mut [bf16]) {
    assert_eq!(stored.len(), wide.len());
    for_each(stored.chunks_mut(CHUNK).zip(wide.chunks(CHUNK)), |(stored, wide)| {
        stored.iter_mut().zip(wide).for_each(|(stored, &wide)| *stored = bf16::from_f32(wide));
    });
}
