//! Tests the CUDA device on an emulated GPU: unmodified kernels and host code that run on the CPU. Nothing here ran on
//! a GPU.

use std::process::Output;

use crate::common::emulator::{self, Emulated};

/// The tests that are skipped here: those of the CPU device or its functions, and this module itself.
const CPU_ONLY: [&str; 9] = [
    "emulated::",
    "planted::",
    "gather::",
    "gradients::",
    "passes::",
    "sim::",
    "memory_that_the_host_does_not_have",
    "the_device_may_use_the_global_pool",
    "a_slot_is_renamed_and_shared_without_a_copy",
];

/// The tests that take most of the time of the battery. [`most_of_the_battery`] leaves them out.
const SLOWEST: [&str; 6] = [
    "steps_behind",
    "losses_and_counts",
    "layer_norm_and_its_gradients",
    "windows_one_after_the_other_are_the_whole",
    "attention_is_the_reference",
    SLOWEST_OF_RACES,
];

/// Returns the tests that together run every kernel; in `ci/long`, no filter.
pub fn every_kernel() -> &'static [&'static str] {
    const EVERY_KERNEL: [&str; 12] = [
        "a_gather_has_the_same_bits",
        "gathers_in_bf16_are",
        SLOWEST_OF_RACES,
        "cells_rows_and_columns",
        "linear_and_its_gradients",
        "products_in_3xtf32",
        "edge_values",
        "packed_rows",
        "losses_and_counts",
        "layer_norm_and_its_gradients",
        "optimizers::",
        "peers::",
    ];
    if is_long() { &[] } else { &EVERY_KERNEL }
}

/// Whether this is a run of `ci/long`.
pub fn is_long() -> bool {
    std::env::var_os("LAPIDARY_LONG").is_some()
}

/// Runs the tests whose names contain one of `filters`, in a separate process. Without filters, runs all tests. A
/// filter that begins with `!` leaves tests out.
pub fn run(emulated: Emulated<'_>, filters: &[&str]) -> Option<Output> {
    let folder = emulator::folder()?;
    let mut command = emulated.command(folder, std::env::current_exe().unwrap());
    command.env("LAPIDARY_TEST_DEVICE", "cuda");
    if (emulated.sanitized || emulated.races || emulated.cache.is_some()) && !is_long() {
        command.env("LAPIDARY_TEST_SHAPES", "few");
    }
    if emulated.races {
        // A thread waits until no other one has anything to do, those of other tests included.
        command.arg("--test-threads=1");
    }
    for filter in filters {
        match filter.strip_prefix('!') {
            Some(left_out) => command.args(["--skip", left_out]),
            None => command.arg(filter),
        };
    }
    for name in CPU_ONLY {
        command.args(["--skip", name]);
    }
    Some(command.output().unwrap())
}

/// Checks that all tests pass, and that at least `at_least` of them ran.
#[track_caller]
pub fn passes(emulated: Emulated<'_>, filters: &[&str], at_least: usize) {
    let Some(output) = run(emulated, filters) else { return };
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{errors}");
    let passed = text.split("test result: ok. ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(passed.parse::<usize>().unwrap() >= at_least, "{text}");
    println!("emulated: {passed} tests passed");
}

/// Checks that the tests of `filters` fail on kernels changed by `plant`, with `sign` in the output.
#[track_caller]
fn finds(plant: &str, sanitized: bool, filters: &[&str], sign: &str) {
    let emulated = Emulated { seed: 5, sanitized, plant: Some(plant), ..Emulated::default() };
    let Some(output) = run(emulated, filters) else { return };
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(!output.status.success() && text.contains(sign), "{plant} was not found:\n{text}");
    // The same tests pass without the change.
    passes(Emulated { plant: None, ..emulated }, filters, 1);
}

#[test]
fn most_of_the_battery() {
    passes(Emulated::default(), &SLOWEST.map(|name| format!("!{name}")).each_ref().map(String::as_str), 40);
}

/// Tests of `ci/long`. In the CI, the test of `gpu-check` runs all checks with few shapes and an emulated BLAS, and that of
/// AddressSanitizer runs every kernel in another order.
mod long {
    use super::*;

    #[test]
    #[ignore = "long: the slowest tests of a device take 70 s over the emulator"]
    fn the_rest_of_the_battery() {
        passes(Emulated::default(), &SLOWEST, 8);
    }

    #[test]
    #[ignore = "long: every kernel takes 50 s over the emulator"]
    fn every_kernel_in_another_order_with_an_emulated_blas() {
        passes(Emulated { seed: 1, blas: true, ..Emulated::default() }, every_kernel(), 14);
    }
}

/// This test takes half as long as the rest. It has a run of its own, beside them.
const SLOWEST_OF_RACES: &str = "windows_of_attention";

#[test]
#[ignore = "full: the race checker takes 100 s for every kernel"]
fn every_kernel_has_no_race_and_no_missing_wait() {
    if is_long() {
        passes(Emulated { races: true, ..Emulated::default() }, every_kernel(), 14);
    }
    let left_out = format!("!{SLOWEST_OF_RACES}");
    let others = every_kernel().iter().copied().filter(|name| *name != SLOWEST_OF_RACES);
    let filters: Vec<&str> = others.chain([&*left_out]).collect();
    passes(Emulated { seed: 1, races: true, blas: true, ..Emulated::default() }, &filters, 14);
}

#[test]
#[ignore = "full: the race checker takes 50 s for windows of attention"]
fn windows_of_attention_have_no_race_and_no_missing_wait() {
    passes(Emulated { seed: 1, races: true, blas: true, ..Emulated::default() }, &[SLOWEST_OF_RACES], 1);
}

#[test]
#[ignore = "full: AddressSanitizer takes a minute for every kernel"]
fn every_kernel_in_a_third_order_with_address_sanitizer() {
    passes(Emulated { seed: 2, sanitized: true, ..Emulated::default() }, every_kernel(), 14);
}

/// Wide rows do not fit into this cache, so gathers also run by groups of columns. The gather tests compare the bits
/// with those of the CPU.
#[test]
#[ignore = "full: wide gathers take a minute over the emulator"]
fn gathers_over_a_small_cache_are_the_same() {
    passes(Emulated { seed: 3, cache: Some(16 << 10), ..Emulated::default() }, &["gather"], 4);
}

/// The first run does the gather both ways, by groups of columns last. Later runs use the faster way. Only groups of
/// columns have more than one slice here, so an error planted in later slices is visible exactly in the runs that used
/// them.
#[test]
#[ignore = "full: compiles changed kernels, and runs gathers four times: 4 s"]
fn gathers_by_some_columns_run_where_they_are_faster_and_are_right() {
    let test = ["some_columns_at_a_time"];
    let store = "write_output<VECTOR>(a.out, a.steps.wide, row * a.d + column, cell[t])";
    let plant = format!("{store}=>{}", store.replace("+ column", "+ column - blockIdx.y"));
    for (slice_ms, runs) in [(1000, "[0]"), (-1000, "[0, 1, 2]")] {
        let emulated = Emulated { seed: 6, cache: Some(10 << 10), slice_ms, ..Emulated::default() };
        passes(emulated, &test, 1);
        let Some(output) = run(Emulated { plant: Some(&plant), ..emulated }, &test) else { return };
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(text.contains(&format!("width 45 is wrong in runs {runs}")), "{slice_ms}: {text}");
    }
}

/// Memory that calls of a batch may still use is kept, but never more than the capacity. Index reports and partial sums
/// are in addition to that.
#[test]
fn spare_memory_of_a_batch_is_within_the_capacity() {
    let Some(folder) = emulator::folder() else { return };
    let mut command = Emulated { seed: 7, ..Emulated::default() }.command(folder, std::env::current_exe().unwrap());
    command.env("LAPIDARY_TEST_DEVICE", "cuda").env("EMULATED_TELL", "1").arg("a_batch_of_many_sizes");
    let output = command.output().unwrap();
    let [text, said] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success() && text.contains("1 passed"), "{text}{said}");
    let allocated = said.split("launched, ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let allocated = allocated.parse::<u64>().unwrap();
    assert!((3 << 20..(4 << 20) + (64 << 10)).contains(&allocated), "{allocated} bytes");
}

/// A cuBLAS that cannot be loaded is no error, so the tests with one would be the same as those without.
#[test]
fn the_emulated_blas_is_used() {
    let Some(folder) = emulator::folder() else { return };
    let mut command = Emulated { blas: true, ..Emulated::default() }.command(folder, std::env::current_exe().unwrap());
    command.env("LAPIDARY_TEST_DEVICE", "cuda").env("EMULATED_TELL", "1").arg("a_product_in_strips_of_columns");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let products = said.split("allocated, ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(output.status.success() && products.parse::<u64>().unwrap() > 0, "{said}");
}

#[test]
fn a_missing_barrier_is_found() {
    let plant = "square[down][across] = a.x[(row + down) * a.cols + column + across];\n    __syncthreads();=>\
                 square[down][across] = a.x[(row + down) * a.cols + column + across];";
    finds(plant, false, &["cells_rows_and_columns"], "transpose");
}

#[test]
fn a_product_that_does_not_wait_for_its_copies_is_found() {
    finds("WAIT_FOR_COPIES();=>", false, &["products_in_3xtf32"], "a copy to shared memory that nothing waits for");
}

#[test]
#[ignore = "full: compiles changed kernels with and without the fault: 9 s"]
fn a_missing_source_that_is_not_reported_is_found() {
    for finder in ["sum", "edges"] {
        let plant = format!("if (!{finder}.finder.valid)=>if (false)");
        finds(&plant, false, &["a_gather_names_a_source"], "Result::unwrap_err()");
    }
}

#[test]
#[ignore = "full: compiles changed kernels with and without the fault: 5 s"]
fn a_product_without_the_rests_of_its_numbers_is_found() {
    finds("MMA_TF32(part[i][j], a_rest, b[j])=>(void)a_rest", false, &["products_in_3xtf32"], "1 x 1 x 1: cell 0");
}

#[test]
#[ignore = "full: compiles changed kernels with and without the fault: 5 s"]
fn a_barrier_that_some_threads_do_not_reach_is_found() {
    let plant =
        "    __syncthreads();\n    if (warp == 0 && c < a.d) {=>    if (warp == 0 && c < a.d) {\n    __syncthreads();";
    finds(plant, false, &["cells_rows_and_columns"], "a barrier that not all threads reach");
}

#[test]
#[ignore = "full: compiles changed kernels with and without the fault: 2 s"]
fn scores_that_are_read_too_early_are_found() {
    let plant =
        "write_scores<V2>(a, s, chunk, count, to);\n        __syncwarp();=>write_scores<V2>(a, s, chunk, count, to);";
    finds(plant, false, &["attention_with_a_halo"], "other bits with a halo");
}

#[test]
fn a_read_out_of_bounds_is_found() {
    let plant = "c < a.d; c += a.lanes * VECTOR=>c <= a.d; c += a.lanes * VECTOR";
    finds(plant, true, &["packed_rows"], "heap-buffer-overflow");
}

#[test]
#[ignore = "full: compiles changed kernels with and without the fault: 9 s"]
fn a_wrong_shuffle_is_found() {
    let plant = "x += __shfl_xor_sync(ALL_LANES, x, step)=>x += __shfl_xor_sync(ALL_LANES, x, step / 2)";
    finds(plant, false, &["layer_norm_and_its_gradients"], "layer_norm");
}

#[test]
#[ignore = "full: compiles changed kernels with and without the fault: 8 s"]
fn a_shuffle_from_a_lane_that_is_not_there_is_found() {
    let plant = "x += __shfl_xor_sync(ALL_LANES, x, step)=>x += __shfl_xor_sync(0xffffu, x, step)";
    finds(plant, false, &["layer_norm_and_its_gradients"], "emulated: a lane is not in its own mask");
}
