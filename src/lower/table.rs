//! The table of tensors: slots, sizes, and the contents of what the data gives.

use std::collections::BTreeMap;

use lapidary_kernels::{BlockSlots, HostSlot, Shared, Slot};
use rayon::prelude::*;

use super::{FeatureData, Inputs, Kind, LabelData, LoweredTensor};
use crate::graph::{Block, Graph};
use crate::program::{BlockSpec, Degree, Origin, RowSpace, SplitName, Tensor, TensorType};

/// A block with its slots.
struct Bound {
    slots: BlockSlots,
    block: Block,
    /// Where its edges were in the block that it was transposed from.
    permutation: Option<Shared<u64>>,
}

/// Tensors so far.
pub(super) struct Table<'a> {
    inputs: &'a Inputs,
    tensors: Vec<LoweredTensor>,
    origins: BTreeMap<Origin, Slot>,
    blocks: BTreeMap<BlockSpec, Bound>,
    looped: Option<Graph>,
}

impl<'a> Table<'a> {
    pub(super) fn new(inputs: &'a Inputs) -> Self {
        Self { inputs, tensors: Vec::new(), origins: BTreeMap::new(), blocks: BTreeMap::new(), looped: None }
    }

    pub(super) fn finish(self) -> (Vec<LoweredTensor>, BTreeMap<Origin, Slot>) {
        (self.tensors, self.origins)
    }

    /// A slot for an operation's output.
    pub(super) fn tensor(&mut self, tensor: &Tensor, kind: Kind) -> Slot {
        let bytes = self.byte_count(tensor.ty);
        self.push(LoweredTensor { name: tensor.name.clone(), bytes, kind, contents: None })
    }

    /// The slot of what no operation produces: the same one each time.
    pub(super) fn origin(&mut self, origin: &Origin, name: &str, ty: TensorType) -> Slot {
        if let Some(&slot) = self.origins.get(origin) {
            return slot;
        }
        let contents = self.contents(origin);
        let kind = if contents.is_some() { Kind::Constant } else { Kind::State };
        let bytes = self.byte_count(ty);
        let slot = self.push(LoweredTensor { name: name.into(), bytes, kind, contents });
        self.origins.insert(origin.clone(), slot);
        slot
    }

    /// The slots of a block. A symmetric graph is its own transpose.
    pub(super) fn block(&mut self, spec: BlockSpec) -> BlockSlots {
        self.bound(spec).slots
    }

    /// A split's code, and how many of its vertices are labelled.
    pub(super) fn split(&self, split: SplitName) -> (u32, u64) {
        let code = Inputs::split_code(split);
        (code, self.inputs.labelled[code as usize])
    }

    pub(super) fn row_count(&mut self, rows: RowSpace) -> usize {
        match rows {
            RowSpace::Vertices => self.inputs.graph.vertex_count(),
            RowSpace::Halo => 0,
            RowSpace::Edges(block) => self.bound(block).slots.edges,
            RowSpace::Param(rows) => rows,
            RowSpace::Scalar => 1,
        }
    }

    fn byte_count(&mut self, ty: TensorType) -> u64 {
        self.row_count(ty.rows) as u64 * ty.width as u64 * ty.dtype.byte_count()
    }

    fn push(&mut self, tensor: LoweredTensor) -> Slot {
        self.tensors.push(tensor);
        Slot(self.tensors.len() as u32 - 1)
    }

    fn bound(&mut self, spec: BlockSpec) -> &Bound {
        let spec = match spec {
            BlockSpec::Graph { self_loops, .. } if self.inputs.symmetric => {
                BlockSpec::Graph { self_loops, transposed: false }
            }
            other => other,
        };
        if !self.blocks.contains_key(&spec) {
            let (block, permutation) = self.cut(spec);
            let slots = BlockSlots {
                indptr: self.array(format!("{}.indptr", block_name(spec)), block.indptr()),
                indices: self.array(format!("{}.indices", block_name(spec)), block.indices()),
                rows: block.row_count(),
                own_sources: block.own_sources(),
                halo_sources: block.halo().len(),
                edges: block.edge_count(),
            };
            self.blocks.insert(spec, Bound { slots, block, permutation });
        }
        &self.blocks[&spec]
    }

    fn array<T: bytemuck::Pod + Send + Sync>(&mut self, name: String, values: &Shared<T>) -> Slot {
        let bytes = size_of_val(&values[..]) as u64;
        self.push(LoweredTensor { name, bytes, kind: Kind::Constant, contents: Some(HostSlot::constant(values)) })
    }

    fn cut(&mut self, spec: BlockSpec) -> (Block, Option<Shared<u64>>) {
        let transposed = match spec {
            BlockSpec::Graph { transposed, .. } | BlockSpec::Features { transposed, .. } => transposed,
        };
        if transposed {
            let (block, permutation) = self.bound(spec.transpose()).block.transpose();
            return (block, Some(permutation.into()));
        }
        let block = match spec {
            BlockSpec::Graph { self_loops, .. } => Block::whole(self.graph(self_loops)),
            BlockSpec::Features { width, .. } => match &self.inputs.features {
                FeatureData::Sparse { indptr, indices, .. } => {
                    Block::rectangular(indptr.clone(), indices.clone(), width)
                }
                FeatureData::Dense { .. } => panic!("a program for sparse features is bound to dense ones"),
            },
        };
        (block, None)
    }

    fn graph(&mut self, self_loops: bool) -> &Graph {
        if self_loops {
            self.looped.get_or_insert_with(|| self.inputs.graph.with_self_loops())
        } else {
            &self.inputs.graph
        }
    }

    fn contents(&mut self, origin: &Origin) -> Option<HostSlot> {
        Some(match (origin, &self.inputs.features) {
            (Origin::Features, FeatureData::Dense { data, .. }) => HostSlot::constant(data),
            (Origin::FeatureValues, FeatureData::Sparse { values, .. }) => HostSlot::constant(values),
            (Origin::Features | Origin::FeatureValues, _) => panic!("a program is bound to features of the other kind"),
            (Origin::EdgePermutation(spec), _) => {
                let permutation = self.bound(spec.transpose()).permutation.clone();
                HostSlot::constant(&permutation.expect("weighted gathers run over blocks that are really transposed"))
            }
            (Origin::Scale(degree), _) => HostSlot::constant(&self.scale(*degree)),
            (Origin::Identity(width), _) => HostSlot::constant(&identity(*width)),
            (Origin::Labels, _) => match &self.inputs.labels {
                LabelData::Classes(labels) => HostSlot::constant(labels),
                LabelData::Targets(_) => panic!("a program for classes is bound to a multi-label set"),
            },
            (Origin::Targets, _) => match &self.inputs.labels {
                LabelData::Targets(targets) => HostSlot::constant(targets),
                LabelData::Classes(_) => panic!("a multi-label program is bound to classes"),
            },
            (Origin::Split, _) => HostSlot::constant(&self.inputs.split),
            (Origin::Parameter(_) | Origin::Moment { .. } | Origin::Clock | Origin::LearningRate, _) => return None,
        })
    }

    fn scale(&mut self, degree: Degree) -> Shared<f32> {
        let (Degree::InverseRoot { self_loops } | Degree::Inverse { self_loops }) = degree;
        let graph = self.graph(self_loops);
        let factor = |v| match (graph.in_degree(v), degree) {
            (0, _) => 0.0,
            (d, Degree::InverseRoot { .. }) => (1.0 / (d as f64).sqrt()) as f32,
            (d, Degree::Inverse { .. }) => (1.0 / d as f64) as f32,
        };
        let factors: Vec<f32> = (0..graph.vertex_count()).into_par_iter().map(factor).collect();
        factors.into()
    }
}

fn identity(width: usize) -> Shared<f32> {
    let mut cells = vec![0.0; width * width];
    cells.iter_mut().step_by(width + 1).for_each(|cell| *cell = 1.0);
    cells.into()
}

fn block_name(spec: BlockSpec) -> &'static str {
    match spec {
        BlockSpec::Graph { transposed: false, .. } => "graph",
        BlockSpec::Graph { transposed: true, .. } => "graph_transposed",
        BlockSpec::Features { transposed: false, .. } => "features",
        BlockSpec::Features { transposed: true, .. } => "features_transposed",
    }
}
