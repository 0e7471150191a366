//! Opens and reads files that a user names: plain files only, of a bounded size.
//!
//! A pipe or a device has no size that could be checked, may have no end, and may wait forever for its writer. So it is
//! refused before anything is read.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

use lapidary_arrays::fallible;

use crate::host;

/// The most bytes of a description: JSON or text that a person could still look at.
pub const TEXT_BYTES: u64 = 64 << 20;

/// Opens a plain file for reading, and returns it with its size in bytes.
///
/// # Errors
/// A file that does not exist or may not be read; [`io::ErrorKind::InvalidInput`] for a directory, a pipe, a socket or
/// a device.
pub fn open(path: &Path) -> io::Result<(File, u64)> {
    open_with(path, 0)
}

/// Opens a plain file for reads past the system's cache of pages, if the file system has such reads; otherwise as
/// [`open`]. Such reads begin and end at whole pages, in the file and in memory.
///
/// # Errors
/// Those of [`open`].
pub(crate) fn open_uncached(path: &Path) -> io::Result<File> {
    #[cfg(target_os = "linux")]
    if let Ok((file, _)) = open_with(path, libc::O_DIRECT) {
        return Ok(file);
    }
    Ok(open(path)?.0)
}

fn open_with(path: &Path, more_flags: i32) -> io::Result<(File, u64)> {
    // A device may act when it is opened, so it is refused before that; the second check is of the file that was opened.
    expect_plain(&std::fs::metadata(path)?)?;
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // A pipe that takes the file's place meanwhile is opened at once, and refused below. Reads of a plain file are
        // not affected.
        options.custom_flags(libc::O_NONBLOCK | more_flags);
    }
    #[cfg(not(unix))]
    let _ = more_flags;
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    expect_plain(&metadata)?;
    Ok((file, metadata.len()))
}

/// Reads a plain file of at most `most_bytes`.
///
/// # Errors
/// Those of [`open`]; [`io::ErrorKind::FileTooLarge`] for a larger file, before it is read;
/// [`io::ErrorKind::OutOfMemory`] if its bytes cannot be allocated.
pub fn read(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    let (file, bytes) = open(path)?;
    if bytes > most_bytes {
        return Err(too_large(bytes, most_bytes));
    }
    let mut contents = Vec::new();
    let no_memory = |_| io::Error::new(io::ErrorKind::OutOfMemory, format!("there is no memory for its {bytes} bytes"));
    fallible(|| contents.try_reserve_exact(bytes as usize + 1)).map_err(no_memory)?;
    // The file may grow while it is read.
    file.take(most_bytes.saturating_add(1)).read_to_end(&mut contents)?;
    if contents.len() as u64 > most_bytes {
        return Err(too_large(contents.len() as u64, most_bytes));
    }
    Ok(contents)
}

/// Reads a plain file of UTF-8 text of at most `most_bytes`.
///
/// # Errors
/// Those of [`read`]; [`io::ErrorKind::InvalidData`] if it is not UTF-8.
pub fn read_text(path: &Path, most_bytes: u64) -> io::Result<String> {
    String::from_utf8(read(path, most_bytes)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

fn too_large(bytes: u64, most_bytes: u64) -> io::Error {
    let [found, most] = host::told_apart(bytes, most_bytes);
    io::Error::new(io::ErrorKind::FileTooLarge, format!("it has {found}, and at most {most} are read"))
}

fn expect_plain(metadata: &Metadata) -> io::Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let why = match kind(metadata) {
        "a directory" => "it is a directory, not a plain file".into(),
        kind => format!("it is {kind}, not a plain file; write its contents to a file first"),
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

/// Returns what a file is that is not plain.
fn kind(metadata: &Metadata) -> &'static str {
    if metadata.is_dir() {
        return "a directory";
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let kind = metadata.file_type();
        if kind.is_fifo() {
            return "a pipe";
        }
        if kind.is_socket() {
            return "a socket";
        }
    }
    "a device"
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_file_is_read_up_to_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "abcd").unwrap();
        assert_eq!(read_text(&path, 4).unwrap(), "abcd");
        let error = read(&path, 3).unwrap_err();
        assert_eq!(error.to_string(), "it has 4 B, and at most 3 B are read");
        std::fs::write(&path, b"\xff").unwrap();
        assert_eq!(read_text(&path, 4).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(read(&folder.path().join("none"), 4).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[cfg(unix)]
    #[test]
    fn a_device_a_pipe_and_a_directory_are_refused_and_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for (path, kind) in [(Path::new("/dev/zero"), "a device"), (&pipe, "a pipe"), (folder.path(), "a directory")] {
            let error = read(path, 1 << 40).unwrap_err();
            assert!(error.to_string().starts_with(&format!("it is {kind}, not a plain file")), "{error}");
        }
    }

    #[test]
    fn a_file_without_contents_but_with_a_great_size_is_refused_at_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 40).unwrap();
        let error = read(file.path(), TEXT_BYTES).unwrap_err();
        assert_eq!(error.to_string(), "it has 1.0 TiB, and at most 64.0 MiB are read");
    }
}
