//! Labels: one class per vertex, or several.

use lapidary_arrays::NO_LABEL;
use lapidary_arrays::Shared;
use rayon::prelude::*;

use super::error::{Error, Result};

/// The most classes that are accepted. More are taken for a mistake, since each class is a column of every logit
/// matrix.
pub(crate) const MAX_CLASSES: usize = 1 << 24;

/// The labels of all vertices. Cloning shares the arrays.
#[derive(Clone, Debug)]
pub enum Labels {
    /// `[vertices]`: the class of each vertex, or [`NO_LABEL`] (-1 on disk) if it has none.
    Class(Shared<u32>),
    /// `[vertices, classes]` of 0 and 1: all classes that apply.
    Multi {
        /// The cells, in row-major order.
        data: Shared<u8>,
        /// Number of columns.
        classes: usize,
    },
}

impl Labels {
    /// Returns whether a vertex has a label. With several labels per vertex it always has one: perhaps no class
    /// applies.
    ///
    /// # Panics
    /// If there is no such vertex and there is one label per vertex.
    pub fn is_labelled(&self, vertex: usize) -> bool {
        match self {
            Self::Class(classes) => classes[vertex] != NO_LABEL,
            Self::Multi { .. } => true,
        }
    }

    /// Checks one label per vertex. Without `classes`, the number of classes is the greatest label plus 1.
    ///
    /// # Returns
    /// The labels and the number of classes.
    pub(crate) fn single(labels: &[i64], classes: Option<usize>, file: &str) -> Result<(Self, usize)> {
        const MOST: i64 = MAX_CLASSES as i64 - 1;
        let greatest = labels.par_iter().copied().max().unwrap_or(-1);
        let classes = classes.unwrap_or((greatest.clamp(-1, MOST) + 1) as usize);
        let bad = |label: i64| !(-1..=MOST).contains(&label) || label >= classes as i64;
        if let Some(vertex) = labels.par_iter().position_first(|&label| bad(label)) {
            return Err(Error::Label { file: file.into(), vertex, found: labels[vertex], classes });
        }
        // -1 becomes `u32::MAX`, which is NO_LABEL.
        let narrow: Vec<u32> = labels.par_iter().map(|&label| label as u32).collect();
        Ok((Self::Class(narrow.into()), classes))
    }

    /// Checks several labels per vertex.
    pub(crate) fn multi(data: Shared<u8>, classes: usize, file: &str) -> Result<Self> {
        if let Some(position) = data.par_iter().position_first(|&x| x > 1) {
            let (row, column) = (position / classes, position % classes);
            return Err(Error::Value {
                file: file.into(),
                position,
                found: data[position].to_string(),
                expected: format!("0 or 1 (vertex {row}, class {column})"),
            });
        }
        Ok(Self::Multi { data, classes })
    }
}
