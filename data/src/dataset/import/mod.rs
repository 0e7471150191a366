//! Imports datasets from files of other programs.
//!
//! [`import`] reads any [`Format`]. Text and edges are streamed. Peak memory is the result before repeated edges are
//! dropped, a few bytes per vertex, and blocks of fixed size; edges are kept in an unnamed temporary file meanwhile.
//! Weights of edges are kept in another such file.
//! Nothing is unpacked from an archive to disk, and nothing in a pickle is run.

mod archive;
mod blocks;
#[cfg(feature = "parquet")]
mod columnar;
mod csr_archives;
mod edge_csv;
mod edge_list;
mod heterophilous;
mod ids;
mod job;
mod lux;
mod matrix_market;
mod npz;
mod numbers;
mod numpy;
mod ogb;
mod options;
mod pickle;
mod planetoid;
mod ppi;
mod rules;
mod sniff;
mod source;
mod table;
mod text;
mod vertex_order;
mod vertex_table;
mod weight_column;
mod weights;

pub use super::edge_store::Join;
pub use ids::Ids;
pub use job::{Format, Imported, Report, import};
pub use npz::npz;
pub use options::{Options, Progress, Watch};
pub use planetoid::planetoid;
pub use rules::Fate;
pub use vertex_order::Missing;
pub use vertex_table::TableColumns;
pub use weights::EdgeWeights;
