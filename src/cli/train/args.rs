//! The flags of `lapidary train`.

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use crate::cli::DeviceArgs;
use crate::cli::device::{RecomputeArg, strips};
use crate::cli::metrics::MetricArgs;
use crate::cli::model::ModelArgs;
use crate::cli::output::say;
use crate::cli::reorder::ReorderArgs;
use crate::dataset::{Dataset, FeatureNorm, VAL};
use crate::error::{Error, Result, parse_option};
use crate::infer::Predictor;
use crate::infer::checkpoint::states;
use crate::model::{Model, Weights};
use crate::plan::{KeptByNumber, Reorder, RunGathers};
use crate::program::Strips;
use crate::ranks::Ranks;
use crate::runtime::Partition;
use crate::sample::{Fanouts, NeighborSampler};
use crate::train::{
    Adam, AdamW, Batches, CheckpointInterval, CheckpointSchedule, ClassWeights, DecayLayers, FeatureCache, Optimizer,
    PLAIN_EPOCHS, PLAIN_LEARNING_RATE, SamplerOptions, SeedShares, Sgd, Topology, Trainer, other_layers,
    recorded_order,
};

/// The built-in dataset that `lapidary train` uses without `--data`.
const DEFAULT_DATA: &str = "builtin:planted";

#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)] // our own error reports a negative rate
pub(in crate::cli) struct TrainArgs {
    /// Dataset directory, builtin:planted or builtin:karate
    #[arg(long, value_name = "DATA", default_value = DEFAULT_DATA)]
    pub data: String,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub training: TrainingArgs,
    #[command(flatten)]
    pub batches: BatchArgs,
    #[command(flatten)]
    pub checkpoints: CheckpointArgs,
    #[command(flatten)]
    pub reorder: ReorderArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Training")]
pub(in crate::cli) struct TrainingArgs {
    /// Number of epochs, including those before --resume [default: chosen for the dataset, up to 500; plain: 200]
    #[arg(long, value_name = "N")]
    pub epochs: Option<u64>,
    /// Optimizer: adam, adamw or sgd
    #[arg(long, value_name = "NAME", default_value = "adam")]
    pub optimizer: String,
    /// Learning rate [default: 0.01, or 0.001 for models that sum over neighbours; plain: 0.01; with --resume, that of the
    /// checkpoint]
    #[arg(long, value_name = "F")]
    pub lr: Option<f64>,
    /// Momentum of sgd
    #[arg(long, value_name = "F", default_value_t = 0.0)]
    pub momentum: f64,
    /// Weight decay, decoupled with adamw [default: 0.01 with adamw, else 0]
    #[arg(long, value_name = "F")]
    pub weight_decay: Option<f64>,
    /// Layers whose parameters decay: all or first
    #[arg(long, value_name = "LAYERS", default_value = "all")]
    pub decay_layers: String,
    /// Feature normalisation: row (divide each row by its sum) or none [default: the dataset's, else row for sparse
    /// non-negative features of at most 50 numbers per vertex; plain: of any number]
    #[arg(long, value_name = "NORM")]
    pub feature_norm: Option<String>,
    /// Weights of the classes in the loss, for classes of few vertices: none, balanced (all classes count alike) or one number
    /// for each class, as in 1,2.5,1
    #[arg(long, value_name = "WEIGHTS", default_value = "none")]
    pub class_weights: String,
    /// Start from these weights: a safetensors file with PyG's parameter names, or a checkpoint folder
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,
    /// If a loss, parameter or moment is NaN or infinite: stop, or rollback (return to the last checkpoint and halve the
    /// learning rate)
    #[arg(long, value_name = "ACTION", default_value = "stop", hide_possible_values = true)]
    pub on_nan: OnNan,
    /// Seed of the initial weights and of dropout
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Evaluate every N epochs; 0: only at the end
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub eval_every: u64,
    /// Evaluate on mini-batches too: number of in-edges that are drawn of each vertex, layer by layer, as in 10,10,10; -1:
    /// all [default: off, evaluations are exact, on the whole graph]
    // It is listed behind the flags that training and planning share.
    #[arg(long, value_name = "LIST", requires = "batch", allow_hyphen_values = true, help_heading = "Mini-batches")]
    #[arg(display_order = 1000)]
    pub eval_fanout: Option<String>,
    /// Edges that each rank draws itself: whole (any; each rank maps the graph) or parts (in-edges of its own vertices;
    /// other ranks draw theirs for it)
    #[arg(long, value_name = "EDGES", default_value = "whole", requires = "batch", help_heading = "Mini-batches")]
    #[arg(display_order = 1001)]
    pub topology: String,
    /// Tensors that the backward pass reads again: auto (whatever is predicted to take least time), never (keep or move
    /// them) or always (make again what row steps, products and gathers make, where no rows are exchanged for it); results
    /// have the same bits
    #[arg(long, value_name = "WHEN", default_value = "auto", hide_possible_values = true)]
    #[arg(conflicts_with = "batch")]
    pub recompute: RecomputeArg,
    /// Strips of columns that wide matrices are cut into, so that gathers need less memory at a time: auto or a number;
    /// results have the same bits
    #[arg(long, value_name = "N", default_value = "auto", value_parser = strips, conflicts_with = "batch")]
    pub strips: Strips,
    /// Stop after N epochs without a better validation accuracy [default: 100 if the number of epochs is chosen
    /// for the dataset, else off]
    #[arg(long, value_name = "N")]
    pub early_stop: Option<u64>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Mini-batches")]
pub(in crate::cli) struct BatchArgs {
    /// Train on mini-batches around N vertices each, instead of on the whole graph at once
    #[arg(long, value_name = "N", requires = "fanout")]
    pub batch: Option<usize>,
    #[command(flatten)]
    pub draws: DrawArgs,
    /// How several devices share the seeds of a batch: balanced (equally many each, and as many as possible of its own
    /// part) or own (each has those of its own part)
    #[arg(long, value_name = "SHARES", default_value = "balanced", requires = "batch")]
    pub seeds: String,
    /// How many batches each stage (sampling, gathering, computing) may be ahead of the next; at most 256
    #[arg(long, value_name = "N", default_value_t = 2, requires = "batch")]
    pub look_ahead: usize,
    /// Learn a row of WIDTH numbers for each vertex, which the model reads instead of features [default: off]
    #[arg(long, value_name = "WIDTH", requires = "batch")]
    pub embedding: Option<usize>,
    /// Read the features of each batch from the dataset's file, and keep in memory only the rows that are read most often:
    /// a share of all rows, as in 10%, or a size, as in 2GiB [default: off, the file is mapped]
    #[arg(long, value_name = "SIZE", requires = "batch")]
    pub feature_cache: Option<String>,
    /// Keep on each device the rows of features that are read most often, and copy only the others: a share of all rows, or
    /// a size [default: off]
    #[arg(long, value_name = "SIZE", requires = "batch")]
    pub device_cache: Option<String>,
}

/// The flags that say what is drawn. They need a flag `--batch`.
#[derive(Debug, Args)]
pub(in crate::cli) struct DrawArgs {
    /// What is drawn: neighbor (in-edges of each vertex), subgraph (all edges among the vertices of neighbor), fastgcn or
    /// ladies (vertices for each layer)
    #[arg(long, value_name = "NAME", default_value = "neighbor", requires = "batch", help_heading = "Mini-batches")]
    pub sampler: String,
    /// Number of in-edges that are drawn of each vertex, layer by layer from the seeds outwards, as in 15,10,5; with
    /// fastgcn and ladies, number of vertices that are drawn for each layer; -1: all
    #[arg(long, value_name = "LIST", requires = "batch", help_heading = "Mini-batches", allow_hyphen_values = true)]
    pub fanout: Option<String>,
    /// Draw with replacement (neighbor)
    #[arg(long, requires = "batch", help_heading = "Mini-batches")]
    pub replace: bool,
    /// Draw by the weights of the edges instead of uniformly (neighbor)
    #[arg(long, requires = "batch", help_heading = "Mini-batches", conflicts_with = "replace")]
    pub by_weight: bool,
}

impl BatchArgs {
    /// Returns the number of columns that the model reads: those of the learned rows, or those of the features.
    pub(in crate::cli) fn input_width(&self, data: &Dataset) -> usize {
        self.embedding.unwrap_or_else(|| data.feature_width())
    }

    /// Returns the mini-batches that were asked for.
    pub(in crate::cli) fn batches(&self, data: &Dataset) -> Result<Option<Batches>> {
        let Some(size) = self.batch else { return Ok(None) };
        let Some(batches) = self.draws.batches(size, data)? else { return Ok(None) };
        let mut batches = batches.look_ahead(self.look_ahead).seeds(self.seed_shares()?);
        let [in_memory, on_device] = self.caches()?;
        if let Some(cache) = in_memory {
            batches = batches.feature_cache(cache);
        }
        if let Some(cache) = on_device {
            batches = batches.device_cache(cache);
        }
        Ok(Some(batches))
    }

    /// Parses the flag `--reorder`, and checks that it goes with these and with the partition.
    ///
    /// # Errors
    /// Those of [`ReorderArgs::check`].
    pub(in crate::cli) fn reorder(&self, reorder: &ReorderArgs, partition: &Partition) -> Result<Reorder> {
        let kept = KeptByNumber {
            ranges: partition.has_ranges(),
            embedding: self.embedding.is_some(),
            feature_rows: self.feature_cache.is_some(),
        };
        reorder.check(kept)
    }

    /// Returns the gathers of a training on a device with this profile.
    pub(in crate::cli) fn gathers(&self, model: &Model, profile: &str, epochs: u64) -> RunGathers {
        match self.batch {
            Some(_) => RunGathers::of_batches(profile),
            None => RunGathers::of_training(model, profile, epochs),
        }
    }

    fn seed_shares(&self) -> Result<SeedShares> {
        parse_option("seeds", &self.seeds)
    }

    /// Returns the caches of features in memory and on the devices.
    fn caches(&self) -> Result<[Option<FeatureCache>; 2]> {
        let parsed = |option, text: &Option<String>| text.as_deref().map(|text| parse_option(option, text)).transpose();
        Ok([parsed("feature_cache", &self.feature_cache)?, parsed("device_cache", &self.device_cache)?])
    }

    /// Checks the flags, and returns the sampler, if mini-batches were asked for.
    pub(in crate::cli) fn check(&self) -> Result<Option<SamplerOptions>> {
        self.caches()?;
        self.seed_shares()?;
        if self.embedding == Some(0) {
            let (value, expected) = ("0".into(), "a row has at least one number".into());
            return Err(Error::Value { option: "embedding", value, expected });
        }
        self.draws.check()
    }
}

impl DrawArgs {
    /// Returns batches of this number of seeds, if there are fan-outs.
    pub(in crate::cli) fn batches(&self, size: usize, data: &Dataset) -> Result<Option<Batches>> {
        self.check()?.map(|options| options.batches(size, data)).transpose()
    }

    /// Checks the flags, and returns the sampler, if there are fan-outs.
    pub(in crate::cli) fn check(&self) -> Result<Option<SamplerOptions>> {
        let Some(text) = &self.fanout else { return Ok(None) };
        let options = SamplerOptions {
            name: self.sampler.clone(),
            fanouts: parse_option("fanout", text)?,
            replace: self.replace,
            by_weight: self.by_weight,
        };
        options.check()?;
        Ok(Some(options))
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Checkpoints")]
pub(in crate::cli) struct CheckpointArgs {
    /// Write checkpoints to DIR
    #[arg(long, value_name = "DIR")]
    pub checkpoint: Option<PathBuf>,
    /// Write one every N epochs, or in this interval of time (such as 90s, 10m or 1h), as well as at the end; 0: only
    /// at the end
    #[arg(long, value_name = "N", default_value = "50", requires = "checkpoint")]
    pub checkpoint_every: CheckpointInterval,
    /// Also write one after every N mini-batches of the run, within epochs [default: off]
    #[arg(long, value_name = "N", requires = "checkpoint", requires = "batch")]
    pub checkpoint_every_batches: Option<u64>,
    /// Keep the newest N checkpoints after an epoch, the newest N within one, and the best; 0: keep all
    #[arg(long, value_name = "N", default_value_t = 5, requires = "checkpoint")]
    pub keep: usize,
    /// Continue from the newest checkpoint in DIR, which may be within an epoch. --epochs and --lr may be new
    #[arg(long, requires = "checkpoint")]
    pub resume: bool,
    /// After SIGTERM or Ctrl-C, seconds for the current epoch (or mini-batch) to end; then it is abandoned, and the state
    /// before it is saved
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0)]
    pub grace: f64,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(in crate::cli) struct OutputArgs {
    /// Print the memory plan before training, and predicted beside measured times of kernels after it
    #[arg(long)]
    pub explain: bool,
    /// Write a trace of the run to FILE, in the Chrome trace format, of at most 256 MiB
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Write a page to look at to FILE (.html): loss and validation by epoch, predicted beside measured times, devices
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Write the numbers of each epoch to event files in DIR, for TensorBoard
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,
    #[command(flatten)]
    pub metrics: MetricArgs,
    /// Print JSON lines instead of tables
    #[arg(long)]
    pub json: bool,
}

/// What to do if numbers are not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum OnNan {
    Stop,
    Rollback,
}

impl CheckpointArgs {
    /// Starts the schedule of the checkpoints.
    pub(super) fn schedule(&self) -> CheckpointSchedule {
        CheckpointSchedule::new(self.checkpoint_every, self.checkpoint_every_batches.and_then(NonZeroU64::new))
    }
}

impl TrainingArgs {
    /// Returns the number of epochs.
    pub(in crate::cli) fn epochs(&self) -> u64 {
        self.epochs.unwrap_or(PLAIN_EPOCHS)
    }

    fn class_weights(&self) -> Result<ClassWeights> {
        parse_option("class_weights", &self.class_weights)
    }
}

impl TrainArgs {
    fn optimizer(&self) -> Result<Optimizer> {
        let decay = self.training.weight_decay;
        let lr = self.training.lr.unwrap_or(PLAIN_LEARNING_RATE);
        Ok(match self.training.optimizer.as_str() {
            "adam" => Adam::new(lr).weight_decay(decay.unwrap_or(0.0)).into(),
            "adamw" => AdamW::new(lr).weight_decay(decay.unwrap_or(0.01)).into(),
            "sgd" => Sgd::new(lr).momentum(self.training.momentum).weight_decay(decay.unwrap_or(0.0)).into(),
            other => {
                let expected = "there are adam, adamw and sgd".into();
                return Err(Error::Value { option: "optimizer", value: other.into(), expected });
            }
        })
    }

    fn decay_layers(&self) -> Result<DecayLayers> {
        match self.training.decay_layers.as_str() {
            "all" => Ok(DecayLayers::All),
            "first" => Ok(DecayLayers::First),
            other => {
                let expected = "write all or first".into();
                Err(Error::Value { option: "decay_layers", value: other.into(), expected })
            }
        }
    }

    pub(super) fn trainer(&self, data: &Dataset, model: &Model, ranks: &Ranks) -> Result<Trainer> {
        let mut builder = Trainer::builder(model, data)
            .options(self.device.options()?.ranks(ranks.clone()))
            .recompute(self.training.recompute.recompute())
            .strips(self.training.strips)
            .optimizer(self.optimizer()?)
            .decay_layers(self.decay_layers()?)
            .class_weights(self.training.class_weights()?)
            .dtype(self.model.dtype.float())
            .seed(self.training.seed)
            .epochs(self.training.epochs())
            .eval_every(self.training.eval_every);
        if let Some(batches) = self.batches.batches(data)? {
            let batches = batches.topology(self.topology()?);
            builder = builder.batches(match self.eval_fanouts()? {
                Some(fanouts) => batches.evaluation(NeighborSampler::new(fanouts)),
                None => batches,
            });
        }
        if let Some(width) = self.batches.embedding {
            builder = builder.embedding(width);
        }
        if let Some(norm) = self.feature_norm()? {
            builder = builder.feature_norm(norm);
        }
        if let Some(path) = &self.training.weights {
            builder = builder.weights(initial_weights(path)?);
        }
        builder.build()
    }

    /// Returns the order of the vertices. A resumed run does not choose again: `auto` is the order of its checkpoint.
    pub(super) fn reorder(&self) -> Result<Reorder> {
        let reorder = self.batches.reorder(&self.reorder, &self.device.options()?.partition)?;
        let CheckpointArgs { checkpoint, resume, .. } = &self.checkpoints;
        let folder = checkpoint.as_deref().filter(|_| *resume && reorder == Reorder::Auto);
        Ok(folder.and_then(recorded_order).map_or(reorder, Reorder::To))
    }

    fn topology(&self) -> Result<Topology> {
        parse_option("topology", &self.training.topology)
    }

    fn eval_fanouts(&self) -> Result<Option<Fanouts>> {
        self.training.eval_fanout.as_deref().map(|text| parse_option("eval_fanout", text)).transpose()
    }

    pub(super) fn feature_norm(&self) -> Result<Option<FeatureNorm>> {
        Ok(self.training.feature_norm.as_deref().map(str::parse).transpose()?)
    }

    /// Continues from a checkpoint with `--resume`. Otherwise, fails if the folder has checkpoints of an earlier run,
    /// which are never overwritten.
    pub(super) fn resume(&self, trainer: &mut Trainer) -> Result<()> {
        let Some(dir) = &self.checkpoints.checkpoint else { return Ok(()) };
        if self.checkpoints.resume {
            match trainer.resume(dir)? {
                Some(epoch) if epoch >= self.training.epochs() => {
                    say(format_args!("{} has reached epoch {epoch} already: nothing to train", dir.display()));
                }
                Some(_) => {
                    say(format_args!("resumed from {} in {}", trainer.position(), dir.display()));
                    self.change_learning_rate(trainer)?;
                }
                None => say(format_args!("no checkpoint in {} yet: starting from the beginning", dir.display())),
            }
            return Ok(());
        }
        match states(dir).first() {
            Some((newest, _)) => Err(Error::CheckpointInTheWay { path: dir.clone(), newest: newest.to_string() }),
            None => Ok(()),
        }
    }

    /// Applies `--lr` to a resumed run, if it is another rate than the run was last asked for.
    fn change_learning_rate(&self, trainer: &mut Trainer) -> Result<()> {
        let asked = trainer.asked_learning_rate();
        if let Some(lr) = self.training.lr.filter(|&lr| lr != asked) {
            say(format_args!("learning rate {lr} instead of {}", trainer.learning_rate()));
            trainer.change_learning_rate(lr, "resume")?;
        }
        Ok(())
    }

    /// Checks the values that clap accepts but that are invalid for any data.
    pub(super) fn check(&self) -> Result<()> {
        let wrong =
            |option, value: String, expected: &str| Err(Error::Value { option, value, expected: expected.into() });
        self.reorder()?;
        self.model.check()?;
        self.optimizer()?;
        self.decay_layers()?;
        self.feature_norm()?;
        self.training.class_weights()?;
        self.topology()?;
        let drawn = self.batches.check()?.map(|sampler| sampler.fanouts);
        let counts = [drawn, self.eval_fanouts()?].map(|fanouts| fanouts.map(|fanouts| fanouts.0.len()));
        if let ([Some(layers), Some(others)], Some(text)) = (counts, &self.training.eval_fanout)
            && layers != others
        {
            return Err(other_layers(text.clone(), layers));
        }
        if let Some(text) = self.training.eval_fanout.clone().filter(|_| !self.output.metrics.metric.is_empty()) {
            let expected = "option `metric` takes a pass over the whole graph; leave out one of the two, or measure a checkpoint \
                            with `infer`";
            return wrong("eval_fanout", text, expected);
        }
        let TrainingArgs { momentum, early_stop, eval_every, .. } = self.training;
        if momentum != 0.0 && self.training.optimizer != "sgd" {
            return wrong("momentum", momentum.to_string(), "only option `optimizer` sgd has a momentum");
        }
        let CheckpointArgs { checkpoint, grace, checkpoint_every_batches, .. } = &self.checkpoints;
        if *checkpoint_every_batches == Some(0) {
            return wrong("checkpoint_every_batches", "0".into(), "it is a number of mini-batches, at least 1");
        }
        if Duration::try_from_secs_f64(*grace).is_err() {
            return wrong("grace", grace.to_string(), "it is a number of seconds, 0 or more");
        }
        if self.training.on_nan == OnNan::Rollback && checkpoint.is_none() {
            return wrong("on_nan", "rollback".into(), "it returns to a checkpoint, so option `checkpoint` is needed");
        }
        match early_stop {
            Some(0) => wrong("early_stop", "0".into(), "it is a number of epochs, at least 1"),
            Some(patience) if eval_every == 0 => {
                let expected = "it compares validation accuracies, of which option `eval_every` 0 makes none";
                wrong("early_stop", patience.to_string(), expected)
            }
            _ => Ok(()),
        }
    }

    /// Checks the flags that depend on the data.
    pub(super) fn check_data(&self, data: &Dataset) -> Result<()> {
        if self.training.early_stop.is_some() && data.labelled_split_size(VAL) == 0 {
            let (what, needed_by) = ("labelled vertex in its validation split", "option `early_stop` needs one");
            return Err(Error::DataLacks { dataset: data.name().into(), what, needed_by });
        }
        Ok(())
    }
}

/// Reads the weights that a run starts from.
fn initial_weights(path: &Path) -> Result<Weights> {
    match path.is_dir() {
        true => Ok(Predictor::open(path)?.weights().clone()),
        false => Ok(Weights::load(path)?),
    }
}
