//! Measures how many copies run beside kernels when the memory is a quarter of what the training would use.
//!
//! The device is simulated. Its link is slowed as much as its kernels are slower than those of an H200: a copy takes as
//! long beside the kernels as over PCIe 3, 4 or 5 with 16 lanes (80 % of 16, 32 and 64 GB/s) beside the kernels that the
//! profile `h200` predicts for a graph of this shape. Prints a Markdown table.
//!
//! ```text
//! cargo run --release -p lapidary-bench --bin hidden_copies -- [OPTION=VALUE]... [DIR | SHAPE/DIVISOR]...
//! ```
//!
//! Options, which hold for the graphs after them: `model=gcn`, `hidden=256`, `layers=2`, `memory=25` (percent), and
//! `links=3,4,5`, or a rate in bytes per second such as `links=1e9`. Shapes: `arxiv` and `reddit`, as R-MAT graphs of which
//! DIVISOR copies have the vertices and edges of the published graph. Default: `arxiv/4 reddit/16`.
//!
//! | column | meaning |
//! | --- | --- |
//! | epoch | seconds of the median of 5 epochs |
//! | kernels, copies | seconds of this epoch in which a kernel ran, and in which a copy ran |
//! | hidden | share of the copies' seconds in which a kernel ran, too |
//! | of possible | the same seconds, as a share of the smaller of kernels and copies |
//! | of larger, of sum | the epoch, divided by the larger of kernels and copies, and by their sum |
//! | of in-core | the epoch, divided by the one of a device with enough memory |
//! | by hand | seconds in which the host copies, if it does nothing else; it does so in the time of `copies` |

use std::time::Instant;

use lapidary::dataset::generate::{RmatOptions, rmat};
use lapidary::forecast::{DryRun, Shape, Subject};
use lapidary::kernels::{SimDevice, SimSpeed};
use lapidary::model::ModelConfig;
use lapidary::{Adam, Busy, ByteSize, Dataset, Devices, Model, Trainer, TrainerBuilder};

const EPOCHS: usize = 5;

/// A published graph: vertices, edges, features and classes.
const SHAPES: [(&str, [usize; 4]); 2] =
    [("arxiv", [169_343, 2_315_598, 128, 40]), ("reddit", [232_965, 114_615_892, 602, 41])];

struct Settings {
    model: String,
    hidden: usize,
    layers: usize,
    memory_percent: u64,
    links: Vec<f64>,
}

impl Settings {
    /// Sets an option that is written as `name=value`. Returns whether `text` is one.
    fn set(&mut self, text: &str) -> bool {
        let Some((name, value)) = text.split_once('=') else { return false };
        match name {
            "model" => self.model = value.into(),
            "hidden" => self.hidden = value.parse().expect("hidden is a number"),
            "layers" => self.layers = value.parse().expect("layers is a number"),
            "memory" => self.memory_percent = value.parse().expect("memory is a percentage"),
            "links" => self.links = value.split(',').map(|link| link.parse().expect("3, 4, 5 or a rate")).collect(),
            _ => return false,
        }
        true
    }
}

fn main() -> lapidary::Result<()> {
    let mut settings =
        Settings { model: "gcn".into(), hidden: 256, layers: 2, memory_percent: 25, links: vec![3.0, 4.0, 5.0] };
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    if names.iter().all(|name| name.contains('=')) {
        names.extend(["arxiv/4", "reddit/16"].map(String::from));
    }
    let copied = copy_bytes_per_s();
    println!("one core copies {:.1} GB/s\n", copied / 1e9);
    println!(
        "| data | model | link | tiles | copied | epoch | kernels | copies | hidden | of possible | of larger | of sum | of in-core | by hand |"
    );
    println!("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for name in names {
        if !settings.set(&name) {
            let (data, divisor) = dataset(&name)?;
            table(&data, &name, divisor, &settings, copied)?;
        }
    }
    Ok(())
}

fn table(data: &Dataset, name: &str, divisor: usize, settings: &Settings, copied: f64) -> lapidary::Result<()> {
    let mut widths = vec![settings.hidden; settings.layers + 1];
    (widths[0], widths[settings.layers]) = (data.feature_width(), data.class_count());
    let model = Model::from_config(ModelConfig::new(&settings.model, &widths))?.dropout(0.5);
    let builder = || Trainer::builder(&model, data).optimizer(Adam::new(0.01)).eval_every(0);
    let want = train(builder().devices(Devices::sim(1)))?;
    let peak = builder().devices(Devices::sim(1)).build()?.planned_peak_device_bytes()[0];
    let slower = want.busy.kernels_s / h200_seconds(data, divisor, &model)?;
    let memory = ByteSize::b(peak * settings.memory_percent / 100);
    let what = format!("{} {}", settings.model, settings.hidden);
    println!(
        "| {name} | {what} | in-core | {} | 0 B | {:.3} | {:.3} | | | | | | | |",
        want.tiles, want.seconds, want.busy.kernels_s
    );
    for &link in &settings.links {
        let (link_name, rate) = match link {
            3.0 | 4.0 | 5.0 => (format!("PCIe {link}"), 0.8 * 2e9 * 2f64.powf(link) / slower),
            rate => (String::from("given"), rate),
        };
        let devices = Devices::custom("slow", 1, memory, move |i, capacity_bytes| {
            let speed = SimSpeed { copy_bytes_per_s: Some(rate), ..SimSpeed::default() };
            Ok(Box::new(SimDevice::new(&format!("slow:{i}"), None, capacity_bytes, speed)?))
        });
        let run = train(builder().devices(devices))?;
        for (got, want) in run.losses.iter().zip(&want.losses) {
            assert!((got - want).abs() <= 1e-4 * want.abs(), "the loss is {got}, not {want}");
        }
        let Busy { kernels_s, copies_s, both_s } = run.busy;
        println!(
            "| {name} | {what} | {link_name}, {:.0} MB/s | {} | {} | {:.3} | {kernels_s:.3} | {copies_s:.3} | {:.0} % | {:.0} % | {:.2} | {:.2} | {:.2} | {:.3} |",
            rate / 1e6,
            run.tiles,
            ByteSize::b(run.bytes),
            run.seconds,
            100.0 * both_s / copies_s,
            100.0 * both_s / copies_s.min(kernels_s),
            run.seconds / kernels_s.max(copies_s),
            run.seconds / (kernels_s + copies_s),
            run.seconds / want.seconds,
            run.bytes as f64 / copied,
        );
    }
    Ok(())
}

/// The results of some epochs; seconds are those of the median epoch.
struct Run {
    tiles: usize,
    /// Bytes of an epoch, in both directions.
    bytes: u64,
    seconds: f64,
    busy: Busy,
    losses: Vec<f64>,
}

fn train(builder: TrainerBuilder<'_>) -> lapidary::Result<Run> {
    let mut trainer = builder.build()?;
    trainer.step()?;
    trainer.start_trace();
    let (mut losses, mut times, mut bytes) = (Vec::new(), Vec::new(), 0);
    for _ in 0..EPOCHS {
        let epoch = trainer.step()?;
        assert_eq!([epoch.bytes_to_device, epoch.bytes_to_host], epoch.planned_bytes, "bytes are as planned");
        bytes = epoch.planned_bytes.iter().sum();
        losses.push(epoch.loss);
        times.push((epoch.seconds, trainer.trace().expect("it was started").busy()[0]));
    }
    let peaks = trainer.peak_device_bytes().into_iter().zip(trainer.planned_peak_device_bytes());
    assert!(peaks.into_iter().all(|(held, planned)| held <= planned), "no more is held than planned");
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (seconds, busy) = times[EPOCHS / 2];
    Ok(Run { tiles: trainer.tiles(), bytes, seconds, busy, losses })
}

/// Returns a dataset, and how many of it make the published one.
fn dataset(name: &str) -> lapidary::Result<(Dataset, usize)> {
    let shape = name.split_once('/').and_then(|(shape, divisor)| {
        let (_, sizes) = SHAPES.into_iter().find(|(known, _)| *known == shape)?;
        Some((sizes, divisor.parse::<usize>().ok()?))
    });
    let Some(([vertices, edges, feature_width, classes], divisor)) = shape else {
        return Ok((Dataset::load(name)?, 1));
    };
    // Each pair that is drawn is an edge in both directions.
    let edge_factor = edges as f64 / vertices as f64 / 2.0;
    let vertices = vertices / divisor;
    let options = RmatOptions { vertices, edge_factor, feature_width, classes, ..RmatOptions::default() };
    Ok((rmat(&options)?, divisor))
}

/// Returns the predicted seconds of the kernels of an epoch on an H200, without the launches that a small graph needs as
/// well as a large one: those of `divisor` graphs, divided by their number.
fn h200_seconds(data: &Dataset, divisor: usize, model: &Model) -> lapidary::Result<f64> {
    let shape = Shape {
        vertices: (data.graph().vertex_count() * divisor) as u64,
        edges: (data.graph().edge_count() * divisor) as u64,
        features: data.feature_width(),
        classes: data.class_count(),
        directed: false,
    };
    let forecast = DryRun::new(model, Subject::Shape(shape)).profile("h200").evaluates(false).run()?;
    Ok(forecast.parts[0].compute_seconds / divisor as f64)
}

/// Returns the rate at which one core copies memory.
fn copy_bytes_per_s() -> f64 {
    let (from, mut to) = (vec![1u8; 64 << 20], vec![0u8; 64 << 20]);
    let len = from.len() as f64;
    len / least_seconds(|| to.copy_from_slice(std::hint::black_box(&from)))
}

fn least_seconds(mut run: impl FnMut()) -> f64 {
    let time = |run: &mut dyn FnMut()| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    (0..7).map(|_| time(&mut run)).fold(f64::INFINITY, f64::min)
}
