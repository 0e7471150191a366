//! Defines a network from the layer functions of the built-in models: two kinds of convolution in parallel, a layer
//! norm, and a shortcut from the features to the logits.
//!
//!     cargo run --release --example custom_model

use lapidary::model::{Norm, gcn_conv, sage_conv};
use lapidary::{Adam, Dataset, Model, Predictor, Trainer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = Dataset::builtin("planted")?;
    let (features, hidden, classes) = (data.feature_width(), 32, data.class_count());

    let model = Model::custom("two-views", &[features, classes], move |net, x, _config| {
        let smooth = gcn_conv(net, x, "gcn.0", hidden, Norm::Sym)?;
        let sharp = sage_conv(net, x, "sage.0", hidden)?;
        let both = net.add(smooth, sharp)?;
        let both = net.layer_norm(both, "norm")?;
        let both = net.relu(both)?;
        let both = net.dropout(both, 0.5)?;
        let deep = gcn_conv(net, both, "gcn.1", classes, Norm::Sym)?;
        let wide = net.linear(x, "wide", classes, false)?;
        net.add(deep, wide)
    });

    let mut trainer = Trainer::builder(&model, &data).optimizer(Adam::new(0.01).weight_decay(5e-3)).build()?;
    for _ in 0..100 {
        let epoch = trainer.step()?;
        if epoch.epoch % 25 == 0 {
            println!("epoch {:3}: loss {:.4}", epoch.epoch, epoch.loss);
        }
    }
    let best = trainer.best().ok_or("every epoch is evaluated")?.clone();
    println!("best epoch {}: test accuracy {:.1} %", best.epoch, 100.0 * best.test_accuracy.unwrap_or_default());

    // A checkpoint does not contain the code of a custom model: pass the model when you open it.
    let folder = tempfile::tempdir()?;
    trainer.save(folder.path())?;
    let again = Predictor::open_with(folder.path(), &model)?.run(&data)?;
    println!("from the checkpoint:  test accuracy {:.1} %", 100.0 * again.accuracy.test.unwrap_or_default());
    Ok(())
}
