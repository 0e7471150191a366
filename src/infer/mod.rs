//! Inference: applies a trained model to graphs that it has not seen. Also evaluation and checkpoints, which training
//! uses too.

mod batch;
pub(crate) mod checkpoint;
pub(crate) mod digests;
mod evaluation;
mod lanes;
mod live;
mod many;
mod metrics;
mod pass;
mod predictor;
mod prepared;
mod size;
mod spare_devices;
mod spare_rows;
mod stored_rows;

pub use batch::GraphPrediction;
pub use checkpoint::{Classes, ModelRecord, Position};
pub use evaluation::Accuracy;
pub(crate) use evaluation::{Counts, evaluation_program, push_on_split};
pub use live::{LivePredictions, Update};
pub use many::Predictions;
pub use metrics::SplitPredictions;
#[cfg(feature = "command")]
pub(crate) use metrics::{predicted_class, probabilities};
pub(crate) use predictor::TrainedOn;
pub use predictor::{Prediction, Predictor};
pub use prepared::PreparedPredictor;
