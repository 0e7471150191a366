//! Faults that are planted to check whether the emulated GPU finds them: in programs of `emulator/faults.cpp`, and in
//! the kernels themselves.

use std::path::Path;
use std::process::Output;

use crate::common::emulator::{self, Emulated};
use crate::emulated::{is_long, run};

/// Returns what a program printed.
fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat()
}

/// Returns the names of the planted faults, and what must be said of each.
fn faults(folder: &Path) -> Vec<(String, String)> {
    let output = Emulated::default().command(folder, folder.join("faults")).output().unwrap();
    let lines = text(&output);
    lines.lines().map(|line| line.split_once(": ").map(|(name, sign)| (name.into(), sign.into())).unwrap()).collect()
}

/// Runs every program with its fault, which must be found, and without it, when nothing may be found.
#[track_caller]
fn every_fault_is_found(seeds: std::ops::Range<u64>) {
    let Some(folder) = emulator::folder() else { return };
    let faults = faults(folder);
    assert!(faults.len() >= 30);
    for (name, sign) in &faults {
        for seed in seeds.clone() {
            let program = |words: &[&str]| {
                let emulated = Emulated { seed, races: true, ..Emulated::default() };
                emulated.command(folder, folder.join("faults")).arg(name).args(words).output().unwrap()
            };
            let (wrong, right) = (text(&program(&[])), program(&["right"]));
            assert!(wrong.contains(sign), "{name} was not found with seed {seed}:\n{wrong}");
            assert!(right.status.success() && text(&right).is_empty(), "{name}, seed {seed}: {}", text(&right));
        }
    }
    println!("{} faults were found in each of {} runs", faults.len(), seeds.count());
}

#[test]
fn every_planted_fault_is_found_in_every_order() {
    every_fault_is_found(0..if is_long() { 100 } else { 10 });
}

/// Faults planted in the kernels: the change, a test that runs the kernel, and what must be said.
const IN_KERNELS: [(&str, &str, &str); 10] = [
    (
        "Cells<VECTOR>::load(a.x + from * a.d + c, x)=>Cells<VECTOR>::load(a.x + from * a.d + c + (VECTOR > 1), x)",
        "packed_rows",
        "a misaligned",
    ),
    ("atomicAdd(out, (u64)1)=>out[0] += 1", "losses_and_metrics", "a race: this thread"),
    ("a.partial[part * a.d + c] = sum=>a.partial[c] = sum", "cells_rows_and_columns", "a race: this thread writes"),
    ("partial[warp][lane] = sum;\n    __syncthreads();=>partial[warp][lane] = sum;", "cells_rows", "shared memory"),
    ("partial[warp][lane] = sum;=>if (warp != 3) partial[warp][lane] = sum;", "cells_rows", "a read of shared memory"),
    ("chunk, count, to);\n        __syncwarp();=>chunk, count, to);", "attention_with_a_halo", "in attention"),
    (
        "shift, lane & mask);\n        __syncwarp();=>shift, lane & mask);",
        "attention_with_a_halo",
        "a race: this thread writes",
    ),
    (
        "if (more) edges.stage(staged[half ^ 1]);\n        __syncthreads();=>if (more) edges.stage(staged[half ^ 1]);",
        "a_gather_has_the_same_bits_on_every_device",
        "shared memory",
    ),
    (
        "edges.stage(staged[0]);=>if (threadIdx.x > 31) edges.stage(staged[0]);",
        "a_gather_has_the_same_bits_on_every_device",
        "shared memory",
    ),
    ("volatile u64& report=>u64& report", "shapes_that_do_not_agree_are_refused", "a race: this thread writes"),
];

#[track_caller]
fn is_found_in_kernels(faults: &[(&str, &str, &str)], seeds: std::ops::Range<u64>) {
    for (plant, test, sign) in faults {
        for seed in seeds.clone() {
            let emulated = Emulated { seed, races: true, plant: Some(plant), ..Emulated::default() };
            let Some(output) = run(emulated, &[test]) else { return };
            let text = text(&output);
            let is_found = text.lines().any(|line| line.contains("emulated: ") && line.contains(sign));
            assert!(!output.status.success() && is_found, "{plant} was not found with seed {seed}:\n{text}");
        }
    }
}

#[test]
fn a_sum_without_atomics_is_found() {
    is_found_in_kernels(&IN_KERNELS[1..2], 0..1);
}

#[test]
#[ignore = "full: compiles changed kernels ten times: 20 s"]
fn faults_in_kernels_are_found_in_every_order() {
    is_found_in_kernels(&IN_KERNELS, 0..if is_long() { 10 } else { 1 });
}
