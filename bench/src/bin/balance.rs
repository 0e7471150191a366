//! Measures how well the cost model predicts, and how even its parts are, on this machine's cores.
//!
//!     cargo run --release -p lapidary-bench --bin balance                            # about a quarter of an hour, 16 GiB
//!     cargo run --release -p lapidary-bench --bin balance -- "R-MAT 0.45" planted    # these graphs alone, as the tables call them
//!     cargo run --release -p lapidary-bench --bin balance -- small                   # a minute: a check that it works, not a measurement
//!
//! The measured layer is a product from 256 to 64 columns, followed by a gather of 64. Each range is a block with a
//! halo and is computed alone on one thread. The time is the thread's processor time, so that other programs only
//! disturb caches and bandwidth. The result is the lower quartile of several rounds, as in the cost model. Each round
//! goes through all ranges, so that a temporary disturbance affects them alike.
//!
//! Real graphs are read from the folder `LAPIDARY_SHARED` (default `../shared`). A missing graph is left out, with a
//! message.

use std::error::Error;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use lapidary::dataset::generate::{PlantedOptions, RmatOptions, planted, rmat};
use lapidary::graph::{Block, Permutation};
use lapidary::{Dataset, Graph, profile};
use lapidary_cost_model::calibration::{mean_absolute_percentage_error, rank_correlation};
use lapidary_cost_model::{CostModel, FeatureSums, Operation, RangeCost, Work};
use lapidary_kernels::op::Linear;
use lapidary_kernels::{AlignedBytes, BlockSlots, Call, CpuDevice, Device, HostSlot, Lane, Mat, Owner, Shared, Slot};
use lapidary_planner::partition::{Speeds, split};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::time::{ClockId, clock_gettime};

const WIDTH_IN: usize = 256;
const WIDTH: usize = 64;
const LEAST_ROUNDS: usize = 15;
const MOST_ROUNDS: usize = 51;
/// Seconds of measuring that are enough for a list of ranges.
const ENOUGH_S: f64 = 4.0;
const PARTS: [usize; 3] = [4, 8, 16];

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut wanted: Vec<String> = std::env::args().skip(1).collect();
    let small = wanted.first().is_some_and(|word| word == "small");
    wanted.retain(|word| word != "small");
    let mut graphs = rayon::ThreadPoolBuilder::new().build()?.install(|| graphs(small))?;
    graphs.retain(|(name, _)| wanted.is_empty() || wanted.contains(name));
    // From here on, this thread does all computation, so that its clock shows the time of every kernel.
    rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build_global()?;
    let profile = profile::measure()?;
    println!("one thread: {profile:?}\n");
    let most = graphs.iter().map(|(_, graph)| graph.vertex_count()).max().unwrap_or(0);
    let bench = Bench::new(most)?;

    let ranges: Vec<_> = graphs.iter().map(|(_, graph)| random_ranges(graph, if small { 12 } else { 36 })).collect();
    let all: Vec<_> = graphs.iter().map(|(_, graph)| graph).zip(ranges.iter().map(Vec::as_slice)).collect();
    let seconds = bench.measure(&all)?;
    let measured: Vec<_> = graphs
        .iter()
        .zip(ranges)
        .zip(seconds)
        .map(|(((name, graph), ranges), seconds)| {
            let teaches = name.starts_with("R-MAT") && !name.ends_with("by degree");
            Measured { name, graph, teaches, ranges, seconds }
        })
        .collect();
    report_predictions(&profile, &measured)?;
    report_balance(&profile, &bench, &measured)
}

/// Returns the two operations of the layer.
fn ops() -> [Operation; 2] {
    let product = Work::Product { k: WIDTH_IN as u32, m: WIDTH as u32 };
    [Operation::new("linear", product), Operation::new("gather", Work::Gather { width: WIDTH as u32 })]
}

fn graphs(small: bool) -> std::result::Result<Vec<(String, Graph)>, lapidary::Error> {
    let n = if small { 1 << 16 } else { 1 << 20 };
    let mut graphs = Vec::new();
    for quarters in [[0.45, 0.22, 0.22, 0.11], [0.57, 0.19, 0.19, 0.05], [0.65, 0.15, 0.15, 0.05]] {
        let options = RmatOptions { vertices: n, edge_factor: 9.0, quarters, ..RmatOptions::default() };
        graphs.push((format!("R-MAT {:.2}", quarters[0]), rmat(&options)?.graph().clone()));
    }
    let by_degree = Permutation::by_degree(&graphs[1].1).apply(&graphs[1].1);
    graphs.push(("R-MAT 0.57 by degree".into(), by_degree));
    let options = PlantedOptions {
        vertices: n,
        mean_degree: 17.0,
        max_degree: 2000.0,
        exponent: 2.1,
        feature_width: 0,
        ..PlantedOptions::default()
    };
    graphs.push(("planted".into(), planted(&options)?.graph().clone()));
    let shared = std::env::var_os("LAPIDARY_SHARED").map_or_else(|| PathBuf::from("../shared"), PathBuf::from);
    for name in ["ego-twitter", "ppi-topology", "soc-slashdot0902", "tolokers", "amazon-computers"] {
        let folder = shared.join("data").join(name);
        if folder.exists() {
            graphs.push((name.into(), Dataset::open(folder)?.graph().clone()));
        } else {
            println!("LEFT OUT: {} is not there", folder.display());
        }
    }
    Ok(graphs)
}

/// Returns random ranges of a thirtieth to a fifth of the graph, by vertices or by edges.
fn random_ranges(graph: &Graph, count: usize) -> Vec<Range<usize>> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let (n, e) = (graph.vertex_count(), graph.edge_count());
    let range = |i: usize| {
        let size = 1.0 / rng.random_range(5.0..30.0);
        let first = rng.random_range(0.0..1.0 - size);
        let at = |share: f64| match i % 2 {
            0 => (share * n as f64) as usize,
            _ => graph.indptr().partition_point(|&edge| (edge as f64) < share * e as f64).min(n),
        };
        let start = at(first);
        start..at(first + size).max(start + 1).min(n)
    };
    (0..count).map(range).filter(|range| !range.is_empty()).collect()
}

/// A graph, some of its ranges, and the seconds of each operation on each range.
struct Measured<'a> {
    name: &'a str,
    graph: &'a Graph,
    /// Whether other graphs' predictions are learned from it.
    teaches: bool,
    ranges: Vec<Range<usize>>,
    seconds: Vec<[f64; 2]>,
}

/// A matrix of ones that every operand is read from.
struct Bench {
    ones: Arc<Ones>,
}

struct Ones(AlignedBytes);

impl AsRef<[u8]> for Ones {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

impl Owner for Ones {}

impl Bench {
    fn new(vertices: usize) -> Result<Self> {
        let mut ones = AlignedBytes::zeroed(4 * vertices * WIDTH_IN)?;
        ones.as_mut_slice::<f32>().fill(1.0);
        Ok(Self { ones: Arc::new(Ones(ones)) })
    }

    /// Returns the undisturbed seconds of both operations on each range of each graph. Each round goes through all
    /// graphs, since the machine's speed changes over minutes.
    fn measure(&self, graphs: &[(&Graph, &[Range<usize>])]) -> Result<Vec<Vec<[f64; 2]>>> {
        // One device per call, since a device keeps freed memory for later tensors of the same size.
        let device = CpuDevice::new(None, u64::MAX)?;
        let ranges = graphs.iter().flat_map(|(graph, ranges)| ranges.iter().map(move |range| (graph, range)));
        let calls: Vec<_> = ranges
            .enumerate()
            .map(|(i, (graph, range))| self.prepare(&device, graph, range, 8 * i as u32))
            .collect::<Result<_>>()?;
        let mut seconds = vec![[const { Vec::new() }; 2]; calls.len()];
        // The first round warms up, and shows how many more rounds there is time for.
        let (mut round, mut rounds, began) = (0, 0, Instant::now());
        while round <= rounds {
            for (calls, seconds) in calls.iter().zip(&mut seconds) {
                for (call, seconds) in calls.iter().zip(seconds) {
                    let start = processor_seconds();
                    let event = device.launch(Lane::Compute, call, &[])?;
                    device.wait(event)?;
                    if round > 0 {
                        seconds.push(processor_seconds() - start);
                    }
                }
            }
            if round == 0 {
                rounds = ((ENOUGH_S * graphs.len() as f64 / began.elapsed().as_secs_f64()) as usize)
                    .clamp(LEAST_ROUNDS, MOST_ROUNDS);
            }
            round += 1;
        }
        let mut seconds = seconds.into_iter().map(|both| both.map(undisturbed));
        Ok(graphs.iter().map(|(_, ranges)| seconds.by_ref().take(ranges.len()).collect()).collect())
    }

    /// Puts a range on the device, in the eight slots from `first`.
    fn prepare(&self, device: &CpuDevice, graph: &Graph, range: &Range<usize>, first: u32) -> Result<[Call; 2]> {
        let block = Block::of_part(graph, range.clone());
        let (n, halo_sources) = (block.row_count(), block.halo().len());
        let slot = |i| Slot(first + i);
        constant(device, slot(0), &HostSlot::constant(block.indptr()))?;
        constant(device, slot(1), &HostSlot::constant(block.indices()))?;
        // Own rows and halo rows are separate, as in a run: reading both from one place would halve the cache misses.
        let mat = |i, rows, cols| Mat::f32(slot(i), rows, cols);
        let (own, halo, x) = (mat(2, n, WIDTH), mat(3, halo_sources, WIDTH), mat(4, n, WIDTH_IN));
        let weight = mat(5, WIDTH, WIDTH_IN);
        for (mat, offset) in [(own, 0), (halo, own.rows * WIDTH), (x, 0), (weight, 0)] {
            constant(device, mat.slot, &HostSlot::constant(&self.part_of_ones(offset, mat.rows * mat.cols)?))?;
        }
        let (sums, products) = (mat(6, n, WIDTH), mat(7, n, WIDTH));
        for out in [sums, products] {
            device.alloc(out.slot, 4 * (out.rows * out.cols) as u64)?;
        }
        let (indptr, indices, edges) = (slot(0), slot(1), block.edge_count());
        let block = BlockSlots { indptr, indices, rows: n, own_sources: n, halo_sources, edges };
        let gather = Call::gather(block, None, own, Some(halo), sums);
        Ok([Call::new(Linear::Product, [x, weight], [products]), gather])
    }

    fn part_of_ones(&self, offset: usize, len: usize) -> Result<Shared<f32>> {
        Ok(Shared::from_owner(self.ones.clone(), 4 * offset, len).ok_or("a range has more rows than the graph")?)
    }
}

fn constant(device: &CpuDevice, slot: Slot, host: &HostSlot) -> Result<()> {
    device.alloc(slot, host.len() as u64)?;
    let event = device.copy_in(Lane::CopyIn, slot, host, &[])?;
    Ok(device.wait(event)?)
}

/// Returns the processor time of this thread so far, in seconds.
fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}

/// Returns the lower quartile, as the cost model does: disturbances only slow a measurement.
fn undisturbed(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 4]
}

/// Teaches the model some of the measured ranges of a graph.
fn learn(model: &mut CostModel, measured: &Measured<'_>, which: impl Fn(usize) -> bool) -> Result<()> {
    let sums = sums(model, measured.graph)?;
    for (i, (range, seconds)) in measured.ranges.iter().zip(&measured.seconds).enumerate() {
        for (op, &seconds) in ops().iter().zip(seconds).filter(|_| which(i)) {
            let features = sums.columns(op.work.width())?.of(range.clone());
            model.observe(op, &features, seconds)?;
        }
    }
    model.refit();
    Ok(())
}

fn sums<'a>(model: &CostModel, graph: &'a Graph) -> Result<FeatureSums<'a>> {
    Ok(FeatureSums::new(graph.indptr(), graph.indices(), model.profile(), &[WIDTH as u32])?)
}

/// Returns error and rank correlation of the predictions for some ranges: for each operation, and for their sum.
fn errors(model: &CostModel, measured: &Measured<'_>, which: impl Fn(usize) -> bool) -> Result<[(f64, f64); 3]> {
    let sums = sums(model, measured.graph)?;
    let mut columns = [const { (Vec::new(), Vec::new()) }; 3];
    let known = measured.ranges.iter().zip(&measured.seconds).enumerate();
    for (_, (range, seconds)) in known.filter(|(i, _)| which(*i)) {
        let mut both = [0.0; 2];
        for (op, predicted) in ops().iter().zip(&mut both) {
            *predicted = model.predict(op, &sums.columns(op.work.width())?.of(range.clone()));
        }
        let predicted = [both[0], both[1], both[0] + both[1]];
        let actual = [seconds[0], seconds[1], seconds[0] + seconds[1]];
        for ((column, predicted), actual) in columns.iter_mut().zip(predicted).zip(actual) {
            column.0.push(predicted);
            column.1.push(actual);
        }
    }
    Ok(columns.map(|(predicted, actual)| {
        let error = mean_absolute_percentage_error(&predicted, &actual).unwrap_or(f64::NAN);
        (error, rank_correlation(&predicted, &actual).unwrap_or(f64::NAN))
    }))
}

/// Returns whether a range is only used for testing, which is every third one.
fn is_unseen(i: usize) -> bool {
    i % 3 == 2
}

fn report_predictions(profile: &lapidary_cost_model::Profile, measured: &[Measured<'_>]) -> Result<()> {
    println!(
        "Mean absolute error of predicted seconds, and rank correlation with the measured ones, on unseen ranges:"
    );
    println!(
        "`prior` knows the profile alone, `same` two thirds of this graph's ranges, `other` the R-MATs in random order but this.\n"
    );
    println!("| graph | vertices | edges | operation | prior | same | rank | other | rank |");
    println!("| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |");
    for graph in measured {
        let prior = errors(&CostModel::new(profile.clone())?, graph, is_unseen)?;
        let mut same = CostModel::new(profile.clone())?;
        learn(&mut same, graph, |i| !is_unseen(i))?;
        let same = errors(&same, graph, is_unseen)?;
        let mut other = CostModel::new(profile.clone())?;
        for another in measured.iter().filter(|another| another.teaches && !std::ptr::eq(*another, graph)) {
            learn(&mut other, another, |_| true)?;
        }
        let other = errors(&other, graph, is_unseen)?;
        for (i, op) in ["linear", "gather", "both"].into_iter().enumerate() {
            println!(
                "| {:<20} | {:>8} | {:>9} | {op:<6} | {:>6.1} % | {:>5.1} % | {:>5.2} | {:>5.1} % | {:>5.2} |",
                graph.name,
                graph.graph.vertex_count(),
                graph.graph.edge_count(),
                100.0 * prior[i].0,
                100.0 * same[i].0,
                same[i].1,
                100.0 * other[i].0,
                other[i].1,
            );
        }
    }
    println!();
    Ok(())
}

fn report_balance(profile: &lapidary_cost_model::Profile, bench: &Bench, measured: &[Measured<'_>]) -> Result<()> {
    println!(
        "The slowest part's milliseconds, and over the mean of the parts; `ratio` is learned over the better of the two.\n"
    );
    println!("| graph | parts | vertices | edges | learned | ratio |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    for graph in measured {
        let mut model = CostModel::new(profile.clone())?;
        learn(&mut model, graph, |_| true)?;
        let sums = sums(&model, graph.graph)?;
        let learned = model.range_cost(&ops(), &sums)?;
        let (by_vertices, by_edges) =
            (RangeCost::vertices(graph.graph.vertex_count()), RangeCost::edges(graph.graph.indptr()));
        for parts in PARTS {
            let speeds = Speeds::equal(NonZeroUsize::new(parts).ok_or("no parts")?);
            let splits = [&by_vertices, &by_edges, &learned].map(|cost| split(cost, &speeds));
            let seconds = bench.measure(&[(graph.graph, &splits.concat())])?.concat();
            let slowest: Vec<[f64; 2]> = seconds
                .chunks(parts)
                .map(|seconds| {
                    let both = seconds.iter().map(|both| both[0] + both[1]);
                    let mean = both.clone().sum::<f64>() / parts as f64;
                    let slowest = both.fold(0.0, f64::max);
                    [1e3 * slowest, slowest / mean]
                })
                .collect();
            let cell = |[ms, over]: [f64; 2]| format!("{ms:>8.2} ({over:.2})");
            let ratio = slowest[2][0] / slowest[0][0].min(slowest[1][0]);
            println!(
                "| {:<20} | {parts:>2} | {} | {} | {} | {ratio:.3} |",
                graph.name,
                cell(slowest[0]),
                cell(slowest[1]),
                cell(slowest[2])
            );
        }
    }
    Ok(())
}
