//! Lists of degrees, and a small graph with what was accepted. The first byte selects the scale.
#![no_main]

use lapidary::dataset::generate::{BterOptions, DegreeProfile, bter};
use lapidary_fuzz::{check_again, file, selected};
use libfuzzer_sys::fuzz_target;

/// Larger graphs are generated too, but not at the rate that a fuzzer needs.
const MOST: u64 = 2_000;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = selected(bytes) else { return };
    let Ok(profile) = DegreeProfile::read(&file("degrees.txt", rest)) else { return };
    let scaled = profile.scaled([1.0, 0.5, 2.0, 1e-3, 1e300, f64::NAN][first % 6]);
    let Ok(profile) = scaled else { return };
    if profile.vertices() <= MOST && profile.edges() <= MOST {
        if let Ok(data) = bter(&BterOptions::new(profile)) {
            check_again(&data);
        }
    }
});
