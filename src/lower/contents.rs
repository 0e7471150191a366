//! What constants hold, made from the data when a run begins.

use std::collections::BTreeMap;
use std::ops::Range;

use half::bf16;
use lapidary_kernels::storage_type::round;
use lapidary_kernels::{HostSlot, Shared};
use rayon::prelude::*;

use super::routes::{Routes, Source};
use super::tiling::{cut_rows, with_halo_tiles};
use super::{Cut, ExchangePath, FeatureData, Inputs, LabelData, Sizes, Tiling};
use crate::graph::{Block, Graph};
use crate::program::{BlockSpec, Degree, Origin};

/// What a constant that no operation makes holds, all of it or one tile's share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// What the origin says.
    Origin(Origin),
    /// What the origin says, in bf16.
    Rounded(Origin),
    /// A block's offsets, u64 `[rows + 1]`.
    Indptr(BlockSpec),
    /// A block's sources, u32 `[edges]`.
    Indices(BlockSpec),
    /// The part's rows that other parts read over a block, u32 `[packed]`.
    PackedRows(BlockSpec),
    /// Where in its owner's pack each row of the part's halo is, u32 `[halo]`.
    FetchedRows(BlockSpec),
}

/// The data cut into parts, from which contents are made as they are asked for.
#[derive(Debug)]
pub struct Supply<'a> {
    inputs: &'a Inputs,
    parts: Vec<Range<usize>>,
    /// Those of the parts, once they were asked for.
    sizes: Option<Vec<Sizes>>,
    /// By part, the vertices of its tiles.
    tiles: Vec<Vec<Range<usize>>>,
    graphs: BTreeMap<BlockSpec, Graph>,
    /// Those of the graph by part, those of the features by part and tile.
    blocks: BTreeMap<(usize, usize, BlockSpec), LocalBlock>,
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
        let tiles = parts.iter().map(|part| vec![part.clone()]).collect();
        Self {
            inputs,
            parts,
            sizes: None,
            tiles,
            graphs: BTreeMap::new(),
            blocks: BTreeMap::new(),
            routes: BTreeMap::new(),
        }
    }

    /// The parts.
    pub fn parts(&self) -> &[Range<usize>] {
        &self.parts
    }

    /// What lowering needs to know of each part.
    ///
    /// # Cost
    /// O(n log d) for one part, else O(parts n / 64 + e), and for a directed graph that of its transpose; once.
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

    /// Cuts every part into so many tiles, each with about the same share of its vertices and edges, and says what lowering
    /// needs to know of them. From now on contents are those of these tiles.
    ///
    /// # Panics
    /// If there are no tiles.
    /// # Cost
    /// That of [`Supply::sizes`], and O(n) more for each direction of the graph.
    pub fn tile(&mut self, tiles: usize) -> Vec<Tiling> {
        assert!(tiles > 0, "a part has tiles");
        let sizes = self.sizes();
        self.blocks.retain(|(_, _, block), _| matches!(block, BlockSpec::Graph { .. }));
        if tiles == 1 {
            self.tiles = self.parts.iter().map(|part| vec![part.clone()]).collect();
            return sizes.into_iter().map(Tiling::from).collect();
        }
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
            Tiling { part: sizes, tiles, halo_tiles: 1, exchange: ExchangePath::Host }
        });
        with_halo_tiles(tilings.collect())
    }

    /// The rows of every part's tiles.
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

    /// How the edges of one direction meet each tile of each part.
    fn tile_cuts(&mut self, block: BlockSpec, sizes: &[Sizes]) -> Vec<Vec<Cut>> {
        let tiles = self.tiles.clone();
        let packed = match self.parts.len() {
            1 => vec![Vec::new()],
            _ => self.routes(block).packed.clone(),
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

    /// The rows that cross between the parts over a block of the graph.
    pub fn routes(&mut self, block: BlockSpec) -> &Routes {
        if !self.routes.contains_key(&block) {
            let parts = self.parts.clone();
            let routes = Routes::new(self.graph(block), &parts);
            self.routes.insert(block, routes);
        }
        &self.routes[&block]
    }

    /// The array behind `contents` for one tile of a part; what lies in memory already is not copied.
    ///
    /// # Panics
    /// If the data does not have it (features or labels of the other kind); programs are written for the data at hand.
    /// # Cost
    /// O(n + e) for each block beside the graph itself.
    pub fn get(&mut self, part: usize, tile: usize, contents: &Contents) -> HostSlot {
        match contents {
            Contents::Indptr(block @ BlockSpec::Graph { .. }) if self.tiles[part].len() > 1 => {
                let rows = self.local_rows(part, tile);
                let offsets = &self.block(part, 0, *block).block.indptr()[rows.start..=rows.end];
                HostSlot::constant(&Shared::from(offsets.iter().map(|end| end - offsets[0]).collect::<Vec<u64>>()))
            }
            Contents::Indices(block @ BlockSpec::Graph { .. }) if self.tiles[part].len() > 1 => {
                HostSlot::constant(&self.tile_indices(part, tile, *block))
            }
            Contents::Indptr(block) => HostSlot::constant(self.block(part, tile, *block).block.indptr()),
            Contents::Indices(block) => HostSlot::constant(self.block(part, tile, *block).block.indices()),
            Contents::PackedRows(block) => {
                let rows = self.local_rows(part, tile);
                let packed = packed_in(&self.routes(*block).packed[part], rows.clone());
                HostSlot::constant(&Shared::from(packed.iter().map(|v| v - rows.start as u32).collect::<Vec<u32>>()))
            }
            Contents::FetchedRows(block) => {
                let sources = &self.routes(*block).sources[part];
                let rows: Vec<u32> = sources.iter().flat_map(|source| source.rows.iter().copied()).collect();
                HostSlot::constant(&Shared::from(rows))
            }
            Contents::Origin(origin) => self.origin(part, tile, origin),
            Contents::Rounded(Origin::Features) => self.rounded_features(part, tile),
            Contents::Rounded(origin) => panic!("no program asks for {origin:?} in bf16"),
        }
    }

    /// A tile's rows, numbered from the part's first.
    fn local_rows(&self, part: usize, tile: usize) -> Range<usize> {
        let (first, rows) = (self.parts[part].start, &self.tiles[part][tile]);
        rows.start - first..rows.end - first
    }

    /// A tile's sources over a block of the graph, the part's and its halo's numbered in the order of the whole graph.
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

    /// How many rows of a part's halo come before its own.
    fn low_halo(&mut self, part: usize, block: BlockSpec) -> u64 {
        low_rows(&self.routes(block).sources[part], part)
    }

    /// A copy of a tile's dense features in bf16. Those of a mapped file are not likely to be read again.
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
            (Origin::Scale(degree), _, _) => HostSlot::constant(&self.scale(range, *degree)),
            (Origin::EdgePermutation(block), _, _) => {
                let permutation = self.block(part, tile, block.transpose()).permutation.as_ref();
                HostSlot::constant(permutation.expect("only the features' block asks for its permutation"))
            }
            _ => panic!("a program is bound to data that has no {origin:?}"),
        }
    }

    /// A part's block of the graph, or a tile's block of the features.
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
            (BlockSpec::Graph { .. }, _) => {
                let one = self.parts.len() == 1;
                let graph = self.graph(spec);
                let block = if one { Block::whole(graph) } else { Block::of_part(graph, part_range) };
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
                false => {
                    let looped = self.inputs.graph.with_self_loops();
                    // Programs that want loops want them everywhere.
                    self.inputs.graph.indices().release();
                    looped
                }
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
            low: low_rows(&routes.sources[i], i),
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

/// How many of a part's halo rows belong to the parts before it.
fn low_rows(sources: &[Source], part: usize) -> u64 {
    sources.iter().filter(|source| source.part < part).map(|source| source.rows.len() as u64).sum()
}

/// The packed rows, which ascend, that lie in `rows`.
fn packed_in(packed: &[u32], rows: Range<usize>) -> &[u32] {
    let [start, end] = [rows.start, rows.end].map(|limit| packed.partition_point(|&v| (v as usize) < limit));
    &packed[start..end]
}

fn identity(width: usize) -> Shared<f32> {
    let mut cells = vec![0.0; width * width];
    cells.iter_mut().step_by(width + 1).for_each(|cell| *cell = 1.0);
    cells.into()
}
