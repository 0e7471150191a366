//! Gradients of whole networks, compared with finite differences in f64, and the CPU device compared with both.

use crate::common::oracle::Oracle;
use crate::common::{MODELS, hostile_graph, numbers, pairs, relative_difference};
use lapidary::graph::Graph;
use lapidary::lower::{Exchange, ExchangePath, FeatureData, Inputs, LabelData, Lowered, Sizes, Supply, lower};
use lapidary::model::{FeatureKind, Mode, Model, ModelConfig, ModelError, Network, Norm, Value, gcn_conv};
use lapidary::program::passes::fuse::fuse;
use lapidary::program::passes::order::{Workload, order};
use lapidary::program::passes::prune::prune;
use lapidary::program::passes::reuse::reuse;
use lapidary::program::{
    DType, Degree, Loss, Op, Origin, Passes, Program, RowSpace, RowStep, SplitName, TensorId, TensorType,
    append_backward,
};
use lapidary_kernels::op::{EdgeWeight, Optimizer};
use lapidary_kernels::{CpuDevice, Device, HostSlot, Lane, Shared, Slot, StorageType};

const FEATURES: usize = 5;
const CLASSES: usize = 3;

/// The storage of a test's data.
#[derive(Clone, Copy, Debug)]
struct Storage {
    sparse: bool,
    multi: bool,
    dtype: StorageType,
}

const STORAGES: [Storage; 4] = [
    Storage { sparse: false, multi: false, dtype: StorageType::F32 },
    Storage { sparse: true, multi: false, dtype: StorageType::F32 },
    Storage { sparse: false, multi: true, dtype: StorageType::F32 },
    Storage { sparse: true, multi: true, dtype: StorageType::F32 },
];
const DENSE: Storage = STORAGES[0];

/// Returns the same storage with vertex matrices in bf16.
fn in_bf16(storage: Storage) -> Storage {
    Storage { dtype: StorageType::Bf16, ..storage }
}

/// Returns a graph with dense or sparse features and labels; two thirds of the vertices are for training.
fn inputs(graph: Graph, Storage { sparse, multi, .. }: Storage) -> Inputs {
    let n = graph.vertex_count();
    let mut data = numbers(n * FEATURES, 1);
    let features = if sparse {
        let mut indptr = vec![0u64];
        let (mut indices, mut values) = (Vec::new(), Vec::new());
        for row in data.chunks(FEATURES) {
            for (column, &x) in row.iter().enumerate().filter(|&(_, &x)| x > 0.0) {
                indices.push(column as u32);
                values.push(x);
            }
            indptr.push(indices.len() as u64);
        }
        FeatureData::Sparse { indptr: indptr.into(), indices: indices.into(), values: values.into(), width: FEATURES }
    } else {
        data.iter_mut().for_each(|x| *x *= 2.0);
        FeatureData::Dense { data: data.into(), width: FEATURES }
    };
    let labels = if multi {
        let targets: Vec<u8> = (0..n * CLASSES).map(|i| u8::from((i * 7) % 5 < 2)).collect();
        LabelData::Targets(targets.into())
    } else {
        let labels: Vec<u32> = (0..n as u32).map(|v| (v * 7 + 1) % CLASSES as u32).collect();
        LabelData::Classes(labels.into())
    };
    let split: Vec<u32> = (0..n as u32).map(|v| if v % 3 == 2 { 3 } else { 1 }).collect();
    let train = split.iter().filter(|&&s| s == 1).count() as u64;
    let symmetric = graph.is_symmetric();
    Inputs { graph, symmetric, features, labels, split: Shared::from(split), labelled: [0, train, 0, n as u64 - train] }
}

/// Builds the training program of a network up to its gradients. The outputs are `loss` and one gradient per parameter.
fn program(model: &Model, storage: Storage, passes: Passes, workload: &Workload) -> Program {
    let width = FEATURES;
    let kind = if storage.sparse { FeatureKind::Sparse { width } } else { FeatureKind::Dense { width } };
    let (network, logits) = model.network(kind, Mode::Train, storage.dtype).unwrap();
    let (mut program, _) = network.into_parts();
    let Value::Dense(logits) = logits else { panic!("logits are dense") };
    let ids = TensorType { rows: RowSpace::Vertices, width: 1, dtype: DType::U32 };
    let splits = program.input(Origin::Split, ids).unwrap();
    let split = SplitName::Train;
    let loss = if storage.multi {
        let cells = TensorType { dtype: DType::U8, width: CLASSES, ..ids };
        let targets = program.input(Origin::Targets, cells).unwrap();
        program.push1(Loss::SigmoidCrossEntropy(split), &[logits, targets, splits]).unwrap()
    } else {
        let labels = program.input(Origin::Labels, ids).unwrap();
        program.push1(Loss::SoftmaxCrossEntropy(split), &[logits, labels, splits]).unwrap()
    };
    program.set_output("loss", loss);
    if passes.order {
        order(&mut program, workload).unwrap();
    }
    for (name, gradient) in append_backward(&mut program, &[(loss, 1.0)]).unwrap() {
        program.set_output(name, gradient);
    }
    if passes.prune {
        prune(&mut program);
    }
    if passes.reuse {
        reuse(&mut program);
    }
    if passes.fuse {
        fuse(&mut program);
    }
    program
}

const UNFUSED: Passes = Passes { fuse: false, ..Passes::ALL };

const ANY_WORKLOAD: Workload = Workload { vertices: 12, edges: 24, backward: true, runs: 100 };

/// Returns parameters whose values leave no ReLU exactly at 0.
fn parameters(lowered: &Lowered) -> Vec<(String, Slot, Vec<f32>)> {
    let origins = lowered.origins.iter().filter_map(|(origin, slots)| match origin {
        Origin::Parameter(name) => Some((name.clone(), slots[0])),
        _ => None,
    });
    origins
        .enumerate()
        .map(|(i, (name, slot))| {
            let count = lowered.tensors[slot.0 as usize].bytes as usize / 4;
            (name, slot, numbers(count, 50 + i as u32))
        })
        .collect()
}

fn oracle_with(lowered: &Lowered, data: &Inputs, parameters: &[(String, Slot, Vec<f32>)]) -> Oracle {
    let mut oracle = Oracle::new(lowered, data);
    for (_, slot, values) in parameters {
        oracle.write(*slot, &values.iter().copied().map(f64::from).collect::<Vec<_>>());
    }
    oracle
}

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
    let data = inputs(graph.clone(), storage);
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
        match (&tensor.contents, tensor.name.as_str()) {
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
    for output in phase.outputs.keys() {
        let slot = phase.output(output);
        let host = HostSlot::staging(lowered.tensors[slot.0 as usize].bytes as usize).unwrap();
        device.copy_out(Lane::CopyOut, slot, &host, &[]).unwrap();
        let want: Vec<f32> = oracle.float(slot).iter().map(|&x| x as f32).collect();
        let off = relative_difference(&host.to_vec::<f32>(), &want);
        assert!(off < 1e-4, "{name}: {output} is off by {off}");
    }
}

fn network<F>(name: &str, forward: F) -> Model
where
    F: Fn(&mut Network, Value, &ModelConfig) -> Result<Value, ModelError> + Send + Sync + 'static,
{
    Model::custom(name, &[FEATURES, CLASSES], forward)
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
    for self_loops in [false, true] {
        all.push(scaled("inverse root degree", Degree::InverseRoot { self_loops }));
        all.push(scaled("inverse degree", Degree::Inverse { self_loops }));
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

/// Returns the outputs of a program in f64, by name.
fn results(program: &Program, data: &Inputs) -> Vec<(String, Vec<f64>)> {
    let lowered = lower(&[("test", program)], &Sizes::of(data).into(), 3);
    let mut oracle = oracle_with(&lowered, data, &parameters(&lowered));
    oracle.run(&lowered.phases[0].steps);
    let phase = &lowered.phases[0];
    phase.outputs.keys().map(|name| (name.clone(), oracle.float(phase.output(name)).to_vec())).collect()
}

fn assert_same(a: &[(String, Vec<f64>)], b: &[(String, Vec<f64>)], tolerance: f64) {
    assert!(!a.is_empty(), "there is nothing to compare");
    for ((name, x), (other, y)) in pairs(a, b) {
        assert_eq!(name, other);
        for (x, y) in pairs(x, y) {
            assert!((x - y).abs() <= tolerance * (1.0 + y.abs()), "{name}: {x} and {y}");
        }
    }
}

fn gathers(program: &Program) -> Vec<usize> {
    let ops = program
        .ops()
        .into_iter()
        .filter(|&op| matches!(program.op(op), Op::Gather(gather) if gather.weight == EdgeWeight::One));
    ops.map(|op| program.tensor(program.op_outputs(op)[0]).ty.width).collect()
}

#[test]
fn order_gathers_at_the_narrow_side_and_changes_no_result() {
    let data = inputs(hostile_graph(), DENSE);
    // 5 -> 2: linear first, so forward and backward gather 2 columns. 5 -> 8: gather first. There is only one gather,
    // since the features need no gradient.
    for (hidden, first_gathers) in [(2, vec![2, 2]), (8, vec![5])] {
        let model = network("two layers", move |net, x, _| {
            let h = gcn_conv(net, x, "convs.0", hidden, Norm::Sym)?;
            let h = net.relu(h)?;
            net.linear(h, "out", CLASSES, true)
        });
        let once = Workload { runs: 1, ..ANY_WORKLOAD };
        let plain = program(&model, DENSE, Passes { order: false, ..UNFUSED }, &once);
        let ordered = program(&model, DENSE, UNFUSED, &once);
        assert_eq!(gathers(&ordered), first_gathers, "hidden {hidden}");
        assert_same(&results(&plain, &data), &results(&ordered, &data), 1e-12);
    }
}

#[test]
fn a_gather_of_constant_features_is_hoisted_into_the_setup() {
    let model = Model::gcn(&[FEATURES, 8, CLASSES]);
    let hoisted = program(&model, DENSE, Passes::ALL, &ANY_WORKLOAD);
    let lowered = lower(&[("test", &hoisted)], &Sizes::of(&inputs(hostile_graph(), DENSE)).into(), 3);
    let names: Vec<&str> = lowered.setup.iter().map(|step| step.call.name()).collect();
    assert_eq!(names, ["row_scale", "gather", "row_scale"]);

    let dropped = Model::gcn(&[FEATURES, 8, CLASSES]).input_dropout(0.5);
    let dropped = program(&dropped, DENSE, Passes::ALL, &ANY_WORKLOAD);
    let lowered = lower(&[("test", &dropped)], &Sizes::of(&inputs(hostile_graph(), DENSE)).into(), 3);
    assert!(lowered.setup.is_empty(), "what is dropped anew each epoch cannot be gathered once");
}

#[test]
fn prune_removes_what_nobody_reads_and_changes_no_result() {
    let model = Model::gcn(&[FEATURES, 4, CLASSES]).dropout(0.5);
    let data = inputs(hostile_graph(), DENSE);
    let plain = program(&model, DENSE, Passes { prune: false, ..UNFUSED }, &ANY_WORKLOAD);
    let pruned = program(&model, DENSE, UNFUSED, &ANY_WORKLOAD);
    assert!(pruned.ops().len() < plain.ops().len(), "the gradient of the features is not needed");
    let (a, b) = (results(&plain, &data), results(&pruned, &data));
    assert_same(&a, &b, 0.0);
}

/// Adds a step of gradient descent for every parameter to a program.
fn with_updates(mut program: Program) -> Program {
    let clock = TensorType { rows: RowSpace::Scalar, width: 2, dtype: DType::U64 };
    let clock = program.input(Origin::Clock, clock).unwrap();
    let rate = program.input(Origin::LearningRate, TensorType::f32(RowSpace::Scalar, 1)).unwrap();
    let gradients: Vec<(String, TensorId)> = program.outputs().iter().map(|(n, t)| (n.clone(), *t)).collect();
    for (name, gradient) in gradients.into_iter().filter(|(name, _)| name != "loss") {
        let parameter = program.origins()[&Origin::Parameter(name)];
        let step = Optimizer::Sgd { momentum: 0.0, weight_decay: 0.01 };
        let updated = program.push1(step, &[parameter, gradient, clock, rate]).unwrap();
        program.set_next(updated, parameter);
    }
    program
}

/// The values of parameters, with their names.
type Parameters = Vec<(String, Vec<f64>)>;

/// Returns the loss and the updated parameters of every part. `ends` are the cuts of the graph; each part has `tiles`
/// tiles.
fn run_in_parts(program: &Program, data: &Inputs, ends: &[usize], tiles: usize) -> (f64, Vec<Parameters>) {
    run_over(ExchangePath::Host, program, data, ends, tiles)
}

/// Does the same with halos exchanged over `path`.
fn run_over(
    path: ExchangePath,
    program: &Program,
    data: &Inputs,
    ends: &[usize],
    tiles: usize,
) -> (f64, Vec<Parameters>) {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let mut supply = Supply::of_parts(data, starts.zip(ends.iter().copied()).map(|(a, b)| a..b).collect());
    let tilings: Vec<_> = supply.tile(tiles).into_iter().map(|tiling| tiling.over(path)).collect();
    let lowered: Vec<Lowered> = tilings.iter().map(|tiling| lower(&[("test", program)], tiling, 3)).collect();
    let mut oracles: Vec<Oracle> = Vec::new();
    for (part, lowered) in lowered.iter().enumerate() {
        let mut oracle = Oracle::of_part(lowered, &mut supply, part);
        for (_, slot, values) in parameters(lowered) {
            oracle.write(slot, &values.iter().copied().map(f64::from).collect::<Vec<_>>());
        }
        oracle.write(lowered.origins[&Origin::LearningRate][0], &[0.5]);
        oracles.push(oracle);
    }
    let steps = |lowered: &Lowered| lowered.setup.iter().chain(&lowered.phases[0].steps).cloned().collect::<Vec<_>>();
    let steps: Vec<Vec<_>> = lowered.iter().map(steps).collect();
    assert!(steps.iter().all(|s| s.len() == steps[0].len()), "every part has the same steps");
    for i in 0..steps[0].len() {
        for (oracle, steps) in oracles.iter_mut().zip(&steps) {
            oracle.run(&steps[i..=i]);
        }
        for exchange in &lowered[0].exchanges {
            if let Exchange::Fetch { packed, halo, block } = *exchange {
                let call = &steps[0][i].call;
                let out = call.out();
                if !call.fetches() || out.slot != halo {
                    continue;
                }
                let rows = call.inputs[1].slot;
                assert!(call.reads().eq([packed, rows]), "a part's own rows stay for as long");
                let packed: Vec<Vec<f64>> = oracles.iter().map(|oracle| oracle.float(packed).to_vec()).collect();
                for (part, oracle) in oracles.iter_mut().enumerate() {
                    // The positions of the rows are read from the tensor that the device gets.
                    let mut rows = oracle.u32s(rows).to_vec().into_iter();
                    let sources = &supply.routes(block).sources[part];
                    let of_owner = |source: &lapidary::lower::Source| {
                        let rows = rows.by_ref().take(source.rows.len()).map(|row| row as usize);
                        rows.flat_map(|row| packed[source.part][row * out.cols..][..out.cols].to_vec())
                            .collect::<Vec<f64>>()
                    };
                    let fetched: Vec<f64> = sources.iter().flat_map(of_owner).collect();
                    assert_eq!(out.dtype.byte_count() * fetched.len() as u64, lowered[part].tensor(halo).bytes);
                    oracle.write(halo, &fetched);
                }
                continue;
            }
            // All rows are available after the last tile is packed.
            if !steps[0][i].call.writes().any(|slot| Some(&slot) == exchange.published().last()) {
                continue;
            }
            let published =
                oracles.iter().map(|o| exchange.published().iter().flat_map(|&slot| o.float(slot).to_vec()));
            let published: Vec<Vec<f64>> = published.map(Iterator::collect).collect();
            for (part, oracle) in oracles.iter_mut().enumerate() {
                let received: Vec<f64> = match *exchange {
                    Exchange::Fetch { .. } => unreachable!("it was done above"),
                    Exchange::Sum { .. } => {
                        (0..published[0].len()).map(|k| published.iter().map(|term| term[k]).sum()).collect()
                    }
                    Exchange::Halo { block, width, .. } => {
                        let sources = &supply.routes(block).sources[part];
                        let rows = sources.iter().flat_map(|s| s.rows.iter().map(|&row| (s.part, row as usize)));
                        rows.flat_map(|(owner, row)| published[owner][row * width..][..width].to_vec()).collect()
                    }
                };
                let mut received = &received[..];
                for &slot in exchange.received() {
                    let numbers = match exchange {
                        Exchange::Fetch { .. } => unreachable!("nothing is received for it"),
                        Exchange::Sum { .. } => received.len(),
                        Exchange::Halo { float, .. } => lowered[part].tensor(slot).bytes as usize / float.byte_count(),
                    };
                    let (here, rest) = received.split_at(numbers);
                    oracle.write(slot, here);
                    received = rest;
                }
                assert!(received.is_empty());
            }
        }
    }
    let loss = oracles.iter().zip(&lowered).map(|(o, l)| o.float(l.phases[0].output("loss"))[0]).sum();
    let updated = oracles.iter().zip(&lowered).map(|(oracle, lowered)| {
        let next = lowered.phases[0].steps.iter().flat_map(|step| &step.next);
        next.map(|&(new, old)| (lowered.tensor(old).name.clone(), oracle.float(new).to_vec())).collect()
    });
    (loss, updated.collect())
}

#[test]
fn parts_train_as_the_whole_graph_does() {
    for name in MODELS {
        let config = ModelConfig::new(name, &[FEATURES, 4, 6, CLASSES]);
        let model = Model::from_config(config).unwrap().dropout(0.4).layer_norm(true);
        for storage in STORAGES.into_iter().chain(STORAGES.map(in_bf16)) {
            let data = inputs(hostile_graph(), storage);
            let program = with_updates(program(&model, storage, Passes::ALL, &ANY_WORKLOAD));
            let (loss, whole) = run_in_parts(&program, &data, &[12], 1);
            for ends in [&[5, 12][..], &[0, 3, 3, 7, 12], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 12]] {
                for path in [ExchangePath::Host, ExchangePath::Peer] {
                    let (loss_of_parts, parts) = run_over(path, &program, &data, ends, 1);
                    assert!(
                        (loss - loss_of_parts).abs() < 1e-12,
                        "{name} {storage:?} {ends:?} {path:?}: {loss_of_parts}, not {loss}"
                    );
                    for part in parts {
                        assert_same(&part, &whole[0], 1e-12);
                    }
                }
            }
        }
    }
}

/// With an oracle that does not round, bf16 storage changes only the types, and no results.
#[test]
fn a_program_over_bf16_computes_what_the_one_over_f32_does() {
    for name in MODELS {
        let config = ModelConfig::new(name, &[FEATURES, 4, 6, CLASSES]);
        let model = Model::from_config(config).unwrap().dropout(0.4).layer_norm(true);
        for storage in STORAGES {
            let mut data = inputs(hostile_graph(), storage);
            if let FeatureData::Dense { data, .. } = &mut data.features {
                *data = data.iter().map(|&x| half::bf16::from_f32(x).to_f32()).collect::<Vec<f32>>().into();
            }
            for passes in [Passes::NONE, Passes::ALL] {
                let [wide, stored] = [storage, in_bf16(storage)].map(|s| program(&model, s, passes, &ANY_WORKLOAD));
                assert_same(&results(&stored, &data), &results(&wide, &data), 1e-12);
                let rows = |program: &Program| {
                    let tensors = program.tensors().into_iter().map(|tensor| program.tensor(tensor));
                    let rows = tensors.filter(|t| t.ty.rows == RowSpace::Vertices && t.ty.dtype.float().is_some());
                    let rows = rows.filter(|t| !matches!(t.origin, Some(Origin::Scale(_))));
                    rows.map(|t| t.ty.dtype).collect::<std::collections::HashSet<_>>()
                };
                assert_eq!([rows(&wide), rows(&stored)].map(Vec::from_iter), [[DType::F32], [DType::Bf16]]);
                let mut results = stored.outputs().values().map(|&output| stored.tensor(output).ty.dtype);
                assert!(results.all(|dtype| dtype == DType::F32), "the loss and the gradients of parameters");
            }
        }
    }
}

#[test]
fn tiles_train_as_the_whole_graph_does() {
    for name in MODELS {
        let config = ModelConfig::new(name, &[FEATURES, 4, 6, CLASSES]);
        let model = Model::from_config(config).unwrap().dropout(0.4).layer_norm(true);
        for storage in STORAGES.into_iter().chain(STORAGES.map(in_bf16)) {
            let data = inputs(hostile_graph(), storage);
            for passes in [Passes::NONE, Passes::ALL] {
                let program = with_updates(program(&model, storage, passes, &ANY_WORKLOAD));
                let (loss, whole) = run_in_parts(&program, &data, &[12], 1);
                for (ends, tiles) in [(&[12][..], 2), (&[12], 5), (&[12], 16), (&[5, 12], 3), (&[0, 3, 3, 7, 12], 2)] {
                    let (loss_of_tiles, parts) = run_in_parts(&program, &data, ends, tiles);
                    let what = format!("{name} {storage:?} {ends:?} in {tiles} tiles");
                    assert!((loss - loss_of_tiles).abs() < 1e-12, "{what}: {loss_of_tiles}, not {loss}");
                    for part in parts {
                        assert_same(&part, &whole[0], 1e-12);
                    }
                }
            }
        }
    }
}

#[test]
fn reuse_lets_the_dropped_matrix_be_the_mask_and_changes_no_result() {
    let data = inputs(hostile_graph(), DENSE);
    for name in MODELS {
        let config = ModelConfig::new(name, &[FEATURES, 4, 6, CLASSES]);
        let model = Model::from_config(config).unwrap().dropout(0.4);
        let plain = program(&model, DENSE, Passes { reuse: false, ..UNFUSED }, &ANY_WORKLOAD);
        let reused = program(&model, DENSE, UNFUSED, &ANY_WORKLOAD);
        // Returns the number of readers of each ReLU's output: the dropout and, without the pass, the ReLU's gradient.
        let readers = |program: &Program| {
            let relus = program.ops().into_iter().filter(|&op| *program.op(op) == RowStep::Relu.into());
            relus.map(|op| program.consumers(program.op_outputs(op)[0]).len()).collect::<Vec<_>>()
        };
        let (before, after) = (readers(&plain), readers(&reused));
        assert!(before.iter().sum::<usize>() > after.iter().sum() || name == "resgcn", "{name}: {before:?}, {after:?}");
        assert_same(&results(&plain, &data), &results(&reused, &data), 0.0);
    }
}
