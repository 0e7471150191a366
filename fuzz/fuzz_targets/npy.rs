//! Arrays: one file of a dataset directory. The first byte selects the directory and the file.
#![no_main]

use lapidary_fuzz::{opened, selected};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = selected(bytes) else { return };
    opened(first, rest, |folder| first / 2 % folder.files.len());
});
