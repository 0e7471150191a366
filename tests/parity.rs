//! Our models compared with PyTorch Geometric's on the same weights and data: logits, loss, gradients, ten steps of
//! Adam.

use std::path::{Path, PathBuf};

use crate::common::{largest_difference, shared};
use assert_cmd::Command;
use lapidary::{Adam, Dataset, FeatureNorm, Model, Predictor, Trainer, Weights};
use ndarray::Array2;
use ndarray_npy::ReadNpyExt;

const MODELS: [&str; 6] = ["gcn", "gin", "sage", "resgcn", "gat", "gatv2"];

struct Case {
    folder: PathBuf,
    data: PathBuf,
    model: String,
    loss: f64,
    lr: f64,
    weight_decay: f64,
    losses: Vec<f64>,
}

impl Case {
    /// Opens the dataset, with the weights of edges that the case has.
    fn dataset(&self) -> Dataset {
        Dataset::open(self.folder_of_data()).unwrap()
    }

    /// Returns the folder of the dataset; a copy with the weights of edges if the case has any.
    fn folder_of_data(&self) -> PathBuf {
        let weights = self.folder.join("edge_weights.npy");
        if !weights.exists() {
            return self.data.clone();
        }
        let folder = tempfile::tempdir().unwrap();
        for file in self.data.read_dir().unwrap().map(|entry| entry.unwrap().path()) {
            std::fs::copy(&file, folder.path().join(file.file_name().unwrap())).unwrap();
        }
        std::fs::copy(weights, folder.path().join("edge_weights.npy")).unwrap();
        // The folder stays until the process ends: it is small.
        folder.keep()
    }
}

/// Returns the test cases of the built-in models.
fn cases() -> Vec<Case> {
    let keys = ["parity", "parity-edges"].map(shared);
    let (Some(keys), Some(data)) = (keys.into_iter().collect::<Option<Vec<_>>>(), shared("data")) else {
        return Vec::new();
    };
    let folders = keys.iter().flat_map(|keys| keys.read_dir().unwrap()).map(|entry| entry.unwrap().path());
    let mut folders: Vec<PathBuf> = folders.filter(|path| path.is_dir()).collect();
    folders.sort();
    let cases = folders.into_iter().filter_map(|folder| {
        let case: serde_json::Value =
            serde_json::from_slice(&std::fs::read(folder.join("case.json")).unwrap()).unwrap();
        let text = |key: &str| case[key].as_str().unwrap().to_string();
        assert_eq!(case["row_normalise_features"], true);
        MODELS.contains(&text("model").as_str()).then(|| Case {
            data: data.join(text("dataset")),
            model: text("model"),
            loss: case["loss"].as_f64().unwrap(),
            lr: case["adam"]["lr"].as_f64().unwrap(),
            weight_decay: case["adam"]["weight_decay"].as_f64().unwrap(),
            losses: case["adam"]["losses"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect(),
            folder,
        })
    });
    let cases: Vec<Case> = cases.collect();
    assert!(!cases.is_empty(), "the answer keys are there, but none is of a model that is built");
    cases
}

fn logits(path: &Path) -> Array2<f32> {
    Array2::<f32>::read_npy(std::fs::File::open(path).unwrap()).unwrap()
}

fn off_by(got: &Array2<f32>, want: &Array2<f32>) -> f64 {
    assert_eq!(got.dim(), want.dim());
    largest_difference(got.as_slice().unwrap(), want.as_slice().unwrap())
}

fn model(case: &Case) -> Model {
    let predictor = Predictor::from_weights(case.folder.join("weights.safetensors"), &case.model, None).unwrap();
    predictor.model().clone()
}

fn trainer(case: &Case, data: &Dataset, passes: &str) -> Trainer {
    let adam = Adam::new(case.lr).weight_decay(case.weight_decay);
    Trainer::builder(&model(case), data)
        .keep_gradients(true)
        .optimizer(adam)
        .feature_norm(FeatureNorm::Row)
        .weights(Weights::load(&case.folder.join("weights.safetensors")).unwrap())
        .passes(passes.parse().unwrap())
        .build()
        .unwrap()
}

#[test]
fn logits_are_pygs() {
    for case in cases() {
        let data = case.dataset();
        let want = logits(&case.folder.join("logits.npy"));
        for passes in ["none", "all"] {
            let predictor =
                Predictor::from_weights(case.folder.join("weights.safetensors"), &case.model, None).unwrap();
            let predictor = predictor.feature_norm(FeatureNorm::Row).passes(passes.parse().unwrap());
            let off = off_by(&predictor.predict(&data).unwrap(), &want);
            assert!(off < 1e-4, "{}: logits are off by {off}", case.folder.display());
        }
    }
}

#[test]
fn loss_gradients_and_ten_steps_of_adam_are_pygs() {
    for case in cases() {
        let data = case.dataset();
        for passes in ["none", "all"] {
            let mut trainer = trainer(&case, &data, passes);
            let name = case.folder.display();
            assert_eq!(case.losses.len(), 10, "{name}");
            for (step, want) in case.losses.iter().enumerate() {
                let loss = trainer.step().unwrap().loss;
                assert!((loss - want).abs() < 1e-3, "{name}: the loss of step {step} is {loss}, not {want}");
                if step > 0 {
                    continue;
                }
                assert!((loss - case.loss).abs() < 1e-5, "{name}: the loss is {loss}, not {}", case.loss);
                let want = Weights::load(&case.folder.join("grads.safetensors")).unwrap();
                let largest = |data: &[f32]| data.iter().fold(0.0, |most: f64, x| most.max(f64::from(x.abs())));
                let all = want.iter().map(|(_, want)| largest(&want.data)).fold(0.0, f64::max);
                let got = trainer.gradients().unwrap();
                assert_eq!(got.len(), want.len());
                for (parameter, want) in want.iter() {
                    let got = got.get(parameter).unwrap();
                    assert_eq!(got.shape, want.shape);
                    // A gradient that is 0 but for rounding is compared with the others: where all scores of a row have
                    // one sign, the destination's part of them has no gradient.
                    let scale = largest(&want.data).max(1e-3 * all);
                    let off = largest_difference(&got.data, &want.data) / scale;
                    assert!(off < 1e-4, "{name}: the gradient of {parameter} is off by {off}");
                }
            }
        }
    }
}

#[test]
fn infer_reads_pygs_weights() {
    for case in cases() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("logits.npy");
        let mut command = Command::cargo_bin("lapidary").unwrap();
        command.args(["infer", "--model", &case.model, "--json", "--weights"]);
        command.arg(case.folder.join("weights.safetensors")).arg("--data").arg(case.folder_of_data());
        command.arg("--out").arg(&out).args(["--feature-norm", "row"]).assert().success();
        let off = off_by(&logits(&out), &logits(&case.folder.join("logits.npy")));
        assert!(off < 1e-4, "{}: logits are off by {off}", case.folder.display());
    }
}
