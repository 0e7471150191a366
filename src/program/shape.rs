//! Shape inference: what an operation makes of operands of given types.

use super::ir::{DType, Op, Origin, RowSpace, TensorType};

/// Why a program cannot be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// Not as many operands as the operation has.
    #[error("{op} takes {want} operands, not {got}")]
    OperandCount {
        /// The operation.
        op: &'static str,
        /// How many it takes.
        want: usize,
        /// How many it was given.
        got: usize,
    },
    /// An operand of the wrong shape or element type.
    #[error("{op}: operand {place} is {got:?}, but {want} is needed")]
    Operand {
        /// The operation.
        op: &'static str,
        /// Which operand, from 0.
        place: usize,
        /// What is needed.
        want: String,
        /// What it was given.
        got: TensorType,
    },
    /// One origin asked for with two types.
    #[error("{origin:?} is {had:?} and was asked for as {asked:?}")]
    OriginType {
        /// Which.
        origin: Origin,
        /// Its type.
        had: TensorType,
        /// The other type.
        asked: TensorType,
    },
    /// An operation that cannot be where it is in a fused one.
    #[error("{op} cannot be the head or a step of a fused operation")]
    NotFusable {
        /// The operation.
        op: &'static str,
    },
    /// A gradient that no rule gives.
    #[error("{op} has no gradient for operand {place}, which depends on a parameter")]
    NoGradient {
        /// The operation.
        op: &'static str,
        /// Which operand, from 0.
        place: usize,
    },
}

/// The operands of one call, looked at one by one.
struct Operands<'a> {
    op: &'static str,
    types: &'a [TensorType],
}

impl Operands<'_> {
    fn is(&self, place: usize, want: TensorType) -> Result<(), ProgramError> {
        let got = self.types[place];
        if got == want {
            return Ok(());
        }
        Err(ProgramError::Operand { op: self.op, place, want: format!("{want:?}"), got })
    }

    fn check(&self, place: usize, good: bool, want: &str) -> Result<TensorType, ProgramError> {
        let got = self.types[place];
        if good {
            return Ok(got);
        }
        Err(ProgramError::Operand { op: self.op, place, want: want.into(), got })
    }

    /// An operand of floating-point numbers, of any shape.
    fn float(&self, place: usize) -> Result<TensorType, ProgramError> {
        self.check(place, self.types[place].dtype.float().is_some(), "f32 or bf16")
    }

    /// A parameter of this type: its rows and width.
    fn param(&self, place: usize, dtype: DType) -> Result<(usize, usize), ProgramError> {
        let ty = self.check(place, self.types[place].dtype == dtype, &format!("{dtype:?}"))?;
        match ty.rows {
            RowSpace::Param(rows) => Ok((rows, ty.width)),
            _ => self.check(place, false, "a parameter").map(|_| (0, 0)),
        }
    }

    /// `[epoch, step]`.
    fn clock(&self, place: usize) -> Result<(), ProgramError> {
        self.is(place, CLOCK)
    }
}

/// The type of [`Origin::Clock`].
pub(crate) const CLOCK: TensorType = TensorType { rows: RowSpace::Scalar, width: 2, dtype: DType::U64 };
/// The type of [`Origin::LearningRate`] and of a loss.
pub(crate) const SCALAR: TensorType = TensorType { rows: RowSpace::Scalar, width: 1, dtype: DType::F32 };
/// The type of [`Origin::Labels`] and [`Origin::Split`].
pub(crate) const VERTEX_IDS: TensorType = TensorType { rows: RowSpace::Vertices, width: 1, dtype: DType::U32 };

/// The types of an operation's outputs.
///
/// # Errors
/// The first operand that does not fit, and what would.
pub fn infer(op: &Op, types: &[TensorType]) -> Result<Vec<TensorType>, ProgramError> {
    let want = operand_count(op);
    if types.len() != want {
        return Err(ProgramError::OperandCount { op: op.name(), want, got: types.len() });
    }
    let on = Operands { op: op.name(), types };
    let output = match *op {
        Op::Gather { block } => {
            let x = on.float(0)?;
            on.check(0, x.rows == block.sources(), &format!("rows of {:?}", block.sources()))?;
            sum_of(x, block.rows())
        }
        Op::WeightedGather { block } => {
            on.is(0, TensorType::f32(RowSpace::Edges(block), 1))?;
            let x = on.float(1)?;
            on.check(1, x.rows == block.sources(), &format!("rows of {:?}", block.sources()))?;
            sum_of(x, block.rows())
        }
        Op::RowScale => {
            let x = on.float(0)?;
            on.is(1, TensorType::f32(x.rows, 1))?;
            x
        }
        Op::Linear | Op::LinearInputGrad => {
            let x = on.float(0)?;
            let (out, input) = on.param(1, x.dtype)?;
            let (reads, makes) = if *op == Op::Linear { (input, out) } else { (out, input) };
            on.check(0, x.width == reads, &format!("a width of {reads}"))?;
            TensorType { width: makes, ..x }
        }
        Op::LinearWeightGrad => {
            let (dy, x) = (on.float(0)?, on.float(1)?);
            let want = TensorType { width: x.width, ..dy };
            on.check(1, x == want, &format!("{:?} rows of {:?}", dy.dtype, dy.rows))?;
            TensorType::f32(RowSpace::Param(dy.width), x.width)
        }
        Op::Round => {
            let (rows, width) = on.param(0, DType::F32)?;
            TensorType { rows: RowSpace::Param(rows), width, dtype: DType::Bf16 }
        }
        Op::Transpose => {
            let (rows, width) = on.param(0, DType::F32)?;
            TensorType::f32(RowSpace::Param(width), rows)
        }
        Op::AddBias => {
            let x = on.float(0)?;
            on.is(1, TensorType::f32(RowSpace::Param(1), x.width))?;
            x
        }
        Op::ColumnSum => TensorType::f32(RowSpace::Param(1), on.float(0)?.width),
        Op::LayerNorm { .. } => {
            let x = on.float(0)?;
            on.is(1, TensorType::f32(RowSpace::Param(1), x.width))?;
            on.is(2, TensorType::f32(RowSpace::Param(1), x.width))?;
            x
        }
        Op::LayerNormInputGrad { .. } => {
            let dy = on.float(0)?;
            on.is(1, dy)?;
            on.is(2, TensorType::f32(RowSpace::Param(1), dy.width))?;
            dy
        }
        Op::LayerNormGainGrad { .. } => {
            let dy = on.float(0)?;
            on.is(1, dy)?;
            TensorType::f32(RowSpace::Param(1), dy.width)
        }
        Op::Add | Op::ReluGrad => {
            let a = on.float(0)?;
            on.is(1, a)?;
            a
        }
        Op::Relu => on.float(0)?,
        Op::Dropout { .. } => {
            let x = on.float(0)?;
            let droppable = matches!(x.rows, RowSpace::Vertices)
                || matches!(x.rows, RowSpace::Edges(b) if b.rows() == RowSpace::Vertices);
            on.check(0, droppable, "vertex rows, or the values of a block with vertex rows")?;
            on.clock(1)?;
            x
        }
        Op::PermuteEdges { block } => {
            on.is(0, TensorType::f32(RowSpace::Edges(block), 1))?;
            on.is(1, TensorType { rows: RowSpace::Edges(block), width: 1, dtype: DType::U64 })?;
            TensorType::f32(RowSpace::Edges(block.transpose()), 1)
        }
        Op::SoftmaxCrossEntropy { .. } | Op::SoftmaxCrossEntropyGrad { .. } | Op::CountCorrect { .. } => {
            let logits = on.float(0)?;
            on.check(0, logits.rows == RowSpace::Vertices, "rows of Vertices")?;
            on.is(1, VERTEX_IDS)?;
            on.is(2, VERTEX_IDS)?;
            match op {
                Op::SoftmaxCrossEntropy { .. } => SCALAR,
                Op::CountCorrect { .. } => TensorType { rows: RowSpace::Scalar, width: 2, dtype: DType::U64 },
                _ => logits,
            }
        }
        Op::SigmoidCrossEntropy { .. } | Op::SigmoidCrossEntropyGrad { .. } | Op::CountMicro { .. } => {
            let logits = on.float(0)?;
            on.check(0, logits.rows == RowSpace::Vertices, "rows of Vertices")?;
            on.is(1, TensorType { dtype: DType::U8, ..logits })?;
            on.is(2, VERTEX_IDS)?;
            match op {
                Op::SigmoidCrossEntropy { .. } => SCALAR,
                Op::CountMicro { .. } => TensorType { rows: RowSpace::Scalar, width: 3, dtype: DType::U64 },
                _ => logits,
            }
        }
        Op::Fused { ref head, ref steps } => return infer_fused(head, steps, types),
        Op::Sgd { .. } | Op::Adam { .. } => return infer_update(&on),
    };
    Ok(vec![output])
}

/// A sum of rows of `x` for each of `rows`: stored as those are, but f32 where the sum is of a parameter.
fn sum_of(x: TensorType, rows: RowSpace) -> TensorType {
    let dtype = if matches!(rows, RowSpace::Param(_)) { DType::F32 } else { x.dtype };
    TensorType { rows, dtype, ..x }
}

/// The head, and each step on what was made before it.
fn infer_fused(head: &Op, steps: &[Op], types: &[TensorType]) -> Result<Vec<TensorType>, ProgramError> {
    let misplaced = (!head.takes_steps()).then_some(head).or_else(|| steps.iter().find(|step| !step.is_row_step()));
    if let Some(op) = misplaced {
        return Err(ProgramError::NotFusable { op: op.name() });
    }
    let (mut operands, mut rest) = types.split_at(operand_count(head));
    let mut made = infer(head, operands)?;
    for step in steps {
        (operands, rest) = rest.split_at(operand_count(step) - 1);
        made = infer(step, &[&made, operands].concat())?;
    }
    Ok(made)
}

/// Optimizer steps: the parameter, and behind the clock and the rate its moments, are written anew.
fn infer_update(on: &Operands<'_>) -> Result<Vec<TensorType>, ProgramError> {
    let param = on.check(0, on.types[0].dtype == DType::F32, "f32")?;
    on.is(1, param)?;
    on.clock(2)?;
    on.is(3, SCALAR)?;
    for moment in 4..on.types.len() {
        on.is(moment, param)?;
    }
    Ok(vec![param; on.types.len() - 3])
}

/// How many operands an operation has.
pub(crate) fn operand_count(op: &Op) -> usize {
    match op {
        Op::Fused { head, steps } => {
            operand_count(head) + steps.iter().map(|step| operand_count(step) - 1).sum::<usize>()
        }
        Op::Gather { .. } | Op::Round | Op::Transpose | Op::ColumnSum | Op::Relu => 1,
        Op::WeightedGather { .. }
        | Op::RowScale
        | Op::Linear
        | Op::LinearInputGrad
        | Op::LinearWeightGrad
        | Op::AddBias
        | Op::Add
        | Op::ReluGrad
        | Op::PermuteEdges { .. }
        | Op::LayerNormGainGrad { .. }
        | Op::Dropout { .. } => 2,
        Op::SoftmaxCrossEntropy { .. }
        | Op::SoftmaxCrossEntropyGrad { .. }
        | Op::CountCorrect { .. }
        | Op::SigmoidCrossEntropy { .. }
        | Op::SigmoidCrossEntropyGrad { .. }
        | Op::CountMicro { .. }
        | Op::LayerNorm { .. }
        | Op::LayerNormInputGrad { .. } => 3,
        Op::Sgd { momentum, .. } => 4 + usize::from(*momentum > 0.0),
        Op::Adam { .. } => 6,
    }
}
