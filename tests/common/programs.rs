//! Small training programs, their data, and their values in f64.

use super::numbers;
use super::oracle::Oracle;
use lapidary::graph::Graph;
use lapidary::lower::{FeatureData, Inputs, LabelData, Lowered};
use lapidary::model::{FeatureKind, Mode, Model, ModelConfig, ModelError, Network, Value};
use lapidary::program::passes::fuse::fuse;
use lapidary::program::passes::order::{Workload, order};
use lapidary::program::passes::prune::prune;
use lapidary::program::passes::reuse::reuse;
use lapidary::program::{DType, Loss, Origin, Passes, Program, RowSpace, SplitName, TensorType, append_backward};
use lapidary_kernels::{Shared, Slot, StorageType};

pub const FEATURES: usize = 5;
pub const CLASSES: usize = 3;

/// The storage of a test's data.
#[derive(Clone, Copy, Debug)]
pub struct Storage {
    pub sparse: bool,
    pub multi: bool,
    pub dtype: StorageType,
}

pub const STORAGES: [Storage; 4] = [
    Storage { sparse: false, multi: false, dtype: StorageType::F32 },
    Storage { sparse: true, multi: false, dtype: StorageType::F32 },
    Storage { sparse: false, multi: true, dtype: StorageType::F32 },
    Storage { sparse: true, multi: true, dtype: StorageType::F32 },
];
pub const DENSE: Storage = STORAGES[0];

/// Returns the same storage with vertex matrices in bf16.
pub fn in_bf16(storage: Storage) -> Storage {
    Storage { dtype: StorageType::Bf16, ..storage }
}

/// Returns a graph with dense or sparse features and labels; two thirds of the vertices are for training.
pub fn inputs(graph: Graph, Storage { sparse, multi, .. }: Storage) -> Inputs {
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
    Inputs {
        graph,
        symmetric,
        edge_weights: None,
        features,
        labels,
        split: Shared::from(split),
        labelled: [0, train, 0, n as u64 - train],
        class_weights: None,
        kept: None,
    }
}

/// Returns a custom model over the data of [`inputs`].
pub fn network<F>(name: &str, forward: F) -> Model
where
    F: Fn(&mut Network, Value, &ModelConfig) -> Result<Value, ModelError> + Send + Sync + 'static,
{
    Model::custom(name, &[FEATURES, CLASSES], forward)
}

/// Builds the training program of a network up to its gradients. The outputs are `loss` and one gradient per parameter.
pub fn program(model: &Model, storage: Storage, passes: Passes, workload: &Workload) -> Program {
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

pub const UNFUSED: Passes = Passes { fuse: false, ..Passes::ALL };

pub const ANY_WORKLOAD: Workload = Workload { vertices: 12, edges: 24, levels: None, backward: true, runs: 100 };

/// Returns parameters whose values leave no ReLU exactly at 0.
pub fn parameters(lowered: &Lowered) -> Vec<(String, Slot, Vec<f32>)> {
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

pub fn oracle_with(lowered: &Lowered, data: &Inputs, parameters: &[(String, Slot, Vec<f32>)]) -> Oracle {
    let mut oracle = Oracle::new(lowered, data);
    for (_, slot, values) in parameters {
        oracle.write(*slot, &values.iter().copied().map(f64::from).collect::<Vec<_>>());
    }
    oracle
}
