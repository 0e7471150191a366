//! Training: optimizers, the programs of an epoch, and the trainer that runs them.

mod batches;
mod builder;
mod checkpoint_schedule;
mod checkpoint_writer;
mod class_weights;
mod divergence;
mod embedding;
mod epoch;
mod lock;
mod optimizer;
mod record;
mod resume;
mod running;
mod snapshot;
mod splits;
mod suggested;
mod trainer;

pub use batches::{
    BatchRecord, Batches, FeatureCache, ParseFeatureCacheError, ParseSeedSharesError, ParseTopologyError,
    SamplerOptions, SeedShares, StageSeconds, Topology,
};
pub(crate) use batches::{Drawing, Sources};
#[cfg(feature = "command")]
pub(crate) use batches::{labelled, other_layers};
pub use builder::TrainerBuilder;
pub use checkpoint_schedule::{CheckpointInterval, CheckpointSchedule, ParseCheckpointIntervalError};
pub use checkpoint_writer::CheckpointWriter;
pub use class_weights::{ClassWeights, ParseClassWeightsError};
pub use embedding::EmbeddingSize;
pub(crate) use embedding::check_embedding;
pub(crate) use epoch::{EpochSpec, Instead, TrainingProgram, gradient_name, training_program};
pub use lock::RunLock;
#[cfg(feature = "command")]
pub(crate) use lock::utc;
pub use optimizer::{Adam, AdamW, DecayLayers, Optimizer, Sgd};
pub use record::{Best, Change, PartialEpoch, RunRecord};
pub use resume::recorded_order;
pub use snapshot::Snapshot;
pub use splits::Move;
pub use suggested::Suggested;
#[cfg(feature = "command")]
pub(crate) use suggested::{PLAIN_EPOCHS, PLAIN_HIDDEN, PLAIN_LEARNING_RATE};
pub use trainer::{Epoch, Trainer};
