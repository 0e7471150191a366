//! Times the gather alone, on a large graph.
//!
//!     cargo bench -p lapidary-bench --bench gather -- --data DIR [--dims 16,64] [--json]     # a dataset directory
//!     cargo bench -p lapidary-bench --bench gather                                           # a generated graph
//!
//! Prints for each width the median of several runs, with and without edge weights, after a check of some rows against
//! sums in `f64`. Bytes are counted as if caches held no source row, so a rate above the memory bandwidth shows the
//! effect of caches. The floor is measured in the same run: the time to read every byte of the operands once, at the
//! rate at which this machine reads an array larger than its caches.

use std::time::Instant;

use lapidary::Dataset;
use lapidary::dataset::generate::{PlantedOptions, planted};
use lapidary_bench::Flags;
use lapidary_kernels::{AlignedBytes, BlockView, MatMut, MatView, StorageType, cpu};
use rayon::prelude::*;

const DIMS: [usize; 8] = [3, 16, 32, 41, 64, 128, 256, 602];

fn main() {
    let flags = Flags::of_program();
    let bench = flags.has("--bench");
    let data = match flags.text("--data") {
        Some(dir) => Dataset::open(dir).expect("the dataset can be opened"),
        None => generated(if bench { 200_000 } else { 500 }),
    };
    let dims = flags.text("--dims").map_or(DIMS.to_vec(), |list| {
        list.split(',').map(|width| width.parse().expect("--dims is a list of numbers")).collect()
    });
    let json = flags.has("--json");
    let graph = data.graph();
    let (n, e) = (graph.vertex_count(), graph.edge_count());
    let block = BlockView { indptr: graph.indptr(), indices: graph.indices(), own_sources: n, halo_sources: 0 };
    let windows = cpu::EdgeWindows::new(block).expect("the block is valid");
    let read = read_bandwidth(if bench { 64 << 20 } else { 1 << 10 });
    let threads = rayon::current_num_threads();
    if !json {
        println!("{}: {n} rows, {e} edges, {threads} threads; the machine reads {:.1} GB/s\n", data.name(), read / 1e9);
        println!("| d | weights | ms | fastest - slowest | GB/s | of reading all once |");
        println!("| ---: | --- | ---: | ---: | ---: | ---: |");
    }
    for d in dims {
        for weighted in [false, true] {
            // A device that gathers again and again reads long rows window by window.
            let pays = cpu::repeated_gather_passes([n, e, n], d, StorageType::F32, weighted).is_some();
            let over = windows.as_ref().filter(|_| pays);
            let seconds = time(block, over, d, weighted);
            let bytes = cpu::gather_bytes(n as u64, e as u64, d as u64) + if weighted { 4 * e as u64 } else { 0 };
            let once = (8 * (n + 1) + 4 * e * (1 + usize::from(weighted)) + 8 * n * d) as f64 / read;
            let [fastest, median, slowest] = seconds.map(|seconds| seconds * 1e3);
            let (rate, share) = (bytes as f64 / median / 1e6, once / median * 1e3);
            if json {
                println!(
                    "{{\"bench\":\"gather\",\"graph\":\"{}\",\"d\":{d},\"weighted\":{weighted},\"threads\":{threads},\
                     \"median_ms\":{median:.3},\"min_ms\":{fastest:.3},\"max_ms\":{slowest:.3},\"gb_s\":{rate:.2},\
                     \"floor_ms\":{:.3}}}",
                    data.name(),
                    once * 1e3
                );
            } else {
                let weights = if weighted { "yes" } else { "no" };
                println!("| {d} | {weights} | {median:.2} | {fastest:.2} - {slowest:.2} | {rate:.1} | {share:.2} |");
            }
        }
    }
}

fn generated(vertices: usize) -> Dataset {
    let options = PlantedOptions { vertices, mean_degree: 16.0, feature_width: 1, ..PlantedOptions::default() };
    planted(&options).expect("the options are good")
}

/// Returns numbers between -1 and 1, in memory that is aligned as on a device.
fn numbers(len: usize, seed: u32) -> AlignedBytes {
    let mut bytes = AlignedBytes::zeroed(4 * len).expect("the host has memory");
    bytes.as_mut_slice::<f32>().par_iter_mut().enumerate().for_each(|(i, x)| {
        let bits = (i as u32 ^ seed).wrapping_mul(0x9e37_79b9);
        *x = (bits ^ (bits >> 15)).wrapping_mul(0x85eb_ca6b) as f32 / 2f32.powi(31) - 1.0;
    });
    bytes
}

/// Returns the fastest, the median and the slowest seconds of a gather, over windows of the edges if they are given.
fn time(block: BlockView<'_>, windows: Option<&cpu::EdgeWindows>, d: usize, weighted: bool) -> [f64; 3] {
    let n = block.rows();
    let (x, mut out) = (numbers(n * d, 1), numbers(n * d, 2));
    let weights = weighted.then(|| numbers(block.indices.len(), 3));
    let weights = weights.as_ref().map(AlignedBytes::as_slice::<f32>);
    let own = MatView::new(x.as_slice(), n, d).expect("the size is right");
    let mut run = || {
        let out = MatMut::new(out.as_mut_slice(), n, d).expect("the size is right");
        match windows {
            Some(windows) => windows.gather_then(weights, own, &[], out),
            None => cpu::gather(block, weights, own, None, out),
        }
        .expect("the block is valid");
    };
    run();
    let mut seconds = Vec::new();
    let start = Instant::now();
    while seconds.len() < 5 || (seconds.len() < 15 && start.elapsed().as_secs_f64() < 3.0) {
        let start = Instant::now();
        run();
        seconds.push(start.elapsed().as_secs_f64());
    }
    check(block, weights, own, out.as_slice());
    seconds.sort_by(f64::total_cmp);
    [seconds[0], seconds[seconds.len() / 2], seconds[seconds.len() - 1]]
}

/// Compares every 97th row with sums in `f64`.
fn check(block: BlockView<'_>, weights: Option<&[f32]>, own: MatView<'_>, out: &[f32]) {
    let d = own.cols();
    for v in (0..block.rows()).step_by(97) {
        for column in [0, d / 2, d - 1] {
            let term = |edge: usize| {
                let factor = weights.map_or(1.0, |weights| f64::from(weights[edge]));
                factor * f64::from(own.row(block.indices[edge] as usize)[column])
            };
            let terms: Vec<f64> = block.edges(v).map(term).collect();
            let (want, size) = (terms.iter().sum::<f64>(), terms.iter().map(|x| x.abs()).sum::<f64>());
            let got = f64::from(out[v * d + column]);
            assert!((got - want).abs() <= 1e-7 * size * (terms.len() + 1) as f64, "row {v}: {got} is not {want}");
        }
    }
}

/// Returns the bytes per second at which an array of `len` numbers is read.
fn read_bandwidth(len: usize) -> f64 {
    let array = numbers(len, 4);
    let sum = || array.as_slice::<u32>().par_chunks(1 << 16).map(sum_of).reduce(|| 0, u32::wrapping_add);
    let rate = || {
        let start = Instant::now();
        std::hint::black_box(sum());
        4.0 * len as f64 / start.elapsed().as_secs_f64()
    };
    let mut rates: Vec<f64> = (0..9).map(|_| rate()).collect();
    rates.sort_by(f64::total_cmp);
    rates[4]
}

fn sum_of(chunk: &[u32]) -> u32 {
    let mut lanes = [0u32; 64];
    for chunk in chunk.as_chunks::<64>().0 {
        lanes.iter_mut().zip(chunk).for_each(|(lane, &x)| *lane = lane.wrapping_add(x));
    }
    lanes.iter().fold(0, |a, &b| a.wrapping_add(b))
}
