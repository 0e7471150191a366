//! Forecasts: the memory, transfers and time of a run, predicted without running it.
//!
//! A [`DryRun`] writes the programs of a training run, lowers and plans them as the run would, and predicts the time
//! from a device profile.

mod batches;
mod curve;
mod dry_run;
mod found;
mod inputs;
mod measured;
mod planned;
mod predict;
mod residency;
mod shape;
mod suite;
mod timed;
mod traffic;

pub use batches::{BatchForecast, CacheForecast};
pub use dry_run::{DryRun, Subject};
pub use found::{CurvePoint, DeviceForecast, Forecast, PartForecast, PlanForecast, PolicyForecast, StepForecast};
pub use residency::{Residency, TensorRole, TensorStay};
pub use shape::Shape;
pub use suite::{SuiteReport, measure_kernels};
#[cfg(feature = "command")]
pub(crate) use timed::{TimedEpochs, teach};
pub use traffic::{Load, Network, Traffic};

pub use crate::plan::{Rates, Timeline};
pub use lapidary_planner::memory::Arrival;
