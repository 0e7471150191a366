//! Trains one graph on two devices with too little memory for it, with exact results.
//!
//! The devices are simulated: they have their own memory with a hard limit, and count every copy.
//!
//! ```text
//! cargo run --release --example two_devices
//! ```

use lapidary::{Adam, ByteSize, Dataset, Devices, Error, Model, Partition, Trainer};

fn main() -> lapidary::Result<()> {
    let data = Dataset::builtin("planted")?;
    let model = Model::gcn(&[data.feature_width(), 32, 32, 32, data.class_count()]).dropout(0.5);
    let two = || {
        Trainer::builder(&model, &data)
            .devices(Devices::parse("sim:2").expect("sim:2 is a device"))
            .partition(Partition::parse("edges").expect("edges is a strategy"))
            .optimizer(Adam::new(0.01).weight_decay(5e-4))
    };
    let peak = two().build()?.planned_peak_device_bytes().into_iter().max().unwrap_or_default();

    println!("{:>12}  {:>12}  {:>12}  {:>10}  {:>8}", "memory", "to devices", "to host", "loss", "test");
    for percent in [100, 75, 50] {
        let mut memory = ByteSize::b(peak * percent / 100);
        let mut trainer = match two().device_memory(memory).build() {
            Err(Error::DoesNotFit { need_bytes, .. }) => {
                println!("{memory:>12}  is too little; the error says what is enough");
                memory = ByteSize::b(need_bytes);
                two().device_memory(memory).build()?
            }
            built => built?,
        };
        let mut last = trainer.step()?;
        for _ in 1..60 {
            last = trainer.step()?;
        }
        let test = trainer.best().and_then(|best| best.test_accuracy).unwrap_or_default();
        let [to_device, to_host] = [last.bytes_to_device, last.bytes_to_host].map(ByteSize::b);
        println!("{memory:>12}  {to_device:>12}  {to_host:>12}  {:>10.6}  {:>7.2}%", last.loss, 100.0 * test);
    }
    Ok(())
}
