//! Measures live predictions: an update after a change of some features, beside a whole pass of a prepared predictor.
//!
//!     cargo run --release -p lapidary-bench --bin live -- --data DATA [--model gcn] [--hidden 128] [--layers 2] [--share 0.001]
//!
//! Each round gives some vertices, a `--share` of all that is drawn at random, the features of others. Rounds of both ways take
//! turns. Prints medians in milliseconds, how many vertices were computed again, and the largest difference of a logit to a
//! whole pass after all updates.

use std::error::Error;
use std::time::Instant;

use lapidary::dataset::Features;
use lapidary::model::ModelConfig;
use lapidary::ndarray::Array2;
use lapidary::{Arrays, Dataset, Model, Trainer};
use lapidary_bench::Flags;
use rand::seq::index::sample;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const ROUNDS: usize = 9;

fn main() -> Result<()> {
    let flags = Flags::of_program();
    let share: f64 = flags.number("--share", 0.001)?;
    let data = Dataset::load(flags.text("--data").ok_or("--data is missing")?)?;
    let (vertices, width) = (data.graph().vertex_count(), data.feature_width());
    let mut widths = vec![flags.number("--hidden", 128)?; flags.number("--layers", 2)? + 1];
    (widths[0], *widths.last_mut().expect("there are layers")) = (width, data.class_count());
    let model = Model::from_config(ModelConfig::new(flags.text("--model").unwrap_or("gcn"), &widths))?;
    let predictor = Trainer::builder(&model, &data).build()?.predictor()?;
    let mut prepared = predictor.clone().prepared();
    let mut live = predictor.live(&data)?;
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let count = ((share * vertices as f64) as usize).max(1);
    let mut features = match data.features().ok_or("there are no features")? {
        Features::Dense(dense) => dense.data().to_vec(),
        Features::Sparse(sparse) => sparse.to_dense().data().to_vec(),
    };
    let (mut passes, mut updates, mut again) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let start = Instant::now();
        prepared.predict(&data)?;
        let pass = start.elapsed().as_secs_f64();
        let changed: Vec<u32> = sample(&mut rng, vertices, count).into_iter().map(|v| v as u32).collect();
        let others: Vec<usize> = changed.iter().map(|_| rng.random_range(0..vertices)).collect();
        let rows = Array2::from_shape_fn((count, width), |(row, column)| features[others[row] * width + column]);
        for (&v, row) in changed.iter().zip(rows.rows()) {
            features[v as usize * width..][..width].copy_from_slice(row.as_slice().expect("it is row-major"));
        }
        let start = Instant::now();
        let update = live.update(&changed, rows.view())?;
        // The first round loads, plans and starts threads.
        if round > 0 {
            passes.push(pass);
            updates.push(start.elapsed().as_secs_f64());
            again.push(update.vertices.len() as f64);
        }
    }
    let arrays = Arrays::new(data.graph().clone()).directed(data.directed());
    let arrays = arrays.features(Array2::from_shape_vec((vertices, width), features)?);
    let arrays = arrays.feature_norm(data.default_feature_norm());
    let want = predictor.predict(&Dataset::from_arrays(arrays)?)?;
    let difference = live.logits().iter().zip(&want).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
    let [pass, update, again] = [passes, updates, again].map(median);
    println!(
        "{}",
        json!({
            "data": data.name(), "model": model.config().name, "widths": widths, "vertices": vertices,
            "edges": data.graph().edge_count(), "changed": count, "computed_again": again,
            "pass_ms": pass * 1e3, "update_ms": update * 1e3, "ratio": pass / update, "difference": difference,
        })
    );
    Ok(())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
