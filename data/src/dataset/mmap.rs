//! Maps files into memory and releases their pages. These are the only unsafe calls of this crate.

#[cfg(target_os = "linux")]
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use lapidary_arrays::Owner;
use memmap2::Mmap;
#[cfg(target_os = "linux")]
use memmap2::UncheckedAdvice;

use super::error::{Error, Result};
use crate::plain_file;

/// Bytes with shared ownership.
pub(crate) type Bytes = Arc<dyn Owner>;

/// The map of a whole file.
struct Mapped(Mmap);

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Owner for Mapped {
    /// Releases the pages of a range. The system may keep them cached until it needs the memory.
    #[cfg(target_os = "linux")]
    fn release(&self, range: Range<usize>) {
        // SAFETY: the map is read-only and of a file. A page that is read again is read from the file, and has the same
        // contents as before: it is assumed (see `map`) that no other process writes to the file.
        #[allow(unsafe_code)]
        let advised = unsafe { self.0.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len()) };
        if let Err(error) = advised {
            tracing::debug!("pages of a file stay in memory: {error}");
        }
    }
}

/// Maps a whole file, read-only.
///
/// # Errors
/// [`Error::Missing`] with `needed` if the file does not exist; [`Error::Io`] if it cannot be mapped or is not a plain
/// file.
pub(crate) fn map(path: &Path, needed: &'static str) -> Result<Bytes> {
    let (file, _) = plain_file::open(path).map_err(Error::missing_or("open", path, needed))?;
    // SAFETY: the map is private and read-only, and is only read through slices of bytes, for which any value is valid.
    // It is assumed, and documented at `Dataset::open`, that no other process writes to or truncates the file while the
    // dataset lives. After a truncation, a read past the new end would raise SIGBUS.
    #[allow(unsafe_code)]
    let map = unsafe { Mmap::map(&file) }.map_err(Error::io("map", path))?;
    Ok(Arc::new(Mapped(map)))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Returns how many KiB of a mapped file are in this process's memory.
    fn resident_kib(path: &Path) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("the system tells");
        let name = path.display().to_string();
        let mut lines = maps.lines().skip_while(|line| !line.ends_with(&name));
        let resident = lines.find(|line| line.starts_with("Rss:")).expect("the file is mapped");
        resident.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("it is a number")
    }

    #[test]
    fn pages_that_are_released_leave_memory_and_come_back() {
        let contents: Vec<u8> = (0..1 << 20).map(|i: u32| ((i * 31) >> 3) as u8).collect();
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), &contents).expect("it can be written");
        let path = file.path().canonicalize().expect("it is there");
        let bytes = map(&path, "the test has just written it").expect("it can be mapped");
        assert!((*bytes).as_ref() == contents);
        assert!(resident_kib(&path) >= 1024, "every page was read");
        bytes.release(0..contents.len());
        assert_eq!(resident_kib(&path), 0);
        assert!((*bytes).as_ref() == contents);
    }
}
