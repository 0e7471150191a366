//! Source files of an import, with progress.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

use super::{Progress, Watch};
use crate::dataset::error::{Error, Result};
use crate::plain_file;

/// Size in bytes of the read buffer.
const BUFFER: usize = 1 << 18;

/// Counts the bytes that are read, and calls the watcher.
pub(super) struct Meter<'a> {
    watch: Option<Watch<'a>>,
    done: AtomicU64,
    total: AtomicU64,
}

impl<'a> Meter<'a> {
    pub(super) fn new(watch: Option<Watch<'a>>) -> Self {
        Self { watch, done: AtomicU64::new(0), total: AtomicU64::new(0) }
    }

    /// Returns the bytes read so far.
    pub(super) fn done_bytes(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Opens a plain file; `needed` says why it must exist.
    pub(super) fn open(&self, path: &Path, needed: &'static str) -> Result<Metered<'_>> {
        let (file, bytes) = plain_file::open(path).map_err(Error::missing_or("open", path, needed))?;
        self.total.fetch_add(bytes, Ordering::Relaxed);
        let count: Box<dyn Fn(u64, u64) + Send + '_> = Box::new(|read, unread| {
            let done_bytes = self.done.fetch_add(read, Ordering::Relaxed) + read;
            let total_bytes = self.total.fetch_sub(unread, Ordering::Relaxed) - unread;
            if let Some(watch) = self.watch {
                watch(Progress { done_bytes, total_bytes });
            }
        });
        Ok(Metered { file, bytes, left: bytes, count })
    }

    /// Opens a file as text: it is decompressed if its content is gzip, and the table of a Parquet or Arrow file becomes CSV.
    /// The content decides, not the name.
    pub(super) fn open_text(&self, path: &Path, needed: &'static str) -> Result<Text<'_>> {
        let mut file = self.open(path, needed)?;
        let mut magic = [0; 6];
        let have = read_full(&mut file.file, &mut magic).map_err(Error::io("read", path))?;
        file.file.rewind().map_err(Error::io("read", path))?;
        let content = Content::of(&magic[..have]);
        let from: Box<dyn Read + Send + '_> = match content {
            Content::Text => Box::new(BufReader::with_capacity(BUFFER, file)),
            Content::Gzip => Box::new(MultiGzDecoder::new(BufReader::with_capacity(BUFFER, file))),
            Content::Parquet | Content::Arrow => Box::new(table_text(file, content).map_err(|why| Error::Import {
                file: path.display().to_string(),
                why: format!("cannot be read as {}: {why}", content.name()),
            })?),
        };
        Ok(Text { from, content })
    }
}

#[cfg(feature = "parquet")]
fn table_text(file: Metered<'_>, content: Content) -> io::Result<super::columnar::TableText<'_>> {
    super::columnar::TableText::open(file, content)
}

#[cfg(not(feature = "parquet"))]
fn table_text(_: Metered<'_>, _: Content) -> io::Result<io::Empty> {
    Err(io::Error::other(
        "this program was built without the feature `parquet`; build it with that feature, or save the table as CSV",
    ))
}

/// What a file holds, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Text,
    Gzip,
    Parquet,
    /// Arrow's file format, which is also Feather's second version.
    Arrow,
}

impl Content {
    fn of(start: &[u8]) -> Self {
        match start {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [b'P', b'A', b'R', b'1' | b'E', ..] => Self::Parquet,
            b"ARROW1" => Self::Arrow,
            _ => Self::Text,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Gzip => "gzip",
            Self::Parquet => "a Parquet file",
            Self::Arrow => "an Arrow file",
        }
    }
}

/// The text of a file.
pub(super) struct Text<'m> {
    from: Box<dyn Read + Send + 'm>,
    content: Content,
}

impl Text<'_> {
    /// Returns what the file is if its first line certainly holds titles, as in `a Parquet file`.
    pub(super) fn titled_by(&self) -> Option<&'static str> {
        matches!(self.content, Content::Parquet | Content::Arrow).then(|| self.content.name())
    }
}

impl Read for Text<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.from.read(buffer)
    }
}

/// A file whose reads are counted.
pub(super) struct Metered<'m> {
    file: File,
    /// The file's size in bytes.
    pub bytes: u64,
    /// Bytes not read yet.
    left: u64,
    /// Called with the bytes read, and the bytes that will never be read.
    count: Box<dyn Fn(u64, u64) + Send + 'm>,
}

#[cfg(feature = "parquet")]
impl Metered<'_> {
    /// Opens the same file again, for a reader that seeks. Its reads are not counted.
    pub(super) fn try_clone(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Counts bytes that were read otherwise.
    pub(super) fn pass(&mut self, bytes: u64) {
        let bytes = bytes.min(self.left);
        self.left -= bytes;
        (self.count)(bytes, 0);
    }
}

impl Drop for Metered<'_> {
    /// Subtracts the unread bytes from the total, for instance unread members of an archive or an edge list that is
    /// read again.
    fn drop(&mut self) {
        (self.count)(0, self.left);
    }
}

impl Read for Metered<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.file.read(buffer)?;
        self.left = self.left.saturating_sub(bytes as u64);
        (self.count)(bytes as u64, 0);
        Ok(bytes)
    }
}

impl Seek for Metered<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

/// Reads until the buffer is full or the source ends.
fn read_full(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut have = 0;
    while have < buffer.len() {
        match from.read(&mut buffer[have..]) {
            Ok(0) => break,
            Ok(bytes) => have += bytes,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(have)
}
