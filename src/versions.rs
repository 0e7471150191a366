//! Versions of files, and the refusal of files that a newer program wrote. `docs/formats.md` has the policy.

use std::path::Path;

use serde::Deserialize;
use serde::de::Error as _;

use crate::error::{Error, Result};

/// Version of `run.json` that is written. Since version 2, a checkpoint has digests.
pub(crate) const RECORD_FORMAT: u32 = 2;

/// Older version of `run.json` without digests, which can still be read.
pub(crate) const UNVERIFIED_FORMAT: u32 = 1;

/// Version of `parts.json` that is written: a list of pairs, which states no version. A later one would be an object that
/// states it as `parts_format`.
const PARTS_FORMAT: u32 = 1;

/// The fields in which a file states its version.
#[derive(Deserialize)]
struct Stated {
    #[serde(default)]
    format: serde_json::Value,
    #[serde(default)]
    parts_format: serde_json::Value,
}

/// Checks the version of a run record, in the bytes of a `run.json`, before anything else in it is read. Returns the version.
///
/// # Errors
/// [`Error::NewerFile`], [`Error::RunRecord`].
pub(crate) fn check_record(path: &Path, json: &[u8]) -> Result<u32> {
    let unreadable = |source| Error::RunRecord { path: path.into(), source };
    let stated: Stated = serde_json::from_slice(json).map_err(unreadable)?;
    refuse_newer(path, "run record", &stated.format, RECORD_FORMAT)?;
    let known = stated.format.as_u64().and_then(|format| u32::try_from(format).ok()).filter(|&format| format > 0);
    known.ok_or_else(|| {
        let why = format!("field `format` is {}, expected {UNVERIFIED_FORMAT} or {RECORD_FORMAT}", stated.format);
        unreadable(serde_json::Error::custom(why))
    })
}

/// Checks the version of a file with vertex ranges: a `run.json` or a `parts.json`. What states no version has the first.
///
/// # Errors
/// [`Error::NewerFile`].
pub(crate) fn check_ranges(path: &Path, json: &str) -> Result<()> {
    // A list states no version, and text that is no JSON is refused by those who read it.
    let Ok(stated) = serde_json::from_str::<Stated>(json) else { return Ok(()) };
    refuse_newer(path, "run record", &stated.format, RECORD_FORMAT)?;
    refuse_newer(path, "list of parts", &stated.parts_format, PARTS_FORMAT)
}

fn refuse_newer(path: &Path, what: &'static str, stated: &serde_json::Value, newest: u32) -> Result<()> {
    match stated.as_u64() {
        Some(found) if found > u64::from(newest) => Err(Error::NewerFile { path: path.into(), what, found, newest }),
        _ => Ok(()),
    }
}
