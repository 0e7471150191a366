//! A program to begin with: it trains a network on a dataset, saves it, and applies it.
//!
//!     cargo run --release -- my-graph            # a dataset directory; without one, a built-in graph

use std::error::Error;

use lapidary::model::ModelConfig;
use lapidary::{Adam, Dataset, Devices, Model, Predictor, Suggested, Trainer};

fn main() -> Result<(), Box<dyn Error>> {
    // A dataset is a directory of .npy files (`lapidary data import` makes one), or arrays: `Dataset::from_arrays`.
    let name = std::env::args().nth(1).unwrap_or_else(|| "builtin:planted".into());
    let data = Dataset::load(&name)?;

    // Settings to begin with on this dataset. Change whatever you know better.
    let suggested = Suggested::of(&ModelConfig::new("gcn", &[1, 1]), &data);
    let model = Model::gcn(&[data.feature_width(), suggested.hidden, data.class_count()]).dropout(0.5);

    let mut trainer = Trainer::builder(&model, &data)
        // All GPUs, else the CPU. Others: "cpu", "cuda:0,1".
        .devices(Devices::parse("auto")?)
        // With less memory than the network needs, parts of it wait in the host's:
        // .device_memory("2GiB".parse()?)
        .optimizer(Adam::new(suggested.learning_rate).weight_decay(5e-4))
        .feature_norm(suggested.feature_norm)
        .epochs(suggested.epochs)
        .build()?;
    for _ in 0..suggested.epochs {
        let epoch = trainer.step()?;
        if epoch.epoch % 50 == 0 {
            println!("epoch {:3}: loss {:.4}", epoch.epoch, epoch.loss);
        }
        let best = trainer.best().map_or(0, |best| best.epoch);
        if suggested.early_stop.is_some_and(|patience| epoch.epoch - best >= patience) {
            break;
        }
    }
    if let Some(best) = trainer.best() {
        println!("best epoch {}: test accuracy {:.1} %", best.epoch, 100.0 * best.test_accuracy.unwrap_or(f64::NAN));
    }

    // A checkpoint is a folder. `lapidary infer --checkpoint run --data other` reads it, too.
    let folder = std::env::temp_dir().join(format!("lapidary-run-{}", std::process::id()));
    trainer.save(&folder)?;
    let logits = Predictor::open(&folder)?.predict(&data)?;
    println!("{} vertices have {} logits each; the network is in {}", logits.nrows(), logits.ncols(), folder.display());
    Ok(())
}
