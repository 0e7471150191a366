//! Runs lowered programs in f64 on the serial reference kernels: the second answer to what a device computes.

use std::collections::BTreeMap;

use lapidary::lower::{Contents, Inputs, Kind, Lowered, Step, Supply};
use lapidary::program::Origin;
use lapidary_kernels::reference::{self, Dense};
use lapidary_kernels::step::{AdamStep, SgdStep};
use lapidary_kernels::view::{MultiTargets, Targets};
use lapidary_kernels::{BlockSlots, BlockView, Call, Mat, RowStep, Slot};

/// The contents of one slot.
#[derive(Clone, Debug)]
enum Cells {
    Float(Vec<f64>),
    U32(Vec<u32>),
    U64(Vec<u64>),
    U8(Vec<u8>),
}

/// All slots.
#[derive(Clone, Debug)]
pub struct Oracle {
    slots: BTreeMap<Slot, Cells>,
}

impl Oracle {
    /// Constants in place, state all 0, the setup run. `floats` says which constants hold f32.
    pub fn new(lowered: &Lowered, inputs: &Inputs) -> Self {
        let mut oracle = Self::of_part(lowered, &mut Supply::new(inputs), 0);
        oracle.run(&lowered.setup);
        oracle
    }

    /// One part's constants in place, state all 0, and nothing run.
    pub fn of_part(lowered: &Lowered, supply: &mut Supply<'_>, part: usize) -> Self {
        let mut oracle = Self { slots: BTreeMap::new() };
        for (index, tensor) in lowered.tensors.iter().enumerate() {
            let slot = Slot(index as u32);
            let host = tensor.contents.as_ref().map(|contents| (contents, supply.get(part, tensor.tile, contents)));
            let cells = match host {
                Some((Contents::Indptr(_) | Contents::Origin(Origin::EdgePermutation(_)), host)) => {
                    Cells::U64(host.to_vec())
                }
                Some((Contents::Indices(_) | Contents::PackedRows(_) | Contents::FetchedRows(_), host)) => {
                    Cells::U32(host.to_vec())
                }
                Some((Contents::Origin(Origin::Labels | Origin::Split), host)) => Cells::U32(host.to_vec()),
                Some((Contents::Origin(Origin::Targets), host)) => Cells::U8(host.to_vec()),
                Some((Contents::Rounded(_), host)) => {
                    Cells::Float(host.to_vec::<half::bf16>().into_iter().map(f64::from).collect())
                }
                Some((_, host)) => Cells::Float(host.to_vec::<f32>().into_iter().map(f64::from).collect()),
                None if tensor.name == "clock" => Cells::U64(vec![1, 1]),
                None if tensor.kind == Kind::State => Cells::Float(vec![0.0; tensor.bytes as usize / 4]),
                None => Cells::Float(Vec::new()),
            };
            oracle.slots.insert(slot, cells);
        }
        oracle
    }

    pub fn write(&mut self, slot: Slot, values: &[f64]) {
        self.slots.insert(slot, Cells::Float(values.to_vec()));
    }

    pub fn float(&self, slot: Slot) -> &[f64] {
        match &self.slots[&slot] {
            Cells::Float(cells) => cells,
            other => panic!("slot {slot:?} holds {other:?}"),
        }
    }

    pub fn run(&mut self, steps: &[Step]) {
        for step in steps {
            self.call(&step.call);
        }
    }

    pub fn u32s(&self, slot: Slot) -> &[u32] {
        match &self.slots[&slot] {
            Cells::U32(cells) => cells,
            other => panic!("slot {slot:?} holds {other:?}"),
        }
    }

    fn u64s(&self, slot: Slot) -> &[u64] {
        match &self.slots[&slot] {
            Cells::U64(cells) => cells,
            other => panic!("slot {slot:?} holds {other:?}"),
        }
    }

    fn mat(&self, mat: Mat) -> Dense {
        let data = self.float(mat.slot);
        assert_eq!(data.len(), mat.rows * mat.cols);
        Dense::from_fn(mat.rows, mat.cols, |r, c| data[r * mat.cols + c])
    }

    fn block(&self, block: BlockSlots) -> BlockView<'_> {
        BlockView {
            indptr: self.u64s(block.indptr),
            indices: self.u32s(block.indices),
            own_sources: block.own_sources,
            halo_sources: block.halo_sources,
        }
    }

    fn targets(&self, labels: Slot, split: Slot, select: u32) -> Targets<'_> {
        Targets { labels: self.u32s(labels), split: self.u32s(split), select }
    }

    fn multi_targets(&self, logits: Mat, targets: Slot, split: Slot, select: u32) -> MultiTargets<'_> {
        let Cells::U8(targets) = &self.slots[&targets] else { panic!("targets are bytes") };
        MultiTargets { targets, classes: logits.cols, split: self.u32s(split), select }
    }

    fn put(&mut self, slot: Slot, cells: Vec<f64>) {
        self.slots.insert(slot, Cells::Float(cells));
    }

    fn call(&mut self, call: &Call) {
        match *call {
            // Others' rows: whoever runs the parts writes them.
            Call::Fetch { .. } => {}
            Call::Gather { block, weights, own, halo, out } => {
                let weights = weights.map(|w| self.float(w).to_vec());
                let halo = halo.map(|h| self.mat(h));
                let y = reference::gather(self.block(block), weights.as_deref(), &self.mat(own), halo.as_ref());
                self.put(out.slot, y.data);
            }
            Call::GatherWindow { block, weights, first, own, sum, out } => {
                let y = self.gather_window(self.block(block), weights, first, own, sum);
                self.put(out.slot, y);
            }
            Call::Accumulate { ref head, sum } => {
                let before = self.slots[&sum].clone();
                self.call(head);
                let out = head.writes()[0];
                let after = match (&before, &self.slots[&out]) {
                    (Cells::Float(a), Cells::Float(b)) => Cells::Float(a.iter().zip(b).map(|(a, b)| a + b).collect()),
                    (Cells::U64(a), Cells::U64(b)) => Cells::U64(a.iter().zip(b).map(|(a, b)| a + b).collect()),
                    other => panic!("{other:?} do not add up"),
                };
                self.slots.insert(out, after);
            }
            Call::Pack { x, rows, out } => {
                let y = reference::pack(&self.mat(x), self.u32s(rows));
                self.put(out.slot, y.data);
            }
            Call::RowScale { x, scale, out } => {
                let y = reference::row_scale(&self.mat(x), self.float(scale));
                self.put(out.slot, y.data);
            }
            Call::Linear { x, weight, out } => {
                let y = reference::linear(&self.mat(x), &self.mat(weight));
                self.put(out.slot, y.data);
            }
            Call::LinearInputGrad { grad, weight, out } => {
                let y = reference::linear_input_grad(&self.mat(grad), &self.mat(weight));
                self.put(out.slot, y.data);
            }
            Call::LinearWeightGrad { grad, x, out, .. } => {
                let y = reference::linear_weight_grad(&self.mat(grad), &self.mat(x));
                self.put(out.slot, y.data);
            }
            // The oracle rounds nothing.
            Call::Round { x, out } => {
                let x = self.mat(x);
                self.put(out.slot, x.data);
            }
            Call::Transpose { x, out } => {
                let y = reference::transpose(&self.mat(x));
                self.put(out.slot, y.data);
            }
            Call::AddBias { x, bias, out } => {
                let y = reference::add_bias(&self.mat(x), self.float(bias));
                self.put(out.slot, y.data);
            }
            Call::ColumnSum { x, out } => {
                let y = reference::column_sum(&self.mat(x));
                self.put(out, y);
            }
            Call::Add { a, b, out } => {
                let y = reference::add(&self.mat(a), &self.mat(b));
                self.put(out.slot, y.data);
            }
            Call::Relu { x, out } => {
                let y = reference::relu(&self.mat(x));
                self.put(out.slot, y.data);
            }
            Call::ReluGrad { grad, y, out } => {
                let dx = reference::relu_grad(&self.mat(grad), &self.mat(y));
                self.put(out.slot, dx.data);
            }
            Call::Dropout { x, out, key, clock } => {
                let y = reference::dropout(&self.mat(x), key, self.u64s(clock)[0]);
                self.put(out.slot, y.data);
            }
            Call::SparseDropout { block, values, out, key, clock } => {
                let epoch = self.u64s(clock)[0];
                let y = reference::sparse_dropout(self.block(block), self.float(values), key, epoch);
                self.put(out, y);
            }
            Call::PermuteEdges { values, permutation, out, .. } => {
                let y = reference::permute_edges(self.float(values), self.u64s(permutation));
                self.put(out, y);
            }
            Call::SoftmaxCrossEntropy { logits, labels, split, select, count, loss } => {
                let targets = self.targets(labels, split, select);
                let y = reference::softmax_cross_entropy(&self.mat(logits), targets, count);
                self.put(loss, vec![y]);
            }
            Call::SoftmaxCrossEntropyGrad { logits, labels, split, select, count, out } => {
                let targets = self.targets(labels, split, select);
                let y = reference::softmax_cross_entropy_grad(&self.mat(logits), targets, count);
                self.put(out.slot, y.data);
            }
            Call::CountCorrect { logits, labels, split, select, out } => {
                let counts = reference::count_correct(&self.mat(logits), self.targets(labels, split, select));
                self.slots.insert(out, Cells::U64(counts.to_vec()));
            }
            Call::LayerNorm { x, gain, bias, eps, out } => {
                let y = reference::layer_norm(&self.mat(x), self.float(gain), self.float(bias), f64::from(eps));
                self.put(out.slot, y.data);
            }
            Call::LayerNormInputGrad { grad, x, gain, eps, out } => {
                let (grad, x) = (self.mat(grad), self.mat(x));
                let dx = reference::layer_norm_input_grad(&grad, &x, self.float(gain), f64::from(eps));
                self.put(out.slot, dx.data);
            }
            Call::LayerNormGainGrad { grad, x, eps, out } => {
                let y = reference::layer_norm_gain_grad(&self.mat(grad), &self.mat(x), f64::from(eps));
                self.put(out, y);
            }
            Call::SigmoidCrossEntropy { logits, targets, split, select, count, loss } => {
                let targets = self.multi_targets(logits, targets, split, select);
                let y = reference::sigmoid_cross_entropy(&self.mat(logits), targets, count);
                self.put(loss, vec![y]);
            }
            Call::SigmoidCrossEntropyGrad { logits, targets, split, select, count, out } => {
                let targets = self.multi_targets(logits, targets, split, select);
                let y = reference::sigmoid_cross_entropy_grad(&self.mat(logits), targets, count);
                self.put(out.slot, y.data);
            }
            Call::CountMicro { logits, targets, split, select, out } => {
                let targets = self.multi_targets(logits, targets, split, select);
                let counts = reference::count_micro(&self.mat(logits), targets);
                self.slots.insert(out, Cells::U64(counts.to_vec()));
            }
            Call::Fused { ref head, ref steps } => {
                self.call(head);
                let out = head.rows_out().expect("a head makes rows");
                for step in steps {
                    let y = self.row_step(step, out);
                    self.put(out.slot, y.data);
                }
            }
            Call::Concat { ref parts, out } => {
                let joined: Vec<f64> = parts.iter().flat_map(|&(part, _)| self.float(part).to_vec()).collect();
                self.put(out, joined);
            }
            Call::Sgd { .. } | Call::Adam { .. } => self.update(call),
        }
    }

    fn gather_window(
        &self,
        block: BlockView<'_>,
        weights: Option<Slot>,
        first: usize,
        own: Mat,
        sum: Option<Mat>,
    ) -> Vec<f64> {
        assert_eq!(block.halo_sources, 0);
        let x = self.mat(own);
        let mut y = sum.map_or_else(|| vec![0.0; block.rows() * own.cols], |sum| self.mat(sum).data);
        for v in 0..block.rows() {
            for edge in block.edges(v) {
                let u = block.indices[edge] as usize;
                assert!(u < block.own_sources);
                if (first..first + own.rows).contains(&u) {
                    let factor = weights.map_or(1.0, |weights| self.float(weights)[edge]);
                    (0..own.cols).for_each(|c| y[v * own.cols + c] += factor * x.data[(u - first) * own.cols + c]);
                }
            }
        }
        y
    }

    fn row_step(&self, step: &RowStep, out: Mat) -> Dense {
        let x = self.mat(out);
        match *step {
            RowStep::Scale(scale) => reference::row_scale(&x, self.float(scale)),
            RowStep::AddBias(bias) => reference::add_bias(&x, self.float(bias)),
            RowStep::Add(slot) => reference::add(&x, &self.mat(Mat { slot, ..out })),
            RowStep::Relu => reference::relu(&x),
            RowStep::ReluGrad(slot) => reference::relu_grad(&x, &self.mat(Mat { slot, ..out })),
            RowStep::Dropout { key, clock } => reference::dropout(&x, key, self.u64s(clock)[0]),
        }
    }

    fn update(&mut self, call: &Call) {
        match *call {
            Call::Sgd { param, grad, moment, out, window, clock, rate, momentum, weight_decay } => {
                let step = self.u64s(clock)[1];
                let rate = self.float(rate)[0];
                let mut w = self.float(param)[window.first..window.end()].to_vec();
                let mut m = moment.map(|[old, _]| self.float(old).to_vec());
                let how = SgdStep { step, rate, momentum, weight_decay };
                reference::sgd(&mut w, &self.float(grad)[window.first..window.end()], m.as_deref_mut(), how);
                self.put(out, w);
                if let (Some([_, new]), Some(m)) = (moment, m) {
                    self.put(new, m);
                }
            }
            Call::Adam { param, grad, m, v, out, window, clock, rate, beta1, beta2, eps, weight_decay, decoupled } => {
                let step = self.u64s(clock)[1];
                let rate = self.float(rate)[0];
                let how = AdamStep { step, rate, beta1, beta2, eps, weight_decay, decoupled };
                let mut w = self.float(param)[window.first..window.end()].to_vec();
                let (mut first, mut second) = (self.float(m).to_vec(), self.float(v).to_vec());
                reference::adam(&mut w, &self.float(grad)[window.first..window.end()], &mut first, &mut second, how);
                self.put(out[0], w);
                self.put(out[1], first);
                self.put(out[2], second);
            }
            _ => unreachable!("only optimizer steps update"),
        }
    }
}
