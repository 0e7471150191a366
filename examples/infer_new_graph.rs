//! Trains on one graph, saves the model, and predicts on another graph that the model never saw.
//!
//!     cargo run --release --example infer_new_graph

use lapidary::dataset::generate::{PlantedOptions, planted};
use lapidary::{Adam, Model, Predictor, Trainer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The same seed draws the same class centres. The sizes differ, and so do all vertices and edges.
    let seen = planted(&PlantedOptions { vertices: 2000, seed: 1, ..PlantedOptions::default() })?;
    let unseen = planted(&PlantedOptions { vertices: 5000, seed: 1, ..PlantedOptions::default() })?;

    let model = Model::gcn(&[seen.feature_width(), 16, seen.class_count()]).dropout(0.5);
    let mut trainer = Trainer::builder(&model, &seen).optimizer(Adam::new(0.01).weight_decay(5e-4)).build()?;
    for _ in 0..100 {
        trainer.step()?;
    }
    let folder = tempfile::tempdir()?;
    trainer.save(folder.path())?;

    // In another program, on another day:
    let predictor = Predictor::open(folder.path())?;
    let prediction = predictor.run(&unseen)?;
    let percent = |share: Option<f64>| share.map_or("-".into(), |s| format!("{:.1} %", 100.0 * s));
    println!("on the graph it was trained on: {}", percent(trainer.best().and_then(|b| b.test_accuracy)));
    println!("on a graph it never saw:        {}", percent(prediction.accuracy.test));
    println!("logits: {:?}, in {:.1} ms", prediction.logits.dim(), 1e3 * prediction.seconds);
    Ok(())
}
