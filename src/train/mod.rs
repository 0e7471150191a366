//! Training: the optimizer, the program of an epoch, the trainer that runs it, and its checkpoints.

mod checkpoint;
mod epoch;
mod optimizer;
mod trainer;

pub use checkpoint::{Best, RunRecord};
pub(crate) use checkpoint::{MODEL_FILE, RUN_FILE, newest_epoch, read_record};
pub(crate) use epoch::{SPLITS, inference_program};
pub use optimizer::{Adam, AdamW, DecayLayers, Optimizer, Sgd};
pub use trainer::{Accuracy, Epoch, Trainer, TrainerBuilder};
