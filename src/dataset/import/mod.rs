//! Datasets from files that other programs write.

mod machine;
mod npz;
mod numpy;
mod pickle;
mod planetoid;

pub use npz::npz;
pub use planetoid::planetoid;
