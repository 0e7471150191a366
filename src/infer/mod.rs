//! Inference: a trained model on graphs that it never saw.

mod predictor;

pub use predictor::{Prediction, Predictor};
