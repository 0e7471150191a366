//! Edge lists: plain, as gzip, and broken gzip. The first byte selects the options.
#![no_main]

use lapidary::dataset::import::{EdgeWeights, Fate, Format, Options};
use lapidary_fuzz::{choice, imported_text, selected};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = selected(bytes) else { return };
    let options = Options {
        header: choice(first, None, Some(true), Some(false)),
        duplicates: choice(first >> 2, None, Some(Fate::Keep), Some(Fate::Drop)),
        isolated: choice(first >> 4, None, Some(Fate::Drop), None),
        edge_weights: choice(first >> 4, EdgeWeights::Guess, EdgeWeights::Guess, EdgeWeights::Column("3")),
        symmetrise: (first & 64 != 0).then_some(true),
        ..Options::default()
    };
    imported_text(Format::Edges, "edges.txt", rest, first & 128 != 0, &options);
});
