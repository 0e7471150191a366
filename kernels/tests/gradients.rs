//! Compares every gradient with central finite differences, in `f64` on the reference functions.
//!
//! For an op `y = f(x)` and any `g`, the gradient of `sum(g * f(x))` with respect to `x` is the result of the backward
//! op on `g`.

use crate::common::*;
use lapidary_kernels::call::NO_LABEL;
use lapidary_kernels::reference::{self, Dense};
use lapidary_kernels::{DropoutKey, MultiTargets, Targets};

/// Returns an error unless `gradient` is the slope of `f` at `x` along every axis.
fn check_slopes(x: &[f64], gradient: &[f64], f: impl Fn(&[f64]) -> f64) -> Result<(), String> {
    const STEP: f64 = 1e-5;
    assert_eq!(x.len(), gradient.len());
    for i in 0..x.len() {
        let mut moved = x.to_vec();
        moved[i] = x[i] + STEP;
        let above = f(&moved);
        moved[i] = x[i] - STEP;
        let slope = (above - f(&moved)) / (2.0 * STEP);
        let error = (slope - gradient[i]).abs();
        // The third derivative contributes an error of STEP^2, cancellation one of eps / STEP.
        if error.is_nan() || error > 1e-7 * (1.0 + slope.abs()) {
            return Err(format!("axis {i}: the slope is {slope}, the gradient {}", gradient[i]));
        }
    }
    Ok(())
}

/// Returns `sum(g * y)`.
fn dot(g: &Dense, y: &Dense) -> f64 {
    assert_eq!((g.rows, g.cols), (y.rows, y.cols));
    pairs(&g.data, &y.data).map(|(g, y)| g * y).sum()
}

fn with_data(like: &Dense, data: &[f64]) -> Dense {
    Dense { data: data.to_vec(), ..*like }
}

#[test]
fn check_slopes_objects_to_one_wrong_axis() {
    let x = [0.5, -1.0, 2.0];
    let f = |x: &[f64]| x.iter().map(|x| x * x).sum();
    assert_eq!(check_slopes(&x, &[1.0, -2.0, 4.0], f), Ok(()));
    assert!(check_slopes(&x, &[1.0, -2.0, 4.001], f).unwrap_err().starts_with("axis 2"));
}

#[test]
fn gather_over_the_transposed_block() {
    let numbers = &mut Numbers(1);
    let graph = Graph::random(numbers, 9, 12, 0, 40);
    let (transposed, permutation) = graph.transpose();
    let x = numbers.matrix(12, 3).dense();
    let g = numbers.matrix(9, 3).dense();
    let weights = wide(&numbers.units(graph.edges()));
    let turned = reference::permute_edges(&weights, &permutation);
    for (weights, turned) in [(None, None), (Some(&weights[..]), Some(&turned[..]))] {
        let gradient = reference::gather(transposed.view(), turned, &g, None);
        let f = |x_data: &[f64]| dot(&g, &reference::gather(graph.view(), weights, &with_data(&x, x_data), None));
        assert_eq!(check_slopes(&x.data, &gradient.data, f), Ok(()));
    }
}

#[test]
fn linear_for_input_and_weight() {
    let numbers = &mut Numbers(2);
    let (x, weight, g) = (numbers.matrix(6, 4).dense(), numbers.matrix(3, 4).dense(), numbers.matrix(6, 3).dense());
    let gradient = reference::linear_input_grad(&g, &weight);
    let f = |data: &[f64]| dot(&g, &reference::linear(&with_data(&x, data), &weight));
    assert_eq!(check_slopes(&x.data, &gradient.data, f), Ok(()));
    let gradient = reference::linear_weight_grad(&g, &x);
    let f = |data: &[f64]| dot(&g, &reference::linear(&x, &with_data(&weight, data)));
    assert_eq!(check_slopes(&weight.data, &gradient.data, f), Ok(()));
}

#[test]
fn bias_and_row_scale() {
    let numbers = &mut Numbers(3);
    let (x, g, bias) = (numbers.matrix(7, 4).dense(), numbers.matrix(7, 4).dense(), wide(&numbers.units(4)));
    let f = |bias: &[f64]| dot(&g, &reference::add_bias(&x, bias));
    assert_eq!(check_slopes(&bias, &reference::column_sum(&g), f), Ok(()));
    let scale = wide(&numbers.units(7));
    let f = |data: &[f64]| dot(&g, &reference::row_scale(&with_data(&x, data), &scale));
    assert_eq!(check_slopes(&x.data, &reference::row_scale(&g, &scale).data, f), Ok(()));
}

#[test]
fn relu_and_dropout() {
    let numbers = &mut Numbers(4);
    let (x, g) = (numbers.matrix(20, 5).dense(), numbers.matrix(20, 5).dense());
    let gradient = reference::relu_grad(&g, &reference::relu(&x));
    let f = |data: &[f64]| dot(&g, &reference::relu(&with_data(&x, data)));
    assert_eq!(check_slopes(&x.data, &gradient.data, f), Ok(()));
    let key = DropoutKey { seed: 5, op: 0, first_row: 9, first_column: 0, rate: 0.4 };
    let f = |data: &[f64]| dot(&g, &reference::dropout(&with_data(&x, data), key, 3));
    assert_eq!(check_slopes(&x.data, &reference::dropout(&g, key, 3).data, f), Ok(()));
}

#[test]
fn layer_norm_for_input_gain_and_bias() {
    let numbers = &mut Numbers(6);
    let (x, g) = (numbers.matrix(6, 5).dense(), numbers.matrix(6, 5).dense());
    let (gain, bias) = (wide(&numbers.units(5)), wide(&numbers.units(5)));
    let eps = 0.1;
    let gradient = reference::layer_norm_input_grad(&g, &x, &gain, eps);
    let f = |data: &[f64]| dot(&g, &reference::layer_norm(&with_data(&x, data), &gain, &bias, eps));
    assert_eq!(check_slopes(&x.data, &gradient.data, f), Ok(()));
    let gradient = reference::layer_norm_gain_grad(&g, &x, eps);
    let f = |gain: &[f64]| dot(&g, &reference::layer_norm(&x, gain, &bias, eps));
    assert_eq!(check_slopes(&gain, &gradient, f), Ok(()));
    let f = |bias: &[f64]| dot(&g, &reference::layer_norm(&x, &gain, bias, eps));
    assert_eq!(check_slopes(&bias, &reference::column_sum(&g), f), Ok(()));
}

#[test]
fn sigmoid_cross_entropy() {
    let numbers = &mut Numbers(7);
    let logits = numbers.matrix(8, 5).dense().map(|x| 6.0 * x);
    let cells: Vec<u8> = (0..40).map(|_| numbers.below(2) as u8).collect();
    let split = [0, 0, 0, 2, 1, 0, 0, 0];
    let targets = MultiTargets { targets: &cells, classes: 5, split: &split, select: 0 };
    let gradient = reference::sigmoid_cross_entropy_grad(&logits, targets, 6);
    let f = |data: &[f64]| reference::sigmoid_cross_entropy(&with_data(&logits, data), targets, 6);
    assert_eq!(check_slopes(&logits.data, &gradient.data, f), Ok(()));
    for unselected in [3, 4] {
        assert!(gradient.row(unselected).iter().all(|&x| x == 0.0));
    }
}

#[test]
fn softmax_cross_entropy() {
    let numbers = &mut Numbers(5);
    let logits = numbers.matrix(8, 5).dense().map(|x| 4.0 * x);
    let labels = [0, 1, 4, NO_LABEL, 2, 3, 5, 1];
    let split = [0, 0, 0, 0, 1, 0, 0, 0];
    let targets = Targets { labels: &labels, split: &split, select: 0 };
    for weights in [None, Some(&[0.5, 2.0, 1.0, 0.0, 3.0][..])] {
        let gradient = reference::softmax_cross_entropy_grad(&logits, targets, weights, 5);
        let f = |data: &[f64]| reference::softmax_cross_entropy(&with_data(&logits, data), targets, weights, 5);
        assert_eq!(check_slopes(&logits.data, &gradient.data, f), Ok(()));
        for unselected in [3, 4, 6] {
            assert!(gradient.row(unselected).iter().all(|&x| x == 0.0));
        }
    }
}
