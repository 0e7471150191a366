//! The files of predictions that `lapidary infer` writes: logits as an array, or a table with a row per vertex.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use ndarray::{Array2, ArrayView2};
use ndarray_npy::WriteNpyExt;

use crate::dataset::{Dataset, VertexNames};
use crate::error::{Error, Result};
use crate::graph::Permutation;
use crate::infer::{Classes, Predictor, predicted_class, probabilities};
use crate::model::LabelKind;
use crate::output::OutputFile;

/// The kind of a file of predictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Npy,
    /// A table whose cells are separated by a byte.
    Table(u8),
}

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
        match path.extension().map(|extension| extension.to_ascii_lowercase()).as_deref().map(|e| e.to_str()) {
            None | Some(Some("npy")) => Ok(Self::Npy),
            Some(Some("csv")) => Ok(Self::Table(b',')),
            Some(Some("tsv")) => Ok(Self::Table(b'\t')),
            Some(_) => Err(Error::Value {
                option: "out",
                value: path.display().to_string(),
                expected: "end the name in .csv or .tsv (a table of predictions), or in .npy (the logits)".into(),
            }),
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

    /// Returns the name of a vertex, or else its id.
    fn get(&self, vertex: usize) -> Cow<'_, [u8]> {
        let place = self.places.as_ref().map_or(vertex, |places| places[vertex] as usize);
        self.names.as_ref().map_or_else(|| vertex.to_string().into_bytes().into(), |names| names.get(place))
    }
}

/// A table of predictions that is being written.
pub(super) struct Table {
    writer: Box<csv::Writer<OutputFile>>,
    path: PathBuf,
    scores: Scores,
    /// Whether the first column tells the dataset.
    is_of_many: bool,
    /// The kind and the names of the classes, once the title is written.
    classes: Option<(LabelKind, Vec<String>)>,
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
    pub(super) fn create(path: &Path, separator: u8, scores: Scores, is_of_many: bool) -> Result<Self> {
        let file = OutputFile::create(path).map_err(unwritten(path))?;
        let writer = Box::new(csv::WriterBuilder::new().delimiter(separator).from_writer(file));
        Ok(Self { writer, path: path.into(), scores, is_of_many, classes: None })
    }

    /// Writes a row for each vertex, in the original order. The first dataset decides the names of the classes.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn write(&mut self, predictor: &Predictor, predicted: &Predicted<'_>) -> Result<()> {
        let classes = match self.classes.take() {
            Some(classes) => classes,
            None => {
                let Classes { labels, names } = predictor.classes_for(predicted.data);
                let names = named_classes(names, predicted.logits.ncols());
                self.write_title(&names).map_err(|error| unwritten(&self.path)(error.into()))?;
                (labels, names)
            }
        };
        self.write_rows(predicted, classes.0, &classes.1).map_err(|error| unwritten(&self.path)(error.into()))?;
        self.classes = Some(classes);
        Ok(())
    }

    fn write_rows(&mut self, predicted: &Predicted<'_>, labels: LabelKind, classes: &[String]) -> csv::Result<()> {
        let Predicted { spec, data, names, logits } = predicted;
        let order = data.permutation().map(Permutation::new_of_old);
        for vertex in 0..logits.nrows() {
            let row = logits.row(order.map_or(vertex, |order| order[vertex] as usize));
            if self.is_of_many {
                self.writer.write_field(spec)?;
            }
            self.writer.write_field(names.get(vertex))?;
            let shares = probabilities(row, labels);
            let predicted: Vec<usize> = match labels {
                LabelKind::Class => predicted_class(row).into_iter().collect(),
                LabelKind::Multi => (0..row.len()).filter(|&class| row[class] > 0.0).collect(),
            };
            self.writer.write_field(listed(&predicted, |class| classes[class].clone()))?;
            self.writer.write_field(listed(&predicted, |class| shares[class].to_string()))?;
            match self.scores {
                Scores::None => {}
                Scores::Logits => row.iter().try_for_each(|x| self.writer.write_field(x.to_string()))?,
                Scores::Probabilities => shares.iter().try_for_each(|p| self.writer.write_field(p.to_string()))?,
            }
            self.writer.write_record(None::<&[u8]>)?;
        }
        Ok(())
    }

    fn write_title(&mut self, classes: &[String]) -> csv::Result<()> {
        if self.is_of_many {
            self.writer.write_field("data")?;
        }
        for title in ["vertex", "prediction", "probability"] {
            self.writer.write_field(title)?;
        }
        let of_each = match self.scores {
            Scores::None => None,
            Scores::Probabilities => Some("probability"),
            Scores::Logits => Some("logit"),
        };
        for (what, class) in of_each.iter().flat_map(|what| classes.iter().map(move |class| (what, class))) {
            self.writer.write_field(format!("{what}:{class}"))?;
        }
        self.writer.write_record(None::<&[u8]>)
    }

    /// Completes the file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn finish(self) -> Result<()> {
        let file = self.writer.into_inner().map_err(|error| unwritten(&self.path)(error.into_error()))?;
        file.finish().map_err(unwritten(&self.path))
    }
}

/// Returns the names of the classes, or else their numbers.
pub(super) fn named_classes(names: Option<Vec<String>>, classes: usize) -> Vec<String> {
    let names = names.filter(|names| names.len() == classes);
    names.unwrap_or_else(|| (0..classes).map(|class| class.to_string()).collect())
}

/// Lists what is said of the predicted classes, separated by `;`.
fn listed(predicted: &[usize], said: impl Fn(usize) -> String) -> String {
    predicted.iter().map(|&class| said(class)).collect::<Vec<_>>().join(";")
}

/// Writes logits as an array. If the vertices were relabelled, the rows are written in the order that they had before.
pub(super) fn write_logits(
    mut file: OutputFile,
    logits: ArrayView2<'_, f32>,
    order: Option<&Permutation>,
) -> io::Result<()> {
    let restored = order.map(|order| {
        let rows = logits.to_slice().expect("predictions are row-major");
        Array2::from_shape_vec(logits.dim(), order.restored(rows, logits.ncols())).expect("as many rows as before")
    });
    restored.as_ref().map_or_else(|| logits.view(), Array2::view).write_npy(&mut file).map_err(
        |error| match error {
            ndarray_npy::WriteNpyError::Io(source) => source,
            other => io::Error::other(other),
        },
    )?;
    file.finish()
}

/// Returns the error of predictions that cannot be written.
pub(super) fn unwritten(path: &Path) -> impl FnOnce(io::Error) -> Error {
    Error::io("write the predictions", path)
}
