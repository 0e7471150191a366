//! Detects that the files of an open dataset have changed.

use std::fs::Metadata;
use std::path::{Path, PathBuf};

use super::error::{Error, Result};

/// What the file system knew of a file when it was opened.
#[derive(Clone, Debug)]
pub(crate) struct Stamp {
    path: PathBuf,
    metadata: Metadata,
}

impl Stamp {
    /// Returns the stamp of a file; `None` if there is none.
    pub(crate) fn of(path: PathBuf) -> Option<Self> {
        path.metadata().ok().map(|metadata| Self { path, metadata })
    }

    /// Returns the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the file is the same one, with the same size and modification time.
    ///
    /// # Errors
    /// [`Error::Changed`].
    pub(crate) fn check(&self) -> Result<()> {
        match change(&self.path, &self.metadata) {
            None => Ok(()),
            Some(how) => Err(Error::Changed { path: self.path.clone(), how }),
        }
    }
}

/// Describes how a file differs from what it was; `None` if it does not.
fn change(path: &Path, before: &Metadata) -> Option<String> {
    let now = match path.metadata() {
        Ok(now) => now,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Some("was removed".into()),
        Err(error) => return Some(format!("can no longer be read ({error})")),
    };
    if now.len() != before.len() {
        return Some(format!("has {} bytes instead of {}", now.len(), before.len()));
    }
    if is_other_file(&now, before) {
        return Some("was replaced by another file".into());
    }
    // A file system without modification times has none to compare.
    (now.modified().ok() != before.modified().ok()).then(|| "was written to".into())
}

#[cfg(unix)]
fn is_other_file(now: &Metadata, before: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (now.dev(), now.ino()) != (before.dev(), before.ino())
}

#[cfg(not(unix))]
fn is_other_file(_: &Metadata, _: &Metadata) -> bool {
    false
}
