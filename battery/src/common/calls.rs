//! Short ways to write calls.

use lapidary_kernels::op::{BlockSpec, EdgeOp, Optimizer};
use lapidary_kernels::{BlockSlots, Call, DropoutKey, Mat, Part, RowStep, Slot, Window};

/// Returns a call of an operation over matrices, and slots whose sizes follow from theirs.
macro_rules! call {
    ($op:expr, [$($input:expr),*], [$($output:expr),*]) => {
        call!($op, [$($input),*], [$($output),*], lapidary_kernels::Part::default())
    };
    ($op:expr, [$($input:expr),*], [$($output:expr),*], $part:expr) => {{
        let inputs = [$(lapidary_kernels::Arg::from($input)),*];
        Call::over($op, $part, None, inputs, [$(lapidary_kernels::Arg::from($output)),*])
    }};
}

/// A split name for operations whose call has the selection.
pub const TRAIN: lapidary_kernels::op::SplitName = lapidary_kernels::op::SplitName::Train;

const GRAPH: BlockSpec = BlockSpec::Graph { self_loops: false, transposed: false };

/// Returns a part that selects the rows of a split.
pub fn selected(select: u32, count: u64) -> Part {
    Part { select, count, ..Part::default() }
}

/// Returns a part with the seed and first row of a dropout key.
pub fn keyed(DropoutKey { seed, first_row, .. }: DropoutKey) -> Part {
    Part { seed, first_row, ..Part::default() }
}

pub fn drop_cells(key: DropoutKey, x: Mat, clock: Slot, out: Mat) -> Call {
    call!(
        RowStep::Dropout { rate: key.rate, salt: key.op, first_column: key.first_column },
        [x, clock],
        [out],
        keyed(key)
    )
}

/// Returns the dropout of the values of a block. The sources of a transposed one are the rows of the matrix.
pub fn drop_edges(
    key: DropoutKey,
    (block, is_transposed): (BlockSlots, bool),
    values: Slot,
    clock: Slot,
    out: Slot,
) -> Call {
    let of = if is_transposed { GRAPH.transpose() } else { GRAPH };
    let op = EdgeOp::Dropout { block: of, rate: key.rate, salt: key.op };
    Call::over(op, keyed(key), Some(block), [values, clock], [out])
}

pub fn permute_edges(values: Slot, permutation: Slot, out: Slot, edges: usize) -> Call {
    call!(EdgeOp::Permute { block: GRAPH }, [Mat::f32(values, edges, 1), permutation], [out])
}

#[allow(clippy::too_many_arguments)]
pub fn sgd_call(
    param: Slot,
    grad: Slot,
    moment: Option<[Slot; 2]>,
    out: Slot,
    window: Window,
    clock: Slot,
    rate: Slot,
    momentum: f64,
    weight_decay: f64,
) -> Call {
    let [old, new] = [0, 1].map(|which| moment.map(|moment| moment[which]));
    let inputs = [param, grad, clock, rate].into_iter().chain(old);
    let part = Part { window, ..Part::default() };
    Call::over(Optimizer::Sgd { momentum, weight_decay }, part, None, inputs, std::iter::once(out).chain(new))
}

#[allow(clippy::too_many_arguments)]
pub fn adam_call(
    inputs: [Slot; 6],
    out: [Slot; 3],
    window: Window,
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    decoupled: bool,
) -> Call {
    let op = Optimizer::Adam { beta1, beta2, eps, weight_decay, decoupled };
    Call::over(op, Part { window, ..Part::default() }, None, inputs, out)
}

/// A row step, with the operand that it reads beside the row.
pub type FusedStep = (RowStep, Option<Slot>);

pub fn step(step: RowStep, beside: Slot) -> FusedStep {
    (step, Some(beside))
}

/// Appends steps to a call.
pub fn then(head: Call, steps: Vec<FusedStep>) -> Call {
    let operands: Vec<Slot> = steps.iter().filter_map(|step| step.1).collect();
    head.followed_by(steps.into_iter().map(|step| step.0), operands)
}
