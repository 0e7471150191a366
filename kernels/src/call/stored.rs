//! Whether the matrices of a call are stored as they have to be.

use super::{Call, Mat};
use crate::error::{Error, Result};
use crate::float::Float;

impl Call {
    /// How the rows that the call reads are stored; f32, where it reads none.
    ///
    /// # Errors
    /// [`Error::Stored`]: a matrix that does not go with the first.
    pub fn stored(&self) -> Result<Float> {
        let is = |operand, mat: Mat, want| match mat.float == want {
            true => Ok(want),
            false => Err(Error::Stored { call: self.name(), operand, want, got: mat.float }),
        };
        let alike = |first: Mat, others: &[(&'static str, Mat)]| {
            others.iter().try_for_each(|&(operand, mat)| is(operand, mat, first.float).map(drop)).map(|()| first.float)
        };
        let f32_or =
            |operand, mat: Mat, stored| if mat.float == Float::F32 { Ok(stored) } else { is(operand, mat, stored) };
        match *self {
            Self::Fused { ref head, .. } | Self::Accumulate { ref head, .. } => head.stored(),
            Self::Gather { own, halo, out, .. } => {
                halo.map_or(Ok(own.float), |halo| is("halo", halo, own.float))?;
                f32_or("out", out, own.float)
            }
            Self::GatherWindow { own, sum, out, .. } => {
                sum.map_or(Ok(Float::F32), |sum| is("sum", sum, Float::F32))?;
                f32_or("out", out, own.float)
            }
            Self::Linear { x, weight, out } => alike(x, &[("weight", weight), ("out", out)]),
            Self::LinearInputGrad { grad, weight, out } => alike(grad, &[("weight", weight), ("out", out)]),
            Self::LinearWeightGrad { grad, x, out, .. } => {
                is("out", out, Float::F32)?;
                alike(grad, &[("x", x)])
            }
            Self::Round { x, out } => {
                is("out", out, Float::Bf16)?;
                is("x", x, Float::F32)
            }
            Self::Pack { x, out, .. }
            | Self::RowScale { x, out, .. }
            | Self::Transpose { x, out }
            | Self::AddBias { x, out, .. }
            | Self::Relu { x, out }
            | Self::LayerNorm { x, out, .. }
            | Self::Dropout { x, out, .. } => alike(x, &[("out", out)]),
            Self::Add { a, b, out } => alike(a, &[("b", b), ("out", out)]),
            Self::ReluGrad { grad, y, out } => alike(grad, &[("y", y), ("out", out)]),
            Self::LayerNormInputGrad { grad, x, out, .. } => alike(grad, &[("x", x), ("out", out)]),
            Self::LayerNormGainGrad { grad, x, .. } => alike(grad, &[("x", x)]),
            Self::ColumnSum { x, .. } => Ok(x.float),
            Self::Fetch { out, .. } => Ok(out.float),
            Self::SoftmaxCrossEntropyGrad { logits, out, .. } | Self::SigmoidCrossEntropyGrad { logits, out, .. } => {
                alike(logits, &[("out", out)])
            }
            Self::SoftmaxCrossEntropy { logits, .. }
            | Self::CountCorrect { logits, .. }
            | Self::SigmoidCrossEntropy { logits, .. }
            | Self::CountMicro { logits, .. } => Ok(logits.float),
            Self::SparseDropout { .. }
            | Self::PermuteEdges { .. }
            | Self::Concat { .. }
            | Self::Sgd { .. }
            | Self::Adam { .. } => Ok(Float::F32),
        }
    }
}
