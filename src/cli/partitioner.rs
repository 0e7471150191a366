//! Ways to choose the parts of a dataset, as `data partition --by` and `plan --compare` name them.

use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use lapidary_cost_model::RangeCost;
use lapidary_planner::partition::{Speeds, Strategy, split};

use crate::dataset::{Dataset, TRAIN};
use crate::error::{Error, Result};
use crate::forecast::DryRun;
use crate::partition::hypergraph::{self, Nets};
use crate::partition::metis::{self, Objective};
use crate::partition::{Assignment, VertexWeight};
use crate::runtime::Partition;
use crate::train::labelled;

/// The names of the ways of `plan --compare`, for messages.
const NAMES: &str = "vertices, edges, random, learned, metis, metis-vol, hypergraph, hypergraph-both";

/// A way to choose the parts.
pub(super) enum Partitioner {
    /// Consecutive ranges with equal shares of vertices, edges or predicted time.
    Ranges(Strategy),
    /// At random, with equal numbers of vertices.
    Random,
    Metis(Objective),
    Hypergraph(Nets),
    /// The hypergraph of the graph and of drawn mini-batches.
    Stochastic,
    /// The part of each vertex.
    File(PathBuf),
}

/// What a vertex weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weighing {
    /// Its predicted seconds.
    Learned,
    Rows,
    Edges,
    /// 1 for a labelled vertex of the training split.
    Train,
}

/// One weight or several of each vertex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Weighings(Vec<Weighing>);

/// One kind of weight of the vertices of a dataset.
pub(super) enum Weights {
    Plain(VertexWeight<'static>),
    Each(Vec<u64>),
    Labelled(Vec<bool>),
}

/// The sum of learned weights. METIS counts to twice that.
const LEARNED_TOTAL: f64 = (1u32 << 30) as f64;

impl Weighing {
    const ALL: [Self; 4] = [Self::Learned, Self::Rows, Self::Edges, Self::Train];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Learned => "learned",
            Self::Rows => "rows",
            Self::Edges => "edges",
            Self::Train => "train",
        }
    }

    /// Returns the weights. Learned ones are the seconds that `dry_run` predicts.
    fn weights(self, data: &Dataset, dry_run: &DryRun<'_>) -> Result<Weights> {
        Ok(match self {
            Self::Rows => Weights::Plain(VertexWeight::Rows),
            Self::Edges => Weights::Plain(VertexWeight::Edges),
            Self::Learned => {
                let seconds = dry_run.vertex_seconds()?;
                let scale = LEARNED_TOTAL / seconds.iter().sum::<f64>().max(f64::MIN_POSITIVE);
                Weights::Each(seconds.iter().map(|s| (s * scale) as u64).collect())
            }
            Self::Train => {
                let mut is_labelled = vec![false; data.graph().vertex_count()];
                let seeds = training_vertices(data, "option `weights` train counts them")?;
                seeds.iter().for_each(|&v| is_labelled[v as usize] = true);
                Weights::Labelled(is_labelled)
            }
        })
    }
}

impl Weighings {
    /// Returns whether weights depend on the model.
    pub(super) fn is_learned(&self) -> bool {
        self.0.contains(&Weighing::Learned)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|weighing| weighing.name())
    }

    /// Returns the weights, one kind after the other.
    pub(super) fn weights(&self, data: &Dataset, dry_run: &DryRun<'_>) -> Result<Vec<Weights>> {
        self.0.iter().map(|weighing| weighing.weights(data, dry_run)).collect()
    }
}

impl Default for Weighings {
    fn default() -> Self {
        Self(vec![Weighing::Edges])
    }
}

impl Weights {
    pub(super) fn each(&self) -> VertexWeight<'_> {
        match self {
            Self::Plain(weight) => *weight,
            Self::Each(weights) => VertexWeight::Given(weights),
            Self::Labelled(is_labelled) => VertexWeight::Labelled(is_labelled),
        }
    }
}

impl fmt::Display for Weighings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.names().collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Weighings {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let mut found = Vec::new();
        for name in text.split(',') {
            let weighing = Weighing::ALL.into_iter().find(|weighing| weighing.name() == name);
            let weighing = weighing.ok_or("write edges, rows, learned or train, or several with commas")?;
            if found.contains(&weighing) {
                return Err(format!("write {name} once"));
            }
            found.push(weighing);
        }
        Ok(Self(found))
    }
}

/// Returns the labelled vertices of the training split.
///
/// # Errors
/// [`Error::DataLacks`] if there are none.
pub(super) fn training_vertices(data: &Dataset, needed_by: &'static str) -> Result<Vec<u32>> {
    let seeds = labelled(data, &[TRAIN]);
    let lacks = || Error::DataLacks { dataset: data.name().into(), what: "labelled vertex to train on", needed_by };
    if seeds.is_empty() { Err(lacks()) } else { Ok(seeds) }
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
            "stochastic" if option == "compare" => {
                let expected = "it is for mini-batches, and a plan of an epoch has none; see `data partition`".into();
                return Err(Error::Value { option, value: text.into(), expected });
            }
            "stochastic" => {
                hypergraph::check_built()?;
                Self::Stochastic
            }
            file if matches!(Path::new(file).try_exists(), Ok(false)) => {
                let more = if option == "compare" { "" } else { ", stochastic" };
                let expected = format!("write {NAMES}{more} or a file that exists");
                return Err(Error::Value { option, value: text.into(), expected });
            }
            file => Self::File(file.into()),
        })
    }

    /// Returns whether the parts depend on the model.
    pub(super) fn is_learned(&self) -> bool {
        matches!(self, Self::Ranges(Strategy::Learned))
    }

    /// Checks that this way balances as many weights.
    ///
    /// # Errors
    /// [`Error::Value`] for hypergraphs and several.
    pub(super) fn check_weights(&self, weights: &Weighings) -> Result<()> {
        match self {
            Self::Hypergraph(_) | Self::Stochastic if weights.0.len() > 1 => Err(Error::Value {
                option: "weights",
                value: weights.to_string(),
                expected: "Mt-KaHyPar balances one weight; write one of them, or choose METIS, which balances several"
                    .into(),
            }),
            _ => Ok(()),
        }
    }

    /// Returns the part of each vertex, for as many parts as `dry_run` has. Learned ranges are those that it predicts.
    pub(super) fn assign(
        &self,
        data: &Dataset,
        dry_run: &DryRun<'_>,
        weights: &[Weights],
        seed: u64,
    ) -> Result<Assignment> {
        let (graph, vertices) = (data.graph(), data.graph().vertex_count());
        let devices = NonZeroUsize::new(dry_run.part_count()).expect("a dry run has devices");
        let too_many = |_| Error::Parts { why: "there are more than 2^32 parts".into() };
        let parts = NonZeroU32::try_from(devices).map_err(too_many)?;
        let weights: Vec<VertexWeight<'_>> = weights.iter().map(Weights::each).collect();
        let ranges = |cost: RangeCost<'_>| Assignment::of_ranges(&split(&cost, &Speeds::equal(devices)));
        Ok(match self {
            Self::Ranges(Strategy::Vertices) => ranges(RangeCost::vertices(vertices)),
            Self::Ranges(Strategy::Edges) => ranges(RangeCost::edges(graph.indptr())),
            Self::Ranges(Strategy::Learned) => {
                Assignment::of_ranges(&dry_run.clone().partition(Partition::default()).parts()?)
            }
            Self::Random => Assignment::random(vertices, parts, seed),
            Self::Metis(objective) => metis::assign(graph, parts, *objective, &weights, seed)?,
            Self::Hypergraph(nets) => hypergraph::assign(graph, parts, *nets, weights[0], seed)?,
            Self::Stochastic => return Err(self.needs_batches()),
            Self::File(path) => Assignment::read(path, vertices, parts)?,
        })
    }

    /// The error if mini-batches are missing.
    pub(super) fn needs_batches(&self) -> Error {
        Error::Value {
            option: "by",
            value: "stochastic".into(),
            expected: "it draws mini-batches; set their options as for the training, as in option `batch` 1024 \
                       option `fanout` 10,10"
                .into(),
        }
    }
}
