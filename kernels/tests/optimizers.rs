//! Optimizer steps against the `f64` reference over many steps.

#![allow(clippy::unwrap_used)]

use crate::common::*;
use lapidary_kernels::{AdamStep, Call, SgdStep, reference};

const ADAM: AdamStep =
    AdamStep { step: 0, rate: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0, decoupled: false };

/// Parameters after each of `steps` steps, from the device.
fn adam_on_device(rig: &Rig, param: &[f32], grads: &[Vec<f32>], settings: AdamStep) -> Vec<f32> {
    let len = param.len();
    let AdamStep { rate, beta1, beta2, eps, weight_decay, decoupled, .. } = settings;
    let zeros = vec![0.0f32; len];
    let mut old = [rig.put(param), rig.put(&zeros), rig.put(&zeros)];
    let mut out = [rig.put(&zeros), rig.put(&zeros), rig.put(&zeros)];
    let rate = rig.put(&[rate as f32]);
    let mut history = Vec::new();
    for (i, grad) in grads.iter().enumerate() {
        let (grad, clock) = (rig.put(grad), rig.put(&[0u64, i as u64 + 1]));
        let [param, m, v] = old;
        let call = Call::Adam { param, grad, m, v, out, len, clock, rate, beta1, beta2, eps, weight_decay, decoupled };
        rig.launch(&call).unwrap();
        (old, out) = (out, old);
        history.extend(rig.get::<f32>(old[0], len));
    }
    history
}

fn adam_in_f64(param: &[f32], grads: &[Vec<f32>], settings: AdamStep) -> Vec<f64> {
    let mut param = wide(param);
    let (mut m, mut v) = (vec![0.0; param.len()], vec![0.0; param.len()]);
    let mut history = Vec::new();
    for (i, grad) in grads.iter().enumerate() {
        let step = AdamStep { step: i as u64 + 1, ..settings };
        reference::adam(&mut param, &wide(grad), &mut m, &mut v, step);
        history.extend(&param);
    }
    history
}

#[test]
fn adam() {
    for len in [0, 1, 17, 40_000] {
        let numbers = &mut Numbers(len as u64);
        let param = numbers.units(len);
        let grads: Vec<Vec<f32>> = (0..8).map(|_| numbers.units(len)).collect();
        let choices = [
            ADAM,
            AdamStep { weight_decay: 5e-4, ..ADAM },
            AdamStep { weight_decay: 0.1, decoupled: true, ..ADAM },
            AdamStep { rate: 0.5, beta1: 0.0, beta2: 0.5, eps: 0.1, ..ADAM },
        ];
        for settings in choices {
            let got = on_any_threads("adam", |rig| adam_on_device(rig, &param, &grads, settings));
            let want = adam_in_f64(&param, &grads, settings);
            // A step moves by about the rate, and m and v carry a few rounding errors of each step before.
            let magnitude: Vec<f64> = want.iter().map(|x| x.abs() + settings.rate).collect();
            assert_close("adam", &got, &want, &magnitude, 8 * 8);
        }
    }
}

#[test]
fn sgd() {
    for len in [0, 1, 17, 40_000] {
        for (momentum, weight_decay) in [(None, 0.0), (None, 0.1), (Some(0.9f64), 0.0), (Some(0.5), 0.01)] {
            let numbers = &mut Numbers(len as u64);
            let start = numbers.units(len);
            let grads: Vec<Vec<f32>> = (0..5).map(|_| numbers.units(len)).collect();
            let got = on_any_threads("sgd", |rig| {
                // What is in the moment before step 1 does not matter.
                let (mut param, rate) = (rig.put(&start), rig.put(&[0.1f32]));
                let mut out = rig.put(&vec![f32::NAN; len]);
                let mut moment = momentum.map(|_| [(); 2].map(|()| rig.put(&vec![f32::NAN; len])));
                for (i, grad) in grads.iter().enumerate() {
                    let (grad, clock) = (rig.put(grad), rig.put(&[0u64, i as u64 + 1]));
                    let momentum = momentum.unwrap_or(0.0);
                    let call = Call::Sgd { param, grad, moment, out, len, clock, rate, momentum, weight_decay };
                    rig.launch(&call).unwrap();
                    (param, out, moment) = (out, param, moment.map(|[old, new]| [new, old]));
                }
                rig.get(param, len)
            });
            let mut want = wide(&start);
            let mut moment = vec![f64::NAN; len];
            for (i, grad) in grads.iter().enumerate() {
                let step = SgdStep { step: i as u64 + 1, rate: 0.1, momentum: momentum.unwrap_or(0.0), weight_decay };
                let moment = momentum.map(|_| &mut moment[..]);
                reference::sgd(&mut want, &wide(grad), moment, step);
            }
            let magnitude: Vec<f64> = want.iter().map(|x| x.abs() + 1.0).collect();
            assert_close("sgd", &got, &want, &magnitude, 5 * 4);
        }
    }
}

#[test]
fn adam_first_step_moves_by_the_rate() {
    // With zero moments the first step is -rate * sign(grad), whatever the gradient's size.
    let rig = Rig::new(1);
    let got = adam_on_device(&rig, &[1.0, 1.0, 1.0], &[vec![1e-3, -10.0, 500.0]], ADAM);
    for (got, want) in got.iter().zip([0.99f32, 1.01, 0.99]) {
        assert!((got - want).abs() < 1e-6, "{got} is not {want}");
    }
}
