//! How matrices are multiplied.

use crate::processor::{has_avx512_bf16, is_amd};

/// How matrices are multiplied. [`Matmul::Bf16`] concerns those stored as bf16 on a CPU; [`Matmul::Tf32`] and
/// [`Matmul::Tf32x3`] those stored as f32 on a GPU of compute capability 8.0 or later. Others are not changed by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Matmul {
    /// Numbers are widened to f32. A result has the bits of the f32 product, rounded, on every CPU.
    #[default]
    F32,
    /// By the CPU's instruction for pairs of bf16 numbers, AVX512-BF16. Sums are f32 as well, but in another order, so last bits
    /// differ. [`Matmul::pays`] says whether it is faster than [`Matmul::F32`].
    Bf16,
    /// By a GPU's tensor cores, which read f32 numbers rounded to TF32: 10 bits behind the binary point. Sums are f32.
    /// It takes cuBLAS.
    Tf32,
    /// By a GPU's tensor cores, with each f32 number as the sum of two TF32 numbers. A product of two numbers lacks at most
    /// 2^-21 of it, and sums are f32. Infinite numbers become NaN, and so do those within 2^-12 of the largest.
    Tf32x3,
}

impl Matmul {
    /// Returns whether this machine's CPU can multiply so.
    pub fn supported(self) -> bool {
        match self {
            Self::F32 => true,
            Self::Bf16 => has_avx512_bf16(),
            Self::Tf32 | Self::Tf32x3 => false,
        }
    }

    /// Returns whether this machine's CPU multiplies bf16 matrices faster so than by [`Matmul::F32`]. Processors of AMD do twice as
    /// many operations per second by AVX512-BF16. Those of Intel do half as many: they have other units for bf16.
    pub fn pays(self) -> bool {
        self == Self::Bf16 && self.supported() && is_amd()
    }

    /// Returns the short name: `f32`, `bf16`, `tf32` or `3xtf32`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Tf32 => "tf32",
            Self::Tf32x3 => "3xtf32",
        }
    }
}

impl std::fmt::Display for Matmul {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
