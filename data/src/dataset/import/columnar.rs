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

type Batches = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>> + Send>;

/// The text of a table.
pub(super) struct TableText<'m> {
    file: Metered<'m>,
    batches: Batches,
    /// Bytes of the file for each row and for each batch: one of them is known.
    bytes: [f64; 2],
    schema: SchemaRef,
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
        let (batches, schema, bytes) = opened.unwrap_or_else(|_| Err(damaged()))?;
        if schema.fields().is_empty() {
            return Err(io::Error::other("the table has no columns"));
        }
        let rows = RecordBatch::new_empty(schema.clone());
        Ok(Self { file, batches, bytes, schema, widths: None, rows, before: 0, text: Vec::new(), read: 0 })
    }

    /// Makes text of the next rows. Returns whether there were any.
    fn next_text(&mut self) -> io::Result<bool> {
        while self.rows.num_rows() == 0 {
            let Some(batch) = self.batches.next() else {
                // A table without rows has titles too.
                let is_empty = self.widths.is_none();
                if is_empty {
                    self.write_titles(&RecordBatch::new_empty(self.schema.clone()))?;
                }
                return Ok(is_empty);
            };
            let batch = batch.map_err(io::Error::other)?;
            let [row, each] = self.bytes;
            self.file.pass((batch.num_rows() as f64 * row + each) as u64);
            if self.widths.is_none() && batch.num_rows() > 0 {
                self.write_titles(&batch)?;
            }
            self.rows = batch;
        }
        let widths = self.widths.clone().unwrap_or_default();
        let count = (CELLS / widths.iter().sum::<usize>().max(1)).clamp(1, self.rows.num_rows());
        let now = self.rows.slice(0, count);
        self.write_rows(&now, &widths)?;
        self.rows = self.rows.slice(count, self.rows.num_rows() - count);
        self.before += count;
        Ok(true)
    }

    fn write_titles(&mut self, first: &RecordBatch) -> io::Result<()> {
        let of_lists = |places: Vec<Range<usize>>| places.iter().map(Range::len).find(|&len| len > 0).unwrap_or(0);
        let width = |array| lists(array).map_or(1, |(_, places)| of_lists(places));
        let widths: Vec<usize> = first.columns().iter().map(width).collect();
        let mut writer = csv_writer(&mut self.text);
        for ((field, array), &width) in self.schema.fields().iter().zip(first.columns()).zip(&widths) {
            let title = field.name();
            match lists(array) {
                None => writer.write_field(title)?,
                Some(_) => (0..width).try_for_each(|place| writer.write_field(format!("{title}:{place}")))?,
            }
        }
        writer.write_record(None::<&[u8]>)?;
        writer.flush()?;
        drop(writer);
        self.widths = Some(widths);
        Ok(())
    }

    fn write_rows(&mut self, rows: &RecordBatch, widths: &[usize]) -> io::Result<()> {
        let lists: Vec<_> = rows.columns().iter().map(lists).collect();
        let options = FormatOptions::new().with_display_error(false);
        let formatters = rows.columns().iter().zip(&lists).map(|(column, list)| {
            let values = list.as_ref().map_or(column, |(values, _)| values);
            ArrayFormatter::try_new(values.as_ref(), &options)
        });
        let formatters = formatters.collect::<Result<Vec<_>, _>>().map_err(io::Error::other)?;
        let mut writer = csv_writer(&mut self.text);
        let mut cell = String::new();
        for row in 0..rows.num_rows() {
            for ((formatter, list), (&width, field)) in
                formatters.iter().zip(&lists).zip(widths.iter().zip(self.schema.fields()))
            {
                let places = list.as_ref().map_or(row..row + 1, |(_, places)| places[row].clone());
                if places.is_empty() {
                    (0..width).try_for_each(|_| writer.write_field(""))?;
                    continue;
                }
                if places.len() != width {
                    let (name, found, line) = (field.name(), places.len(), self.before + row + 2);
                    let why =
                        format!("line {line} has a list of {found} in column `{name}`, the first one has {width}");
                    return Err(io::Error::other(why));
                }
                for place in places {
                    cell.clear();
                    formatter.value(place).write(&mut cell).map_err(io::Error::other)?;
                    writer.write_field(&cell)?;
                }
            }
            writer.write_record(None::<&[u8]>)?;
        }
        writer.flush()
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
        let bytes = buffer.len().min(self.text.len() - self.read);
        buffer[..bytes].copy_from_slice(&self.text[self.read..self.read + bytes]);
        self.read += bytes;
        Ok(bytes)
    }
}

/// Returns the rows of a table, its columns, and the bytes of the file for each row and for each batch.
fn batches(file: &Metered<'_>, content: Content) -> io::Result<(Batches, SchemaRef, [f64; 2])> {
    let plain = file.try_clone()?;
    let bytes = file.bytes as f64;
    if content == Content::Arrow {
        let reader = FileReader::try_new(BufReader::new(plain), None).map_err(io::Error::other)?;
        let (schema, per_batch) = (reader.schema(), bytes / reader.num_batches().max(1) as f64);
        return Ok((Box::new(reader.fuse()), schema, [0.0, per_batch]));
    }
    let builder = ParquetRecordBatchReaderBuilder::try_new(plain)?;
    let (schema, rows) = (builder.schema().clone(), builder.metadata().file_metadata().num_rows());
    Ok((Box::new(builder.build()?.fuse()), schema, [bytes / rows.max(1) as f64, 0.0]))
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
