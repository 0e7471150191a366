//! The table of tensors: slots, sizes, and what they hold at first.

use std::collections::BTreeMap;

use lapidary_kernels::{BlockSlots, Slot};

use super::{Contents, Kind, LoweredTensor, Sizes};
use crate::program::{BlockSpec, Origin, RowSpace, Tensor, TensorType};

/// Tensors so far.
pub(super) struct Table<'a> {
    sizes: &'a Sizes,
    tensors: Vec<LoweredTensor>,
    origins: BTreeMap<Origin, Slot>,
    blocks: BTreeMap<BlockSpec, BlockSlots>,
}

impl<'a> Table<'a> {
    pub(super) fn new(sizes: &'a Sizes) -> Self {
        Self { sizes, tensors: Vec::new(), origins: BTreeMap::new(), blocks: BTreeMap::new() }
    }

    pub(super) fn finish(self) -> (Vec<LoweredTensor>, BTreeMap<Origin, Slot>) {
        (self.tensors, self.origins)
    }

    pub(super) fn sizes(&self) -> &'a Sizes {
        self.sizes
    }

    /// A slot for an operation's output.
    pub(super) fn tensor(&mut self, tensor: &Tensor, kind: Kind) -> Slot {
        self.push(tensor.name.clone(), self.sizes.bytes(tensor.ty), kind, None)
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
            halo_sources: 0,
            edges: edges as usize,
        };
        self.blocks.insert(block, slots);
        slots
    }

    pub(super) fn row_count(&self, rows: RowSpace) -> usize {
        self.sizes.rows(rows) as usize
    }

    fn push(&mut self, name: String, bytes: u64, kind: Kind, contents: Option<Contents>) -> Slot {
        self.tensors.push(LoweredTensor { name, bytes, kind, contents });
        Slot(self.tensors.len() as u32 - 1)
    }
}

fn block_name(block: BlockSpec) -> &'static str {
    match block {
        BlockSpec::Graph { self_loops: false, transposed: false } => "graph",
        BlockSpec::Graph { self_loops: true, transposed: false } => "graph_looped",
        BlockSpec::Graph { self_loops: false, transposed: true } => "graph_transposed",
        BlockSpec::Graph { self_loops: true, transposed: true } => "graph_looped_transposed",
        BlockSpec::Features { transposed: false, .. } => "features",
        BlockSpec::Features { transposed: true, .. } => "features_transposed",
    }
}
