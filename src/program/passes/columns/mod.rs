//! Columns: cuts wide matrices into strips of columns, and works on one strip after the other.
//!
//! A gather works on each column by itself, and so do row steps. In little memory, a gather over rows that do not fit
//! loads its sources many times; over a strip that fits, it loads them once. The graph is read once for each strip.
//!
//! Only matrices that a gather reads or writes are cut, and those that row steps connect with them (`Cuts`). Where an
//! operation needs whole rows of such a matrix, its strips are put side by side; where one makes it, columns are copied.
//! Products cut the weight to match: a product that makes a strip reads some rows of the weight, and one that reads strips
//! adds up what each of them gives. Gradients of weights come in parts, which are joined. No sum changes its order, so the
//! bits are the same.
//!
//! Operations go strip by strip from one to the next (`write.rs`), so that a strip need not leave the device in between.

mod write;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use petgraph::unionfind::UnionFind;

use crate::program::dataflow::{OpId, Program, TensorId};
use crate::program::shape::ProgramError;
use crate::program::{BlockSpec, DType, Linear, Op, RowSpace};

/// Into how many strips of columns wide matrices are cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Strips {
    /// As many as cost least.
    #[default]
    Auto,
    /// This number; fewer where a matrix has less than 16 columns for each. If no matrix has enough, none is cut.
    Exactly(usize),
}

impl Strips {
    /// Returns the fewest strips that it allows.
    pub(crate) fn least(self) -> usize {
        match self {
            Self::Auto => 1,
            Self::Exactly(strips) => strips,
        }
    }

    /// Returns the other numbers of strips to try. Numbers in between would make little difference.
    pub(crate) fn more(self) -> &'static [usize] {
        match self {
            Self::Auto => &[2, 4, 8],
            Self::Exactly(_) => &[],
        }
    }
}

/// Fewest columns of a strip: 64 bytes, a cache line. Narrower rows would waste what a gather reads.
const LEAST: usize = 16;

/// Columns come in multiples of this: 16 bytes, the widest load of a GPU's thread.
const UNIT: usize = 4;

/// Returns the program with its wide matrices cut into `strips` strips, or into fewer where they have less than 16 columns for
/// each; `None` if there is no matrix to cut into that many.
///
/// # Errors
/// None for a well-formed program.
/// # Cost
/// O(operations x strips^2).
pub fn columns(program: &Program, strips: usize) -> Result<Option<Program>, ProgramError> {
    let cuts = Cuts::of(program, strips);
    let is_cut = strips > 1 && cuts.strips.values().any(|count| *count == strips);
    is_cut.then(|| write::write(program, &cuts)).transpose()
}

/// Which matrices are cut.
struct Cuts {
    /// Number of strips of each matrix that is cut.
    strips: HashMap<TensorId, usize>,
}

impl Cuts {
    /// Finds the matrices that are connected by operations on single columns. A set of them is cut if a gather is among
    /// these operations and there are enough columns.
    fn of(program: &Program, most: usize) -> Self {
        let tensors = program.tensors();
        let number: HashMap<TensorId, usize> = tensors.iter().enumerate().map(|(i, &tensor)| (tensor, i)).collect();
        let strips_of = |tensor: TensorId| {
            let described = program.tensor(tensor);
            let is_matrix = described.ty.rows == RowSpace::Vertices && described.ty.dtype == DType::F32;
            if is_matrix { most.min(described.ty.width / LEAST) } else { 1 }
        };
        let whole: HashSet<usize> = (0..tensors.len()).filter(|&i| strips_of(tensors[i]) < 2).collect();
        let mut gathered: HashSet<usize> = HashSet::new();
        let mut sets = UnionFind::<usize>::new(tensors.len());
        for op in program.ops() {
            if let Connection::Columns(alike) = Connection::of(program, op) {
                // Columns of constants are copied once.
                let alike = alike.into_iter().filter(|&tensor| !program.tensor(tensor).constant);
                let alike: Vec<usize> = alike.map(|tensor| number[&tensor]).collect();
                for pair in alike.windows(2) {
                    sets.union(pair[0], pair[1]);
                }
                if matches!(program.op(op).head(), Op::Gather(_)) {
                    gathered.extend(alike.first());
                }
            }
        }
        let sets_of = |numbers: &HashSet<usize>| numbers.iter().map(|&i| sets.find(i)).collect::<HashSet<usize>>();
        let (gathered, is_whole) = (sets_of(&gathered), sets_of(&whole));
        let is_cut = |i: &usize| gathered.contains(&sets.find(*i)) && !is_whole.contains(&sets.find(*i));
        let strips = (0..tensors.len()).filter(is_cut).map(|i| (tensors[i], strips_of(tensors[i])));
        Self { strips: strips.collect() }
    }

    fn has(&self, tensor: TensorId) -> bool {
        self.strips.contains_key(&tensor)
    }

    /// Returns the number of strips of a matrix; 1 if it is not cut.
    fn count(&self, tensor: TensorId) -> usize {
        self.strips.get(&tensor).copied().unwrap_or(1)
    }

    /// Returns the columns of a strip of a matrix with this many columns.
    fn columns(&self, tensor: TensorId, width: usize, strip: usize) -> Range<usize> {
        let (units, strips) = (width.div_ceil(UNIT), self.count(tensor));
        let end = |strip: usize| (units * strip / strips * UNIT).min(width);
        end(strip)..end(strip + 1)
    }
}

/// How an operation connects the columns of its matrices.
enum Connection {
    /// These matrices are cut alike, the output last.
    Columns(Vec<TensorId>),
    /// Each matrix may be cut by itself.
    Free,
    /// It needs whole rows.
    None,
}

impl Connection {
    fn of(program: &Program, id: OpId) -> Self {
        let (op, inputs, out) = (program.op(id), program.inputs(id), program.op_outputs(id)[0]);
        let width = program.tensor(out).ty.width;
        let is_matrix = |tensor: &&TensorId| {
            let ty = program.tensor(**tensor).ty;
            ty.rows == RowSpace::Vertices && ty.width == width && ty.dtype.float().is_some()
        };
        let (head, beside) = inputs.split_at(op.head().input_count());
        // The matrices that the head connects with its output.
        let connected = match op.head() {
            Op::Gather(_) | Op::Row(_) if !over_features(op) => head,
            Op::Gather(_) | Op::Linear(Linear::Product | Linear::InputGrad) => &[],
            Op::Linear(Linear::WeightGrad | Linear::ColumnSum) => return Self::Free,
            _ => return Self::None,
        };
        if program.tensor(out).ty.rows != RowSpace::Vertices {
            return Self::Free;
        }
        Self::Columns(connected.iter().chain(beside).chain([&out]).filter(is_matrix).copied().collect())
    }
}

/// Whether an operation multiplies with sparse features.
fn over_features(op: &Op) -> bool {
    matches!((op.head(), op.block()), (Op::Gather(_), Some(BlockSpec::Features { .. })))
}
