//! Random labels, features around class centroids, and splits of generated graphs.

use rand::Rng;
use rand::seq::SliceRandom;
use rand_distr::{Distribution, StandardNormal};
use rayon::prelude::*;

use super::{Purpose, SplitSizes, stream};
use crate::dataset::split::{NONE, TEST, TRAIN, VAL};

/// Number of vertices of one random stream.
const CHUNK: usize = 1 << 14;

/// Draws a class for each vertex, all equally likely.
pub(super) fn labels(vertices: usize, classes: usize, seed: u64) -> Vec<u32> {
    let mut labels = vec![0u32; vertices];
    labels.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, labels)| {
        let mut rng = stream(seed, Purpose::Labels, chunk as u64);
        labels.fill_with(|| rng.random_range(0..classes as u32));
    });
    labels
}

/// Draws features `[vertices, width]`: the centroid of the class plus noise of unit variance. Centroids are normal with
/// standard deviation `signal`.
pub(super) fn features(labels: &[u32], classes: usize, width: usize, signal: f64, seed: u64) -> Vec<f32> {
    let mut rng = stream(seed, Purpose::Centroids, 0);
    let mut normal = || -> f64 { StandardNormal.sample(&mut rng) };
    let centroids: Vec<f32> = (0..classes * width).map(|_| (normal() * signal) as f32).collect();
    let mut features = vec![0f32; labels.len() * width];
    if width == 0 {
        return features;
    }
    features.par_chunks_mut(CHUNK * width).enumerate().for_each(|(chunk, rows)| {
        let mut rng = stream(seed, Purpose::Features, chunk as u64);
        for (row, &label) in rows.chunks_exact_mut(width).zip(&labels[chunk * CHUNK..]) {
            let centroid = &centroids[label as usize * width..][..width];
            for (x, &center) in row.iter_mut().zip(centroid) {
                let noise: f32 = StandardNormal.sample(&mut rng);
                *x = center + noise;
            }
        }
    });
    features
}

/// Draws the split of each vertex.
pub(super) fn split(labels: &[u32], classes: usize, sizes: &SplitSizes, seed: u64) -> Vec<u32> {
    let vertices = labels.len();
    let mut order: Vec<u32> = (0..vertices as u32).collect();
    order.shuffle(&mut stream(seed, Purpose::Split, 0));
    let mut split = vec![NONE; vertices];
    let (val, test) = match *sizes {
        SplitSizes::PerClass { train, val, test } => {
            let mut left = vec![train; classes];
            for &v in &order {
                let left = &mut left[labels[v as usize] as usize];
                if *left > 0 {
                    *left -= 1;
                    split[v as usize] = TRAIN;
                }
            }
            (val, test)
        }
        SplitSizes::Fractions { train, val, test } => {
            let share = |fraction: f64| (fraction * vertices as f64).round() as usize;
            for &v in order.iter().take(share(train)) {
                split[v as usize] = TRAIN;
            }
            (share(val), share(test))
        }
    };
    let free: Vec<u32> = order.into_iter().filter(|&v| split[v as usize] == NONE).collect();
    for (at, &v) in free.iter().enumerate().take(val.saturating_add(test)) {
        split[v as usize] = if at < val { VAL } else { TEST };
    }
    split
}
