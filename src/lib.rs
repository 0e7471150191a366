//! Trains graph neural networks on the whole graph, exactly, and applies them to graphs that they never saw.
//!
//! A [`Dataset`] (files, arrays, a generator) and a [`Model`] (a network of layers) make a [`Trainer`], which runs one
//! full-graph epoch at a time and keeps the weights of the best one. A [`Predictor`] applies weights to other data sets.
//!
//! ```
//! use lapidary::{Adam, Dataset, Devices, Model, Trainer};
//!
//! let data = Dataset::builtin("karate")?;
//! let model = Model::gcn(&[data.feature_width(), 16, data.class_count()]).dropout(0.5);
//! let mut trainer = Trainer::builder(&model, &data)
//!     .devices(Devices::parse("cpu")?)
//!     .optimizer(Adam::new(0.01).weight_decay(5e-4))
//!     .build()?; // what cannot work is an error here, not later
//! for _ in 0..100 {
//!     let epoch = trainer.step()?;
//!     assert!(epoch.loss.is_finite());
//! }
//! let logits = trainer.predictor()?.predict(&data)?;
//! assert_eq!(logits.dim(), (34, 2));
//! # Ok::<(), lapidary::Error>(())
//! ```
//!
//! The stages that data passes, each a function from one value to the next, are the modules: [`dataset`], [`graph`],
//! [`model`], [`program`], [`lower`], and the runtime behind [`Trainer`] and [`Predictor`].

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
mod runtime;
pub mod tasks_file;
mod train;

pub use bytesize::ByteSize;
pub use dataset::{Arrays, Dataset, FeatureNorm};
pub use error::{Error, LockHolder, Result};
pub use graph::Graph;
pub use infer::{Accuracy, ModelRecord, Prediction, Predictor};
use lapidary_data::host;
pub use lapidary_data::{dataset, graph};
pub use lapidary_kernels::StorageType;
pub use model::{Model, Weight, Weights};
pub use program::Passes;
pub use runtime::{Busy, Devices, ExchangeMode, MemoryPolicy, Partition, Span, SplitRecord, StartUp, Trace, TraceFile};
pub use train::{
    Adam, AdamW, Best, DecayLayers, Epoch, Move, Optimizer, RunLock, RunRecord, Sgd, Trainer, TrainerBuilder,
};
