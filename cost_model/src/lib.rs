//! Predicts the time to compute a range of vertices, from the structure of the graph and from measurements.
//!
//! [`FeatureSums`] has a graph's vertex features as prefix sums, so that the features of any consecutive range can be
//! read in O(1). A [`CostModel`] turns them into seconds for one operation ([`Operation`]) at a time. It starts from
//! the rates in a device [`Profile`], takes measured seconds ([`CostModel::observe`]) and fits again
//! ([`CostModel::refit`]). A [`RangeCost`] is a cost that a splitter can query for any range; it borrows the sums and
//! copies nothing.
//!
//! [`KernelTimes`] predicts single kernel calls from what they do ([`KernelWork`]), for forecasts of whole epochs.
//!
//! ```
//! use lapidary_cost_model::{CostModel, FeatureSums, Operation, Profile, Work};
//!
//! // Four vertices in CSR over in-edges, for gathers of 64 columns.
//! let (indptr, indices) = ([0, 2, 3, 3, 6], [1, 2, 0, 0, 1, 3]);
//! let mut model = CostModel::new(Profile::named("h200").expect("it is built in"))?;
//! let sums = FeatureSums::new(&indptr, &indices, model.profile(), &[64])?;
//!
//! let op = Operation::new("gather", Work::Gather { width: 64 });
//! let features = sums.columns(64)?.of(0..2);
//! model.observe(&op, &features, 3e-5)?;
//! model.refit();
//! assert!((model.predict(&op, &features) / 3e-5 - 1.0).abs() < 0.05);
//! assert!(model.range_cost(&[op], &sums)?.of(0..4) > 0.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cache;
mod error;
mod feature;
mod file;
mod fit;
mod gpu;
mod kernel_times;
mod kernel_work;
mod kin;
mod model;
mod nnls;
mod op;
mod profile;
mod range_cost;
mod sample;
mod sums;

pub mod calibration;

pub use error::SumsError;
pub use feature::{FEATURES, Feature, Features};
pub use file::FileError;
pub use gpu::GpuRates;
pub use kernel_times::{Estimate, KernelTimes, KernelTimesError};
pub use kernel_work::{KernelWork, QUANTITIES, Quantity};
pub use kin::{BF16, IN_WINDOWS, OF_LONG_ROWS, OVER_TILES, WITH_HALO};
pub use model::{CostModel, SampleError};
pub use op::{Operation, Work};
pub use profile::{Profile, ProfileError};
pub use range_cost::RangeCost;
pub use sums::{Columns, FeatureSums};

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
