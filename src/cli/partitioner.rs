//! Ways to choose the parts of a dataset, as `data partition --by` and `plan --compare` name them.

use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use lapidary_cost_model::RangeCost;
use lapidary_planner::partition::{Speeds, Strategy, split};

use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::forecast::DryRun;
use crate::partition::hypergraph::{self, Nets};
use crate::partition::metis::{self, Objective};
use crate::partition::{Assignment, VertexWeight};
use crate::runtime::Partition;

/// The names of the ways, for messages.
const NAMES: &str =
    "vertices, edges, random, learned, metis, metis-vol, hypergraph, hypergraph-both or a file that exists";

/// A way to choose the parts.
pub(super) enum Partitioner {
    /// Consecutive ranges with equal shares of vertices, edges or predicted time.
    Ranges(Strategy),
    /// At random, with equal numbers of vertices.
    Random,
    Metis(Objective),
    Hypergraph(Nets),
    /// The part of each vertex.
    File(PathBuf),
}

/// What a vertex weighs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Weighing {
    /// Its predicted seconds.
    Learned,
    Rows,
    #[default]
    Edges,
}

/// The weights of the vertices of a dataset.
pub(super) enum Weights {
    Plain(VertexWeight<'static>),
    Each(Vec<u64>),
}

/// The sum of learned weights. METIS counts to twice that.
const LEARNED_TOTAL: f64 = (1u32 << 30) as f64;

impl Weighing {
    const ALL: [Self; 3] = [Self::Learned, Self::Rows, Self::Edges];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Learned => "learned",
            Self::Rows => "rows",
            Self::Edges => "edges",
        }
    }

    /// Returns the weights. Learned ones are the seconds that `dry_run` predicts.
    pub(super) fn weights(self, dry_run: &DryRun<'_>) -> Result<Weights> {
        Ok(match self {
            Self::Rows => Weights::Plain(VertexWeight::Rows),
            Self::Edges => Weights::Plain(VertexWeight::Edges),
            Self::Learned => {
                let seconds = dry_run.vertex_seconds()?;
                let scale = LEARNED_TOTAL / seconds.iter().sum::<f64>().max(f64::MIN_POSITIVE);
                Weights::Each(seconds.iter().map(|s| (s * scale) as u64).collect())
            }
        })
    }
}

impl Weights {
    pub(super) fn each(&self) -> VertexWeight<'_> {
        match self {
            Self::Plain(weight) => *weight,
            Self::Each(weights) => VertexWeight::Given(weights),
        }
    }
}

impl fmt::Display for Weighing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Weighing {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let found = Self::ALL.into_iter().find(|weighing| weighing.name() == text);
        found.ok_or_else(|| "write edges, rows or learned".into())
    }
}

impl Partitioner {
    /// Parses the value of `option`. A file has to exist, and a partitioner to be in this build.
    pub(super) fn parse(option: &'static str, text: &str) -> Result<Self> {
        Ok(match text {
            "vertices" => Self::Ranges(Strategy::Vertices),
            "edges" => Self::Ranges(Strategy::Edges),
            "learned" => Self::Ranges(Strategy::Learned),
            "random" => Self::Random,
            "metis" => Self::Metis(Objective::Cut),
            "metis-vol" => Self::Metis(Objective::Volume),
            "hypergraph" | "hypergraph-both" => {
                hypergraph::check_built()?;
                Self::Hypergraph(if text == "hypergraph" { Nets::Forward } else { Nets::Both })
            }
            file if matches!(Path::new(file).try_exists(), Ok(false)) => {
                return Err(Error::Value { option, value: text.into(), expected: format!("write {NAMES}") });
            }
            file => Self::File(file.into()),
        })
    }

    /// Returns whether the parts depend on the model.
    pub(super) fn is_learned(&self) -> bool {
        matches!(self, Self::Ranges(Strategy::Learned))
    }

    /// Returns the part of each vertex, for as many parts as `dry_run` has. Learned ranges are those that it predicts.
    pub(super) fn assign(
        &self,
        data: &Dataset,
        dry_run: &DryRun<'_>,
        weights: VertexWeight<'_>,
        seed: u64,
    ) -> Result<Assignment> {
        let (graph, vertices) = (data.graph(), data.graph().vertex_count());
        let devices = NonZeroUsize::new(dry_run.part_count()).expect("a dry run has devices");
        let too_many = |_| Error::Parts { why: "there are more than 2^32 parts".into() };
        let parts = NonZeroU32::try_from(devices).map_err(too_many)?;
        let ranges = |cost: RangeCost<'_>| Assignment::of_ranges(&split(&cost, &Speeds::equal(devices)));
        Ok(match self {
            Self::Ranges(Strategy::Vertices) => ranges(RangeCost::vertices(vertices)),
            Self::Ranges(Strategy::Edges) => ranges(RangeCost::edges(graph.indptr())),
            Self::Ranges(Strategy::Learned) => {
                Assignment::of_ranges(&dry_run.clone().partition(Partition::default()).parts()?)
            }
            Self::Random => Assignment::random(vertices, parts, seed),
            Self::Metis(objective) => metis::assign(graph, parts, *objective, weights, seed)?,
            Self::Hypergraph(nets) => hypergraph::assign(graph, parts, *nets, weights, seed)?,
            Self::File(path) => Assignment::read(path, vertices, parts)?,
        })
    }
}
