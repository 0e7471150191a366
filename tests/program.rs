//! Programs: operands that do not fit, invalid models, names and counts of parameters.

use crate::common::MODELS;
use crate::common::programs::{ANY_WORKLOAD, CLASSES, FEATURES, STORAGES, UNFUSED, program};
use lapidary::model::{FeatureKind, Init, Mode, Model, ModelConfig, ModelError, Norm, initial_weights};
use lapidary::program::{
    BlockSpec, DType, EdgeOp, Gather, Linear, Op, OpId, Origin, Program, ProgramError, RowSpace, RowStep, TensorType,
    append_backward,
};
use lapidary::{Passes, StorageType};
use lapidary_kernels::op::Misfit;

const DENSE: FeatureKind = FeatureKind::Dense { width: 5 };

#[test]
fn operands_that_do_not_fit_are_named() {
    let mut program = Program::new();
    let x = program.input(Origin::Features, TensorType::f32(RowSpace::Vertices, 5)).unwrap();
    let w = program.input(Origin::Parameter("w".into()), TensorType::f32(RowSpace::Param(3), 4)).unwrap();
    assert!(matches!(
        program.push(Linear::Product, &[x, w]),
        Err(ProgramError::Misfit(Misfit::Operand { op: "linear", place: 1, .. }))
    ));
    assert!(matches!(
        program.push(Linear::Product, &[x, x]),
        Err(ProgramError::Misfit(Misfit::Operand { place: 1, .. }))
    ));
    assert!(matches!(
        program.push(Linear::Product, &[x]),
        Err(ProgramError::Misfit(Misfit::OperandCount { want: 2, got: 1, .. }))
    ));
    let block = BlockSpec::Features { width: 5, transposed: false };
    assert!(matches!(
        program.push(Gather::over(block), &[x]),
        Err(ProgramError::Misfit(Misfit::Operand { op: "gather", .. }))
    ));
    let clock = TensorType { rows: RowSpace::Scalar, width: 2, dtype: DType::U64 };
    let clock = program.input(Origin::Clock, clock).unwrap();
    let dropped = program.push(RowStep::Dropout { rate: 0.5, salt: 0, first_column: 0 }, &[w, clock]);
    assert!(
        matches!(dropped, Err(ProgramError::Misfit(Misfit::Operand { op: "dropout", place: 0, .. }))),
        "{dropped:?}"
    );
    assert!(program.ops().is_empty(), "what was refused is not there");
    let other = TensorType::f32(RowSpace::Vertices, 6);
    assert!(matches!(program.input(Origin::Features, other), Err(ProgramError::OriginType { .. })));
}

#[test]
fn a_loss_without_a_rule_is_an_error_and_not_a_wrong_gradient() {
    let mut program = Program::new();
    let x = program.input(Origin::Features, TensorType::f32(RowSpace::Vertices, 5)).unwrap();
    let w = program.input(Origin::Parameter("w".into()), TensorType::f32(RowSpace::Param(3), 5)).unwrap();
    let y = program.push1(Linear::Product, &[x, w]).unwrap();
    let sum = program.push1(Linear::ColumnSum, &[y]).unwrap();
    assert!(matches!(
        append_backward(&mut program, &[(sum, 1.0)]),
        Err(ProgramError::NoGradient { op: "column_sum", .. })
    ));
}

#[test]
fn values_of_sparse_features_are_permuted_once_and_not_every_epoch() {
    let model = Model::sage(&[FEATURES, 4, CLASSES]).dropout(0.5);
    let program = program(&model, STORAGES[1], UNFUSED, &ANY_WORKLOAD);
    let ops = program.ops();
    let moved: Vec<_> = ops.iter().filter(|op| matches!(program.op(**op), Op::Edge(EdgeOp::Permute { .. }))).collect();
    assert_eq!(moved.len(), 1, "both weights of the first layer have gradients over the same edges");
    assert!(program.inputs(*moved[0]).iter().all(|&tensor| program.tensor(tensor).constant));
    let dropped = |op: &&OpId| {
        let of_edges = |&tensor: &_| matches!(program.tensor(tensor).ty.rows, RowSpace::Edges(_));
        matches!(program.op(**op), Op::Row(RowStep::Dropout { .. })) && program.inputs(**op).iter().any(of_edges)
    };
    assert_eq!(ops.iter().filter(dropped).count(), 2, "the values of the block, and of the transposed one");
}

#[test]
fn models_that_cannot_be_are_errors() {
    let network = |model: Model| model.network(DENSE, Mode::Train, StorageType::F32).map(|_| ()).unwrap_err();
    assert!(matches!(network(Model::gcn(&[])), ModelError::Widths { .. }));
    assert!(matches!(network(Model::gcn(&[5])), ModelError::Widths { .. }));
    assert!(matches!(network(Model::gcn(&[5, 0, 2])), ModelError::Widths { .. }));
    assert!(matches!(network(Model::gcn(&[4, 2])), ModelError::FeatureWidth { model: 4, data: 5 }));
    assert!(matches!(network(Model::gcn(&[5, 2]).dropout(1.0)), ModelError::DropoutRate { .. }));
    assert!(matches!(network(Model::gcn(&[5, 2]).input_dropout(f32::NAN)), ModelError::DropoutRate { .. }));
    let narrow = Model::custom("narrow", &[5, 3], |net, x, _| net.linear(x, "a", 2, false));
    assert!(matches!(network(narrow), ModelError::OutputWidth { want: 3, got: 2 }));
    let twice = Model::custom("twice", &[5, 3], |net, x, _| {
        let h = net.linear(x, "a", 4, false)?;
        net.linear(h, "a", 3, false)
    });
    assert!(matches!(network(twice), ModelError::ParameterTwice { .. }));
    let sparse = Model::custom("sparse", &[5, 5], |net, x, _| net.gather(x, false));
    let error =
        sparse.network(FeatureKind::Sparse { width: 5 }, Mode::Train, StorageType::F32).map(|_| ()).unwrap_err();
    assert!(matches!(error, ModelError::SparseInput { op: "a gather" }));

    let config = |name: &str| ModelConfig { name: name.into(), ..Model::gcn(&[5, 2]).config().clone() };
    for name in ["gin", "sage"] {
        let fixed = Model::from_config(config(name)).unwrap().norm(Norm::Sym);
        let error = fixed.network(DENSE, Mode::Train, StorageType::F32).map(|_| ()).unwrap_err();
        assert!(matches!(error, ModelError::NormNotTaken { .. }), "{error}");
    }
    let unknown = Model::from_config(config("mlp")).unwrap_err();
    assert!(matches!(unknown, ModelError::Unknown { .. }));
    // The tests of all models are tests of all models.
    let text = unknown.to_string();
    let mut named: Vec<&str> = text.rsplit("there are ").next().unwrap().split(", ").collect();
    let mut tested = MODELS;
    named.sort_unstable();
    tested.sort_unstable();
    assert_eq!(named, tested);
}

#[test]
fn parameters_have_pygs_names_and_shapes_and_glorots_numbers() {
    let (network, _) =
        Model::gcn(&[500, 300, 7]).network(FeatureKind::Dense { width: 500 }, Mode::Train, StorageType::F32).unwrap();
    let parameters = network.parameters();
    let shapes: Vec<(&str, &[usize])> = parameters.iter().map(|p| (p.name.as_str(), &p.shape[..])).collect();
    let want: [(&str, &[usize]); 4] = [
        ("convs.0.lin.weight", &[300, 500]),
        ("convs.0.bias", &[300]),
        ("convs.1.lin.weight", &[7, 300]),
        ("convs.1.bias", &[7]),
    ];
    assert_eq!(shapes, want);
    assert_eq!(parameters[2].layer(), Some(1));
    assert_eq!(parameters[0].init, Init::Glorot);

    let weights = initial_weights(parameters, 11);
    let data = &weights.get("convs.0.lin.weight").unwrap().data;
    let bound = (6.0f64 / 800.0).sqrt();
    assert!(data.iter().all(|&x| f64::from(x).abs() <= bound));
    let mean = data.iter().map(|&x| f64::from(x)).sum::<f64>() / data.len() as f64;
    let variance = data.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / data.len() as f64;
    // Five standard errors of the mean and the variance of 150,000 uniform numbers.
    assert!(mean.abs() < 5.0 * bound / (3.0f64 * 150_000.0).sqrt());
    assert!((variance / (bound * bound / 3.0) - 1.0).abs() < 5.0 * (0.8f64 / 150_000.0).sqrt());
    assert!(weights.get("convs.1.bias").unwrap().data.iter().all(|&x| x == 0.0));
    assert_eq!(weights, initial_weights(parameters, 11));
    assert_ne!(weights, initial_weights(parameters, 12));
}

#[test]
fn lists_of_passes_are_read() {
    assert_eq!("all".parse(), Ok(Passes::ALL));
    assert_eq!("none".parse(), Ok(Passes::NONE));
    assert_eq!("prune".parse(), Ok(Passes { prune: true, ..Passes::NONE }));
    assert_eq!("order, prune".parse(), Ok(Passes { fuse: false, reuse: false, ..Passes::ALL }));
    assert_eq!("order,prune,reuse,fuse".parse(), Ok(Passes::ALL));
    for (bad, unknown) in [("", ""), ("al", "al"), ("order,none", "none"), ("fused", "fused"), ("order,,prune", "")] {
        let error = bad.parse::<Passes>().unwrap_err().to_string();
        assert!(error.starts_with(&format!("there is no pass `{unknown}`;")), "{bad}: {error}");
    }
}
