//! Measures whether the time hides in which a batch waits: for a sampler that takes long, or for other ranks.
//!
//!     cargo run --release -p lapidary-bench --bin latency -- [--batches 60] [--rounds 3] [--ahead 1,2,4,8]
//!
//! A GraphSAGE of two layers is trained on an R-MAT graph, in two ways:
//!
//!   sampler   one process, whose sampler sleeps before it draws a batch
//!   ranks     two ranks, which are threads of this process. The ids of the rows that a batch fetches arrive late, and so do
//!             the rows, each after half of the latency
//!
//! Each way is measured without latency, which gives the time C of a batch, and then with a latency D of 0.5, 1, 2, 4 and 8
//! times C. With `a` batches ahead, an epoch is expected to take batches x max(C, D/a). Runs with and without latency take
//! turns, and C is the median over both neighbours. Prints, in milliseconds, medians over the rounds of the time of a batch,
//! and its ratio to what is expected.

use std::error::Error;
use std::time::{Duration, Instant};

use lapidary::dataset::generate::{RmatOptions, SplitSizes, rmat};
use lapidary::sample::{BatchKey, MiniBatch, NeighborSampler, SampleError, Sampler, Scratch};
use lapidary::{Batches, Dataset, Devices, Graph, Model, Partition, Ranks, RunOptions, Trainer};
use lapidary_bench::Flags;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Latencies, as multiples of the time of a batch.
const LATENCIES: [f64; 5] = [0.5, 1.0, 2.0, 4.0, 8.0];

const BATCH: usize = 1024;

/// A sampler that sleeps before it draws.
#[derive(Debug)]
struct Slow(NeighborSampler, Duration);

impl Sampler for Slow {
    fn name(&self) -> String {
        format!("slow {}", self.0.name())
    }

    fn layers(&self) -> usize {
        self.0.layers()
    }

    fn sample(
        &self,
        graph: &Graph,
        seeds: &[u32],
        key: BatchKey,
        scratch: &mut Scratch,
    ) -> std::result::Result<MiniBatch, SampleError> {
        std::thread::sleep(self.1);
        self.0.sample(graph, seeds, key, scratch)
    }
}

fn main() -> Result<()> {
    let flags = Flags::of_program();
    let (batches, rounds) = (flags.number("--batches", 60)?.max(1), flags.number("--rounds", 3)?.max(1));
    let ahead: Vec<usize> =
        flags.text("--ahead").unwrap_or("1,2,4,8").split(',').map(str::parse).collect::<std::result::Result<_, _>>()?;
    let data = graph(batches)?;
    println!("{:<8} {:>5} {:>9} {:>9} {:>9} {:>6}", "way", "ahead", "C", "D", "batch", "ratio");
    for (way, seconds) in [("sampler", sampler_seconds as Seconds), ("ranks", ranks_seconds)] {
        for &ahead in &ahead {
            // The first run touches memory for the first time.
            seconds(&data, ahead, Duration::ZERO)?;
            for multiple in LATENCIES {
                let mut rows = Vec::with_capacity(rounds);
                for _ in 0..rounds {
                    let before = seconds(&data, ahead, Duration::ZERO)?;
                    let latency = before * multiple;
                    let measured = seconds(&data, ahead, Duration::from_secs_f64(latency))?;
                    let without = (before + seconds(&data, ahead, Duration::ZERO)?) / 2.0;
                    rows.push([without, latency, measured, measured / without.max(latency / ahead as f64)]);
                }
                let [without, latency, measured, ratio] = [0, 1, 2, 3].map(|column| median(&rows, column));
                let [without, latency, measured] = [without, latency, measured].map(|seconds| seconds * 1e3);
                println!("{way:<8} {ahead:>5} {without:>9.2} {latency:>9.2} {measured:>9.2} {ratio:>6.2}");
            }
        }
    }
    Ok(())
}

/// Measures the seconds of a batch.
type Seconds = fn(&Dataset, usize, Duration) -> Result<f64>;

fn sampler_seconds(data: &Dataset, ahead: usize, latency: Duration) -> Result<f64> {
    epoch_seconds(data, Batches::new(BATCH, Slow(neighbors(), latency)).look_ahead(ahead), Ranks::alone())
}

fn ranks_seconds(data: &Dataset, ahead: usize, latency: Duration) -> Result<f64> {
    let ranks = Ranks::threads_with_latency(2, latency / 2);
    std::thread::scope(|scope| {
        let run = |ranks| {
            let batches = Batches::new(BATCH, neighbors()).look_ahead(ahead);
            epoch_seconds(data, batches, ranks).map_err(|error| error.to_string())
        };
        let threads: Vec<_> = ranks.into_iter().map(|ranks| scope.spawn(move || run(ranks))).collect();
        let seconds = threads.into_iter().map(|thread| thread.join().expect("a rank does not panic"));
        Ok(seconds.collect::<std::result::Result<Vec<f64>, String>>()?[0])
    })
}

/// Trains for two epochs, and returns the seconds of a batch in the second one.
fn epoch_seconds(data: &Dataset, batches: Batches, ranks: Ranks) -> Result<f64> {
    let model = Model::sage(&[data.feature_width(), 256, data.class_count()]);
    let devices = if ranks.count() > 1 { Devices::cpu().threads(1.try_into()?) } else { Devices::cpu() };
    let options = RunOptions::new().devices(devices).partition("edges".parse::<Partition>()?).ranks(ranks);
    let mut trainer = Trainer::builder(&model, data).options(options).eval_every(0).batches(batches).build()?;
    trainer.step()?;
    let start = Instant::now();
    let count = trainer.step()?.stages.map_or(1, |stages| stages.batches);
    Ok(start.elapsed().as_secs_f64() / count as f64)
}

/// Returns a graph whose epoch has as many batches.
fn graph(batches: usize) -> Result<Dataset> {
    let vertices = 1 << 17;
    let train = ((batches * BATCH) as f64 / vertices as f64).min(1.0);
    let split = SplitSizes::Fractions { train, val: 0.0, test: 0.0 };
    let options = RmatOptions { vertices, feature_width: 64, classes: 8, split, ..RmatOptions::default() };
    Ok(rmat(&options)?)
}

fn neighbors() -> NeighborSampler {
    NeighborSampler::new("10,10".parse().expect("these are fan-outs"))
}

fn median(rows: &[[f64; 4]], column: usize) -> f64 {
    let mut values: Vec<f64> = rows.iter().map(|row| row[column]).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
