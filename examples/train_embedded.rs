//! Trains inside a program: arrays in, arrays out, no files.
//!
//!     cargo run --release --example train_embedded

use lapidary::{Adam, Arrays, Dataset, Devices, Model, Trainer};
use ndarray::{Array2, Axis};

/// Returns two rings of vertices with a few edges between them. The features only weakly show a vertex's ring.
fn two_rings(size: u32) -> (Vec<(u32, u32)>, Array2<f32>, Vec<i64>) {
    let mut edges = Vec::new();
    for v in 0..2 * size {
        let (ring, place) = (v / size, v % size);
        for step in [1, 2, 3] {
            let u = ring * size + (place + step) % size;
            edges.extend([(u, v), (v, u)]);
        }
        if place % 10 == 0 {
            let other = (1 - ring) * size + place;
            edges.push((v, other));
        }
    }
    let labels: Vec<i64> = (0..2 * size).map(|v| i64::from(v / size)).collect();
    let features = Array2::from_shape_fn((2 * size as usize, 4), |(v, column)| {
        let noise = ((v * 7919 + column * 104_729) % 1000) as f32 / 500.0 - 1.0;
        let hint = if labels[v] == 0 { 0.4 } else { -0.4 };
        if column == 0 { hint + noise } else { noise }
    });
    (edges, features, labels)
}

fn main() -> Result<(), lapidary::Error> {
    let size = 500;
    let (edges, features, labels) = two_rings(size);
    let train: Vec<i64> = (0..2 * i64::from(size)).step_by(50).collect();
    let val: Vec<i64> = train.iter().map(|v| v + 7).collect();
    let test: Vec<i64> = train.iter().flat_map(|v| v + 10..v + 40).collect();

    let arrays = Arrays::edges(2 * size as usize, &edges)
        .name("two rings")
        .features(features)
        .labels(&labels)
        .train(&train)
        .val(&val)
        .test(&test);
    let data = Dataset::from_arrays(arrays)?;

    let model = Model::gcn(&[data.feature_width(), 16, data.class_count()]).dropout(0.5);
    let mut trainer = Trainer::builder(&model, &data)
        .devices(Devices::parse("auto")?)
        .optimizer(Adam::new(0.01).weight_decay(5e-4))
        .build()?;
    for _ in 0..200 {
        let epoch = trainer.step()?;
        if epoch.epoch % 50 == 0 {
            println!("epoch {:3}: loss {:.4}", epoch.epoch, epoch.loss);
        }
    }

    let logits: Array2<f32> = trainer.predictor()?.predict(&data)?;
    let largest = |row: ndarray::ArrayView1<f32>| i64::from(row[1] > row[0]);
    let predicted: Vec<i64> = logits.axis_iter(Axis(0)).map(largest).collect();
    let right = test.iter().filter(|&&v| predicted[v as usize] == labels[v as usize]).count();
    println!("{right} of {} test vertices are right", test.len());
    Ok(())
}
