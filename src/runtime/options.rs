//! Run options: where and how programs run. Shared by trainers, predictors and dry runs.

use std::fmt;
use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;

use bytesize::ByteSize;
use lapidary_cost_model::{CostModel, RangeCost};
use lapidary_kernels::{Matmul, StorageType};
use lapidary_planner::memory::Policy;
use lapidary_planner::partition::{Speeds, Strategy, split};
use serde::{Deserialize, Serialize};

use super::Devices;
use super::learn::Learner;
use crate::error::{Error, Result};
use crate::lower::{BackwardMode, Inputs};
use crate::plan::{ExchangePath, Layout, Method};
use crate::program::{Passes, Program, Recompute, Strips};
use crate::ranks::Ranks;
use crate::{plain_file, profile, versions};

/// How vertices are split over devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Partition {
    /// Consecutive ranges with equal shares of vertices, edges or predicted time.
    Strategy(Strategy),
    /// Given ranges.
    Ranges(Vec<Range<usize>>),
    /// Given ranges at the start. A trainer then moves them as with [`Strategy::Learned`].
    LearnedFrom(Vec<Range<usize>>),
    /// The splits of an earlier run: the first epoch and the ranges of each, in ascending order of epochs. Predictors
    /// and dry runs use the last one.
    Replay(Vec<(u64, Vec<Range<usize>>)>),
}

impl Default for Partition {
    fn default() -> Self {
        Self::Strategy(Strategy::Learned)
    }
}

/// The contents of a file with ranges: `run.json` of a checkpoint, or a list of pairs.
#[derive(Deserialize)]
#[serde(untagged)]
enum Ranges {
    Run {
        parts: Vec<[usize; 2]>,
        #[serde(default)]
        splits: Vec<SplitRecord>,
    },
    List(Vec<[usize; 2]>),
}

/// The vertex ranges of the devices, and the first epoch with them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitRecord {
    /// The first epoch that ran with these ranges, from 1.
    pub epoch: u64,
    /// One range `[start, end)` per device.
    pub parts: Vec<[usize; 2]>,
}

impl Partition {
    /// Returns whether it has ranges of vertices that were given.
    pub fn has_ranges(&self) -> bool {
        !matches!(self, Self::Strategy(_))
    }

    /// Parses `learned`, `edges`, `vertices` or the name of a file. The file is the `run.json` of a checkpoint, the
    /// `parts.json` of a relabelled dataset, or a JSON list of pairs such as `[[0, 10], [10, 34]]`.
    ///
    /// # Errors
    /// [`Error::Value`]; [`Error::Io`] if the file cannot be read; [`Error::NewerFile`]; [`Error::PartitionFile`].
    pub fn parse(text: &str) -> Result<Self> {
        if let Ok(strategy) = text.parse() {
            return Ok(Self::Strategy(strategy));
        }
        let path = Path::new(text);
        let wrong = |why| Error::PartitionFile { path: path.into(), why };
        let json = plain_file::read_text(path, plain_file::TEXT_BYTES);
        let json = json.map_err(|source| match source.kind() {
            ErrorKind::NotFound => {
                let expected = "write learned, edges, vertices or a file that exists".into();
                Error::Value { option: "partition", value: text.into(), expected }
            }
            _ => Error::Io { action: "read", path: path.into(), source },
        })?;
        versions::check_ranges(path, &json)?;
        let ranges: Ranges = serde_json::from_str(&json)
            .map_err(|_| wrong("it is no run.json, no parts.json and no list of pairs [[0, 10], [10, 34]]"))?;
        let (parts, splits) = match ranges {
            Ranges::Run { parts, splits } => (parts, splits),
            Ranges::List(parts) => (parts, Vec::new()),
        };
        if splits.len() < 2 {
            return Ok(Self::Ranges(ranges_of(&parts)));
        }
        if !splits.is_sorted_by(|a, b| a.epoch < b.epoch) {
            return Err(wrong("its splits do not stand in the order of their epochs, or one comes twice"));
        }
        Ok(Self::Replay(splits.iter().map(|split| (split.epoch, ranges_of(&split.parts))).collect()))
    }

    /// Returns whether a trainer adapts the split to its measurements.
    pub(crate) fn learns(&self) -> bool {
        matches!(self, Self::Strategy(Strategy::Learned) | Self::LearnedFrom(_))
    }

    /// Returns the recorded ranges of an epoch, if this is a replay.
    pub(crate) fn replayed(&self, epoch: u64) -> Option<&[Range<usize>]> {
        let Self::Replay(splits) = self else { return None };
        let current = splits.iter().rev().find(|(first, _)| *first <= epoch).or(splits.first());
        current.map(|(_, ranges)| ranges.as_slice())
    }
}

impl FromStr for Partition {
    type Err = Error;

    /// Does the same as [`Partition::parse`].
    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl fmt::Display for Partition {
    /// Writes the name of the strategy, or the kind of ranges.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Strategy(strategy) => strategy.fmt(f),
            Self::Ranges(ranges) => write!(f, "{} given ranges", ranges.len()),
            Self::LearnedFrom(_) => f.write_str("learned, from given ranges"),
            Self::Replay(splits) => write!(f, "{} recorded splits", splits.len()),
        }
    }
}

/// Converts pairs `[start, end]` to ranges.
pub(crate) fn ranges_of(pairs: &[[usize; 2]]) -> Vec<Range<usize>> {
    pairs.iter().map(|&[start, end]| start..end).collect()
}

/// Where and how programs run: the options that a trainer, a predictor and a dry run share.
///
/// ```
/// use lapidary::forecast::{DryRun, Subject};
/// use lapidary::{ByteSize, Dataset, Devices, Model, RunOptions, Trainer};
///
/// let data = Dataset::builtin("karate")?;
/// let model = Model::gcn(&[data.feature_width(), 16, data.class_count()]);
/// let options = RunOptions::new().devices(Devices::sim(2)).device_memory(ByteSize::mib(1));
/// let forecast = DryRun::new(&model, Subject::Data(&data)).options(options.clone()).run()?;
/// let plan = forecast.policies[0].outcome.as_ref().expect("it fits into 1 MiB");
/// let trainer = Trainer::builder(&model, &data).options(options).build()?;
/// assert_eq!(plan.devices[0].peak_bytes, trainer.planned_peak_device_bytes()[0]);
/// # Ok::<(), lapidary::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    pub(crate) devices: Devices,
    pub(crate) device_memory: Option<ByteSize>,
    pub(crate) memory: Policy,
    pub(crate) partition: Partition,
    pub(crate) passes: Passes,
    pub(crate) recompute: Recompute,
    pub(crate) strips: Strips,
    pub(crate) backward: BackwardMode,
    pub(crate) ranks: Ranks,
}

/// Defines the setters of [`RunOptions`] in an `impl` of a type that contains one:
/// `run_option_setters!(self => self.options)`.
macro_rules! run_option_setters {
    ($this:ident => $options:expr) => {
        /// Sets the devices that compute; the CPU by default.
        pub fn devices(mut $this, devices: $crate::runtime::Devices) -> Self {
            $options.devices = devices;
            $this
        }

        /// Sets how much memory each device may use. The default is all memory of the host, or the free memory of the
        /// GPU less a reserve.
        pub fn device_memory(mut $this, memory: bytesize::ByteSize) -> Self {
            $options.device_memory = Some(memory);
            $this
        }

        /// Sets the memory policy, which decides which tensors stay on a device. The default is
        /// [`MemoryPolicy::Optimal`](crate::MemoryPolicy::Optimal).
        pub fn memory(mut $this, policy: $crate::runtime::MemoryPolicy) -> Self {
            $options.memory = policy;
            $this
        }

        /// Sets how vertices are split over devices. The default is a learned split: it follows measured times, and a
        /// trainer moves vertices between epochs when that pays.
        pub fn partition(mut $this, partition: $crate::runtime::Partition) -> Self {
            $options.partition = partition;
            $this
        }

        /// Sets which passes rewrite the program; all by default.
        pub fn passes(mut $this, passes: $crate::program::Passes) -> Self {
            $options.passes = passes;
            $this
        }

        /// Sets whether the backward pass of training makes tensors again, instead of keeping or moving them. The results
        /// have the same bits. The default is [`Recompute::Auto`](crate::Recompute::Auto): what is predicted to take least
        /// time. It does not apply to mini-batches.
        pub fn recompute(mut $this, recompute: $crate::program::Recompute) -> Self {
            $options.recompute = recompute;
            $this
        }

        /// Sets into how many strips of columns wide matrices are cut, so that gathers over them need less memory at a
        /// time. The results have the same bits. The default is [`Strips::Auto`](crate::Strips::Auto): the number that
        /// costs least. It does not apply to mini-batches.
        pub fn strips(mut $this, strips: $crate::program::Strips) -> Self {
            $options.strips = strips;
            $this
        }

        /// Sets which rows move between devices in the backward pass over a directed graph. The default is
        /// [`BackwardMode::Auto`](crate::BackwardMode::Auto): what moves fewer rows.
        pub fn backward(mut $this, mode: $crate::lower::BackwardMode) -> Self {
            $options.backward = mode;
            $this
        }

        /// Sets the ranks that compute together, each with these devices; only this process by default. Every rank
        /// makes the same calls, with the same data and settings.
        pub fn ranks(mut $this, ranks: $crate::ranks::Ranks) -> Self {
            $options.ranks = ranks;
            $this
        }
    };
}
pub(crate) use run_option_setters;

impl RunOptions {
    /// Returns the defaults: the CPU, all of its memory, the optimal policy, a learned split, all passes.
    pub fn new() -> Self {
        Self::default()
    }

    run_option_setters!(self => self);

    /// Returns the layouts of whole parts for these paths.
    pub(crate) fn whole_layouts(&self, paths: Vec<ExchangePath>) -> Vec<Layout> {
        paths.into_iter().map(|path| Layout { path, backward: self.backward, ..Layout::from(1) }).collect()
    }

    pub(crate) fn method(&self) -> Method {
        Method { policy: self.memory, ..Method::default() }.without_bounds()
    }

    /// Returns the part of each device of every rank, predicted by the learned `model` if there is one. Rank 0 decides.
    ///
    /// # Errors
    /// [`Error::Parts`] unless there is one range per device, the ranges are consecutive, and they cover the graph. For
    /// learned parts without a model, the errors of [`profile::load`], which may measure this machine.
    /// # Cost
    /// O(e) for learned parts, else O(parts log n).
    pub(crate) fn parts(
        &self,
        inputs: &Inputs,
        program: &Program,
        model: Option<&CostModel>,
        runs: Runs,
    ) -> Result<Vec<Range<usize>>> {
        self.ranks.first(|| {
            let (devices, profile) = (self.part_count(), self.devices.profile());
            split_parts(&self.partition, inputs, program, devices, (&profile, model), runs)
        })
    }

    /// Returns how matrices are multiplied whose rows are stored as `dtype`, if the devices can do it in more than one way.
    pub(crate) fn matmul(&self, dtype: StorageType) -> Option<Matmul> {
        self.devices.chosen_matmul(dtype)
    }

    /// Returns the number of parts: one per device of every rank.
    pub(crate) fn part_count(&self) -> usize {
        self.ranks.count() * self.devices.count()
    }
}

/// How often a program runs on the graph, which decides which costs a split considers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runs {
    /// Many epochs: the cost of the setup does not count.
    Many,
    /// One pass: the cost of the setup counts as well, and so does the first touch of memory.
    Once,
}

/// Returns the part of each of `devices` devices: see [`RunOptions::parts`]. Without a model, `profile` is the name of
/// the profile that predicts times.
pub(crate) fn split_parts(
    partition: &Partition,
    inputs: &Inputs,
    program: &Program,
    devices: usize,
    (profile, model): (&str, Option<&CostModel>),
    runs: Runs,
) -> Result<Vec<Range<usize>>> {
    let graph = &inputs.graph;
    let vertices = graph.vertex_count();
    let none = || Error::Parts { why: "there is no device".into() };
    let count = NonZeroUsize::new(devices).ok_or_else(none)?;
    let speeds = Speeds::equal(count);
    match partition {
        Partition::Ranges(ranges) | Partition::LearnedFrom(ranges) => check_ranges(ranges, devices, vertices),
        Partition::Replay(splits) => {
            let checked = splits.iter().map(|(_, ranges)| check_ranges(ranges, devices, vertices));
            let mut checked = checked.collect::<Result<Vec<_>>>()?;
            checked.pop().ok_or_else(|| Error::Parts { why: "there is no split to replay".into() })
        }
        _ if devices == 1 => Ok(Vec::from([Range { start: 0, end: vertices }])),
        Partition::Strategy(Strategy::Vertices) => Ok(split(&RangeCost::vertices(vertices), &speeds)),
        Partition::Strategy(Strategy::Edges) => Ok(split(&RangeCost::edges(graph.indptr()), &speeds)),
        Partition::Strategy(Strategy::Learned) => {
            let learner = learner(inputs, program, profile, model)?;
            let learner = if runs == Runs::Once { learner.of_one_pass() } else { learner };
            Ok(learner.split(inputs, devices))
        }
    }
}

fn learner(inputs: &Inputs, program: &Program, profile: &str, model: Option<&CostModel>) -> Result<Learner> {
    let model = model.map_or_else(|| prior(profile), |model| Ok(model.clone()))?;
    Ok(Learner::new(model, inputs, &[("program", program)], &[0]))
}

/// Returns a cost model that predicts from a profile alone, without samples.
///
/// # Errors
/// Those of [`profile::load`].
pub(crate) fn prior(profile: &str) -> Result<CostModel> {
    Ok(CostModel::new(profile::load(profile)?).expect("a measured profile is a good one"))
}

/// Returns the ranges, after checking that there is one per device and that they cover all vertices in order.
///
/// # Errors
/// [`Error::Parts`].
pub(crate) fn check_ranges(ranges: &[Range<usize>], count: usize, vertices: usize) -> Result<Vec<Range<usize>>> {
    let wrong = |why: String| Err(Error::Parts { why });
    if ranges.len() != count {
        return wrong(format!("there are {} parts for {count} devices", ranges.len()));
    }
    let mut end = 0;
    for range in ranges {
        if range.start != end || range.end < range.start {
            return wrong(format!("a part is {} to {}, where one from {end} on was expected", range.start, range.end));
        }
        end = range.end;
    }
    if end != vertices {
        return wrong(format!("the parts end at vertex {end}, but the graph has {vertices}"));
    }
    Ok(ranges.to_vec())
}
