//! The contents of constants, built from the data when a run begins.

use std::collections::BTreeMap;
use std::ops::Range;

use half::bf16;
use lapidary_kernels::storage_type::round;
use lapidary_kernels::{HostSlot, Shared};
use rayon::prelude::*;

use super::fold::{FoldArray, FoldBlock, FoldSide};
use super::own_edges::OwnEdges;
use super::routes::{Crossing, Routes, Source};
use super::sizes::canonical;
use super::tiling::cut_rows;
use super::{Cut, ExchangePath, FeatureData, Inputs, LabelData, Layout, Sizes, Tiling};
use crate::graph::{Block, Graph, SelfLoops};
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
    /// For each row that the part is sent, its index among those that its sender lends, u32 `[halo]`, or `[lent]` for
    /// sums. With a sender: only its rows.
    FetchedRows(Crossing, Option<usize>),
    /// An array of one of the two gathers that fold a gather over the block.
    Fold(BlockSpec, FoldSide, FoldArray),
}

impl Contents {
    /// Returns the origin of which they are rows of a mini-batch, and the level, if they are.
    pub(crate) fn of_batch(&self) -> Option<(&Origin, u8)> {
        match self {
            Self::Origin(Origin::OfBatch(of, level)) | Self::Rounded(Origin::OfBatch(of, level)) => Some((of, *level)),
            _ => None,
        }
    }
}

/// The data split into parts. Contents are built from it on request. A rank has a supply for its own parts, which holds
/// no edges of others.
#[derive(Debug)]
pub struct Supply<'a> {
    inputs: &'a Inputs,
    parts: Vec<Range<usize>>,
    /// The parts that contents and sizes can be requested for.
    own: Range<usize>,
    edges: OwnEdges<'a>,
    /// The sizes of these parts, once they were requested.
    sizes: Option<Vec<Sizes>>,
    /// The self-loops of these parts, once they were counted. Both directions have the same.
    loops: Option<SelfLoops>,
    /// For each part, the vertices of its tiles.
    tiles: Vec<Vec<Range<usize>>>,
    /// Whether the sources of a part's block are numbered in the order of the whole graph.
    in_order: bool,
    /// If there is one part, the graph with self-loops, and its transpose.
    looped: BTreeMap<BlockSpec, Graph>,
    /// Blocks of the graph by part; blocks of the features by part and tile.
    blocks: BTreeMap<(usize, usize, BlockSpec), LocalBlock>,
    routes: BTreeMap<Crossing, Routes>,
    /// The blocks of folded gathers, by part.
    folds: BTreeMap<(usize, BlockSpec), [FoldBlock; 2]>,
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
        let own = 0..parts.len();
        Self::of_own_parts(inputs, parts, own)
    }

    /// Creates a supply for the parts `own` of `parts`. Sizes and contents of other parts cannot be requested, and of
    /// routes between other parts nothing is known.
    ///
    /// # Panics
    /// If the parts are not consecutive ranges that cover all vertices; if `own` is not a range of them.
    pub fn of_own_parts(inputs: &'a Inputs, parts: Vec<Range<usize>>, own: Range<usize>) -> Self {
        let ends = parts.iter().scan(0, |end, part| (part.start == *end).then(|| *end = part.end));
        let covered = ends.count() == parts.len() && parts.last().map(|p| p.end) == Some(inputs.graph.vertex_count());
        assert!(covered, "parts {parts:?} do not cover {} vertices in order", inputs.graph.vertex_count());
        let tiles = parts.iter().map(|part| vec![part.clone()]).collect();
        let first = parts[own.clone()].first().map_or(0, |part| part.start);
        let vertices = first..parts[own.clone()].last().map_or(first, |part| part.end);
        Self {
            inputs,
            parts,
            own,
            edges: OwnEdges::new(inputs, vertices),
            sizes: None,
            loops: None,
            tiles,
            in_order: false,
            looped: BTreeMap::new(),
            blocks: BTreeMap::new(),
            routes: BTreeMap::new(),
            folds: BTreeMap::new(),
        }
    }

    /// Returns the parts.
    pub fn parts(&self) -> &[Range<usize>] {
        &self.parts
    }

    /// Returns the sizes of each part that this supply is for, for lowering.
    ///
    /// # Cost
    /// O(n log d) for one part; else what the routes take, and the transposed rows of a directed graph. Computed once.
    pub fn sizes(&mut self) -> Vec<Sizes> {
        if let Some(sizes) = &self.sizes {
            return sizes.clone();
        }
        let sizes = self.measure();
        self.sizes.insert(sizes).clone()
    }

    fn measure(&mut self) -> Vec<Sizes> {
        if self.parts.len() == 1 {
            return vec![Sizes::of(self.inputs)];
        }
        let whole = Sizes::without_edges(self.inputs);
        let forward = self.cuts(BlockSpec::Graph { self_loops: false, transposed: false });
        let backward = match whole.symmetric {
            true => forward.clone(),
            false => self.cuts(BlockSpec::Graph { self_loops: false, transposed: true }),
        };
        let parts = self.parts[self.own.clone()].iter().zip(forward.into_iter().zip(backward));
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

    /// Lays out every part that this supply is for: splits it into tiles with about equal shares of its vertices and
    /// edges, and returns the sizes for lowering. From then on, contents are those of this layout. [`Tiling::of_all`]
    /// takes the sizes that several supplies return for parts of one graph.
    ///
    /// # Panics
    /// If there are no tiles.
    /// # Cost
    /// That of [`Supply::sizes`], and O(n) more for each direction of the graph.
    pub fn tile(&mut self, layout: impl Into<Layout>) -> Vec<Tiling> {
        let layout = layout.into();
        let Layout { tiles, path, .. } = layout;
        assert!(tiles > 0, "a part has tiles");
        let sizes = self.sizes();
        self.blocks.retain(|(_, _, block), _| matches!(block, BlockSpec::Graph { .. }));
        if tiles == 1 {
            self.tiles = self.parts.iter().map(|part| vec![part.clone()]).collect();
            let own = self.own.clone();
            let tiling = |(number, part): (usize, Sizes)| {
                let owners = match path {
                    ExchangePath::Staged if part.parts > 1 => self.owners(number),
                    _ => [Vec::new(), Vec::new()],
                };
                Tiling { exchange: path, number, owners, ..Tiling::from(part) }
            };
            let tilings: Vec<Tiling> = own.zip(sizes).map(tiling).collect();
            self.in_order = tilings.first().is_some_and(Tiling::is_in_order);
            return Tiling::of_all(vec![tilings], layout);
        }
        self.in_order = true;
        self.cut_tiles(tiles);
        let symmetric = self.inputs.symmetric;
        let [forward, backward] = [false, true].map(|transposed| {
            let block = BlockSpec::Graph { self_loops: false, transposed: transposed && !symmetric };
            self.tile_cuts(block, &sizes)
        });
        let cuts = forward.into_iter().zip(backward);
        let tilings = self.own.clone().zip(sizes).zip(cuts).map(|((part, sizes), (forward, backward))| {
            let tile = |(rows, (forward, backward)): (&Range<usize>, _)| Sizes {
                first_vertex: rows.start as u64,
                vertices: rows.len() as u64,
                forward,
                backward,
                feature_cells: self.feature_cells(rows),
                ..sizes
            };
            let tiles = self.tiles[part].iter().zip(forward.into_iter().zip(backward)).map(tile).collect();
            Tiling { tiles, number: part, ..Tiling::from(sizes) }
        });
        Tiling::of_all(vec![tilings.collect()], layout)
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

    /// Splits the parts into tiles.
    fn cut_tiles(&mut self, tiles: usize) {
        let directions = if self.inputs.symmetric { &[false][..] } else { &[false, true] };
        let rows: Vec<_> = directions.iter().map(|&transposed| self.edges.rows(transposed)).collect();
        let first = rows[0].range().start;
        let offsets: Vec<&[u64]> = rows.iter().map(|rows| &rows.offsets()[..]).collect();
        for part in self.own.clone() {
            let Range { start, end } = self.parts[part];
            let cut = cut_rows(&(start - first..end - first), &offsets, tiles);
            self.tiles[part] = cut.into_iter().map(|rows| rows.start + first..rows.end + first).collect();
        }
    }

    /// Returns the edge and row counts of one direction, for each tile of each part.
    fn tile_cuts(&mut self, block: BlockSpec, sizes: &[Sizes]) -> Vec<Vec<Cut>> {
        self.count_loops();
        let edges = self.edges.rows(is_transposed(block));
        let crossing = Crossing::Pull(plain(block));
        if self.parts.len() > 1 {
            self.routes(crossing);
        }
        let routes = self.routes.get(&crossing);
        let of_part = |(part, sizes): (usize, &Sizes)| {
            let packed = routes.map_or(&[][..], |routes| &routes.packed[part]);
            let cut = |rows: &Range<usize>| Cut {
                edges: edges.edges(rows).len() as u64,
                self_loops: self.loops.as_ref().map_or(0, |loops| loops.within(rows)),
                packed: packed_in(packed, self.local_rows(part, rows)).len() as u64,
                ..sizes.cut(block)
            };
            self.tiles[part].iter().map(cut).collect()
        };
        self.own.clone().zip(sizes).map(of_part).collect()
    }

    /// Counts the self-loops, unless that was done.
    fn count_loops(&mut self) {
        let rows = self.edges.rows(false);
        self.loops.get_or_insert_with(|| SelfLoops::of(&rows));
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
                    let turned = is_transposed(block);
                    let [rows, turned] = [turned, !turned].map(|turned| self.edges.rows(turned));
                    Routes::of_own(&self.parts, &self.own, &rows, &turned)
                }
                Crossing::Fold(block) => {
                    let own = self.own.clone();
                    self.routes(Crossing::Pull(block.transpose())).folded(&own)
                }
            };
            self.routes.insert(key, routes);
        }
        &self.routes[&key]
    }

    /// Returns the array for `contents` of one tile of a part. Arrays that are already in memory are not copied.
    ///
    /// # Panics
    /// If this supply is not for the part. If the data does not have it (features or labels of the other kind). Programs
    /// are written for the data that they are bound to.
    /// # Cost
    /// O(n + e) for each block except the graph itself.
    pub fn get(&mut self, part: usize, tile: usize, contents: &Contents) -> HostSlot {
        match contents {
            Contents::Indptr(block @ BlockSpec::Graph { .. }) if self.in_order => {
                let rows = self.local_rows(part, &self.tiles[part][tile]);
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
                let rows = self.local_rows(part, &self.tiles[part][tile]);
                let packed = packed_in(&self.routes(Crossing::Pull(*block)).packed[part], rows.clone());
                HostSlot::constant(&Shared::from(packed.iter().map(|v| v - rows.start as u32).collect::<Vec<u32>>()))
            }
            Contents::FetchedRows(crossing, owner) => {
                let sources = self.routes(*crossing).sources[part].iter();
                let sources = sources.filter(|source| owner.is_none_or(|owner| source.part == owner));
                let rows: Vec<u32> = sources.flat_map(|source| source.rows.iter().copied()).collect();
                HostSlot::constant(&Shared::from(rows))
            }
            Contents::Fold(block, side, array) => self.folded(part, *block, *side, *array),
            Contents::Origin(origin) => self.origin(part, tile, origin),
            Contents::Rounded(Origin::Features) => self.rounded_features(part, tile),
            Contents::Rounded(Origin::KeptFeatures) => {
                let rows = self.kept_features();
                let mut stored = vec![bf16::ZERO; rows.len()];
                round(&rows, &mut stored);
                HostSlot::constant(&Shared::from(stored))
            }
            Contents::Rounded(origin) => panic!("no program asks for {origin:?} in bf16"),
        }
    }

    /// Returns rows of a part, numbered from its first one.
    fn local_rows(&self, part: usize, rows: &Range<usize>) -> Range<usize> {
        let first = self.parts[part].start;
        rows.start - first..rows.end - first
    }

    /// Returns the sources of a tile over a block of the graph. The part's own rows and those of its halo are numbered
    /// in the order of the whole graph.
    fn tile_indices(&mut self, part: usize, tile: usize, spec: BlockSpec) -> Shared<u32> {
        let rows = self.local_rows(part, &self.tiles[part][tile]);
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
        let [out, into] = &self.folds[&(part, spec)];
        let block = if side == FoldSide::Out { out } else { into };
        match array {
            FoldArray::Indptr => HostSlot::constant(&block.indptr),
            FoldArray::Indices => HostSlot::constant(&block.indices),
            FoldArray::Weights => {
                let forward = self.edges.weights(spec.transpose(), LoopWeight::One).of(&self.parts[part]);
                HostSlot::constant(&block.weights(&forward))
            }
        }
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

    /// Returns the rows of features that stay on each device.
    fn kept_features(&self) -> Shared<f32> {
        let (FeatureData::Dense { data, width }, Some(kept)) = (&self.inputs.features, &self.inputs.kept) else {
            panic!("a program that keeps rows of features is bound to data without them");
        };
        let row = |&row: &u32| &data[row as usize * width..][..*width];
        kept.contents()
            .cloned()
            .unwrap_or_else(|| kept.rows().iter().flat_map(row).copied().collect::<Vec<f32>>().into())
    }

    /// Returns the weights of the classes, with 0 in the columns behind them.
    fn class_weights(&self, columns: usize) -> Shared<f32> {
        let weights = self.inputs.class_weights.as_ref().expect("a loss with weights is bound to data with weights");
        (0..columns).map(|class| weights.get(class).copied().unwrap_or(0.0)).collect::<Vec<f32>>().into()
    }

    fn origin(&mut self, part: usize, tile: usize, origin: &Origin) -> HostSlot {
        let range = self.tiles[part][tile].clone();
        match (origin, &self.inputs.features, &self.inputs.labels) {
            (Origin::Features, FeatureData::Dense { data, width }, _) => {
                HostSlot::constant(&data.slice(range.start * width..range.end * width))
            }
            (Origin::KeptFeatures, ..) => HostSlot::constant(&self.kept_features()),
            (Origin::FeatureValues, FeatureData::Sparse { values, indptr, .. }, _) => {
                HostSlot::constant(&values.slice(indptr[range.start] as usize..indptr[range.end] as usize))
            }
            (Origin::Labels, _, LabelData::Classes(labels)) => HostSlot::constant(&labels.slice(range)),
            (Origin::Targets, _, LabelData::Targets(targets)) => {
                let classes = targets.len() / self.inputs.graph.vertex_count().max(1);
                HostSlot::constant(&targets.slice(range.start * classes..range.end * classes))
            }
            (Origin::Split, _, _) => HostSlot::constant(&self.inputs.split.slice(range)),
            (Origin::ClassWeights(columns), _, _) => HostSlot::constant(&self.class_weights(*columns)),
            (Origin::Identity(width), _, _) => HostSlot::constant(&identity(*width)),
            (&Origin::HeadMean { heads, width }, _, _) => HostSlot::constant(&head_mean(heads, width)),
            (&Origin::EdgeWeights(block, loops), _, _) => {
                HostSlot::constant(&self.edges.weights(block, loops).of(&range))
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
            _ => (part, tile, spec),
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
            (BlockSpec::Graph { self_loops, transposed }, _) => {
                let block = match (self.parts.len(), self_loops) {
                    (1, false) => self.edges.rows(transposed).whole_block(),
                    (1, true) => Block::whole(self.looped(spec)),
                    (_, false) => Block::of_rows(&self.edges.rows(transposed).of(&part_range)),
                    (_, true) => Block::of_rows_with_self_loops(&self.edges.rows(transposed).of(&part_range)),
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
            (BlockSpec::Batch { .. }, _) => panic!("blocks of mini-batches are given in each of them"),
        }
    }

    /// Returns the graph with self-loops, or its transpose.
    fn looped(&mut self, spec: BlockSpec) -> &Graph {
        if !self.looped.contains_key(&spec) {
            let graph = match is_transposed(spec) {
                true => self.looped(spec.transpose()).transpose_without_permutation(),
                false => {
                    let looped = self.inputs.graph.with_self_loops();
                    // A program that wants self-loops wants them in all gathers, so the plain edges are no longer
                    // needed.
                    self.inputs.graph.indices().release();
                    looped
                }
            };
            self.looped.insert(spec, graph);
        }
        &self.looped[&spec]
    }

    /// Returns the global ids of the sources of a part's block: the part's own rows, then those of its halo; if sources
    /// are in order, all in the order of the whole graph.
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
        self.count_loops();
        let edges = self.edges.rows(is_transposed(block));
        let routes = self.routes(Crossing::Pull(block)).clone();
        let mut lent = vec![0; self.parts.len()];
        routes.sources.iter().flatten().for_each(|source| lent[source.part] += source.rows.len() as u64);
        let symmetric = self.inputs.symmetric;
        let cut = |part: usize| {
            let range = &self.parts[part];
            let edges = edges.of(range);
            let inner = || edges.indices().par_iter().filter(|&&u| range.contains(&(u as usize))).count() as u64;
            Cut {
                edges: edges.edge_count() as u64,
                self_loops: self.loops.as_ref().map_or(0, |loops| loops.within(range)),
                halo: routes.sources[part].iter().map(|source| source.rows.len() as u64).sum(),
                low: low_rows(&routes.sources[part], part),
                packed: routes.packed[part].len() as u64,
                lent: lent[part],
                inner: if symmetric { 0 } else { inner() },
            }
        };
        self.own.clone().map(cut).collect()
    }

    fn scale(&mut self, range: Range<usize>, degree: Degree) -> Shared<f32> {
        let (Degree::InverseRoot { self_loops, weighted } | Degree::Inverse { self_loops, weighted }) = degree;
        let block = BlockSpec::Graph { self_loops, transposed: false };
        let weights = weighted.then(|| self.edges.weights(block, LoopWeight::One));
        let graph = &self.inputs.graph;
        let degree_of =
            |v| graph.in_degree(v) + u64::from(self_loops) - if self_loops { graph.loops_at(v) as u64 } else { 0 };
        let sum = |v| match &weights {
            None => degree_of(v) as f64,
            Some(weights) => weights.sum(v),
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

/// Whether a block is one of the transposed graph.
fn is_transposed(block: BlockSpec) -> bool {
    matches!(block, BlockSpec::Graph { transposed: true, .. })
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
