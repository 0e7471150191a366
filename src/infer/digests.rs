//! Reads checkpoints: verifies the bytes of each file with its digest, then parses the same bytes. No other code reads
//! checkpoints.
//!
//! The digests are in the file `B3SUMS` of the same folder, in the format of the program `b3sum`.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lapidary_cost_model::CostModel;
use serde::de::DeserializeOwned;

use super::checkpoint::{BEST_FILE, COST_MODEL_FILE, Files, MODEL_FILE, OPTIMIZER_FILE, RUN_FILE};
use crate::error::{Error, Result};
use crate::model::Weights;
use crate::plain_file;
use crate::versions::{UNVERIFIED_FORMAT, check_record};

/// Name of the file with the digests of the other files.
pub(crate) const DIGESTS_FILE: &str = "B3SUMS";

/// Files that are read from a checkpoint folder. None of them may exist without a digest.
const KNOWN: [&str; 5] = [MODEL_FILE, OPTIMIZER_FILE, BEST_FILE, RUN_FILE, COST_MODEL_FILE];

/// The files of text among them.
const TEXTS: [&str; 3] = [DIGESTS_FILE, RUN_FILE, COST_MODEL_FILE];

/// Data of at least this many bytes is hashed on several threads.
const LARGE: usize = 1 << 20;

/// Maximum number of attempts to read a folder that a run replaces at the same time.
const MOST_ATTEMPTS: usize = 20;

/// Returns the text of [`DIGESTS_FILE`] for these files.
pub(crate) fn digests_text(files: &Files) -> Vec<u8> {
    let line = |(name, bytes): &(&'static str, Vec<u8>)| format!("{}  {name}\n", digest(bytes));
    files.iter().map(line).collect::<String>().into_bytes()
}

/// Returns the BLAKE3 digest of some bytes, in hexadecimal digits.
pub(crate) fn digest(bytes: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new();
    if bytes.len() < LARGE {
        hasher.update(bytes)
    } else {
        hasher.update_rayon(bytes)
    };
    hasher.finalize().to_hex().to_string()
}

/// Parses a [`DIGESTS_FILE`] into digests by name. An error is the number, from 1, of the first line that is invalid.
fn parse(text: &[u8]) -> std::result::Result<BTreeMap<String, String>, usize> {
    let lines = text.strip_suffix(b"\n").ok_or_else(|| text.split(|&byte| byte == b'\n').count())?;
    let mut digests = BTreeMap::new();
    for (i, line) in lines.split(|&byte| byte == b'\n').enumerate() {
        let entry = std::str::from_utf8(line).ok().and_then(|line| line.split_once("  "));
        let is_digest =
            |digest: &str| digest.len() == 64 && digest.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
        let is_name = |name: &str| !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0']);
        match entry.filter(|(digest, name)| is_digest(digest) && is_name(name)) {
            Some((digest, name)) if !digests.contains_key(name) => digests.insert(name.to_owned(), digest.to_owned()),
            _ => return Err(i + 1),
        };
    }
    Ok(digests)
}

/// A checkpoint folder whose files all match their digests.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    folder: PathBuf,
    /// Contents of the wanted files, by name.
    files: BTreeMap<String, Vec<u8>>,
}

impl Checkpoint {
    /// Reads and verifies every file, and keeps the wanted ones. A folder of an older version has no digests; it is
    /// read without verification, with a warning.
    ///
    /// # Errors
    /// [`Error::NewerFile`], [`Error::Damaged`], [`Error::RunRecord`], [`Error::Io`].
    pub(crate) fn read(folder: &Path, wanted: &[&str]) -> Result<Self> {
        let digests = || read_file(folder, DIGESTS_FILE).ok().flatten();
        let mut attempts = 1;
        loop {
            let before = digests();
            match Self::read_once(folder, wanted) {
                // The folder was replaced during the read: some files may be of the old checkpoint and some of the new
                // one.
                Err(_) if attempts < MOST_ATTEMPTS && (!folder.exists() || digests() != before) => {
                    attempts += 1;
                    std::thread::sleep(Duration::from_millis(20));
                }
                read => return read,
            }
        }
    }

    fn read_once(folder: &Path, wanted: &[&str]) -> Result<Self> {
        let mut files = BTreeMap::new();
        match read_digests(folder)? {
            Some(digests) => {
                // Before all else: a newer version may have other files, and other rules for them.
                if let Some(digest) = digests.get(RUN_FILE) {
                    check_record(&folder.join(RUN_FILE), &read_verified(folder, RUN_FILE, digest)?)?;
                }
                refuse_unlisted(folder, &digests)?;
                for (name, digest) in digests {
                    let bytes = read_verified(folder, &name, &digest)?;
                    if wanted.contains(&name.as_str()) {
                        files.insert(name, bytes);
                    }
                }
            }
            None => {
                for &name in wanted {
                    files.extend(read_file(folder, name)?.map(|bytes| (name.to_owned(), bytes)));
                }
            }
        }
        Ok(Self { folder: folder.into(), files })
    }

    /// Parses `run.json`: all of it, or only the [`ModelRecord`](super::ModelRecord).
    ///
    /// # Errors
    /// [`Error::Damaged`] if it is missing, [`Error::RunRecord`], [`Error::NewerFile`].
    pub(crate) fn record<R: DeserializeOwned>(&self) -> Result<R> {
        let path = self.folder.join(RUN_FILE);
        let bytes = self.files.get(RUN_FILE).ok_or_else(|| damaged(&self.folder, RUN_FILE, "is missing".into()))?;
        check_record(&path, bytes)?;
        serde_json::from_slice(bytes).map_err(|source| Error::RunRecord { path, source })
    }

    /// Parses the weights of a file. They can be taken once.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it is missing, [`Error::Weights`].
    pub(crate) fn weights(&mut self, file: &str) -> Result<Weights> {
        let bytes = self.files.remove(file).ok_or_else(|| damaged(&self.folder, file, "is missing".into()))?;
        Ok(Weights::from_safetensors(&bytes, &self.folder.join(file))?)
    }

    /// Parses the cost model; `None` if the run learned none.
    ///
    /// # Errors
    /// [`Error::CostModel`].
    pub(crate) fn cost_model(&self) -> Result<Option<CostModel>> {
        let Some(bytes) = self.files.get(COST_MODEL_FILE) else { return Ok(None) };
        let path = self.folder.join(COST_MODEL_FILE);
        let model = CostModel::from_json(&String::from_utf8_lossy(bytes));
        model.map(Some).map_err(|source| Error::CostModel { path, source })
    }
}

/// Reads the folder's [`DIGESTS_FILE`]; `None` if an older version wrote the folder without one.
fn read_digests(folder: &Path) -> Result<Option<BTreeMap<String, String>>> {
    let parsed = read_file(folder, DIGESTS_FILE)?.as_deref().map(parse);
    if let Some(Ok(digests)) = parsed {
        return Ok(Some(digests));
    }
    let record = read_file(folder, RUN_FILE)?;
    let version = record.map(|record| check_record(&folder.join(RUN_FILE), &record));
    match (parsed, version) {
        // A newer version may keep its digests in another way.
        (_, Some(Err(newer @ Error::NewerFile { .. }))) => Err(newer),
        (Some(Err(line)), _) => {
            Err(damaged(folder, DIGESTS_FILE, format!("is damaged: line {line} is no digest of a file")))
        }
        (_, Some(Err(unreadable))) => Err(unreadable),
        (_, Some(Ok(UNVERIFIED_FORMAT))) => {
            tracing::warn!(
                "{} is a checkpoint of an older version, which kept no digests: damage and changed data cannot be found out",
                folder.display()
            );
            Ok(None)
        }
        _ => Err(damaged(folder, DIGESTS_FILE, "is missing, so that nothing beside it can be checked".into())),
    }
}

/// Checks that each known file in the folder is listed, so that none was added after the digests were written.
fn refuse_unlisted(folder: &Path, digests: &BTreeMap<String, String>) -> Result<()> {
    let unlisted = KNOWN.into_iter().filter(|&name| !digests.contains_key(name));
    match unlisted.into_iter().find(|name| folder.join(name).symlink_metadata().is_ok()) {
        Some(name) => Err(damaged(folder, name, format!("is not listed in {DIGESTS_FILE}: it was put there later"))),
        None => Ok(()),
    }
}

/// Reads a file and checks that it has this digest.
fn read_verified(folder: &Path, name: &str, wanted: &str) -> Result<Vec<u8>> {
    let missing = || damaged(folder, name, format!("is missing, but listed in {DIGESTS_FILE}"));
    let bytes = read_file(folder, name)?.ok_or_else(missing)?;
    if digest(&bytes) == wanted {
        return Ok(bytes);
    }
    let why = format!("is damaged or was replaced: it does not match its digest in {DIGESTS_FILE}");
    Err(damaged(folder, name, why))
}

/// Reads a file; `None` if it does not exist.
fn read_file(folder: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let path = folder.join(name);
    let most_bytes = if TEXTS.contains(&name) { plain_file::TEXT_BYTES } else { Weights::most_file_bytes() };
    match plain_file::read(&path, most_bytes) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Io { action: "read", path, source }),
    }
}

fn damaged(folder: &Path, name: &str, why: String) -> Error {
    Error::Damaged { path: folder.join(name), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_b3sum() {
        // The digest of an empty file, as printed by `b3sum`.
        let empty = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(digests_text(&vec![("empty", Vec::new())]), format!("{empty}  empty\n").into_bytes());
        let large: Vec<u8> = (0..3 * LARGE).map(|i| (i % 251) as u8).collect();
        assert_eq!(digest(&large), blake3::hash(&large).to_hex().to_string());
    }

    #[test]
    fn no_bit_of_the_digests_can_change_unseen() {
        let files = vec![(MODEL_FILE, vec![1; 100]), (RUN_FILE, b"{}".to_vec())];
        let text = digests_text(&files);
        let right = parse(&text).expect("it is right");
        assert_eq!(right.len(), 2);
        for bit in 0..8 * text.len() {
            let mut changed = text.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(parse(&changed).ok().as_ref(), Some(&right), "bit {bit}");
        }
        for (broken, line) in [(&b""[..], 1), (b"\n", 1), (&text[..text.len() - 1], 2), (b"00  x\n", 1)] {
            assert_eq!(parse(broken), Err(line), "{broken:?}");
        }
        assert_eq!(parse(&[&text[..], &text].concat()), Err(3), "one file has one digest");
    }
}
