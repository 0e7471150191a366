//! Trains at 50, 25, 10 and 5 % of the memory that the training would use without a limit.
//!
//! The device is simulated: it has its own memory with a hard limit, and counts every copy. Bytes and peak are checked
//! against the plan, losses against the run without a limit, whose epoch is also the unit of the last column. Prints a
//! Markdown table.
//!
//! ```text
//! cargo run --release -p lapidary-bench --bin little_memory -- [OPTION=VALUE]... [DIR | rmat:VERTICES,EDGES]...
//! ```
//!
//! Options, which hold for the graphs after them: `model=gcn`, `hidden=64`, `layers=2`, `devices=sim:1`, and
//! `policies=optimal`, several separated by commas (default: all), `percents=50,25,10,5`, `strips=auto`, also a number, and
//! `recompute=auto`, also `never` and `always`.
//!
//! Tiles are shown as `12 x 2` if wide matrices are cut into two strips of columns. The gap is the share of the bytes above
//! the lower bound that the planner proves; `order` means that the bound is that of plans in the order of the program.
//!
//! A graph without features gets 64 random features per vertex, and labels from its ids.

use lapidary::dataset::generate::{RmatOptions, rmat};
use lapidary::forecast::{DryRun, Forecast, Subject};
use lapidary::model::ModelConfig;
use lapidary::{
    Adam, Arrays, ByteSize, Dataset, Devices, Error, MemoryPolicy, Model, Recompute, Strips, Trainer, TrainerBuilder,
};
use ndarray::Array2;

const EPOCHS: usize = 5;
const FEATURES: usize = 64;
const CLASSES: usize = 10;

/// What is trained, and on what.
struct Settings {
    model: String,
    hidden: usize,
    layers: usize,
    devices: String,
    policies: Vec<MemoryPolicy>,
    recompute: Recompute,
    strips: Strips,
    percents: Vec<u64>,
}

impl Settings {
    /// Sets an option that is written as `name=value`. Returns whether `text` is one.
    fn set(&mut self, text: &str) -> bool {
        let Some((name, value)) = text.split_once('=') else { return false };
        match name {
            "model" => self.model = value.into(),
            "hidden" => self.hidden = value.parse().expect("hidden is a number"),
            "layers" => self.layers = value.parse().expect("layers is a number"),
            "devices" => self.devices = value.into(),
            "policies" => {
                let policies = value.split(',').map(|policy| policy.parse().expect("none, lru, roc or optimal"));
                self.policies = policies.collect();
            }
            "recompute" => {
                self.recompute = match value {
                    "auto" => Recompute::Auto,
                    "never" => Recompute::Never,
                    "always" => Recompute::Always,
                    _ => panic!("recompute is auto, never or always"),
                }
            }
            "strips" => self.strips = value.parse().map_or(Strips::Auto, Strips::Exactly),
            "percents" => self.percents = value.split(',').map(|one| one.parse().expect("a number")).collect(),
            _ => return false,
        }
        true
    }
}

fn main() -> lapidary::Result<()> {
    let policies = vec![MemoryPolicy::None, MemoryPolicy::Lru, MemoryPolicy::Roc, MemoryPolicy::Optimal];
    let mut settings = Settings {
        model: "gcn".into(),
        hidden: 64,
        layers: 2,
        devices: "sim:1".into(),
        policies,
        recompute: Recompute::Auto,
        strips: Strips::Auto,
        percents: vec![50, 25, 10, 5],
    };
    let names: Vec<String> = std::env::args().skip(1).collect();
    let names = if names.is_empty() { vec!["builtin:planted".to_owned()] } else { names };
    println!("| data | model | memory | tiles | policy | to device | to host | gap | seconds | of unlimited |");
    println!("| --- | --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |");
    for name in names {
        if !settings.set(&name) {
            table(&dataset(&name)?, &settings)?;
        }
    }
    Ok(())
}

fn table(data: &Dataset, settings: &Settings) -> lapidary::Result<()> {
    let mut widths = vec![settings.hidden; settings.layers + 1];
    (widths[0], widths[settings.layers]) = (data.feature_width(), data.class_count());
    let model = Model::from_config(ModelConfig::new(&settings.model, &widths))?.dropout(0.5);
    let devices = Devices::parse(&settings.devices)?;
    let builder = || Trainer::builder(&model, data).optimizer(Adam::new(0.01)).eval_every(0).devices(devices.clone());
    let want = train(builder())?;
    let row = |memory: String, policy: &str, run: &Run, gap: &str| {
        let [to_device, to_host] = run.bytes.map(ByteSize::b);
        let Run { tiles, strips, seconds, .. } = run;
        let tiles = if *strips > 1 { format!("{tiles} x {strips}") } else { tiles.to_string() };
        let (ratio, what) = (seconds / want.seconds, format!("{} {}", settings.model, settings.hidden));
        println!(
            "| {} | {what} | {memory} | {tiles} | {policy} | {to_device} | {to_host} | {gap} | {seconds:.3} | {ratio:.2} |",
            data.name()
        );
    };
    row("unlimited".into(), "", &want, "");
    let peak = builder().build()?.planned_peak_device_bytes().into_iter().max().unwrap_or(0);
    for &percent in &settings.percents {
        let memory = ByteSize::b(peak * percent / 100);
        for &policy in &settings.policies {
            let little = builder().device_memory(memory).memory(policy).recompute(settings.recompute);
            let run = match train(little.strips(settings.strips)) {
                Err(error @ Error::DoesNotFit { .. }) => {
                    println!("| {} | | {percent} % = {memory} | | {policy} | {error} | | | | |", data.name());
                    continue;
                }
                run => run?,
            };
            for (got, want) in run.losses.iter().zip(&want.losses) {
                assert!((got - want).abs() <= 1e-4 * want.abs(), "the loss is {got}, not {want}");
            }
            let dry = DryRun::new(&model, Subject::Data(data)).devices(devices.clone()).device_memory(memory);
            let dry =
                dry.memory(policy).recompute(settings.recompute).strips(settings.strips).evaluates(false).run()?;
            row(format!("{percent} % = {memory}"), policy.name(), &run, &gap(&dry));
        }
    }
    Ok(())
}

/// Returns the share of the planned bytes that is above the lower bound.
fn gap(dry: &Forecast) -> String {
    let Ok(plan) = &dry.policies[0].outcome else { return String::new() };
    let bound: u64 = plan.devices.iter().map(|device| device.lower_bound_bytes).sum();
    let bytes: u64 = plan.bytes().iter().sum();
    let of_order = if plan.devices.iter().any(|device| device.bound_to_order) { ", order" } else { "" };
    format!("{:.1} %{of_order}", 100.0 * (bytes - bound.min(bytes)) as f64 / bytes.max(1) as f64)
}

/// The results of some epochs.
struct Run {
    tiles: usize,
    strips: usize,
    /// Bytes of the last epoch, to the device and to the host.
    bytes: [u64; 2],
    /// Seconds of the median epoch.
    seconds: f64,
    losses: Vec<f64>,
}

fn train(builder: TrainerBuilder<'_>) -> lapidary::Result<Run> {
    let mut trainer = builder.build()?;
    let epochs = (0..EPOCHS).map(|_| trainer.step()).collect::<lapidary::Result<Vec<_>>>()?;
    let last = &epochs[EPOCHS - 1];
    assert_eq!([last.bytes_to_device, last.bytes_to_host], last.planned_bytes, "bytes are as planned");
    // The plan includes an evaluation, which does not run here.
    let peaks = trainer.peak_device_bytes().into_iter().zip(trainer.planned_peak_device_bytes());
    assert!(peaks.into_iter().all(|(held, planned)| held <= planned), "no more is held than planned");
    let mut seconds: Vec<f64> = epochs.iter().map(|epoch| epoch.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    Ok(Run {
        tiles: trainer.tiles(),
        strips: trainer.strips(),
        bytes: last.planned_bytes,
        seconds: seconds[EPOCHS / 2],
        losses: epochs.iter().map(|epoch| epoch.loss).collect(),
    })
}

fn dataset(name: &str) -> lapidary::Result<Dataset> {
    if let Some(sizes) = name.strip_prefix("rmat:") {
        let sizes: Vec<f64> = sizes.split(',').filter_map(|size| size.parse().ok()).collect();
        let [vertices, edges] = sizes[..] else { panic!("write rmat:VERTICES,EDGES") };
        let options =
            RmatOptions { vertices: vertices as usize, edge_factor: edges / vertices, ..RmatOptions::default() };
        return Ok(rmat(&RmatOptions { feature_width: FEATURES, classes: CLASSES, ..options })?);
    }
    let data = Dataset::load(name)?;
    if data.features().is_some() {
        return Ok(data);
    }
    let n = data.graph().vertex_count();
    // SplitMix64, in [-1, 1).
    let cell = |i: usize| {
        let z = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let features = Array2::from_shape_fn((n, FEATURES), |(v, c)| cell(v * FEATURES + c));
    let labels: Vec<i64> = (0..n as i64).map(|v| v * 7 % CLASSES as i64).collect();
    let train: Vec<i64> = (0..n as i64).step_by(2).collect();
    let arrays = Arrays::new(data.graph().clone()).name(data.name()).features(features).labels(&labels).train(&train);
    Ok(Dataset::from_arrays(arrays)?)
}
