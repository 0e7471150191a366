//! Trains graph neural networks on the whole graph, without sampling, and applies them to graphs that they have not
//! seen.
//!
//! A [`Dataset`] (files, arrays, a generator) and a [`Model`] (a network of layers) make a [`Trainer`]. It runs one
//! full-graph epoch at a time and keeps the weights of the best one. A [`Predictor`] applies weights to other datasets.
//!
//! ```
//! use lapidary::{Adam, Dataset, Devices, Model, Trainer};
//!
//! let data = Dataset::builtin("karate")?;
//! let model = Model::gcn(&[data.feature_width(), 16, data.class_count()]).dropout(0.5);
//! let mut trainer = Trainer::builder(&model, &data)
//!     .devices(Devices::parse("cpu")?)
//!     .optimizer(Adam::new(0.01).weight_decay(5e-4))
//!     .build()?; // invalid settings and too little memory are reported here, not later
//! for _ in 0..100 {
//!     let epoch = trainer.step()?;
//!     assert!(epoch.loss.is_finite());
//! }
//! let logits = trainer.predictor()?.predict(&data)?;
//! assert_eq!(logits.dim(), (34, 2));
//! # Ok::<(), lapidary::Error>(())
//! ```
//!
//! Data passes through these stages, each a function from one value to the next: [`dataset`], [`graph`], [`model`],
//! [`program`], [`lower`], [`plan`], and the runtime behind [`Trainer`] and [`Predictor`].
//!
//! # Stability
//! The items exported here, and the modules [`dataset`], [`graph`], [`partition`], [`model`] and [`forecast`], follow semantic
//! versioning. The modules [`kernels`], [`lower`], [`plan`], [`profile`], [`program`] and [`tasks_file`] are unstable:
//! any release may change them.

mod bind;
#[cfg(feature = "command")]
pub mod cli;
mod error;
pub mod forecast;
mod infer;
pub mod lower;
pub mod model;
mod output;
pub mod plan;
pub mod profile;
pub mod program;
mod ranks;
mod runtime;
pub mod tasks_file;
mod train;
mod versions;

pub use bytesize::ByteSize;
pub use dataset::{Arrays, Dataset, FeatureNorm};
pub use error::{Error, LockHolder, NotFinite, Result, parse_option};
pub use graph::{Graph, VertexOrder};
pub use infer::{
    Accuracy, Classes, GraphPrediction, LivePredictions, ModelRecord, Position, Prediction, Predictions, Predictor,
    PreparedPredictor, SplitPredictions, Update,
};
pub use lapidary_cost_model::Profile;
pub use lapidary_data::{dataset, graph, partition, sample};
use lapidary_data::{host, plain_file};
pub use lapidary_kernels as kernels;
pub use lapidary_kernels::{Matmul, StorageType};
pub use lapidary_planner::memory::Objective;
pub use lapidary_planner::partition::Strategy;
pub use lower::{BackwardMode, SumMode};
pub use model::{Model, Weight, Weights};
pub use ndarray;
pub use plan::{KeptByNumber, Reorder};
pub use program::{Passes, Recompute, Strips};
pub use ranks::{Link, Ranks, Sent};
pub use runtime::{
    Busy, Devices, ExchangeMode, MemoryPolicy, Partition, RunOptions, Span, SplitRecord, StageSpan, StartUp, Trace,
    TraceFile,
};
pub use train::{
    Adam, AdamW, BatchRecord, Batches, Best, Change, CheckpointInterval, CheckpointSchedule, CheckpointWriter,
    ClassWeights, DecayLayers, EmbeddingSize, Epoch, FeatureCache, Move, Optimizer, ParseCheckpointIntervalError,
    ParseClassWeightsError, ParseFeatureCacheError, ParseSeedSharesError, ParseTopologyError, PartialEpoch, RunLock,
    RunRecord, SamplerOptions, SeedShares, Sgd, Snapshot, StageSeconds, Suggested, Topology, Trainer, TrainerBuilder,
    recorded_order,
};
