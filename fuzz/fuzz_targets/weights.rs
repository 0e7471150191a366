//! Weights in safetensors files, applied to a small dataset if they fit. The first byte selects the model.
#![no_main]

use std::sync::OnceLock;

use lapidary::{Dataset, Devices, Predictor, Weights};
use lapidary_fuzz::{dense, file, scratch, selected};
use libfuzzer_sys::fuzz_target;

const MODELS: [&str; 6] = ["gcn", "gin", "sage", "graphconv", "commnet", "resgcn"];

fuzz_target!(|bytes: &[u8]| {
    static DATA: OnceLock<Dataset> = OnceLock::new();
    let data = DATA.get_or_init(dense);
    let Some((first, rest)) = selected(bytes) else { return };
    let path = file("weights.safetensors", rest);
    let Ok(weights) = Weights::load(&path) else { return };
    let again = weights.to_safetensors().expect("what was read can be written");
    let read = Weights::from_safetensors(&again, scratch()).expect("what was written can be read");
    assert_eq!(read.to_safetensors().expect("it can be written"), again);
    let Ok(predictor) = Predictor::from_weights(&path, MODELS[first % 6], None) else { return };
    let widths = &predictor.model().config().widths;
    if widths[0] == data.feature_width() && widths.len() < 20 && widths.iter().all(|&width| width < 100) {
        let _ = predictor.devices(Devices::cpu()).predict(data);
    }
});
