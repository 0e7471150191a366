//! The files of predictions that `lapidary infer` writes: logits as an array, or a table with a row per vertex.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use ndarray::ArrayView2;

use super::table_file::{TableFile, TableFormat};
use crate::dataset::npy::{self, Dtype};
use crate::dataset::{Dataset, VertexNames};
use crate::error::{Error, Result};
use crate::graph::Permutation;
use crate::infer::{Predictor, predicted_class, probabilities};
use crate::model::LabelKind;
use crate::output::OutputFile;

/// The kind of a file of predictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Npy,
    Table(TableFormat),
}

/// The endings of names of tables, in messages.
#[cfg(feature = "parquet")]
pub(super) const TABLES: &str = ".csv, .tsv, .parquet or .arrow";
#[cfg(not(feature = "parquet"))]
pub(super) const TABLES: &str = ".csv or .tsv";

/// What a table has of every class, beside the predicted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Scores {
    None,
    Probabilities,
    Logits,
}

impl Format {
    /// Returns the format that a file's name asks for. A name without an extension is an array's.
    ///
    /// # Errors
    /// [`Error::Value`] for another extension.
    pub(super) fn of(path: &Path) -> Result<Self> {
        let wrong = |expected: String| Err(Error::Value { option: "out", value: path.display().to_string(), expected });
        match path.extension().map(|extension| extension.to_ascii_lowercase()).as_deref().map(|e| e.to_str()) {
            None | Some(Some("npy")) => Ok(Self::Npy),
            Some(Some("csv")) => Ok(Self::Table(TableFormat::Text(b','))),
            Some(Some("tsv")) => Ok(Self::Table(TableFormat::Text(b'\t'))),
            #[cfg(feature = "parquet")]
            Some(Some("parquet")) => Ok(Self::Table(TableFormat::Parquet)),
            #[cfg(feature = "parquet")]
            Some(Some("arrow" | "feather")) => Ok(Self::Table(TableFormat::Arrow)),
            #[cfg(not(feature = "parquet"))]
            Some(Some("parquet" | "arrow" | "feather")) => wrong(format!(
                "this program was built without the feature `parquet`; build it with `--features parquet`, or end the name \
                 in {TABLES}"
            )),
            Some(_) => wrong(format!("end the name in {TABLES} (a table of predictions), or in .npy (the logits)")),
        }
    }
}

/// The names of the vertices of a dataset in their original order.
pub(super) struct Names {
    names: Option<VertexNames>,
    /// The vertex of the dataset's files at each place of the original order, if they are in another one.
    places: Option<Vec<u32>>,
}

impl Names {
    /// Opens the names of a dataset that was loaded as `spec`, before its vertices are moved in memory.
    ///
    /// # Errors
    /// Those of [`VertexNames::open`].
    pub(super) fn open(spec: &str, data: &Dataset) -> Result<Self> {
        let names = match Dataset::is_builtin(spec) {
            true => None,
            false => VertexNames::open(Path::new(spec), data.graph().vertex_count())?,
        };
        let places = data.permutation().filter(|_| names.is_some()).map(|order| order.new_of_old().to_vec());
        Ok(Self { names, places })
    }

    /// Returns whether vertices are numbers: those of the imported file, or else their ids.
    fn are_numbers(&self) -> bool {
        self.names.as_ref().is_none_or(VertexNames::are_numbers)
    }

    fn get(&self, vertex: usize) -> VertexName<'_> {
        let Some(names) = &self.names else { return VertexName::Number(vertex as i64) };
        let place = self.places.as_ref().map_or(vertex, |places| places[vertex] as usize);
        names.number(place).map_or_else(|| VertexName::Text(names.get(place)), VertexName::Number)
    }
}

/// What a vertex is called in a table.
pub(super) enum VertexName<'a> {
    Number(i64),
    /// Text, which need not be UTF-8.
    Text(Cow<'a, [u8]>),
}

/// A table of predictions that is being written.
pub(super) struct Table {
    /// The file, until the first dataset says what the columns are.
    empty: Option<OutputFile>,
    started: Option<TableFile>,
    path: PathBuf,
    format: TableFormat,
    scores: Scores,
    /// Whether the first column tells the dataset.
    is_of_many: bool,
}

/// What the columns of a table are.
pub(super) struct Columns {
    pub is_of_many: bool,
    /// Whether all vertices are numbers.
    #[cfg_attr(not(feature = "parquet"), allow(dead_code))] // only columns with types depend on it
    pub vertices_are_numbers: bool,
    pub labels: LabelKind,
    /// The names of the classes, or else their numbers.
    pub classes: Vec<String>,
    #[cfg_attr(not(feature = "parquet"), allow(dead_code))] // only columns with types depend on it
    pub classes_have_names: bool,
    pub scores: Scores,
}

/// A row of a table.
pub(super) struct Row<'a> {
    pub spec: &'a str,
    pub vertex: VertexName<'a>,
    /// The predicted classes: at most one, unless vertices have several labels.
    pub predicted: Vec<usize>,
    /// The probability of each class.
    pub shares: Vec<f32>,
    pub logits: &'a [f32],
}

impl Columns {
    /// Returns the scores of a row that have columns of their own.
    pub(super) fn scores_of<'a>(&self, row: &'a Row<'_>) -> &'a [f32] {
        match self.scores {
            Scores::None => &[],
            Scores::Probabilities => &row.shares,
            Scores::Logits => row.logits,
        }
    }

    /// Returns the titles of the columns of scores.
    pub(super) fn score_titles(&self) -> impl Iterator<Item = String> {
        let what = match self.scores {
            Scores::None => None,
            Scores::Probabilities => Some("probability"),
            Scores::Logits => Some("logit"),
        };
        what.into_iter().flat_map(|what| self.classes.iter().map(move |class| format!("{what}:{class}")))
    }
}

/// The predictions for a dataset.
pub(super) struct Predicted<'a> {
    /// What names the dataset on the command line.
    pub spec: &'a str,
    pub data: &'a Dataset,
    pub names: &'a Names,
    /// `[n, classes]`, in the order of `data`.
    pub logits: ArrayView2<'a, f32>,
}

impl Table {
    /// Opens a table.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn create(path: &Path, format: TableFormat, scores: Scores, is_of_many: bool) -> Result<Self> {
        let empty = Some(OutputFile::create(path).map_err(unwritten(path))?);
        Ok(Self { empty, started: None, path: path.into(), format, scores, is_of_many })
    }

    /// Writes a row for each vertex, in the original order. The first dataset decides the names of the classes.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn write(&mut self, predictor: &Predictor, predicted: &Predicted<'_>) -> Result<()> {
        self.write_rows(predictor, predicted).map_err(unwritten(&self.path))
    }

    fn write_rows(&mut self, predictor: &Predictor, predicted: &Predicted<'_>) -> io::Result<()> {
        let Predicted { spec, data, names, logits } = predicted;
        if let Some(file) = self.empty.take() {
            let (found, count) = (predictor.classes_for(data), logits.ncols());
            let columns = Columns {
                is_of_many: self.is_of_many,
                // Of several datasets, some may have names.
                vertices_are_numbers: names.are_numbers() && !self.is_of_many,
                labels: found.labels,
                classes_have_names: found.names.as_ref().is_some_and(|names| names.len() == count),
                classes: found.named(count),
                scores: self.scores,
            };
            self.started = Some(TableFile::start(file, self.format, columns)?);
        }
        let Some(file) = &mut self.started else { return Ok(()) };
        let labels = file.columns().labels;
        let order = data.permutation().map(Permutation::new_of_old);
        for vertex in 0..logits.nrows() {
            let logits = logits.row(order.map_or(vertex, |order| order[vertex] as usize));
            let predicted = match labels {
                LabelKind::Class => predicted_class(logits).into_iter().collect(),
                LabelKind::Multi => (0..logits.len()).filter(|&class| logits[class] > 0.0).collect(),
            };
            let shares = probabilities(logits, labels);
            let logits = logits.to_slice().expect("logits are row-major");
            file.write(Row { spec, vertex: names.get(vertex), predicted, shares, logits })?;
        }
        Ok(())
    }

    /// Completes the file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn finish(self) -> Result<()> {
        self.started.map_or(Ok(()), TableFile::finish).map_err(unwritten(&self.path))
    }
}

/// Writes logits as an array. If the vertices were relabelled, the rows are written in the order that they had before.
pub(super) fn write_logits(
    mut file: OutputFile,
    logits: ArrayView2<'_, f32>,
    order: Option<&Permutation>,
) -> io::Result<()> {
    let rows = logits.to_slice().expect("predictions are row-major");
    let restored = order.map(|order| order.restored(rows, logits.ncols()));
    npy::write(&mut file, Dtype::F32, &[logits.nrows(), logits.ncols()], restored.as_deref().unwrap_or(rows))?;
    file.finish()
}

/// Returns the error of predictions that cannot be written.
pub(super) fn unwritten(path: &Path) -> impl FnOnce(io::Error) -> Error {
    Error::io("write the predictions", path)
}
