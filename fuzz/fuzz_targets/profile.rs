//! Profiles of devices, and a forecast for the device.
#![no_main]

use lapidary::forecast::{DryRun, Shape, Subject};
use lapidary::{Model, Profile, profile};
use lapidary_fuzz::file;
use lapidary_planner::memory::Policy;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let path = file("profile.json", bytes);
    let word = path.to_str().expect("the scratch folder has a name");
    let Ok(read) = profile::load(word) else { return };
    assert_eq!(Profile::from_json(&read.to_json()).expect("it reads what it writes"), read);
    let model = Model::gcn(&[4, 2]);
    let shape = Shape { vertices: 50, edges: 200, features: 4, classes: 2, directed: false };
    // The optimal policy may search for a second if a device has little memory.
    let dry_run = DryRun::new(&model, Subject::Shape(shape)).policies(&[Policy::Lru]);
    if let Ok(forecast) = dry_run.profile(word).run() {
        for policy in forecast.policies {
            assert!(policy.outcome.is_err() || policy.outcome.is_ok_and(|found| !found.epoch_seconds().is_nan()));
        }
    }
});
