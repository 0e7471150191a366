//! A long run in its own program, so that the process's memory is its own. `LAPIDARY_STRESS_EPOCHS=10000` makes it
//! longer.

use std::process::Command;

use lapidary::{Dataset, Devices, Model, Partition, Trainer};

#[test]
#[ignore = "full: a long run"]
fn a_long_run_on_eight_devices_neither_hangs_nor_grows() {
    // It runs alone in a process, so that the memory is its own.
    const ALONE: &str = "LAPIDARY_STRESS_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let mut alone = Command::new(std::env::current_exe().unwrap());
        alone.args(["--ignored", "a_long_run_on_eight_devices_neither_hangs_nor_grows"]).env(ALONE, "1");
        let output = alone.output().unwrap();
        let [text, said] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success() && text.contains("1 passed"), "{text}{said}");
        return;
    }
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
    assert!(early > 0 || !cfg!(target_os = "linux"), "the memory of the process was not read");
    assert!(late <= early + (8 << 20), "the process grew from {early} to {late} bytes");
}

/// Returns the resident memory of the process in bytes; 0 if the system does not report it.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = status.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    pages * 4096
}
