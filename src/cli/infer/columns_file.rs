//! Tables of predictions in Parquet and Arrow files, whose columns have types.
//!
//! A vertex is a text if it has a name, and a number if not; so is a class. Of vertices with several labels, `prediction` and
//! `probability` are lists. A prediction that is not a number is null.

use std::io;
use std::sync::Arc;

use arrow_array::builder::{Float32Builder, Int64Builder, ListBuilder, StringBuilder};
use arrow_array::{ArrayRef, Float32Array, Int64Array, RecordBatch, StringArray};
use arrow_ipc::writer::FileWriter;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

use super::predictions::{Columns, Row};
use super::table_file::TableFormat;
use crate::model::LabelKind;
use crate::output::OutputFile;

/// Rows that are held before they are written.
const ROWS: usize = 1 << 14;

/// Most bytes of a group of rows, which a Parquet file is written in.
const ROW_GROUP_BYTES: usize = 64 << 20;

/// A file of typed columns.
pub(super) struct ColumnsFile {
    /// The file until the columns are known.
    file: Option<OutputFile>,
    format: TableFormat,
    writer: Option<Writer>,
    rows: Rows,
}

enum Writer {
    /// Compressed by Snappy, as other programs do by default.
    Parquet(ArrowWriter<OutputFile>),
    Arrow(FileWriter<OutputFile>),
}

/// Rows that are not written yet, by column.
#[derive(Default)]
struct Rows {
    data: Vec<String>,
    vertices: Vec<String>,
    predicted: Vec<Vec<usize>>,
    probabilities: Vec<Vec<f32>>,
    scores: Vec<Vec<f32>>,
}

impl ColumnsFile {
    pub(super) fn new(file: OutputFile, format: TableFormat) -> Self {
        Self { file: Some(file), format, writer: None, rows: Rows::default() }
    }

    /// Writes the head of the file.
    pub(super) fn start(&mut self, columns: &Columns) -> io::Result<()> {
        let Some(file) = self.file.take() else { return Ok(()) };
        // Without rows, the types are known as well.
        let batch = Rows::default().batch(columns)?;
        self.writer = Some(match self.format {
            TableFormat::Parquet => {
                let properties = WriterProperties::builder()
                    .set_compression(Compression::SNAPPY)
                    .set_max_row_group_bytes(Some(ROW_GROUP_BYTES))
                    .build();
                Writer::Parquet(ArrowWriter::try_new(file, batch.schema(), Some(properties))?)
            }
            _ => Writer::Arrow(FileWriter::try_new(file, &batch.schema()).map_err(io::Error::other)?),
        });
        Ok(())
    }

    pub(super) fn write(&mut self, columns: &Columns, row: Row<'_>) -> io::Result<()> {
        let rows = &mut self.rows;
        if columns.is_of_many {
            rows.data.push(row.spec.into());
        }
        rows.vertices.push(String::from_utf8_lossy(&row.vertex).into_owned());
        rows.probabilities.push(row.predicted.iter().map(|&class| row.shares[class]).collect());
        rows.scores.push(columns.scores_of(&row).to_vec());
        rows.predicted.push(row.predicted);
        if rows.predicted.len() == ROWS { self.flush(columns) } else { Ok(()) }
    }

    fn flush(&mut self, columns: &Columns) -> io::Result<()> {
        let batch = std::mem::take(&mut self.rows).batch(columns)?;
        match &mut self.writer {
            Some(Writer::Parquet(writer)) => Ok(writer.write(&batch)?),
            Some(Writer::Arrow(writer)) => writer.write(&batch).map_err(io::Error::other),
            None => Ok(()),
        }
    }

    /// Writes the last rows, and completes the file.
    pub(super) fn finish(mut self, columns: Option<&Columns>) -> io::Result<()> {
        columns.map_or(Ok(()), |columns| self.flush(columns))?;
        match self.writer {
            Some(Writer::Parquet(writer)) => writer.into_inner()?.finish(),
            Some(Writer::Arrow(writer)) => writer.into_inner().map_err(io::Error::other)?.finish(),
            None => Ok(()),
        }
    }
}

impl Rows {
    fn batch(&self, columns: &Columns) -> io::Result<RecordBatch> {
        let mut named: Vec<(String, ArrayRef)> = Vec::new();
        if columns.is_of_many {
            named.push(("data".into(), Arc::new(StringArray::from_iter_values(&self.data))));
        }
        named.push(("vertex".into(), self.vertices(columns)));
        named.push(("prediction".into(), self.predictions(columns)));
        named.push(("probability".into(), self.probabilities(columns)));
        for (at, title) in columns.score_titles().enumerate() {
            named.push((title, Arc::new(Float32Array::from_iter_values(self.scores.iter().map(|row| row[at])))));
        }
        // All batches have the same columns, whether or not they have nulls.
        let nullable = named.into_iter().map(|(title, values)| (title, values, true));
        RecordBatch::try_from_iter_with_nullable(nullable).map_err(io::Error::other)
    }

    fn vertices(&self, columns: &Columns) -> ArrayRef {
        // Of several datasets, some may have names.
        if columns.vertices_have_names || columns.is_of_many {
            return Arc::new(StringArray::from_iter_values(&self.vertices));
        }
        Arc::new(Int64Array::from_iter(self.vertices.iter().map(|vertex| vertex.parse::<i64>().ok())))
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
