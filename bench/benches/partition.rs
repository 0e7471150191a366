//! Times the partitioning of graphs: the features of 100 million edges, and the split of 111 million vertices (as many
//! as in ogbn-papers100M) into 64 parts.
//!
//!     cargo bench -p lapidary-bench --bench partition            # 8 GiB
//!     cargo bench -p lapidary-bench --bench partition -- small   # a check that it works
//!
//! Prints the median, the minimum and the maximum of several runs. Before each run the caches are emptied by reading an
//! array that is larger than them.

use std::num::NonZeroUsize;
use std::time::Instant;

use lapidary_cost_model::{CostModel, FeatureSums, Operation, Profile, RangeCost, Work};
use lapidary_planner::partition::{Speeds, bottleneck, split};
use rayon::prelude::*;

fn main() {
    // `cargo bench` passes --bench, `cargo test --benches` passes nothing.
    let small = std::env::args().any(|word| word == "small") || !std::env::args().any(|word| word == "--bench");
    let scale = if small { 100 } else { 1 };
    let device = device();
    let flush: Vec<u64> = vec![1; (32 << 20) / scale];
    println!("{} threads\n", rayon::current_num_threads());

    let no_cache = Profile { cache_bytes: 0, ..device.clone() };
    println!(
        "Features and their prefix sums, 5 million vertices and 100 million edges; `ROC's` are those without caches:\n"
    );
    println!("| ids | features | widths | seconds | least - greatest | GB/s read | of the read bandwidth |");
    println!("| --- | --- | ---: | ---: | ---: | ---: | ---: |");
    for (ids, sequence) in [("at random", 0), ("half in sequence", 128)] {
        let (indptr, indices) = csr(5_000_000 / scale, 20, sequence);
        let read_s = seconds(&flush, || std::hint::black_box(sum_of(&indices)))[1];
        let array_bytes = 4 * indices.len();
        let bandwidth = array_bytes as f64 / read_s;
        let cases = [("ROC's", &no_cache, &[64][..]), ("ROC's", &no_cache, &[41, 100, 602]), ("all", &device, &[64])];
        for (features, device, widths) in cases {
            let times = seconds(&flush, || sums(&indptr, &indices, device, widths).byte_count());
            let rate = (array_bytes + 8 * indptr.len()) as f64 / times[1];
            println!(
                "| {ids:<16} | {features:<8} | {:>13} | {:.3} | {:.3} - {:.3} | {:>5.2} | {:>3.0} % of {:.1} GB/s |",
                format!("{widths:?}"),
                times[1],
                times[0],
                times[2],
                rate / 1e9,
                100.0 * rate / bandwidth,
                bandwidth / 1e9
            );
        }
    }

    let (indptr, indices) = csr(111_059_956 / scale, 2, 64);
    let sums = sums(&indptr, &indices, &device, &[41]);
    drop(indices);
    let n = sums.vertex_count();
    let model = learned(&device, &sums);
    let op = Operation::new("gather", Work::Gather { width: 41 });
    let learned = model.range_cost(&[op], &sums).expect("its width was named");
    println!(
        "\nSplit of {n} vertices, prefix sums given ({} MB of them):\n",
        (sums.byte_count() + 8 * n as u64) / 1_000_000
    );
    println!("| parts | strategy | milliseconds | least - greatest | bottleneck over the ideal |");
    println!("| ---: | --- | ---: | ---: | ---: |");
    let costs = [("vertices", RangeCost::vertices(n)), ("edges", RangeCost::edges(&indptr)), ("learned", learned)];
    for parts in [8, 64] {
        let speeds = Speeds::equal(NonZeroUsize::new(parts).expect("it is not 0"));
        for (strategy, cost) in &costs {
            let times = seconds(&flush, || split(cost, &speeds)).map(|time| 1e3 * time);
            let over = bottleneck(cost, &split(cost, &speeds), &speeds) * parts as f64 / cost.total() - 1.0;
            println!(
                "| {parts:>2} | {strategy:<8} | {:.3} | {:.3} - {:.3} | {over:.1e} |",
                times[1], times[0], times[2]
            );
        }
    }
}

/// Returns the minimum, the median and the maximum seconds of several runs, each with cold caches.
fn seconds<T>(flush: &[u64], mut run: impl FnMut() -> T) -> [f64; 3] {
    const RUNS: usize = 11;
    let mut times = [0.0; RUNS];
    for time in &mut times {
        std::hint::black_box(flush.par_iter().sum::<u64>());
        let start = Instant::now();
        std::hint::black_box(run());
        *time = start.elapsed().as_secs_f64();
    }
    times.sort_by(f64::total_cmp);
    [times[0], times[RUNS / 2], times[RUNS - 1]]
}

/// A profile with accesses of one cache line and a 32 MiB cache.
fn device() -> Profile {
    let access_width = 16.try_into().expect("it is not 0");
    let h200 = Profile::named("h200").expect("it is built in");
    Profile { access_width, cache_bytes: 32 << 20, ..h200 }
}

fn sum_of(values: &[u32]) -> u64 {
    values.par_chunks(1 << 16).map(|chunk| chunk.iter().map(|&value| u64::from(value)).sum::<u64>()).sum()
}

fn sums<'a>(indptr: &'a [u64], indices: &[u32], device: &Profile, widths: &[u32]) -> FeatureSums<'a> {
    FeatureSums::new(indptr, indices, device, widths).expect("it is a CSR")
}

/// Returns a CSR with power-law degrees around `degree`. Of 256 neighbours, `sequence` directly follow the one before.
fn csr(vertices: usize, degree: u64, sequence: u64) -> (Vec<u64>, Vec<u32>) {
    let mut state = 1u64;
    let mut draw = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let (mut indptr, mut indices) = (vec![0], Vec::with_capacity(vertices * degree as usize));
    for _ in 0..vertices {
        // The mean of 1 / sqrt(u) for u in 0 .. 1 is 2.
        let share = (draw() % 65_536 + 1) as f64 / 65_536.0;
        let wanted = (0.5 * degree as f64 / share.sqrt()) as u64;
        let mut next = draw() % vertices as u64;
        for _ in 0..wanted {
            if next >= vertices as u64 {
                break;
            }
            indices.push(next as u32);
            let bits = draw();
            next += if bits % 256 < sequence { 1 } else { 2 + bits / 256 % 64 };
        }
        indptr.push(indices.len() as u64);
    }
    (indptr, indices)
}

/// Returns a model in which every feature has a weight.
fn learned(device: &Profile, sums: &FeatureSums<'_>) -> CostModel {
    let mut model = CostModel::new(device.clone()).expect("its rates are good");
    let op = Operation::new("gather", Work::Gather { width: 41 });
    let columns = sums.columns(41).expect("it was named");
    for i in 0..40 {
        let start = i * sums.vertex_count() / 50;
        let features = columns.of(start..start + (1 + i % 7) * 100);
        let seconds = features
            .iter()
            .zip([5.0, 1.0, 2.0, 3.0, 0.5, 0.01, 0.02])
            .map(|(&count, weight)| 1e-9 * weight * count as f64);
        model.observe(&op, &features, seconds.sum()).expect("ranges are not empty");
    }
    model.refit();
    model
}
