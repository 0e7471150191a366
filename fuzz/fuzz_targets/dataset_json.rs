//! `dataset.json` beside valid arrays. The first byte selects the arrays.
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
    let which = folder.files.iter().position(|(name, _)| name == "dataset.json").expect("every dataset has one");
    folder.with(which, rest, |path| {
        if let Ok(data) = Dataset::open(path) {
            check_again(&data);
        }
    });
});
