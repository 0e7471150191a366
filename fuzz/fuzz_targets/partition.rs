//! Partitions from files, and a dry run on two devices with what was accepted.
#![no_main]

use std::sync::OnceLock;

use lapidary::forecast::{DryRun, Subject};
use lapidary::{Dataset, Devices, Model, Partition, RunOptions, Trainer};
use lapidary_fuzz::{dense, file};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    static DATA: OnceLock<Dataset> = OnceLock::new();
    let data = DATA.get_or_init(dense);
    let path = file("parts.json", bytes);
    let Ok(partition) = Partition::parse(path.to_str().expect("the scratch folder has a name")) else { return };
    let model = Model::gcn(&[data.feature_width(), data.class_count()]);
    let options = RunOptions::new().devices(Devices::sim(2)).partition(partition);
    let _ = DryRun::new(&model, Subject::Data(data)).profile("h200").options(options.clone()).run();
    if let Ok(mut trainer) = Trainer::builder(&model, data).options(options).build() {
        trainer.step().expect("a partition that was accepted trains");
    }
});
