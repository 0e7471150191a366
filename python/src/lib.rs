//! The native half of the Python package `lapidary`: conversions between Python and the Rust library, and nothing else.
//!
//! The other half, in `python/lapidary/`, is what users import.

mod batches;
mod between_batches;
mod checkpoints;
mod dataset;
mod error;
mod forecast;
mod lent;
mod order;
mod predictor;
mod run_lock;
mod settings;
mod suggested;
mod trainer;

#[pyo3::pymodule]
mod _lapidary {
    #[pymodule_export]
    use crate::checkpoints::NativeCheckpoints;
    #[pymodule_export]
    use crate::dataset::NativeDataset;
    #[pymodule_export]
    use crate::forecast::{forecast, forecast_batches};
    #[pymodule_export]
    use crate::order::recorded_order;
    #[pymodule_export]
    use crate::predictor::NativePredictor;
    #[pymodule_export]
    use crate::run_lock::NativeRunLock;
    #[pymodule_export]
    use crate::suggested::suggest;
    #[pymodule_export]
    use crate::trainer::NativeTrainer;

    /// The version of the package.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
