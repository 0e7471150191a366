//! Measures how fast a split is learned from the worst start, and compares it with the best split found by exhaustive
//! measurement.
//!
//!     cargo run --release -p lapidary-bench --bin learn_split            # some minutes, 2 GiB
//!     cargo run --release -p lapidary-bench --bin learn_split -- small   # seconds: a check that it works, not a measurement
//!
//! An R-MAT graph in degree order is split over four workers into ranges of equally many vertices, so that the first
//! range has nearly all edges. Kernels run one at a time, so that a part's seconds are its own.
//!
//! The best split is found by measuring ranges. Their ends lie on a grid of equal shares of vertices and edges. Each
//! range is measured as a part of some split; the slowest part of *every* split on the grid then follows from its
//! ranges, since a part's computation does not depend on where the others are cut. The seconds of a range are the
//! minimum over several epochs, as disturbances only add time. Then the splits are measured in turns.
//!
//! At the end, one of two simulated devices is made half as fast, and the cost of its part is measured at full speed.

use std::collections::BTreeMap;
use std::error::Error;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::time::Instant;

use lapidary::dataset::generate::{RmatOptions, rmat};
use lapidary::graph::Permutation;
use lapidary::{Arrays, Dataset, Devices, Graph, Model, Partition, Trainer};
use ndarray::Array2;

const PARTS: usize = 4;
const EPOCHS: u64 = 40;
/// Number of epochs within which a good split should be found.
const SOON: u64 = 5;
/// Number of epochs that the trainer is told to expect: a gain that pays within them is worth a move.
const TOLD_EPOCHS: u64 = 1000;
const WIDTH: usize = 32;
const CLASSES: usize = 16;

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Parts = Vec<Range<usize>>;

/// Size of the graph and the grid, and numbers of epochs and rounds.
struct Size {
    vertices: usize,
    cells: usize,
    epochs: usize,
    rounds: usize,
}

fn main() -> Result<()> {
    let small = std::env::args().nth(1).is_some_and(|word| word == "small");
    let size = match small {
        true => Size { vertices: 1 << 12, cells: 8, epochs: 2, rounds: 2 },
        false => Size { vertices: 1 << 16, cells: 24, epochs: 6, rounds: 15 },
    };
    let data = data(size.vertices)?;
    let graph = data.graph();
    let model = Model::gcn(&[WIDTH, WIDTH, CLASSES]);
    println!("{} vertices, {} edges, by descending degree; {PARTS} parts\n", graph.vertex_count(), graph.edge_count());
    let bench = Bench { model: &model, data: &data, epochs: size.epochs };

    let n = graph.vertex_count();
    let equal: Parts = (0..PARTS).map(|p| p * n / PARTS..(p + 1) * n / PARTS).collect();
    let [soon, learned] = bench.learn(&equal)?;
    let start = Instant::now();
    let grid = grid(graph, size.cells);
    let seconds = bench.ranges(&grid)?;
    let (best, splits) = best_on_grid(&grid, &seconds);
    println!(
        "\n{} ranges measured in {:.0} s; the best of {splits} splits on the grid is {best:?}\n",
        seconds.len(),
        start.elapsed().as_secs_f64(),
    );

    let edges = bench.parts(Partition::parse("edges")?)?;
    let candidates = [
        ("equal vertices".to_owned(), equal),
        ("equal edges".to_owned(), edges),
        ("best on the grid".to_owned(), best),
        (format!("learned, epoch {SOON}"), soon),
        (format!("learned, epoch {EPOCHS}"), learned),
    ];
    let mut least = vec![vec![f64::INFINITY; PARTS]; candidates.len()];
    for _ in 0..size.rounds {
        for ((_, parts), least) in candidates.iter().zip(&mut least) {
            keep_least(least, &bench.measure(parts)?);
        }
    }
    let slowest: Vec<f64> = least.iter().map(|parts| parts.iter().copied().fold(0.0, f64::max)).collect();
    println!("| split | ms of each part | slowest, ms | to the best on the grid |\n| --- | --- | ---: | ---: |");
    for (((name, _), parts), &seconds) in candidates.iter().zip(&least).zip(&slowest) {
        let each: Vec<String> = parts.iter().map(|s| format!("{:.2}", 1e3 * s)).collect();
        println!("| {name} | {} | {:.2} | {:.3} |", each.join(", "), 1e3 * seconds, seconds / slowest[2]);
    }
    bench.half_as_fast(size.rounds)
}

fn data(vertices: usize) -> Result<Dataset> {
    let options = RmatOptions { vertices, edge_factor: 12.0, ..RmatOptions::default() };
    let graph = rmat(&options)?.graph().clone();
    let graph = Permutation::by_degree(&graph).apply(&graph);
    let features = Array2::from_shape_fn((vertices, WIDTH), |(v, i)| ((v * 31 + i * 17) % 101) as f32 / 101.0 - 0.5);
    let labels: Vec<i64> = (0..vertices).map(|v| (v * 7 % CLASSES) as i64).collect();
    let train: Vec<i64> = (0..vertices as i64).collect();
    Ok(Dataset::from_arrays(Arrays::new(graph).name("rmat").features(features).labels(&labels).train(&train))?)
}

struct Bench<'a> {
    model: &'a Model,
    data: &'a Dataset,
    epochs: usize,
}

impl Bench<'_> {
    fn trainer(&self, partition: Partition) -> Result<Trainer> {
        self.trainer_on(PARTS, partition)
    }

    fn trainer_on(&self, workers: usize, partition: Partition) -> Result<Trainer> {
        let devices = Devices::parse(&format!("cpu:{workers}"))?.threads(NonZeroUsize::MIN);
        let builder = Trainer::builder(self.model, self.data).devices(devices).partition(partition);
        Ok(builder.eval_every(0).epochs(TOLD_EPOCHS).build()?)
    }

    fn parts(&self, partition: Partition) -> Result<Parts> {
        Ok(self.trainer(partition)?.parts().iter().map(|part| part[0]..part[1]).collect())
    }

    /// Trains from a split and prints the curve. Returns the splits after [`SOON`] epochs and at the end.
    fn learn(&self, start: &[Range<usize>]) -> Result<[Parts; 2]> {
        let parts_of = |trainer: &Trainer| -> Parts { trainer.parts().iter().map(|part| part[0]..part[1]).collect() };
        let mut soon = Vec::new();
        let mut trainer = self.trainer(Partition::LearnedFrom(start.to_vec()))?;
        println!(
            "| epoch | slowest part, ms | mean part, ms | parts end at | moved in, ms |\n| ---: | ---: | ---: | --- | ---: |"
        );
        for _ in 0..EPOCHS {
            let epoch = trainer.step()?.epoch;
            let seconds = trainer.part_seconds();
            let slowest = seconds.iter().copied().fold(0.0, f64::max);
            let mean = seconds.iter().sum::<f64>() / PARTS as f64;
            let ends: Vec<usize> = trainer.parts().iter().map(|part| part[1]).collect();
            let moved = trainer.last_move().filter(|moved| moved.epoch == epoch);
            let moved = moved.map_or_else(String::new, |moved| format!("{:.0}", 1e3 * moved.seconds));
            println!("| {epoch} | {:.2} | {:.2} | {ends:?} | {moved} |", 1e3 * slowest, 1e3 * mean);
            if epoch == SOON {
                soon = parts_of(&trainer);
            }
        }
        Ok([soon, parts_of(&trainer)])
    }

    /// Trains on two devices, the second half as fast, and compares the costs of their parts.
    fn half_as_fast(&self, rounds: usize) -> Result<()> {
        let n = self.data.graph().vertex_count();
        let devices = Devices::parse("sim:2")?.threads(NonZeroUsize::MIN).slowed(1, 200);
        let start = Partition::LearnedFrom(vec![0..n / 2, n / 2..n]);
        let builder = Trainer::builder(self.model, self.data).devices(devices).partition(start);
        let mut trainer = builder.eval_every(0).epochs(TOLD_EPOCHS).build()?;
        for _ in 0..EPOCHS {
            trainer.step()?;
        }
        let parts: Parts = trainer.parts().iter().map(|part| part[0]..part[1]).collect();
        let mut least = vec![f64::INFINITY; parts.len()];
        for _ in 0..rounds {
            keep_least(&mut least, &self.measure(&parts)?);
        }
        let [fast, slow] = [1e3 * least[0], 1e3 * least[1]];
        println!(
            "\ndevice 1 half as fast: {parts:?}, which cost {fast:.2} and {slow:.2} ms at full speed: {:.2}",
            slow / fast
        );
        Ok(())
    }

    /// Returns the minimum seconds of each part over the epochs after the first.
    fn measure(&self, parts: &[Range<usize>]) -> Result<Vec<f64>> {
        let mut trainer = self.trainer_on(parts.len(), Partition::Ranges(parts.to_vec()))?;
        trainer.step()?;
        trainer.start_trace();
        let mut least = vec![f64::INFINITY; parts.len()];
        for _ in 0..self.epochs {
            trainer.step()?;
            keep_least(&mut least, trainer.part_seconds());
        }
        Ok(least)
    }

    /// Returns the seconds of every range on the grid that a good split might have, by its first and last point.
    fn ranges(&self, grid: &[usize]) -> Result<BTreeMap<(usize, usize), f64>> {
        let cells = grid.len() - 1;
        let sensible = |a: usize, b: usize| b - a >= cells / 8 && b - a <= 3 * cells / 8 + 2;
        let mut seconds = BTreeMap::new();
        for a in 0..cells {
            for b in (a + 1..=cells).filter(|&b| sensible(a, b)) {
                if seconds.contains_key(&(a, b)) {
                    continue;
                }
                // The rest is cut arbitrarily.
                let points = match a {
                    0 => [0, b, b + (cells - b) / 3, b + 2 * (cells - b) / 3, cells],
                    _ if b == cells => [0, a / 3, 2 * a / 3, a, cells],
                    _ => [0, a, b, b + (cells - b) / 2, cells],
                };
                let parts: Parts = points.windows(2).map(|pair| grid[pair[0]]..grid[pair[1]]).collect();
                for (pair, part_s) in points.windows(2).zip(self.measure(&parts)?) {
                    let least = seconds.entry((pair[0], pair[1])).or_insert(f64::INFINITY);
                    *least = part_s.min(*least);
                }
            }
        }
        Ok(seconds)
    }
}

fn keep_least(least: &mut [f64], seconds: &[f64]) {
    least.iter_mut().zip(seconds).for_each(|(least, seconds)| *least = seconds.min(*least));
}

/// Returns the vertices at which the mean of the shares of vertices and edges reaches equal steps.
fn grid(graph: &Graph, cells: usize) -> Vec<usize> {
    let (n, e) = (graph.vertex_count(), graph.edge_count());
    let share = |v: usize| (v as f64 / n as f64 + graph.indptr()[v] as f64 / e as f64) / 2.0;
    let vertices: Vec<usize> = (0..=n).collect();
    let point = |i: usize| vertices.partition_point(|&v| share(v) < i as f64 / cells as f64);
    (0..=cells).map(|i| if i == cells { n } else { point(i) }).collect()
}

/// Returns the split whose slowest range is fastest, and the number of splits whose ranges were all measured.
fn best_on_grid(grid: &[usize], seconds: &BTreeMap<(usize, usize), f64>) -> (Parts, usize) {
    let last = grid.len() - 1;
    let (mut best, mut best_s, mut count) = ([0; PARTS + 1], f64::INFINITY, 0);
    for a in 1..last {
        for b in a + 1..last {
            for c in b + 1..last {
                let points = [0, a, b, c, last];
                let of = |pair: &[usize]| seconds.get(&(pair[0], pair[1])).copied();
                let Some(parts_s) = points.windows(2).map(of).collect::<Option<Vec<f64>>>() else { continue };
                count += 1;
                let slowest_s = parts_s.into_iter().fold(0.0, f64::max);
                if slowest_s < best_s {
                    (best, best_s) = (points, slowest_s);
                }
            }
        }
    }
    (best.windows(2).map(|pair| grid[pair[0]]..grid[pair[1]]).collect(), count)
}
