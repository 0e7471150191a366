//! Edge lists: plain, as gzip, and broken gzip. The first byte selects the options.
#![no_main]

use lapidary::dataset::import::{Fate, Format, Options};
use lapidary_fuzz::{choice, file, imported, packed, selected};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = selected(bytes) else { return };
    let options = Options {
        header: choice(first, None, Some(true), Some(false)),
        duplicates: choice(first >> 2, None, Some(Fate::Keep), Some(Fate::Drop)),
        isolated: choice(first >> 4, None, Some(Fate::Drop), None),
        symmetrise: (first & 64 != 0).then_some(true),
        ..Options::default()
    };
    // Bytes that begin like gzip are read as gzip in any case.
    let path = if first & 128 == 0 { file("edges.txt", rest) } else { file("edges.txt", &packed(rest)) };
    imported(Format::Edges, &path, &options);
});
