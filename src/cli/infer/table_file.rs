//! The files that tables of predictions are written to: text, and Parquet and Arrow if they are built in.

use std::io;

#[cfg(feature = "parquet")]
use super::columns_file::ColumnsFile;
use super::predictions::{Columns, Row};
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
pub(super) enum TableFile {
    Text(Box<csv::Writer<OutputFile>>),
    #[cfg(feature = "parquet")]
    Columns(Box<ColumnsFile>),
}

impl TableFile {
    pub(super) fn new(file: OutputFile, format: TableFormat) -> Self {
        match format {
            TableFormat::Text(separator) => {
                Self::Text(Box::new(csv::WriterBuilder::new().delimiter(separator).from_writer(file)))
            }
            #[cfg(feature = "parquet")]
            TableFormat::Parquet | TableFormat::Arrow => Self::Columns(Box::new(ColumnsFile::new(file, format))),
        }
    }

    /// Writes what the columns are. Rows follow.
    pub(super) fn start(&mut self, columns: &Columns) -> io::Result<()> {
        match self {
            Self::Text(writer) => Ok(write_titles(writer, columns)?),
            #[cfg(feature = "parquet")]
            Self::Columns(file) => file.start(columns),
        }
    }

    pub(super) fn write(&mut self, columns: &Columns, row: Row<'_>) -> io::Result<()> {
        match self {
            Self::Text(writer) => Ok(write_row(writer, columns, &row)?),
            #[cfg(feature = "parquet")]
            Self::Columns(file) => file.write(columns, row),
        }
    }

    /// Completes the file.
    pub(super) fn finish(self, columns: Option<&Columns>) -> io::Result<()> {
        #[cfg(not(feature = "parquet"))]
        let _ = columns;
        match self {
            Self::Text(writer) => writer.into_inner().map_err(csv::IntoInnerError::into_error)?.finish(),
            #[cfg(feature = "parquet")]
            Self::Columns(file) => file.finish(columns),
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
    writer.write_field(&row.vertex)?;
    writer.write_field(listed(row, |class| columns.classes[class].clone()))?;
    writer.write_field(listed(row, |class| row.shares[class].to_string()))?;
    columns.scores_of(row).iter().try_for_each(|score| writer.write_field(score.to_string()))?;
    writer.write_record(None::<&[u8]>)
}

/// Lists what is said of the predicted classes, separated by `;`.
fn listed(row: &Row<'_>, said: impl Fn(usize) -> String) -> String {
    row.predicted.iter().map(|&class| said(class)).collect::<Vec<_>>().join(";")
}
