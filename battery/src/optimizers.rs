//! Compares optimizer steps with the `f64` reference over many steps.

use crate::common::*;
use lapidary_kernels::{AdamStep, Call, Error, SgdStep, Slot, Window, reference};

const ADAM: AdamStep =
    AdamStep { step: 0, rate: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0, decoupled: false };

/// Returns the parameters after `steps` steps on the device.
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
        let window = Window { first: 0, len };
        let call = adam_call([param, grad, m, v, clock, rate], out, window, beta1, beta2, eps, weight_decay, decoupled);
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

pub(crate) fn adam() {
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
            // A step moves a parameter by about the rate, and m and v carry a few rounding errors from each step
            // before.
            let magnitude: Vec<f64> = want.iter().map(|x| x.abs() + settings.rate).collect();
            assert_close("adam", &got, &want, &magnitude, 8 * 8);
        }
    }
}

pub(crate) fn sgd() {
    for len in [0, 1, 17, 40_000] {
        for (momentum, weight_decay) in [(None, 0.0), (None, 0.1), (Some(0.9f64), 0.0), (Some(0.5), 0.01)] {
            let numbers = &mut Numbers(len as u64);
            let start = numbers.units(len);
            let grads: Vec<Vec<f32>> = (0..5).map(|_| numbers.units(len)).collect();
            let got = on_any_threads("sgd", |rig| {
                // The value of the moment before step 1 does not matter.
                let (mut param, rate) = (rig.put(&start), rig.put(&[0.1f32]));
                let mut out = rig.put(&vec![f32::NAN; len]);
                let mut moment = momentum.map(|_| [(); 2].map(|()| rig.put(&vec![f32::NAN; len])));
                for (i, grad) in grads.iter().enumerate() {
                    let (grad, clock) = (rig.put(grad), rig.put(&[0u64, i as u64 + 1]));
                    let momentum = momentum.unwrap_or(0.0);
                    let window = Window { first: 0, len };
                    let call = sgd_call(param, grad, moment, out, window, clock, rate, momentum, weight_decay);
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

pub(crate) fn adam_first_step_moves_by_the_rate() {
    // With zero moments, the first step is -rate * sign(grad) for any size of the gradient.
    let rig = Rig::new(1);
    let got = adam_on_device(&rig, &[1.0, 1.0, 1.0], &[vec![1e-3, -10.0, 500.0]], ADAM);
    for (got, want) in pairs(&got, &[0.99f32, 1.01, 0.99]) {
        assert!((got - want).abs() < 1e-6, "{got} is not {want}");
    }
}

/// Returns the outputs of an update, new parameters first, from one call per window and one that joins their results.
fn in_windows<const N: usize>(
    rig: &Rig,
    len: usize,
    windows: &[Window],
    call: impl Fn(Window, [Slot; N]) -> Call,
) -> Vec<f32> {
    let blank = |len: usize| rig.put(&vec![f32::NAN; len]);
    let made: Vec<[Slot; N]> = windows.iter().map(|window| [(); N].map(|()| blank(window.len))).collect();
    for (&window, &out) in windows.iter().zip(&made) {
        rig.launch(&call(window, out)).unwrap();
    }
    let joined = (0..N).flat_map(|which| {
        let parts: Vec<_> = windows.iter().zip(&made).map(|(window, out)| (out[which], window.len)).collect();
        let out = blank(len);
        rig.launch(&Call::concat(&parts, out)).unwrap();
        rig.get::<f32>(out, len)
    });
    joined.collect()
}

pub(crate) fn an_update_in_windows_is_the_update() {
    for (len, cuts) in [(1, vec![]), (17, vec![5, 5, 16]), (40_000, vec![4096, 4099, 39_999])] {
        let numbers = &mut Numbers(len as u64);
        let [start, grad, m, v] = [(); 4].map(|()| numbers.units(len));
        let v: Vec<f32> = v.iter().map(|x| x * x).collect();
        let places = [vec![0], cuts, vec![len]].concat();
        let pairs = places.windows(2).map(|pair| Window { first: pair[0], len: pair[1] - pair[0] });
        let (cut, whole) = (pairs.collect::<Vec<_>>(), [Window { first: 0, len }]);
        for windows in [&cut[..], &whole] {
            let got = on_any_threads("adam in windows", |rig| {
                let (param, grad) = (rig.put(&start), rig.put(&grad));
                let (rate, clock) = (rig.put(&[0.01f32]), rig.put(&[0u64, 3]));
                in_windows(rig, len, windows, |window, out| {
                    let [m, v] = [&m, &v].map(|moment| rig.put(&moment[window.first..window.end()]));
                    let (beta1, beta2, eps, weight_decay, decoupled) = (0.9, 0.999, 1e-8, 0.01, false);
                    adam_call([param, grad, m, v, clock, rate], out, window, beta1, beta2, eps, weight_decay, decoupled)
                })
            });
            let (mut param, mut m, mut v) = (wide(&start), wide(&m), wide(&v));
            let step = AdamStep { step: 3, weight_decay: 0.01, ..ADAM };
            reference::adam(&mut param, &wide(&grad), &mut m, &mut v, step);
            let want = [param, m, v].concat();
            let magnitude: Vec<f64> = want.iter().map(|x| x.abs() + 0.01).collect();
            assert_close("adam in windows", &got, &want, &magnitude, 8 * 8);

            let got = on_any_threads("sgd in windows", |rig| {
                let (param, grad) = (rig.put(&start), rig.put(&grad));
                let (rate, clock) = (rig.put(&[0.1f32]), rig.put(&[0u64, 1]));
                in_windows(rig, len, windows, |window, [out, moment]| {
                    let old = rig.put(&vec![0.0f32; window.len]);
                    let moment = Some([old, moment]);
                    sgd_call(param, grad, moment, out, window, clock, rate, 0.9, 0.0)
                })
            });
            let (mut param, mut moment) = (wide(&start), vec![0.0; len]);
            let step = SgdStep { step: 1, rate: 0.1, momentum: 0.9, weight_decay: 0.0 };
            reference::sgd(&mut param, &wide(&grad), Some(&mut moment), step);
            let want = [param, moment].concat();
            let magnitude: Vec<f64> = want.iter().map(|x| x.abs() + 1.0).collect();
            assert_close("sgd in windows", &got, &want, &magnitude, 4);
        }
    }
}

pub(crate) fn a_window_outside_the_parameter_is_refused() {
    let rig = Rig::new(1);
    let [param, grad] = [(); 2].map(|()| rig.put(&[1.0f32; 8]));
    let (out, rate, clock) = (rig.put(&[0.0f32; 8]), rig.put(&[0.1f32]), rig.put(&[0u64, 1]));
    for window in [Window { first: 1, len: 8 }, Window { first: 8, len: 1 }, Window { first: usize::MAX, len: 2 }] {
        let call = sgd_call(param, grad, None, out, window, clock, rate, 0.0, 0.0);
        let objection = rig.launch(&call).unwrap_err();
        assert!(matches!(objection, Error::SlotSize { .. }), "{window:?}: {objection}");
    }
    for parts in [vec![(param, 4), (grad, 5)], vec![(param, 9)], vec![(param, usize::MAX), (grad, usize::MAX)]] {
        let objection = rig.launch(&Call::concat(&parts, out)).unwrap_err();
        assert!(matches!(objection, Error::SlotSize { .. }), "{parts:?}: {objection}");
    }
    let objection = rig.launch(&Call::concat(&[(out, 4)], out)).unwrap_err();
    assert!(matches!(objection, Error::Aliased { .. }), "{objection}");
}
