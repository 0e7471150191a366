//! Passes, parts, tiles and bf16 change no result of a program; computed in f64.

use crate::common::oracle::Oracle;
use crate::common::programs::*;
use crate::common::{MODELS, hostile_graph, pairs};
use lapidary::lower::{
    BackwardMode, Exchange, ExchangePath, FeatureData, Inputs, Layout, Lowered, Sizes, SumMode, Supply, Tiling, lower,
};
use lapidary::model::{Model, ModelConfig, Norm, gcn_conv};
use lapidary::plan::Tasks;
use lapidary::program::passes::order::Workload;
use lapidary::program::passes::recompute::{Extent, recompute};
use lapidary::program::{DType, Op, Origin, Passes, Program, RowSpace, RowStep, Tensor, TensorId, TensorType};
use lapidary_kernels::op::{EdgeWeight, Optimizer};
use lapidary_planner::tasks::{TaskGraph, TaskId};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

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
    run_over((Layout::from(tiles), SumMode::Parts), program, data, ends)
}

/// Does the same with this layout and these sums.
fn run_over(
    (layout, sums): (Layout, SumMode),
    program: &Program,
    data: &Inputs,
    ends: &[usize],
) -> (f64, Vec<Parameters>) {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let mut supply = Supply::of_parts(data, starts.zip(ends.iter().copied()).map(|(a, b)| a..b).collect());
    let tilings = supply.tile(layout);
    let lowered_part = |tiling| lower(&[("test", program)], tiling, 3).with_sums(sums);
    let lowered: Vec<Lowered> = tilings.iter().map(lowered_part).collect();
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
            if let Exchange::Reduce { term, sum } = *exchange {
                if steps[0][i].call.writes().any(|slot| slot == sum) {
                    let terms: Vec<Vec<f64>> = oracles.iter().map(|oracle| oracle.float(term).to_vec()).collect();
                    let added: Vec<f64> = (0..terms[0].len()).map(|k| terms.iter().map(|term| term[k]).sum()).collect();
                    oracles.iter_mut().for_each(|oracle| oracle.write(sum, &added));
                }
                continue;
            }
            if let Exchange::Fetch { packed, halo, crossing, owner } = *exchange {
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
                    let sources = supply.routes(crossing).sources[part].iter();
                    let sources = sources.filter(|source| owner.is_none_or(|owner| source.part == owner));
                    let of_owner = |source: &lapidary::lower::Source| {
                        let rows = rows.by_ref().take(source.rows.len()).map(|row| row as usize);
                        rows.flat_map(|row| packed[source.part][row * out.cols..][..out.cols].to_vec())
                            .collect::<Vec<f64>>()
                    };
                    let fetched: Vec<f64> = sources.flat_map(of_owner).collect();
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
                    Exchange::Fetch { .. } | Exchange::Reduce { .. } => unreachable!("it was done above"),
                    Exchange::Sum { .. } => {
                        (0..published[0].len()).map(|k| published.iter().map(|term| term[k]).sum()).collect()
                    }
                    Exchange::Halo { crossing, width, .. } => {
                        let sources = &supply.routes(crossing).sources[part];
                        let rows = sources.iter().flat_map(|s| s.rows.iter().map(|&row| (s.part, row as usize)));
                        rows.flat_map(|(owner, row)| published[owner][row * width..][..width].to_vec()).collect()
                    }
                };
                let mut received = &received[..];
                for &slot in exchange.received() {
                    let numbers = match exchange {
                        Exchange::Fetch { .. } | Exchange::Reduce { .. } => unreachable!("nothing is received for it"),
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
        next.map(|&(new, old)| (lowered.tensor(old).name.to_string(), oracle.float(new).to_vec())).collect()
    });
    (loss, updated.collect())
}

/// Returns the layouts of parts without tiles.
fn layouts() -> impl Iterator<Item = Layout> {
    let paths = [ExchangePath::Host, ExchangePath::Peer, ExchangePath::Staged].into_iter();
    paths.flat_map(|path| {
        [BackwardMode::Pull, BackwardMode::Fold].map(|backward| Layout { path, backward, ..Layout::from(1) })
    })
}

#[test]
fn parts_train_as_the_whole_graph_does() {
    for name in MODELS {
        let config = ModelConfig::new(name, &[FEATURES, 4, 6, CLASSES]);
        let model = Model::from_config(config).unwrap().heads(2).dropout(0.4).layer_norm(true);
        for storage in STORAGES.into_iter().chain(STORAGES.map(in_bf16)) {
            let data = inputs(hostile_graph(), storage);
            let program = with_updates(program(&model, storage, Passes::ALL, &ANY_WORKLOAD));
            let (loss, whole) = run_in_parts(&program, &data, &[12], 1);
            for ends in [&[5, 12][..], &[0, 3, 3, 7, 12], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 12]] {
                for layout in layouts() {
                    let sums = if layout.path == ExchangePath::Peer { SumMode::Nccl } else { SumMode::Parts };
                    let (loss_of_parts, parts) = run_over((layout, sums), &program, &data, ends);
                    assert!(
                        (loss - loss_of_parts).abs() < 1e-12,
                        "{name} {storage:?} {ends:?} {layout:?}: {loss_of_parts}, not {loss}"
                    );
                    for part in parts {
                        assert_same(&part, &whole[0], 1e-12);
                    }
                }
            }
        }
    }
}

/// All parts run the steps in the order that was planned for one of them, also parts that read no rows of others.
#[test]
fn any_order_of_one_part_is_an_order_of_all() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    for name in MODELS {
        let model = Model::from_config(ModelConfig::new(name, &[FEATURES, 4, CLASSES])).unwrap().heads(2);
        let data = inputs(hostile_graph(), DENSE);
        let program = with_updates(program(&model, DENSE, Passes::ALL, &ANY_WORKLOAD));
        for ends in [&[5, 12][..], &[0, 3, 3, 7, 12], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 12]] {
            let starts = [0].iter().chain(ends);
            let parts: Vec<_> = starts.zip(ends).map(|(&start, &end)| start..end).collect();
            for layout in layouts().chain([Layout::from(3)]) {
                let tasks = |tiling: &Tiling| {
                    let lowered = lower(&[("test", &program)], tiling, 3);
                    let published = lowered.exchanges.iter().flat_map(|exchange| exchange.published().to_vec());
                    Tasks::new(&lowered, &lowered.phases[0].steps, &published.collect(), &[]).unwrap().graph
                };
                let tilings = Supply::of_parts(&data, parts.clone()).tile(layout);
                let graphs: Vec<TaskGraph> = tilings.iter().map(tasks).collect();
                for (decides, graph) in graphs.iter().enumerate() {
                    let order = random_order(graph, &mut rng);
                    for (part, graph) in graphs.iter().enumerate() {
                        assert!(graph.is_order(&order), "{name} {ends:?} {layout:?}: part {part}, order of {decides}");
                    }
                }
            }
        }
    }
}

/// Returns the ops in an order in which each comes after those that it depends on, otherwise at random.
fn random_order(graph: &TaskGraph, rng: &mut ChaCha8Rng) -> Vec<TaskId> {
    let mut waiting: Vec<TaskId> = (0..graph.ops().len() as u32).map(TaskId).collect();
    let mut order = Vec::new();
    let mut done = std::collections::BTreeSet::new();
    while !waiting.is_empty() {
        let is_ready = |op: &TaskId| {
            let makers = graph.op(*op).inputs.iter().filter_map(|&tensor| graph.producer(tensor));
            makers.into_iter().all(|maker| done.contains(&maker.0))
        };
        let ready: Vec<usize> = (0..waiting.len()).filter(|&i| is_ready(&waiting[i])).collect();
        let next = waiting.remove(ready[rng.random_range(0..ready.len())]);
        done.insert(next.0);
        order.push(next);
    }
    order
}

/// With an oracle that does not round, bf16 storage changes only the types, and no results.
#[test]
fn a_program_over_bf16_computes_what_the_one_over_f32_does() {
    for name in MODELS {
        let config = ModelConfig::new(name, &[FEATURES, 4, 6, CLASSES]);
        let model = Model::from_config(config).unwrap().heads(2).dropout(0.4).layer_norm(true);
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
                    // What attention keeps for its gradient is not rounded.
                    let kept = ["attention_grads", "attention_v2_grads", "attention_target_grad"];
                    let f32s = |t: &&Tensor| t.name.starts_with("attention") && t.ty.width <= 2;
                    let rows = rows.filter(|t| !matches!(t.origin, Some(Origin::Scale(_))));
                    let rows = rows.filter(|t| !f32s(t) && !kept.iter().any(|name| t.name.starts_with(name)));
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
        let model = Model::from_config(config).unwrap().heads(2).dropout(0.4).layer_norm(true);
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

/// Returns the program with tensors that are made again, and the number of operations that this added.
fn remade(program: &Program, extent: Extent) -> (Program, usize) {
    let mut remade = program.clone();
    let loss = remade.outputs()["loss"];
    let added = recompute(&mut remade, &[loss], extent).len();
    assert_eq!(remade.ops().len(), program.ops().len() + added);
    (remade, added)
}

#[test]
fn what_is_made_again_changes_no_result() {
    for name in MODELS {
        let config = ModelConfig::new(name, &[FEATURES, 4, 6, 4, CLASSES]);
        let model = Model::from_config(config).unwrap().heads(2).dropout(0.4).layer_norm(true);
        for storage in STORAGES {
            let data = inputs(hostile_graph(), storage);
            for passes in [Passes::NONE, Passes::ALL] {
                let plain = with_updates(program(&model, storage, passes, &ANY_WORKLOAD));
                let (again, added) = remade(&plain, Extent::Gathers);
                assert!(added > 0, "{name} {storage:?}: four layers have something to make again");
                assert_same(&results(&again, &data), &results(&plain, &data), 0.0);
                let by_name = |mut parameters: Parameters| {
                    parameters.sort_by(|a, b| a.0.cmp(&b.0));
                    parameters
                };
                let (want, updated) = run_in_parts(&plain, &data, &[12], 1);
                let updated = by_name(updated[0].clone());
                for (ends, tiles) in [(&[12][..], 1), (&[12], 5), (&[5, 12], 1), (&[0, 3, 3, 7, 12], 2)] {
                    let (loss, parts) = run_in_parts(&again, &data, ends, tiles);
                    let what = format!("{name} {storage:?} {ends:?} in {tiles} tiles");
                    assert!((loss - want).abs() < 1e-12, "{what}: {loss}, not {want}");
                    for part in parts {
                        assert_same(&by_name(part), &updated, 1e-12);
                    }
                }
            }
        }
    }
}

/// Returns the most bytes that live at once if the operations run in program order, without parameters and constants.
fn most_bytes(program: &Program, data: &Inputs) -> u64 {
    let lowered = lower(&[("test", program)], &Sizes::of(data).into(), 3);
    let steps = &lowered.phases[0].steps;
    let mut life = std::collections::HashMap::new();
    for (i, step) in steps.iter().enumerate() {
        life.extend(step.call.writes().map(|slot| (slot, (i, i))));
        for slot in step.call.reads() {
            if let Some((_, last)) = life.get_mut(&slot) {
                *last = i;
            }
        }
    }
    let at = |i: usize| {
        let alive = life.iter().filter(|(_, (first, last))| (*first..=*last).contains(&i));
        alive.map(|(slot, _)| lowered.tensor(*slot).bytes).sum::<u64>()
    };
    (0..steps.len()).map(at).max().unwrap()
}

#[test]
fn what_is_made_again_is_not_kept_meanwhile() {
    let data = inputs(hostile_graph(), DENSE);
    for name in MODELS {
        let config = ModelConfig::new(name, &[&[FEATURES][..], &[16; 12], &[CLASSES]].concat());
        let model = Model::from_config(config).unwrap().heads(2).dropout(0.4);
        let plain = program(&model, DENSE, Passes::ALL, &ANY_WORKLOAD);
        let [before, after] = [&plain, &remade(&plain, Extent::Gathers).0].map(|program| most_bytes(program, &data));
        assert!(after < before, "{name}: {after} bytes at once, {before} without");
    }
}

#[test]
fn reuse_lets_the_dropped_matrix_be_the_mask_and_changes_no_result() {
    let data = inputs(hostile_graph(), DENSE);
    for name in MODELS {
        let config = ModelConfig::new(name, &[FEATURES, 4, 6, CLASSES]);
        let model = Model::from_config(config).unwrap().heads(2).dropout(0.4);
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
