//! Shows which kernels and copies make an epoch in little memory slower than one that fits.
//!
//! Two trainers run their epochs in turn: one without a limit, one with a share of the memory that the first needs. Prints
//! the median epochs, in time that passed and in time of all cores, which other programs disturb less. Then follow a Markdown
//! table with the time of each operation in both, summed over tiles, and the rates of the copies.
//!
//! ```text
//! cargo run --release -p lapidary-bench --bin tile_times -- [model=gcn] [hidden=64] [layers=2] [percent=25] [strips=auto] DIR...
//! ```

use std::collections::BTreeMap;

use lapidary::kernels::Lane;
use lapidary::model::ModelConfig;
use lapidary::{Adam, ByteSize, Dataset, Devices, Model, Strips, Trace, Trainer};
use rustix::time::{ClockId, clock_gettime};

/// Epochs of each trainer without a trace, and then with one. The first is left out.
const EPOCHS: usize = 9;
const TRACED: usize = 5;

fn main() -> lapidary::Result<()> {
    let (mut model, mut hidden, mut layers, mut percents) = ("gcn".to_owned(), 64, 2, vec![25]);
    let mut strips = Strips::Auto;
    let number = |value: &str| value.parse::<usize>().expect("a number");
    for text in std::env::args().skip(1) {
        match text.split_once('=') {
            Some(("model", value)) => model = value.into(),
            Some(("hidden", value)) => hidden = number(value),
            Some(("layers", value)) => layers = number(value),
            Some(("percent", value)) => percents = value.split(',').map(number).collect(),
            Some(("strips", value)) => strips = value.parse().map_or(Strips::Auto, Strips::Exactly),
            _ => compare(&text, &model, [hidden, layers], &percents, strips)?,
        }
    }
    Ok(())
}

fn compare(
    data: &str,
    model: &str,
    [hidden, layers]: [usize; 2],
    percents: &[usize],
    strips: Strips,
) -> lapidary::Result<()> {
    let data = Dataset::load(data)?;
    let mut widths = vec![hidden; layers + 1];
    (widths[0], widths[layers]) = (data.feature_width(), data.class_count());
    let name = format!("{}, {model} {hidden}, {layers} layers", data.name());
    let model = Model::from_config(ModelConfig::new(model, &widths))?.dropout(0.5);
    let devices = Devices::parse("sim:1")?;
    let builder = || Trainer::builder(&model, &data).optimizer(Adam::new(0.01)).eval_every(0).devices(devices.clone());
    for &percent in percents {
        let whole = builder().build()?;
        let peak = whole.planned_peak_device_bytes().into_iter().max().unwrap_or(0);
        let memory = ByteSize::b(peak * percent as u64 / 100);
        let little = builder().device_memory(memory).strips(strips).build()?;
        println!("\n{name}, {percent} % = {memory}, {} tiles, {} strips\n", little.tiles(), little.strips());
        report([whole, little])?;
    }
    Ok(())
}

fn report(mut trainers: [Trainer; 2]) -> lapidary::Result<()> {
    let mut seconds = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
    for _ in 0..EPOCHS {
        for (i, trainer) in trainers.iter_mut().enumerate() {
            let cores = cores_s();
            seconds[0][i].push(trainer.step()?.seconds);
            seconds[1][i].push(cores_s() - cores);
        }
    }
    for (what, seconds) in ["epoch", "of all cores"].iter().zip(seconds) {
        let [whole, little] = seconds.map(|seconds| median(seconds[1..].to_vec()));
        println!("{what}: {:.1} and {:.1} ms, ratio {:.2}\n", 1e3 * whole, 1e3 * little, little / whole);
    }
    let mut times = [Times::default(), Times::default()];
    trainers.iter_mut().for_each(Trainer::start_trace);
    for epoch in 0..=TRACED {
        for (trainer, times) in trainers.iter_mut().zip(&mut times) {
            trainer.step()?;
            if let Some(trace) = trainer.trace().filter(|_| epoch > 0) {
                times.add(trace);
            }
        }
    }
    let [whole, little] = times;
    println!("| operation | calls | ms | calls over tiles | ms | ratio |\n| --- | ---: | ---: | ---: | ---: | ---: |");
    for (name, (calls, seconds)) in &whole.operations {
        let tiles = little.operations.get(name).cloned().unwrap_or_default();
        let (ms, over_tiles) = (ms(seconds), ms(&tiles.1));
        println!(
            "| {name} | {} | {ms:.2} | {} | {over_tiles:.2} | {:.2} |",
            calls / TRACED,
            tiles.0 / TRACED,
            over_tiles / ms
        );
    }
    for (name, (calls, seconds)) in &little.operations {
        if !whole.operations.contains_key(name) {
            println!("| {name} | | | {} | {:.2} | |", calls / TRACED, ms(seconds));
        }
    }
    println!();
    for (what, times) in [("unlimited", &whole), ("tiles", &little)] {
        let [kernels, copies, both] = times.busy.map(|seconds| 1e3 * seconds / TRACED as f64);
        println!("{what}: kernels run in {kernels:.1} ms, copies in {copies:.1} ms, both in {both:.1} ms");
    }
    for (lane, (bytes, calls, seconds)) in ["in", "out"].iter().zip(&little.copies) {
        let rate = *bytes as f64 / seconds.iter().sum::<f64>() / 1e9;
        println!(
            "copies {lane}: {}, {} calls, {:.1} ms, {rate:.1} GB/s",
            ByteSize::b(bytes / TRACED as u64),
            calls / TRACED,
            ms(seconds)
        );
    }
    Ok(())
}

/// The times of some epochs.
#[derive(Default)]
struct Times {
    /// Calls, and the seconds of each epoch, by operation.
    operations: BTreeMap<String, (usize, Vec<f64>)>,
    /// Bytes, copies, and the seconds of each epoch, to the device and to the host.
    copies: [(u64, usize, Vec<f64>); 2],
    /// Seconds of kernels, of copies, and of both at a time.
    busy: [f64; 3],
}

impl Times {
    fn add(&mut self, trace: &Trace) {
        let mut epoch: BTreeMap<&str, f64> = BTreeMap::new();
        let mut copied = [0.0; 2];
        for span in trace.spans().iter().flatten() {
            let seconds = (span.end - span.ready).as_secs_f64();
            match span.lane {
                Lane::Compute => {
                    let name = span.name.split('[').next().unwrap_or_default();
                    self.operations.entry(name.to_owned()).or_default().0 += 1;
                    *epoch.entry(name).or_default() += seconds;
                }
                lane => {
                    let direction = usize::from(lane != Lane::CopyIn);
                    self.copies[direction].0 += span.bytes;
                    self.copies[direction].1 += 1;
                    copied[direction] += seconds;
                }
            }
        }
        for (name, seconds) in epoch {
            self.operations.get_mut(name).expect("it was counted").1.push(seconds);
        }
        self.copies.iter_mut().zip(copied).for_each(|(copies, seconds)| copies.2.push(seconds));
        for busy in trace.busy() {
            let seconds = [busy.kernels_s, busy.copies_s, busy.both_s];
            self.busy.iter_mut().zip(seconds).for_each(|(sum, seconds)| *sum += seconds);
        }
    }
}

/// Returns the seconds that all threads of this process have run.
fn cores_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}

fn ms(seconds: &[f64]) -> f64 {
    1e3 * median(seconds.to_vec())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
