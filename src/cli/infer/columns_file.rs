//! Tables of predictions in Parquet and Arrow files, whose columns have types.
//!
//! A vertex is a text if it has a name, and a number if not; so is a class. Of vertices with several labels, `prediction` and
//! `probability` are lists. A prediction that is not a number is null.

use std::io;
use std::sync::Arc;

use arrow_array::builder::{Float32Builder, Int64Builder, ListBuilder, StringBuilder};
use arrow_array::{ArrayRef, Float32Array, Int64Array, RecordBatch, StringArray};
use arrow_ipc::writer::FileWriter;
use arrow_schema::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

use super::predictions::{Columns, Row, VertexName};
use crate::model::LabelKind;
use crate::output::OutputFile;

/// Rows that are held before they are written.
const ROWS: usize = 1 << 14;

/// Most bytes of a group of rows, which a Parquet file is written in.
const ROW_GROUP_BYTES: usize = 64 << 20;

/// A file of typed columns.
pub(super) struct ColumnsFile {
    writer: Writer,
    rows: Rows,
}

enum Writer {
    Parquet(ArrowWriter<OutputFile>),
    Arrow(FileWriter<OutputFile>),
}

/// Rows that are not written yet, by column.
#[derive(Default)]
struct Rows {
    data: Vec<String>,
    /// The vertices, if all of them are numbers.
    numbers: Vec<i64>,
    /// The vertices otherwise.
    names: Vec<String>,
    predicted: Vec<Vec<usize>>,
    probabilities: Vec<Vec<f32>>,
    scores: Vec<Vec<f32>>,
}

impl ColumnsFile {
    /// Starts a Parquet file, compressed with Snappy, as other programs do by default.
    pub(super) fn parquet(file: OutputFile, columns: &Columns) -> io::Result<Self> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_bytes(Some(ROW_GROUP_BYTES))
            .build();
        let writer = Writer::Parquet(ArrowWriter::try_new(file, schema(columns)?, Some(properties))?);
        Ok(Self { writer, rows: Rows::default() })
    }

    /// Starts an Arrow file.
    pub(super) fn arrow(file: OutputFile, columns: &Columns) -> io::Result<Self> {
        let writer = FileWriter::try_new(file, schema(columns)?.as_ref()).map_err(io::Error::other)?;
        Ok(Self { writer: Writer::Arrow(writer), rows: Rows::default() })
    }

    pub(super) fn write(&mut self, columns: &Columns, row: Row<'_>) -> io::Result<()> {
        let rows = &mut self.rows;
        if columns.is_of_many {
            rows.data.push(row.spec.into());
        }
        match &row.vertex {
            VertexName::Number(number) if columns.vertices_are_numbers => rows.numbers.push(*number),
            VertexName::Number(number) => rows.names.push(number.to_string()),
            VertexName::Text(text) => rows.names.push(String::from_utf8_lossy(text).into_owned()),
        }
        rows.probabilities.push(row.predicted.iter().map(|&class| row.shares[class]).collect());
        rows.scores.push(columns.scores_of(&row).to_vec());
        rows.predicted.push(row.predicted);
        if rows.predicted.len() == ROWS { self.flush(columns) } else { Ok(()) }
    }

    fn flush(&mut self, columns: &Columns) -> io::Result<()> {
        let batch = std::mem::take(&mut self.rows).batch(columns)?;
        match &mut self.writer {
            Writer::Parquet(writer) => Ok(writer.write(&batch)?),
            Writer::Arrow(writer) => writer.write(&batch).map_err(io::Error::other),
        }
    }

    /// Writes the last rows, and completes the file.
    pub(super) fn finish(mut self, columns: &Columns) -> io::Result<()> {
        self.flush(columns)?;
        match self.writer {
            Writer::Parquet(writer) => writer.into_inner()?.finish(),
            Writer::Arrow(writer) => writer.into_inner().map_err(io::Error::other)?.finish(),
        }
    }
}

/// Returns the titles and types of the columns, which are those of no rows.
fn schema(columns: &Columns) -> io::Result<SchemaRef> {
    Ok(Rows::default().batch(columns)?.schema())
}

impl Rows {
    fn batch(&self, columns: &Columns) -> io::Result<RecordBatch> {
        let mut named: Vec<(String, ArrayRef)> = Vec::new();
        if columns.is_of_many {
            named.push(("data".into(), Arc::new(StringArray::from_iter_values(&self.data))));
        }
        let vertices: ArrayRef = match columns.vertices_are_numbers {
            true => Arc::new(Int64Array::from_iter_values(self.numbers.iter().copied())),
            false => Arc::new(StringArray::from_iter_values(&self.names)),
        };
        named.push(("vertex".into(), vertices));
        named.push(("prediction".into(), self.predictions(columns)));
        named.push(("probability".into(), self.probabilities(columns)));
        for (at, title) in columns.score_titles().enumerate() {
            named.push((title, Arc::new(Float32Array::from_iter_values(self.scores.iter().map(|row| row[at])))));
        }
        // All batches have the same columns, whether or not they have nulls.
        let nullable = named.into_iter().map(|(title, values)| (title, values, true));
        RecordBatch::try_from_iter_with_nullable(nullable).map_err(io::Error::other)
    }

    fn predictions(&self, columns: &Columns) -> ArrayRef {
        let (one, name) = (columns.labels == LabelKind::Class, |class: usize| columns.classes[class].as_str());
        let first = || self.predicted.iter().map(|row| row.first().copied());
        match (one, columns.classes_have_names) {
            (true, true) => Arc::new(StringArray::from_iter(first().map(|class| class.map(name)))),
            (true, false) => Arc::new(Int64Array::from_iter(first().map(|class| class.map(|class| class as i64)))),
            (false, true) => {
                let mut lists = ListBuilder::new(StringBuilder::new());
                self.predicted.iter().for_each(|row| lists.append_value(row.iter().map(|&class| Some(name(class)))));
                Arc::new(lists.finish())
            }
            (false, false) => {
                let mut lists = ListBuilder::new(Int64Builder::new());
                self.predicted.iter().for_each(|row| lists.append_value(row.iter().map(|&class| Some(class as i64))));
                Arc::new(lists.finish())
            }
        }
    }

    fn probabilities(&self, columns: &Columns) -> ArrayRef {
        if columns.labels == LabelKind::Class {
            return Arc::new(Float32Array::from_iter(self.probabilities.iter().map(|row| row.first().copied())));
        }
        let mut lists = ListBuilder::new(Float32Builder::new());
        self.probabilities.iter().for_each(|row| lists.append_value(row.iter().map(|&share| Some(share))));
        Arc::new(lists.finish())
    }
}
