//! Whether the GPU computes what it should. These sections have no deadline: a check that was not made has no result.

mod battery;
mod gathers;
mod memory;
mod models;

pub(super) use battery::{every_call, many_cells};
pub(super) use gathers::published;
pub(super) use memory::against_the_driver;
pub(super) use models::against_the_cpu;
