//! Learning what parts cost, and splitting by it.
//!
//! Kernels that were timed on parts of the graph are samples of the cost model, and the model says which split has the
//! fastest slowest part. Copies and the packing of rows for others are no samples: they do not depend on the rows alone.
//! How fast each device is, is read off the operations that follow no edges: their time depends on the number of rows and
//! on nothing else, so that what the model has yet to learn of a graph's structure is not taken for a device's speed.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use lapidary_cost_model::{CostModel, FeatureSums, Features, Op, Work};
use lapidary_kernels::Lane;
use lapidary_planner::partition::{Speeds, bottleneck, split};

use super::trace::Span;
use crate::lower::{Inputs, Sizes, lower, operation_name};
use crate::plan::works;
use crate::program::Program;

/// How many epochs are measured before it is first asked whether another split pays. Each time it was asked, twice as many.
const FIRST_PATIENCE: u32 = 2;

/// A run moves no more often than this.
const MOST_MOVES: u32 = 4;

/// A predicted gain below this share of an epoch is noise.
const LEAST_GAIN: f64 = 0.02;

/// Devices whose speeds differ by less than this factor are taken to be alike.
const ALIKE: f64 = 1.25;

/// How many of the latest measurements of a device's speed count.
const RECENT: usize = 9;

/// A call whose rows are predicted to take less tells of the cost of calling, not of a device's speed.
const LONG_CALL_S: f64 = 5e-5;

/// Once a run moves no more, one epoch of so many is measured.
const SELDOM: u64 = 8;

/// The cost of programs on one graph, learned while they run.
#[derive(Clone, Debug)]
pub(crate) struct Learner {
    model: CostModel,
    /// What each step is to the cost model, by its name: the same on every part.
    steps: BTreeMap<String, Op>,
    /// The operations of an epoch.
    epoch: Vec<Op>,
    widths: Vec<u32>,
    parts: Vec<Range<usize>>,
    /// By part and width of the rows that are gathered.
    features: Vec<BTreeMap<u32, Features>>,
    /// By device, predicted over measured seconds of operations that follow no edges.
    ratios: Vec<VecDeque<f64>>,
    /// Epochs that ran since the split or the question whether to move; the first of a split does not count.
    measured: u32,
    is_warm: bool,
    patience: u32,
    moves: u32,
}

/// A split that is predicted to be better, and by how much.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Better {
    pub parts: Vec<Range<usize>>,
    /// Predicted seconds of the slowest part, as it is and with these parts.
    pub slowest_s: [f64; 2],
}

impl Learner {
    /// Knows what `model` knows. `main` are the phases of an epoch among the programs.
    pub(crate) fn new(model: CostModel, inputs: &Inputs, programs: &[(&str, &Program)], main: &[usize]) -> Self {
        let whole = lower(programs, &Sizes::of(inputs).into(), 0);
        let mut named = BTreeMap::new();
        for phase in &whole.phases {
            named.extend(phase.steps.iter().map(|step| step.name.clone()).zip(works(&phase.steps)));
        }
        let mut widths: Vec<u32> = named.values().map(|op| op.work.width()).filter(|&width| width > 0).collect();
        widths.sort_unstable();
        widths.dedup();
        Self {
            model,
            steps: named,
            epoch: works(&whole.sequence(main)),
            widths,
            parts: Vec::new(),
            features: Vec::new(),
            ratios: Vec::new(),
            measured: 0,
            is_warm: false,
            patience: FIRST_PATIENCE,
            moves: 0,
        }
    }

    /// What was learned so far.
    pub(crate) fn model(&self) -> &CostModel {
        &self.model
    }

    /// Goes on from what another run has learned.
    pub(crate) fn set_model(&mut self, model: CostModel, inputs: &Inputs) {
        self.model = model;
        let parts = std::mem::take(&mut self.parts);
        self.settle(inputs, parts);
    }

    /// The best split by what is known, over so many devices.
    ///
    /// # Cost
    /// O(e) for the graph's features, then that of [`split`].
    pub(crate) fn split(&self, inputs: &Inputs, devices: usize) -> Vec<Range<usize>> {
        self.with_cost(inputs, |cost| split(cost, &self.speeds(devices)))
    }

    /// From now on, measurements are of these parts.
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

    /// Whether the kernels of that epoch are to be timed.
    pub(crate) fn wants(&self, epoch: u64) -> bool {
        self.moves < MOST_MOVES || epoch.is_multiple_of(SELDOM)
    }

    /// Takes what an epoch's kernels took, by part. The first epoch of a split touches its memory for the first time, and
    /// is left out.
    pub(crate) fn observe(&mut self, spans: &[Vec<Span>]) {
        if !std::mem::replace(&mut self.is_warm, true) {
            return;
        }
        let seconds: Vec<BTreeMap<Op, Vec<f64>>> = spans.iter().map(|spans| self.seconds(spans)).collect();
        for (device, seconds) in seconds.iter().enumerate() {
            self.note_speed(device, seconds);
        }
        let speeds = self.relative_speeds(self.parts.len());
        for ((seconds, features), speed) in seconds.iter().zip(&self.features).zip(speeds) {
            for (op, calls) in seconds {
                for call_s in calls {
                    // A clock too coarse for a short call says 0: that is no measurement.
                    drop(self.model.observe(op, &features[&op.work.width()], call_s * speed));
                }
            }
        }
        self.measured += 1;
    }

    /// A split that pays within `remaining` epochs, when moving takes `move_s` seconds and it is time to ask.
    ///
    /// # Cost
    /// When it is time, O(e) and a fit of the model; else nothing.
    pub(crate) fn better(&mut self, inputs: &Inputs, remaining: u64, move_s: f64) -> Option<Better> {
        if self.measured < self.patience || self.moves == MOST_MOVES {
            return None;
        }
        (self.measured, self.patience) = (0, self.patience.saturating_mul(2));
        self.model.refit();
        let speeds = self.speeds(self.parts.len());
        let better = self.with_cost(inputs, |cost| {
            let parts = split(cost, &speeds);
            let slowest_s = [bottleneck(cost, &self.parts, &speeds), bottleneck(cost, &parts, &speeds)];
            Better { parts, slowest_s }
        });
        let [now_s, then_s] = better.slowest_s;
        let pays = now_s - then_s > LEAST_GAIN * now_s && (now_s - then_s) * remaining as f64 > move_s;
        (pays && better.parts != self.parts).then_some(better)
    }

    /// A move was tried: the next question comes later, and a run does not move forever.
    pub(crate) fn count_move(&mut self) {
        self.moves += 1;
    }

    /// By operation the seconds of each of its steps: the tiles of one count together.
    fn seconds(&self, spans: &[Span]) -> BTreeMap<Op, Vec<f64>> {
        let mut by_step: BTreeMap<&str, f64> = BTreeMap::new();
        for span in spans.iter().filter(|span| span.lane == Lane::Compute) {
            *by_step.entry(operation_name(&span.name)).or_default() +=
                span.end.saturating_duration_since(span.start).as_secs_f64();
        }
        let mut by_op: BTreeMap<Op, Vec<f64>> = BTreeMap::new();
        for (name, seconds) in by_step {
            // What is the same on every part, whatever its rows, moves no split.
            let op = self.steps.get(name).filter(|op| op.work != Work::Elementwise { bytes: 0 });
            if let Some(op) = op {
                by_op.entry(op.clone()).or_default().push(seconds);
            }
        }
        by_op
    }

    fn note_speed(&mut self, device: usize, seconds: &BTreeMap<Op, Vec<f64>>) {
        // The prior is wrong by the same factor on every device: what was learned might be wrong by several.
        let prior = CostModel::new(self.model.profile().clone()).expect("the model's profile was checked");
        let [mut predicted_s, mut measured_s] = [0.0, 0.0];
        for (op, calls) in seconds.iter().filter(|(op, _)| op.work.width() == 0) {
            let call_s = prior.predict(op, &self.features[device][&0]);
            if call_s - prior.predict(op, &Features::default()) >= LONG_CALL_S {
                predicted_s += calls.len() as f64 * call_s;
                measured_s += calls.iter().sum::<f64>();
            }
        }
        if predicted_s > 0.0 && measured_s > 0.0 {
            let ratios = &mut self.ratios[device];
            ratios.truncate(RECENT - 1);
            ratios.push_front(predicted_s / measured_s);
        }
    }

    /// Each device's speed as a share of the fastest one's; all 1 if they are alike.
    fn relative_speeds(&self, devices: usize) -> Vec<f64> {
        let median = |ratios: &VecDeque<f64>| {
            let mut sorted: Vec<f64> = ratios.iter().copied().collect();
            sorted.sort_by(f64::total_cmp);
            sorted.get(sorted.len() / 2).copied()
        };
        let speeds: Vec<Option<f64>> = self.ratios.iter().map(median).collect();
        let fastest = speeds.iter().flatten().copied().fold(0.0, f64::max);
        let slowest = speeds.iter().flatten().copied().fold(f64::INFINITY, f64::min);
        if speeds.len() != devices || fastest < ALIKE * slowest {
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

    fn with_cost<T>(&self, inputs: &Inputs, ask: impl FnOnce(&lapidary_cost_model::RangeCost<'_>) -> T) -> T {
        let sums = self.sums(inputs);
        ask(&self.model.range_cost(&self.epoch, &sums).expect("the sums were made for these widths"))
    }
}
