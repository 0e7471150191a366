//! Which values of edges are kept as weights.

use super::archive::Archive;
use super::job::ImportJob;
use super::numbers::Numbers;
use crate::dataset::edge_store::{EdgeStore, Join};
use crate::dataset::error::{Error, Result};

/// Which values of edges are kept as weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EdgeWeights<'a> {
    /// Values that are plainly weights: those of a Matrix Market file, a CSR or COO matrix that are not all 1,
    /// `edge_weight` of an archive, a column titled `weight`, `w` or `value`. Others are dropped, with a note.
    #[default]
    Guess,
    /// The values that the source has, which must be one for each edge.
    Keep,
    /// None.
    Drop,
    /// A column by its title or its number from 1, or an array of an archive by its name.
    Column(&'a str),
}

impl<'a> EdgeWeights<'a> {
    /// Parses `keep`, `drop` or a column.
    pub fn parse(text: &'a str) -> Self {
        match text {
            "keep" => Self::Keep,
            "drop" => Self::Drop,
            column => Self::Column(column),
        }
    }

    /// Returns the value as it was given, if it asks for weights.
    pub(super) fn asked(self) -> Option<&'a str> {
        match self {
            Self::Guess | Self::Drop => None,
            Self::Keep => Some("keep"),
            Self::Column(column) => Some(column),
        }
    }

    /// Returns the position of the column that is asked for by its number, from 0.
    pub(super) fn number(self) -> Option<usize> {
        let Self::Column(column) = self else { return None };
        column.parse::<usize>().ok()?.checked_sub(1)
    }

    /// Returns an error about weights that the source does not have.
    pub(super) fn refused(self, expected: impl Into<String>) -> Error {
        let found = self.asked().unwrap_or("drop");
        Error::NotForThisData {
            option: "edge_weights",
            found: format!("`{found:.60}`"),
            expected: expected.into().into(),
        }
    }
}

/// Returns a note on how weights were joined, if any were.
pub(super) fn joined_note(join: Option<Join>, symmetrised: bool) -> String {
    match (join, symmetrised) {
        (Some(join), true) => {
            format!("the weight of a repeated edge is the {} of all that were listed, in either direction", join.name())
        }
        (Some(join), false) => {
            format!("the weight of a repeated edge is the {} of those that were listed", join.name())
        }
        (None, true) => {
            "the weights of a repeated edge were added; where both directions were listed, each has the mean of the two"
                .into()
        }
        (None, false) => "the weights of a repeated edge were added".into(),
    }
}

/// The array of an archive that holds the weights.
pub(super) struct WeightArray {
    name: String,
    /// The column, and the number of columns.
    column: (usize, usize),
}

/// What is done with the values of the edges of an archive.
#[derive(Default)]
pub(super) struct Decision {
    /// The array that is kept.
    pub kept: Option<WeightArray>,
    /// Number of values other than 1 that are dropped.
    pub dropped: u64,
    pub note: Option<String>,
}

impl Decision {
    /// Decides on the values of a matrix: the array `data` of `edges` values, or another one that is asked for.
    pub(super) fn on_matrix(job: &ImportJob<'_>, archive: &mut Archive<'_>, data: &str, edges: usize) -> Result<Self> {
        Self::on(job, archive, &[data], &[data], edges)
    }

    /// Decides on the values of the edges of an archive. The first array of `plain` that is there holds weights. Those of
    /// `counts` do so only if some value is not 1.
    pub(super) fn on(
        job: &ImportJob<'_>,
        archive: &mut Archive<'_>,
        plain: &[&str],
        counts: &[&str],
        edges: usize,
    ) -> Result<Self> {
        let choice = job.options.edge_weights;
        let held = plain.iter().copied().find(|name| archive.has(name));
        let name = match choice {
            EdgeWeights::Column(name) if archive.has(name) => Some(name),
            EdgeWeights::Column(_) if choice.number().is_some() => {
                held.or(archive.has(ATTRIBUTES).then_some(ATTRIBUTES))
            }
            EdgeWeights::Column(_) => {
                let held = archive.names();
                return Err(choice.refused(format!("an array of {}, which holds {held}", job.source.display())));
            }
            EdgeWeights::Keep => held.or(archive.has(ATTRIBUTES).then_some(ATTRIBUTES)),
            EdgeWeights::Guess | EdgeWeights::Drop => held,
        };
        let Some(name) = name else {
            if choice.asked().is_some() {
                let source = job.source.display();
                return Err(choice.refused(format!("nothing or `drop`: {source} has no values of edges")));
            }
            let note = archive.has(ATTRIBUTES) && choice == EdgeWeights::Guess;
            let note = note.then(|| {
                archive.noted(ATTRIBUTES);
                format!(
                    "{ATTRIBUTES} was left out, since its meaning is unknown; set option `edge_weights` to {ATTRIBUTES} to \
                     keep it as weights"
                )
            });
            return Ok(Self { note, ..Self::default() });
        };
        let array = archive.numbers(name, "it has the weights of the edges")?;
        let columns = match array.shape[..] {
            [rows] if rows == edges => 1,
            [rows, columns] if rows == edges && columns > 0 => columns,
            _ => return Err(array.wrong_shape(format_args!("[{edges}] (one weight per edge)"))),
        };
        let which = match choice.number() {
            Some(column) if column >= columns => {
                return Err(choice.refused(format!("1 to {columns}: {} has so many columns", array.place)));
            }
            None if columns > 1 && choice.asked().is_some() => {
                return Err(choice.refused(format!("1 to {columns}: {} has several columns", array.place)));
            }
            None if columns > 1 => return Err(array.wrong_shape(format_args!("[{edges}] (one weight per edge)"))),
            which => which.unwrap_or(0),
        };
        let dropped = match choice {
            EdgeWeights::Drop => Some(array.count_other_than_one()?),
            // Values that are all 1 are not worth their memory.
            EdgeWeights::Guess if counts.contains(&name) => Some(array.count_other_than_one()?).filter(|&n| n == 0),
            _ => None,
        };
        Ok(match dropped {
            Some(dropped) => Self { dropped, ..Self::default() },
            None => {
                let kept = Some(WeightArray { name: name.into(), column: (which, columns) });
                Self { kept, ..Self::default() }
            }
        })
    }

    /// Appends the weights to a store.
    ///
    /// # Errors
    /// A value that is not finite, by its position.
    pub(super) fn read(&self, archive: &mut Archive<'_>, store: &mut EdgeStore) -> Result<()> {
        let Some(WeightArray { name, column: (column, columns) }) = &self.kept else { return Ok(()) };
        let array = archive.numbers(name, "it has the weights of the edges")?;
        let expected = "a finite weight; or set option `edge_weights` to drop";
        if *columns == 1 {
            return array.finite_blocks(expected, |values| store.extend_weights(values));
        }
        array.column_blocks((*column, *columns), expected, |values| store.extend_weights(values))
    }

    /// Returns where the weights are from, for the report.
    pub(super) fn source(&self) -> Option<String> {
        let WeightArray { name, column: (column, columns) } = self.kept.as_ref()?;
        Some(if *columns == 1 { name.clone() } else { format!("column {} of {name}", column + 1) })
    }
}

/// The array of PyTorch Geometric for features of edges, which may be anything.
const ATTRIBUTES: &str = "edge_attr";

/// Checks that values are finite; the first of them is at `position`.
pub(super) fn check_finite(array: &Numbers<'_>, position: usize, values: &[f32], expected: &str) -> Result<()> {
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(at) => Err(Error::Value {
            file: array.place.clone(),
            position: position + at,
            found: values[at].to_string(),
            expected: expected.into(),
        }),
    }
}
