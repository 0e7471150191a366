//! Predicts gathers and epochs on GPUs, from the machine code of the kernels and the data sheets of the cards. Nothing runs
//! on a GPU.
//!
//!     cargo run --release -p lapidary-bench --bin predicted_gpu > bench/results/predicted_gpu.md
//!
//! Prints the tables of `bench/results/predicted_gpu.md`.

use std::collections::BTreeMap;
use std::error::Error;

use lapidary::Model;
use lapidary::forecast::{DryRun, Shape, Subject};
use lapidary_cost_model::Profile;
use lapidary_kernels::StorageType;
use lapidary_kernels::cuda::{GatherSizes, gather_ways};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The cards whose rates are known.
const CARDS: [&str; 3] = ["h200", "h100", "a100"];

/// Share of the L2 cache that the sources of a gather can use, as in forecasts.
const USABLE: f64 = 0.75;

const REDDIT: Shape = Shape { vertices: 232_965, edges: 114_848_857, features: 602, classes: 41, directed: false };
const PRODUCTS: Shape = Shape { vertices: 2_449_029, edges: 123_718_280, features: 100, classes: 47, directed: false };

const HEAD: &str = "\
# Time on GPUs, predicted and not measured

    cargo run --release -p lapidary-bench --bin predicted_gpu > bench/results/predicted_gpu.md

**No number here was measured on a GPU.** A gather is predicted to take the longest of three times, and a launch of 5 us:

- *issue*: the instructions of its loop, by [`machine_code.txt`](../../kernels/src/cuda/machine_code.txt) (NVRTC 12.8),
  over 4 instructions per cycle of each multiprocessor;
- *L2*: the sectors of 32 bytes that rows touch, and the indices once per slice, over the rate of the L2 cache;
- *memory*: the graph once per slice, the output, and rows that miss the L2 cache, over the rate of copies. Sources are
  uniform and random, and a slice can use three quarters of the cache.

Starts and ends of rows, hubs, latency and uneven rows are not in it, so the seconds are a bound from below. The rates of
each card and their sources are in `cost_model/src/gpu.rs` and `cost_model/src/profile.rs`. The L2 rate of the H100 and the
H200 is an assumption: NVIDIA does not publish it. Products and row steps are predicted by flops and bytes of the profile.
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
    println!("\n## Gathers over Reddit\n\n{} vertices, {} edges, without weights.", REDDIT.vertices, REDDIT.edges);
    gathers(REDDIT, &[16, 41, 64, 128, 256])?;
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
    let head = "card | type | width | columns at a time | instructions | L2 bytes | memory bytes | issue ms | L2 ms | memory ms | ms";
    println!("\n| {head} |\n| --- | --- {}|", "| ---: ".repeat(9));
    let (rows, edges) = (shape.vertices as usize, shape.edges as usize);
    for card in CARDS {
        let profile = named(card)?;
        let gpu = profile.gpu.clone().ok_or("the card has no rates")?;
        for (stored, &d) in
            [StorageType::F32, StorageType::Bf16].iter().flat_map(|s| widths.iter().map(move |d| (*s, d)))
        {
            let sizes = GatherSizes { rows, edges, sources: rows, d, stored, weighted: false, split: false };
            for way in gather_ways(sizes, profile.cache_bytes as usize, &gpu.architecture) {
                let misses = (1.0 - USABLE * profile.cache_bytes as f64 / sizes.slice_bytes(&way)).max(0.0);
                let out = (rows * d * stored.byte_count()) as f64;
                let memory = sizes.memory_bytes(&way, misses) + out;
                let seconds = profile.kernel_s(way.instructions, way.l2_bytes, memory).ok_or("no rates")?;
                println!(
                    "| {card} | {} | {d} | {} | {:.2} G | {:.1} GB | {:.1} GB | {:.2} | {:.2} | {:.2} | {:.2} |",
                    stored.name(),
                    way.columns,
                    way.instructions / 1e9,
                    way.l2_bytes / 1e9,
                    memory / 1e9,
                    1e3 * way.instructions / gpu.issued_per_s(),
                    1e3 * way.l2_bytes / gpu.l2_bytes_per_s,
                    1e3 * memory / profile.memory_bytes_per_s,
                    1e3 * seconds
                );
            }
        }
    }
    Ok(())
}

/// Prints the forecasts of epochs, without evaluations.
fn epochs() -> Result<()> {
    println!(
        "\n## Epochs of GCN\n\nAs `lapidary plan --shape V,E,F,C --hidden H --layers L --eval-every 0 --profile CARD`.\n"
    );
    println!(
        "| card | graph | widths | type | epoch ms | kernels that it runs |\n| --- | --- | --- | --- | ---: | --- |"
    );
    let models = [
        ("Reddit", REDDIT, vec![602, 16, 41]),
        ("Reddit", REDDIT, vec![602, 256, 41]),
        ("products", PRODUCTS, vec![100, 256, 256, 47]),
    ];
    for card in CARDS {
        for (name, shape, widths) in &models {
            let model = Model::gcn(widths).dropout(0.5);
            for dtype in [StorageType::F32, StorageType::Bf16] {
                let run = DryRun::new(&model, Subject::Shape(*shape)).profile(card).evaluates(false).dtype(dtype);
                let forecast = run.run()?;
                let plan = forecast.policies[0].outcome.as_ref().map_err(|bytes| format!("it needs {bytes} bytes"))?;
                let mut counts = BTreeMap::new();
                for step in plan.devices[0].steps.iter() {
                    let kernel = step.op.rsplit('/').next().unwrap_or(&step.op);
                    *counts.entry(kernel.to_owned()).or_insert(0) += 1;
                }
                let counts: Vec<String> = counts.iter().map(|(kernel, count)| format!("{count} {kernel}")).collect();
                let widths = widths.iter().map(usize::to_string).collect::<Vec<_>>().join("-");
                println!(
                    "| {card} | {name} | {widths} | {} | {:.2} | {} |",
                    dtype.name(),
                    1e3 * plan.epoch_seconds(),
                    counts.join(", ")
                );
            }
        }
    }
    Ok(())
}
