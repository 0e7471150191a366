//! Datasets whose parts are consecutive.

use std::io::Write;
use std::ops::Range;
use std::path::Path;

use super::Assignment;
use crate::dataset::names;
use crate::dataset::write::put_file;
use crate::dataset::{Dataset, Result};

/// The file with the ranges of the parts.
const PARTS_FILE: &str = "parts.json";

/// Writes a dataset directory in which the vertices of each part are consecutive, and the ranges of the parts in it as
/// `parts.json`. Everything in the dataset follows its vertices; see [`Dataset::relabelled`]. So do the names of vertices in
/// `names_from`, the directory that `data` was opened from.
///
/// # Returns
/// The range of each part.
/// # Errors
/// Those of [`Dataset::write`]; [`Error::Changed`](crate::dataset::Error::Changed) if a file of `data` changed meanwhile;
/// [`Error::Shape`](crate::dataset::Error::Shape) if there is not one name per vertex.
/// # Panics
/// If the assignment has another number of vertices than the dataset.
/// # Cost
/// O(size) and sorting each row of edges. The dataset but for its features is copied in memory.
pub fn write(
    data: &Dataset,
    assignment: &Assignment,
    names_from: Option<&Path>,
    dir: impl AsRef<Path>,
) -> Result<Vec<Range<usize>>> {
    assert_eq!(assignment.part_of().len(), data.graph().vertex_count(), "the part of each vertex");
    let (order, ranges) = assignment.relabelling();
    data.write_relabelled(&order, dir.as_ref(), |dir| {
        if let Some(from) = names_from {
            names::relabel(from, &order, dir)?;
        }
        let pairs: Vec<String> = ranges.iter().map(|range| format!("[{}, {}]", range.start, range.end)).collect();
        put_file(&dir.join(PARTS_FILE), |to| writeln!(to, "[{}]", pairs.join(", ")))
    })?;
    Ok(ranges)
}
