//! Measures predictions for many small graphs.
//!
//!     cargo run --release -p lapidary-bench --bin many_graphs -- [--graphs 1000] [--model sage] [--hidden 128] [--data DIR]
//!
//! The graphs are of PPI's shape: about 2,400 vertices, 67,000 edges, 50 features and 121 classes. There are 200 different
//! ones, and each is used as often as `--graphs` needs. With `--data`, they are also written to that folder, for a program
//! that does the same work: `bench/many_graphs.py`.
//!
//! Prints for each way the milliseconds per graph, everything included but making the graphs:
//!
//!   alone     each graph by [`Predictor::predict`]
//!   prepared  each graph by a prepared predictor
//!   batched   [`Predictor::predictions`]

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use lapidary::dataset::generate::{PlantedOptions, SplitSizes, planted};
use lapidary::{Dataset, Model, Predictor, Trainer};
use lapidary_bench::Flags;
use serde_json::json;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Number of different graphs: together they are larger than the caches.
const DIFFERENT: usize = 200;

fn main() -> Result<()> {
    let flags = Flags::of_program();
    let (graphs, hidden) = (flags.number("--graphs", 1000)?, flags.number("--hidden", 128)?);
    let different = (0..DIFFERENT as u64).map(graph).collect::<lapidary::Result<Vec<_>>>()?;
    let widths = [different[0].feature_width(), hidden, different[0].class_count()];
    let model = match flags.text("--model").unwrap_or("sage") {
        "gcn" => Model::gcn(&widths),
        "sage" => Model::sage(&widths),
        other => return Err(format!("--model: gcn or sage, not {other}").into()),
    };
    let trainer = Trainer::builder(&model, &different[0]).build()?;
    let predictor = trainer.predictor()?;
    if let Some(folder) = flags.text("--data").map(Path::new) {
        std::fs::create_dir_all(folder)?;
        for (i, data) in different.iter().enumerate() {
            data.write(folder.join(i.to_string()))?;
        }
        trainer.save(folder.join("run"))?;
    }
    let all = || different.iter().cycle().take(graphs).cloned();
    let mut sum = 0.0;
    let mut time = |way: &str, count: usize, run: &mut dyn FnMut() -> Result<f64>| -> Result<()> {
        let start = Instant::now();
        sum += run()?;
        let ms = start.elapsed().as_secs_f64() * 1e3 / count as f64;
        println!(
            "{}",
            json!({ "way": way, "graphs": count, "model": model.config().name, "hidden": hidden, "ms": ms })
        );
        Ok(())
    };
    let few = graphs.min(DIFFERENT);
    time("alone", few, &mut || all().take(few).map(|data| Ok(f64::from(predictor.predict(&data)?[[0, 0]]))).sum())?;
    let mut prepared = predictor.clone().prepared();
    time("prepared", few, &mut || all().take(few).map(|data| Ok(f64::from(prepared.predict(&data)?[[0, 0]]))).sum())?;
    time("batched", graphs, &mut || batched(&predictor, all()))?;
    println!("{}", json!({ "sum of the first logits": sum }));
    Ok(())
}

/// Predicts for all graphs. Returns the sum of the first logits, so that none is left out.
fn batched(predictor: &Predictor, graphs: impl Iterator<Item = Dataset>) -> Result<f64> {
    predictor.predictions(graphs.map(Ok)).map(|prediction| Ok(f64::from(prediction?.logits[[0, 0]]))).sum()
}

/// Makes a graph of PPI's shape.
fn graph(seed: u64) -> lapidary::Result<Dataset> {
    let name = format!("graph {seed}");
    let split = SplitSizes::Fractions { train: 0.5, val: 0.0, test: 0.5 };
    let sizes = PlantedOptions {
        vertices: 2000 + 8 * (seed as usize % 100),
        classes: 121,
        mean_degree: 28.0,
        ..PlantedOptions::default()
    };
    Ok(planted(&PlantedOptions { name, feature_width: 50, split, seed, ..sizes })?)
}
