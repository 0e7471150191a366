//! Mapping a file into memory: the one unsafe call of this module.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use super::error::{Error, Result};

/// Bytes that many may hold.
pub(crate) type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Maps a whole file, read-only.
///
/// # Errors
/// [`Error::Missing`] with `needed` if it is not there, [`Error::Io`] if it cannot be mapped or is no plain file.
pub(crate) fn map(path: &Path, needed: &'static str) -> Result<Bytes> {
    let metadata = match path.metadata() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::Missing { path: path.into(), needed });
        }
        other => other.map_err(Error::io("open", path))?,
    };
    if !metadata.is_file() {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is not a plain file");
        return Err(Error::Io { action: "read", path: path.into(), source });
    }
    let file = File::open(path).map_err(Error::io("open", path))?;
    // SAFETY: the map is private and read-only, and is only read through slices of bytes, for which any value is
    // valid. What is assumed, and said in the documentation of `Dataset::open`, is that no other process writes to
    // or truncates the file while the dataset lives: after a truncation a read past the new end would raise SIGBUS.
    #[allow(unsafe_code)]
    let map = unsafe { Mmap::map(&file) }.map_err(Error::io("map", path))?;
    Ok(Arc::new(map))
}
