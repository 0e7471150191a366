//! Training on mini-batches: which seeds a batch has, what its blocks are drawn by, and an epoch of them.

mod epoch;
mod pipeline;

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::dataset::{Dataset, TRAIN};
use crate::error::{Error, Result};
use crate::lower::{Batch, BatchSupply, Contents, Inputs, level_sizes};
use crate::program::{LevelSizes, MOST_LAYERS, Program};
use crate::ranks::Ranks;
use crate::runtime::BatchShare;
use crate::sample::{BatchKey, MiniBatch, Sampler, Scratch, epoch_order};
use lapidary_kernels::Slot;
use lapidary_kernels::memory::NoHostMemory;

pub(super) use epoch::{BatchedEpoch, Feeder, OnBatch};
pub use pipeline::StageSeconds;

/// Batches of an epoch that are drawn before the run, to learn how large they are.
const PROBES: usize = 4;

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
}

/// The settings of mini-batches that the numbers of a run depend on, as recorded in `run.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchRecord {
    /// Number of seeds of a batch.
    pub size: usize,
    /// What draws the blocks: see [`Sampler::name`].
    pub sampler: String,
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
        Self { size, look_ahead: 2, sampler: Arc::new(sampler) }
    }

    /// Sets how many batches each stage may be ahead of the next one; 2 by default. With 0, a batch is drawn when the one
    /// before it has been computed.
    pub fn look_ahead(mut self, batches: usize) -> Self {
        self.look_ahead = batches;
        self
    }

    pub(super) fn record(&self) -> BatchRecord {
        BatchRecord { size: self.size, sampler: self.sampler.name() }
    }

    /// Returns the number of batches of an epoch with this number of seeds.
    fn count(&self, seeds: usize) -> usize {
        seeds.div_ceil(self.size)
    }
}

/// The mini-batches of a dataset.
pub(crate) struct Drawing {
    batches: Batches,
    inputs: Inputs,
    /// Labelled vertices of the training split.
    seeds: Vec<u32>,
    seed: u64,
    /// The ranks whose devices share each batch, and the number of devices of each.
    ranks: Ranks,
    devices: usize,
}

impl Drawing {
    /// Creates the mini-batches that `devices` devices share.
    ///
    /// # Errors
    /// [`Error::Value`] for batches without seeds, and for no layers or too many; [`Error::DataLacks`] for data without
    /// labelled vertices to train on.
    pub(crate) fn new(batches: Batches, data: &Dataset, inputs: &Inputs, seed: u64, devices: usize) -> Result<Self> {
        if batches.size == 0 {
            let expected = "a batch has at least one seed".into();
            return Err(Error::Value { option: "batch", value: "0".into(), expected });
        }
        let layers = batches.sampler.layers();
        if !(1..=MOST_LAYERS).contains(&layers) {
            let (value, expected) = (format!("{layers} layers"), format!("a batch has 1 to {MOST_LAYERS} layers"));
            return Err(Error::Value { option: "fanout", value, expected });
        }
        let is_labelled = |v| data.labels().is_some_and(|labels| labels.is_labelled(v));
        let counts = |v: &usize| data.split()[*v] == TRAIN && is_labelled(*v);
        let seeds: Vec<u32> = (0..data.graph().vertex_count()).filter(counts).map(|v| v as u32).collect();
        if seeds.is_empty() {
            let (what, needed_by) = ("labelled vertex to train on", "mini-batches are drawn around them");
            return Err(Error::DataLacks { dataset: data.name().into(), what, needed_by });
        }
        Ok(Self { batches, inputs: inputs.clone(), seeds, seed, ranks: Ranks::alone(), devices })
    }

    /// Sets the ranks that share the batches, each with as many devices.
    pub(super) fn on_ranks(self, ranks: &Ranks) -> Self {
        Self { ranks: ranks.clone(), ..self }
    }

    /// Draws a few batches of the first epoch, and returns sizes that hardly any batch passes, on any rank. All ranks
    /// have to call it.
    ///
    /// # Errors
    /// [`Error::Batch`]; [`Error::OtherRank`].
    pub(super) fn expected_sizes(&self) -> Result<LevelSizes> {
        let order = self.order(1);
        let mut scratch = Scratch::default();
        let mut largest = LevelSizes::default();
        for number in 0..self.batches.count(order.len()).min(PROBES) {
            for drawn in self.draw(1, number, &order, &mut scratch)? {
                largest = largest.or(&self.sizes(&drawn));
            }
        }
        let of_ranks = self.ranks.gather(largest)?;
        Ok(of_ranks.iter().fold(largest, |largest, sizes| largest.or(sizes)).with_room())
    }

    /// Returns the seeds of an epoch, in the order of its batches.
    pub(crate) fn order(&self, epoch: u64) -> Vec<u32> {
        let mut seeds = self.seeds.clone();
        epoch_order(&mut seeds, self.seed, epoch);
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

    /// Draws this rank's shares of a batch: each part of the job has consecutive seeds. What is drawn of a vertex does
    /// not depend on the part.
    pub(crate) fn draw(
        &self,
        epoch: u64,
        number: usize,
        order: &[u32],
        scratch: &mut Scratch,
    ) -> Result<Vec<MiniBatch>> {
        let seeds = &order[self.places(number)];
        let key = BatchKey { seed: self.seed, epoch, batch: number as u64 };
        let (parts, own) = (self.ranks.count() * self.devices, self.ranks.rank() * self.devices);
        let share = |part: usize| &seeds[seeds.len() * part / parts..seeds.len() * (part + 1) / parts];
        let drawn = (own..own + self.devices)
            .map(|part| self.batches.sampler.sample(&self.inputs.graph, share(part), key, scratch));
        drawn.collect::<std::result::Result<_, _>>().map_err(|source| failed("sampling", number, source))
    }

    /// Returns where the seeds of a batch are in the order of the epoch.
    fn places(&self, number: usize) -> Range<usize> {
        let size = self.batches.size;
        number * size..((number + 1) * size).min(self.seeds.len())
    }

    /// Returns the sizes of a share of a batch.
    pub(crate) fn sizes(&self, drawn: &MiniBatch) -> LevelSizes {
        level_sizes(&self.inputs, drawn)
    }

    /// Returns what the programs read of the data.
    pub(crate) fn supply(&self, training: &Program) -> BatchSupply {
        BatchSupply::new(&self.inputs, training.origins().keys())
    }

    /// Returns what a batch gives to this rank's parts of a session.
    pub(crate) fn give(
        &self,
        supply: &BatchSupply,
        contents: &[(Slot, Contents)],
        number: usize,
        drawn: &[MiniBatch],
    ) -> Result<Vec<BatchShare>> {
        let labelled = self.places(number).len() as u64;
        let share = |drawn: &MiniBatch| {
            let mut batch = Batch::new(supply, drawn);
            let values = contents.iter().map(|(slot, contents)| Ok((*slot, batch.get(contents)?)));
            let values = values.collect::<std::result::Result<_, NoHostMemory>>();
            let values = values.map_err(|source| failed("gathering", number, source))?;
            let mut sizes = self.sizes(drawn);
            // The loss is a mean over all seeds of the batch, which other ranks have a share of.
            sizes.labelled = labelled;
            Ok(BatchShare { sizes, values })
        };
        drawn.iter().map(share).collect()
    }
}

fn failed(stage: &'static str, number: usize, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Batch { stage, batch: number as u64 + 1, source: source.into() }
}
