//! The f64 oracle of a call: runs the references of its operation and of its steps on the contents of its slots.

use std::ops::Range;

use super::call::{Call, Mat};
use super::{BlockSpec, EdgeOp, Grid, Linear, Op, RowStep, Slice};
use crate::random::DropoutKey;
use crate::reference::Dense;
use crate::slot::Slot;
use crate::view::{BlockView, MultiTargets, Targets};

/// The contents of a slot, as the oracle sees them.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Floating-point numbers of any storage type.
    Float(Vec<f64>),
    /// u32.
    U32(Vec<u32>),
    /// u64.
    U64(Vec<u64>),
    /// u8.
    U8(Vec<u8>),
}

impl From<Dense> for Array {
    fn from(dense: Dense) -> Self {
        Self::Float(dense.data)
    }
}

impl Array {
    /// Returns the element-wise sum of two arrays of the same length.
    ///
    /// # Panics
    /// If the arrays do not have the same numeric type.
    pub fn plus(&self, other: &Array) -> Self {
        match (self, other) {
            (Self::Float(a), Self::Float(b)) => Self::Float(a.iter().zip(b).map(|(a, b)| a + b).collect()),
            (Self::U64(a), Self::U64(b)) => Self::U64(a.iter().zip(b).map(|(a, b)| a + b).collect()),
            other => panic!("{other:?} do not add up"),
        }
    }

    /// Returns the floating-point numbers.
    ///
    /// # Panics
    /// If the array has another type.
    pub fn floats(&self) -> &[f64] {
        match self {
            Self::Float(cells) => cells,
            other => panic!("{other:?} are no floating-point numbers"),
        }
    }

    /// Returns the u32 numbers.
    ///
    /// # Panics
    /// If the array has another type.
    pub fn u32s(&self) -> &[u32] {
        match self {
            Self::U32(cells) => cells,
            other => panic!("{other:?} are no u32"),
        }
    }

    /// Returns the u64 numbers.
    ///
    /// # Panics
    /// If the array has another type.
    pub fn u64s(&self) -> &[u64] {
        match self {
            Self::U64(cells) => cells,
            other => panic!("{other:?} are no u64"),
        }
    }
}

/// Runs a call on the contents of its slots. Returns the new contents of its outputs.
///
/// # Panics
/// If an operand does not have the shape that the call states.
pub fn run<'a>(call: &Call, at: impl Fn(Slot) -> &'a Array) -> Vec<(Slot, Array)> {
    let (head, rest) = call.inputs.split_at(call.head_inputs().len());
    let block = call.block.map(|block| BlockView {
        indptr: at(block.indptr).u64s(),
        indices: at(block.indices).u32s(),
        own_sources: block.own_sources,
        halo_sources: block.halo_sources,
    });
    let beside = |mat: Option<Mat>| mat.map(|mat| (mat, at(mat.slot)));
    let inputs = head.iter().map(|&mat| (mat, at(mat.slot))).collect();
    let more = call.more_sources.iter().map(|&mat| (mat, at(mat.slot))).collect();
    let (halo, sum) = (beside(call.halo), beside(call.sum));
    let given = Given { call, op: call.op.head(), inputs, more, block, halo, sum };
    let mut made = (given.op.record().reference)(&given);
    if let Some(sum) = call.sum.filter(|_| !call.op.gathers()) {
        made[0] = at(sum.slot).plus(&made[0]);
    }
    let mut rest = rest.iter();
    for step in call.op.steps() {
        let others = rest.by_ref().take(step.record().inputs.len() - 1).map(|&mat| (mat, at(mat.slot)));
        let inputs = std::iter::once((call.out(), &made[0])).chain(others).collect();
        let op = Op::Row(*step);
        let given = Given { call, op: &op, inputs, more: Vec::new(), block: None, halo: None, sum: None };
        let next = (step.record().reference)(&given);
        made.splice(..1, next);
    }
    call.outputs.iter().map(|mat| mat.slot).zip(made).collect()
}

/// The operands and settings that the reference of an operation receives.
#[derive(Clone, Debug)]
pub struct Given<'a> {
    call: &'a Call,
    op: &'a Op,
    inputs: Vec<(Mat, &'a Array)>,
    more: Vec<(Mat, &'a Array)>,
    block: Option<BlockView<'a>>,
    halo: Option<(Mat, &'a Array)>,
    sum: Option<(Mat, &'a Array)>,
}

fn dense((mat, array): (Mat, &Array)) -> Dense {
    let data = array.floats();
    assert_eq!(data.len(), mat.numbers());
    Dense { rows: mat.rows, cols: mat.cols, data: data.to_vec() }
}

impl<'a> Given<'a> {
    /// Returns the operation.
    pub fn op(&self) -> &'a Op {
        self.op
    }

    /// Returns the number of operands.
    pub fn count_operands(&self) -> usize {
        self.inputs.len()
    }

    /// Returns an operand as a matrix.
    pub fn mat(&self, place: usize) -> Dense {
        dense(self.inputs[place])
    }

    /// Returns the sources of a gather, in order.
    pub fn sources(&self) -> Dense {
        self.more.iter().map(|&tile| dense(tile)).fold(self.mat(0), |mut all, tile| {
            all.rows += tile.rows;
            all.data.extend(tile.data);
            all
        })
    }

    /// Returns the floating-point numbers of an operand.
    pub fn floats(&self, place: usize) -> &'a [f64] {
        self.inputs[place].1.floats()
    }

    /// Returns the u32 numbers of an operand.
    pub fn u32s(&self, place: usize) -> &'a [u32] {
        self.inputs[place].1.u32s()
    }

    /// Returns the u64 numbers of an operand.
    pub fn u64s(&self, place: usize) -> &'a [u64] {
        self.inputs[place].1.u64s()
    }

    /// Returns the block.
    ///
    /// # Panics
    /// If the call has none.
    pub fn block(&self) -> BlockView<'a> {
        self.block.expect("the call has a block")
    }

    /// Returns the halo: the source rows that other parts own.
    pub fn halo(&self) -> Option<Dense> {
        self.halo.map(dense)
    }

    /// Returns the scalar argument of a row step; 0 if it has none.
    pub fn number(&self) -> f64 {
        self.op.as_row_step().map_or(0.0, |step| step.number().into())
    }

    /// Returns the running sum that a window of a gather is added to.
    pub fn sum(&self) -> Option<Dense> {
        self.sum.map(dense)
    }

    /// Returns the first source of a gather's window.
    pub fn first_source(&self) -> Option<usize> {
        self.call.first_source
    }

    /// Returns the seed of the run.
    pub fn seed(&self) -> u64 {
        self.call.part.seed
    }

    /// Returns the global id of the first row.
    pub fn first_row(&self) -> u64 {
        self.call.part.first_row
    }

    /// Returns the key of a dropout.
    ///
    /// # Panics
    /// If the operation is not a dropout.
    pub fn dropout(&self) -> DropoutKey {
        match *self.op {
            Op::Row(RowStep::Dropout { rate, salt, first_column }) => self.call.dropout_key(rate, salt, first_column),
            Op::Edge(EdgeOp::Dropout { rate, salt, .. }) => self.call.dropout_key(rate, salt, 0),
            ref op => panic!("{op:?} is no dropout"),
        }
    }

    /// Returns which block the operation is over.
    ///
    /// # Panics
    /// If it has none.
    pub fn block_spec(&self) -> BlockSpec {
        self.op.block().expect("the operation has a block")
    }

    /// Returns the rectangle that the operation copies.
    ///
    /// # Panics
    /// If it copies none.
    pub fn rectangle(&self) -> Slice {
        let rectangle = self.linear().rectangle(self.call.inputs[0].rows);
        rectangle.unwrap_or_else(|| panic!("{:?} copies no rectangle", self.op))
    }

    /// Returns the grid of the parts that the operation joins.
    ///
    /// # Panics
    /// If it joins none.
    pub fn grid(&self) -> Grid {
        let grid = self.linear().grid(self.call.out().rows);
        grid.unwrap_or_else(|| panic!("{:?} joins no parts", self.op))
    }

    fn linear(&self) -> Linear {
        match *self.op {
            Op::Linear(op) => op,
            ref op => panic!("{op:?} is none of these operations"),
        }
    }

    /// Returns the class labels of a loss (operand 1), with its split (operand 2).
    pub fn labels(&self) -> Targets<'a> {
        Targets { labels: self.u32s(1), split: self.u32s(2), select: self.call.part.select }
    }

    /// Returns the 0/1 targets of a loss (operand 1), with its split (operand 2).
    ///
    /// # Panics
    /// If the targets are not u8.
    pub fn targets(&self) -> MultiTargets<'a> {
        let (logits, Array::U8(targets)) = (self.inputs[0].0, self.inputs[1].1) else { panic!("targets are bytes") };
        MultiTargets { targets, classes: logits.cols, split: self.u32s(2), select: self.call.part.select }
    }

    /// Returns the number of rows that a loss is the mean over.
    pub fn count(&self) -> u64 {
        self.call.part.count
    }

    /// Returns the elements of a parameter that are updated.
    pub fn window(&self) -> Range<usize> {
        self.call.part.window.first..self.call.part.window.end()
    }
}
