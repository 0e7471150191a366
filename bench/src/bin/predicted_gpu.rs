//! Predicts gathers and epochs on GPUs, from the machine code of the kernels and the data sheets of the cards. Nothing runs
//! on a GPU.
//!
//!     cargo run --release -p lapidary-bench --bin predicted_gpu > bench/results/predicted_gpu.md
//!
//! Prints the tables of `bench/results/predicted_gpu.md`.

use std::error::Error;

use lapidary::Model;
use lapidary::forecast::{DryRun, Shape, Subject};
use lapidary_cost_model::Profile;
use lapidary_kernels::StorageType;
use lapidary_kernels::cuda::{GatherSizes, GatherWay, gather_ways};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The cards whose rates are known.
const CARDS: [&str; 3] = ["h200", "h100", "a100"];

/// Share of the L2 cache that the sources of a gather can use, as in forecasts.
const USABLE: f64 = 0.75;

const REDDIT: Shape = Shape { vertices: 232_965, edges: 114_615_892, features: 602, classes: 41, directed: false };
const PRODUCTS: Shape = Shape { vertices: 2_449_029, edges: 123_718_280, features: 100, classes: 47, directed: false };

const HEAD: &str = "\
# Time on GPUs, predicted and not measured

    cargo run --release -p lapidary-bench --bin predicted_gpu > bench/results/predicted_gpu.md

**No number of a table here was measured on a GPU.** A gather is predicted to take the longest of three times, and a launch
of 5 us:

- *issue*: the instructions of its loop, by [`machine_code.txt`](../../kernels/src/cuda/machine_code.txt) (NVRTC 12.8),
  over 4 instructions per cycle of each multiprocessor;
- *L2*: the sectors of 32 bytes that rows touch, and the indices once per slice, over the rate of the L2 cache;
- *memory*: the graph once per slice, the output, and rows that miss the L2 cache, over the rate of copies. Sources are
  uniform and random, and a slice can use three quarters of the cache.

Starts and ends of rows, hubs, latency and uneven rows are not in it, so the seconds are a bound from below. The rates of
each card and their sources are in `cost_model/src/gpu.rs` and `cost_model/src/profile.rs`; the L2 rate of the H100 and the
H200 is the one that [gathers on an H200](gpu_gathers.md) reached. Products and row steps are predicted by flops and bytes
of the profile.

[Measured](gpu-check-NVIDIA-H200-2026-11-27/report.md) on an H200, over random graphs with hubs: gathers over Reddit at 16,
41, 64, 128 and 256 columns in 1.50, 3.78, 3.66, 7.10 and 14.12 ms; epochs of Reddit 602-16-41 and 602-256-41 in 4.44 and
12.11 ms, of products 104-256-256-47 in 126 ms.
";

fn main() -> Result<()> {
    println!("{HEAD}");
    println!(
        "| card | multiprocessors | clock | L2 | L2 rate | memory rate |\n| --- | ---: | ---: | ---: | ---: | ---: |"
    );
    for card in CARDS {
        let profile = named(card)?;
        let gpu = profile.gpu.as_ref().ok_or("the card has no rates")?;
        println!(
            "| {card} | {} | {:.3} GHz | {} MB | {:.2} TB/s | {:.2} TB/s |",
            gpu.multiprocessors,
            gpu.clock_hz / 1e9,
            profile.cache_bytes / 1_000_000,
            gpu.l2_bytes_per_s / 1e12,
            profile.memory_bytes_per_s / 1e12
        );
    }
    println!("\n## Gathers over Reddit, with self-loops\n");
    gathers(Shape { edges: REDDIT.edges + REDDIT.vertices, ..REDDIT }, &[16, 41, 64, 128, 256])?;
    println!(
        "\n## Gathers over products\n\n{} vertices, {} edges, without weights.",
        PRODUCTS.vertices, PRODUCTS.edges
    );
    gathers(PRODUCTS, &[47, 100, 256])?;
    epochs()
}

fn named(card: &str) -> Result<Profile> {
    Profile::named(card).ok_or_else(|| format!("there is no profile {card}").into())
}

/// Prints each way to run gathers of these widths.
fn gathers(shape: Shape, widths: &[usize]) -> Result<()> {
    println!("{} vertices, {} edges, without weights.\n", shape.vertices, shape.edges);
    println!(
        "| card | type | width | columns at a time | instructions | L2 | memory | issue ms | L2 ms | memory ms | ms |"
    );
    println!("| --- | --- {}|", "| ---: ".repeat(9));
    for card in CARDS {
        let profile = named(card)?;
        let gpu = profile.gpu.as_ref().ok_or("the card has no rates")?;
        for stored in [StorageType::F32, StorageType::Bf16] {
            for &d in widths {
                for Predicted { way, memory_bytes, seconds } in ways(&profile, shape, d, stored) {
                    println!(
                        "| {card} | {} | {d} | {} | {:.2} G | {:.1} GB | {:.1} GB | {:.2} | {:.2} | {:.2} | {:.2} |",
                        stored.name(),
                        way.columns,
                        way.instructions / 1e9,
                        way.l2_bytes / 1e9,
                        memory_bytes / 1e9,
                        1e3 * way.instructions / gpu.issued_per_s(),
                        1e3 * way.l2_bytes / gpu.l2_bytes_per_s,
                        1e3 * memory_bytes / profile.memory_bytes_per_s,
                        1e3 * seconds
                    );
                }
            }
        }
    }
    Ok(())
}

/// A way to run a gather, with its predicted bytes and seconds.
struct Predicted {
    way: GatherWay,
    memory_bytes: f64,
    seconds: f64,
}

/// Returns the ways to run a gather over a graph.
fn ways(profile: &Profile, shape: Shape, d: usize, stored: StorageType) -> Vec<Predicted> {
    let (rows, edges) = (shape.vertices as usize, shape.edges as usize);
    let sizes = GatherSizes { rows, edges, sources: rows, d, stored, weighted: false, split: false };
    let predicted = |way: GatherWay| {
        let misses = (1.0 - USABLE * profile.cache_bytes as f64 / sizes.slice_bytes(&way)).max(0.0);
        let memory_bytes = sizes.memory_bytes(&way, misses) + (rows * d * stored.byte_count()) as f64;
        let seconds = profile.kernel_s(way.instructions, way.l2_bytes, memory_bytes)?;
        Some(Predicted { way, memory_bytes, seconds })
    };
    let architecture = profile.gpu.as_ref().map_or("", |gpu| &gpu.architecture);
    gather_ways(sizes, profile.cache_bytes as usize, architecture).into_iter().filter_map(predicted).collect()
}

/// Prints the forecasts of epochs in f32, without evaluations, and what they consist of.
fn epochs() -> Result<()> {
    println!("\n## Epochs of GCN in f32\n");
    println!(
        "As `lapidary plan --shape V,E,F,C --hidden H --layers L --eval-every 0 --profile CARD`. The sums of features are"
    );
    println!(
        "made once, before the first epoch. So the first layer gathers nothing, and has no gradient of its input. Row"
    );
    println!("steps, losses and launches are what remains.\n");
    println!("| card | graph | widths | gathers | gathers ms | products ms | remaining ms | epoch ms |");
    println!("| --- | --- | --- | --- {}|", "| ---: ".repeat(4));
    for card in CARDS {
        let profile = named(card)?;
        // The layers multiply first where that makes rows narrower. Each gather has one of the same width in backward.
        for (name, shape, widths, gathered) in [
            ("Reddit", REDDIT, &[602, 16, 41][..], &[16][..]),
            ("Reddit", REDDIT, &[602, 256, 41], &[41]),
            ("products", PRODUCTS, &[100, 256, 256, 47], &[256, 47]),
        ] {
            let model = Model::gcn(widths).dropout(0.5);
            let forecast = DryRun::new(&model, Subject::Shape(shape)).profile(card).evaluates(false).run()?;
            let plan = forecast.policies[0].outcome.as_ref().map_err(|bytes| format!("it needs {bytes} bytes"))?;
            let with_loops = Shape { edges: shape.edges + shape.vertices, ..shape };
            let gather_s = |&d: &usize| {
                let seconds = ways(&profile, with_loops, d, StorageType::F32).into_iter().map(|way| way.seconds);
                2.0 * seconds.fold(f64::INFINITY, f64::min)
            };
            let gathers_s: f64 = gathered.iter().map(gather_s).sum();
            let products_s: f64 = widths
                .windows(2)
                .enumerate()
                .map(|(layer, pair)| {
                    let calls = if layer == 0 { 2.0 } else { 3.0 };
                    calls * profile.linear_s(shape.vertices, pair[0] as u64, pair[1] as u64)
                })
                .sum();
            let joined =
                |numbers: &[usize], by: &str| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(by);
            println!(
                "| {card} | {name} | {} | 2 x {} | {:.2} | {:.2} | {:.2} | {:.2} |",
                joined(widths, "-"),
                joined(gathered, ", 2 x "),
                1e3 * gathers_s,
                1e3 * products_s,
                1e3 * (plan.epoch_seconds() - gathers_s - products_s),
                1e3 * plan.epoch_seconds()
            );
        }
    }
    Ok(())
}
