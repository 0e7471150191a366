//! The part of each vertex from a file, and datasets that are relabelled by what was accepted.
#![no_main]

use std::num::NonZeroU32;
use std::sync::OnceLock;

use lapidary::Dataset;
use lapidary::partition::{Assignment, Volume};
use lapidary_fuzz::{check_again, dense, file};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    static DATA: OnceLock<Dataset> = OnceLock::new();
    let data = DATA.get_or_init(dense);
    let count = NonZeroU32::new(3).expect("three is not zero");
    let Ok(assignment) = Assignment::read(&file("parts", bytes), data.graph().vertex_count(), count) else { return };
    let (order, ranges) = assignment.relabelling();
    let moved = data.relabelled(&order);
    check_again(&moved);
    let volume = Volume::of(data.graph(), &assignment);
    assert_eq!(Volume::of(moved.graph(), &Assignment::of_ranges(&ranges)), volume, "the volume does not change");
});
