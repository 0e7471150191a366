//! Calls of attention over any graph: their operands, their results on a device, and the oracle's.

use crate::common::*;
use lapidary_kernels::op::oracle::{self, Array};
use lapidary_kernels::op::{Attention, AttentionPass, AttentionRows, BlockSpec, Score, WeightDropout};
use lapidary_kernels::{Arg, BlockSlots, Call, DType, Mat, Part, Slot, StorageType, storage_type};

/// The settings of a pass, and the graph of the forward pass.
#[derive(Clone, Debug)]
pub struct Case {
    pub graph: Graph,
    pub score: Score,
    pub heads: usize,
    pub width: usize,
    pub edge_values: bool,
    pub dropout: bool,
}

/// The contents of an operand.
#[derive(Clone, Debug)]
pub enum Host {
    Float(Vec<f32>),
    U32(Vec<u32>),
    U64(Vec<u64>),
}

/// A pass over a block and the contents of its operands.
#[derive(Clone, Debug)]
pub struct Operands {
    pub op: Attention,
    pub graph: Graph,
    pub own: Matrix,
    pub halo: Option<Matrix>,
    pub rows: Matrix,
    pub rest: Vec<Host>,
}

pub const PART: Part =
    Part { seed: 5, first_row: 70, select: 0, count: 0, window: lapidary_kernels::Window { first: 0, len: 0 } };

/// Returns multiples of 1/256 that bf16 represents, so that the sum inside a leaky ReLU is exact and its sign certain.
pub fn exact(numbers: &mut Numbers, len: usize) -> Vec<f32> {
    (0..len).map(|_| (numbers.below(511) as f32 - 255.0) / 256.0).collect()
}

fn exact_matrix(numbers: &mut Numbers, rows: usize, cols: usize) -> Matrix {
    Matrix { rows, cols, data: exact(numbers, rows * cols) }
}

pub fn rows_of(matrix: &Matrix, rows: std::ops::Range<usize>) -> Matrix {
    let data = matrix.data[rows.start * matrix.cols..rows.end * matrix.cols].to_vec();
    Matrix { rows: rows.len(), cols: matrix.cols, data }
}

fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&x| x as f32).collect()
}

impl Case {
    pub fn d(&self) -> usize {
        self.heads * self.width
    }

    fn ends(&self) -> usize {
        if self.score == Score::Gat { self.d() + 2 * self.heads } else { self.d() }
    }

    /// Returns the operands of a pass. Those of a gradient come from the oracle's forward pass.
    pub fn operands(&self, pass: AttentionPass) -> Operands {
        let numbers = &mut Numbers(self.d() as u64);
        let graph = match pass {
            AttentionPass::SourceGrad => self.graph.transpose().0,
            _ => self.graph.clone(),
        };
        let (own, halo) = (self.graph.own_sources, self.graph.halo_sources);
        let mut x = exact_matrix(numbers, own + halo, self.ends());
        // Some scores are so large that weights of the same row underflow.
        for v in (0..x.rows).step_by(7) {
            let scale = if self.score == Score::Gat { 32.0 } else { 4.0 };
            x.data[v * x.cols..(v + 1) * x.cols].iter_mut().for_each(|x| *x *= scale);
        }
        let y = exact_matrix(numbers, self.graph.rows(), self.ends());
        let a = exact(numbers, self.d());
        let vector = exact(numbers, if self.score == Score::Gat { self.heads } else { self.d() });
        // A product of two multiples of 1/16 is one of 1/256.
        let vector: Vec<f32> = vector.iter().map(|x| (x * 16.0).round() / 16.0).collect();
        let values: Vec<f32> = (0..graph.edges()).map(|edge| (edge % 33) as f32 / 16.0 - 1.0).collect();
        let op = Attention {
            block: BlockSpec::Graph { self_loops: false, transposed: pass == AttentionPass::SourceGrad },
            score: self.score,
            heads: self.heads,
            slope: 0.2,
            dropout: self.dropout.then_some(WeightDropout { rate: 0.4, salt: 3 }),
            edge_values: self.edge_values,
            pass,
        };
        let sources = graph.own_sources + graph.halo_sources;
        let shared = || {
            let a = (self.score == Score::Gatv2).then(|| Host::Float(a.clone()));
            let of_edges = [Host::Float(values.clone()), Host::Float(vector.clone())];
            let of_edges = of_edges.into_iter().filter(|_| self.edge_values);
            let ids = Host::U32((0..sources as u32).map(|u| 3 * u + 1).collect());
            let of_dropout = [Host::U64(vec![6, 1]), ids].into_iter().filter(|_| self.dropout);
            a.into_iter().chain(of_edges).chain(of_dropout).collect::<Vec<_>>()
        };
        let own_rows = rows_of(&x, 0..own);
        let halo_rows = (halo > 0).then(|| rows_of(&x, own..own + halo));
        match pass {
            AttentionPass::Forward | AttentionPass::Partial => {
                Operands { op, graph, own: own_rows, halo: halo_rows, rows: y, rest: shared() }
            }
            AttentionPass::TargetGrad => {
                let rows = self.grads(numbers, &y);
                Operands { op, graph, own: own_rows, halo: halo_rows, rows, rest: shared() }
            }
            AttentionPass::SourceGrad => {
                let own = self.grads(numbers, &y);
                let target_grad = (self.score == Score::Gat).then(|| Host::Float(exact(numbers, x.rows * self.heads)));
                let rest = target_grad.into_iter().chain(shared()).collect();
                Operands { op, graph, own, halo: None, rows: x, rest }
            }
        }
    }

    /// Returns what the passes backward need from the destinations.
    fn grads(&self, numbers: &mut Numbers, y: &Matrix) -> Matrix {
        let made = self.operands(AttentionPass::Forward).oracle();
        let (heads, score, n) = (self.heads, self.score, self.graph.rows());
        let grad = exact(numbers, n * self.d());
        let arrays = [wide(&grad), made[0].clone(), made[1].clone(), wide(&y.data)].map(Array::Float);
        let mat = |slot, cols| Mat::f32(Slot(slot), n, cols);
        let own = if score == Score::Gat { heads } else { self.d() };
        let cols = self.d() + own + 2 * heads;
        let inputs = [mat(0, self.d()), mat(1, self.d()), mat(2, heads), mat(3, self.ends())];
        let call = Call::new(AttentionRows::Grads { heads, score }, inputs, [mat(4, cols)]);
        let made = oracle::run(&call, |slot| &arrays[slot.0 as usize]);
        Matrix { rows: n, cols, data: narrow(made[0].1.floats()) }
    }
}

impl Operands {
    /// Returns the number of columns of each output.
    pub fn out_cols(&self) -> Vec<usize> {
        let (heads, extra) = (self.op.heads, usize::from(self.op.edge_values));
        let ends = if self.op.pass == AttentionPass::SourceGrad { self.rows.cols } else { self.own.cols };
        let d = if self.op.score == Score::Gat { ends - 2 * heads } else { ends };
        match (self.op.pass, self.op.score) {
            (AttentionPass::Forward, _) => vec![d, heads],
            (AttentionPass::Partial, _) => vec![d + 2 * heads],
            (AttentionPass::SourceGrad, _) => vec![ends],
            (AttentionPass::TargetGrad, Score::Gat) => vec![heads * (1 + extra)],
            (AttentionPass::TargetGrad, Score::Gatv2) => vec![d * (2 + extra)],
        }
    }

    fn call(&self, block: BlockSlots, [own, rows]: [Mat; 2], rest: Vec<Slot>, outputs: Vec<Mat>) -> Call {
        let inputs = [own, rows].map(Arg::Mat).into_iter().chain(rest.into_iter().map(Arg::Slot));
        Call::over(self.op, PART, Some(block), inputs, outputs)
    }

    /// Returns the outputs of the oracle.
    pub fn oracle(&self) -> Vec<Vec<f64>> {
        let mut arrays = vec![Array::U64(self.graph.indptr.clone()), Array::U32(self.graph.indices.clone())];
        let block = BlockSlots {
            indptr: Slot(0),
            indices: Slot(1),
            rows: self.graph.rows(),
            own_sources: self.graph.own_sources,
            halo_sources: self.graph.halo_sources,
            edges: self.graph.edges(),
        };
        let mut put = |array| {
            arrays.push(array);
            Slot(arrays.len() as u32 - 1)
        };
        let mut mat = |matrix: &Matrix| Mat::f32(put(Array::Float(wide(&matrix.data))), matrix.rows, matrix.cols);
        let (ends, halo) = ([mat(&self.own), mat(&self.rows)], self.halo.as_ref().map(&mut mat));
        let rest = self.rest.iter().map(|host| match host {
            Host::Float(values) => put(Array::Float(wide(values))),
            Host::U32(values) => put(Array::U32(values.clone())),
            Host::U64(values) => put(Array::U64(values.clone())),
        });
        let rest = rest.collect();
        let outputs = self.out_cols().into_iter().enumerate();
        let outputs = outputs.map(|(i, cols)| Mat::f32(Slot(1000 + i as u32), self.graph.rows(), cols)).collect();
        let call = Call { halo, ..self.call(block, ends, rest, outputs) };
        oracle::run(&call, |slot| &arrays[slot.0 as usize])
            .into_iter()
            .map(|(_, made)| made.floats().to_vec())
            .collect()
    }

    /// Returns the call on a device, over rows of this storage type. Its outputs have the type `out`.
    pub fn on(&self, rig: &Rig, float: StorageType, out: StorageType) -> Call {
        let [own, rows] = match self.op.pass {
            AttentionPass::SourceGrad => [StorageType::F32, float],
            AttentionPass::TargetGrad => [float, StorageType::F32],
            _ => [float, float],
        };
        let halo = self.halo.as_ref().map(|halo| put(rig, halo, own));
        let ends = [put(rig, &self.own, own), put(rig, &self.rows, rows)];
        let rest = self.rest.iter().map(|host| match host {
            Host::Float(values) => rig.put(values),
            Host::U32(values) => rig.put(values),
            Host::U64(values) => rig.put(values),
        });
        let rest = rest.collect();
        // The second output is always f32.
        let types = [out, StorageType::F32];
        let outputs = self.out_cols().into_iter().zip(types);
        let outputs = outputs.map(|(cols, float)| empty(rig, self.graph.rows(), cols, float)).collect();
        Call { halo, ..self.call(rig.block(&self.graph), ends, rest, outputs) }
    }

    /// Runs the pass. Returns all outputs.
    pub fn run(&self, rig: &Rig) -> Vec<f32> {
        let call = self.on(rig, StorageType::F32, StorageType::F32);
        rig.launch(&call).unwrap();
        outputs(rig, &call)
    }

    /// Runs the pass in windows that end at `cuts`. Returns all outputs of the last one.
    pub fn run_windows(&self, rig: &Rig, cuts: &[usize]) -> Vec<f32> {
        let whole = self.on(rig, StorageType::F32, StorageType::F32);
        let mut sum = None;
        for (i, cut) in cuts.windows(2).enumerate() {
            let is_last = i + 2 == cuts.len();
            let mut call = if is_last { whole.clone() } else { whole.clone().partial() }.window(cut[0], sum);
            call.inputs[0] = rig.mat(&rows_of(&self.own, cut[0]..cut[1]));
            if !is_last {
                call.outputs[0].slot = rig.out(call.out().rows, call.out().cols).slot;
                sum = Some(call.out());
            }
            rig.launch(&call).unwrap();
        }
        outputs(rig, &whole)
    }
}

pub fn rounded(values: &[f32]) -> Vec<half::bf16> {
    let mut stored = vec![half::bf16::ZERO; values.len()];
    storage_type::round(values, &mut stored);
    stored
}

pub fn put(rig: &Rig, matrix: &Matrix, float: StorageType) -> Mat {
    let slot = match float {
        StorageType::F32 => rig.put(&matrix.data),
        StorageType::Bf16 => rig.put(&rounded(&matrix.data)),
    };
    Mat { dtype: float.into(), ..Mat::f32(slot, matrix.rows, matrix.cols) }
}

fn empty(rig: &Rig, rows: usize, cols: usize, float: StorageType) -> Mat {
    put(rig, &Matrix { rows, cols, data: vec![f32::NAN; rows * cols] }, float)
}

/// Returns all outputs of a call, widened to f32.
pub fn outputs(rig: &Rig, call: &Call) -> Vec<f32> {
    let read = |mat: &Mat| match mat.dtype {
        DType::Bf16 => rig.get::<half::bf16>(mat.slot, mat.numbers()).into_iter().map(f32::from).collect(),
        _ => rig.get::<f32>(mat.slot, mat.numbers()),
    };
    call.outputs.iter().flat_map(read).collect()
}
