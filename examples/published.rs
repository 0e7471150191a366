//! The networks of "Classic GNNs are strong baselines" (Luo, Shi & Wu, NeurIPS 2024), built from Lapidary's layer
//! functions: convolutions, each with an optional linear shortcut, layer norm, ReLU and dropout, and one linear layer
//! at the end.
//!
//!     cargo run --release --example published -- DIR HIDDEN LAYERS DROPOUT WEIGHT_DECAY EPOCHS SEED [shortcuts]
//!
//! Their GCNs: Amazon Computers `512 3 0.5 5e-5 1000 0`, Coauthor Physics `64 2 0.3 5e-4 1500 0 shortcuts`.

use lapidary::model::{Model, Norm, gcn_conv};
use lapidary::{Adam, Dataset, Trainer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, hidden, layers, dropout, decay, epochs, seed, rest @ ..] = &args[..] else {
        return Err("published DIR HIDDEN LAYERS DROPOUT WEIGHT_DECAY EPOCHS SEED [shortcuts]".into());
    };
    let shortcuts = rest.first().is_some_and(|word| word == "shortcuts");
    let data = Dataset::load(dir)?;
    let (hidden, layers): (usize, usize) = (hidden.parse()?, layers.parse()?);
    let classes = data.class_count();
    let model = Model::custom("published", &[data.feature_width(), classes], move |net, x, config| {
        let mut h = x;
        for layer in 0..layers {
            let mut next = gcn_conv(net, h, &format!("convs.{layer}"), hidden, Norm::Sym)?;
            if shortcuts {
                let shortcut = net.linear(h, &format!("lins.{layer}"), hidden, true)?;
                next = net.add(next, shortcut)?;
            }
            next = net.layer_norm(next, &format!("norms.{layer}"))?;
            next = net.relu(next)?;
            h = net.dropout(next, config.dropout)?;
        }
        net.linear(h, "out", classes, true)
    });
    let model = model.dropout(dropout.parse()?);
    let adam = Adam::new(0.001).weight_decay(decay.parse()?);
    let mut trainer = Trainer::builder(&model, &data).optimizer(adam).seed(seed.parse()?).build()?;
    for epoch in 1..=epochs.parse()? {
        trainer.step()?;
        if epoch % 50 == 0 {
            println!("{epoch} {:?}", trainer.best());
        }
    }
    println!("best {:?}", trainer.best());
    Ok(())
}
