//! Forecasts: what a run will need, move and take, said before anything runs.
//!
//! A [`DryRun`] makes the programs of a training run, lowers and plans them as the run would, and predicts seconds from a
//! device's profile.

mod dry_run;
mod found;
mod predict;
mod shape;

pub use dry_run::{DryRun, Subject};
pub use found::{CurvePoint, DeviceForecast, Forecast, PartForecast, PlanForecast, PolicyForecast, StepForecast};
pub use predict::{call_seconds, script_seconds};
pub use shape::Shape;
