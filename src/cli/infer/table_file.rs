//! The files that tables of predictions are written to: text, and Parquet and Arrow if they are built in.

use std::io;

#[cfg(feature = "parquet")]
use super::columns_file::ColumnsFile;
use super::predictions::{Columns, Row, VertexName};
use crate::output::OutputFile;

/// The format of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableFormat {
    /// Text whose cells are separated by a byte.
    Text(u8),
    #[cfg(feature = "parquet")]
    Parquet,
    /// Arrow's file format, which is also Feather's second version.
    #[cfg(feature = "parquet")]
    Arrow,
}

/// A file that gets the rows of a table.
pub(super) struct TableFile {
    columns: Columns,
    writer: Writer,
}

enum Writer {
    Text(Box<csv::Writer<OutputFile>>),
    #[cfg(feature = "parquet")]
    Columns(Box<ColumnsFile>),
}

impl TableFile {
    /// Writes what the columns are. Rows follow.
    pub(super) fn start(file: OutputFile, format: TableFormat, columns: Columns) -> io::Result<Self> {
        let writer = match format {
            TableFormat::Text(separator) => {
                let mut writer = csv::WriterBuilder::new().delimiter(separator).from_writer(file);
                write_titles(&mut writer, &columns)?;
                Writer::Text(Box::new(writer))
            }
            #[cfg(feature = "parquet")]
            TableFormat::Parquet => Writer::Columns(Box::new(ColumnsFile::parquet(file, &columns)?)),
            #[cfg(feature = "parquet")]
            TableFormat::Arrow => Writer::Columns(Box::new(ColumnsFile::arrow(file, &columns)?)),
        };
        Ok(Self { columns, writer })
    }

    pub(super) fn columns(&self) -> &Columns {
        &self.columns
    }

    pub(super) fn write(&mut self, row: Row<'_>) -> io::Result<()> {
        match &mut self.writer {
            Writer::Text(writer) => Ok(write_row(writer, &self.columns, &row)?),
            #[cfg(feature = "parquet")]
            Writer::Columns(file) => file.write(&self.columns, row),
        }
    }

    /// Completes the file.
    pub(super) fn finish(self) -> io::Result<()> {
        match self.writer {
            Writer::Text(writer) => writer.into_inner().map_err(csv::IntoInnerError::into_error)?.finish(),
            #[cfg(feature = "parquet")]
            Writer::Columns(file) => file.finish(&self.columns),
        }
    }
}

fn write_titles(writer: &mut csv::Writer<OutputFile>, columns: &Columns) -> csv::Result<()> {
    if columns.is_of_many {
        writer.write_field("data")?;
    }
    ["vertex", "prediction", "probability"].iter().try_for_each(|title| writer.write_field(title))?;
    columns.score_titles().try_for_each(|title| writer.write_field(title))?;
    writer.write_record(None::<&[u8]>)
}

fn write_row(writer: &mut csv::Writer<OutputFile>, columns: &Columns, row: &Row<'_>) -> csv::Result<()> {
    if columns.is_of_many {
        writer.write_field(row.spec)?;
    }
    match &row.vertex {
        VertexName::Number(number) => writer.write_field(number.to_string())?,
        VertexName::Text(text) => writer.write_field(text)?,
    }
    writer.write_field(listed(row, |class| columns.classes[class].clone()))?;
    writer.write_field(listed(row, |class| row.shares[class].to_string()))?;
    columns.scores_of(row).iter().try_for_each(|score| writer.write_field(score.to_string()))?;
    writer.write_record(None::<&[u8]>)
}

/// Lists what is said of the predicted classes, separated by `;`.
fn listed(row: &Row<'_>, said: impl Fn(usize) -> String) -> String {
    row.predicted.iter().map(|&class| said(class)).collect::<Vec<_>>().join(";")
}
