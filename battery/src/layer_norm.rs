//! Compares layer normalisation with the serial `f64` reference, and checks its defining properties.

use crate::common::*;
use lapidary_kernels::op::Norm;
use lapidary_kernels::reference::Dense;
use lapidary_kernels::{Call, Error, cpu, reference};
use lapidary_kernels::{MatMut, MatView};

const EPS: f32 = 1e-5;

/// Returns random rows, including constant ones and some far from 0.
fn hostile_rows(numbers: &mut Numbers, n: usize, d: usize) -> Matrix {
    let mut x = numbers.matrix(n, d);
    for (r, row) in x.data.chunks_exact_mut(d.max(1)).enumerate() {
        match r % 7 {
            1 => row.fill(0.3),
            2 => row.iter_mut().for_each(|x| *x += 1000.0),
            3 => row.iter_mut().for_each(|x| *x *= 1e-4),
            4 => row.iter_mut().for_each(|x| *x *= 1e15),
            _ => {}
        }
    }
    x
}

/// Returns the allowed error of each cell in units of `f32` rounding: one rounding of the result, plus the `f64`
/// rounding of the terms.
fn magnitude(want: &[f64], terms: &[f64]) -> Vec<f64> {
    pairs(want, terms).map(|(want, terms)| want.abs() + 1e-6 * terms.abs()).collect()
}

pub(crate) fn layer_norm_and_its_gradients() {
    for d in WIDTHS {
        for n in [0, 1, 7, 1030, 2500] {
            let numbers = &mut Numbers((n * 1000 + d) as u64);
            let (x, grad) = (hostile_rows(numbers, n, d), numbers.matrix(n, d));
            let (gain, bias) = (numbers.units(d), numbers.units(d));
            let (dx, dg, eps) = (x.dense(), grad.dense(), f64::from(EPS));

            let what = format!("layer_norm, {n} x {d}");
            let got = on_any_threads(&what, |rig| {
                let (gain, bias, out) = (rig.put(&gain), rig.put(&bias), rig.out(n, d));
                rig.run(out, &call!(Norm::Layer { eps: EPS }, [rig.mat(&x), gain, bias], [out]))
            });
            let want = reference::layer_norm(&dx, &wide(&gain), &wide(&bias), eps);
            assert_close(&what, &got, &want.data, &magnitude(&want.data, &vec![1.0; n * d]), 0);

            let what = format!("layer_norm_input_grad, {n} x {d}");
            let got = on_any_threads(&what, |rig| {
                let (grad, x, gain, out) = (rig.mat(&grad), rig.mat(&x), rig.put(&gain), rig.out(n, d));
                rig.run(out, &call!(Norm::InputGrad { eps: EPS }, [grad, x, gain], [out]))
            });
            let want = reference::layer_norm_input_grad(&dg, &dx, &wide(&gain), eps);
            let terms = row_scales(&dx, eps);
            assert_close(&what, &got, &want.data, &magnitude(&want.data, &terms.data), 0);

            let what = format!("layer_norm_gain_grad, {n} x {d}");
            let got = on_any_threads(&what, |rig| {
                let out = rig.out(1, d);
                rig.run(out, &call!(Norm::GainGrad { eps: EPS }, [rig.mat(&grad), rig.mat(&x)], [out.slot]))
            });
            let want = reference::layer_norm_gain_grad(&dg, &dx, eps);
            assert_close(&what, &got, &want, &magnitude(&want, &vec![n as f64; d]), 0);
        }
    }
}

/// Returns `1 / sqrt(variance + eps)` in every cell of a row: the size of a row's gradient if `grad` and `gain` are
/// about 1.
fn row_scales(x: &Dense, eps: f64) -> Dense {
    let scale = |row: &[f64]| {
        let d = row.len() as f64;
        let mean = row.iter().sum::<f64>() / d;
        (row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / d + eps).sqrt().recip()
    };
    let scales: Vec<f64> = (0..x.rows).map(|r| scale(x.row(r))).collect();
    Dense::from_fn(x.rows, x.cols, |r, _| scales[r])
}

fn normalised(x: &Matrix, eps: f32) -> Vec<f32> {
    let (gain, bias) = (vec![1.0; x.cols], vec![0.0; x.cols]);
    let mut out = vec![f32::NAN; x.data.len()];
    let view = MatView::new(&x.data, x.rows, x.cols).unwrap();
    cpu::layer_norm(view, &gain, &bias, eps, MatMut::new(&mut out, x.rows, x.cols).unwrap()).unwrap();
    out
}

pub(crate) fn rows_have_mean_0_and_variance_1_wherever_they_lay() {
    let near = Numbers(3).matrix(50, 64);
    // Multiples of 2^-10, so that adding 2^12 is exact.
    let near = Matrix { data: near.data.iter().map(|x| (x * 1024.0).round() / 1024.0).collect(), ..near };
    let far = Matrix { data: near.data.iter().map(|x| x + 4096.0).collect(), ..near };
    let got = normalised(&near, 0.0);
    assert_eq!(compare(&normalised(&far, 0.0), &wide(&got), &absolute(&wide(&got)), 0), Ok(()));
    for row in got.chunks_exact(64) {
        let mean = wide(row).iter().sum::<f64>() / 64.0;
        let variance = wide(row).iter().map(|x| x * x).sum::<f64>() / 64.0;
        assert!(mean.abs() < 1e-6 && (variance - 1.0).abs() < 1e-6, "mean {mean}, variance {variance}");
    }
}

pub(crate) fn a_constant_row_becomes_the_bias() {
    let x = Matrix { rows: 3, cols: 41, data: vec![0.1; 123] };
    assert!(normalised(&x, EPS).iter().all(|&x| x == 0.0));
}

pub(crate) fn not_a_number_stays_in_its_row() {
    let mut x = Numbers(4).matrix(3, 20);
    x.data[25] = f32::NAN;
    let got = normalised(&x, EPS);
    assert!(got[20..40].iter().all(|x| x.is_nan()));
    assert!(got[..20].iter().chain(&got[40..]).all(|x| x.is_finite()));
}

pub(crate) fn an_eps_below_0_is_refused() {
    let rig = Rig::new(1);
    let (x, v, out) = (rig.mat(&Numbers(5).matrix(2, 3)), rig.put(&[1.0f32; 3]), rig.out(2, 3));
    for eps in [-1e-9, f32::NAN] {
        let calls = [
            call!(Norm::Layer { eps }, [x, v, v], [out]),
            call!(Norm::InputGrad { eps }, [x, x, v], [out]),
            call!(Norm::GainGrad { eps }, [x, x], [out.slot]),
        ];
        for call in calls {
            let objection = rig.launch(&call).unwrap_err();
            assert!(matches!(objection, Error::Argument { operand: "eps", .. }), "{objection}");
        }
    }
    assert!(rig.get::<f32>(out.slot, 6).iter().all(|x| x.is_nan()));
}
