//! Cost models.
#![no_main]

use lapidary_cost_model::{CostModel, Operation, Work};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut model) = CostModel::from_json(&String::from_utf8_lossy(bytes)) else { return };
    let json = model.to_json();
    assert_eq!(CostModel::from_json(&json).expect("it reads what it writes").to_json(), json);
    let op = Operation::new("gather", Work::Gather { width: 41 });
    let features = [10, 100, 90, 90, 200, 0, 9000, 95];
    assert!(!model.predict(&op, &features).is_nan());
    let _ = model.observe(&op, &features, 1e-3);
    model.refit();
    let json = model.to_json();
    assert_eq!(CostModel::from_json(&json).expect("a refitted model is valid").to_json(), json);
});
