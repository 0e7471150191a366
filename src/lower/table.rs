//! The table of tensors: slots, sizes, and what they hold at first.

use std::collections::BTreeMap;

use lapidary_kernels::{BlockSlots, Slot, linear_weight_grad_workspace_bytes};

use super::{Contents, Kind, LoweredTensor, Sizes};
use crate::program::{BlockSpec, Origin, RowSpace, TensorType};

/// Tensors so far.
pub(super) struct Table<'a> {
    sizes: &'a Sizes,
    tensors: Vec<LoweredTensor>,
    origins: BTreeMap<Origin, Slot>,
    blocks: BTreeMap<BlockSpec, BlockSlots>,
    names: BTreeMap<String, Slot>,
}

impl<'a> Table<'a> {
    pub(super) fn new(sizes: &'a Sizes) -> Self {
        Self { sizes, tensors: Vec::new(), origins: BTreeMap::new(), blocks: BTreeMap::new(), names: BTreeMap::new() }
    }

    pub(super) fn finish(self) -> (Vec<LoweredTensor>, BTreeMap<Origin, Slot>) {
        (self.tensors, self.origins)
    }

    pub(super) fn sizes(&self) -> &'a Sizes {
        self.sizes
    }

    /// A slot for an operation's output.
    pub(super) fn tensor(&mut self, name: String, ty: TensorType, kind: Kind) -> Slot {
        self.push(name, self.sizes.bytes(ty), kind, None)
    }

    /// Room for the partial sums of a weight gradient of `[rows, d_in, d_out]`, if it needs any.
    pub(super) fn workspace(&mut self, name: &str, [n, d_in, d_out]: [u64; 3]) -> Option<Slot> {
        let bytes = linear_weight_grad_workspace_bytes(n, d_in, d_out);
        // A part that needs none still has the slot, so that all parts have the same.
        let needed = bytes > 0 || self.sizes.parts > 1;
        needed.then(|| self.push(format!("{name}.workspace"), bytes, Kind::Local, None))
    }

    /// The slot of the part's rows that others read over `block`.
    pub(super) fn packed_rows(&mut self, block: BlockSpec) -> Slot {
        let name = format!("{}.packed_rows", block_name(block));
        let bytes = 4 * self.sizes.cut(block).packed;
        self.named(&name).unwrap_or_else(|| self.push(name, bytes, Kind::Constant, Some(Contents::PackedRows(block))))
    }

    /// The tensor of that name.
    pub(super) fn named(&self, name: &str) -> Option<Slot> {
        self.names.get(name).copied()
    }

    /// A tensor's name.
    pub(super) fn name(&self, slot: Slot) -> &str {
        &self.tensors[slot.0 as usize].name
    }

    /// The slot of what no operation produces: the same one each time.
    pub(super) fn origin(&mut self, origin: &Origin, name: &str, ty: TensorType) -> Slot {
        if let Some(&slot) = self.origins.get(origin) {
            return slot;
        }
        let carried =
            matches!(origin, Origin::Parameter(_) | Origin::Moment { .. } | Origin::Clock | Origin::LearningRate);
        let kind = if carried { Kind::State } else { Kind::Constant };
        let contents = (!carried).then(|| Contents::Origin(origin.clone()));
        let slot = self.push(name.into(), self.sizes.bytes(ty), kind, contents);
        self.origins.insert(origin.clone(), slot);
        slot
    }

    /// The slots of a block.
    pub(super) fn block(&mut self, block: BlockSpec) -> BlockSlots {
        let block = self.sizes.canonical(block);
        if let Some(&slots) = self.blocks.get(&block) {
            return slots;
        }
        let (rows, edges) = (self.row_count(block.rows()), self.sizes.block_edges(block));
        let name = block_name(block);
        let indptr_bytes = (rows as u64).saturating_add(1).saturating_mul(8);
        let slots = BlockSlots {
            indptr: self.push(format!("{name}.indptr"), indptr_bytes, Kind::Constant, Some(Contents::Indptr(block))),
            indices: self.push(
                format!("{name}.indices"),
                edges.saturating_mul(4),
                Kind::Constant,
                Some(Contents::Indices(block)),
            ),
            rows,
            own_sources: self.row_count(block.sources()),
            halo_sources: self.sizes.cut(block).halo as usize,
            edges: edges as usize,
        };
        self.blocks.insert(block, slots);
        slots
    }

    pub(super) fn row_count(&self, rows: RowSpace) -> usize {
        self.sizes.rows(rows) as usize
    }

    /// A new tensor. A name that is taken gets a number.
    pub(super) fn push(&mut self, name: String, bytes: u64, kind: Kind, contents: Option<Contents>) -> Slot {
        let slot = Slot(self.tensors.len() as u32);
        let name = match self.names.contains_key(&name) {
            true => format!("{name}.{}", slot.0),
            false => name,
        };
        self.names.insert(name.clone(), slot);
        self.tensors.push(LoweredTensor { name, bytes, kind, contents });
        slot
    }
}

/// A block's name in those of its tensors.
pub(super) fn block_name(block: BlockSpec) -> &'static str {
    match block {
        BlockSpec::Graph { self_loops: false, transposed: false } => "graph",
        BlockSpec::Graph { self_loops: true, transposed: false } => "graph_looped",
        BlockSpec::Graph { self_loops: false, transposed: true } => "graph_transposed",
        BlockSpec::Graph { self_loops: true, transposed: true } => "graph_looped_transposed",
        BlockSpec::Features { transposed: false, .. } => "features",
        BlockSpec::Features { transposed: true, .. } => "features_transposed",
    }
}
