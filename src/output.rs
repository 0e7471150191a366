//! A single output file that is either complete or absent.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::TempPath;

/// Size of the write buffer in bytes.
const BUFFER_BYTES: usize = 1 << 16;

/// Symbolic links followed before the path is taken for a cycle. The kernel has the same limit.
const MOST_LINKS: usize = 40;

/// A file that appears at its path when it is finished.
///
/// Bytes go into a temporary file in the same folder, which [`OutputFile::finish`] renames. An earlier file is intact
/// until then, and stays if `finish` is not called. Symbolic links are followed, also to a file that does not exist
/// yet. If the path is not a plain file (a device, a pipe, `/dev/stdout`), bytes are appended to it as they come.
///
/// A new file has the permissions that the umask leaves. A replacement has those of the earlier file.
#[derive(Debug)]
pub(crate) struct OutputFile {
    writer: BufWriter<File>,
    /// `None` if bytes are written directly to their destination.
    place: Option<Place>,
}

/// A temporary file and its destination.
#[derive(Debug)]
struct Place {
    temporary: TempPath,
    target: PathBuf,
}

impl OutputFile {
    /// Opens a file for writing at `path`.
    ///
    /// # Errors
    /// A directory at `path`; a missing folder; a file or folder without write permission.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let (target, is_stream) = resolve(path)?;
        let earlier = match fs::metadata(&target) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            found => Some(found?),
        };
        if earlier.as_ref().is_some_and(fs::Metadata::is_dir) {
            let why = "a directory stands there; name a file in it";
            return Err(io::Error::new(io::ErrorKind::IsADirectory, why));
        }
        if is_stream || earlier.as_ref().is_some_and(|found| !found.is_file()) {
            let stream = OpenOptions::new().append(true).open(&target)?;
            return Ok(Self { writer: BufWriter::with_capacity(BUFFER_BYTES, stream), place: None });
        }
        let temporary = new_file_in(folder_of(&target))?;
        if let Some(earlier) = earlier {
            // A file without write permission is not replaced either.
            OpenOptions::new().write(true).open(&target)?;
            take_after(temporary.as_file(), &earlier)?;
        }
        let (file, temporary) = temporary.into_parts();
        let writer = BufWriter::with_capacity(BUFFER_BYTES, file);
        Ok(Self { writer, place: Some(Place { temporary, target }) })
    }

    /// Writes `contents` to `path`, completely or not at all.
    ///
    /// # Errors
    /// As [`OutputFile::create`] and [`OutputFile::finish`].
    pub(crate) fn write(path: &Path, contents: &[u8]) -> io::Result<()> {
        let mut file = Self::create(path)?;
        file.write_all(contents)?;
        file.finish()
    }

    /// Moves the file to its path once all of it is on disk.
    ///
    /// # Errors
    /// A full disk and the like; an earlier file is then unchanged.
    pub(crate) fn finish(self) -> io::Result<()> {
        let Self { mut writer, place } = self;
        writer.flush()?;
        let Some(Place { temporary, target }) = place else { return Ok(()) };
        writer.get_ref().sync_all()?;
        temporary.persist(target).map_err(|error| error.error)
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// Resolves symbolic links; the last one may lead to nothing. Also returns whether the result is an open file of a
/// process (`/dev/stdout`), which can only be appended to.
fn resolve(path: &Path) -> io::Result<(PathBuf, bool)> {
    let mut path = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_symlink() => {}
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => return Ok((path, false)),
        }
        let folder = folder_of(&path);
        if folder.canonicalize()?.starts_with("/proc") {
            return Ok((path, true));
        }
        path = folder.join(fs::read_link(&path)?);
    }
    Err(io::Error::other(format!("it leads through more than {MOST_LINKS} symbolic links")))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn new_file_in(folder: &Path) -> io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The same mode as any new file: the process's umask applies.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.prefix(".lapidary-").suffix(".part").tempfile_in(folder)
}

/// Gives a file the owner (if permitted) and the permissions of the file that it replaces.
fn take_after(file: &File, earlier: &fs::Metadata) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::{MetadataExt, fchown};
        // Only root may change the owner. For others the file stays theirs, as a new file would be.
        drop(fchown(file, Some(earlier.uid()), Some(earlier.gid())));
    }
    file.set_permissions(earlier.permissions())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = folder.read_dir().expect("it can be listed");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("it is there").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_that_is_not_finished_is_not_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        for earlier in [None, Some("earlier")] {
            if let Some(earlier) = earlier {
                fs::write(&path, earlier).expect("it can be written");
            }
            let mut file = OutputFile::create(&path).expect("it can be written");
            file.write_all(&[1; 1 << 20]).expect("there is room");
            drop(file);
            assert_eq!(names(folder.path()), earlier.map(|_| "out".to_owned()).into_iter().collect::<Vec<_>>());
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), earlier);
        }
        OutputFile::write(&path, b"new").expect("it can be written");
        assert_eq!(fs::read(&path).expect("it is there"), b"new");
        assert_eq!(names(folder.path()), ["out"]);
    }

    #[test]
    fn what_cannot_be_written_is_said_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = OutputFile::create(folder.path()).expect_err("a directory is no file");
        assert!(error.to_string().contains("name a file in it"), "{error}");
        let error = OutputFile::create(&folder.path().join("no/such/out")).expect_err("there is no such folder");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    #[cfg(unix)]
    fn links_are_followed_and_stay() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().expect("a folder");
        let place = |name: &str| folder.path().join(name);
        fs::create_dir(place("there")).expect("a folder");
        // A link to a link to a file that does not exist yet, by relative paths.
        symlink("there/second", place("first")).expect("a link");
        symlink("../real", place("there/second")).expect("a link");
        for contents in ["once", "twice"] {
            OutputFile::write(&place("first"), contents.as_bytes()).expect("it can be written");
            assert!(place("first").is_symlink() && place("there/second").is_symlink());
            assert!(!place("real").is_symlink());
            assert_eq!(fs::read_to_string(place("real")).expect("it is there"), contents);
        }
        symlink("circle", place("circle")).expect("a link");
        let error = OutputFile::create(&place("circle")).expect_err("it leads nowhere");
        assert!(error.to_string().contains("symbolic links"), "{error}");
    }

    #[test]
    #[cfg(unix)]
    fn permissions_are_those_of_the_file_that_was_there() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        let mode = || fs::metadata(&path).expect("it is there").permissions().mode() & 0o777;
        fs::write(folder.path().join("any"), "").expect("it can be written");
        let of_any = fs::metadata(folder.path().join("any")).expect("it is there").permissions().mode() & 0o777;
        OutputFile::write(&path, b"new").expect("it can be written");
        assert_eq!(mode(), of_any);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("it is ours");
        OutputFile::write(&path, b"newer").expect("it can be written");
        assert_eq!(mode(), 0o640);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn an_open_file_of_the_process_is_appended_to() {
        use std::os::fd::AsRawFd;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        fs::write(&path, "before ").expect("it can be written");
        let open = File::open(&path).expect("it is there");
        let descriptor = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
        OutputFile::write(&descriptor, b"after").expect("it can be written");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "before after");
    }

    /// The device reports that it is full when bytes arrive.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_device_is_an_error_and_stays_a_device() {
        let error = OutputFile::write(Path::new("/dev/full"), b"x").expect_err("it is full");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        OutputFile::write(Path::new("/dev/null"), b"x").expect("it takes anything");
        assert!(!fs::metadata("/dev/null").expect("it is there").is_file());
    }
}
