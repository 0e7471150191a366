//! Learns the costs of parts while a program runs, and proposes better splits.
//!
//! Timed kernels of parts of the graph are samples for the cost model, which then says which split has the fastest
//! slowest part. Copies are no samples, nor is packing rows for other parts, since they do not depend on a part's rows
//! alone. The first split includes packing at the profile's rates, for the vertices that have a neighbour in another
//! part.
//!
//! The speed of a device is measured by operations that follow no edges. Their time depends only on the number of rows,
//! so what the model has not yet learned about the graph's structure is not mistaken for a device's speed.
//!
//! A handful of parts are few samples for a regression. So the measured time of each part corrects the model's
//! prediction for its vertices: the current split is predicted as it was measured, and the model only distributes a
//! part's time over its vertices. Each move thus comes closer to the optimum. A move that measures worse is undone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use lapidary_cost_model::{CostModel, FeatureSums, Features, Operation, RangeCost, Work};
use lapidary_kernels::Lane;
use lapidary_planner::partition::{Speeds, bottleneck, split};

use serde::{Deserialize, Serialize};

use super::correction::{Gathers, factors};
use super::packing::read_by_others;
use super::trace::Span;
use crate::lower::{Inputs, Lifetime, Sizes, lower, operation_name};
use crate::plan::works;
use crate::program::Program;

/// Number of epochs to measure before the first and before the second check whether another split pays. The number
/// doubles before each later check.
const PATIENCE: u32 = 1;

/// If the slowest part takes less than this many seconds, the number of epochs is multiplied by [`PATIENCE_IF_SHORT`]:
/// disturbances are most of so short a time.
const SHORT_S: f64 = 4e-3;
const PATIENCE_IF_SHORT: u32 = 3;

/// The most moves of a run, not counting a last return to its best split.
const MOST_MOVES: u32 = 4;

/// Share of an epoch below which a gain is noise.
const LEAST_GAIN: f64 = 0.03;

/// The most that a measurement corrects the prediction of a part at once, as a factor. Most of a small part's time is
/// the cost of the calls themselves, which says nothing about a larger part.
const MOST_CORRECTION: f64 = 2.0;

/// Devices whose speeds differ by less than this factor count as equal. The second factor applies after a single epoch.
const ALIKE: f64 = 1.25;
const ALIKE_AT_FIRST: f64 = 1.5;

/// Number of recent measurements of a device's speed that are used.
const RECENT: usize = 9;

/// A call whose rows are predicted to take less measures the cost of the call, not the speed of the device.
const LONG_CALL_S: f64 = 1e-5;

/// After the last move, a run learns from every this many epochs.
const SELDOM: u64 = 8;

/// The learned cost of programs on one graph.
#[derive(Clone, Debug)]
pub(crate) struct Learner {
    model: CostModel,
    /// The operation of each step by the step's name. It is the same on every part.
    steps: BTreeMap<String, Operation>,
    /// The operations of an epoch.
    epoch: Vec<Operation>,
    /// The operations of the setup.
    setup: Vec<Operation>,
    /// Widths of the rows that parts pack for each other in an epoch.
    packed_widths: Vec<u32>,
    /// Bytes of all tensors made by setup and epoch, per vertex.
    fresh_bytes: u32,
    widths: Vec<u32>,
    parts: Vec<Range<usize>>,
    /// For each part, its features by the width of the gathered rows.
    features: Vec<BTreeMap<u32, Features>>,
    /// For each device, its speed as a share of the fastest one's, in each of the latest epochs.
    ratios: Vec<VecDeque<f64>>,
    /// The fastest split measured so far, and the seconds of its slowest part.
    best: Option<(Vec<Range<usize>>, f64)>,
    /// Epochs measured since the last split or check. The first epoch of a split is not measured.
    measured: u32,
    is_warm: bool,
    questions: u32,
    moves: u32,
}

/// A split that is predicted, or was measured, to be faster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Better {
    pub parts: Vec<Range<usize>>,
    /// Seconds of the slowest part: measured now, and expected with these parts.
    pub slowest_s: [f64; 2],
}

impl Learner {
    /// Starts from `model`. `main` are the indices of the programs that form an epoch.
    pub(crate) fn new(model: CostModel, inputs: &Inputs, programs: &[(&str, &Program)], main: &[usize]) -> Self {
        let whole = lower(programs, &Sizes::of(inputs).into(), 0);
        let mut named = BTreeMap::new();
        for phase in &whole.phases {
            named.extend(phase.steps.iter().map(|step| step.name.to_string()).zip(works(&phase.steps)));
        }
        let setup = works(&whole.setup);
        let made = whole.tensors.iter().filter(|tensor| tensor.kind == Lifetime::Local);
        let fresh_bytes = made.fold(0u64, |sum, tensor| sum.saturating_add(tensor.bytes));
        let ops = named.values().chain(&setup);
        let mut widths: Vec<u32> = ops.map(|op| op.work.width()).filter(|&width| width > 0).collect();
        widths.sort_unstable();
        widths.dedup();
        let epoch = works(&whole.sequence(main));
        Self {
            model,
            steps: named,
            packed_widths: epoch.iter().map(|op| op.work.width()).filter(|&width| width > 0).collect(),
            epoch,
            setup,
            fresh_bytes: u32::try_from(fresh_bytes / inputs.graph.vertex_count().max(1) as u64).unwrap_or(u32::MAX),
            widths,
            parts: Vec::new(),
            features: Vec::new(),
            ratios: Vec::new(),
            best: None,
            measured: 0,
            is_warm: false,
            questions: 0,
            moves: 0,
        }
    }

    /// Returns the cost model as learned so far.
    pub(crate) fn model(&self) -> &CostModel {
        &self.model
    }

    /// Continues from a model that another run has learned.
    pub(crate) fn set_model(&mut self, model: CostModel, inputs: &Inputs) {
        self.model = model;
        let parts = std::mem::take(&mut self.parts);
        self.settle(inputs, parts);
    }

    /// Makes the cost that of a single pass. It then includes the setup, and the first touch of memory, which the
    /// system clears before a kernel can write to it.
    pub(crate) fn of_one_pass(mut self) -> Self {
        self.epoch.append(&mut self.setup);
        self.epoch.push(Operation::new("clear", Work::Elementwise { bytes: self.fresh_bytes }));
        self
    }

    /// Returns the best known split over `devices` devices.
    ///
    /// # Cost
    /// O(e) for the graph's features, plus the cost of [`split`].
    pub(crate) fn split(&self, inputs: &Inputs, devices: usize) -> Vec<Range<usize>> {
        let speeds = self.speeds(devices);
        let equal = split(&RangeCost::vertices(inputs.graph.vertex_count()), &speeds);
        let ops = [&self.epoch[..], &self.packs_between(inputs, &equal)].concat();
        self.with_cost(inputs, &ops, |cost| split(cost, &speeds))
    }

    /// Returns the packing operations of an epoch, for the average vertex of these parts.
    fn packs_between(&self, inputs: &Inputs, parts: &[Range<usize>]) -> Vec<Operation> {
        let share = read_by_others(&inputs.graph, parts);
        let pack = |&width: &u32| {
            // 4 bytes read and 4 written per element.
            let bytes = (share * 8.0 * f64::from(width)).round() as u32;
            Operation::new("pack", Work::Elementwise { bytes })
        };
        self.packed_widths.iter().map(pack).collect()
    }

    /// Sets the parts that later measurements belong to.
    ///
    /// # Cost
    /// O(e).
    pub(crate) fn settle(&mut self, inputs: &Inputs, parts: Vec<Range<usize>>) {
        let sums = self.sums(inputs);
        let of_part = |part: &Range<usize>| {
            let of_width = |width| (width, sums.columns(width).expect("the width was named").of(part.clone()));
            self.widths.iter().copied().chain([0]).map(of_width).collect()
        };
        let features = parts.iter().map(of_part).collect();
        self.ratios.resize(parts.len(), VecDeque::new());
        (self.parts, self.features, self.measured, self.is_warm) = (parts, features, 0, false);
    }

    /// Returns whether to learn from this epoch.
    pub(crate) fn wants(&self, epoch: u64) -> bool {
        self.moves <= MOST_MOVES || epoch.is_multiple_of(SELDOM)
    }

    /// Adds the kernel times of an epoch, by part. The first epoch of a split is ignored, since it touches its memory
    /// for the first time.
    pub(crate) fn observe(&mut self, spans: &[Vec<Span>]) {
        if !std::mem::replace(&mut self.is_warm, true) {
            return;
        }
        let seconds: Vec<BTreeMap<Operation, Vec<f64>>> = spans.iter().map(|spans| self.seconds(spans)).collect();
        self.note_speeds(&seconds);
        let speeds = self.relative_speeds(self.parts.len());
        for ((seconds, features), speed) in seconds.iter().zip(&self.features).zip(speeds) {
            for (op, calls) in seconds {
                for call_s in calls {
                    // A clock that is too coarse for a short call reports 0, which is not a measurement.
                    drop(self.model.observe(op, &features[&op.work.width()], call_s * speed));
                }
            }
        }
        self.measured += 1;
    }

    /// Returns a split whose gain within `remaining` epochs exceeds the `move_s` seconds of a move. Returns `None` if
    /// there is none, or if it is too early to check.
    ///
    /// # Cost
    /// O(e) and a fit of the model at a check, otherwise nothing.
    pub(crate) fn better(&mut self, inputs: &Inputs, remaining: u64, move_s: f64) -> Option<Better> {
        if self.moves > MOST_MOVES || self.measured == 0 {
            return None;
        }
        let speeds = self.speeds(self.parts.len());
        let measured_s: Vec<f64> =
            self.features.iter().map(|features| self.measured_s(features, &self.model)[0]).collect();
        let now_s = speeds.slowest(&measured_s);
        let patience = if now_s < SHORT_S { PATIENCE_IF_SHORT } else { PATIENCE };
        if self.measured < patience.saturating_mul(1 << self.questions.saturating_sub(1).min(16)) {
            return None;
        }
        self.measured = 0;
        self.questions += 1;
        self.model.refit();
        let factors = self.corrections();
        let mut better = self.with_cost(inputs, &self.epoch, |cost| {
            cost.correct(self.parts.iter().cloned().zip(factors));
            let parts = split(cost, &speeds);
            // The constant costs of calls are not in the cost. They are the same for every split.
            let gain_s = bottleneck(cost, &self.parts, &speeds) - bottleneck(cost, &parts, &speeds);
            Better { parts, slowest_s: [now_s, now_s - gain_s] }
        });
        let best_s = self.best.as_ref().map_or(f64::INFINITY, |&(_, best_s)| best_s);
        if now_s <= best_s {
            self.best = Some((self.parts.clone(), now_s));
        }
        if let Some((parts, best_s)) = &self.best
            && (self.moves == MOST_MOVES || *best_s < better.slowest_s[1])
        {
            better = Better { parts: parts.clone(), slowest_s: [now_s, *best_s] };
        }
        let gain_s = now_s - better.slowest_s[1];
        let pays = gain_s > LEAST_GAIN * now_s && gain_s * remaining as f64 > move_s;
        (pays && better.parts != self.parts).then_some(better)
    }

    /// Counts a move. Later checks are rarer, and the number of moves is limited.
    pub(crate) fn count_move(&mut self) {
        self.moves += 1;
    }

    /// Returns the seconds of an epoch on a part with these features at the fastest device's speed: measured, and
    /// predicted by `model` for the same operations.
    fn measured_s(&self, features: &BTreeMap<u32, Features>, model: &CostModel) -> [f64; 2] {
        self.measured_of(&self.epoch, features, model)
    }

    /// Does the same for some operations of an epoch.
    fn measured_of<'a>(
        &self,
        ops: impl IntoIterator<Item = &'a Operation>,
        features: &BTreeMap<u32, Features>,
        model: &CostModel,
    ) -> [f64; 2] {
        let each = ops.into_iter().filter_map(|op| {
            let features = &features[&op.work.width()];
            Some([self.model.measured(op, features)?, model.predict(op, features)])
        });
        each.fold([0.0; 2], |[measured, predicted], [m, p]| [measured + m, predicted + p])
    }

    /// Returns for each part the factor by which its vertices cost more than predicted.
    fn corrections(&self) -> Vec<f64> {
        let gathers = || self.epoch.iter().filter(|op| op.work.width() > 0);
        let of_part = |features: &BTreeMap<u32, Features>| {
            let predict = |op: &Operation| self.model.predict(op, &features[&op.work.width()]);
            let calls = |op: &Operation| {
                let predicted_s = predict(op);
                let measured = self.model.measurements(op, &features[&op.work.width()]);
                measured.map(|call_s| call_s / predicted_s).collect()
            };
            let [measured_s, predicted_s] = self.measured_of(gathers(), features, &self.model);
            let calls = gathers().collect::<BTreeSet<_>>().into_iter().map(calls).collect();
            (Gathers { measured_s, predicted_s, calls }, self.epoch.iter().map(predict).sum::<f64>())
        };
        let (gathers, all_s): (Vec<Gathers>, Vec<f64>) = self.features.iter().map(of_part).unzip();
        let factors = factors(&gathers).into_iter().map(|factor| factor.clamp(1.0 / MOST_CORRECTION, MOST_CORRECTION));
        let of_all = |((gathers, all_s), factor): ((&Gathers, f64), f64)| {
            if all_s > 0.0 { 1.0 + (factor - 1.0) * gathers.predicted_s / all_s } else { 1.0 }
        };
        gathers.iter().zip(all_s).zip(factors).map(of_all).collect()
    }

    /// Returns the seconds of each part's kernels in an epoch: measured, predicted by the profile alone, and predicted
    /// by the learned model. Operations without a measurement are left out of all three.
    #[cfg(feature = "command")]
    pub(crate) fn part_seconds(&self) -> Vec<[f64; 3]> {
        let prior = CostModel::new(self.model.profile().clone()).expect("the model's profile was checked");
        let mut learned = self.model.clone();
        learned.refit();
        let of_part = |features: &BTreeMap<u32, Features>| {
            let [[measured_s, prior_s], [_, learned_s]] =
                [&prior, &learned].map(|model| self.measured_s(features, model));
            [measured_s, prior_s, learned_s]
        };
        self.features.iter().map(of_part).collect()
    }

    /// Returns the seconds of each step, by operation. The tiles of a step are added up.
    fn seconds(&self, spans: &[Span]) -> BTreeMap<Operation, Vec<f64>> {
        let mut by_step: BTreeMap<&str, f64> = BTreeMap::new();
        for span in spans.iter().filter(|span| span.lane == Lane::Compute) {
            *by_step.entry(operation_name(&span.name)).or_default() +=
                span.end.saturating_duration_since(span.ready).as_secs_f64();
        }
        let mut by_op: BTreeMap<Operation, Vec<f64>> = BTreeMap::new();
        for (name, seconds) in by_step {
            // An operation that costs the same on every part does not influence the split.
            let op = self.steps.get(name).filter(|op| op.work != Work::Elementwise { bytes: 0 });
            if let Some(op) = op {
                by_op.entry(op.clone()).or_default().push(seconds);
            }
        }
        by_op
    }

    /// Compares the devices by the operations that follow no edges and were long enough on all of them.
    fn note_speeds(&mut self, seconds: &[BTreeMap<Operation, Vec<f64>>]) {
        // The prior is wrong by the same factor on every device. What was learned may be wrong by a different factor on
        // each.
        let prior = CostModel::new(self.model.profile().clone()).expect("the model's profile was checked");
        let rows_s = |op: &Operation, device: usize| {
            prior.predict(op, &self.features[device][&0]) - prior.predict(op, &Features::default())
        };
        let is_long = |op: &&Operation| (0..seconds.len()).all(|device| rows_s(op, device) >= LONG_CALL_S);
        let Some(first) = seconds.first() else { return };
        let ops: Vec<&Operation> = first.keys().filter(|op| op.work.width() == 0).filter(is_long).collect();
        let ratio = |device: usize| {
            let calls = ops.iter().filter_map(|&op| Some((op, seconds[device].get(op)?)));
            let [predicted_s, measured_s] = calls.fold([0.0, 0.0], |[predicted, measured], (op, calls)| {
                [predicted + calls.len() as f64 * rows_s(op, device), measured + calls.iter().sum::<f64>()]
            });
            predicted_s / measured_s
        };
        let ratios: Vec<f64> = (0..seconds.len()).map(ratio).collect();
        let fastest = ratios.iter().copied().fold(0.0, f64::max);
        if ratios.iter().all(|ratio| ratio.is_finite() && *ratio > 0.0) {
            for (ratio, recent) in ratios.into_iter().zip(&mut self.ratios) {
                recent.truncate(RECENT - 1);
                recent.push_front(ratio / fastest);
            }
        }
    }

    /// Returns each device's speed as a share of the fastest one's. All are 1 if the devices are about equal.
    fn relative_speeds(&self, devices: usize) -> Vec<f64> {
        // The upper quartile, since a disturbance only makes a device look slower.
        let undisturbed = |ratios: &VecDeque<f64>| {
            let mut sorted: Vec<f64> = ratios.iter().copied().collect();
            sorted.sort_by(|a, b| b.total_cmp(a));
            sorted.get(sorted.len().saturating_sub(1) / 4).copied()
        };
        let speeds: Vec<Option<f64>> = self.ratios.iter().map(undisturbed).collect();
        let fastest = speeds.iter().flatten().copied().fold(0.0, f64::max);
        let slowest = speeds.iter().flatten().copied().fold(f64::INFINITY, f64::min);
        let epochs = self.ratios.iter().map(VecDeque::len).min().unwrap_or(0);
        let alike = if epochs > 1 { ALIKE } else { ALIKE_AT_FIRST };
        if speeds.len() != devices || fastest < alike * slowest {
            return vec![1.0; devices];
        }
        speeds.into_iter().map(|speed| speed.map_or(1.0, |speed| speed / fastest)).collect()
    }

    fn speeds(&self, devices: usize) -> Speeds {
        Speeds::new(self.relative_speeds(devices)).expect("ratios of seconds above 0 are above 0")
    }

    fn sums<'a>(&self, inputs: &'a Inputs) -> FeatureSums<'a> {
        let graph = &inputs.graph;
        let sums = FeatureSums::new(graph.indptr(), graph.indices(), self.model.profile(), &self.widths);
        sums.expect("a graph's arrays are a CSR")
    }

    fn with_cost<T>(&self, inputs: &Inputs, ops: &[Operation], ask: impl FnOnce(&mut RangeCost<'_>) -> T) -> T {
        let sums = self.sums(inputs);
        ask(&mut self.model.range_cost(ops, &sums).expect("the sums were made for these widths"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use lapidary_cost_model::Profile;
    use lapidary_kernels::StorageType;
    use ndarray::Array2;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::bind::{bind, feature_kind, label_kind};
    use crate::dataset::generate::{RmatOptions, rmat};
    use crate::dataset::{Arrays, Dataset, FeatureNorm};
    use crate::graph::Permutation;
    use crate::model::Model;
    use crate::program::{Passes, Strips};
    use crate::train::{Adam, DecayLayers, EpochSpec, training_program};

    type Parts = Vec<Range<usize>>;

    /// A graph in degree order, and kernels whose time is no weighted sum of features: an edge costs more the later its
    /// row is, three times as much at the end.
    struct Machine {
        data: Dataset,
        inputs: Inputs,
        training: Program,
        speeds: Vec<f64>,
        /// Each measurement takes longer by up to this share.
        noise: f64,
        rng: ChaCha8Rng,
    }

    impl Machine {
        fn new(speeds: &[f64], noise: f64) -> Self {
            let n = 1 << 13;
            let options = RmatOptions { vertices: n, edge_factor: 8.0, ..RmatOptions::default() };
            let graph = rmat(&options).expect("it is possible").graph().clone();
            let graph = Permutation::by_degree(&graph).apply(&graph);
            let labels: Vec<i64> = (0..n as i64).map(|v| v % 8).collect();
            let train: Vec<i64> = (0..n as i64).collect();
            let arrays = Arrays::new(graph).features(Array2::ones((n, 32))).labels(&labels).train(&train);
            let data = Dataset::from_arrays(arrays).expect("the arrays go together");
            let model = Model::gcn(&[data.feature_width(), 16, data.class_count()]);
            let spec = EpochSpec {
                model: &model,
                features: feature_kind(&data, false).expect("it has features"),
                labels: label_kind(&data),
                vertices: data.graph().vertex_count() as u64,
                edges: data.graph().edge_count() as u64,
                optimizer: &Adam::new(0.01).into(),
                decay: DecayLayers::default(),
                weighted_classes: false,
                passes: Passes::ALL,
                recompute: Default::default(),
                strips: Strips::Exactly(1),
                parts: 1,
                dtype: StorageType::F32,
                keeps_gradients: false,
                batches: None,
            };
            let training = training_program(&spec).expect("the model goes with the data").program;
            let inputs = bind(&data, FeatureNorm::None, false, false).expect("it has all that is needed");
            Self { data, inputs, training, speeds: speeds.to_vec(), noise, rng: ChaCha8Rng::seed_from_u64(5) }
        }

        /// Returns the seconds of a step on a part at speed 1.
        fn truth(&self, op: &Operation, part: &Range<usize>) -> f64 {
            let (n, indptr) = (self.data.graph().vertex_count() as f64, self.data.graph().indptr());
            let per_row = |v: usize| match op.work.width() {
                0 => 1e-6,
                width => f64::from(width) * 2e-8 * (indptr[v + 1] - indptr[v]) as f64 * (1.0 + 2.0 * v as f64 / n),
            };
            part.clone().map(per_row).sum()
        }

        /// Returns the seconds of the slowest part's epoch, undisturbed.
        fn slowest_s(&self, learner: &Learner, parts: &[Range<usize>]) -> f64 {
            let of = |part| ops(learner).map(|op| self.truth(op, part)).sum::<f64>();
            parts.iter().zip(&self.speeds).map(|(part, speed)| of(part) / speed).fold(0.0, f64::max)
        }

        /// Returns an epoch as a device would report it.
        fn epoch(&mut self, learner: &Learner) -> Vec<Vec<Span>> {
            let start = Instant::now();
            let mut spans = Vec::new();
            for (part, speed) in learner.parts.iter().zip(self.speeds.clone()) {
                let of_part = learner.steps.iter().map(|(name, op)| {
                    let seconds = self.truth(op, part) / speed * (1.0 + self.noise * self.rng.random::<f64>().powi(3));
                    let end = start + Duration::from_secs_f64(seconds);
                    Span { name: name.clone(), lane: Lane::Compute, bytes: 0, start, ready: start, end }
                });
                spans.push(of_part.collect());
            }
            spans
        }

        /// Runs `epochs` epochs, starting with equal vertices, and moves when the learner says so. Returns all splits
        /// in order.
        fn learn(&mut self, epochs: u64) -> (Learner, Vec<Parts>) {
            let n = self.data.graph().vertex_count();
            let count = self.speeds.len();
            let mut parts: Vec<Range<usize>> = (0..count).map(|p| p * n / count..(p + 1) * n / count).collect();
            // About as slow as these kernels, but wrong by a factor for each of them.
            let p100 = Profile::named("p100").expect("it is built in");
            let profile = Profile { memory_bytes_per_s: 1e8, gather_bytes_per_s: 1e8, flops_per_s: 1e9, ..p100 };
            let prior = CostModel::new(profile).expect("its rates are good");
            let mut learner = Learner::new(prior, &self.inputs, &[("train", &self.training)], &[0]);
            learner.settle(&self.inputs, parts.clone());
            let mut splits = vec![parts.clone()];
            for epoch in 1..=epochs {
                if let Some(better) = learner.better(&self.inputs, 1000, 1e-3) {
                    learner.count_move();
                    parts = better.parts;
                    splits.push(parts.clone());
                    learner.settle(&self.inputs, parts.clone());
                }
                if learner.wants(epoch) {
                    let spans = self.epoch(&learner);
                    learner.observe(&spans);
                }
            }
            (learner, splits)
        }

        /// Returns the least seconds that the slowest part can take, by bisection.
        fn least_s(&self, learner: &Learner) -> f64 {
            let n = self.data.graph().vertex_count();
            let rows: Vec<f64> = (0..n).map(|v| self.slowest_of_one(learner, v)).collect();
            let fits = |limit: f64| {
                let mut left = rows.iter().peekable();
                for speed in &self.speeds {
                    let mut sum = 0.0;
                    while let Some(row) = left.next_if(|row| (sum + **row) / speed <= limit) {
                        sum += row;
                    }
                }
                left.next().is_none()
            };
            let (mut low, mut high) = (0.0, rows.iter().sum::<f64>() / self.speeds.iter().copied().fold(0.0, f64::max));
            for _ in 0..60 {
                let middle = (low + high) / 2.0;
                if fits(middle) { high = middle } else { low = middle }
            }
            high
        }

        fn slowest_of_one(&self, learner: &Learner, v: usize) -> f64 {
            ops(learner).map(|op| self.truth(op, &(v..v + 1))).sum()
        }
    }

    /// Returns the operations that take time in an epoch.
    fn ops(learner: &Learner) -> impl Iterator<Item = &Operation> {
        learner.epoch.iter().filter(|op| op.work != Work::Elementwise { bytes: 0 })
    }

    #[test]
    fn a_good_split_is_there_within_five_epochs() {
        for (devices, noise) in [(2, 0.0), (4, 0.0), (4, 0.3), (8, 0.0)] {
            let mut machine = Machine::new(&vec![1.0; devices], noise);
            let (learner, splits) = machine.learn(5);
            let [first, last] = [&splits[0], &splits[splits.len() - 1]].map(|p| machine.slowest_s(&learner, p));
            let least = machine.least_s(&learner);
            assert!(first > 1.3 * least, "there is nothing to learn: {first} s, {least} s at best");
            assert!(
                last <= 1.05 * least,
                "{devices} devices, noise {noise}: {last} s after {splits:?}, {least} s at best"
            );
        }
    }

    #[test]
    fn a_slow_device_gets_less() {
        for (slow, noise) in [(0.5, 0.0), (0.25, 0.0), (0.5, 0.3)] {
            let mut machine = Machine::new(&[1.0, slow, 1.0], noise);
            let (learner, splits) = machine.learn(5);
            let last = &splits[splits.len() - 1];
            let cost = |p: usize| ops(&learner).map(|op| machine.truth(op, &last[p])).sum::<f64>();
            let share = cost(1) / cost(0);
            assert!((share / slow - 1.0).abs() < 0.1, "at {slow} of the speed it has {share} of the work: {last:?}");
        }
    }

    #[test]
    fn a_move_that_measures_worse_is_taken_back() {
        let mut machine = Machine::new(&[1.0, 1.0, 1.0], 0.0);
        let (mut learner, splits) = machine.learn(30);
        let good = splits[splits.len() - 1].clone();
        let n = machine.data.graph().vertex_count();
        // A very bad split, after all moves were used up.
        learner.settle(&machine.inputs, vec![0..n - 2, n - 2..n - 1, n - 1..n]);
        learner.moves = MOST_MOVES;
        let mut back = None;
        for _ in 0..1000 {
            let spans = machine.epoch(&learner);
            learner.observe(&spans);
            back = back.or(learner.better(&machine.inputs, 1000, 1e-3));
        }
        assert_eq!(back.map(|better| better.parts), Some(good));
    }

    #[test]
    fn under_heavy_noise_it_ends_near_the_best() {
        let mut machine = Machine::new(&[1.0; 4], 2.0);
        let (learner, splits) = machine.learn(60);
        let last = machine.slowest_s(&learner, &splits[splits.len() - 1]);
        let least = machine.least_s(&learner);
        assert!(last <= 1.1 * least, "{last} s after {splits:?}, {least} s at best");
        assert!(splits.len() <= 2 + MOST_MOVES as usize);
    }
}
