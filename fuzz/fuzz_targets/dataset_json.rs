//! `dataset.json` beside valid arrays. The first byte selects the arrays.
#![no_main]

use lapidary_fuzz::{opened, selected};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = selected(bytes) else { return };
    opened(first, rest, |folder| {
        folder.files.iter().position(|(name, _)| name == "dataset.json").expect("every dataset has one")
    });
});
