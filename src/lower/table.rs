//! The table of tensors: slots, sizes and initial contents.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use lapidary_kernels::{BlockSlots, Mat, Slot, Window, linear_weight_grad_workspace_bytes};

use super::{Contents, Crossing, FoldArray, FoldSide, Lifetime, LoweredTensor, Sizes, Tiling};
use crate::program::{BatchEdges, BlockSpec, DType, LevelSizes, Origin, RowSpace, TensorType};

/// The tensors so far. A tensor with rows of the part is stored as one tensor per tile, an optimizer moment as one per
/// window of its update; every other tensor is stored in one piece.
pub(super) struct Table<'a> {
    tiling: &'a Tiling,
    tensors: Vec<LoweredTensor>,
    origins: BTreeMap<Origin, Vec<Slot>>,
    blocks: BTreeMap<(BlockSpec, usize), BlockSlots>,
    names: HashMap<Arc<str>, Slot>,
}

impl<'a> Table<'a> {
    pub(super) fn new(tiling: &'a Tiling) -> Self {
        Self { tiling, tensors: Vec::new(), origins: BTreeMap::new(), blocks: BTreeMap::new(), names: HashMap::new() }
    }

    /// Returns all tensors, and the slots of each origin: those of pieces are joined.
    pub(super) fn finish(self) -> (Vec<LoweredTensor>, BTreeMap<Origin, Vec<Slot>>) {
        let mut origins: BTreeMap<Origin, Vec<Slot>> = BTreeMap::new();
        // Pieces of the same whole are ordered by their first row.
        for (origin, slots) in self.origins {
            origins.entry(origin.whole().clone()).or_default().extend(slots);
        }
        (self.tensors, origins)
    }

    pub(super) fn tiling(&self) -> &'a Tiling {
        self.tiling
    }

    /// Returns into how many pieces a tensor with these rows is split.
    pub(super) fn pieces(&self, rows: RowSpace) -> usize {
        if self.tiling.cuts(rows) { self.tiling.tiles.len() } else { 1 }
    }

    /// Returns the sizes of a tile.
    pub(super) fn tile(&self, tile: usize) -> &'a Sizes {
        &self.tiling.tiles[tile]
    }

    /// Returns the sizes that a tile of a tensor with these rows has: all sources of a part are in one piece.
    pub(super) fn sizes(&self, rows: RowSpace, tile: usize) -> &'a Sizes {
        if matches!(rows, RowSpace::Sources(_)) { &self.tiling.part } else { self.tile(tile) }
    }

    /// Creates slots for an operation's output.
    pub(super) fn tensor(&mut self, name: &str, ty: TensorType, kind: Lifetime) -> Vec<Slot> {
        self.tiles(name, ty, kind, None)
    }

    /// Creates one slot per tile.
    fn tiles(&mut self, name: &str, ty: TensorType, kind: Lifetime, contents: Option<Contents>) -> Vec<Slot> {
        let pieces = self.pieces(ty.rows);
        let push = |tile: usize| {
            let bytes = self.sizes(ty.rows, tile).bytes(ty);
            self.push_tile(tile_name(name, tile, pieces), bytes, kind, contents.clone(), tile)
        };
        (0..pieces).map(push).collect()
    }

    /// Creates one slot per window of the update.
    pub(super) fn windows(&mut self, name: &str, ty: TensorType, kind: Lifetime) -> Vec<Slot> {
        let windows = self.tiling.windows(self.numbers(ty));
        let pieces = windows.len();
        let push = |(i, window): (usize, Window)| self.push(tile_name(name, i, pieces), 4 * window.len as u64, kind);
        windows.into_iter().enumerate().map(push).collect()
    }

    /// Returns the number of elements of a parameter.
    pub(super) fn numbers(&self, ty: TensorType) -> usize {
        (self.tiling.part.bytes(ty) / 4) as usize
    }

    /// Creates a slot for the next value of a tensor that is carried from epoch to epoch.
    pub(super) fn next(&mut self, state: Slot) -> Slot {
        let LoweredTensor { name, bytes, .. } = &self.tensors[state.0 as usize];
        self.push(format!("{name}'"), *bytes, Lifetime::Local)
    }

    /// Creates a workspace for the partial sums of a weight gradient of `[rows, d_in, d_out]`, if it needs one.
    pub(super) fn workspace(&mut self, name: &str, [n, d_in, d_out]: [u64; 3]) -> Option<Slot> {
        let bytes = linear_weight_grad_workspace_bytes(n, d_in, d_out);
        // A part or a mini-batch that needs no workspace still has the slot, so that all have the same slots.
        let needed = bytes > 0 || self.tiling.part.parts > 1 || self.tiling.part.levels != LevelSizes::default();
        needed.then(|| self.push(format!("{name}.workspace"), bytes, Lifetime::Local))
    }

    /// Returns the slot with the indices of a tile's rows that other parts read over `block`.
    pub(super) fn packed_rows(&mut self, block: BlockSpec, tile: usize) -> Slot {
        let name = tile_name(&format!("{}.packed_rows", block_name(block)), tile, self.tiling.tiles.len());
        let bytes = 4 * self.tile(tile).cut(block).packed;
        let contents = Some(Contents::PackedRows(block, None));
        self.named(&name).unwrap_or_else(|| self.push_tile(name, bytes, Lifetime::Constant, contents, tile))
    }

    /// Returns the slot with the index of each row that crosses to this part, among those that its sender lends.
    pub(super) fn fetched_rows(&mut self, crossing: Crossing) -> Slot {
        let part = &self.tiling.part;
        let (block, what, rows) = match crossing {
            Crossing::Pull(block) => (block, "rows", part.cut(block).halo),
            Crossing::Fold(block) => (block, "sums", part.forward.lent),
        };
        let name = format!("{}.fetched_{what}", block_name(block));
        let (bytes, contents) = (rows.saturating_mul(4), Some(Contents::FetchedRows(crossing, None)));
        self.named(&name).unwrap_or_else(|| self.push_tile(name, bytes, Lifetime::Constant, contents, 0))
    }

    /// Returns the slots of one stage: the indices of the part's rows that others read, if it is their owner, and the
    /// indices, in the owner's pack, of the rows that this part reads.
    pub(super) fn stage_rows(&mut self, block: BlockSpec, owner: usize, [packed, fetched]: [u64; 2]) -> [Slot; 2] {
        let fetched_rows = Contents::FetchedRows(Crossing::Pull(block), Some(owner));
        let contents = [Contents::PackedRows(block, Some(owner)), fetched_rows];
        let of_stage = [("packed_rows", packed), ("fetched_rows", fetched)].into_iter().zip(contents);
        let slots = of_stage.map(|((what, rows), contents)| {
            let name = format!("{}.{what} {owner}", block_name(block));
            let bytes = rows.saturating_mul(4);
            self.named(&name).unwrap_or_else(|| self.push_tile(name, bytes, Lifetime::Constant, Some(contents), 0))
        });
        let slots: Vec<Slot> = slots.collect();
        [slots[0], slots[1]]
    }

    /// Returns the block of one of the two gathers that fold a gather over `block`, and the slot of its weights.
    pub(super) fn folded(&mut self, block: BlockSpec, side: FoldSide, weighted: bool) -> (BlockSlots, Option<Slot>) {
        let part = &self.tiling.part;
        let cut = part.forward;
        let looped = matches!(block, BlockSpec::Graph { self_loops: true, .. });
        let inner = if looped { (cut.inner - cut.self_loops).saturating_add(part.vertices) } else { cut.inner };
        let (rows, edges, sums) = match side {
            FoldSide::Out => (cut.halo, cut.edges - cut.inner, 0),
            FoldSide::In => (part.vertices, inner.saturating_add(cut.lent), cut.lent),
        };
        let own_sources = part.vertices as usize;
        let what = if side == FoldSide::Out { "out" } else { "in" };
        let mut array = |name: &str, array: FoldArray, bytes: u64| {
            let name = format!("{}.{what}.{name}", block_name(block));
            let contents = Some(Contents::Fold(block, side, array));
            self.named(&name).unwrap_or_else(|| self.push_tile(name, bytes, Lifetime::Constant, contents, 0))
        };
        let slots = BlockSlots {
            indptr: array("indptr", FoldArray::Indptr, rows.saturating_add(1).saturating_mul(8)),
            indices: array("indices", FoldArray::Indices, edges.saturating_mul(4)),
            rows: rows as usize,
            own_sources,
            halo_sources: sums as usize,
            edges: edges as usize,
        };
        let weights = weighted.then(|| array("weights", FoldArray::Weights, edges.saturating_mul(4)));
        (slots, weights)
    }

    /// Returns the tensor with that name.
    pub(super) fn named(&self, name: &str) -> Option<Slot> {
        self.names.get(name).copied()
    }

    /// Returns a tensor's name.
    pub(super) fn name(&self, slot: Slot) -> &Arc<str> {
        &self.tensors[slot.0 as usize].name
    }

    /// Returns the slots of a tensor that no operation computes; always the same ones.
    pub(super) fn origin(&mut self, origin: &Origin, name: &str, ty: TensorType) -> Vec<Slot> {
        if let Some(slots) = self.origins.get(origin) {
            return slots.clone();
        }
        let carried = origin.is_carried();
        let kind = match carried {
            true => Lifetime::State,
            false if origin.is_of_batch() => Lifetime::Batch,
            false => Lifetime::Constant,
        };
        let contents = (!carried).then(|| match ty.dtype {
            DType::Bf16 => Contents::Rounded(origin.clone()),
            _ => Contents::Origin(origin.clone()),
        });
        let slots = match origin.whole() {
            Origin::Moment { .. } => self.windows(name, ty, kind),
            _ => self.tiles(name, ty, kind, contents),
        };
        self.origins.insert(origin.clone(), slots.clone());
        slots
    }

    /// Returns the slots of a tile's block. With several tiles or in stages, the sources of a graph block (the part's own
    /// rows and its halo) are numbered in the order of the whole graph.
    pub(super) fn block(&mut self, block: BlockSpec, tile: usize) -> BlockSlots {
        let block = self.tiling.part.canonical(block);
        if let Some(&slots) = self.blocks.get(&(block, tile)) {
            return slots;
        }
        let (sizes, tiles) = (self.tile(tile), self.tiling.tiles.len());
        let (rows, edges) = (sizes.rows(block.rows()), sizes.block_edges(block));
        let halo = self.tiling.part.cut(block).halo;
        let (own_sources, halo_sources) = match block {
            BlockSpec::Graph { .. } if self.tiling.is_in_order() => (self.tiling.part.vertices + halo, 0),
            _ => (sizes.rows(block.sources()), halo),
        };
        let name = |what: &str| tile_name(&format!("{}.{what}", block_name(block)), tile, tiles);
        let indptr_bytes = rows.saturating_add(1).saturating_mul(8);
        let (indptr, indices) = (Some(Contents::Indptr(block)), Some(Contents::Indices(block)));
        let kind = if matches!(block, BlockSpec::Batch { .. }) { Lifetime::Batch } else { Lifetime::Constant };
        let slots = BlockSlots {
            indptr: self.push_tile(name("indptr"), indptr_bytes, kind, indptr, tile),
            indices: self.push_tile(name("indices"), edges.saturating_mul(4), kind, indices, tile),
            rows: rows as usize,
            own_sources: own_sources as usize,
            halo_sources: halo_sources as usize,
            edges: edges as usize,
        };
        self.blocks.insert((block, tile), slots);
        slots
    }

    /// Adds a tensor. A name that is already used gets a number.
    pub(super) fn push(&mut self, name: impl Into<Arc<str>>, bytes: u64, kind: Lifetime) -> Slot {
        self.push_tile(name, bytes, kind, None, 0)
    }

    /// Adds a tensor of the same size as another one.
    pub(super) fn push_like(&mut self, like: Slot, name: Arc<str>) -> Slot {
        let LoweredTensor { bytes, kind, tile, .. } = self.tensors[like.0 as usize];
        self.push_tile(name, bytes, kind, None, tile)
    }

    /// Adds an f32 tensor for the partial sum of `whole`, with `cols` columns.
    pub(super) fn push_sum(&mut self, whole: Mat, cols: usize, name: Arc<str>) -> Slot {
        let LoweredTensor { kind, tile, .. } = self.tensors[whole.slot.0 as usize];
        let bytes = (whole.rows as u64).saturating_mul(cols as u64).saturating_mul(4);
        self.push_tile(name, bytes, kind, None, tile)
    }

    fn push_tile(
        &mut self,
        name: impl Into<Arc<str>>,
        bytes: u64,
        kind: Lifetime,
        contents: Option<Contents>,
        tile: usize,
    ) -> Slot {
        let (slot, name) = (Slot(self.tensors.len() as u32), name.into());
        let name = match self.names.contains_key(&name) {
            true => format!("{name}.{}", slot.0).into(),
            false => name,
        };
        self.names.insert(name.clone(), slot);
        self.tensors.push(LoweredTensor { name, bytes, kind, contents, tile });
        slot
    }
}

/// Returns the name of one of a tensor's tiles.
pub(super) fn tile_name(name: &str, tile: usize, tiles: usize) -> String {
    if tiles == 1 { name.into() } else { format!("{name}[{tile}]") }
}

/// Returns the name of the operation that a step belongs to, without its tile.
pub fn operation_name(name: &str) -> &str {
    name.split('[').next().unwrap_or(name)
}

/// Returns the name of a block, as used in the names of its tensors.
pub(super) fn block_name(block: BlockSpec) -> String {
    let (name, transposed) = match block {
        BlockSpec::Graph { self_loops: false, transposed } => ("graph".into(), transposed),
        BlockSpec::Graph { self_loops: true, transposed } => ("graph_looped".into(), transposed),
        BlockSpec::Features { transposed, .. } => ("features".into(), transposed),
        BlockSpec::Batch { edges, level, transposed } => {
            let what = match edges {
                BatchEdges::Drawn { self_loops: false } => "drawn",
                BatchEdges::Drawn { self_loops: true } => "drawn_looped",
                BatchEdges::Own => "own",
                BatchEdges::Features { .. } => "features",
                BatchEdges::Kept => "kept",
                BatchEdges::Copied => "copied",
            };
            (format!("batch.{what} {level}"), transposed)
        }
    };
    if transposed { format!("{name}_transposed") } else { name }
}
