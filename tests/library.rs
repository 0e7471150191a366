//! The library as an embedding program uses it: shared options, custom devices, named outputs, custom losses, and
//! repeated predictions.

use lapidary::dataset::generate::{PlantedOptions, planted};
use lapidary::forecast::{DryRun, Subject};
use lapidary::kernels::{SimDevice, SimSpeed};
use lapidary::model::{ModelError, Norm, TrainingLoss, gcn_conv};
use lapidary::ndarray::Array2;
use lapidary::{
    Arrays, BackwardMode, ByteSize, Dataset, Devices, Error, ExchangeMode, MemoryPolicy, Model, Objective, Partition,
    Passes, Predictor, RunOptions, Sgd, StorageType, Trainer, Weights,
};

fn karate() -> Dataset {
    Dataset::builtin("karate").unwrap()
}

/// Returns a model of two layers with two named outputs: the hidden rows and a second head.
fn two_heads(data: &Dataset) -> Model {
    Model::custom("two-heads", &[data.feature_width(), data.class_count()], |net, x, config| {
        let hidden = gcn_conv(net, x, "convs.0", 5, Norm::Sym)?;
        let hidden = net.elu(hidden, 1.0)?;
        let helper = net.linear(hidden, "helper", config.widths[1], true)?;
        net.output("hidden", hidden)?;
        net.output("helper", helper)?;
        gcn_conv(net, hidden, "convs.1", config.widths[1], Norm::Sym)
    })
}

/// Returns the same model with a loss that trains both heads.
fn trained_heads(data: &Dataset) -> Model {
    two_heads(data).loss(|net, logits| {
        let helper = TrainingLoss::softmax_cross_entropy(net.named("helper")?)?;
        Ok(TrainingLoss::softmax_cross_entropy(logits)? + 0.3 * helper)
    })
}

fn is_close(a: &Array2<f32>, b: &Array2<f32>) -> bool {
    a.dim() == b.dim() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5)
}

#[test]
fn every_choice_is_read_from_its_own_text() {
    for devices in [Devices::cpu(), Devices::cpus(3), Devices::sim(2), Devices::cuda(&[0, 1, 1])] {
        assert_eq!(devices.to_string().parse::<Devices>().unwrap(), devices);
    }
    for policy in MemoryPolicy::ALL {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    for objective in [Objective::Both, Objective::Loads] {
        assert_eq!(objective.to_string().parse(), Ok(objective));
    }
    for exchange in [ExchangeMode::Auto, ExchangeMode::Host, ExchangeMode::Peer, ExchangeMode::Staged] {
        assert_eq!(exchange.to_string().parse::<ExchangeMode>().unwrap(), exchange);
    }
    for mode in [BackwardMode::Auto, BackwardMode::Pull, BackwardMode::Fold] {
        assert_eq!(mode.to_string().parse::<BackwardMode>().unwrap(), mode);
    }
    for dtype in [StorageType::F32, StorageType::Bf16] {
        assert_eq!(dtype.to_string().parse(), Ok(dtype));
    }
    let some = Passes { fuse: false, ..Passes::ALL };
    for passes in [Passes::ALL, Passes::NONE, some] {
        assert_eq!(passes.to_string().parse(), Ok(passes));
    }
    for partition in ["learned", "edges", "vertices"] {
        assert_eq!(partition.parse::<Partition>().unwrap().to_string(), partition);
    }
    assert!("f16".parse::<StorageType>().unwrap_err().to_string().contains("f32 or bf16"));
    assert!("best".parse::<MemoryPolicy>().unwrap_err().to_string().contains("optimal"));
}

#[test]
fn numbers_of_devices_that_no_run_has_are_errors() {
    let data = karate();
    let model = Model::gcn(&[data.feature_width(), data.class_count()]);
    let options = |count| RunOptions::new().devices(Devices::sim(count)).partition("edges".parse().unwrap());
    for count in [0, 257] {
        let error = Trainer::builder(&model, &data).options(options(count)).build().unwrap_err();
        assert!(matches!(error, Error::Value { .. } | Error::Parts { .. }), "{error}");
    }
    let error = DryRun::new(&model, Subject::Data(&data)).options(options(0)).run().unwrap_err();
    assert!(matches!(error, Error::Value { .. }), "{error}");
}

#[test]
fn one_set_of_options_is_forecast_trained_and_predicted_with() {
    let data = Dataset::builtin("planted").unwrap();
    let model = Model::gcn(&[data.feature_width(), 16, data.class_count()]);
    let options = RunOptions::new()
        .devices(Devices::sim(2))
        .device_memory(ByteSize::kib(1800))
        .memory(MemoryPolicy::Lru)
        .partition("edges".parse().unwrap());
    let dry_run = DryRun::new(&model, Subject::Data(&data)).options(options.clone()).profile("a100");
    let forecast = dry_run.run().unwrap();
    assert_eq!(forecast.policies[0].policy, MemoryPolicy::Lru);
    let plan = forecast.policies[0].outcome.as_ref().unwrap();
    let mut trainer = Trainer::builder(&model, &data).options(options.clone()).build().unwrap();
    let epoch = trainer.step().unwrap();
    assert_eq!(plan.bytes(), epoch.planned_bytes);
    assert!(plan.bytes()[0] > 0, "the memory is too small for all");
    let weights = trainer.weights().unwrap();
    let norm = data.default_feature_norm();
    let on_sim = Predictor::new(&model, weights, Some(norm)).unwrap().options(options).predict(&data).unwrap();
    let on_cpu = Predictor::new(&model, trainer.weights().unwrap(), Some(norm)).unwrap().predict(&data).unwrap();
    assert!(is_close(&on_sim, &on_cpu));
}

#[test]
fn a_forecast_for_the_cpu_copies_nothing() {
    let data = Dataset::builtin("planted").unwrap();
    let model = Model::gcn(&[data.feature_width(), 16, data.class_count()]);
    let forecast = DryRun::new(&model, Subject::Data(&data)).devices(Devices::cpu()).profile("a100").run().unwrap();
    let plan = forecast.policies[0].outcome.as_ref().unwrap();
    let trainer = Trainer::builder(&model, &data).build().unwrap();
    assert_eq!(plan.bytes(), [0, 0]);
    assert_eq!(plan.devices[0].peak_bytes, trainer.planned_peak_device_bytes()[0]);
}

#[test]
fn devices_of_ones_own_compute_as_ours_do() {
    let data = karate();
    let model = Model::gcn(&[data.feature_width(), 8, data.class_count()]);
    let mine = |name: &'static str, fails: bool| {
        Devices::custom(name, 2, ByteSize::mib(8), move |i, capacity_bytes| {
            if fails && i == 1 {
                return Err(lapidary::kernels::Error::NoPeers);
            }
            Ok(Box::new(SimDevice::new(&format!("mine:{i}"), None, capacity_bytes, SimSpeed::default())?))
        })
    };
    let loss = |devices: Devices| {
        let builder = Trainer::builder(&model, &data).devices(devices).partition("edges".parse().unwrap());
        let mut trainer = builder.build()?;
        trainer.step()?;
        trainer.step().map(|epoch| (epoch.loss, trainer.peak_device_bytes()))
    };
    assert_eq!(loss(mine("mine", false)).unwrap(), loss(Devices::sim(2).clone()).unwrap());
    let error = loss(mine("broken", true)).unwrap_err();
    assert!(error.to_string().starts_with("broken:1: starting"), "{error}");
    let error = loss(mine("mine", false).exchange(ExchangeMode::Peer)).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

#[test]
fn named_outputs_are_the_rows_that_the_logits_are_made_of() {
    let data = karate();
    let classes = data.class_count();
    let model = trained_heads(&data);
    let trainer = Trainer::builder(&model, &data).seed(3).build().unwrap();
    for devices in ["cpu", "sim:2"] {
        for passes in [Passes::ALL, Passes::NONE] {
            let predictor = trainer.predictor().unwrap().devices(devices.parse().unwrap()).passes(passes);
            let prediction = predictor.outputs(&["hidden", "helper"]).run(&data).unwrap();
            let (hidden, helper) = (&prediction.outputs["hidden"], &prediction.outputs["helper"]);
            assert_eq!((hidden.dim(), helper.dim()), ((34, 5), (34, classes)));
            // Compute the second head by hand.
            let weight = |name: &str| trainer.weights().unwrap().get(name).unwrap().clone();
            let (matrix, bias) = (weight("helper.weight"), weight("helper.bias"));
            for v in 0..34 {
                for c in 0..classes {
                    let product: f32 = (0..5).map(|k| hidden[[v, k]] * matrix.data[c * 5 + k]).sum();
                    let want = product + bias.data[c];
                    assert!((helper[[v, c]] - want).abs() < 1e-5, "{devices} {v} {c}: {} {want}", helper[[v, c]]);
                }
            }
        }
    }
    // Without a request, there are no outputs.
    assert!(trainer.predictor().unwrap().run(&data).unwrap().outputs.is_empty());
}

#[test]
fn an_output_may_be_called_logits() {
    let data = karate();
    let model = Model::custom("named", &[data.feature_width(), data.class_count()], |net, x, config| {
        let hidden = gcn_conv(net, x, "convs.0", 5, Norm::Sym)?;
        net.output("logits", hidden)?;
        net.linear(hidden, "last", config.widths[1], true)
    });
    let trainer = Trainer::builder(&model, &data).build().unwrap();
    let prediction = trainer.predictor().unwrap().outputs(&["logits"]).run(&data).unwrap();
    assert_eq!((prediction.logits.dim(), prediction.outputs["logits"].dim()), ((34, 2), (34, 5)));
}

#[test]
fn built_in_models_name_their_hidden_rows() {
    let data = Dataset::builtin("planted").unwrap();
    let widths = [data.feature_width(), 12, 9, data.class_count()];
    type Make = fn(&[usize]) -> Model;
    let models: [Make; 6] = [Model::gcn, Model::gin, Model::sage, Model::graphconv, Model::commnet, Model::resgcn];
    for make in models {
        let trainer = Trainer::builder(&make(&widths), &data).build().unwrap();
        let options = RunOptions::new().devices(Devices::sim(1)).device_memory(ByteSize::kib(700));
        let logits = trainer.predictor().unwrap().predict(&data).unwrap();
        let tiled = trainer.predictor().unwrap().options(options).outputs(&["hidden"]).run(&data).unwrap();
        let whole = trainer.predictor().unwrap().outputs(&["hidden"]).run(&data).unwrap();
        assert_eq!(whole.outputs["hidden"].dim(), (data.graph().vertex_count(), 9));
        assert_eq!(whole.outputs["hidden"], tiled.outputs["hidden"], "in tiles the bits are the same");
        assert_eq!(whole.logits, logits, "what is handed out changes no logit");
    }
}

#[test]
fn an_output_that_is_not_there_is_an_error_that_names_those_that_are() {
    let data = karate();
    let trainer = Trainer::builder(&trained_heads(&data), &data).build().unwrap();
    let error = trainer.predictor().unwrap().outputs(&["hiden"]).run(&data).unwrap_err();
    assert_eq!(error.to_string(), "the network has no output `hiden`; it names helper, hidden");
}

fn gradients(model: &Model, data: &Dataset) -> (f64, Weights) {
    let builder = Trainer::builder(model, data).keep_gradients(true).optimizer(Sgd::new(0.0)).seed(5);
    let mut trainer = builder.build().unwrap();
    let loss = trainer.step().unwrap().loss;
    (loss, trainer.gradients().unwrap())
}

#[test]
fn a_weighted_sum_of_losses_has_the_weighted_sum_of_their_gradients() {
    let data = karate();
    let model = || two_heads(&data);
    // A head without a term in the loss would be refused, so each loss has a small term of the other head.
    let main = |net: &mut lapidary::model::Network, logits| {
        let helper = TrainingLoss::softmax_cross_entropy(net.named("helper")?)?;
        Ok::<_, ModelError>(TrainingLoss::softmax_cross_entropy(logits)? + 1e-6 * helper)
    };
    let size = |net: &mut lapidary::model::Network, logits| {
        let helper = TrainingLoss::mean_square(net.named("helper")?)?;
        let logits = TrainingLoss::mean_square(logits)?;
        Ok::<_, ModelError>(TrainingLoss::mean_square(net.named("hidden")?)? + logits + 2.0 * helper)
    };
    let (main_loss, main_grad) = gradients(&model().loss(main), &data);
    let (size_loss, size_grad) = gradients(&model().loss(size), &data);
    let both = model().loss(move |net, logits| Ok(main(net, logits)? * 0.5 + -0.25 * size(net, logits)?));
    let (loss, grad) = gradients(&both, &data);
    assert!((loss - (0.5 * main_loss - 0.25 * size_loss)).abs() < 1e-6, "{loss}");
    assert_eq!(grad.len(), main_grad.len());
    for (name, got) in grad.iter() {
        let (a, b) = (main_grad.get(name).unwrap(), size_grad.get(name).unwrap());
        for (i, &got) in got.data.iter().enumerate() {
            let want = 0.5 * a.data[i] - 0.25 * b.data[i];
            assert!((got - want).abs() < 1e-5 * (1.0 + want.abs()), "{name} {i}: {got} {want}");
        }
    }
}

#[test]
fn the_gradient_of_a_loss_of_ones_own_is_that_of_finite_differences() {
    let data = karate();
    let model = two_heads(&data).loss(|net, logits| {
        let helper = net.named("helper")?;
        let apart = TrainingLoss::mean_square_error(net, logits, helper)?;
        let size = TrainingLoss::mean_square(net.named("hidden")?)?;
        Ok(TrainingLoss::softmax_cross_entropy(logits)? + 3.0 * apart + 0.5 * size)
    });
    let builder = || Trainer::builder(&model, &data).keep_gradients(true).optimizer(Sgd::new(0.0)).seed(5);
    let mut trainer = builder().build().unwrap();
    trainer.step().unwrap();
    let (weights, gradients) = (trainer.weights().unwrap(), trainer.gradients().unwrap());
    // The direction changes every element of a parameter.
    let sign = |i: usize| if (i * 7 + 3) % 5 < 2 { -1.0 } else { 1.0 };
    let h = 1e-2;
    for (name, gradient) in gradients.iter() {
        let at = |by: f32| {
            let mut moved = weights.clone();
            let mut weight = moved.get(name).unwrap().clone();
            weight.data.iter_mut().enumerate().for_each(|(i, w)| *w += by * sign(i));
            moved.insert(name, weight);
            builder().weights(moved).build().unwrap().step().unwrap().loss
        };
        let numeric = (at(h) - at(-h)) / (2.0 * f64::from(h));
        let exact: f64 = gradient.data.iter().enumerate().map(|(i, &g)| f64::from(g * sign(i))).sum();
        assert!((numeric - exact).abs() < 2e-3 * (1.0 + exact.abs()), "{name}: {numeric} {exact}");
        assert!(exact.abs() > 1e-3, "{name}: nothing is tested by a gradient of {exact}");
    }
}

#[test]
fn passes_leave_a_loss_over_hidden_rows_as_it_is() {
    let data = karate();
    // The hidden rows are read by the loss, by a dropout that is reused as a mask, and by a fused product.
    let model = Model::custom("hidden", &[data.feature_width(), data.class_count()], |net, x, config| {
        let hidden = gcn_conv(net, x, "convs.0", 6, Norm::Sym)?;
        let hidden = net.relu(hidden)?;
        net.output("hidden", hidden)?;
        let dropped = net.dropout(hidden, 0.5)?;
        gcn_conv(net, dropped, "convs.1", config.widths[1], Norm::Sym)
    })
    .loss(|net, logits| {
        let size = TrainingLoss::mean_square(net.named("hidden")?)?;
        Ok(TrainingLoss::softmax_cross_entropy(logits)? + 2.0 * size)
    });
    let gradients = |passes: Passes| {
        let builder = Trainer::builder(&model, &data).keep_gradients(true).passes(passes).seed(9);
        let mut trainer = builder.build().unwrap();
        let loss = trainer.step().unwrap().loss;
        (loss, trainer.gradients().unwrap())
    };
    let (want_loss, want) = gradients(Passes::NONE);
    let (loss, got) = gradients(Passes::ALL);
    assert!((loss - want_loss).abs() < 1e-6, "{loss} {want_loss}");
    for (name, want) in want.iter() {
        let got = &got.get(name).unwrap().data;
        assert!(crate::common::largest_difference(got, &want.data) < 1e-6, "{name}");
        assert!(want.data.iter().any(|x| x.abs() > 1e-3), "{name}: nothing is tested by a gradient of 0");
    }
}

#[test]
fn a_loss_of_ones_own_is_the_same_in_parts_and_trains() {
    let data = Dataset::builtin("planted").unwrap();
    let model = two_heads(&data).loss(|net, logits| {
        let helper = TrainingLoss::softmax_cross_entropy(net.named("helper")?)?;
        let size = TrainingLoss::mean_square(net.named("hidden")?)?;
        Ok(TrainingLoss::softmax_cross_entropy(logits)? + 0.3 * helper + 1e-2 * size)
    });
    let losses = |devices: &str| {
        let mut trainer = Trainer::builder(&model, &data).devices(devices.parse().unwrap()).build().unwrap();
        (0..20).map(|_| trainer.step().unwrap().loss).collect::<Vec<f64>>()
    };
    let (one, three) = (losses("cpu"), losses("sim:3"));
    assert!(one[19] < 0.9 * one[0], "{one:?}");
    assert_eq!(one.len(), three.len());
    assert!(one.iter().zip(&three).all(|(a, b)| (a - b).abs() < 1e-3), "{one:?} {three:?}");
}

#[test]
fn a_loss_that_cannot_be_is_an_error_when_the_trainer_is_built() {
    let data = karate();
    let refused = |model: Model| Trainer::builder(&model, &data).build().unwrap_err().to_string();
    let multi = two_heads(&data).loss(|_, logits| TrainingLoss::sigmoid_cross_entropy(logits));
    assert!(refused(multi).contains("sigmoid"), "labels of the other kind");
    let declares = two_heads(&data).loss(|net, logits| {
        let more = net.linear(logits, "more", 2, true)?;
        TrainingLoss::softmax_cross_entropy(more)
    });
    assert!(refused(declares).contains("declares the parameter `more.weight`"));
    let infinite = two_heads(&data).loss(|_, logits| Ok(f32::INFINITY * TrainingLoss::mean_square(logits)?));
    assert!(refused(infinite).contains("finite weight"));
    let unused = two_heads(&data).loss(|_, logits| TrainingLoss::softmax_cross_entropy(logits));
    assert!(refused(unused).contains("`helper.weight` does not reach the loss"));
    let unknown = two_heads(&data).loss(|net, _| TrainingLoss::mean_square(net.named("hiden")?));
    assert!(refused(unknown).contains("no output `hiden`"));
}

#[test]
fn gradients_that_nobody_kept_are_an_error() {
    let data = karate();
    let model = Model::gcn(&[data.feature_width(), data.class_count()]);
    let mut trainer = Trainer::builder(&model, &data).build().unwrap();
    trainer.step().unwrap();
    assert!(matches!(trainer.gradients(), Err(Error::NoGradients)));
    let builder = || Trainer::builder(&model, &data).keep_gradients(true).build().unwrap();
    let mut trainer = builder();
    assert!(matches!(trainer.gradients(), Err(Error::NoGradients)));
    trainer.step().unwrap();
    trainer.gradients().unwrap();
    let snapshot = trainer.snapshot().unwrap();
    // A state that is put back has no gradients, also where no step ever ran.
    for mut restored in [trainer, builder()] {
        restored.restore(&snapshot).unwrap();
        assert!(matches!(restored.gradients(), Err(Error::NoGradients)));
        restored.step().unwrap();
        restored.gradients().unwrap();
    }
}

#[test]
fn activations_with_a_factor_below_0_are_refused() {
    let data = karate();
    let widths = [data.feature_width(), data.class_count()];
    for factor in [-0.5, f32::NAN, f32::INFINITY] {
        for leaky in [false, true] {
            let model = Model::custom("mine", &widths, move |net, x, config| {
                let x = net.linear(x, "lin", config.widths[1], true)?;
                if leaky { net.leaky_relu(x, factor) } else { net.elu(x, factor) }
            });
            let error = Trainer::builder(&model, &data).build().unwrap_err().to_string();
            assert!(error.contains("a finite factor of at least 0"), "{error}");
        }
    }
}

#[test]
fn weights_shorter_than_their_shape_are_an_error() {
    let weight = lapidary::Weight { shape: vec![2, 2], data: vec![1.0; 3] };
    let mut weights = Weights::default();
    weights.insert("w", weight);
    assert!(weights.to_safetensors().unwrap_err().to_string().contains("holds 3 numbers"));
}

#[test]
fn a_prepared_predictor_keeps_what_it_can() {
    let graph = |seed| planted(&PlantedOptions { vertices: 200, seed, ..PlantedOptions::default() }).unwrap();
    let (first, second) = (graph(1), karate());
    let model = Model::gcn(&[first.feature_width(), 8, first.class_count()]);
    for devices in ["cpu", "sim:1"] {
        let trainer = Trainer::builder(&model, &first).build().unwrap();
        let predictor = trainer.predictor().unwrap().devices(devices.parse().unwrap()).outputs(&["hidden"]);
        let mut prepared = predictor.clone().prepared();
        let counts = |prepared: &lapidary::PreparedPredictor| (prepared.loaded(), prepared.planned());

        let want = predictor.run(&first).unwrap();
        let mut again = None;
        for _ in 0..3 {
            let got = prepared.run(&first.clone()).unwrap();
            assert!(is_close(&got.logits, &want.logits) && is_close(&got.outputs["hidden"], &want.outputs["hidden"]));
            assert_eq!((got.accuracy, got.parts), (want.accuracy, want.parts.clone()));
            assert_eq!(got.logits, *again.get_or_insert(got.logits.clone()), "the same call has the same bits");
        }
        assert_eq!(counts(&prepared), (1, 1));

        // The same shape with different numbers: the plan is reused.
        let other = other_features(&first);
        assert!(is_close(&prepared.predict(&other).unwrap(), &predictor.predict(&other).unwrap()));
        assert_eq!(counts(&prepared), (2, 1), "{devices}");

        // A different shape.
        let third = graph(2);
        assert_ne!(third.graph().edge_count(), first.graph().edge_count());
        assert!(is_close(&prepared.predict(&third).unwrap(), &predictor.predict(&third).unwrap()));
        assert_eq!(counts(&prepared), (3, 2), "{devices}");

        // A failed prediction does not affect later ones.
        assert!(prepared.predict(&second).is_err());
        assert_eq!(prepared.predict(&first).unwrap(), again.unwrap());
    }
}

/// Returns the same graph with the features in reverse order.
fn other_features(data: &Dataset) -> Dataset {
    let lapidary::dataset::Features::Dense(dense) = data.features().unwrap() else { panic!("they are dense") };
    let reversed: Vec<f32> = dense.data().iter().rev().copied().collect();
    let features = Array2::from_shape_vec((data.graph().vertex_count(), dense.width()), reversed).unwrap();
    let arrays = Arrays::new(data.graph().clone()).features(features).feature_norm(data.default_feature_norm());
    Dataset::from_arrays(arrays.directed(false)).unwrap()
}
