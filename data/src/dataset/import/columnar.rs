//! Reads the tables of Parquet and Arrow files. They become CSV text with a line of titles, a few rows at a time, so that the
//! readers of text read them as well.
//!
//! Texts are quoted, and numbers are not. A cell without a value is empty. A column of lists becomes one column for each
//! place in the list: lists of 2 in column `x` become the columns `x:0` and `x:1`.

use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, OffsetSizeTrait, RecordBatch};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_ipc::reader::FileReader;
use arrow_schema::{ArrowError, SchemaRef};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::source::{Content, Metered};

/// Number of cells that become text at a time.
const CELLS: usize = 1 << 17;

/// Number of rows that are read from a Parquet file at a time.
const ROWS: usize = 1 << 13;

type Batches = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>> + Send>;

/// The text of a table.
pub(super) struct TableText<'m> {
    file: Metered<'m>,
    batches: Batches,
    /// Bytes of the file for each batch.
    batch_bytes: u64,
    /// The number of cells that each column has in a row, once the first rows are read.
    widths: Option<Vec<usize>>,
    /// Rows that are not text yet, and the number of rows before them.
    rows: RecordBatch,
    before: usize,
    text: Vec<u8>,
    /// Bytes of the text that were read.
    read: usize,
}

impl<'m> TableText<'m> {
    /// Opens the table of a file with this content.
    ///
    /// # Errors
    /// A file that is damaged, encrypted or compressed in a way that is not known; a table without columns.
    pub(super) fn open(file: Metered<'m>, content: Content) -> io::Result<Self> {
        let opened = catch_unwind(AssertUnwindSafe(|| batches(&file, content)));
        let (batches, count, schema) = opened.unwrap_or_else(|_| Err(damaged()))?;
        if schema.fields().is_empty() {
            return Err(io::Error::other("the table has no columns"));
        }
        let (batch_bytes, rows) = (file.bytes / count.max(1), RecordBatch::new_empty(schema));
        Ok(Self { file, batches, batch_bytes, widths: None, rows, before: 0, text: Vec::new(), read: 0 })
    }

    /// Makes text of the next rows. Returns whether there were any.
    fn next_text(&mut self) -> io::Result<bool> {
        while self.rows.num_rows() == 0 {
            let Some(batch) = self.batches.next() else {
                // A table without rows has titles too.
                let is_untitled = self.widths.is_none();
                if is_untitled {
                    self.write_titles()?;
                }
                return Ok(is_untitled);
            };
            self.rows = batch.map_err(io::Error::other)?;
            self.file.pass(self.batch_bytes);
        }
        if self.widths.is_none() {
            self.write_titles()?;
        }
        self.write_rows()?;
        Ok(true)
    }

    /// Writes the titles, with the widths of the lists in the rows at hand.
    fn write_titles(&mut self) -> io::Result<()> {
        let mut writer = csv_writer(&mut self.text);
        let mut widths = Vec::new();
        for (field, column) in self.rows.schema_ref().fields().iter().zip(self.rows.columns()) {
            let title = field.name();
            let Some((_, places)) = lists(column) else {
                writer.write_field(title)?;
                widths.push(1);
                continue;
            };
            let width = places.iter().map(Range::len).find(|&len| len > 0).unwrap_or(0);
            (0..width).try_for_each(|place| writer.write_field(format!("{title}:{place}")))?;
            widths.push(width);
        }
        writer.write_record(None::<&[u8]>)?;
        writer.flush()?;
        drop(writer);
        self.widths = Some(widths);
        Ok(())
    }

    /// Writes some of the rows at hand.
    fn write_rows(&mut self) -> io::Result<()> {
        let widths = self.widths.as_deref().unwrap_or_default();
        let count = (CELLS / widths.iter().sum::<usize>().max(1)).clamp(1, self.rows.num_rows());
        let rows = self.rows.slice(0, count);
        let lists: Vec<_> = rows.columns().iter().map(lists).collect();
        let options = FormatOptions::new().with_display_error(false);
        let column = |at: usize| {
            let (values, places) = match &lists[at] {
                Some((values, places)) => (values, Some(&places[..])),
                None => (rows.column(at), None),
            };
            let values = ArrayFormatter::try_new(values.as_ref(), &options)?;
            Ok(Column { name: rows.schema_ref().field(at).name(), width: widths[at], values, places })
        };
        let columns =
            (0..widths.len()).map(column).collect::<Result<Vec<_>, ArrowError>>().map_err(io::Error::other)?;
        let mut writer = csv_writer(&mut self.text);
        let mut cell = String::new();
        for row in 0..count {
            for column in &columns {
                column.write(row, self.before + row + 2, &mut writer, &mut cell)?;
            }
            writer.write_record(None::<&[u8]>)?;
        }
        writer.flush()?;
        drop(writer);
        self.rows = self.rows.slice(count, self.rows.num_rows() - count);
        self.before += count;
        Ok(())
    }
}

/// A column of some rows.
struct Column<'a> {
    name: &'a str,
    /// The number of cells in each row.
    width: usize,
    values: ArrayFormatter<'a>,
    /// Where the values of each row are, for lists.
    places: Option<&'a [Range<usize>]>,
}

impl Column<'_> {
    /// Writes the cells of a row, which is this line of the text.
    fn write(
        &self,
        row: usize,
        line: usize,
        writer: &mut csv::Writer<&mut Vec<u8>>,
        cell: &mut String,
    ) -> io::Result<()> {
        let places = self.places.map_or(row..row + 1, |places| places[row].clone());
        if places.is_empty() {
            return Ok((0..self.width).try_for_each(|_| writer.write_field(""))?);
        }
        if places.len() != self.width {
            let (found, name, width) = (places.len(), self.name, self.width);
            let why = format!("line {line} has a list of {found} in column `{name}`, the first one has {width}");
            return Err(io::Error::other(why));
        }
        for place in places {
            cell.clear();
            self.values.value(place).write(cell).map_err(io::Error::other)?;
            writer.write_field(&*cell)?;
        }
        Ok(())
    }
}

impl Read for TableText<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.read == self.text.len() {
            self.text.clear();
            self.read = 0;
            // The readers of damaged files may panic.
            if !catch_unwind(AssertUnwindSafe(|| self.next_text())).unwrap_or_else(|_| Err(damaged()))? {
                return Ok(0);
            }
        }
        let bytes = (&self.text[self.read..]).read(buffer)?;
        self.read += bytes;
        Ok(bytes)
    }
}

/// Returns the rows of a table in batches, the number of batches, and the columns.
fn batches(file: &Metered<'_>, content: Content) -> io::Result<(Batches, u64, SchemaRef)> {
    let plain = file.try_clone()?;
    if content == Content::Arrow {
        let reader = FileReader::try_new(BufReader::new(plain), None).map_err(io::Error::other)?;
        let (count, schema) = (reader.num_batches() as u64, reader.schema());
        return Ok((Box::new(reader.fuse()), count, schema));
    }
    let builder = ParquetRecordBatchReaderBuilder::try_new(plain)?.with_batch_size(ROWS);
    let (rows, schema) = (builder.metadata().file_metadata().num_rows(), builder.schema().clone());
    Ok((Box::new(builder.build()?.fuse()), rows.max(0).unsigned_abs().div_ceil(ROWS as u64), schema))
}

/// Returns the values of a column of lists, and the places of each row's values among them. A list without a value has none.
fn lists(column: &ArrayRef) -> Option<(ArrayRef, Vec<Range<usize>>)> {
    fn places<O: OffsetSizeTrait>(offsets: &[O]) -> Vec<Range<usize>> {
        offsets.windows(2).map(|pair| pair[0].as_usize()..pair[1].as_usize()).collect()
    }
    let (values, mut places) = if let Some(lists) = column.as_list_opt::<i32>() {
        (lists.values().clone(), places(lists.offsets()))
    } else if let Some(lists) = column.as_list_opt::<i64>() {
        (lists.values().clone(), places(lists.offsets()))
    } else {
        let lists = column.as_fixed_size_list_opt()?;
        let width = lists.value_length() as usize;
        let start = |row| lists.value_offset_at(row);
        (lists.values().clone(), (0..lists.len()).map(|row| start(row)..start(row) + width).collect())
    };
    (0..places.len()).filter(|&row| column.is_null(row)).for_each(|row| places[row] = 0..0);
    Some((values, places))
}

fn csv_writer(text: &mut Vec<u8>) -> csv::Writer<&mut Vec<u8>> {
    csv::WriterBuilder::new().quote_style(csv::QuoteStyle::NonNumeric).from_writer(text)
}

fn damaged() -> io::Error {
    io::Error::other("the file is damaged")
}
