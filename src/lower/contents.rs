//! What constants hold, made from the data when a run begins.

use std::collections::BTreeMap;

use lapidary_kernels::{HostSlot, Shared};
use rayon::prelude::*;

use super::{FeatureData, Inputs, LabelData};
use crate::graph::{Block, Graph};
use crate::program::{BlockSpec, Degree, Origin};

/// What a constant that no operation makes holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// What the origin says.
    Origin(Origin),
    /// A block's offsets, u64 `[rows + 1]`.
    Indptr(BlockSpec),
    /// A block's sources, u32 `[edges]`.
    Indices(BlockSpec),
}

/// The data, from which contents are made as they are asked for.
#[derive(Debug)]
pub struct Supply<'a> {
    inputs: &'a Inputs,
    blocks: BTreeMap<BlockSpec, Cut>,
    looped: Option<Graph>,
}

/// A block, and where its edges were in the block that it was transposed from.
#[derive(Debug)]
struct Cut {
    block: Block,
    permutation: Option<Shared<u64>>,
}

impl<'a> Supply<'a> {
    /// From the data at hand.
    pub fn new(inputs: &'a Inputs) -> Self {
        Self { inputs, blocks: BTreeMap::new(), looped: None }
    }

    /// The array behind `contents`; what lies in memory already is not copied.
    ///
    /// # Panics
    /// If the data does not have it (features or labels of the other kind); programs are written for the data at hand.
    /// # Cost
    /// O(n + e) for each block beside the graph itself.
    pub fn get(&mut self, contents: &Contents) -> HostSlot {
        match contents {
            Contents::Indptr(block) => HostSlot::constant(self.cut(*block).block.indptr()),
            Contents::Indices(block) => HostSlot::constant(self.cut(*block).block.indices()),
            Contents::Origin(origin) => self.origin(origin),
        }
    }

    fn origin(&mut self, origin: &Origin) -> HostSlot {
        match (origin, &self.inputs.features, &self.inputs.labels) {
            (Origin::Features, FeatureData::Dense { data, .. }, _) => HostSlot::constant(data),
            (Origin::FeatureValues, FeatureData::Sparse { values, .. }, _) => HostSlot::constant(values),
            (Origin::Labels, _, LabelData::Classes(labels)) => HostSlot::constant(labels),
            (Origin::Targets, _, LabelData::Targets(targets)) => HostSlot::constant(targets),
            (Origin::Split, _, _) => HostSlot::constant(&self.inputs.split),
            (Origin::Identity(width), _, _) => HostSlot::constant(&identity(*width)),
            (Origin::Scale(degree), _, _) => HostSlot::constant(&self.scale(*degree)),
            (Origin::EdgePermutation(block), _, _) => {
                let permutation = self.cut(block.transpose()).permutation.as_ref();
                HostSlot::constant(permutation.expect("only the features' block asks for its permutation"))
            }
            _ => panic!("a program is bound to data that has no {origin:?}"),
        }
    }

    fn cut(&mut self, spec: BlockSpec) -> &Cut {
        if !self.blocks.contains_key(&spec) {
            let cut = self.make(spec);
            self.blocks.insert(spec, cut);
        }
        &self.blocks[&spec]
    }

    fn make(&mut self, spec: BlockSpec) -> Cut {
        let whole = |block| Cut { block, permutation: None };
        match (spec, &self.inputs.features) {
            (BlockSpec::Graph { transposed: true, .. }, _) => {
                whole(self.cut(spec.transpose()).block.transpose_without_permutation())
            }
            (BlockSpec::Features { transposed: true, .. }, _) => {
                let (block, permutation) = self.cut(spec.transpose()).block.transpose();
                Cut { block, permutation: Some(permutation.into()) }
            }
            (BlockSpec::Graph { self_loops, .. }, _) => whole(Block::whole(self.graph(self_loops))),
            (BlockSpec::Features { width, .. }, FeatureData::Sparse { indptr, indices, .. }) => {
                whole(Block::rectangular(indptr.clone(), indices.clone(), width))
            }
            (BlockSpec::Features { .. }, FeatureData::Dense { .. }) => {
                panic!("a program for sparse features is bound to dense ones")
            }
        }
    }

    fn graph(&mut self, self_loops: bool) -> &Graph {
        if self_loops {
            self.looped.get_or_insert_with(|| self.inputs.graph.with_self_loops())
        } else {
            &self.inputs.graph
        }
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
