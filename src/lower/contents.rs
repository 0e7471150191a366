//! The contents of constants, built from the data when a run begins.

use std::collections::BTreeMap;
use std::ops::Range;

use half::bf16;
use lapidary_kernels::storage_type::round;
use lapidary_kernels::{HostSlot, Shared};
use rayon::prelude::*;

use super::fold::{FoldArray, FoldBlock, FoldSide};
use super::routes::{Crossing, Routes, Source};
use super::sizes::canonical;
use super::tiling::{cut_rows, with_halo_tiles};
use super::{Cut, ExchangePath, FeatureData, Inputs, LabelData, Layout, Sizes, Tiling};
use crate::graph::{Block, Graph};
use crate::program::{BlockSpec, Degree, LoopWeight, Origin};

/// The contents of a constant that no operation computes, or of one tile of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// The data of the origin.
    Origin(Origin),
    /// The data of the origin, in bf16.
    Rounded(Origin),
    /// A block's offsets, u64 `[rows + 1]`.
    Indptr(BlockSpec),
    /// A block's sources, u32 `[edges]`.
    Indices(BlockSpec),
    /// The rows of the part that other parts read over a block, u32 `[packed]`. With an owner: none, unless the part is
    /// the owner.
    PackedRows(BlockSpec, Option<usize>),
    /// For each row of the part's halo, its index in its owner's pack, u32 `[halo]`. With an owner: only its rows.
    FetchedRows(BlockSpec, Option<usize>),
    /// For each sum of other parts, its index among those that its maker sends, u32 `[lent]`.
    FetchedSums(BlockSpec),
    /// An array of one of the two gathers that fold a gather over the block.
    Fold(BlockSpec, FoldSide, FoldArray),
}

/// The data split into parts. Contents are built from it on request.
#[derive(Debug)]
pub struct Supply<'a> {
    inputs: &'a Inputs,
    parts: Vec<Range<usize>>,
    /// The sizes of the parts, once they were requested.
    sizes: Option<Vec<Sizes>>,
    /// For each part, the vertices of its tiles.
    tiles: Vec<Vec<Range<usize>>>,
    /// Whether the sources of a part's block are numbered in the order of the whole graph.
    in_order: bool,
    graphs: BTreeMap<BlockSpec, Graph>,
    /// Blocks of the graph by part; blocks of the features by part and tile.
    blocks: BTreeMap<(usize, usize, BlockSpec), LocalBlock>,
    routes: BTreeMap<Crossing, Routes>,
    /// The blocks of folded gathers, by part.
    folds: BTreeMap<(usize, BlockSpec), [FoldBlock; 2]>,
    edge_weights: BTreeMap<(BlockSpec, LoopWeight), Shared<f32>>,
}

/// A block and, if it was transposed, the index of each edge in the original block.
#[derive(Debug)]
struct LocalBlock {
    block: Block,
    permutation: Option<Shared<u64>>,
}

impl<'a> Supply<'a> {
    /// Creates a supply with all data as one part.
    pub fn new(inputs: &'a Inputs) -> Self {
        let whole = 0..inputs.graph.vertex_count();
        Self::of_parts(inputs, Vec::from([whole]))
    }

    /// Creates a supply with the data split into `parts`.
    ///
    /// # Panics
    /// If the parts are not consecutive ranges that cover all vertices.
    pub fn of_parts(inputs: &'a Inputs, parts: Vec<Range<usize>>) -> Self {
        let ends = parts.iter().scan(0, |end, part| (part.start == *end).then(|| *end = part.end));
        let covered = ends.count() == parts.len() && parts.last().map(|p| p.end) == Some(inputs.graph.vertex_count());
        assert!(covered, "parts {parts:?} do not cover {} vertices in order", inputs.graph.vertex_count());
        let tiles = parts.iter().map(|part| vec![part.clone()]).collect();
        Self {
            inputs,
            parts,
            sizes: None,
            tiles,
            in_order: false,
            graphs: BTreeMap::new(),
            blocks: BTreeMap::new(),
            routes: BTreeMap::new(),
            folds: BTreeMap::new(),
            edge_weights: BTreeMap::new(),
        }
    }

    /// Returns the parts.
    pub fn parts(&self) -> &[Range<usize>] {
        &self.parts
    }

    /// Returns the sizes of each part, for lowering.
    ///
    /// # Cost
    /// O(n log d) for one part, else O(parts n / 64 + e), and the transpose for a directed graph; computed once.
    pub fn sizes(&mut self) -> Vec<Sizes> {
        if let Some(sizes) = &self.sizes {
            return sizes.clone();
        }
        let sizes = self.measure();
        self.sizes.insert(sizes).clone()
    }

    fn measure(&mut self) -> Vec<Sizes> {
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
            feature_cells: self.feature_cells(part),
            ..whole
        });
        sizes.collect()
    }

    /// Lays out every part: splits it into tiles with about equal shares of its vertices and edges, and returns the
    /// sizes for lowering. From then on, contents are those of this layout.
    ///
    /// # Panics
    /// If there are no tiles.
    /// # Cost
    /// That of [`Supply::sizes`], and O(n) more for each direction of the graph.
    pub fn tile(&mut self, layout: impl Into<Layout>) -> Vec<Tiling> {
        let Layout { tiles, path, backward } = layout.into();
        assert!(tiles > 0, "a part has tiles");
        let sizes = self.sizes();
        self.blocks.retain(|(_, _, block), _| matches!(block, BlockSpec::Graph { .. }));
        if tiles == 1 {
            self.tiles = self.parts.iter().map(|part| vec![part.clone()]).collect();
            let folds = backward.folds(&sizes);
            let tiling = |(number, part): (usize, Sizes)| {
                let owners = match path {
                    ExchangePath::Staged if part.parts > 1 => self.owners(number),
                    _ => [Vec::new(), Vec::new()],
                };
                Tiling { exchange: path, number, owners, folds, ..Tiling::from(part) }
            };
            let tilings: Vec<Tiling> = sizes.into_iter().enumerate().map(tiling).collect();
            self.in_order = tilings[0].is_in_order();
            return tilings;
        }
        self.in_order = true;
        self.tiles = self.cut_tiles(tiles);
        let symmetric = self.inputs.symmetric;
        let [forward, backward] = [false, true].map(|transposed| {
            let block = BlockSpec::Graph { self_loops: false, transposed: transposed && !symmetric };
            self.tile_cuts(block, &sizes)
        });
        let tilings = sizes.into_iter().enumerate().map(|(part, sizes)| {
            let tile = |(i, rows): (usize, &Range<usize>)| Sizes {
                first_vertex: rows.start as u64,
                vertices: rows.len() as u64,
                forward: forward[part][i],
                backward: backward[part][i],
                feature_cells: self.feature_cells(rows),
                ..sizes
            };
            let tiles = self.tiles[part].iter().enumerate().map(tile).collect();
            Tiling { tiles, number: part, ..Tiling::from(sizes) }
        });
        with_halo_tiles(tilings.collect())
    }

    /// Returns how many rows of each part a part reads, forward and over the transposed graph.
    fn owners(&mut self, part: usize) -> [Vec<u64>; 2] {
        let (count, symmetric) = (self.parts.len(), self.inputs.symmetric);
        [false, true].map(|transposed| {
            let block = BlockSpec::Graph { self_loops: false, transposed: transposed && !symmetric };
            let mut rows = vec![0; count];
            let routes = self.routes(Crossing::Pull(block));
            routes.sources[part].iter().for_each(|source| rows[source.part] = source.rows.len() as u64);
            rows
        })
    }

    /// Returns the rows of every part's tiles.
    fn cut_tiles(&mut self, tiles: usize) -> Vec<Vec<Range<usize>>> {
        let parts = self.parts.clone();
        let forward = BlockSpec::Graph { self_loops: false, transposed: false };
        if !self.inputs.symmetric {
            self.graph(forward.transpose());
        }
        let mut indptrs: Vec<&[u64]> = vec![self.inputs.graph.indptr()];
        indptrs.extend(self.graphs.get(&forward.transpose()).map(|graph| &graph.indptr()[..]));
        parts.iter().map(|part| cut_rows(part, &indptrs, tiles)).collect()
    }

    /// Returns the edge and row counts of one direction, for each tile of each part.
    fn tile_cuts(&mut self, block: BlockSpec, sizes: &[Sizes]) -> Vec<Vec<Cut>> {
        let tiles = self.tiles.clone();
        let packed = match self.parts.len() {
            1 => vec![Vec::new()],
            _ => self.routes(Crossing::Pull(block)).packed.clone(),
        };
        let starts: Vec<usize> = self.parts.iter().map(|part| part.start).collect();
        let graph = self.graph(block);
        let of_part = |(part, rows): (usize, &Vec<Range<usize>>)| {
            let cut = |rows: &Range<usize>| {
                let own = packed_in(&packed[part], rows.start - starts[part]..rows.end - starts[part]);
                Cut {
                    edges: graph.indptr()[rows.end] - graph.indptr()[rows.start],
                    self_loops: graph.self_loops_in(rows.clone()) as u64,
                    packed: own.len() as u64,
                    ..sizes[part].cut(block)
                }
            };
            rows.iter().map(cut).collect()
        };
        tiles.iter().enumerate().map(of_part).collect()
    }

    fn feature_cells(&self, rows: &Range<usize>) -> u64 {
        match &self.inputs.features {
            FeatureData::Sparse { indptr, .. } => indptr[rows.end] - indptr[rows.start],
            FeatureData::Dense { .. } => 0,
        }
    }

    /// Returns the rows that cross between the parts.
    pub fn routes(&mut self, crossing: Crossing) -> &Routes {
        // A self-loop crosses nothing.
        let key = match crossing {
            Crossing::Pull(block) => Crossing::Pull(plain(block)),
            Crossing::Fold(block) => Crossing::Fold(plain(block)),
        };
        if !self.routes.contains_key(&key) {
            let routes = match key {
                Crossing::Pull(block) => {
                    let parts = self.parts.clone();
                    Routes::new(self.graph(block), &parts)
                }
                Crossing::Fold(block) => self.routes(Crossing::Pull(block.transpose())).folded(),
            };
            self.routes.insert(key, routes);
        }
        &self.routes[&key]
    }

    /// Returns the array for `contents` of one tile of a part. Arrays that are already in memory are not copied.
    ///
    /// # Panics
    /// If the data does not have it (features or labels of the other kind). Programs are written for the data that they
    /// are bound to.
    /// # Cost
    /// O(n + e) for each block except the graph itself.
    pub fn get(&mut self, part: usize, tile: usize, contents: &Contents) -> HostSlot {
        match contents {
            Contents::Indptr(block @ BlockSpec::Graph { .. }) if self.in_order => {
                let rows = self.local_rows(part, tile);
                let offsets = &self.block(part, 0, *block).block.indptr()[rows.start..=rows.end];
                HostSlot::constant(&Shared::from(offsets.iter().map(|end| end - offsets[0]).collect::<Vec<u64>>()))
            }
            Contents::Indices(block @ BlockSpec::Graph { .. }) if self.in_order => {
                HostSlot::constant(&self.tile_indices(part, tile, *block))
            }
            Contents::Indptr(block) => HostSlot::constant(self.block(part, tile, *block).block.indptr()),
            Contents::Indices(block) => HostSlot::constant(self.block(part, tile, *block).block.indices()),
            Contents::PackedRows(_, Some(owner)) if *owner != part => {
                HostSlot::constant(&Shared::from(Vec::<u32>::new()))
            }
            Contents::PackedRows(block, _) => {
                let rows = self.local_rows(part, tile);
                let packed = packed_in(&self.routes(Crossing::Pull(*block)).packed[part], rows.clone());
                HostSlot::constant(&Shared::from(packed.iter().map(|v| v - rows.start as u32).collect::<Vec<u32>>()))
            }
            Contents::FetchedRows(block, owner) => {
                let sources = self.routes(Crossing::Pull(*block)).sources[part].iter();
                let sources = sources.filter(|source| owner.is_none_or(|owner| source.part == owner));
                let rows: Vec<u32> = sources.flat_map(|source| source.rows.iter().copied()).collect();
                HostSlot::constant(&Shared::from(rows))
            }
            Contents::FetchedSums(block) => {
                let sources = self.routes(Crossing::Fold(*block)).sources[part].iter();
                let rows: Vec<u32> = sources.flat_map(|source| source.rows.iter().copied()).collect();
                HostSlot::constant(&Shared::from(rows))
            }
            Contents::Fold(block, side, array) => self.folded(part, *block, *side, *array),
            Contents::Origin(origin) => self.origin(part, tile, origin),
            Contents::Rounded(Origin::Features) => self.rounded_features(part, tile),
            Contents::Rounded(origin) => panic!("no program asks for {origin:?} in bf16"),
        }
    }

    /// Returns a tile's rows, numbered from the part's first row.
    fn local_rows(&self, part: usize, tile: usize) -> Range<usize> {
        let (first, rows) = (self.parts[part].start, &self.tiles[part][tile]);
        rows.start - first..rows.end - first
    }

    /// Returns the sources of a tile over a block of the graph. The part's own rows and those of its halo are numbered
    /// in the order of the whole graph.
    fn tile_indices(&mut self, part: usize, tile: usize, spec: BlockSpec) -> Shared<u32> {
        let rows = self.local_rows(part, tile);
        let (own, whole) = (self.parts[part].len() as u32, self.parts.len() == 1);
        let low = if whole { 0 } else { self.low_halo(part, spec) as u32 };
        let block = &self.block(part, 0, spec).block;
        let edges = block.indptr()[rows.start] as usize..block.indptr()[rows.end] as usize;
        if whole {
            return block.indices().slice(edges);
        }
        let in_order = |&u: &u32| match u {
            own_row if own_row < own => own_row + low,
            halo if halo - own < low => halo - own,
            halo => halo,
        };
        block.indices()[edges].par_iter().map(in_order).collect::<Vec<u32>>().into()
    }

    /// Returns an array of one of the two gathers that fold a gather over `spec`.
    fn folded(&mut self, part: usize, spec: BlockSpec, side: FoldSide, array: FoldArray) -> HostSlot {
        if !self.folds.contains_key(&(part, spec)) {
            let (lent, low) = self.routes(Crossing::Pull(spec.transpose())).lent(part);
            let blocks = FoldBlock::both(&self.block(part, 0, spec.transpose()).block, &lent, low);
            self.folds.insert((part, spec), blocks);
        }
        let weights = (array == FoldArray::Weights).then(|| {
            let edges = self.part_edges(part, spec.transpose());
            self.edge_weights(spec.transpose(), LoopWeight::One).slice(edges)
        });
        let [out, into] = &self.folds[&(part, spec)];
        let block = if side == FoldSide::Out { out } else { into };
        match (array, weights) {
            (FoldArray::Indptr, _) => HostSlot::constant(&block.indptr),
            (FoldArray::Indices, _) => HostSlot::constant(&block.indices),
            (FoldArray::Weights, weights) => HostSlot::constant(&block.weights(&weights.expect("they were asked for"))),
        }
    }

    /// Returns the edges of a part in a graph block.
    fn part_edges(&mut self, part: usize, spec: BlockSpec) -> Range<usize> {
        let range = self.parts[part].clone();
        let indptr = self.graph(canonical(spec, self.inputs.symmetric)).indptr();
        indptr[range.start] as usize..indptr[range.end] as usize
    }

    /// Returns how many rows of a part's halo come before the part's own rows.
    fn low_halo(&mut self, part: usize, block: BlockSpec) -> u64 {
        low_rows(&self.routes(Crossing::Pull(block)).sources[part], part)
    }

    /// Returns a copy of a tile's dense features in bf16. The f32 pages of a mapped file are released, since they will
    /// probably not be read again.
    fn rounded_features(&self, part: usize, tile: usize) -> HostSlot {
        let FeatureData::Dense { data, width } = &self.inputs.features else {
            panic!("a program for dense features is bound to sparse ones");
        };
        let rows = &self.tiles[part][tile];
        let data = data.slice(rows.start * width..rows.end * width);
        let mut stored = vec![bf16::ZERO; data.len()];
        round(&data, &mut stored);
        data.release();
        HostSlot::constant(&Shared::from(stored))
    }

    fn origin(&mut self, part: usize, tile: usize, origin: &Origin) -> HostSlot {
        let range = self.tiles[part][tile].clone();
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
            (&Origin::HeadMean { heads, width }, _, _) => HostSlot::constant(&head_mean(heads, width)),
            (&Origin::EdgeWeights(block, loops), _, _) => {
                let indptr = self.graph(canonical(block, self.inputs.symmetric)).indptr();
                let edges = indptr[range.start] as usize..indptr[range.end] as usize;
                HostSlot::constant(&self.edge_weights(block, loops).slice(edges))
            }
            (&Origin::SourceIds(block), _, _) => HostSlot::constant(&self.source_ids(part, block)),
            (Origin::Scale(degree), _, _) => HostSlot::constant(&self.scale(range, *degree)),
            (Origin::EdgePermutation(block), _, _) => {
                let permutation = self.block(part, tile, block.transpose()).permutation.as_ref();
                HostSlot::constant(permutation.expect("only the features' block asks for its permutation"))
            }
            _ => panic!("a program is bound to data that has no {origin:?}"),
        }
    }

    /// Returns a part's block of the graph, or a tile's block of the features.
    fn block(&mut self, part: usize, tile: usize, spec: BlockSpec) -> &LocalBlock {
        let key = match spec {
            BlockSpec::Graph { .. } => (part, 0, spec),
            BlockSpec::Features { .. } => (part, tile, spec),
        };
        if !self.blocks.contains_key(&key) {
            let block = self.make(part, tile, spec);
            self.blocks.insert(key, block);
        }
        &self.blocks[&key]
    }

    fn make(&mut self, part: usize, tile: usize, spec: BlockSpec) -> LocalBlock {
        let (part_range, range) = (self.parts[part].clone(), self.tiles[part][tile].clone());
        match (spec, &self.inputs.features) {
            (BlockSpec::Graph { self_loops, .. }, _) => {
                let block = match (self.parts.len(), self_loops) {
                    (1, _) => Block::whole(self.graph(spec)),
                    (_, false) => Block::of_part(self.graph(spec), part_range),
                    (_, true) => Block::of_part_with_self_loops(self.graph(plain(spec)), part_range),
                };
                LocalBlock { block, permutation: None }
            }
            (BlockSpec::Features { transposed: true, .. }, _) => {
                let (block, permutation) = self.block(part, tile, spec.transpose()).block.transpose();
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

    /// Returns the graph that a graph block is cut from.
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
                false => {
                    let looped = self.inputs.graph.with_self_loops();
                    // A program that wants self-loops wants them in all gathers, so the plain edges are no longer
                    // needed.
                    self.inputs.graph.indices().release();
                    looped
                }
            };
            self.graphs.insert(spec, graph);
        }
        &self.graphs[&spec]
    }

    /// Returns the weights of all edges of a graph block, in its order.
    fn edge_weights(&mut self, spec: BlockSpec, loops: LoopWeight) -> Shared<f32> {
        if let Some(weights) = self.edge_weights.get(&(spec, loops)) {
            return weights.clone();
        }
        let BlockSpec::Graph { self_loops, transposed } = spec else {
            unreachable!("the features' block has values, and no weights");
        };
        let graph = &self.inputs.graph;
        let weights = match (&self.inputs.edge_weights, self_loops, transposed) {
            (None, false, _) => vec![1.0; graph.edge_count()].into(),
            (Some(weights), false, false) => weights.clone(),
            (None, true, false) => with_loops(graph, &vec![1.0; graph.edge_count()], loops).into(),
            (Some(weights), true, false) => with_loops(graph, weights, loops).into(),
            (_, _, true) => {
                let weights = self.edge_weights(spec.transpose(), loops);
                self.graph(canonical(spec.transpose(), self.inputs.symmetric)).transpose_values(&weights).into()
            }
        };
        self.edge_weights.insert((spec, loops), weights);
        self.edge_weights[&(spec, loops)].clone()
    }

    /// Returns the global ids of the sources of a part's block: the part's own rows, then those of its halo; if
    /// sources are in order, all in the order of the whole graph.
    fn source_ids(&mut self, part: usize, spec: BlockSpec) -> Shared<u32> {
        let spec = canonical(spec, self.inputs.symmetric);
        let in_order = self.parts.len() > 1 && self.in_order;
        let low = if in_order { self.low_halo(part, spec) as usize } else { 0 };
        let own = self.parts[part].start as u32..self.parts[part].end as u32;
        let (before, after) = self.block(part, 0, spec).block.halo().split_at(low);
        before.iter().copied().chain(own).chain(after.iter().copied()).collect::<Vec<_>>().into()
    }

    /// Returns the edge and row counts of one direction, for each part.
    fn cuts(&mut self, block: BlockSpec) -> Vec<Cut> {
        let parts = self.parts.clone();
        let routes = self.routes(Crossing::Pull(block)).clone();
        let mut lent = vec![0; parts.len()];
        routes.sources.iter().flatten().for_each(|source| lent[source.part] += source.rows.len() as u64);
        let symmetric = self.inputs.symmetric;
        let graph = self.graph(block);
        let inner = |part: &Range<usize>| {
            let edges = graph.indptr()[part.start] as usize..graph.indptr()[part.end] as usize;
            graph.indices()[edges].par_iter().filter(|&&u| part.contains(&(u as usize))).count() as u64
        };
        let cut = |(i, part): (usize, &Range<usize>)| Cut {
            edges: graph.indptr()[part.end] - graph.indptr()[part.start],
            self_loops: graph.self_loops_in(part.clone()) as u64,
            halo: routes.sources[i].iter().map(|source| source.rows.len() as u64).sum(),
            low: low_rows(&routes.sources[i], i),
            packed: routes.packed[i].len() as u64,
            lent: lent[i],
            inner: if symmetric { 0 } else { inner(part) },
        };
        parts.iter().enumerate().map(cut).collect()
    }

    fn scale(&mut self, range: Range<usize>, degree: Degree) -> Shared<f32> {
        let (Degree::InverseRoot { self_loops, weighted } | Degree::Inverse { self_loops, weighted }) = degree;
        let block = BlockSpec::Graph { self_loops, transposed: false };
        let weights = weighted.then(|| self.edge_weights(block, LoopWeight::One));
        let sums = weights.map(|weights| (weights, self.graph(block).clone()));
        let graph = &self.inputs.graph;
        let degree_of =
            |v| graph.in_degree(v) + u64::from(self_loops) - if self_loops { graph.loops_at(v) as u64 } else { 0 };
        let sum = |v| match &sums {
            None => degree_of(v) as f64,
            Some((weights, graph)) => weights[graph.edges(v)].iter().map(|&weight| f64::from(weight)).sum(),
        };
        let factor = |v| match (sum(v), degree) {
            (0.0, _) => 0.0,
            (sum, Degree::InverseRoot { .. }) => (1.0 / sum.sqrt()) as f32,
            (sum, Degree::Inverse { .. }) => (1.0 / sum) as f32,
        };
        let factors: Vec<f32> = range.into_par_iter().map(factor).collect();
        factors.into()
    }
}

/// Returns the block of the graph without added self-loops.
fn plain(block: BlockSpec) -> BlockSpec {
    match block {
        BlockSpec::Graph { transposed, .. } => BlockSpec::Graph { self_loops: false, transposed },
        features => features,
    }
}

/// Returns how many of a part's halo rows belong to parts before it.
fn low_rows(sources: &[Source], part: usize) -> u64 {
    sources.iter().filter(|source| source.part < part).map(|source| source.rows.len() as u64).sum()
}

/// Returns the packed rows, which ascend, that are in `rows`.
fn packed_in(packed: &[u32], rows: Range<usize>) -> &[u32] {
    let [start, end] = [rows.start, rows.end].map(|limit| packed.partition_point(|&v| (v as usize) < limit));
    &packed[start..end]
}

fn identity(width: usize) -> Shared<f32> {
    let mut cells = vec![0.0; width * width];
    cells.iter_mut().step_by(width + 1).for_each(|cell| *cell = 1.0);
    cells.into()
}

fn head_mean(heads: usize, width: usize) -> Shared<f32> {
    let mut cells = vec![0.0; heads * width * width];
    for c in 0..width {
        (0..heads).for_each(|head| cells[c * heads * width + head * width + c] = 1.0 / heads as f32);
    }
    cells.into()
}

/// Returns the weights of the edges of `A + I`. With [`LoopWeight::One`], a self-loop of the graph keeps its weight. With
/// [`LoopWeight::Mean`], each self-loop has the mean weight of the vertex's other in-edges.
fn with_loops(graph: &Graph, weights: &[f32], loops: LoopWeight) -> Vec<f32> {
    let mean = |v: usize| {
        let others = graph.sources(v).iter().zip(&weights[graph.edges(v)]).filter(|(u, _)| **u as usize != v);
        let (count, sum) = others.fold((0u64, 0.0), |(count, sum), (_, &weight)| (count + 1, sum + f64::from(weight)));
        if count == 0 { 0.0 } else { (sum / count as f64) as f32 }
    };
    graph.with_self_loops_and_values(weights, |v, old| match loops {
        LoopWeight::One => old.unwrap_or(1.0),
        LoopWeight::Mean => mean(v),
    })
}
