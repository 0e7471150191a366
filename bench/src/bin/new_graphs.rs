//! Compares splits of unseen graphs, learned on other graphs, with equal vertices and equal edges.
//!
//!     cargo run --release -p lapidary-bench --bin new_graphs            # some minutes
//!     cargo run --release -p lapidary-bench --bin new_graphs -- small   # seconds: a check that it works, not a measurement
//!
//! A GCN is trained on the 20 training graphs of PPI's topology, on four workers with a learned split, and saved. Then
//! the saved model is applied to graphs that it never saw, on four and eight workers: one forward pass, whose split is
//! decided before anything of the graph is measured. The result is the time of the slowest worker's kernels, the
//! minimum of many passes, in rounds that go through all splits. To run kernels one at a time, so that a part's seconds
//! are its own, run it on one core (`taskset -c 0`).
//!
//! PPI's topology and Slashdot are read from the folder `LAPIDARY_SHARED` (default `../shared`). If they are missing,
//! planted graphs replace PPI's, and the program says so.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

use lapidary::dataset::generate::{PlantedOptions, RmatOptions, planted, rmat};
use lapidary::graph::Permutation;
use lapidary::{Arrays, Dataset, Devices, Graph, Model, Partition, Predictor, Trainer};
use ndarray::Array2;

const FEATURES: usize = 50;
const HIDDEN: usize = 256;
const LABELS: usize = 121;
const WORKERS: [usize; 2] = [4, 8];
/// Equal vertices occur twice: the difference between the two shows how much any two rows may differ by chance.
const SPLITS: [&str; 4] = ["vertices", "edges", "learned", "vertices"];

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let small = std::env::args().nth(1).is_some_and(|word| word == "small");
    let (epochs, rounds, enough_s) = if small { (3, 2, 0.0) } else { (30, 60, 15.0) };
    let (seen, unseen) = graphs(small)?;
    let folder = tempfile::tempdir()?;
    train(&data(seen)?, epochs, folder.path())?;

    println!(
        "\n| graph | vertices | edges | parts | equal vertices, ms | equal edges, ms | learned, ms | to the better | equal vertices, to itself |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    );
    let mut ratios = Vec::new();
    for (name, graph) in unseen {
        let (vertices, edges) = (graph.vertex_count(), graph.edge_count());
        let data = data(graph)?;
        for workers in WORKERS {
            let slowest = slowest_parts(folder.path(), &data, workers, (rounds, enough_s))?;
            let ratio = slowest[2] / slowest[0].min(slowest[1]);
            let again = slowest[3] / slowest[0];
            let [a, b, c, _] = slowest.map(|s| 1e3 * s);
            println!(
                "| {name} | {vertices} | {edges} | {workers} | {a:.3} | {b:.3} | {c:.3} | {ratio:.3} | {again:.3} |"
            );
            ratios.push(ratio);
        }
    }
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    let worst = ratios.iter().copied().fold(0.0, f64::max);
    println!("\nlearned over the better of the two: {mean:.3} on average, {worst:.3} at worst");
    Ok(())
}

/// Returns the graph to train on, and named graphs to apply the model to.
fn graphs(small: bool) -> Result<(Graph, Vec<(String, Graph)>)> {
    let shared = std::env::var_os("LAPIDARY_SHARED").map_or_else(|| PathBuf::from("../shared"), PathBuf::from);
    let planted_graph = |vertices: usize, seed: u64| -> Result<Graph> {
        let options = PlantedOptions {
            vertices,
            mean_degree: 28.0,
            max_degree: 700.0,
            exponent: 2.1,
            seed,
            ..PlantedOptions::default()
        };
        Ok(planted(&options)?.graph().clone())
    };
    let mut unseen = Vec::new();
    let ppi = shared.join("data/ppi-topology");
    let seen = if ppi.exists() && !small {
        let data = Dataset::open(&ppi)?;
        let ids = data.graph_ids().ok_or("ppi-topology has no graph_ids.npy")?;
        // The graphs are consecutive: 20 to train on, two to validate, two to test.
        let end = |graph: i64| ids.partition_point(|&id| id - ids[0] <= graph);
        for graph in 20..24 {
            unseen.push((format!("PPI {}", graph + 1), slice(data.graph(), end(graph - 1), end(graph))?));
        }
        slice(data.graph(), 0, end(19))?
    } else {
        println!("LEFT OUT: {} is not there, or not wanted; planted graphs take its place", ppi.display());
        for seed in 2..6 {
            unseen.push((format!("planted {seed}"), planted_graph(3000, seed)?));
        }
        planted_graph(if small { 6000 } else { 45_000 }, 1)?
    };
    let slashdot = shared.join("data/soc-slashdot0902");
    if slashdot.exists() && !small {
        unseen.push(("Slashdot".into(), Dataset::open(&slashdot)?.graph().clone()));
    } else {
        println!("LEFT OUT: {} is not there, or not wanted", slashdot.display());
    }
    let vertices = if small { 1 << 12 } else { 1 << 17 };
    let skewed = rmat(&RmatOptions { vertices, edge_factor: 8.0, ..RmatOptions::default() })?.graph().clone();
    let sorted = Permutation::by_degree(&skewed).apply(&skewed);
    unseen.push(("R-MAT".into(), skewed));
    unseen.push(("R-MAT by degree".into(), sorted));
    Ok((seen, unseen))
}

/// Returns the subgraph of the vertices `start..end`, which have no edges to other vertices.
fn slice(graph: &Graph, start: usize, end: usize) -> Result<Graph> {
    let indptr = &graph.indptr()[start..=end];
    let edges = indptr[0] as usize..indptr[end - start] as usize;
    let sources: Vec<u32> = graph.indices()[edges].iter().map(|&source| source - start as u32).collect();
    let offsets: Vec<u64> = indptr.iter().map(|offset| offset - indptr[0]).collect();
    Ok(Dataset::from_arrays(Arrays::csr(offsets, sources))?.graph().clone())
}

/// Adds arbitrary features and labels: the seconds of kernels do not depend on them.
fn data(graph: Graph) -> Result<Dataset> {
    let n = graph.vertex_count();
    let features = Array2::from_shape_fn((n, FEATURES), |(v, i)| ((v * 31 + i * 17) % 101) as f32 / 101.0 - 0.5);
    let labels = Array2::from_shape_fn((n, LABELS), |(v, i)| u8::from((v * 7 + i * 13) % 29 == 0));
    let all: Vec<i64> = (0..n as i64).collect();
    Ok(Dataset::from_arrays(Arrays::new(graph).features(features).multi_labels(labels).train(&all))?)
}

fn workers(count: usize) -> Result<Devices> {
    Ok(Devices::parse(&format!("cpu:{count}"))?.threads(std::num::NonZeroUsize::MIN))
}

fn train(data: &Dataset, epochs: u64, folder: &Path) -> Result<()> {
    let graph = data.graph();
    println!("training on {} vertices and {} edges, {} workers", graph.vertex_count(), graph.edge_count(), WORKERS[0]);
    let model = Model::gcn(&[FEATURES, HIDDEN, LABELS]);
    // With many epochs announced, a move pays.
    let builder = Trainer::builder(&model, data).devices(workers(WORKERS[0])?).eval_every(0).epochs(1000);
    let mut trainer = builder.build()?;
    for _ in 0..epochs {
        trainer.step()?;
    }
    println!("{} splits, the last {:?}", trainer.splits().len(), trainer.parts());
    trainer.save(folder)?;
    Ok(())
}

/// Returns the seconds of the slowest worker's kernels for each split; for each worker the minimum over all rounds.
/// Runs at least `enough.0` rounds, and at least `enough.1` seconds.
fn slowest_parts(folder: &Path, data: &Dataset, count: usize, enough: (usize, f64)) -> Result<[f64; SPLITS.len()]> {
    let (rounds, enough_s) = enough;
    let mut least = vec![vec![f64::INFINITY; count]; SPLITS.len()];
    let start = Instant::now();
    let mut round = 0;
    while round < rounds || start.elapsed().as_secs_f64() < enough_s {
        round += 1;
        for (split, least) in SPLITS.iter().zip(&mut least) {
            let predictor = Predictor::open(folder)?.devices(workers(count)?).partition(Partition::parse(split)?);
            let seconds = predictor.run(data)?.part_seconds;
            least.iter_mut().zip(seconds).for_each(|(least, seconds)| *least = seconds.min(*least));
        }
    }
    let slowest = least.into_iter().map(|parts| parts.into_iter().fold(0.0, f64::max)).collect::<Vec<f64>>();
    Ok(slowest.try_into().expect("it has one a split"))
}
