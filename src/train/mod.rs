//! Training: the optimizer, the program of an epoch, and the trainer that runs it.

mod builder;
mod epoch;
mod optimizer;
mod record;
mod trainer;

pub use builder::TrainerBuilder;
pub use optimizer::{Adam, AdamW, DecayLayers, Optimizer, Sgd};
pub use record::{Best, RunRecord};
pub use trainer::{Epoch, Trainer};
