//! Gradients of whole networks, compared with finite differences in f64, and the CPU device compared with both.

use crate::common::oracle::Oracle;
use crate::common::programs::*;
use crate::common::{hostile_graph, largest_difference, numbers, pairs};
use lapidary::graph::Graph;
use lapidary::lower::{Inputs, Lowered, Sizes, Supply, lower};
use lapidary::model::{
    AttentionConfig, Heads, Model, ModelError, Network, Norm, Value, WeightedMean, gat_conv, gatv2_conv,
};
use lapidary::program::{Degree, Passes};
use lapidary_kernels::{CpuDevice, Device, HostSlot, Lane, Slot};

/// The directions in which each parameter is moved.
#[derive(Clone, Copy)]
enum Moves {
    /// One direction per entry: for networks with few parameters.
    Entries,
    /// Two random directions per parameter, for deep networks. Each moves all entries of one parameter, so an error in
    /// the gradient of one layer is visible however large the gradients of the other layers are.
    Random,
}

impl Moves {
    /// Returns the directions for a parameter with `len` entries.
    fn of(self, len: usize, seed: u32) -> Vec<Vec<f64>> {
        match self {
            Self::Entries => (0..len).map(|i| (0..len).map(|j| f64::from(u8::from(i == j))).collect()).collect(),
            // Every entry moves by at least 0.5, and random sizes make it unlikely that errors of two entries cancel.
            Self::Random => (0..2)
                .map(|k| numbers(len, 1000 * k + seed).into_iter().map(f64::from))
                .map(|numbers| numbers.map(|x| (0.5 + 0.5 * x.abs()).copysign(x)).collect())
                .collect(),
        }
    }
}

/// Compares `gradient` along `direction` with central differences. `loss` is the loss at the current parameters, and
/// `loss_at` returns it after a move.
fn check_slope(loss: f64, gradient: &[f64], direction: &[f64], loss_at: impl Fn(&[f64]) -> f64) -> Result<(), String> {
    let terms: Vec<f64> = pairs(gradient, direction).map(|(g, r)| g * r).collect();
    let (want, magnitude): (f64, f64) = (terms.iter().sum(), terms.iter().map(|x| x.abs()).sum());
    let mut found = Vec::new();
    // If the input of a ReLU changes its sign within the wider step, it rarely does so within the narrower one. So one
    // of the two has to agree.
    for h in [1e-5, 1e-6] {
        let at = |h: f64| loss_at(&direction.iter().map(|r| h * r).collect::<Vec<_>>());
        let slope = (at(h) - at(-h)) / (2.0 * h);
        // The first term is for rounding the loss some hundred times, the second for the truncation error of order h^2.
        let allowed = 256.0 * f64::EPSILON * (1.0 + loss.abs()) / h + 1e-6 * magnitude;
        if (slope - want).abs() <= allowed {
            return Ok(());
        }
        found.push(slope);
    }
    Err(format!("the gradient says {want}, differences say {found:?}"))
}

/// Checks every gradient of the program by central differences of its loss in f64.
fn check_gradients(model: &Model, graph: &Graph, storage: Storage, passes: Passes, moves: Moves) {
    if let Err(objection) = gradients_of(model, graph, storage, passes, moves, |_, _| {}) {
        panic!("{} ({storage:?}, {passes:?}): {objection}", model.config().name);
    }
}

/// Does the same after `corrupt` has changed the gradient of each parameter. The error names the parameter whose
/// gradient is wrong.
fn gradients_of(
    model: &Model,
    graph: &Graph,
    storage: Storage,
    passes: Passes,
    moves: Moves,
    corrupt: impl Fn(&str, &mut [f64]),
) -> Result<(), String> {
    let mut data = inputs(graph.clone(), storage);
    if model.config().edge_weights == Some(true) {
        let weights = numbers(graph.edge_count(), 9).into_iter().map(|x| 0.5 + x.abs());
        data.edge_weights = Some(weights.collect::<Vec<_>>().into());
    }
    let program = program(model, storage, passes, &ANY_WORKLOAD);
    let lowered = lower(&[("test", &program)], &Sizes::of(&data).into(), 3);
    let parameters = parameters(&lowered);
    let phase = &lowered.phases[0];
    let mut oracle = oracle_with(&lowered, &data, &parameters);
    oracle.run(&phase.steps);
    let name = &model.config().name;
    let loss = phase.output("loss");
    let forward = phase.steps.iter().rposition(|step| step.call.writes().any(|slot| slot == loss)).unwrap();
    let mut any_gradient = false;
    for (seed, (parameter, slot, _)) in (1..).zip(&parameters) {
        let mut gradient = oracle.float(phase.output(parameter)).to_vec();
        corrupt(parameter, &mut gradient);
        any_gradient |= gradient.iter().any(|g| g.abs() > 1e-6);
        let values = oracle.float(*slot).to_vec();
        let loss_at = |shift: &[f64]| {
            let mut oracle = oracle.clone();
            oracle.write(*slot, &pairs(&values, shift).map(|(x, shift)| x + shift).collect::<Vec<_>>());
            oracle.run(&phase.steps[..=forward]);
            oracle.float(loss)[0]
        };
        for (k, direction) in moves.of(values.len(), seed).iter().enumerate() {
            check_slope(oracle.float(loss)[0], &gradient, direction, loss_at)
                .map_err(|objection| format!("{parameter}, direction {k}: {objection}"))?;
        }
    }
    assert!(any_gradient, "{name}: there is nothing to check");
    check_device(&lowered, &data, &parameters, &oracle, name);
    Ok(())
}

/// Checks that the CPU device computes the same as the oracle, up to rounding.
fn check_device(
    lowered: &Lowered,
    data: &Inputs,
    parameters: &[(String, Slot, Vec<f32>)],
    oracle: &Oracle,
    name: &str,
) {
    let device = CpuDevice::new(None, 1 << 30).unwrap();
    let mut supply = Supply::new(data);
    let copy = |slot: Slot, host: &HostSlot| {
        device.copy_in(Lane::CopyIn, slot, host, &[]).unwrap();
    };
    for (index, tensor) in lowered.tensors.iter().enumerate() {
        let slot = Slot(index as u32);
        device.alloc(slot, tensor.bytes).unwrap();
        match (&tensor.contents, &*tensor.name) {
            (Some(contents), _) => copy(slot, &supply.get(0, tensor.tile, contents)),
            (None, "clock") => copy(slot, &HostSlot::staged(&[1u64, 1]).unwrap()),
            (None, _) => {}
        }
    }
    for (_, slot, values) in parameters {
        copy(*slot, &HostSlot::staged(values).unwrap());
    }
    let phase = &lowered.phases[0];
    for step in lowered.setup.iter().chain(&phase.steps) {
        device.launch(Lane::Compute, &step.call, &[]).unwrap();
    }
    let largest = |cells: &[f32]| cells.iter().fold(0.0, |most: f64, x| most.max(f64::from(x.abs())));
    let gradients = phase.outputs.keys().filter(|name| *name != "loss").map(|name| oracle.float(phase.output(name)));
    let all = gradients.flatten().fold(0.0, |most: f64, x| most.max(x.abs()));
    for output in phase.outputs.keys() {
        let slot = phase.output(output);
        let host = HostSlot::staging(lowered.tensors[slot.0 as usize].bytes as usize).unwrap();
        device.copy_out(Lane::CopyOut, slot, &host, &[]).unwrap();
        let want: Vec<f32> = oracle.float(slot).iter().map(|&x| x as f32).collect();
        // A gradient that is 0 but for rounding is compared with the others.
        let scale = largest(&want).max(1e-3 * all);
        let off = if scale == 0.0 { 0.0 } else { largest_difference(&host.to_vec::<f32>(), &want) / scale };
        assert!(off < 1e-4, "{name}: {output} is off by {off}");
    }
}

type Conv = fn(&mut Network, Value, &str, usize, Heads, &AttentionConfig) -> Result<Value, ModelError>;

/// Returns a network with an attention layer between two linear layers.
fn attention(name: &str, conv: Conv, heads: usize, how: Heads) -> Model {
    let (dropout, more) = (Some(0.3), heads > 1);
    let config = AttentionConfig { heads, dropout, residual: more, edge_weights: more, ..AttentionConfig::default() };
    network(&format!("{name} {heads} {how:?}"), move |net, x, _| {
        let h = net.linear(x, "a", 4, true)?;
        let h = conv(net, h, "att", 2, how, &config)?;
        net.linear(h, "b", CLASSES, false)
    })
}

/// Returns one network per operation. Each has parameters before it, so that the operation's gradient is needed.
fn networks() -> Vec<Model> {
    let looped = |self_loops| {
        network(if self_loops { "gather A + I" } else { "gather A" }, move |net, x, _| {
            let h = net.linear(x, "a", 4, true)?;
            let h = net.gather(h, self_loops)?;
            net.linear(h, "b", CLASSES, false)
        })
    };
    let scaled = |name: &str, degree| {
        network(name, move |net, x, _| {
            let h = net.linear(x, "a", CLASSES, true)?;
            net.scale_by_degree(h, degree)
        })
    };
    let mut all = vec![
        network("linear", |net, x, _| net.linear(x, "a", CLASSES, false)),
        network("bias", |net, x, _| net.linear(x, "a", CLASSES, true)),
        network("relu", |net, x, _| {
            let h = net.linear(x, "a", 6, true)?;
            let h = net.relu(h)?;
            net.linear(h, "b", CLASSES, true)
        }),
        network("elu", |net, x, _| {
            let h = net.linear(x, "a", 6, true)?;
            let h = net.elu(h, 0.75)?;
            net.linear(h, "b", CLASSES, true)
        }),
        network("leaky relu", |net, x, _| {
            let h = net.linear(x, "a", 6, true)?;
            let h = net.leaky_relu(h, 0.2)?;
            net.linear(h, "b", CLASSES, true)
        }),
        network("multiply", |net, x, _| {
            let h = net.linear(x, "a", 6, true)?;
            let h = net.multiply(h, -1.5)?;
            net.linear(h, "b", CLASSES, true)
        }),
        network("layer norm", |net, x, _| {
            let h = net.linear(x, "a", 6, true)?;
            let h = net.layer_norm(h, "norm")?;
            let h = net.relu(h)?;
            net.linear(h, "b", CLASSES, true)
        }),
        network("dropout", |net, x, _| {
            let x = net.dropout(x, 0.3)?;
            let h = net.linear(x, "a", 6, true)?;
            let h = net.dropout(h, 0.4)?;
            net.linear(h, "b", CLASSES, true)
        }),
        network("add, and a parameter used twice", |net, x, _| {
            let h = net.linear(x, "a", CLASSES, true)?;
            let g = net.gather(h, false)?;
            let again = net.linear(x, "a", CLASSES, true)?;
            let sum = net.add(h, g)?;
            let sum = net.add(sum, again)?;
            net.add(sum, sum)
        }),
        looped(true),
        looped(false),
    ];
    for heads in [1, 3] {
        for mean in [Heads::Concat, Heads::Mean] {
            all.push(attention("gat", gat_conv, heads, mean));
            all.push(attention("gatv2", gatv2_conv, heads, mean));
        }
    }
    for self_loops in [false, true] {
        all.push(scaled("inverse root degree", Degree::InverseRoot { self_loops, weighted: false }));
        all.push(scaled("inverse degree", Degree::Inverse { self_loops, weighted: false }));
    }
    all
}

#[test]
fn every_operation_has_the_gradient_that_differences_say() {
    for model in networks() {
        for storage in STORAGES {
            check_gradients(&model, &hostile_graph(), storage, Passes::NONE, Moves::Entries);
            check_gradients(&model, &hostile_graph(), storage, Passes::ALL, Moves::Entries);
        }
    }
}

/// Tests the check of deep networks: it finds an error of 1 % in the gradient of any one parameter, and in the largest
/// entry of that gradient alone.
#[test]
fn random_directions_find_one_layers_gradient_that_is_off() {
    for model in [Model::gcn(&[FEATURES, 4, 4, 4, CLASSES]), Model::sage(&[FEATURES, 4, 4, CLASSES])] {
        let check = |corrupt: &dyn Fn(&str, &mut [f64])| {
            gradients_of(&model, &hostile_graph(), DENSE, Passes::ALL, Moves::Random, corrupt)
        };
        check(&|_, _| {}).unwrap();
        let names = std::cell::RefCell::new(Vec::new());
        check(&|name, gradient| names.borrow_mut().push((name.to_owned(), gradient.to_vec()))).unwrap();
        let names = names.into_inner();
        assert!(names.len() >= 8, "a weight and a bias a layer");
        for (wrong, gradient) in &names {
            let only = |name: &str| name == wrong;
            let scaled = check(&|name, gradient| {
                if only(name) {
                    gradient.iter_mut().for_each(|g| *g *= 1.01);
                }
            });
            assert!(scaled.unwrap_err().starts_with(wrong), "all of {wrong}");
            let largest = (0..gradient.len()).max_by(|&a, &b| gradient[a].abs().total_cmp(&gradient[b].abs())).unwrap();
            let one = check(&|name, gradient| {
                if only(name) {
                    gradient[largest] *= 1.01;
                }
            });
            assert!(one.unwrap_err().starts_with(wrong), "one entry of {wrong}");
        }
    }
}

/// Returns every built-in model with each of its normalisations.
fn built_ins(widths: &[usize]) -> Vec<Model> {
    let norms = [Norm::Sym, Norm::Mean, Norm::Sum];
    let mut all = vec![Model::gin(widths), Model::sage(widths), Model::graphconv(widths)];
    all.extend([Model::gat(widths), Model::gatv2(widths)].map(|model| model.heads(2)));
    for norm in norms {
        all.extend([Model::gcn(widths), Model::commnet(widths), Model::resgcn(widths)].map(|m| m.norm(norm)));
    }
    all
}

#[test]
fn every_model_of_one_to_six_layers_has_the_right_gradients_on_directed_graphs() {
    for layers in 1..=6 {
        // Hidden layers have equal widths, which gives identity shortcuts, and the last layer has a different one.
        let mut widths = vec![4; layers + 1];
        (widths[0], widths[layers]) = (FEATURES, CLASSES);
        for model in built_ins(&widths) {
            for storage in STORAGES {
                // Layer norm keeps deep sums in range, and is tested here too.
                let model = model.clone().dropout(0.2).layer_norm(layers % 2 == 0);
                let moves = if layers == 1 { Moves::Entries } else { Moves::Random };
                check_gradients(&model, &hostile_graph(), storage, Passes::ALL, moves);
                check_gradients(&model, &hostile_graph(), storage, Passes::NONE, moves);
            }
        }
    }
}

#[test]
fn a_shortcut_of_sparse_features_as_wide_as_the_layer_is_the_features() {
    for storage in STORAGES {
        let model = Model::resgcn(&[FEATURES, FEATURES, CLASSES]).dropout(0.3);
        check_gradients(&model, &hostile_graph(), storage, Passes::ALL, Moves::Entries);
    }
}

#[test]
fn a_graph_without_edges_and_one_vertex_alone_have_the_right_gradients() {
    let model = Model::gcn(&[FEATURES, 4, CLASSES]);
    for n in [1, 5] {
        check_gradients(&model, &Graph::from_edges(n, &[]).unwrap(), DENSE, Passes::ALL, Moves::Entries);
    }
}

#[test]
fn a_symmetric_graph_uses_its_own_block_backward() {
    let edges: Vec<(u32, u32)> = (0..9).flat_map(|v| [(v, v + 1), (v + 1, v)]).collect();
    let graph = Graph::from_edges(10, &edges).unwrap();
    let model = Model::gcn(&[FEATURES, 4, CLASSES]);
    check_gradients(&model, &graph, DENSE, Passes::ALL, Moves::Entries);
    let data = inputs(graph, DENSE);
    assert!(data.symmetric);
    let program = program(&model, DENSE, Passes::ALL, &ANY_WORKLOAD);
    let blocks = lower(&[("test", &program)], &Sizes::of(&data).into(), 3)
        .tensors
        .iter()
        .filter(|t| t.name.ends_with(".indptr"))
        .count();
    assert_eq!(blocks, 1);
}

#[test]
fn weights_of_edges_have_the_right_gradients_on_directed_and_symmetric_graphs() {
    let edges: Vec<(u32, u32)> = (0..9).flat_map(|v| [(v, v + 1), (v + 1, v), (v, v)]).collect();
    let symmetric = Graph::from_edges(11, &edges).unwrap();
    assert!(symmetric.is_symmetric());
    let config = AttentionConfig { heads: 2, edge_weights: true, ..AttentionConfig::default() };
    let widths = [FEATURES, 4, CLASSES];
    let attention = [Model::gat(&widths), Model::gatv2(&widths)].map(|model| model.attention(config));
    let by_count = Model::sage(&widths).weighted_mean(WeightedMean::Count);
    for model in built_ins(&widths).into_iter().chain(attention).chain([by_count]) {
        let model = model.edge_weights(true).dropout(0.2);
        for graph in [&symmetric, &hostile_graph()] {
            for passes in [Passes::ALL, Passes::NONE] {
                check_gradients(&model, graph, DENSE, passes, Moves::Entries);
            }
        }
    }
}
