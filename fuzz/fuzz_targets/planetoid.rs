//! Pickles: one file of a Planetoid folder. The first byte selects the folder (by the protocol of its pickles) and the
//! file.
#![no_main]

use std::sync::OnceLock;

use lapidary::dataset::import::{Format, Options};
use lapidary_fuzz::{Folder, fixture, imported, selected};
use libfuzzer_sys::fuzz_target;

const SETS: [&str; 5] = ["p0", "p2", "p4", "p5", "old"];

fuzz_target!(|bytes: &[u8]| {
    static FOLDER: OnceLock<Folder> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| Folder::copy(&fixture("planetoid"), "planetoid"));
    let Some((first, rest)) = selected(bytes) else { return };
    let name = SETS[first % 5];
    let prefix = format!("ind.{name}.");
    let files: Vec<usize> = (0..folder.files.len()).filter(|&i| folder.files[i].0.starts_with(&prefix)).collect();
    folder.with(files[first / 5 % files.len()], rest, |path| {
        imported(Format::Planetoid, path, &Options { name: Some(name), ..Options::default() });
    });
});
