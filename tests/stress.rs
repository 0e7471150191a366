//! A long run by itself, so that the process's memory is its own. `LAPIDARY_STRESS_EPOCHS=10000` makes it longer.

use lapidary::{Dataset, Devices, Model, Partition, Trainer};

#[test]
fn a_long_run_on_eight_devices_neither_hangs_nor_grows() {
    let data = Dataset::builtin("karate").unwrap();
    let model = Model::gcn(&[data.feature_width(), 16, data.class_count()]).dropout(0.5);
    let builder = Trainer::builder(&model, &data).devices(Devices::parse("sim:8").unwrap()).eval_every(0);
    let mut trainer = builder.partition(Partition::parse("vertices").unwrap()).build().unwrap();
    let epochs = std::env::var("LAPIDARY_STRESS_EPOCHS").map_or(300, |n| n.parse().unwrap());
    let mut early = 0;
    for epoch in 0..epochs {
        trainer.step().unwrap();
        if epoch == epochs / 4 {
            early = resident_bytes();
        }
    }
    let late = resident_bytes();
    assert!(late <= early + (8 << 20), "the process grew from {early} to {late} bytes");
}

/// What the process holds in memory; 0 where the system does not say.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = status.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    pages * 4096
}
