//! Times one epoch of training for each model, on a planted graph of 50,000 vertices.
//!
//!     cargo bench -p lapidary-bench --bench epoch

use lapidary::dataset::generate::{PlantedOptions, planted};
use lapidary::model::ModelConfig;
use lapidary::{Dataset, Model, Trainer};

fn main() {
    divan::main();
}

fn data() -> Dataset {
    let options =
        PlantedOptions { vertices: 50_000, mean_degree: 16.0, feature_width: 128, ..PlantedOptions::default() };
    planted(&options).expect("the options are good")
}

#[divan::bench(args = ["gcn", "gin", "sage", "commnet", "resgcn"], sample_count = 20)]
fn hidden_64(bencher: divan::Bencher<'_, '_>, model: &str) {
    let data = data();
    let widths = [data.feature_width(), 64, data.class_count()];
    let model = Model::from_config(ModelConfig::new(model, &widths)).expect("it is built in").dropout(0.5);
    let mut trainer = Trainer::builder(&model, &data).eval_every(0).build().expect("it fits");
    let first = trainer.step().expect("it trains").loss;
    bencher.bench_local(|| trainer.step().expect("it trains"));
    let last = trainer.step().expect("it trains").loss;
    assert!(last < first, "an epoch that does not learn is not worth timing: {first} to {last}");
}
