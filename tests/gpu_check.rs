//! `lapidary gpu-check` and `lapidary devices` on emulated GPUs: the verdicts, the reports, and the words for what is
//! missing. Nothing here ran on a GPU.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::command::LAPIDARY;
use crate::emulated::emulator::{self, Emulated};

/// A finished check, with the folder of its report.
struct Check {
    output: Output,
    folder: PathBuf,
    _kept: TempDir,
}

impl Check {
    /// Runs `gpu-check` with small graphs.
    fn run(mut command: Command, flags: &[&str]) -> Self {
        let kept = tempfile::tempdir().unwrap();
        let folder = kept.path().join("report");
        // Without PyTorch, and with no measurement of another test.
        command.env("PYTHON", "/nowhere/python3").env("XDG_CACHE_HOME", kept.path());
        command.args(["gpu-check", "--size", "tiny", "--out"]).arg(&folder).args(flags);
        Self { output: command.output().unwrap(), folder, _kept: kept }
    }

    #[track_caller]
    fn ends(&self, code: i32, verdict: &str) {
        let [said, errors] = self.said();
        assert_eq!(self.output.status.code(), Some(code), "{said}{errors}");
        assert!(said.contains(&format!("\n{verdict}: ")), "{said}");
        assert_eq!(self.results()["verdict"], verdict);
        assert!(self.file("report.md").contains(&format!("**{verdict}**")));
        let page = self.file("report.html");
        assert!(page.contains(&format!("<strong>{verdict}</strong>")) && page.contains("prefers-color-scheme: dark"));
        assert!(!page.contains("http") && !page.contains("src="), "the page needs another file");
        assert!(!errors.contains("panicked") && !errors.contains("backtrace"), "{errors}");
    }

    fn said(&self) -> [String; 2] {
        [&self.output.stdout, &self.output.stderr].map(|text| String::from_utf8_lossy(text).into_owned())
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.join(name)).unwrap()
    }

    fn results(&self) -> Value {
        serde_json::from_str(&self.file("results.json")).unwrap()
    }
}

/// Returns how many rows of a section have results, and the reasons for those that were left out.
fn counts(results: &Value, half: &str, section: &str) -> (usize, Vec<String>) {
    let section = &results[half][section];
    let left_out = section["left_out"].as_array().unwrap().iter();
    let reasons = left_out.map(|row| row["why"].as_str().unwrap().to_owned()).collect();
    (section["rows"].as_array().unwrap().len(), reasons)
}

#[test]
#[ignore = "full: the emulator takes minutes for all checks"]
fn a_gpu_that_is_right_passes() {
    let Some(folder) = emulator::folder() else { return };
    let emulated = Emulated { blas: true, ..Emulated::default() };
    let check = Check::run(emulated.command(folder, LAPIDARY), &["--minutes", "600"]);
    check.ends(0, "PASS");
    let results = check.results();
    for (half, section, at_least) in [
        ("correctness", "calls", 60),
        ("correctness", "models", 40),
        ("correctness", "gather bits", 15),
        ("correctness", "memory", 3),
        ("speed", "device", 1),
        ("speed", "epochs", 4),
        ("speed", "gathers", 15),
        ("speed", "products", 9),
        ("speed", "bf16", 2),
        ("speed", "capacity", 12),
        ("speed", "splits", 6),
    ] {
        let (rows, left_out) = counts(&results, half, section);
        assert!(rows >= at_least && left_out.is_empty(), "{section}: {rows} rows, {left_out:?}");
    }
    for row in results["correctness"]["memory"]["rows"].as_array().unwrap() {
        assert!(row["graphs_launched"].as_u64().unwrap() > 0 && row["captures_refused"] == 0, "{row}");
        assert!(row["driver_most_used_bytes"].as_u64() >= row["peak_bytes"].as_u64(), "{row}");
    }
    assert!(results["figures"]["device_bytes_per_s"].is_f64());
    // Times of tiny graphs are not compared with goals.
    assert!(results["goals"].as_array().unwrap().iter().all(|goal| goal["met"].is_null()));
    assert!(check.file("report.md").contains("Less memory than needed"));
}

/// Whether results are right is checked although there is no time.
#[test]
fn a_check_of_a_part_is_incomplete() {
    let Some(folder) = emulator::folder() else { return };
    let flags = ["--only", "packed_rows", "--minutes", "0"];
    let check = Check::run(Emulated::default().command(folder, LAPIDARY), &flags);
    check.ends(3, "INCOMPLETE");
    let results = check.results();
    let (rows, left_out) = counts(&results, "correctness", "calls");
    assert!(rows == 1 && left_out.iter().all(|why| why == "--only names others"), "{rows}: {left_out:?}");
    assert_eq!(counts(&results, "correctness", "models").0, 0);
    assert!(check.file("report.md").contains("Left out"));
}

#[test]
fn a_spent_time_is_incomplete_and_says_so() {
    let Some(folder) = emulator::folder() else { return };
    let flags = ["--only", "epochs: ", "--minutes", "0"];
    let check = Check::run(Emulated::default().command(folder, LAPIDARY), &flags);
    check.ends(3, "INCOMPLETE");
    let (rows, left_out) = counts(&check.results(), "speed", "epochs");
    assert!(rows == 0 && !left_out.is_empty() && left_out.iter().all(|why| why == "no time was left"), "{left_out:?}");
    assert!(check.file("report.md").contains("no time was left"));
}

#[test]
fn minutes_that_make_no_sense_are_refused_at_once() {
    for minutes in ["inf", "-1", "NaN", "1e300", "ten"] {
        let args = ["gpu-check", &format!("--minutes={minutes}")];
        let output = Command::new(LAPIDARY).args(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("--minutes") && said.contains("a number from 0 to 1000000"), "{said}");
    }
}

#[test]
fn a_wrong_kernel_fails_and_is_named_with_what_to_do_next() {
    let Some(folder) = emulator::folder() else { return };
    let barrier = "square[down][across] = a.x[(row + down) * a.cols + column + across];\n    __syncthreads();";
    let plant = format!("{barrier}=>{}", barrier.replace("\n    __syncthreads();", ""));
    let emulated = Emulated { seed: 5, plant: Some(&plant), ..Emulated::default() };
    let check = Check::run(emulated.command(folder, LAPIDARY), &["--only", "conformance::cells_rows_and_columns"]);
    check.ends(1, "FAIL");
    let [said, errors] = check.said();
    for text in [&said, &errors, &check.file("report.md"), &check.file("report.html")] {
        assert!(text.contains("calls: conformance::cells_rows_and_columns") && text.contains("transpose"), "{text}");
    }
    assert!(said.contains("battery/src/conformance.rs:") && said.contains("Run the check again, alone"), "{said}");
    let findings = check.results()["findings"].clone();
    assert_eq!(findings[0]["name"], "calls: conformance::cells_rows_and_columns", "{findings}");
}

/// Graphs that the driver does not capture cost time and nothing else, so without this check nobody would notice.
#[test]
#[ignore = "full: trains on three graphs"]
fn graphs_that_are_not_captured_are_found() {
    let Some(folder) = emulator::folder() else { return };
    let mut command = Emulated::default().command(folder, LAPIDARY);
    command.env("EMULATED_CAPTURE", "0");
    let check = Check::run(command, &["--only", "memory"]);
    check.ends(1, "FAIL");
    assert!(check.said()[0].contains("no graph was launched in 12 epochs"), "{}", check.said()[0]);
}

/// Returns what `devices` prints, and its JSON line.
fn devices(command: impl Fn() -> Command) -> (String, Value) {
    let run = |flags: &[&str]| {
        let output = command().arg("devices").args(flags).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    (run(&[]), serde_json::from_str(&run(&["--json"])).unwrap())
}

/// Checks that `devices` names a problem, and that `gpu-check` fails with it and writes nothing.
#[track_caller]
fn both_say(command: impl Fn() -> Command, words: &str) {
    let (table, json) = devices(&command);
    assert!(table.contains(words), "{table}");
    assert!(json["problems"].to_string().contains(words), "{json}");
    let check = Check::run(command(), &[]);
    let [_, errors] = check.said();
    assert_eq!(check.output.status.code(), Some(1), "{errors}");
    assert!(errors.contains(words) && errors.matches("error:").count() == 1, "{errors}");
    assert!(!check.folder.exists());
}

#[test]
fn a_missing_or_old_driver_and_compiler_are_named() {
    if lapidary_kernels::cuda::gpus().is_err() {
        both_say(|| Command::new(LAPIDARY), "NVIDIA's driver (libcuda) was not found: install it");
    }
    let Some(folder) = emulator::folder() else { return };
    // Without compiled kernels from before.
    let emulated = |folder: &Path| {
        let mut command = Emulated::default().command(folder, LAPIDARY);
        command.env("LAPIDARY_CACHE", "/dev/null");
        command
    };
    let of_version = |version: &'static str| {
        move || {
            let mut command = emulated(folder);
            command.env("EMULATED_VERSION", version);
            command
        }
    };
    both_say(of_version("11080"), "driver supports CUDA 11.8, but CUDA 12.0 is needed: update the driver");
    both_say(of_version("12040"), "(NVRTC 13.0) is newer than the driver (CUDA 12.4)");
    let driver = tempfile::tempdir().unwrap();
    std::fs::copy(folder.join("libcuda.so.1"), driver.path().join("libcuda.so.1")).unwrap();
    both_say(|| emulated(driver.path()), "kernel compiler (libnvrtc) was not found");
    let check = Check::run(emulated(folder), &["--gpu", "7"]);
    assert!(check.said()[1].contains("there is no GPU 7: this machine has 2"), "{}", check.said()[1]);
}

#[test]
fn devices_are_listed_and_a_missing_blas_is_no_obstacle() {
    let Some(folder) = emulator::folder() else { return };
    let (table, json) = devices(|| Emulated::default().command(folder, LAPIDARY));
    assert!(table.contains("cuda:1") && table.contains("2.0 GiB") && table.contains("9.0"), "{table}");
    assert!(table.ends_with("--devices auto is cuda:0,1\n"), "{table}");
    assert!(
        table.contains("products are slower than they could be: NVIDIA's cuBLAS (libcublas) was not found"),
        "{table}"
    );
    assert!(
        table.contains("gradients cannot be added from GPU to GPU (--sum nccl): NVIDIA's NCCL (libnccl)"),
        "{table}"
    );
    assert_eq!(json["gpus"].as_array().unwrap().len(), 2);
    assert!(json["gpus"][0]["free_bytes"].as_u64() <= json["gpus"][0]["memory_bytes"].as_u64());
    let (table, json) =
        devices(|| Emulated { blas: true, nccl: true, ..Emulated::default() }.command(folder, LAPIDARY));
    assert!(!table.contains("slower") && json["libraries"]["nccl"]["version"] == "2.28", "{table}");
    assert!(!table.contains("--sum nccl)") && json["problems"].as_array().unwrap().is_empty(), "{table}");
    let (table, json) = devices(|| {
        let mut command = Emulated { blas: true, ..Emulated::default() }.command(folder, LAPIDARY);
        command.env("EMULATED_GPUS", "0");
        command
    });
    assert!(table.contains("the driver finds no GPU") && table.ends_with("--devices auto is cpu\n"), "{table}");
    assert_eq!(json["auto"], "cpu");
}
