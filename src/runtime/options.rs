//! Where and how programs run: what a trainer and a predictor have in common.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::Path;

use bytesize::ByteSize;
use lapidary_cost_model::{CostModel, FeatureSums, RangeCost};
use lapidary_planner::memory::Policy;
use lapidary_planner::partition::{Speeds, Strategy, split};
use serde::Deserialize;

use super::Devices;
use crate::error::{Error, Result};
use crate::lower::{Inputs, Sizes, lower};
use crate::plan::{Method, works};
use crate::profile;
use crate::program::{Passes, Program};

/// How vertices are split over devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Partition {
    /// Consecutive ranges with equal shares of something.
    Strategy(Strategy),
    /// These ranges.
    Ranges(Vec<Range<usize>>),
}

impl Default for Partition {
    fn default() -> Self {
        Self::Strategy(Strategy::Learned)
    }
}

/// A file that ranges are read from: `run.json` of a checkpoint, or a list of pairs.
#[derive(Deserialize)]
#[serde(untagged)]
enum Ranges {
    Run { parts: Vec<[usize; 2]> },
    List(Vec<[usize; 2]>),
}

impl Partition {
    /// From `learned`, `edges`, `vertices` or a file: the `run.json` of a checkpoint, or JSON of pairs `[[0, 10], [10, 34]]`.
    ///
    /// # Errors
    /// [`Error::Value`]; [`Error::Io`] if the file cannot be read.
    pub fn parse(text: &str) -> Result<Self> {
        if let Ok(strategy) = text.parse() {
            return Ok(Self::Strategy(strategy));
        }
        let wrong =
            |expected: &str| Error::Value { option: "--partition", value: text.into(), expected: expected.into() };
        let path = Path::new(text);
        if !path.exists() {
            return Err(wrong("write learned, edges, vertices or the name of a file"));
        }
        let json = std::fs::read_to_string(path);
        let json = json.map_err(|source| Error::Io { action: "read", path: path.into(), source })?;
        let ranges: Ranges = serde_json::from_str(&json)
            .map_err(|_| wrong("the file is no run.json and no list of pairs [[0, 10], [10, 34]]"))?;
        let (Ranges::Run { parts } | Ranges::List(parts)) = ranges;
        Ok(Self::Ranges(parts.into_iter().map(|[start, end]| start..end).collect()))
    }
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct RunOptions {
    pub devices: Devices,
    pub device_memory: Option<ByteSize>,
    pub memory: Policy,
    pub partition: Partition,
    pub passes: Passes,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            devices: Devices::default(),
            device_memory: None,
            memory: Policy::Optimal,
            partition: Partition::default(),
            passes: Passes::ALL,
        }
    }
}

impl RunOptions {
    pub(crate) fn method(&self) -> Method {
        Method { policy: self.memory, ..Method::default() }
    }

    /// The part of each device.
    ///
    /// # Errors
    /// [`Error::Parts`] for ranges that are not one a device, consecutive and whole; [`Error::Io`] and the like from
    /// measuring this machine, for learned parts.
    /// # Cost
    /// O(e) for learned parts, else O(parts log n).
    pub(crate) fn parts(&self, inputs: &Inputs, program: &Program) -> Result<Vec<Range<usize>>> {
        split_parts(&self.partition, inputs, program, self.devices.count())
    }
}

/// The part of each of `devices`: see [`RunOptions::parts`].
pub(crate) fn split_parts(
    partition: &Partition,
    inputs: &Inputs,
    program: &Program,
    devices: usize,
) -> Result<Vec<Range<usize>>> {
    let vertices = inputs.graph.vertex_count();
    let count = NonZeroUsize::new(devices).expect("there is a device");
    match partition {
        Partition::Ranges(ranges) => check_ranges(ranges, count.get(), vertices),
        _ if count.get() == 1 => Ok(Vec::from([Range { start: 0, end: vertices }])),
        Partition::Strategy(strategy) => split_by(*strategy, inputs, program, count),
    }
}

fn split_by(strategy: Strategy, inputs: &Inputs, program: &Program, count: NonZeroUsize) -> Result<Vec<Range<usize>>> {
    let graph = &inputs.graph;
    let speeds = Speeds::equal(count);
    match strategy {
        Strategy::Vertices => Ok(split(&RangeCost::vertices(graph.vertex_count()), &speeds)),
        Strategy::Edges => Ok(split(&RangeCost::edges(graph.indptr()), &speeds)),
        Strategy::Learned => {
            let model = CostModel::new(profile::load("cpu")?).expect("a measured profile is a good one");
            let whole = lower(&[("program", program)], &Sizes::of(inputs), 0);
            let works = works(&whole.sequence(&[0]));
            let mut widths: Vec<u32> = works.iter().map(|op| op.work.width()).filter(|&width| width > 0).collect();
            widths.sort_unstable();
            widths.dedup();
            let sums = FeatureSums::new(graph.indptr(), graph.indices(), model.profile(), &widths);
            let sums = sums.expect("a graph's arrays are a CSR");
            let cost = model.range_cost(&works, &sums).expect("the sums were made for these widths");
            Ok(split(&cost, &speeds))
        }
    }
}

fn check_ranges(ranges: &[Range<usize>], count: usize, vertices: usize) -> Result<Vec<Range<usize>>> {
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
