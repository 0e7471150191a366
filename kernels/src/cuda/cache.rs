//! Compiled kernels on disk, keyed by source text and options. A truncated or changed entry counts as missing.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The first bytes of an entry. The length and the hash of its contents follow.
const MAGIC: &[u8; 8] = b"lapcuda1";

/// A folder of cache entries.
pub(super) struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// Opens the folder `LAPIDARY_CACHE`, else `lapidary/kernels` in the user's XDG cache folder. Without either, every
    /// entry is missing.
    pub(super) fn open() -> Self {
        let named = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let caches = || named("XDG_CACHE_HOME").or_else(|| named("HOME").map(|home| home.join(".cache")));
        let folder = named("LAPIDARY_CACHE").or_else(|| Some(caches()?.join("lapidary/kernels")));
        Self { folder }
    }

    /// Returns the contents stored under `key`.
    pub(super) fn load(&self, key: &str) -> Option<Vec<u8>> {
        let entry = fs::read(self.folder.as_ref()?.join(key)).ok()?;
        let (head, contents) = entry.split_at_checked(24)?;
        let whole = head == header(contents);
        whole.then(|| contents.to_vec())
    }

    /// Stores `contents` under `key`. It writes another file and renames it, so that no reader sees a partial entry. A
    /// cache that cannot be written costs time but is not an error.
    pub(super) fn store(&self, key: &str, contents: &[u8]) {
        if let Some(folder) = &self.folder {
            // On failure, the kernels are compiled again next time.
            let _ = write_whole(folder, key, contents);
        }
    }
}

fn write_whole(folder: &Path, key: &str, contents: &[u8]) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let beside = folder.join(format!("{key}.{}.part", std::process::id()));
    let written = fs::File::create(&beside).and_then(|mut file| {
        file.write_all(&header(contents))?;
        file.write_all(contents)?;
        file.sync_all()
    });
    let done = written.and_then(|()| fs::rename(&beside, folder.join(key)));
    if done.is_err() {
        let _ = fs::remove_file(&beside);
    }
    done
}

fn header(contents: &[u8]) -> [u8; 24] {
    let mut header = [0; 24];
    header[..8].copy_from_slice(MAGIC);
    header[8..16].copy_from_slice(&(contents.len() as u64).to_le_bytes());
    header[16..].copy_from_slice(&hash(&[contents]).to_le_bytes());
    header
}

/// Returns the FNV-1a hash of the texts, each preceded by its length. It is the same in every build.
pub(super) fn hash(texts: &[&[u8]]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    texts.iter().fold(0xcbf2_9ce4_8422_2325, |hash, text| {
        let hash = (text.len() as u64).to_le_bytes().iter().fold(hash, step);
        text.iter().fold(hash, step)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_whole_or_not_there() {
        let folder = std::env::temp_dir().join(format!("lapidary-cache-test-{}", std::process::id()));
        let cache = Cache { folder: Some(folder.clone()) };
        assert_eq!(cache.load("a"), None);
        cache.store("a", b"machine code");
        assert_eq!(cache.load("a").as_deref(), Some(&b"machine code"[..]));
        let entry = fs::read(folder.join("a")).expect("it was stored");
        for len in 0..entry.len() {
            fs::write(folder.join("a"), &entry[..len]).expect("it can be written");
            assert_eq!(cache.load("a"), None, "cut to {len} bytes");
        }
        for place in 0..entry.len() {
            let mut changed = entry.clone();
            changed[place] ^= 1;
            fs::write(folder.join("a"), &changed).expect("it can be written");
            assert_eq!(cache.load("a"), None, "byte {place} changed");
        }
        cache.store("a", b"again");
        assert_eq!(cache.load("a").as_deref(), Some(&b"again"[..]));
        let left = fs::read_dir(&folder).expect("it is there").count();
        assert_eq!(left, 1, "nothing is left beside it");
        fs::remove_dir_all(folder).expect("it can be removed");
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_no_error() {
        let cache = Cache { folder: Some("/dev/null/nowhere".into()) };
        cache.store("a", b"lost");
        assert_eq!(cache.load("a"), None);
        assert_eq!(Cache { folder: None }.load("a"), None);
    }

    #[test]
    fn where_a_text_ends_is_part_of_its_hash() {
        assert_ne!(hash(&[b"ab", b"c"]), hash(&[b"a", b"bc"]));
    }
}
