//! The contents of a mini-batch: what the programs over its levels read of the data.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use lapidary_kernels::memory::AlignedBytes;
use lapidary_kernels::storage_type::round;
use lapidary_kernels::{BlockView, HostSlot, Shared};
use rayon::prelude::*;

use super::own_edges::mean_of_others;
use super::{Contents, FeatureData, Inputs, LabelData, Supply};
use crate::graph::{Block, filled_rows, prefix_sum};
use crate::program::{BatchEdges, BlockSpec, Degree, LevelSizes, LoopWeight, Origin};
use crate::sample::MiniBatch;

/// What gathering a mini-batch returns. It fails if there is no memory, or if a file cannot be read.
pub type Gathered<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Where rows of dense features come from, if not from the array of all of them.
pub trait FeatureSource: fmt::Debug + Send + Sync {
    /// Copies rows, in any order, into a matrix.
    ///
    /// # Errors
    /// An error of the file that they are read from.
    fn take(&self, rows: &[u32], into: &mut [f32]) -> Gathered<()>;
}

/// The data that mini-batches take their contents from.
#[derive(Debug)]
pub struct BatchSupply {
    inputs: Inputs,
    /// Where rows of features come from, if not from the array of all of them.
    feature_source: Option<Arc<dyn FeatureSource>>,
    /// For each power of a degree that is read, the factors of all vertices.
    scales: BTreeMap<Degree, HostSlot>,
}

/// The vertices of a mini-batch's first level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstLevel {
    /// Those that were drawn, by local number.
    Drawn,
    /// All vertices of the graph, by id. The batch has one layer with all edges of its seeds, and
    /// [`MiniBatch::vertices`] are the seeds alone. [`Batch`] makes its edges and the rows of its seeds. The caller supplies
    /// the rows of all vertices. There are no sparse features, and no rows that stay on the device.
    Graph,
}

/// The numbers of vertices among the sources of a block.
#[derive(Clone, Copy)]
struct Numbers<'a> {
    vertices: &'a [u32],
    first_level: FirstLevel,
}

impl Numbers<'_> {
    /// Returns the number of the vertex of a row.
    fn of_row(self, row: usize) -> u32 {
        if self.first_level == FirstLevel::Graph { self.vertices[row] } else { row as u32 }
    }

    /// Returns the vertex with a number.
    fn vertex(self, number: u32) -> u32 {
        if self.first_level == FirstLevel::Graph { number } else { self.vertices[number as usize] }
    }
}

/// A mini-batch whose contents can be requested. Each block is made once.
#[derive(Debug)]
pub struct Batch<'a> {
    supply: &'a BatchSupply,
    drawn: &'a MiniBatch,
    first_level: FirstLevel,
    /// The rows of dense features of the vertices that do not stay on the device, unless they are read from the data.
    given: Option<Shared<u8>>,
    blocks: BTreeMap<BlockSpec, BatchBlock>,
}

/// A block, and where its edges come from.
#[derive(Clone, Debug)]
struct BatchBlock {
    block: Block,
    /// For each edge of a transposed block, its place among the edges that were drawn, or the number of edges that were drawn
    /// for an added self-loop.
    from: Option<Shared<u64>>,
}

impl BatchSupply {
    /// Creates a supply for programs that read these origins.
    ///
    /// # Cost
    /// O(n) for each power of a degree; O(n + e) if it is weighted.
    pub fn new<'o>(inputs: &Inputs, read: impl IntoIterator<Item = &'o Origin>) -> Self {
        let mut supply = Supply::new(inputs);
        let of_batch = read.into_iter().filter_map(|origin| match origin {
            Origin::OfBatch(origin, _) => Some(&**origin),
            _ => None,
        });
        let scales = of_batch.filter_map(|origin| match *origin {
            Origin::Scale(degree) => Some((degree, supply.get(0, 0, &Contents::Origin(origin.clone())))),
            _ => None,
        });
        Self { scales: scales.collect(), inputs: inputs.clone(), feature_source: None }
    }

    /// Sets other features, of the same kind and width.
    pub fn set_features(&mut self, features: FeatureData) {
        self.inputs.features = features;
    }

    /// Returns the data.
    pub fn inputs(&self) -> &Inputs {
        &self.inputs
    }

    /// Takes rows of dense features from `source` instead of from the array of all of them.
    pub fn features_from(self, source: Arc<dyn FeatureSource>) -> Self {
        Self { feature_source: Some(source), ..self }
    }
}

/// Returns the sizes of a mini-batch.
///
/// # Cost
/// O(edges and vertices of the batch).
pub fn level_sizes(inputs: &Inputs, drawn: &MiniBatch, first_level: FirstLevel) -> LevelSizes {
    let counts = drawn.blocks.iter().map(|block| block.own_sources() as u64);
    let rows: Vec<u64> = counts.chain([drawn.seeds as u64]).collect();
    let numbers = Numbers { vertices: &drawn.vertices, first_level };
    let edges = drawn.blocks.iter().map(|block| {
        let view = block.view();
        let rows = (0..block.row_count()).into_par_iter().with_min_len(ROWS_A_TASK);
        let loops = rows.map(|row| loops_of(view, numbers, row)).sum::<usize>();
        [block.edge_count() as u64, loops as u64]
    });
    let cells = match &inputs.features {
        FeatureData::Sparse { indptr, .. } => {
            drawn.vertices.iter().map(|&v| indptr[v as usize + 1] - indptr[v as usize]).sum()
        }
        FeatureData::Dense { .. } => 0,
    };
    let mut sizes = LevelSizes::new(&rows, &edges.collect::<Vec<_>>(), cells, drawn.seeds as u64);
    if let Some(kept) = &inputs.kept {
        sizes.kept = kept.rows().len() as u64;
        sizes.found = drawn.vertices.iter().filter(|&&v| kept.place(v).is_some()).count() as u64;
        sizes.copied = sizes.rows(0) - sizes.found;
    }
    sizes
}

impl<'a> Batch<'a> {
    /// Makes the contents of a mini-batch available.
    pub fn new(supply: &'a BatchSupply, drawn: &'a MiniBatch) -> Self {
        Self { supply, drawn, first_level: FirstLevel::Drawn, given: None, blocks: BTreeMap::new() }
    }

    /// Sets what the vertices of the first level are.
    pub fn with_first_level(self, first_level: FirstLevel) -> Self {
        Self { first_level, ..self }
    }

    /// Sets the rows of dense features, as f32, of all vertices of the batch that do not stay on the device, in their
    /// order. The features of the data are then not read.
    pub fn with_features(mut self, rows: impl Into<Shared<u8>>) -> Self {
        self.given = Some(rows.into());
        self
    }

    /// Returns the array for `contents`.
    ///
    /// # Errors
    /// No memory for the features; an error of the file that they are read from.
    /// # Panics
    /// If the contents are not those of a mini-batch of this data.
    /// # Cost
    /// O(size of the array); O(edges of the block) for each block once.
    pub fn get(&mut self, contents: &Contents) -> Gathered<HostSlot> {
        Ok(match contents {
            Contents::Indptr(block) => HostSlot::constant(self.block(*block).block.indptr()),
            Contents::Indices(block) => HostSlot::constant(self.block(*block).block.indices()),
            Contents::Origin(Origin::OfBatch(origin, level)) if **origin == Origin::Features => {
                HostSlot::Constant(self.features(self.vertices(*level), self.all_given())?)
            }
            Contents::Origin(Origin::OfBatch(origin, level)) => self.of_vertices(origin, *level),
            Contents::Rounded(Origin::OfBatch(origin, level)) if **origin == Origin::Features => {
                self.rounded(self.vertices(*level), self.all_given())?
            }
            Contents::Origin(Origin::CopiedFeatures) => {
                HostSlot::Constant(self.features(&self.copied(), self.given.as_ref())?)
            }
            Contents::Rounded(Origin::CopiedFeatures) => self.rounded(&self.copied(), self.given.as_ref())?,
            Contents::Origin(Origin::EdgeWeights(block, loops)) => {
                HostSlot::constant(&Shared::from(self.edge_weights(*block, *loops)))
            }
            // Both ends of an edge are known by their numbers in the batch.
            Contents::Origin(Origin::SourceIds(block)) => {
                let sources = self.block(*block).block.own_sources() as u32;
                HostSlot::constant(&Shared::from((0..sources).collect::<Vec<_>>()))
            }
            Contents::Origin(Origin::EdgePermutation(block)) => {
                let from = self.block(block.transpose()).from.clone();
                HostSlot::constant(&from.expect("a transposed block has other places"))
            }
            other => panic!("{other:?} is not of a mini-batch"),
        })
    }

    fn numbers(&self) -> Numbers<'a> {
        Numbers { vertices: &self.drawn.vertices, first_level: self.first_level }
    }

    /// Returns the vertices of a level.
    fn vertices(&self, level: u8) -> &'a [u32] {
        let drawn = self.drawn;
        if self.first_level == FirstLevel::Graph {
            assert!(drawn.blocks.is_empty() || level > 0, "the first level is all vertices of the graph");
            return &drawn.vertices;
        }
        &drawn.vertices[..drawn.blocks.get(level as usize).map_or(drawn.seeds, Block::own_sources)]
    }

    fn of_vertices(&self, origin: &Origin, level: u8) -> HostSlot {
        let (inputs, rows) = (&self.supply.inputs, self.vertices(level));
        match (origin, &inputs.features, &inputs.labels) {
            (Origin::FeatureValues, FeatureData::Sparse { indptr, values, .. }, _) => {
                HostSlot::constant(&Shared::from(cells(indptr, values, rows)))
            }
            (Origin::Labels, _, LabelData::Classes(labels)) => taken(labels, rows, 1),
            (Origin::Targets, _, LabelData::Targets(targets)) => {
                taken(targets, rows, targets.len() / inputs.graph.vertex_count().max(1))
            }
            (Origin::Split, ..) => taken(&inputs.split, rows, 1),
            (Origin::Scale(degree), ..) => {
                let factors: Vec<f32> = self.supply.scales[degree].read(|bytes| {
                    let factors: &[f32] = bytemuck::cast_slice(bytes);
                    rows.iter().map(|&v| factors[v as usize]).collect()
                });
                HostSlot::constant(&Shared::from(factors))
            }
            _ => panic!("a program is bound to data that has no {origin:?}"),
        }
    }

    /// Returns rows of dense features: those that were given, or those of the data.
    fn features(&self, rows: &[u32], given: Option<&Shared<u8>>) -> Gathered<Shared<u8>> {
        let FeatureData::Dense { data, width } = &self.supply.inputs.features else {
            panic!("a program for dense features is bound to sparse ones");
        };
        let bytes = rows.len() * width * size_of::<f32>();
        if let Some(given) = given {
            return Ok(given.slice(0..bytes));
        }
        let mut taken = AlignedBytes::zeroed(bytes)?;
        match &self.supply.feature_source {
            Some(source) => source.take(rows, taken.as_mut_slice())?,
            None => take(data, rows, *width, taken.as_mut_slice()),
        }
        Ok(taken.into())
    }

    /// Returns the rows that were given, if they are those of all vertices.
    fn all_given(&self) -> Option<&Shared<u8>> {
        self.given.as_ref().filter(|_| self.supply.inputs.kept.is_none())
    }

    fn rounded(&self, rows: &[u32], given: Option<&Shared<u8>>) -> Gathered<HostSlot> {
        let rows = self.features(rows, given)?;
        let mut stored = AlignedBytes::zeroed(rows.len() / 2)?;
        round(bytemuck::cast_slice(&rows), stored.as_mut_slice());
        Ok(HostSlot::Constant(stored.into()))
    }

    /// Returns the vertices whose features do not stay on the device, in their order.
    fn copied(&self) -> Vec<u32> {
        self.supply.inputs.copied(&self.drawn.vertices)
    }

    /// Returns the place of the features of a vertex among those that stay on the device.
    fn kept(&self, v: u32) -> Option<u32> {
        self.supply.inputs.kept.as_ref().and_then(|kept| kept.place(v))
    }

    /// Returns a block in which each row of the first level has at most one source.
    fn at_most_one(&self, sources: usize, mut source: impl FnMut(u32) -> Option<u32>) -> BatchBlock {
        assert!(self.first_level == FirstLevel::Drawn, "rows stay for the vertices that were drawn");
        let (mut indptr, mut indices) = (Vec::with_capacity(self.drawn.vertices.len() + 1), Vec::new());
        indptr.push(0u64);
        for &v in &self.drawn.vertices {
            indices.extend(source(v));
            indptr.push(indices.len() as u64);
        }
        BatchBlock { block: Block::rectangular(indptr.into(), indices.into(), sources), from: None }
    }

    fn edge_weights(&mut self, spec: BlockSpec, loops: LoopWeight) -> Vec<f32> {
        let BlockSpec::Batch { edges: kind, level, .. } = spec else { panic!("{spec:?} is not of a mini-batch") };
        let layer = level as usize - 1;
        let (drawn, inputs, numbers) = (self.drawn, &self.supply.inputs, self.numbers());
        // There may be no positions of edges if they have no weights.
        let (edges, stands_for) = (&drawn.edges[layer], &drawn.stands_for[layer]);
        let times = |place: usize| stands_for.get(place).copied().unwrap_or(1.0);
        let weight = |place: usize| match (&inputs.edge_weights, loops) {
            (None, LoopWeight::One) => times(place),
            (Some(weights), LoopWeight::One) => times(place) * weights[edges[place] as usize],
            // The values of attention are not added up, so no edge stands for others.
            (None, LoopWeight::Mean) => 1.0,
            (Some(weights), LoopWeight::Mean) => weights[edges[place] as usize],
        };
        let loop_weight = |vertex: u32| loop_weight(inputs, vertex as usize, loops);
        let BatchBlock { block, from } = self.block(spec).clone();
        if inputs.edge_weights.is_none() && loops == LoopWeight::One && stands_for.iter().all(|&times| times == 1.0) {
            return vec![1.0; block.edge_count()];
        }
        match from {
            None if kind == (BatchEdges::Drawn { self_loops: true }) => {
                let view = drawn.blocks[layer].view();
                filled_rows(block.indptr(), |row, to| {
                    let of_loop = loop_weight(numbers.vertex(numbers.of_row(row)));
                    with_loop((view, row), numbers, to, of_loop, weight);
                })
            }
            None => (0..block.edge_count()).into_par_iter().map(weight).collect(),
            Some(from) => {
                let (view, from, drawn_edges) = (block.view(), &from[..], drawn.blocks[layer].edge_count());
                filled_rows(view.indptr, |row, to| {
                    for ((to, &place), &source) in to.iter_mut().zip(&from[view.edges(row)]).zip(view.sources(row)) {
                        *to = match (place as usize) < drawn_edges {
                            true => weight(place as usize),
                            // A self-loop has the same number at both ends.
                            false => loop_weight(numbers.vertex(source)),
                        };
                    }
                })
            }
        }
    }

    fn block(&mut self, spec: BlockSpec) -> &BatchBlock {
        if !self.blocks.contains_key(&spec) {
            let block = self.make(spec);
            self.blocks.insert(spec, block);
        }
        &self.blocks[&spec]
    }

    fn make(&mut self, spec: BlockSpec) -> BatchBlock {
        let drawn = self.drawn;
        let BlockSpec::Batch { edges, level, transposed } = spec else { panic!("{spec:?} is not of a mini-batch") };
        if transposed && edges == BatchEdges::Own {
            let block = &drawn.blocks[level as usize - 1];
            assert!(self.first_level == FirstLevel::Drawn, "{spec:?} is of the vertices that were drawn");
            let rows = block.row_count() as u64;
            let indptr: Vec<u64> = (0..=block.own_sources() as u64).map(|row| row.min(rows)).collect();
            let indices: Vec<u32> = (0..rows as u32).collect();
            let block = Block::rectangular(indptr.into(), indices.into(), rows as usize);
            return BatchBlock { block, from: None };
        }
        if transposed {
            let block = self.block(spec.transpose()).block.clone();
            let (turned, mut places) = block.transpose();
            if edges == (BatchEdges::Drawn { self_loops: true }) {
                let (view, numbers) = (drawn.blocks[level as usize - 1].view(), self.numbers());
                let added = view.indices.len() as u64;
                let from = filled_rows(block.indptr(), |row, to| {
                    with_loop((view, row), numbers, to, added, |edge| edge as u64);
                });
                places.par_iter_mut().for_each(|place| *place = from[*place as usize]);
            }
            return BatchBlock { block: turned, from: Some(places.into()) };
        }
        match edges {
            BatchEdges::Drawn { self_loops: false } => {
                BatchBlock { block: drawn.blocks[level as usize - 1].clone(), from: None }
            }
            BatchEdges::Drawn { self_loops: true } => {
                BatchBlock { block: looped(&drawn.blocks[level as usize - 1], self.numbers()), from: None }
            }
            BatchEdges::Own => {
                let block = &drawn.blocks[level as usize - 1];
                let rows = block.row_count();
                let indptr: Vec<u64> = (0..=rows as u64).collect();
                let indices: Vec<u32> = (0..rows).map(|row| self.numbers().of_row(row)).collect();
                BatchBlock { block: Block::rectangular(indptr.into(), indices.into(), block.own_sources()), from: None }
            }
            BatchEdges::Kept => {
                let kept = self.supply.inputs.kept.as_ref().map_or(0, |kept| kept.rows().len());
                self.at_most_one(kept, |v| self.kept(v))
            }
            BatchEdges::Copied => {
                let copied = self.copied().len();
                let mut next = 0..copied as u32;
                self.at_most_one(copied, |v| if self.kept(v).is_none() { next.next() } else { None })
            }
            BatchEdges::Features { width } => {
                let FeatureData::Sparse { indptr, indices, .. } = &self.supply.inputs.features else {
                    panic!("a program for sparse features is bound to dense ones");
                };
                let lengths = drawn.vertices.iter().map(|&v| indptr[v as usize + 1] - indptr[v as usize]);
                let ends = lengths.scan(0, |end, length| {
                    *end += length;
                    Some(*end)
                });
                let offsets: Vec<u64> = std::iter::once(0).chain(ends).collect();
                let columns = cells(indptr, indices, &drawn.vertices);
                BatchBlock { block: Block::rectangular(offsets.into(), columns.into(), width), from: None }
            }
        }
    }
}

/// Returns the block with exactly one self-loop for each row, at its place in the order of the graph.
fn looped(block: &Block, numbers: Numbers<'_>) -> Block {
    let view = block.view();
    let mut indptr = vec![0u64; view.rows() + 1];
    indptr[1..].par_iter_mut().enumerate().with_min_len(ROWS_A_TASK).for_each(|(row, length)| {
        *length = 1 + (view.sources(row).len() - loops_of(view, numbers, row)) as u64;
    });
    prefix_sum(&mut indptr);
    let indices = filled_rows(&indptr, |row, to| {
        with_loop((view, row), numbers, to, numbers.of_row(row), |edge| view.indices[edge])
    });
    Block::rectangular(indptr.into(), indices.into(), block.own_sources())
}

/// Writes what the edges of a row have in the block that [`looped`] makes of a block: `of_loop` for the self-loop, and `of_edge` for
/// the others, by their places in the block.
fn with_loop<T>(
    (view, row): (BlockView<'_>, usize),
    numbers: Numbers<'_>,
    to: &mut [T],
    of_loop: T,
    of_edge: impl Fn(usize) -> T,
) {
    let (sources, first, own) = (view.sources(row), view.edges(row).start, numbers.of_row(row));
    let vertex = numbers.vertex(own);
    let below = sources.iter().take_while(|&&u| u == own || numbers.vertex(u) < vertex).count();
    if to.len() > sources.len() {
        // Most rows have no self-loop of their own, so nothing is left out.
        let (lower, rest) = to.split_at_mut(below);
        let (own, upper) = rest.split_first_mut().expect("there is a place for the self-loop");
        *own = of_loop;
        lower.iter_mut().zip(first..).for_each(|(to, edge)| *to = of_edge(edge));
        upper.iter_mut().zip(first + below..).for_each(|(to, edge)| *to = of_edge(edge));
        return;
    }
    let others = |range: Range<usize>| range.filter(|&at| sources[at] != own).map(|at| of_edge(first + at));
    let mut to = to.iter_mut();
    others(0..below).zip(&mut to).for_each(|(value, to)| *to = value);
    *to.next().expect("there is a place for the self-loop") = of_loop;
    others(below..sources.len()).zip(&mut to).for_each(|(value, to)| *to = value);
}

/// Returns how many self-loops a row has.
fn loops_of(view: BlockView<'_>, numbers: Numbers<'_>, row: usize) -> usize {
    let own = numbers.of_row(row);
    view.sources(row).iter().filter(|&&u| u == own).count()
}

/// Returns the weight of the self-loop of a vertex: that of the graph's own, or that of an added one.
fn loop_weight(inputs: &Inputs, v: usize, loops: LoopWeight) -> f32 {
    let (sources, edges) = (inputs.graph.sources(v), inputs.graph.edges(v));
    match (loops, &inputs.edge_weights) {
        (LoopWeight::One, None) => 1.0,
        (LoopWeight::One, Some(weights)) => {
            // Of several, the last one, as in `Graph::with_self_loops_and_values`.
            let end = sources.partition_point(|&u| u as usize <= v);
            let looped = sources[..end].last().is_some_and(|&u| u as usize == v);
            if looped { weights[edges.start + end - 1] } else { 1.0 }
        }
        (LoopWeight::Mean, Some(weights)) => mean_of_others(sources, &weights[edges], v),
        (LoopWeight::Mean, None) => f32::from(sources.iter().any(|&u| u as usize != v)),
    }
}

/// Copies rows of a matrix with `width` columns.
pub(crate) fn take<T: Copy + Send + Sync>(data: &[T], rows: &[u32], width: usize, taken: &mut [T]) {
    let pieces = taken.par_chunks_mut((ROWS_A_TASK * width).max(1)).zip(rows.par_chunks(ROWS_A_TASK));
    pieces.for_each(|(to, rows)| {
        for (to, &v) in to.chunks_exact_mut(width.max(1)).zip(rows) {
            to.copy_from_slice(&data[v as usize * width..][..width]);
        }
    });
}

/// Rows that one task copies.
pub(crate) const ROWS_A_TASK: usize = 256;

fn taken<T: bytemuck::Pod + Default + Send + Sync>(data: &[T], rows: &[u32], width: usize) -> HostSlot {
    let mut taken = vec![T::default(); rows.len() * width];
    take(data, rows, width, &mut taken);
    HostSlot::constant(&Shared::from(taken))
}

/// Returns the entries of rows of a CSR matrix.
fn cells<T: Copy + Send + Sync>(indptr: &[u64], values: &[T], rows: &[u32]) -> Vec<T> {
    let row = |&v: &u32| &values[indptr[v as usize] as usize..indptr[v as usize + 1] as usize];
    let of_task = |rows: &[u32]| {
        let mut cells = Vec::with_capacity(rows.iter().map(|v| row(v).len()).sum());
        rows.iter().for_each(|v| cells.extend_from_slice(row(v)));
        cells
    };
    rows.par_chunks(ROWS_A_TASK).map(of_task).collect::<Vec<Vec<T>>>().concat()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::graph::Graph;
    use crate::sample::{BatchKey, NeighborSampler, Sampler, Scratch};

    /// A directed graph with a hub, repeated edges, repeated self-loops and isolated vertices.
    fn inputs() -> Inputs {
        let hub = (0..25u32).map(|u| (u, 7));
        let ring = (0..20u32).flat_map(|v| [(v, (v + 1) % 20), (v, (v + 1) % 20), (v, v), ((v * 5) % 20, v)]);
        let graph = Graph::from_edges(30, &hub.chain(ring).collect::<Vec<_>>()).unwrap();
        let weights: Vec<f32> = (0..graph.edge_count()).map(|e| 0.5 + (e % 5) as f32).collect();
        Inputs {
            symmetric: false,
            edge_weights: Some(weights.into()),
            features: FeatureData::Dense { data: (0..90).map(|x| x as f32).collect::<Vec<_>>().into(), width: 3 },
            labels: LabelData::Classes((0..30).collect::<Vec<u32>>().into()),
            split: vec![1; 30].into(),
            labelled: [0, 30, 0, 0],
            class_weights: None,
            kept: None,
            graph,
        }
    }

    /// Returns the matrix of a block with weights.
    fn matrix(block: &Block, weights: &[f32]) -> Vec<Vec<f32>> {
        let mut cells = vec![vec![0.0; block.own_sources()]; block.row_count()];
        for (row, cells) in cells.iter_mut().enumerate() {
            for edge in block.view().edges(row) {
                cells[block.indices()[edge] as usize] += weights[edge];
            }
        }
        cells
    }

    #[test]
    fn blocks_have_the_drawn_edges_and_what_they_stand_for() {
        let inputs = inputs();
        let sampler = NeighborSampler::new("3,2".parse().unwrap());
        let supply = BatchSupply::new(&inputs, []);
        for number in 0..20 {
            let key = BatchKey { seed: 3, epoch: 1, batch: number };
            let seeds = [7, 29, number as u32 % 7, 12];
            let drawn = sampler.sample(&inputs.graph, &seeds, key, &mut Scratch::default()).unwrap();
            let sizes = level_sizes(&inputs, &drawn, FirstLevel::Drawn);
            let mut batch = Batch::new(&supply, &drawn);
            for (level, self_loops) in [(1u8, false), (1, true), (2, false), (2, true)] {
                let spec = BlockSpec::Batch { edges: BatchEdges::Drawn { self_loops }, level, transposed: false };
                let layer = level as usize - 1;
                let weights = inputs.edge_weights.as_ref().unwrap();
                // Cell by cell, from the edges of the graph.
                let of_graph = &drawn.blocks[layer];
                let mut want = vec![vec![0.0; of_graph.own_sources()]; of_graph.row_count()];
                for (row, want) in want.iter_mut().enumerate() {
                    let v = drawn.vertices[row] as usize;
                    for place in of_graph.view().edges(row) {
                        let source = of_graph.indices()[place] as usize;
                        if !(self_loops && source == row) {
                            want[source] +=
                                drawn.stands_for[layer][place] * weights[drawn.edges[layer][place] as usize];
                        }
                    }
                    let mut loops = inputs.graph.edges(v).filter(|&edge| inputs.graph.indices()[edge] as usize == v);
                    if self_loops {
                        want[row] = loops.next_back().map_or(1.0, |edge| weights[edge]);
                    }
                }
                let got = matrix(&batch.block(spec).block.clone(), &batch.edge_weights(spec, LoopWeight::One));
                assert_eq!(got, want, "{spec:?} of batch {number}");
                assert_eq!(
                    sizes.block_edges(BatchEdges::Drawn { self_loops }, level),
                    batch.block(spec).block.edge_count() as u64
                );
                let turned = spec.transpose();
                let got = matrix(&batch.block(turned).block.clone(), &batch.edge_weights(turned, LoopWeight::One));
                let columns = (0..of_graph.own_sources()).map(|u| want.iter().map(|row| row[u]).collect());
                assert_eq!(got, columns.collect::<Vec<Vec<f32>>>(), "{turned:?} of batch {number}");
            }
        }
    }

    /// Returns the weight of the self-loop of some vertices of the graph of [`inputs`], from its edges by hand.
    fn loop_of(v: u32, loops: LoopWeight, weighted: bool) -> f32 {
        match (v, loops, weighted) {
            // It has no edges.
            (29, LoopWeight::Mean, _) => 0.0,
            (29, LoopWeight::One, _) | (_, _, false) => 1.0,
            // The last one of its own.
            (0 | 12, LoopWeight::One, true) => 1.5,
            (7, LoopWeight::One, true) => 3.5,
            // The mean of the others.
            (0, LoopWeight::Mean, true) => (2.5 + 3.5) / 2.0,
            (7, LoopWeight::Mean, true) => (66.5f64 / 27.0) as f32,
            (12, LoopWeight::Mean, true) => (8.5f64 / 3.0) as f32,
            _ => panic!("not known of vertex {v}"),
        }
    }

    #[test]
    fn a_batch_over_the_whole_graph_has_all_edges_of_its_seeds() {
        for weighted in [true, false] {
            let mut inputs = inputs();
            inputs.edge_weights = inputs.edge_weights.filter(|_| weighted);
            let graph = inputs.graph.clone();
            let seeds = [0u32, 7, 12, 29];
            let edges: Vec<u64> = seeds.iter().flat_map(|&v| graph.edges(v as usize)).map(|edge| edge as u64).collect();
            let ends = seeds.iter().scan(0, |end, &v| {
                *end += graph.in_degree(v as usize);
                Some(*end)
            });
            let indptr: Vec<u64> = std::iter::once(0).chain(ends).collect();
            let indices: Vec<u32> = edges.iter().map(|&edge| graph.indices()[edge as usize]).collect();
            let drawn = MiniBatch {
                vertices: seeds.to_vec(),
                seeds: seeds.len(),
                stands_for: vec![vec![1.0; edges.len()]],
                edges: vec![edges],
                blocks: vec![Block::rectangular(indptr.into(), indices.into(), graph.vertex_count())],
            };
            let supply = BatchSupply::new(&inputs, []);
            let sizes = level_sizes(&inputs, &drawn, FirstLevel::Graph);
            let mut batch = Batch::new(&supply, &drawn).with_first_level(FirstLevel::Graph);
            for self_loops in [false, true] {
                let spec = BlockSpec::Batch { edges: BatchEdges::Drawn { self_loops }, level: 1, transposed: false };
                let whole = match self_loops {
                    true => Block::of_part_with_self_loops(&graph, 0..30),
                    false => Block::whole(&graph),
                };
                let block = batch.block(spec).block.clone();
                assert_eq!(sizes.block_edges(BatchEdges::Drawn { self_loops }, 1), block.edge_count() as u64);
                for loops in [LoopWeight::One, LoopWeight::Mean] {
                    let weights = batch.edge_weights(spec, loops);
                    for (row, &v) in seeds.iter().enumerate() {
                        let (found, want) = (block.view(), whole.view());
                        assert_eq!(found.sources(row), want.sources(v as usize), "vertex {v}");
                        for (&u, weight) in found.sources(row).iter().zip(&weights[found.edges(row)]) {
                            let want = match inputs.edge_weights.as_ref() {
                                _ if self_loops && u == v => loop_of(v, loops, weighted),
                                None => 1.0,
                                // Edges that are repeated have several weights.
                                Some(all) => {
                                    let mut same = graph.edges(v as usize).filter(|&edge| graph.indices()[edge] == u);
                                    assert!(same.any(|edge| all[edge] == *weight), "{u} to {v}: {weight}");
                                    continue;
                                }
                            };
                            assert_eq!(*weight, want, "{u} to {v}, weighted {weighted}, {loops:?}");
                        }
                    }
                }
            }
            let own = BlockSpec::Batch { edges: BatchEdges::Own, level: 1, transposed: false };
            assert_eq!(batch.block(own).block.indices()[..], seeds);
            let labels = Contents::Origin(Origin::OfBatch(Origin::Labels.into(), 1));
            assert_eq!(batch.get(&labels).unwrap().to_vec::<u32>(), seeds);
        }
    }

    #[test]
    fn rows_of_a_level_are_those_of_its_vertices() {
        let inputs = inputs();
        let sampler = NeighborSampler::new("2,2".parse().unwrap());
        let drawn = sampler.sample(&inputs.graph, &[5, 7], BatchKey::default(), &mut Scratch::default()).unwrap();
        let supply = BatchSupply::new(&inputs, []);
        let mut batch = Batch::new(&supply, &drawn);
        let of_batch = |origin, level| Contents::Origin(Origin::OfBatch(Box::new(origin), level));
        let features = batch.get(&of_batch(Origin::Features, 0)).unwrap().to_vec::<f32>();
        let want: Vec<f32> = drawn.vertices.iter().flat_map(|&v| [0, 1, 2].map(|c| (3 * v + c) as f32)).collect();
        assert_eq!(features, want);
        assert_eq!(batch.get(&of_batch(Origin::Labels, 2)).unwrap().to_vec::<u32>(), [5, 7]);
        let rows = drawn.blocks[1].own_sources();
        assert_eq!(batch.get(&of_batch(Origin::Split, 1)).unwrap().to_vec::<u32>(), vec![1; rows]);
    }
}
