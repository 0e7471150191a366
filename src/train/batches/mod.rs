//! Mini-batches: their settings, the seeds of each batch, and how its blocks are drawn.

mod cache;
mod epoch;
mod evaluation;
mod feature_rows;
mod gathering;
mod options;
mod pipeline;
mod shares;
mod topology;

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::dataset::{Dataset, TEST, TRAIN, VAL};
use crate::error::{Error, Result};
use crate::lower::{BatchSupply, FeatureData, FirstLevel, Inputs, KeptRows, level_sizes};
use crate::program::{LevelSizes, MOST_LAYERS, Program};
use crate::ranks::{Ranks, RowStore};
use crate::sample::{BatchKey, MiniBatch, Sampler, Scratch, epoch_order};
use lapidary_kernels::StorageType;

pub use cache::{FeatureCache, ParseFeatureCacheError};
pub(super) use epoch::{BatchRun, BatchedEpoch, Feeder, OnBatch};
pub(crate) use feature_rows::FeatureRows;
pub(crate) use gathering::Sources;
pub use options::SamplerOptions;
pub use pipeline::StageSeconds;
pub use shares::{ParseSeedSharesError, SeedShares};
use topology::DrawScratch;
pub use topology::{ParseTopologyError, Topology};

/// Batches of an epoch that are drawn before the run, to learn how large they are.
const PROBES: usize = 4;

/// How many batches a stage may be ahead, at most: each takes two threads, and the memory of a batch.
const MOST_AHEAD: usize = 256;

/// The epoch that evaluations draw as. Their seeds are in the order of their numbers.
const EVALUATION_EPOCH: u64 = 0;

/// How a trainer draws mini-batches.
///
/// The seeds of an epoch are the labelled vertices of the training split, in an order that is drawn for each epoch. A
/// batch has the next `size` of them, the last one what is left. After each batch, the parameters are updated.
///
/// The bits of a run depend neither on the number of threads nor on how far ahead batches are prepared.
#[derive(Clone, Debug)]
pub struct Batches {
    size: usize,
    look_ahead: usize,
    sampler: Arc<dyn Sampler>,
    shares: SeedShares,
    topology: Topology,
    feature_cache: Option<FeatureCache>,
    device_cache: Option<FeatureCache>,
    /// What draws the blocks of evaluations; `None` for evaluations over the whole graph.
    evaluation: Option<Arc<dyn Sampler>>,
}

/// The settings of mini-batches that the numbers of a run depend on, as recorded in `run.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchRecord {
    /// Number of seeds of a batch.
    pub size: usize,
    /// What draws the blocks: see [`Sampler::name`].
    pub sampler: String,
    /// What draws the blocks of evaluations; `None` for evaluations over the whole graph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<String>,
}

impl Batches {
    /// Returns batches of `size` seeds, around which `sampler` draws the blocks.
    ///
    /// ```
    /// use lapidary::sample::NeighborSampler;
    /// use lapidary::{Batches, Dataset, Model, Trainer};
    ///
    /// let data = Dataset::builtin("karate")?;
    /// let model = Model::sage(&[data.feature_width(), 8, data.class_count()]);
    /// let batches = Batches::new(2, NeighborSampler::new("5,5".parse()?));
    /// let mut trainer = Trainer::builder(&model, &data).batches(batches).build()?;
    /// assert!(trainer.step()?.loss.is_finite());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(size: usize, sampler: impl Sampler + 'static) -> Self {
        Self {
            size,
            look_ahead: 2,
            sampler: Arc::new(sampler),
            shares: SeedShares::default(),
            topology: Topology::default(),
            evaluation: None,
            feature_cache: None,
            device_cache: None,
        }
    }

    /// Evaluates on mini-batches too: around all labelled vertices of the three splits, with as many seeds per batch, and
    /// with blocks that `sampler` draws. Every evaluation draws the same edges. Without it, evaluations are over the whole
    /// graph, and exact.
    ///
    /// ```
    /// use lapidary::sample::NeighborSampler;
    /// use lapidary::{Batches, Dataset, Model, Trainer};
    ///
    /// let data = Dataset::builtin("karate")?;
    /// let model = Model::sage(&[data.feature_width(), 8, data.class_count()]);
    /// let batches = Batches::new(2, NeighborSampler::new("5,5".parse()?));
    /// let batches = batches.evaluation(NeighborSampler::new("10,10".parse()?));
    /// let mut trainer = Trainer::builder(&model, &data).batches(batches).build()?;
    /// assert!(trainer.step()?.accuracy.unwrap().test.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn evaluation(mut self, sampler: impl Sampler + 'static) -> Self {
        self.evaluation = Some(Arc::new(sampler));
        self
    }

    /// Sets how many batches each stage may be ahead of the next one: 2 by default, at most 256. With 0, a batch is drawn when
    /// the one before it has been computed.
    pub fn look_ahead(mut self, batches: usize) -> Self {
        self.look_ahead = batches;
        self
    }

    /// Sets how several devices share the seeds of a batch; [`SeedShares::Balanced`] by default. It changes the results as
    /// another number of devices does: by rounding, and by the masks of dropout.
    pub fn seeds(mut self, shares: SeedShares) -> Self {
        self.shares = shares;
        self
    }

    /// Sets which edges each of several ranks draws itself; [`Topology::Whole`] by default. It changes no bit. Before the
    /// run, rows for [`Batches::device_cache`] are chosen from the whole graph.
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology = topology;
        self
    }

    /// Reads features from the dataset's file for each batch, for features that are larger than memory. The rows that
    /// batches read most often are kept in memory: as many as `cache` says. Without it, features are used as the dataset
    /// has them: the system keeps as much of a mapped file as it has memory for.
    ///
    /// Evaluations over the whole graph still read all features through the map.
    pub fn feature_cache(mut self, cache: FeatureCache) -> Self {
        self.feature_cache = Some(cache);
        self
    }

    /// Keeps rows of dense features on each device, those that batches read most often, and copies only the others. It
    /// is of use on devices with memory of their own. What is kept counts against their memory.
    pub fn device_cache(mut self, cache: FeatureCache) -> Self {
        self.device_cache = Some(cache);
        self
    }

    /// Returns the number of seeds of a batch.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns what draws the blocks.
    pub fn sampler(&self) -> &dyn Sampler {
        &*self.sampler
    }

    /// Checks that these batches can be shared by ranks.
    ///
    /// # Errors
    /// [`Error::Value`] if there are several and features are read from a file, and if they cannot draw the edges of their
    /// parts for each other.
    pub(super) fn check_ranks(&self, ranks: &Ranks) -> Result<()> {
        self.check_topology(ranks)?;
        match self.feature_cache {
            Some(cache) if ranks.count() > 1 => Err(Error::Value {
                option: "feature_cache",
                value: cache.to_string(),
                expected: "with several ranks, rows come from the rank that has them; leave this option out".into(),
            }),
            _ => Ok(()),
        }
    }

    /// Returns the option of the cache of features that is set, if any is.
    pub(super) fn cached(&self) -> Option<&'static str> {
        let of = |cache: Option<FeatureCache>, option| cache.map(|_| option);
        of(self.feature_cache, "feature_cache").or(of(self.device_cache, "device_cache"))
    }

    pub(super) fn record(&self) -> BatchRecord {
        let evaluation = self.evaluation.as_ref().map(|sampler| sampler.name());
        BatchRecord { size: self.size, sampler: self.sampler.name(), evaluation }
    }

    /// Returns the number of batches of an epoch with this number of seeds.
    fn count(&self, seeds: usize) -> usize {
        seeds.div_ceil(self.size)
    }
}

/// The mini-batches of a dataset.
#[derive(Clone)]
pub(crate) struct Drawing {
    batches: Batches,
    inputs: Inputs,
    /// Labelled vertices: of the training split, or of all splits for evaluations.
    seeds: Vec<u32>,
    seed: u64,
    /// The vertices that each part of the job owns, which decide the shares of a batch.
    parts: Vec<Range<usize>>,
    /// The ranks whose devices share each batch, and the number of devices of each.
    ranks: Ranks,
    devices: usize,
    /// Where rows of features come from, if not from the array of all of them.
    feature_rows: Option<Arc<FeatureRows>>,
}

impl Drawing {
    /// Creates the mini-batches that these parts share, one for each device.
    ///
    /// # Errors
    /// [`Error::Value`] for batches without seeds or too far ahead, for no layers or too many, and for a cache of features that are not
    /// read from a file or not dense; [`Error::DataLacks`] for data without labelled vertices to train on;
    /// [`Error::Dataset`] if the rows of the cache cannot be read; [`Error::Batch`].
    pub(crate) fn new(
        batches: Batches,
        data: &Dataset,
        inputs: &Inputs,
        dtype: StorageType,
        seed: u64,
        parts: Vec<Range<usize>>,
    ) -> Result<Self> {
        if batches.size == 0 {
            let expected = "a batch has at least one seed".into();
            return Err(Error::Value { option: "batch", value: "0".into(), expected });
        }
        if batches.look_ahead > MOST_AHEAD {
            let (value, expected) = (batches.look_ahead.to_string(), format!("give at most {MOST_AHEAD} batches"));
            return Err(Error::Value { option: "look_ahead", value, expected });
        }
        let layers = batches.sampler.layers();
        if !(1..=MOST_LAYERS).contains(&layers) {
            let (value, expected) = (format!("{layers} layers"), format!("a batch has 1 to {MOST_LAYERS} layers"));
            return Err(Error::Value { option: "fanout", value, expected });
        }
        if let Some(others) = batches.evaluation.as_ref().map(|sampler| sampler.layers()).filter(|n| *n != layers) {
            return Err(other_layers(format!("{others} layer{}", if others == 1 { "" } else { "s" }), layers));
        }
        let seeds = labelled(data, &[TRAIN]);
        if seeds.is_empty() {
            let (what, needed_by) = ("labelled vertex to train on", "mini-batches are drawn around them");
            return Err(Error::DataLacks { dataset: data.name().into(), what, needed_by });
        }
        let caches = (batches.feature_cache, batches.device_cache);
        let (inputs, ranks, devices) = (inputs.clone(), Ranks::alone(), parts.len());
        let mut drawing = Self { batches, inputs, seeds, seed, parts, ranks, devices, feature_rows: None };
        if caches == (None, None) {
            return Ok(drawing);
        }
        let by_visits = drawing.by_visits()?;
        if let Some(cache) = caches.0 {
            drawing.feature_rows = Some(cache.fill(&drawing, data, &by_visits)?.into());
        }
        if let Some(cache) = caches.1 {
            drawing.inputs.kept = cache.on_device(&drawing.inputs, dtype, &by_visits)?.map(Arc::new);
        }
        Ok(drawing)
    }

    /// Returns the batches of an evaluation, if evaluations are to run on batches. They are those of epoch
    /// [`EVALUATION_EPOCH`].
    pub(super) fn evaluation(&self, data: &Dataset) -> Option<Self> {
        let sampler = self.batches.evaluation.clone()?;
        let batches = Batches { sampler, ..self.batches.clone() };
        let seeds = labelled(data, &[TRAIN, VAL, TEST]);
        Some(Self { batches, seeds, ..self.clone() })
    }

    /// Takes over new parts, as many as before. All ranks have to call it between the same batches.
    pub(super) fn set_parts(&mut self, parts: &[Range<usize>]) {
        self.parts = parts.to_vec();
    }

    /// Spreads the devices over ranks, each with as many.
    pub(super) fn on_ranks(self, ranks: &Ranks) -> Self {
        Self { ranks: ranks.clone(), devices: self.devices / ranks.count(), ..self }
    }

    /// Draws a few batches of the first epoch, and returns sizes that hardly any batch passes, on any rank. All ranks
    /// have to call it.
    ///
    /// # Errors
    /// Those of [`Drawing::sample`].
    pub(super) fn expected_sizes(&self) -> Result<LevelSizes> {
        let order = self.order(1);
        let (edges, mut scratch) = (self.begin_drawing(), DrawScratch::default());
        let mut largest = LevelSizes::default();
        for number in 0..self.batches.count(order.len()).min(PROBES) {
            for drawn in self.sample(1, number, &order, &mut scratch, edges.as_ref())?.0 {
                largest = largest.or(&self.sizes(&drawn));
            }
        }
        let of_ranks = self.ranks.gather(largest)?;
        Ok(of_ranks.iter().fold(largest, |largest, sizes| largest.or(sizes)).with_room())
    }

    /// Returns the data, with the rows that stay on the devices.
    pub(crate) fn inputs(&self) -> &Inputs {
        &self.inputs
    }

    /// Returns the seeds of an epoch, in the order of its batches.
    pub(crate) fn order(&self, epoch: u64) -> Vec<u32> {
        let mut seeds = self.seeds.clone();
        if epoch != EVALUATION_EPOCH {
            epoch_order(&mut seeds, self.seed, epoch);
        }
        seeds
    }

    /// Returns the number of layers of a batch.
    pub(crate) fn layers(&self) -> usize {
        self.batches.sampler.layers()
    }

    /// Returns the number of batches of an epoch.
    pub(crate) fn count(&self) -> usize {
        self.batches.count(self.seeds.len())
    }

    /// Returns the number of seeds of the first `batches` of an epoch; `None` if it does not have so many, or for none.
    pub(super) fn seeds_of(&self, batches: u64) -> Option<u64> {
        let first = (1..=self.count() as u64).contains(&batches).then_some(batches)?;
        Some((first * self.batches.size as u64).min(self.seeds.len() as u64))
    }

    /// Draws this rank's shares of a batch, all edges by itself. What is drawn of a vertex does not depend on the part.
    pub(crate) fn draw(
        &self,
        epoch: u64,
        number: usize,
        order: &[u32],
        scratch: &mut Scratch,
    ) -> Result<Vec<MiniBatch>> {
        let key = self.key(epoch, number);
        let shares = self.own_shares(number, order);
        let drawn = shares.iter().map(|seeds| self.batches.sampler.sample(&self.inputs.graph, seeds, key, scratch));
        drawn.collect::<std::result::Result<_, _>>().map_err(|source| failed("sampling", number, source))
    }

    fn key(&self, epoch: u64, number: usize) -> BatchKey {
        BatchKey { seed: self.seed, epoch, batch: number as u64 }
    }

    /// Returns the seeds of a batch for each of this rank's parts.
    fn own_shares(&self, number: usize, order: &[u32]) -> Vec<Vec<u32>> {
        let starts: Vec<usize> = self.parts.iter().map(|part| part.start).collect();
        let mut shares = self.batches.shares.split(&order[self.places(number)], &starts);
        shares.drain(self.ranks.rank() * self.devices..).take(self.devices).collect()
    }

    /// Returns where the seeds of a batch are in the order of the epoch.
    fn places(&self, number: usize) -> Range<usize> {
        let size = self.batches.size;
        number * size..((number + 1) * size).min(self.seeds.len())
    }

    /// Returns the sizes of a share of a batch.
    pub(crate) fn sizes(&self, drawn: &MiniBatch) -> LevelSizes {
        level_sizes(&self.inputs, drawn, FirstLevel::Drawn)
    }

    /// Returns what these programs read of the data.
    pub(crate) fn supply<'a>(&self, programs: impl IntoIterator<Item = &'a Program>) -> BatchSupply {
        let read = programs.into_iter().flat_map(|program| program.origins().keys());
        let supply = BatchSupply::new(&self.inputs, read);
        match &self.feature_rows {
            Some(rows) => supply.features_from(rows.clone()),
            None => supply,
        }
    }

    /// Returns the vertices of a batch whose features do not stay on the device.
    pub(crate) fn copied(&self, drawn: &MiniBatch) -> Vec<u32> {
        self.inputs.copied(&drawn.vertices)
    }

    /// Returns where rows of features come from, if not from the array of all of them.
    pub(crate) fn feature_rows(&self) -> Option<&FeatureRows> {
        self.feature_rows.as_deref()
    }

    /// Returns the rows that stay on the devices, if any do, with their contents from a store.
    ///
    /// # Errors
    /// [`Error::Value`] if there is no memory for them; [`Error::OtherRank`].
    pub(super) fn kept_from(&self, store: &RowStore) -> Result<Option<Arc<KeptRows>>> {
        let kept = self.batches.device_cache.zip(self.inputs.kept.as_ref());
        kept.map(|(cache, kept)| Ok(Arc::new(cache.pulled(kept, store)?))).transpose()
    }

    /// Returns the first vertex of each rank, and the end of the last one.
    fn offsets(&self) -> Vec<usize> {
        let starts = self.parts.iter().step_by(self.devices).map(|part| part.start);
        starts.chain([self.inputs.graph.vertex_count()]).collect()
    }

    /// Returns the store of the features of all ranks, each of which holds those of its parts; `None` if there is one
    /// rank. Sparse features are not in it: every rank reads those that it needs.
    pub(super) fn store(&self) -> Option<RowStore> {
        if self.ranks.count() == 1 {
            return None;
        }
        let offsets = self.offsets();
        let (rows, width) = match &self.inputs.features {
            FeatureData::Dense { data, width } => {
                let [start, end] = [0, 1].map(|i| offsets[self.ranks.rank() + i] * width);
                (data.slice(start..end), *width)
            }
            FeatureData::Sparse { .. } => (Vec::new().into(), 0),
        };
        Some(RowStore::new(&self.ranks, offsets, rows, width))
    }
}

/// Returns the error of an evaluation with another number of layers than the training has.
pub(crate) fn other_layers(value: String, layers: usize) -> Error {
    let expected = match layers {
        1 => "option `fanout` has 1 layer; give as many".into(),
        layers => format!("option `fanout` has {layers} layers; give as many"),
    };
    Error::Value { option: "eval_fanout", value, expected }
}

/// Returns the labelled vertices of some splits.
pub(crate) fn labelled(data: &Dataset, splits: &[u32]) -> Vec<u32> {
    let is_labelled = |v| data.labels().is_some_and(|labels| labels.is_labelled(v));
    let counts = |v: &usize| splits.contains(&data.split()[*v]) && is_labelled(*v);
    (0..data.graph().vertex_count()).filter(counts).map(|v| v as u32).collect()
}

fn failed(stage: &'static str, number: usize, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Batch { stage, batch: number as u64 + 1, source: source.into() }
}
