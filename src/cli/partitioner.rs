//! Ways to choose the parts of a dataset, as `data partition --by` and `plan --compare` name them.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};

use lapidary_cost_model::RangeCost;
use lapidary_planner::partition::{Speeds, Strategy, split};

use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::partition::metis::{self, Objective};
use crate::partition::{Assignment, VertexWeight};

/// The names of the ways, for messages.
const NAMES: &str = "vertices, edges, random, metis, metis-vol or the name of a file";

/// A way to choose the parts.
pub(super) enum Partitioner {
    /// Consecutive ranges with equal shares of vertices or edges.
    Ranges(Strategy),
    /// At random, with equal numbers of vertices.
    Random,
    Metis(Objective),
    /// The part of each vertex.
    File(PathBuf),
}

impl Partitioner {
    /// Parses the value of `option`. A file has to exist.
    pub(super) fn parse(option: &'static str, text: &str) -> Result<Self> {
        let wrong = |expected: String| Error::Value { option, value: text.into(), expected };
        Ok(match text {
            "vertices" => Self::Ranges(Strategy::Vertices),
            "edges" => Self::Ranges(Strategy::Edges),
            "learned" => {
                let why = "learned ranges depend on the model, so `train --partition learned` makes them";
                return Err(wrong(format!("{why}; write {NAMES}")));
            }
            "hypergraph" => {
                let why = "there is no hypergraph partitioner in this build; write the parts of one to a file";
                return Err(wrong(format!("{why}, and give its name: {NAMES}")));
            }
            "random" => Self::Random,
            "metis" => Self::Metis(Objective::Cut),
            "metis-vol" => Self::Metis(Objective::Volume),
            file if matches!(Path::new(file).try_exists(), Ok(false)) => {
                return Err(wrong(format!("write {NAMES}")));
            }
            file => Self::File(file.into()),
        })
    }

    /// Returns the part of each vertex.
    pub(super) fn assign(
        &self,
        data: &Dataset,
        parts: NonZeroU32,
        weights: VertexWeight,
        seed: u64,
    ) -> Result<Assignment> {
        let (graph, vertices) = (data.graph(), data.graph().vertex_count());
        let ranges = |cost: RangeCost<'_>| {
            let devices = NonZeroUsize::try_from(parts).expect("a usize has 32 bits or more");
            Assignment::of_ranges(&split(&cost, &Speeds::equal(devices)))
        };
        Ok(match self {
            Self::Ranges(Strategy::Vertices) => ranges(RangeCost::vertices(vertices)),
            Self::Ranges(_) => ranges(RangeCost::edges(graph.indptr())),
            Self::Random => Assignment::random(vertices, parts, seed),
            Self::Metis(objective) => metis::assign(graph, parts, *objective, weights, seed)?,
            Self::File(path) => Assignment::read(path, vertices, parts)?,
        })
    }
}
