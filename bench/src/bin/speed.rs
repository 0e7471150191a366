//! Measures the seconds of an epoch on a dataset directory. `bench/speed.py` runs this beside other frameworks.
//!
//!     cargo run --release -p lapidary-bench --bin speed -- --data DIR --hidden 128 [--model gcn] [--epochs 10] [--weights FILE]
//!                                            [--dropout F] [--input-dropout F] [--heads K]
//!
//! Prints one JSON line: the losses of all epochs, the median milliseconds of an epoch (including its loss and the
//! optimizer step) and of an evaluation, the processor time of all threads per epoch, and peak resident memory.
//! Features are used as they are. The time before the first epoch is reported separately.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use lapidary::model::ModelConfig;
use lapidary::{Adam, Dataset, Devices, FeatureNorm, Model, Trainer, Weights};
use lapidary_bench::Flags;
use serde_json::json;

fn main() -> Result<(), Box<dyn Error>> {
    let flags = Flags::of_program();
    let start = Instant::now();
    let data = match flags.text("--data") {
        Some(dir) => Dataset::open(dir)?,
        None => Dataset::builtin("planted")?,
    };
    let open_s = start.elapsed().as_secs_f64();
    let (hidden, epochs) = (flags.number("--hidden", 16.0)? as usize, flags.number("--epochs", 10.0)? as usize);
    let widths = [data.feature_width(), hidden, data.class_count()];
    let config = ModelConfig::new(flags.text("--model").unwrap_or("gcn"), &widths);
    let model = Model::from_config(config)?
        .heads(flags.number("--heads", 1.0)? as usize)
        .dropout(flags.number("--dropout", 0.0)? as f32)
        .input_dropout(flags.number("--input-dropout", 0.0)? as f32);
    let mut builder = Trainer::builder(&model, &data)
        .devices(Devices::parse("cpu")?)
        .optimizer(Adam::new(0.01))
        .feature_norm(FeatureNorm::None)
        .eval_every(0);
    if let Some(file) = flags.text("--weights") {
        builder = builder.weights(Weights::load(Path::new(file))?);
    }
    let mut trainer = builder.build()?;
    let ready_s = start.elapsed().as_secs_f64();
    // Two epochs to warm up, as for the peers.
    let mut losses = vec![trainer.step()?.loss, trainer.step()?.loss];
    let (mut epoch_s, cpu) = (Vec::new(), cpu_seconds());
    for _ in 0..epochs {
        let start = Instant::now();
        losses.push(trainer.step()?.loss);
        epoch_s.push(start.elapsed().as_secs_f64());
    }
    let cpu_s = (cpu_seconds() - cpu) / epochs as f64;
    let peak_mb = peak_mb();
    trainer.evaluate()?;
    let mut infer_s = Vec::new();
    for _ in 0..epochs {
        let start = Instant::now();
        trainer.evaluate()?;
        infer_s.push(start.elapsed().as_secs_f64());
    }
    let line = json!({
        "backend": "lapidary", "graph": data.name(), "hidden": hidden, "status": "ok",
        "epoch": { "median_ms": median_ms(epoch_s), "cpu_ms": cpu_s * 1e3, "reps": epochs },
        "infer": { "median_ms": median_ms(infer_s) },
        "open_s": open_s, "ready_s": ready_s, "peak_rss_mb": peak_mb, "threads": rayon::current_num_threads(),
        "counted_mb": trainer.peak_device_bytes()[0] >> 20, "losses": losses,
    });
    println!("{line}");
    Ok(())
}

fn median_ms(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2] * 1e3
}

/// Returns the processor time of all threads so far, in seconds.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Returns peak resident memory in MiB, if the system reports it.
fn peak_mb() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? / 1024)
}
