//! Matrix Market files. The first byte selects the options.
#![no_main]

use lapidary::dataset::import::{EdgeWeights, Fate, Format, Options};
use lapidary_fuzz::{choice, imported_text, selected};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = selected(bytes) else { return };
    let options = Options {
        duplicates: choice(first, None, Some(Fate::Keep), Some(Fate::Drop)),
        self_loops: choice(first >> 2, None, Some(Fate::Keep), Some(Fate::Drop)),
        isolated: choice(first >> 4, None, Some(Fate::Drop), None),
        edge_weights: choice(first >> 4, EdgeWeights::Guess, EdgeWeights::Guess, EdgeWeights::Drop),
        symmetrise: (first & 64 != 0).then_some(true),
        ..Options::default()
    };
    imported_text(Format::MatrixMarket, "graph.mtx", rest, first & 128 != 0, &options);
});
