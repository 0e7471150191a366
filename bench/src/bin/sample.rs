//! Measures samplers of mini-batches alone.
//!
//!     cargo run --release -p lapidary-bench --bin sample -- --data DIR [--batch 1024] [--fanout 15,10,5] [--count 50]
//!                                            [--samplers neighbor,two-step] [--json]
//!
//! Samplers: neighbor, two-step, subgraph, fastgcn and ladies. For the last two, the fan-outs are vertices per layer.
//! `two-step` is what `neighbor` is compared with: it lists the drawn edges of a layer as pairs of vertices, then numbers
//! the vertices, then converts the pairs to a CSR.
//!
//! All vertices are seeds, in a random order. `neighbor` uses all cores, or as many as `RAYON_NUM_THREADS` says; the others
//! use one. Samplers take turns, batch by batch, so that other programs disturb all alike. A first batch of each is not
//! measured. Prints batches per second by the median, the median and the quartiles of the milliseconds per batch, the
//! processor time of all threads, and the mean numbers of vertices and edges of a batch.

use std::collections::HashMap;
use std::error::Error;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Instant;

use lapidary::sample::{
    BatchKey, Fanout, Fanouts, LayerSampler, NeighborSampler, Sampler, Scratch, SubgraphSampler, epoch_order,
};
use lapidary::{Dataset, Graph};
use lapidary_bench::Flags;
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The seed of all draws.
const SEED: u64 = 1;

fn main() -> Result<()> {
    let flags = Flags::of_program();
    let data = match flags.text("--data") {
        Some(dir) => Dataset::open(dir)?,
        None => Dataset::builtin("planted")?,
    };
    let graph = data.graph();
    let (size, count) = (flags.number("--batch", 1024)?.max(1), flags.number("--count", 50)?.max(1));
    let fanouts: Fanouts = flags.text("--fanout").unwrap_or("15,10,5").parse()?;
    let names = flags.text("--samplers").unwrap_or("neighbor,two-step");
    let mut measured: Vec<Measured> =
        names.split(',').map(|name| Measured::new(name, &fanouts, graph)).collect::<Result<_>>()?;

    let mut order: Vec<u32> = (0..graph.vertex_count() as u32).collect();
    epoch_order(&mut order, SEED, 0);
    let batches: Vec<&[u32]> = order.chunks(size).collect();
    for batch in 0..=count {
        let seeds = *batches.get(batch % batches.len().max(1)).ok_or("the dataset has no vertices")?;
        for sampler in &mut measured {
            let (start, used) = (Instant::now(), processor_seconds());
            let [vertices, edges] = sampler.draw.batch(graph, seeds, batch as u64)?;
            let seconds = start.elapsed().as_secs_f64();
            if batch > 0 {
                sampler.seconds.push(seconds);
                sampler.processor += processor_seconds() - used;
                sampler.vertices += vertices;
                sampler.edges += edges;
            }
        }
    }
    for sampler in &mut measured {
        sampler.seconds.sort_by(f64::total_cmp);
        let ms = |part: f64| sampler.seconds[((count - 1) as f64 * part) as usize] * 1e3;
        let (per_s, processor_ms) = (1e3 / ms(0.5), sampler.processor / count as f64 * 1e3);
        let [vertices, edges] = [sampler.vertices, sampler.edges].map(|sum| sum as f64 / count as f64);
        if flags.has("--json") {
            let line = json!({
                "sampler": sampler.name, "graph": data.name(), "batch": size, "fanout": fanouts.to_string(),
                "count": count, "batches_per_s": per_s, "median_ms": ms(0.5), "quartiles_ms": [ms(0.25), ms(0.75)],
                "processor_ms": processor_ms, "vertices": vertices, "edges": edges,
            });
            println!("{line}");
        } else {
            let (name, median, low, high) = (&sampler.name, ms(0.5), ms(0.25), ms(0.75));
            println!(
                "{name:>9}: {per_s:8.1} batches/s, {median:8.2} ms ({low:.2} to {high:.2}), {processor_ms:8.2} ms of \
                 processors, {vertices:9.0} vertices, {edges:9.0} edges"
            );
        }
    }
    Ok(())
}

/// Returns the processor time of all threads so far.
fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// What was measured of a sampler.
struct Measured {
    name: String,
    draw: Box<dyn Draw>,
    seconds: Vec<f64>,
    /// Processor time of all batches, in seconds.
    processor: f64,
    vertices: usize,
    edges: usize,
}

/// Samples batches, and returns their numbers of vertices and edges.
trait Draw {
    fn batch(&mut self, graph: &Graph, seeds: &[u32], batch: u64) -> Result<[usize; 2]>;
}

impl Measured {
    fn new(name: &str, fanouts: &Fanouts, graph: &Graph) -> Result<Self> {
        let draw: Box<dyn Draw> = match name {
            "neighbor" => Box::new(Library(NeighborSampler::new(fanouts.clone()), Scratch::default())),
            "subgraph" => Box::new(Library(SubgraphSampler::new(fanouts.clone()), Scratch::default())),
            "fastgcn" => Box::new(Library(LayerSampler::fastgcn(fanouts.clone(), graph), Scratch::default())),
            "ladies" => Box::new(Library(LayerSampler::ladies(fanouts.clone()), Scratch::default())),
            "two-step" => Box::new(TwoStep::new(fanouts.clone())),
            _ => return Err(format!("there is no sampler {name}").into()),
        };
        Ok(Self { name: name.into(), draw, seconds: Vec::new(), processor: 0.0, vertices: 0, edges: 0 })
    }
}

/// A sampler of the library.
struct Library<S>(S, Scratch);

impl<S: Sampler> Draw for Library<S> {
    fn batch(&mut self, graph: &Graph, seeds: &[u32], batch: u64) -> Result<[usize; 2]> {
        let drawn = self.0.sample(graph, seeds, BatchKey { seed: SEED, epoch: 0, batch }, &mut self.1)?;
        let sizes = [drawn.vertices.len(), drawn.edges.iter().map(Vec::len).sum()];
        self.1.take_back(drawn);
        Ok(sizes)
    }
}

/// The sampler in two steps. It has the same results as the fused one, up to its random numbers: vertices, a CSR per
/// layer, and the position of each edge in the graph.
struct TwoStep {
    fanouts: Fanouts,
    /// The state of SplitMix64, the generator of the library.
    random: u64,
    numbers: HashMap<u32, u32, BuildHasherDefault<Multiply>>,
}

/// A layer as pairs of vertices.
#[derive(Default)]
struct Pairs {
    rows: Vec<u32>,
    sources: Vec<u32>,
    edges: Vec<u64>,
}

/// A layer as a CSR over local numbers.
struct Csr {
    indptr: Vec<u64>,
    indices: Vec<u32>,
    edges: Vec<u64>,
}

impl TwoStep {
    fn new(fanouts: Fanouts) -> Self {
        Self { fanouts, random: SEED, numbers: HashMap::default() }
    }

    /// Draws in-edges of all vertices: the first step.
    fn pairs(&mut self, graph: &Graph, vertices: &[u32], fanout: Fanout) -> Pairs {
        let (indptr, indices): (&[u64], &[u32]) = (graph.indptr(), graph.indices());
        let mut pairs = Pairs::default();
        let mut drawn = Vec::new();
        for &v in vertices {
            let (first, degree) = (indptr[v as usize], indptr[v as usize + 1] - indptr[v as usize]);
            drawn.clear();
            match fanout {
                Fanout::AtMost(count) if u64::from(count) < degree => self.draw(u64::from(count), degree, &mut drawn),
                _ => drawn.extend(0..degree),
            }
            for edge in &drawn {
                pairs.rows.push(v);
                pairs.sources.push(indices[(first + edge) as usize]);
                pairs.edges.push(first + edge);
            }
        }
        pairs
    }

    /// Floyd's algorithm, as in the library.
    fn draw(&mut self, count: u64, limit: u64, drawn: &mut Vec<u64>) {
        for last in limit - count..limit {
            self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let number = ((u128::from(z ^ (z >> 31)) * u128::from(last + 1)) >> 64) as u64;
            drawn.push(if drawn.contains(&number) { last } else { number });
        }
        drawn.sort_unstable();
    }

    /// Numbers the vertices of the pairs, and converts the pairs to a CSR: the second step.
    fn compact(&mut self, pairs: Pairs, vertices: &mut Vec<u32>) -> Csr {
        let rows = vertices.len();
        for &source in &pairs.sources {
            self.numbers.entry(source).or_insert_with(|| {
                vertices.push(source);
                vertices.len() as u32 - 1
            });
        }
        let [local_rows, local_sources] =
            [&pairs.rows, &pairs.sources].map(|ids| ids.iter().map(|id| self.numbers[id]).collect::<Vec<u32>>());
        let mut indptr = vec![0u64; rows + 1];
        local_rows.iter().for_each(|&row| indptr[row as usize + 1] += 1);
        (0..rows).for_each(|row| indptr[row + 1] += indptr[row]);
        let mut next = indptr.clone();
        let (mut indices, mut edges) = (vec![0; local_sources.len()], vec![0; local_sources.len()]);
        for ((row, source), edge) in local_rows.into_iter().zip(local_sources).zip(pairs.edges) {
            let place = &mut next[row as usize];
            indices[*place as usize] = source;
            edges[*place as usize] = edge;
            *place += 1;
        }
        Csr { indptr, indices, edges }
    }
}

impl Draw for TwoStep {
    fn batch(&mut self, graph: &Graph, seeds: &[u32], _batch: u64) -> Result<[usize; 2]> {
        let mut vertices = seeds.to_vec();
        self.numbers.clear();
        self.numbers.extend(seeds.iter().copied().zip(0..));
        let mut layers = Vec::new();
        for fanout in self.fanouts.0.clone() {
            let pairs = self.pairs(graph, &vertices, fanout);
            layers.push(self.compact(pairs, &mut vertices));
        }
        let edges = |layer: &Csr| layer.indptr.last().map_or(0, |_| layer.indices.len().min(layer.edges.len()));
        Ok([vertices.len(), layers.iter().map(edges).sum()])
    }
}

/// A hash that multiplies, as that of the library's table.
#[derive(Default)]
struct Multiply(u64);

impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(byte.into()));
    }

    fn write_u32(&mut self, number: u32) {
        // The table of the standard library reads the highest and the lowest bits.
        let product = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = (self.0 ^ product).rotate_left(26);
    }
}
