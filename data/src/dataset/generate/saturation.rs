//! Raises weights to compensate for pairs that are drawn twice.
//!
//! If ends are drawn in proportion to the wanted degrees, vertices of large degree meet repeatedly: a hub would get
//! fewer distinct neighbours than wanted. So vertices of about equal degree are put into bins, and each bin's weight is
//! raised until the expected number of distinct neighbours is the wanted one.

use std::collections::BTreeMap;

use rayon::prelude::*;

/// Bins per doubling of the degree.
const BINS: f64 = 32.0;
/// Degrees below this count as 0.
const LEAST: f64 = 1e-9;
const ROUNDS: usize = 100;
/// Relative error of a degree that is accepted.
const NEAR: f64 = 1e-3;
/// Limit of weight over degree. A vertex that should have nearly all others as neighbours would need an unlimited
/// weight.
const MOST: f64 = 50.0;

/// Vertices of about equal wanted degree.
struct Bin {
    vertices: f64,
    /// Their mean wanted degree.
    degree: f64,
    weight: f64,
}

fn key(degree: f64) -> i32 {
    (degree.log2() * BINS).floor() as i32
}

/// Turns wanted degrees into weights. `(sum of weights - singles) / 2` pairs are then drawn in proportion to the
/// weights of both ends, plus one end for each of `singles` other vertices. With these weights, the expected number of
/// distinct neighbours of a vertex is its wanted degree.
///
/// # Cost
/// O(vertices), and at most 100 times the square of the number of bins, of which there are 32 per doubling.
pub(super) fn weights(degrees: &mut [f64], singles: f64) {
    let mut bins: BTreeMap<i32, Bin> = BTreeMap::new();
    for &degree in degrees.iter().filter(|&&degree| degree >= LEAST) {
        let bin = bins.entry(key(degree)).or_insert(Bin { vertices: 0.0, degree: 0.0, weight: 0.0 });
        bin.vertices += 1.0;
        bin.degree += degree;
    }
    for bin in bins.values_mut() {
        bin.degree /= bin.vertices;
        bin.weight = bin.degree;
    }
    let (keys, mut bins): (Vec<i32>, Vec<Bin>) = bins.into_iter().unzip();
    for _ in 0..ROUNDS {
        let ratios: Vec<f64> =
            (0..bins.len()).into_par_iter().map(|at| bins[at].degree / expected(&bins, at, singles)).collect();
        for (bin, ratio) in bins.iter_mut().zip(&ratios) {
            bin.weight = (bin.weight * ratio).min(MOST * bin.degree);
        }
        if ratios.iter().all(|ratio| (ratio - 1.0).abs() < NEAR) {
            break;
        }
    }
    for degree in degrees {
        *degree = match keys.binary_search(&key(*degree)) {
            Ok(at) if *degree >= LEAST => *degree * (bins[at].weight / bins[at].degree),
            _ => 0.0,
        };
    }
}

/// Returns the expected number of distinct neighbours of a vertex in a bin.
fn expected(bins: &[Bin], at: usize, singles: f64) -> f64 {
    let total: f64 = bins.iter().map(|bin| bin.vertices * bin.weight).sum();
    let own = bins[at].weight / total;
    let pairs = (total - singles).max(0.0);
    let distinct = |(other, bin): (usize, &Bin)| {
        let others = bin.vertices - if other == at { 1.0 } else { 0.0 };
        others * -(-own * bin.weight / total * pairs).exp_m1()
    };
    let met: f64 = bins.iter().enumerate().map(distinct).sum();
    (met + singles * own).max(LEAST)
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::super::sampler::Sampler;
    use super::*;

    #[test]
    fn hubs_get_the_neighbours_that_they_should_have() {
        // 400 vertices that want 10 neighbours, 40 that want 100, 4 that want 250.
        let wanted: Vec<f64> = (0..444)
            .map(|v| {
                if v < 400 {
                    10.0
                } else if v < 440 {
                    100.0
                } else {
                    250.0
                }
            })
            .collect();
        let mean_degrees = |weights: &[f64]| {
            let sampler = Sampler::new(weights.iter().copied());
            let total: f64 = weights.iter().sum();
            let mut rng = ChaCha8Rng::seed_from_u64(5);
            let mut sums = [0.0; 3];
            const GRAPHS: usize = 20;
            for _ in 0..GRAPHS {
                let mut met = vec![[false; 444]; 444];
                for _ in 0..(total / 2.0) as usize {
                    let [u, v] = [(); 2].map(|()| sampler.item_at(rng.random::<f64>() * total));
                    (met[u][v], met[v][u]) = (u != v, u != v);
                }
                for (v, row) in met.iter().enumerate() {
                    sums[usize::from(v >= 400) + usize::from(v >= 440)] +=
                        row.iter().filter(|&&met| met).count() as f64;
                }
            }
            [sums[0] / (GRAPHS * 400) as f64, sums[1] / (GRAPHS * 40) as f64, sums[2] / (GRAPHS * 4) as f64]
        };
        let plain = mean_degrees(&wanted);
        assert!(plain[2] < 180.0, "without help hubs have too few: {plain:?}");
        let mut helped = wanted.clone();
        weights(&mut helped, 0.0);
        let helped = mean_degrees(&helped);
        for (got, want) in helped.into_iter().zip([10.0, 100.0, 250.0]) {
            assert!((got / want - 1.0).abs() < 0.03, "{helped:?}");
        }
    }
}
