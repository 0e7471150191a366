//! Compares sigmoid cross-entropy and the counts of micro-F1 with the serial `f64` reference, and with values computed
//! by hand.

use crate::common::*;
use lapidary_kernels::op::Loss;
use lapidary_kernels::{Call, Error, MatMut, MatView, MultiTargets, cpu, reference};

pub(crate) fn losses_and_counts() {
    for classes in [0, 1, 2, 7, 16, 17, 41, 121] {
        for n in [0, 1, 30, 5000] {
            let scales: &[f32] = if shapes_are_few() { &[3.0, 300.0] } else { &[0.0, 3.0, 80.0, 300.0] };
            for &scale in scales {
                let numbers = &mut Numbers((n + classes) as u64);
                let mut logits = numbers.matrix(n, classes);
                logits.data.iter_mut().for_each(|x| *x *= scale);
                let cells: Vec<u8> = (0..n * classes).map(|_| numbers.below(2) as u8).collect();
                let split: Vec<u32> = (0..n).map(|_| numbers.below(3) as u32).collect();
                let targets = MultiTargets { targets: &cells, classes, split: &split, select: 1 };
                check_counts(&logits, targets);
                let selected = split.iter().filter(|&&split| split == 1).count() as u64;
                for count in [selected, 0] {
                    check_loss(&logits, targets, count);
                }
            }
        }
    }
}

fn check_counts(logits: &Matrix, targets: MultiTargets<'_>) {
    let want = reference::count_micro(&logits.dense(), targets);
    for threads in [1, 3] {
        let rig = Rig::new(threads);
        let (cells, split) = (rig.put(targets.targets), rig.put(targets.split));
        let out = rig.put(&[u64::MAX; 3]);
        rig.launch(&call!(Loss::CountMicro(TRAIN), [rig.mat(logits), cells, split], [out], selected(1, 0))).unwrap();
        assert_eq!(rig.get::<u64>(out, 3), want, "count_micro, {} x {}", logits.rows, logits.cols);
    }
}

fn check_loss(logits: &Matrix, targets: MultiTargets<'_>, count: u64) {
    let (n, classes) = (logits.rows, logits.cols);
    let what = format!("sigmoid_cross_entropy, {n} x {classes}, count {count}");
    let got = on_any_threads(&what, |rig| {
        let (cells, split) = (rig.put(targets.targets), rig.put(targets.split));
        let (logits, loss) = (rig.mat(logits), rig.out(1, 1));
        let call = call!(Loss::SigmoidCrossEntropy(TRAIN), [logits, cells, split], [loss.slot], selected(1, count));
        rig.run(loss, &call)
    });
    // No term is negative. The exponential and the logarithm have relative errors of 3e-7 each; the rest is rounding.
    let want = reference::sigmoid_cross_entropy(&logits.dense(), targets, count);
    assert_close(&what, &got, &[want], &[want], 5);

    let what = format!("sigmoid_cross_entropy_grad, {n} x {classes}, count {count}");
    let got = on_any_threads(&what, |rig| {
        let (cells, split) = (rig.put(targets.targets), rig.put(targets.split));
        let (logits, out) = (rig.mat(logits), rig.out(n, classes));
        rig.run(out, &call!(Loss::SigmoidCrossEntropyGrad(TRAIN), [logits, cells, split], [out], selected(1, count)))
    });
    // The exponential has a relative error of 3e-7, which counts at most 1.5 times, and there are four roundings.
    let want = reference::sigmoid_cross_entropy_grad(&logits.dense(), targets, count);
    assert_close(&what, &got, &want.data, &absolute(&want.data), 5);
}

fn one_row(logits: &[f32]) -> MatView<'_> {
    MatView::new(logits, 1, logits.len()).unwrap()
}

fn first_split(targets: &[u8]) -> MultiTargets<'_> {
    MultiTargets { targets, classes: targets.len(), split: &[0], select: 0 }
}

fn loss(logits: &[f32], targets: &[u8]) -> f32 {
    cpu::sigmoid_cross_entropy(one_row(logits), first_split(targets), 1).unwrap()
}

pub(crate) fn a_logit_of_0_costs_ln_2() {
    let got = loss(&[0.0, -0.0, 0.0], &[0, 1, 1]);
    assert!((got - std::f32::consts::LN_2).abs() <= 1e-6 * got, "{got}");
}

pub(crate) fn infinite_logits_cost_nothing_or_everything() {
    let inf = f32::INFINITY;
    assert!(loss(&[inf, -inf], &[1, 0]) < 1e-37);
    assert_eq!(loss(&[inf, 0.0], &[0, 0]), inf);
    assert_eq!(loss(&[-inf, 0.0], &[1, 0]), inf);
    assert!(loss(&[f32::NAN, 0.0], &[1, 0]).is_nan());
}

pub(crate) fn the_gradient_of_extreme_logits() {
    let inf = f32::INFINITY;
    let logits = [inf, -inf, inf, -inf, f32::NAN];
    let mut out = [7.0f32; 5];
    let targets = first_split(&[0, 1, 1, 0, 0]);
    cpu::sigmoid_cross_entropy_grad(one_row(&logits), targets, 1, MatMut::new(&mut out, 1, 5).unwrap()).unwrap();
    assert_eq!(out[..2], [0.2, -0.2]);
    assert!(out[2..4].iter().all(|x| x.abs() < 1e-37) && out[4].is_nan());
}

pub(crate) fn counts_by_hand() {
    // Correct, false positive, false negative, correct; 0 and NaN are negative; a target other than 0 and 1 counts as
    // 1.
    let logits = [0.5, 0.5, -0.5, -0.5, 0.0, f32::NAN, 1.0];
    let targets = first_split(&[1, 0, 1, 0, 1, 1, 255]);
    assert_eq!(cpu::count_micro(one_row(&logits), targets).unwrap(), [2, 1, 3]);
}

pub(crate) fn targets_of_another_shape_are_refused() {
    let logits = [0.0; 6];
    let view = MatView::new(&logits, 2, 3).unwrap();
    let (cells, split) = ([0; 6], [0; 2]);
    let right = MultiTargets { targets: &cells, classes: 3, split: &split, select: 0 };
    assert!(cpu::count_micro(view, right).is_ok());
    let wrong = [
        (MultiTargets { classes: 2, ..right }, "classes"),
        (MultiTargets { targets: &cells[..5], ..right }, "targets"),
        (MultiTargets { split: &split[..1], ..right }, "split"),
    ];
    for (targets, want) in wrong {
        let mut out = [7.0; 6];
        let objections = [
            cpu::count_micro(view, targets).err(),
            cpu::sigmoid_cross_entropy(view, targets, 2).err(),
            cpu::sigmoid_cross_entropy_grad(view, targets, 2, MatMut::new(&mut out, 2, 3).unwrap()).err(),
        ];
        for objection in objections {
            assert!(matches!(objection, Some(Error::Shape { operand, .. }) if operand == want), "{objection:?}");
        }
        assert_eq!(out, [7.0; 6]);
    }
}

pub(crate) fn half_the_sum_of_squares() {
    for (n, d) in [(0, 3), (1, 1), (30, 0), (30, 17), (5000, 41)] {
        let x = Numbers((n + d) as u64).matrix(n, d);
        let what = format!("half_squares, {n} x {d}");
        let got = on_any_threads(&what, |rig| {
            let (x, out) = (rig.mat(&x), rig.out(1, 1));
            rig.run(out, &call!(Loss::HalfSquares, [x], [out.slot]))
        });
        // Added in f64 and rounded once.
        let want = reference::half_squares(&x.dense());
        assert_close(&what, &got, &[want], &[want], 2);
    }
}

pub(crate) fn rows_of_every_rest_of_a_vector_have_the_reference_loss() {
    for classes in [1, 2, 3, 15, 16, 17, 41, 64, 65] {
        for n in [1, 15, 16, 17] {
            let numbers = &mut Numbers((n * 100 + classes) as u64);
            let logits = numbers.matrix(n, classes);
            let cells: Vec<u8> = (0..n * classes).map(|_| numbers.below(2) as u8).collect();
            let split = vec![1; n];
            check_loss(&logits, MultiTargets { targets: &cells, classes, split: &split, select: 1 }, n as u64);
        }
    }
}
