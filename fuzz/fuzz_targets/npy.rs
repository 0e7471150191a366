//! Arrays: one file of a dataset directory. The first byte selects the directory and the file.
#![no_main]

use std::sync::OnceLock;

use lapidary::Dataset;
use lapidary_fuzz::{Folder, check_again, dense, selected, sparse, written};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    static FOLDERS: OnceLock<[Folder; 2]> = OnceLock::new();
    let folders = FOLDERS.get_or_init(|| {
        let folder = |data: &Dataset, name| Folder::copy(&written(data, "fresh"), name);
        [folder(&dense(), "dense"), folder(&sparse(), "sparse")]
    });
    let Some((first, rest)) = selected(bytes) else { return };
    let folder = &folders[first % 2];
    folder.with(first / 2 % folder.files.len(), rest, |path| {
        if let Ok(data) = Dataset::open(path) {
            check_again(&data);
        }
    });
});
