//! The command on emulated GPUs: the same losses as on the CPU, the planned bytes and peak, and clear errors if
//! something is missing. Nothing here ran on a GPU.

#[path = "../kernels/tests/common/emulator.rs"]
pub mod emulator;

use std::process::{Command, Output};

use crate::common::command::LAPIDARY;
use crate::common::{MODELS, pairs};
use emulator::Emulated;
use serde_json::Value;

/// Returns the JSON lines of a training run that must succeed.
fn lines(output: &Output) -> Vec<Value> {
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{errors}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn train(command: &mut Command, flags: &[&str]) -> Vec<Value> {
    lines(&command.args(["train", "--json"]).args(flags).output().unwrap())
}

fn losses(lines: &[Value]) -> Vec<f64> {
    lines.iter().filter(|line| line["event"] == "epoch").map(|line| line["loss"].as_f64().unwrap()).collect()
}

/// Trains on `devices` on the emulator, in three orders, and on the CPU. `memory` is the memory of each device.
#[track_caller]
fn agrees(flags: &[&str], devices: &str, memory: Option<&str>) {
    agrees_to(1e-4, flags, devices, memory);
}

#[track_caller]
fn agrees_to(share: f64, flags: &[&str], devices: &str, memory: Option<&str>) {
    let Some(folder) = emulator::folder() else { return };
    let want = losses(&train(&mut Command::new(LAPIDARY), &[flags, &["--devices", "cpu"]].concat()));
    assert!(!want.is_empty());
    for seed in 1..=3 {
        let mut all = [flags, &["--devices", devices]].concat();
        all.extend(memory.iter().flat_map(|memory| ["--device-memory", memory]));
        let emulated = Emulated { seed, blas: seed == 2, ..Emulated::default() };
        let got = train(&mut emulated.command(folder, LAPIDARY), &all);
        let summary = got.last().unwrap();
        let losses = losses(&got);
        for (epoch, (got, want)) in pairs(&losses, &want).enumerate() {
            assert!((got - want).abs() <= share * (1.0 + want.abs()), "seed {seed}, epoch {epoch}: {got}, not {want}");
        }
        for what in ["bytes_to_device", "bytes_to_host", "bytes_between_devices"] {
            let [planned, measured] = ["planned", "measured"].map(|kind| &summary[format!("{kind}_{what}")]);
            let is_told = planned.is_u64() || what == "bytes_between_devices";
            assert!(is_told && planned == measured, "seed {seed}: {what} {measured}, not {planned}");
        }
        let [peaks, planned] = ["peak_device_bytes", "planned_peak_device_bytes"].map(|kind| summary[kind].clone());
        // A mini-batch may be smaller than the largest, which is planned for. Loads ahead of their call may be late.
        let is_kept = |(peak, planned): (&Value, &Value)| peak.as_u64() <= planned.as_u64();
        let kept = pairs(peaks.as_array().unwrap(), planned.as_array().unwrap()).all(is_kept);
        assert!(kept, "seed {seed}: {peaks}, not {planned}");
    }
    println!("emulated: {flags:?} on {devices} trained as on the CPU");
}

const KARATE: [&str; 4] = ["--data", "builtin:karate", "--epochs", "8"];

#[test]
#[ignore = "full: three runs a model"]
fn every_model_trains_as_on_the_cpu() {
    for model in MODELS {
        agrees(&[&KARATE[..], &["--model", model]].concat(), "cuda:0", None);
    }
}

/// GCN and GAT have self-loops beside the drawn edges; GraphSAGE has rows of two levels in one operation.
#[test]
#[ignore = "full: twelve runs, three of them on two devices"]
fn mini_batches_train_as_on_the_cpu() {
    let batches = ["--batch", "5", "--fanout", "3,2"];
    for (model, devices) in [("gcn", "cuda:0"), ("gat", "cuda:0"), ("sage", "cuda:0,0")] {
        agrees(&[&KARATE[..], &batches, &["--model", model, "--dropout", "0"]].concat(), devices, None);
    }
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("planted").into_os_string().into_string().unwrap();
    let shape = ["--vertices", "80", "--features", "12", "--classes", "3", &data];
    assert!(Command::new(LAPIDARY).args(["data", "generate", "planted"]).args(shape).status().unwrap().success());
    let cached = ["--data", &data, "--epochs", "2", "--batch", "20", "--fanout", "3,2", "--device-cache", "30%"];
    agrees(&[&cached[..], &["--model", "sage", "--dropout", "0"]].concat(), "cuda:0", None);
}

/// A run that fits on the device copies nothing in an epoch. When an epoch runs with the same addresses for the second
/// time, it is launched as one graph. Epochs with timed calls are not: a training times some if its GPU has a profile, so
/// this GPU has a name that no other test measures.
#[test]
#[ignore = "full: nine runs"]
fn epochs_that_copy_nothing_are_launched_as_graphs_and_change_no_bit() {
    let Some(folder) = emulator::folder() else { return };
    let kept = tempfile::tempdir().unwrap();
    let trace = kept.path().join("trace.json");
    let trace = trace.to_str().unwrap();
    for (seed, evaluates) in [(0, "1"), (1, "0"), (2, "3")] {
        let flags = ["--epochs", "12", "--devices", "cuda:0", "--model", "sage", "--eval-every", evaluates];
        let run = |capture: &str, more: &[&str]| {
            let mut command = Emulated { seed, blas: seed == 1, ..Emulated::default() }.command(folder, LAPIDARY);
            command.env("EMULATED_CAPTURE", capture).env("EMULATED_TELL", "1").env("EMULATED_NAME", "unmeasured GPU");
            command.args(["train", "--json"]);
            let output = command.args(flags).args(["--data", "builtin:karate"]).args(more).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let graphs = said.split("emulated: ").nth(1).and_then(|rest| rest.split(' ').next());
            (losses(&lines(&output)), graphs.map_or(0, |graphs| graphs.parse::<usize>().unwrap()))
        };
        let (with, graphs) = run("1", &[]);
        let (without, none) = run("0", &[]);
        let (timed, not_timed) = run("1", &["--trace", trace]);
        assert_eq!((&with, &with), (&without, &timed), "seed {seed}");
        assert!(graphs >= 6, "seed {seed}: only {graphs} graphs were launched");
        // Work before the first epoch and after the last one is not timed.
        assert!(none == 0 && not_timed == 0, "seed {seed}: {none}, {not_timed}");
        println!("emulated: {graphs} graphs were launched");
    }
}

/// In bf16, a sum that differs in its last bits may round differently, and an operation fused after a product is
/// rounded twice.
#[test]
#[ignore = "full: twelve runs"]
fn bf16_trains_as_on_the_cpu_but_for_roundings() {
    for (flags, devices, memory) in [
        (&["--model", "gcn"][..], "cuda:0", None),
        (&["--model", "sage", "--layer-norm"], "cuda:0,1", None),
        (&["--model", "gatv2"], "cuda:0,1", None),
        (&["--model", "resgcn", "--hidden", "24"], "cuda:0", Some("24KiB")),
    ] {
        agrees_to(0.02, &[&KARATE[..], &["--dtype", "bf16"], flags].concat(), devices, memory);
    }
}

#[test]
fn two_gpus_train_as_one_cpu() {
    agrees(&KARATE, "cuda:0,1", None);
}

/// Rows go directly between GPUs unless that is forbidden or impossible. The losses have the same bits.
#[test]
#[ignore = "full: a dozen runs"]
fn rows_that_gpus_read_from_each_other_are_those_that_go_through_the_host() {
    let Some(folder) = emulator::folder() else { return };
    let run = |seed: u64, flags: &[&str], peers: &str| {
        let mut command = Emulated { seed, blas: seed == 1, ..Emulated::default() }.command(folder, LAPIDARY);
        let lines = train(command.env("EMULATED_PEERS", peers), flags);
        let between = lines.last().unwrap()["measured_bytes_between_devices"].as_u64();
        assert_eq!(lines.last().unwrap()["planned_bytes_between_devices"].as_u64(), between);
        (losses(&lines), between)
    };
    for (seed, devices, model) in [(0, "cuda:0,1", "gcn"), (1, "cuda:0,0", "resgcn"), (2, "cuda:1,0,1", "sage")] {
        let flags = ["--data", "builtin:karate", "--epochs", "6", "--partition", "edges"];
        let flags = [&flags[..], &["--devices", devices, "--model", model]].concat();
        let (want, none) = run(seed, &[&flags[..], &["--exchange", "host"]].concat(), "1");
        assert!(none.is_none());
        for exchange in ["auto", "peer", "staged"] {
            let (got, between) = run(seed, &[&flags[..], &["--exchange", exchange]].concat(), "1");
            assert!(between.unwrap() > 0, "{devices}, {exchange}");
            assert_eq!(got, want, "{devices}, {exchange}");
        }
        // Shares of one GPU need no link.
        let (got, between) = run(seed, &flags, "0");
        assert_eq!((got, between.is_some()), (want, devices == "cuda:0,0"), "{devices} without links");
    }
    for forgotten in ["1", "2"] {
        let mut command = Emulated::default().command(folder, LAPIDARY);
        let said = refused(command.env("EMULATED_FORGET_LINKS", forgotten), &["--devices", "cuda:0,1"]);
        assert!(said.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{said}");
    }
    let mut command = Emulated::default().command(folder, LAPIDARY);
    let said = refused(command.env("EMULATED_PEERS", "0"), &["--devices", "cuda:0,1", "--exchange", "peer"]);
    assert!(said.contains("GPUs 0,1 cannot all"), "{said}");
}

/// The host adds terms in the order of the parts, NCCL in another. The gradients of mini-batches have terms on all GPUs.
#[test]
fn gradients_that_gpus_add_are_those_that_the_host_adds() {
    let Some(folder) = emulator::folder() else { return };
    let data = tempfile::tempdir().unwrap();
    let planted = data.path().join("planted").into_os_string().into_string().unwrap();
    let shape = ["--vertices", "80", "--features", "12", "--classes", "3", &planted];
    assert!(Command::new(LAPIDARY).args(["data", "generate", "planted"]).args(shape).status().unwrap().success());
    let run = |seed: u64, sum: &str, flags: &[&str]| {
        let checkpoint = data.path().join(format!("{sum}-{seed}-{}", flags.len()));
        let emulated = Emulated { seed, races: seed == 1, blas: true, nccl: true, ..Emulated::default() };
        let mut command = emulated.command(folder, LAPIDARY);
        let everywhere = ["--data", &planted, "--hidden", "8", "--devices", "cuda:0,1,2", "--sum", sum, "--checkpoint"];
        let flags = [&everywhere[..], &[checkpoint.to_str().unwrap()], flags].concat();
        let lines = train(command.env("EMULATED_GPUS", "3"), &flags);
        let last = lines.last().unwrap();
        for what in ["bytes_to_device", "bytes_to_host"] {
            assert_eq!(last[format!("planned_{what}")], last[format!("measured_{what}")], "{sum} {flags:?}");
        }
        let record = std::fs::read_dir(&checkpoint).unwrap().map(|entry| entry.unwrap().path().join("run.json"));
        let record = record.chain([checkpoint.join("run.json")]).find(|path| path.is_file()).unwrap();
        let record: Value = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
        assert_eq!(record["sum"].as_str(), (sum == "nccl").then_some("nccl"));
        (losses(&lines), last["measured_bytes_to_host"].as_u64().unwrap())
    };
    let batches = ["--batch", "20", "--fanout", "3,2", "--model", "sage", "--epochs", "3"];
    let whole = ["--model", "gcn", "--epochs", "5"];
    for (seed, flags) in [(0, &batches[..]), (1, &whole[..])] {
        let ((want, through_host), (got, none)) = (run(seed, "parts", flags), run(seed, "nccl", flags));
        assert!(pairs(&got, &want).all(|(got, want)| (got - want).abs() <= 1e-5 * want), "{got:?}, not {want:?}");
        assert!(none == 0 && through_host > 0, "{none}, {through_host}");
        assert!(seed == 1 || got != want, "the same bits in another order");
    }
    let refused_with = |nccl: bool, works: &str| {
        let mut command = Emulated { nccl, ..Emulated::default() }.command(folder, LAPIDARY);
        let flags = [&KARATE[..], &["--sum", "nccl", "--devices", "cuda:0,1"]].concat();
        refused(command.env("EMULATED_NCCL", works), &flags)
    };
    let said = refused_with(false, "1");
    assert!(said.contains("NCCL (libnccl) was not found") && said.contains("or leave --sum at `parts`"), "{said}");
    let said = refused_with(true, "0");
    assert!(said.contains("adding over GPUs failed with unhandled cuda error"), "{said}");
    for (devices, why) in [("cuda:0,0", "each named once"), ("cpu:2", "as in cuda:0,1"), ("sim:2", "as in cuda:0,1")] {
        let mut command = Emulated { nccl: true, ..Emulated::default() }.command(folder, LAPIDARY);
        let output = command.args(["train", "--sum", "nccl", "--devices", devices]).args(KARATE).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(2) && said.contains("--sum cannot be `nccl`") && said.contains(why),
            "{said}"
        );
    }
}

/// A GPU that fails leaves no other one waiting for its term.
#[test]
#[ignore = "full: thirty runs"]
fn a_gpu_that_fails_before_a_sum_ends_the_run_with_an_error() {
    let Some(folder) = emulator::folder() else { return };
    let mut failed = 0;
    for call in (5..900).step_by(31) {
        let mut command = Emulated { nccl: true, ..Emulated::default() }.command(folder, LAPIDARY);
        command.env("EMULATED_FAIL", call.to_string()).env("EMULATED_GPUS", "3");
        let flags = ["train", "--data", "builtin:karate", "--epochs", "1", "--devices", "cuda:0,1,2", "--sum", "nccl"];
        let output = command.args(flags).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            assert_eq!((output.status.code(), said.matches("error:").count()), (Some(1), 1), "call {call}: {said}");
            failed += 1;
        }
    }
    assert!(failed > 20, "only {failed} runs failed");
}

#[test]
#[ignore = "full: the emulator takes long for a larger graph"]
fn two_shares_of_a_gpu_with_little_memory_train_as_one_cpu() {
    agrees(&["--data", "builtin:planted", "--epochs", "2", "--hidden", "16"], "cuda:0,0", Some("1MiB"));
}

#[test]
#[ignore = "full: twelve runs"]
fn each_policy_moves_what_it_planned() {
    for policy in ["none", "lru", "roc", "optimal"] {
        agrees(&[&KARATE[..], &["--memory", policy]].concat(), "cuda:1", Some("24KiB"));
    }
}

#[test]
fn auto_takes_every_gpu() {
    let Some(folder) = emulator::folder() else { return };
    let parts = |gpus: &str| {
        let mut command = Emulated::default().command(folder, LAPIDARY);
        let lines = train(command.env("EMULATED_GPUS", gpus), &KARATE);
        lines.last().unwrap()["parts"].as_array().unwrap().len()
    };
    assert_eq!([parts("3"), parts("1")], [3, 1]);
}

/// Copies and kernels that use the same memory wait for each other; if streams do not, that is found in any order.
#[test]
fn a_stream_that_does_not_wait_is_found() {
    let Some(folder) = emulator::folder() else { return };
    let run = |seed: u64, forget: bool| {
        let mut command = Emulated { seed, races: true, ..Emulated::default() }.command(folder, LAPIDARY);
        if forget {
            command.env("EMULATED_FORGET_WAITS", "1");
        }
        command.args(["train", "--json"]).args(KARATE).args(["--devices", "cuda:0", "--device-memory", "24KiB"]);
        command.output().unwrap()
    };
    lines(&run(0, false));
    for seed in 0..3 {
        let output = run(seed, true);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("emulated: a missing wait"), "seed {seed}: {said}");
    }
}

/// Every kind of driver call fails once: one clear error, and no hang.
#[test]
#[ignore = "full: seventy runs"]
fn a_driver_that_fails_ends_the_run_with_an_error() {
    let Some(folder) = emulator::folder() else { return };
    let flags = ["--data", "builtin:karate", "--epochs", "1", "--devices"];
    let mut failed = 0;
    let calls = (1..40).chain((40..600).step_by(47)).map(|call| (call, "cuda:0,0"));
    for (call, devices) in calls.chain((20..600).step_by(29).map(|call| (call, "cuda:0,1"))) {
        let mut command = Emulated::default().command(folder, LAPIDARY);
        command.env("EMULATED_FAIL", call.to_string()).arg("train").args(flags).arg(devices);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            assert_eq!(output.status.code(), Some(1), "call {call}: {said}");
            assert_eq!(said.matches("error:").count(), 1, "call {call}: {said}");
            assert!(said.contains("CUDA_ERROR") && !said.contains("panicked"), "call {call}: {said}");
            failed += 1;
        }
    }
    assert!(failed > 55, "only {failed} runs failed");
}

/// Returns the error that the command prints: one line and its causes.
fn refused(command: &mut Command, flags: &[&str]) -> String {
    let output = command.arg("train").args(flags).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn without_a_driver_auto_is_the_cpu_and_a_gpu_is_missing() {
    if lapidary_kernels::cuda::gpus().is_ok() {
        return println!("skipped: this machine has a driver");
    }
    let said = refused(&mut Command::new(LAPIDARY), &["--devices", "cuda:0"]);
    assert!(
        said.contains("--devices is `cuda:0`, but no GPU can be found") && said.contains("`cpu` needs none"),
        "{said}"
    );
    assert!(said.contains("NVIDIA's driver (libcuda) was not found: install it"), "{said}");
    let plan = ["plan", "--shape", "100,1000,16,4", "--profile", "cuda:0"];
    let output = Command::new(LAPIDARY).args(plan).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("--profile is `cuda:0`, but no GPU can be found")
            && said.contains("h200, h100, a100, l40s, rtx4090, p100"),
        "{said}"
    );
    assert!(said.contains("(libcuda) was not found: install it") && !said.contains("--devices"), "{said}");
    let lines = train(&mut Command::new(LAPIDARY), &[&KARATE[..], &["--devices", "auto"]].concat());
    assert_eq!(lines.last().unwrap()["parts"].as_array().unwrap().len(), 1);
}

#[test]
fn what_is_missing_is_named() {
    let Some(folder) = emulator::folder() else { return };
    let emulated = || Emulated::default().command(folder, LAPIDARY);
    let said = refused(&mut emulated(), &["--devices", "cuda:7"]);
    assert!(said.contains("there is no GPU 7: this machine has 2"), "{said}");
    let said = refused(emulated().env("EMULATED_GPUS", "0"), &["--devices", "cuda:0"]);
    assert!(said.contains("there is no GPU 0: this machine has 0"), "{said}");
    let said = refused(emulated().env("EMULATED_BYTES", "100000"), &["--devices", "cuda:0", "--device-memory", "1GiB"]);
    assert!(said.contains("CUDA_ERROR_OUT_OF_MEMORY") && said.contains("--device-memory"), "{said}");
    let bad = Emulated { plant: Some("KERNEL(rows_1=>KERNEL(("), ..Emulated::default() };
    let said = refused(&mut bad.command(folder, LAPIDARY), &[&KARATE[..], &["--devices", "cuda:0"]].concat());
    assert!(said.contains("rows.cu does not compile"), "{said}");
}

#[test]
fn libraries_that_do_not_fit_the_driver_or_the_gpu_are_named() {
    let Some(folder) = emulator::folder() else { return };
    // Without compiled kernels from before.
    let emulated = |name, value| {
        let mut command = Emulated::default().command(folder, LAPIDARY);
        command.env(name, value).env("LAPIDARY_CACHE", "/dev/null");
        command
    };
    let on_gpu = [&KARATE[..], &["--devices", "cuda:0"]].concat();
    let said = refused(&mut emulated("EMULATED_VERSION", "11080"), &on_gpu);
    assert!(said.contains("driver supports CUDA 11.8, but CUDA 12.0 is needed: update the driver"), "{said}");
    let said = refused(&mut emulated("EMULATED_VERSION", "12040"), &on_gpu);
    assert!(said.contains("(NVRTC 13.0) is newer than the driver (CUDA 12.4)"), "{said}");
    assert!(said.contains("pip install nvidia-cuda-nvrtc-cu12"), "{said}");
    let said = refused(&mut emulated("EMULATED_CAPABILITY", "70"), &on_gpu);
    assert!(said.contains("makes no code for this GPU, whose compute capability is 7.0"), "{said}");
    // The driver alone.
    let driver = tempfile::tempdir().unwrap();
    std::fs::copy(folder.join("libcuda.so.1"), driver.path().join("libcuda.so.1")).unwrap();
    let said =
        refused(Emulated::default().command(driver.path(), LAPIDARY).env("LAPIDARY_CACHE", "/dev/null"), &on_gpu);
    assert!(said.contains("kernel compiler (libnvrtc) was not found") && said.contains("pip install"), "{said}");
}

#[test]
fn auto_says_why_it_does_not_use_a_gpu() {
    let Some(folder) = emulator::folder() else { return };
    let mut command = Emulated::default().command(folder, LAPIDARY);
    let output = command.env("EMULATED_VERSION", "11080").arg("train").args(KARATE).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("no GPU is used: NVIDIA's driver supports CUDA 11.8").count(), 1, "{said}");
}

#[test]
fn a_blas_that_is_missing_or_does_not_start_is_warned_of_once() {
    let Some(folder) = emulator::folder() else { return };
    for (blas, why) in
        [(false, "cuBLAS (libcublas) was not found"), (true, "CUBLAS_STATUS_NOT_INITIALIZED: it needs libcublasLt")]
    {
        let mut command = Emulated { blas, ..Emulated::default() }.command(folder, LAPIDARY);
        let output = command.env("EMULATED_BLAS", "0").arg("train").args(KARATE).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && said.contains(why), "{said}");
        assert_eq!(said.matches("products are slower than they could be").count(), 1, "{said}");
    }
}

#[test]
fn products_in_tf32_train_almost_as_in_f32() {
    let Some(folder) = emulator::folder() else { return };
    let emulated = |blas| Emulated { blas, ..Emulated::default() }.command(folder, LAPIDARY);
    let run = |matmul| {
        losses(&train(&mut emulated(true), &[&KARATE[..], &["--devices", "cuda:0", "--matmul", matmul]].concat()))
    };
    let [f32, tf32] = ["f32", "tf32"].map(run);
    assert_ne!(f32, tf32);
    let exact = run("3xtf32");
    assert!(
        f32 != exact && pairs(&f32, &exact).all(|(f32, exact)| (f32 - exact).abs() <= 1e-5 * f32),
        "{f32:?} {exact:?}"
    );
    assert!(pairs(&f32, &tf32).all(|(f32, tf32)| (f32 - tf32).abs() <= 1e-2 * f32), "{f32:?} {tf32:?}");
    // Not without cuBLAS, on an older GPU or on a CPU.
    let tf32 = ["--matmul", "tf32", "--devices"];
    let said = refused(&mut emulated(false), &[&KARATE[..], &tf32, &["cuda:0"]].concat());
    assert!(said.contains("cannot multiply in TF32: it takes cuBLAS") && said.contains("pip install"), "{said}");
    // Lapidary's own kernel does without cuBLAS.
    let exact = ["--matmul", "3xtf32", "--devices"];
    assert_eq!(losses(&train(&mut emulated(false), &[&KARATE[..], &exact, &["cuda:0"]].concat())), run("3xtf32"));
    for matmul in [tf32, exact] {
        let on_old = [&KARATE[..], &matmul, &["cuda:0"]].concat();
        let said = refused(emulated(true).env("EMULATED_CAPABILITY", "75"), &on_old);
        assert!(said.contains("it takes compute capability 8.0, and it has 7.5"), "{said}");
    }
    for matmul in [tf32, exact] {
        let said = refused(&mut emulated(true), &[&KARATE[..], &matmul, &["cpu"]].concat());
        assert!(said.contains("cannot multiply in TF32: it is a CPU"), "{said}");
    }
}

#[test]
#[ignore = "full: the emulator takes long for a profile"]
fn the_link_between_two_gpus_is_measured() {
    let Some(folder) = emulator::folder() else { return };
    let plan = ["plan", "--shape", "300,3000,16,4", "--devices", "2", "--exchange", "peer", "--profile"];
    let cache = tempfile::tempdir().unwrap();
    let said = |gpus: &str, peers: &str| {
        let mut command = Emulated::default().command(folder, LAPIDARY);
        command.env("EMULATED_PEERS", peers).env("XDG_CACHE_HOME", cache.path()).env("LAPIDARY_LOG", "lapidary=debug");
        let output = command.args(plan).arg(gpus).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        said
    };
    let rate = |said: &str| said.split("cuda:0,1: Some(").nth(1)?.split(')').next()?.parse::<f64>().ok();
    assert!(rate(&said("cuda:0,1", "1")).is_some_and(|rate| rate > 0.0));
    assert!(said("cuda:0,1", "0").contains("cuda:0,1: None"));
    assert!(said("cuda:0,0", "1").contains("cuda:0,0: None"), "shares of one GPU have no link");
}

#[test]
#[ignore = "full: compiles the kernels for five kinds of machine"]
fn older_drivers_newer_gpus_and_a_broken_blas_train_as_well() {
    let Some(folder) = emulator::folder() else { return };
    let on_gpu = [&KARATE[..], &["--devices", "cuda:0"]].concat();
    let want = losses(&train(&mut Emulated::default().command(folder, LAPIDARY), &on_gpu));
    let others: [&[(&str, &str)]; 4] = [
        &[("EMULATED_VERSION", "12000"), ("EMULATED_COMPILER", "12000")],
        // Machine code for an older GPU of the same major version, and assembly.
        &[("EMULATED_CAPABILITY", "121")],
        &[("EMULATED_CAPABILITY", "130")],
        &[("EMULATED_BLAS", "0")],
    ];
    for other in others {
        let mut command = Emulated { blas: true, ..Emulated::default() }.command(folder, LAPIDARY);
        let got = losses(&train(command.envs(other.iter().copied()), &on_gpu));
        assert!(pairs(&got, &want).all(|(got, want)| (got - want).abs() <= 1e-4 * (1.0 + want)), "{other:?}: {got:?}");
    }
}

#[test]
#[ignore = "full: compiles all kernels twice"]
fn a_damaged_cache_is_rebuilt() {
    let Some(folder) = emulator::folder() else { return };
    let cache = tempfile::tempdir().unwrap();
    let run = || {
        let mut command = Emulated::default().command(folder, LAPIDARY);
        losses(&train(command.env("LAPIDARY_CACHE", cache.path()), &[&KARATE[..], &["--devices", "cuda:0"]].concat()))
    };
    let entries = || -> Vec<_> {
        let mut paths: Vec<_> = cache.path().read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths.into_iter().map(|path| (std::fs::read(&path).unwrap(), path)).collect()
    };
    let first = run();
    let whole = entries();
    assert!(whole.len() > 3);
    for (i, (bytes, path)) in whole.iter().enumerate() {
        let mut bytes = bytes.clone();
        match i % 3 {
            0 => bytes.truncate(bytes.len() / 2),
            1 => bytes.clear(),
            _ => bytes[100] ^= 1,
        }
        std::fs::write(path, bytes).unwrap();
    }
    assert_eq!(run(), first);
    let lens = |entries: &[(Vec<u8>, _)]| entries.iter().map(|(bytes, _)| bytes.len()).collect::<Vec<_>>();
    assert_eq!(lens(&entries()), lens(&whole));
}
