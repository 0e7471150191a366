//! The pass `fuse`: fewer operations, and the same bits.

use crate::common::Tier;
use lapidary::model::ModelConfig;
use lapidary::program::passes::fuse::fuse;
use lapidary::program::{BlockSpec, Degree, Gather, Linear, Op, Origin, Program, RowSpace, RowStep, TensorType};
use lapidary::{Adam, Dataset, Devices, Model, Partition, Trainer, Weights};

/// The losses, the last epoch's gradients and the weights after a few epochs.
fn train(model: &Model, data: &Dataset, devices: &str, passes: &str) -> (Vec<u64>, Weights, Weights) {
    let builder = Trainer::builder(model, data).devices(Devices::parse(devices).unwrap()).keep_gradients(true);
    let builder = builder.partition(Partition::parse("edges").unwrap()).passes(passes.parse().unwrap());
    let mut trainer = builder.optimizer(Adam::new(0.01).weight_decay(5e-4)).build().unwrap();
    let losses = (0..4).map(|_| trainer.step().unwrap().loss.to_bits()).collect();
    (losses, trainer.gradients().unwrap(), trainer.weights().unwrap())
}

fn bits(weights: &Weights) -> Vec<(String, Vec<u32>)> {
    weights.iter().map(|(name, tensor)| (name.to_string(), tensor.data.iter().map(|x| x.to_bits()).collect())).collect()
}

/// Returns datasets with dense and sparse features, and a directed graph.
fn datasets() -> Vec<Dataset> {
    let mut sets = vec![Dataset::builtin("karate").unwrap(), Dataset::builtin("planted").unwrap()];
    for name in ["cora", "directed-small"] {
        sets.extend(crate::common::shared(&format!("data/{name}")).map(|dir| Dataset::open(dir).unwrap()));
    }
    sets
}

#[test]
fn fused_programs_compute_the_same_bits() {
    fused_and_apart(Tier::Quick);
}

#[test]
#[ignore = "full: the other models on larger graphs"]
fn fused_programs_compute_the_same_bits_on_larger_graphs() {
    fused_and_apart(Tier::Full);
}

fn fused_and_apart(tier: Tier) {
    for data in datasets() {
        for &name in tier.models(&data) {
            let config = ModelConfig::new(name, &[data.feature_width(), 12, 9, data.class_count()]);
            for layer_norm in [false, true] {
                let model = Model::from_config(config.clone()).unwrap().heads(3).dropout(0.4).layer_norm(layer_norm);
                for devices in ["cpu", "sim:3"] {
                    for [apart, fused] in [["order,prune", "all"], ["none", "fuse"]] {
                        let what = format!("{name} on {}, layer norm {layer_norm}, {devices}, {fused}", data.name());
                        let (losses, gradients, weights) = train(&model, &data, devices, apart);
                        let (fused_losses, fused_gradients, fused_weights) = train(&model, &data, devices, fused);
                        assert_eq!(losses, fused_losses, "{what}: losses");
                        assert_eq!(bits(&gradients), bits(&fused_gradients), "{what}: gradients");
                        assert_eq!(bits(&weights), bits(&fused_weights), "{what}: weights");
                    }
                }
            }
        }
    }
}

/// The comparison above must be able to fail: another pass does change the rounding.
#[test]
fn another_order_of_operations_is_not_the_same_bits() {
    let data = Dataset::builtin("planted").unwrap();
    let model = Model::gcn(&[data.feature_width(), 40, data.class_count()]);
    let (_, first, _) = train(&model, &data, "cpu", "none");
    let (_, second, _) = train(&model, &data, "cpu", "order");
    assert_ne!(bits(&first), bits(&second));
}

#[test]
fn a_record_from_before_the_pass_did_without() {
    let old: lapidary::Passes = serde_json::from_str(r#"{"order":true,"prune":true}"#).unwrap();
    assert_eq!(old, "order,prune".parse().unwrap());
}

/// Builds a layer: product, scale, gather, scale, bias, ReLU. Returns the program, its product and its result.
fn layer() -> (Program, [lapidary::program::TensorId; 2]) {
    let mut program = Program::new();
    let mut input = |origin, rows, width| program.input(origin, TensorType::f32(rows, width)).unwrap();
    let x = input(Origin::Features, RowSpace::Vertices, 3);
    let scale = input(Origin::Scale(Degree::InverseRoot { self_loops: true, weighted: false }), RowSpace::Vertices, 1);
    let weight = input(Origin::Parameter("weight".into()), RowSpace::Param(4), 3);
    let bias = input(Origin::Parameter("bias".into()), RowSpace::Param(1), 4);
    let block = BlockSpec::Graph { self_loops: true, transposed: false };
    // This scale has constant operands and is computed once. It must not be fused with per-epoch operations.
    let x = program.push1(RowStep::Scale, &[x, scale]).unwrap();
    let product = program.push1(Linear::Product, &[x, weight]).unwrap();
    let scaled = program.push1(RowStep::Scale, &[product, scale]).unwrap();
    let gathered = program.push1(Gather::over(block), &[scaled]).unwrap();
    let scaled = program.push1(RowStep::Scale, &[gathered, scale]).unwrap();
    let shifted = program.push1(RowStep::AddBias, &[scaled, bias]).unwrap();
    let rectified = program.push1(RowStep::Relu, &[shifted]).unwrap();
    program.set_output("result", rectified);
    (program, [product, rectified])
}

fn ops(program: &Program) -> Vec<Op> {
    program.ops().into_iter().map(|op| program.op(op).clone()).collect()
}

#[test]
fn a_layer_becomes_a_product_and_a_gather() {
    let (mut program, [_, result]) = layer();
    fuse(&mut program);
    let gather = Gather::over(BlockSpec::Graph { self_loops: true, transposed: false });
    let product = Op::from(Linear::Product).followed_by([RowStep::Scale]);
    let gathered = gather.followed_by([RowStep::Scale, RowStep::AddBias, RowStep::Relu]);
    assert_eq!(ops(&program), [Op::Row(RowStep::Scale), product, gathered]);
    assert_eq!(program.outputs()["result"], result);
}

#[test]
fn what_others_read_and_results_stay() {
    let (mut program, [product, result]) = layer();
    program.set_output("product", product);
    let doubled = program.push1(RowStep::Add, &[result, result]).unwrap();
    program.set_output("doubled", doubled);
    fuse(&mut program);
    let left = ops(&program);
    assert!(left.contains(&Linear::Product.into()), "a result is not fused away: {left:?}");
    assert!(left.contains(&RowStep::Add.into()), "what is read twice is not fused away: {left:?}");
}

#[test]
fn row_steps_follow_only_what_makes_rows() {
    let mut program = Program::new();
    let x = program.input(Origin::Features, TensorType::f32(RowSpace::Vertices, 3)).unwrap();
    let bad = Op::from(Linear::ColumnSum).followed_by([RowStep::Relu]);
    assert!(program.push(bad, &[x]).unwrap_err().to_string().contains("fused operation"));
}
