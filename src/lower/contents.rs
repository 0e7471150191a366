//! What constants hold, made from the data when a run begins.

use std::collections::BTreeMap;
use std::ops::Range;

use lapidary_kernels::{HostSlot, Shared};
use rayon::prelude::*;

use super::routes::Routes;
use super::{Cut, FeatureData, Inputs, LabelData, Sizes};
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
    /// The part's rows that other parts read over a block, u32 `[packed]`.
    PackedRows(BlockSpec),
}

/// The data cut into parts, from which contents are made as they are asked for.
#[derive(Debug)]
pub struct Supply<'a> {
    inputs: &'a Inputs,
    parts: Vec<Range<usize>>,
    graphs: BTreeMap<BlockSpec, Graph>,
    blocks: BTreeMap<(usize, BlockSpec), LocalBlock>,
    routes: BTreeMap<BlockSpec, Routes>,
}

/// A block, and where its edges were in the block that it was transposed from.
#[derive(Debug)]
struct LocalBlock {
    block: Block,
    permutation: Option<Shared<u64>>,
}

impl<'a> Supply<'a> {
    /// The data at hand, as one part.
    pub fn new(inputs: &'a Inputs) -> Self {
        let whole = 0..inputs.graph.vertex_count();
        Self::of_parts(inputs, Vec::from([whole]))
    }

    /// The data at hand, cut into `parts`.
    ///
    /// # Panics
    /// If the parts are not consecutive ranges that cover all vertices.
    pub fn of_parts(inputs: &'a Inputs, parts: Vec<Range<usize>>) -> Self {
        let ends = parts.iter().scan(0, |end, part| (part.start == *end).then(|| *end = part.end));
        let covered = ends.count() == parts.len() && parts.last().map(|p| p.end) == Some(inputs.graph.vertex_count());
        assert!(covered, "parts {parts:?} do not cover {} vertices in order", inputs.graph.vertex_count());
        Self { inputs, parts, graphs: BTreeMap::new(), blocks: BTreeMap::new(), routes: BTreeMap::new() }
    }

    /// The parts.
    pub fn parts(&self) -> &[Range<usize>] {
        &self.parts
    }

    /// What lowering needs to know of each part.
    ///
    /// # Cost
    /// O(n log d) for one part, else O(parts n / 64 + e), and for a directed graph that of its transpose.
    pub fn sizes(&mut self) -> Vec<Sizes> {
        let whole = Sizes::of(self.inputs);
        if self.parts.len() == 1 {
            return vec![whole];
        }
        let forward = self.cuts(BlockSpec::Graph { self_loops: false, transposed: false });
        let backward = match whole.symmetric {
            true => forward.clone(),
            false => self.cuts(BlockSpec::Graph { self_loops: false, transposed: true }),
        };
        let parts = self.parts.iter().zip(forward.into_iter().zip(backward));
        let sizes = parts.map(|(part, (forward, backward))| Sizes {
            parts: self.parts.len(),
            first_vertex: part.start as u64,
            vertices: part.len() as u64,
            forward,
            backward,
            feature_cells: match &self.inputs.features {
                FeatureData::Sparse { indptr, .. } => indptr[part.end] - indptr[part.start],
                FeatureData::Dense { .. } => 0,
            },
            ..whole
        });
        sizes.collect()
    }

    /// The rows that cross between the parts over a block of the graph.
    pub fn routes(&mut self, block: BlockSpec) -> &Routes {
        if !self.routes.contains_key(&block) {
            let parts = self.parts.clone();
            let routes = Routes::new(self.graph(block), &parts);
            self.routes.insert(block, routes);
        }
        &self.routes[&block]
    }

    /// The array behind `contents` for one part; what lies in memory already is not copied.
    ///
    /// # Panics
    /// If the data does not have it (features or labels of the other kind); programs are written for the data at hand.
    /// # Cost
    /// O(n + e) for each block beside the graph itself.
    pub fn get(&mut self, part: usize, contents: &Contents) -> HostSlot {
        match contents {
            Contents::Indptr(block) => HostSlot::constant(self.block(part, *block).block.indptr()),
            Contents::Indices(block) => HostSlot::constant(self.block(part, *block).block.indices()),
            Contents::PackedRows(block) => HostSlot::constant(&Shared::from(self.routes(*block).packed[part].clone())),
            Contents::Origin(origin) => self.origin(part, origin),
        }
    }

    fn origin(&mut self, part: usize, origin: &Origin) -> HostSlot {
        let range = self.parts[part].clone();
        match (origin, &self.inputs.features, &self.inputs.labels) {
            (Origin::Features, FeatureData::Dense { data, width }, _) => {
                HostSlot::constant(&data.slice(range.start * width..range.end * width))
            }
            (Origin::FeatureValues, FeatureData::Sparse { values, indptr, .. }, _) => {
                HostSlot::constant(&values.slice(indptr[range.start] as usize..indptr[range.end] as usize))
            }
            (Origin::Labels, _, LabelData::Classes(labels)) => HostSlot::constant(&labels.slice(range)),
            (Origin::Targets, _, LabelData::Targets(targets)) => {
                let classes = targets.len() / self.inputs.graph.vertex_count().max(1);
                HostSlot::constant(&targets.slice(range.start * classes..range.end * classes))
            }
            (Origin::Split, _, _) => HostSlot::constant(&self.inputs.split.slice(range)),
            (Origin::Identity(width), _, _) => HostSlot::constant(&identity(*width)),
            (Origin::Scale(degree), _, _) => HostSlot::constant(&self.scale(range, *degree)),
            (Origin::EdgePermutation(block), _, _) => {
                let permutation = self.block(part, block.transpose()).permutation.as_ref();
                HostSlot::constant(permutation.expect("only the features' block asks for its permutation"))
            }
            _ => panic!("a program is bound to data that has no {origin:?}"),
        }
    }

    fn block(&mut self, part: usize, spec: BlockSpec) -> &LocalBlock {
        if !self.blocks.contains_key(&(part, spec)) {
            let block = self.make(part, spec);
            self.blocks.insert((part, spec), block);
        }
        &self.blocks[&(part, spec)]
    }

    fn make(&mut self, part: usize, spec: BlockSpec) -> LocalBlock {
        let range = self.parts[part].clone();
        match (spec, &self.inputs.features) {
            (BlockSpec::Graph { .. }, _) => {
                let one = self.parts.len() == 1;
                let graph = self.graph(spec);
                let block = if one { Block::whole(graph) } else { Block::of_part(graph, range) };
                LocalBlock { block, permutation: None }
            }
            (BlockSpec::Features { transposed: true, .. }, _) => {
                let (block, permutation) = self.block(part, spec.transpose()).block.transpose();
                LocalBlock { block, permutation: Some(permutation.into()) }
            }
            (BlockSpec::Features { width, .. }, FeatureData::Sparse { indptr, indices, .. }) => {
                let (first, last) = (indptr[range.start], indptr[range.end]);
                let offsets = match first {
                    0 => indptr.slice(range.start..range.end + 1),
                    _ => indptr[range.start..=range.end].iter().map(|offset| offset - first).collect::<Vec<_>>().into(),
                };
                let columns = indices.slice(first as usize..last as usize);
                LocalBlock { block: Block::rectangular(offsets, columns, width), permutation: None }
            }
            (BlockSpec::Features { .. }, FeatureData::Dense { .. }) => {
                panic!("a program for sparse features is bound to dense ones")
            }
        }
    }

    /// The graph that a block of it is cut from.
    fn graph(&mut self, spec: BlockSpec) -> &Graph {
        let BlockSpec::Graph { self_loops, transposed } = spec else {
            unreachable!("the features' block is no graph");
        };
        if !self_loops && !transposed {
            return &self.inputs.graph;
        }
        if !self.graphs.contains_key(&spec) {
            let graph = match transposed {
                true => self.graph(spec.transpose()).transpose_without_permutation(),
                false => self.inputs.graph.with_self_loops(),
            };
            self.graphs.insert(spec, graph);
        }
        &self.graphs[&spec]
    }

    /// How the edges of one direction meet each part.
    fn cuts(&mut self, block: BlockSpec) -> Vec<Cut> {
        let parts = self.parts.clone();
        let routes = self.routes(block).clone();
        let graph = self.graph(block);
        let cut = |(i, part): (usize, &Range<usize>)| Cut {
            edges: graph.indptr()[part.end] - graph.indptr()[part.start],
            self_loops: graph.self_loops_in(part.clone()) as u64,
            halo: routes.sources[i].iter().map(|source| source.rows.len() as u64).sum(),
            packed: routes.packed[i].len() as u64,
        };
        parts.iter().enumerate().map(cut).collect()
    }

    fn scale(&mut self, range: Range<usize>, degree: Degree) -> Shared<f32> {
        let (Degree::InverseRoot { self_loops } | Degree::Inverse { self_loops }) = degree;
        let graph = self.graph(BlockSpec::Graph { self_loops, transposed: false });
        let factor = |v| match (graph.in_degree(v), degree) {
            (0, _) => 0.0,
            (d, Degree::InverseRoot { .. }) => (1.0 / (d as f64).sqrt()) as f32,
            (d, Degree::Inverse { .. }) => (1.0 / d as f64) as f32,
        };
        let factors: Vec<f32> = range.into_par_iter().map(factor).collect();
        factors.into()
    }
}

fn identity(width: usize) -> Shared<f32> {
    let mut cells = vec![0.0; width * width];
    cells.iter_mut().step_by(width + 1).for_each(|cell| *cell = 1.0);
    cells.into()
}
