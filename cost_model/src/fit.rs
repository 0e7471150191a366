//! The regression: non-negative weights that stay near the prior unless samples contradict it.
//!
//! Each sample is a row, divided by its seconds, so that errors are relative and a small range counts as much as a
//! large one. (This is a weighted row, scaled by the root of its weight.) Columns are scaled to norm 1. The prior adds
//! one more row per column.
//!
//! Ranges of the same graph look alike: they all have a similar number of neighbours per row and a similar miss rate.
//! So many different weights explain them equally well, and most of these weights are far off on a graph that looks
//! different. Therefore the samples first determine a common factor for the whole prior. Single weights then move only
//! as far as this explains the samples better: the larger the remaining error, the higher the penalty for a departure.
//! (The factor excludes the constant per call. Otherwise the time of equal parts would be spread over both in the same
//! way, since equal parts cannot tell them apart.)

use ndarray::{Array1, Array2, ArrayView1};

use crate::cache::CERTAIN;
use crate::feature::{FEATURES, Feature, Features};
use crate::nnls::active_set;
use crate::op::{Weights, Work};

/// Smallest assumed relative error of a measured time, however well the weights explain the samples.
const LEAST_NOISE: f64 = 0.005;

/// Assumed relative error before the first fit.
const FIRST_NOISE: f64 = 0.1;

/// Most samples that count as independent: ranges of a graph share properties that the features do not capture.
const INDEPENDENT: f64 = 8.0;

/// For a feature whose prior weight is unknown: the share of the time of an uncached row that it may cost per
/// neighbour.
const UNKNOWN: f64 = 0.25;

/// Fits an operation's weights to measured seconds.
///
/// A weight whose column is 0 in all samples keeps the prior's value.
pub(crate) fn fit(work: Work, samples: &[(Features, f64)], prior: &Weights) -> Weights {
    let mut used: Vec<usize> = (0..=FEATURES.len()).filter(|&c| c == 0 || work.uses(FEATURES[c - 1])).collect();
    let rate = |column: usize, (features, seconds): &(Features, f64)| match column {
        0 => 1.0 / seconds,
        _ => features[column - 1] as f64 / seconds,
    };
    used.retain(|&column| samples.iter().any(|sample| rate(column, sample) > 0.0));
    let (m, k) = (samples.len(), used.len());
    let centre = centre(samples, prior);
    let mut rows = Array2::zeros((m + k, k));
    let mut target = Array1::ones(m + k);
    let mut scales = Vec::with_capacity(k);
    for (j, &column) in used.iter().enumerate() {
        let rates: Array1<f64> = samples.iter().map(|sample| rate(column, sample)).collect();
        // Two steps, so that squares neither overflow nor underflow.
        let largest = rates.fold(0.0f64, |largest, &rate| largest.max(rate));
        let scale = largest * (&rates / largest).mapv(|rate| rate * rate).sum().sqrt();
        rows.column_mut(j).iter_mut().zip(&rates).for_each(|(cell, rate)| *cell = rate / scale);
        scales.push(scale);
    }
    // A column about which nothing is known may take any share of the time.
    let doubts = used.iter().zip(&scales).map(|(&column, scale)| match doubt(column, samples, &centre) {
        doubt if doubt > 0.0 => doubt,
        _ => (m as f64).sqrt() / scale,
    });
    let doubts: Vec<f64> = doubts.collect();
    let mut noise = FIRST_NOISE;
    let mut fitted = *prior;
    // Each fit gives a better estimate of how well the samples can be explained at all.
    for _ in 0..3 {
        for (j, &column) in used.iter().enumerate() {
            let strength = noise * (m as f64 / INDEPENDENT).max(1.0).sqrt() / doubts[j];
            rows[[m + j, j]] = strength / scales[j];
            target[m + j] = strength * value(&centre, column);
        }
        let scaled = active_set(&rows, &target);
        let residual = rows.dot(&ArrayView1::from(&scaled)) - &target;
        let left = residual.iter().take(m).map(|left| left * left).sum::<f64>() / m.max(1) as f64;
        noise = left.sqrt().max(LEAST_NOISE);
        for ((&column, scaled), scale) in used.iter().zip(scaled).zip(&scales) {
            let weight = scaled / scale;
            // A file could have samples that exceed the range of f64.
            if weight.is_finite() {
                *value_mut(&mut fitted, column) = weight;
            }
        }
    }
    fitted
}

/// Returns the prior with the weights of all features multiplied by the median of measured over predicted seconds.
fn centre(samples: &[(Features, f64)], prior: &Weights) -> Weights {
    let believed = Weights { per_call_s: 0.0, ..*prior };
    let mut factors: Vec<f64> = samples
        .iter()
        .map(|(features, seconds)| seconds / believed.seconds(features))
        .filter(|f| f.is_finite())
        .collect();
    factors.sort_by(f64::total_cmp);
    let factor = factors.get(factors.len() / 2).copied().unwrap_or(1.0);
    Weights { per_feature_s: prior.per_feature_s.map(|weight| weight * factor), ..*prior }
}

/// Returns how far a weight may be from the centre: by its own value, or by what an unknown cost per neighbour may add.
fn doubt(column: usize, samples: &[(Features, f64)], centre: &Weights) -> f64 {
    let itself = value(centre, column);
    if column == 0 || FEATURES[column - 1] == Feature::Vertices {
        return itself;
    }
    let place = |feature| FEATURES.iter().position(|&f| f == feature).expect("it is listed");
    let neighbours = place(Feature::Neighbours);
    let missing = [Feature::Misses, Feature::PageMisses].map(|misses| centre.per_feature_s[place(misses)]);
    let row_s = centre.per_feature_s[neighbours] + f64::from(CERTAIN) * (missing[0] + missing[1]);
    // Share of the neighbours for which the feature is counted.
    let total = |feature: usize| samples.iter().map(|(features, _)| features[feature] as f64).sum::<f64>();
    itself.max(UNKNOWN * row_s * total(neighbours) / total(column - 1))
}

fn value(weights: &Weights, column: usize) -> f64 {
    if column == 0 { weights.per_call_s } else { weights.per_feature_s[column - 1] }
}

fn value_mut(weights: &mut Weights, column: usize) -> &mut f64 {
    if column == 0 { &mut weights.per_call_s } else { &mut weights.per_feature_s[column - 1] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    const GATHER: Work = Work::Gather { width: 41 };

    fn prior() -> Weights {
        Weights { per_call_s: 1e-6, per_feature_s: [2e-8, 3e-9, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0] }
    }

    /// Returns ranges whose features vary independently, from numbers in 0 .. 1.
    fn features(draws: &[f64]) -> Features {
        let scale = [3e4, 1e6, 8e5, 9e5, 2e6, 2e8, 1e8, 3e5];
        std::array::from_fn(|i| (scale[i] * (0.05 + draws[i])) as u64)
    }

    prop_compose! {
        fn ranges(most: usize)(draws in proptest::collection::vec(proptest::collection::vec(0.0f64..1.0, 8), 1..most)) -> Vec<Features> {
            draws.iter().map(|draws| features(draws)).collect()
        }
    }

    proptest! {
        // The bounds below hold for nearly all samples, not for all: with the same seed, every run has the same samples.
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

        #[test]
        fn weights_are_never_negative(ranges in ranges(12), seconds in proptest::collection::vec(1e-9f64..1e3, 12)) {
            let samples: Vec<_> = ranges.into_iter().zip(seconds).collect();
            let fitted = fit(GATHER, &samples, &prior());
            let all = [fitted.per_call_s].into_iter().chain(fitted.per_feature_s);
            prop_assert!(all.clone().all(|w| w >= 0.0 && w.is_finite()), "{:?}", fitted);
        }

        #[test]
        fn planted_weights_are_recovered_from_noisy_samples(
            planted in proptest::array::uniform8(0.1f64..1.0),
            noise in proptest::collection::vec(-0.01f64..0.01, 200),
            draws in proptest::collection::vec(proptest::collection::vec(0.0f64..1.0, 8), 200),
        ) {
            // Each feature has a similar share of the time.
            let typical = features(&[0.5; 8]).map(|count| count as f64);
            let planted = Weights { per_call_s: 0.0, per_feature_s: std::array::from_fn(|i| 1e-3 * planted[i] / typical[i]) };
            let samples = draws.iter().zip(noise).map(|(draws, noise)| {
                let features = features(draws);
                (features, planted.seconds(&features) * (1.0 + noise))
            });
            let fitted = fit(GATHER, &samples.collect::<Vec<_>>(), &prior());
            for (got, want) in fitted.per_feature_s.iter().zip(planted.per_feature_s) {
                prop_assert!((got / want - 1.0).abs() < 0.15, "{:?} is not {:?}", fitted, planted);
            }
        }

        #[test]
        fn collinear_features_do_not_blow_up(scale in 1u64..9, draws in proptest::collection::vec(0.1f64..1.0, 3..20)) {
            // Runs, accesses and wide accesses are all multiples of the neighbours, and so are the vertices.
            let samples: Vec<_> = draws.iter().map(|draw| {
                let e = (draw * 1e6) as u64 * 10;
                ([e / 10, e, e, e, scale * e, 255 * e, 99 * e, e], e as f64 * 5e-9)
            }).collect();
            let fitted = fit(GATHER, &samples, &prior());
            let (unseen, want) = ([1_000_000, 10_000_000, 10_000_000, 10_000_000, 10_000_000 * scale, 2_550_000_000, 990_000_000, 10_000_000], 0.05);
            prop_assert!((fitted.seconds(&unseen) / want - 1.0).abs() < 0.01, "{:?}", fitted);
            // No weight may explain more than the whole time.
            for (weight, count) in fitted.per_feature_s.iter().zip(unseen) {
                prop_assert!(weight * count as f64 <= want * 1.01);
            }
        }
    }

    #[test]
    fn the_prior_rules_without_samples_and_fades_with_many() {
        assert_eq!(fit(GATHER, &[], &prior()), prior());
        let truth = Weights { per_call_s: 1e-6, per_feature_s: [1e-7, 1e-8, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0] };
        let error = |count: usize| {
            let draws =
                |i: usize| std::array::from_fn::<f64, 8, _>(|j| ((7 * i + 3 * j * j + i * j) % 19) as f64 / 19.0);
            let samples = (0..count).map(|i| features(&draws(i))).map(|features| (features, truth.seconds(&features)));
            let fitted = fit(GATHER, &samples.collect::<Vec<_>>(), &prior());
            let unseen = [1000, 10, 0, 0, 0, 0, 0, 0]; // a mix that no sample has
            (fitted.seconds(&unseen) / truth.seconds(&unseen) - 1.0).abs()
        };
        let errors = [1, 20, 300].map(error);
        assert!(errors[0] > 0.2 && errors[1] < 0.05 && errors[2] < 0.005, "{errors:?}");
    }

    #[test]
    fn equal_parts_do_not_make_a_constant_of_their_time() {
        let samples: Vec<_> =
            (0..4).map(|i| ([1000, 20_000 + i, 19_000, 19_000, 19_000, 0, 5_000_000, 16_000], 2e-3)).collect();
        let fitted = fit(GATHER, &samples, &prior());
        assert!(fitted.per_call_s < 2e-6, "{fitted:?}");
        let half = samples[0].0.map(|count| count / 2);
        assert!((fitted.seconds(&half) / 1e-3 - 1.0).abs() < 0.02, "{fitted:?}");
    }

    #[test]
    fn what_follows_no_edges_depends_on_vertices_alone() {
        let samples: Vec<_> =
            (1..9u64).map(|i| ([i * 1000, i * i * 977, i * i * 800, 1, 0, 0, 0, 0], i as f64 * 1e-4)).collect();
        let fitted = fit(Work::Product { k: 64, m: 16 }, &samples, &prior());
        assert!((fitted.per_feature_s[0] / 1e-7 - 1.0).abs() < 0.01);
        assert_eq!(fitted.per_feature_s[1..], prior().per_feature_s[1..]);
    }
}
