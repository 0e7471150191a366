//! Asks what a training would need, without any data: Reddit's shape on one GPU with less and less memory.
//!
//! ```text
//! cargo run --release --example plan_dry_run
//! ```

use lapidary::forecast::{DryRun, Shape, Subject};
use lapidary::{ByteSize, MemoryPolicy, Model};

fn main() -> lapidary::Result<()> {
    let shape = Shape { vertices: 232_965, edges: 114_615_892, features: 602, classes: 41, directed: false };
    let model = Model::gcn(&[602, 256, 41]).dropout(0.5);
    let dry_run = DryRun::new(&model, Subject::Shape(shape)).profile("h200").policies(&[MemoryPolicy::Optimal]);

    println!("{:>12}  {:>12}  {:>12}  {:>10}", "memory", "to device", "to host", "epoch");
    for memory in [ByteSize::gib(4), ByteSize::mib(1800), ByteSize::mib(1600), ByteSize::mib(1400)] {
        let forecast = dry_run.clone().device_memory(memory).run()?;
        match &forecast.policies[0].outcome {
            Ok(plan) => {
                let [to_device, to_host] = plan.bytes().map(ByteSize::b);
                let epoch_ms = 1e3 * plan.epoch_seconds();
                println!("{memory:>12}  {to_device:>12}  {to_host:>12}  {epoch_ms:>7.1} ms");
            }
            Err(needed) => println!("{memory:>12}  is too little: it takes {}", ByteSize::b(*needed)),
        }
    }
    Ok(())
}
