//! Predicts the time of a gather on a GPU from its machine code and the rates of the GPU.

use lapidary_cost_model::Profile;
use lapidary_kernels::cuda::{GatherSizes, GatherWay, gather_ways};
use lapidary_kernels::{Call, Price, Slot};

use super::work::Locality;
use crate::lower::Lowered;

/// Returns the seconds of a gather by the faster of the ways in which a GPU runs it; `None` if the call is no gather, or if
/// the rates or the machine code of the GPU are not known.
pub(super) fn gather_s(profile: &Profile, lowered: &Lowered, call: &Call, locality: &Locality) -> Option<f64> {
    let gpu = profile.gpu.as_ref()?;
    let Price::Gather { block, edges, weighted, out_row_bytes, .. } = call.price() else { return None };
    let of_window = || call.sources().map(|tile| tile.rows).sum();
    let sources = if call.first_source.is_some() { of_window() } else { block.own_sources + block.halo_sources };
    let split = call.first_source.is_some() || call.halo.is_some();
    let (d, stored) = (call.out().cols, call.stored());
    let sizes = GatherSizes { rows: block.rows, edges: edges as usize, sources, d, stored, weighted, split };
    let bytes = |slots: &mut dyn Iterator<Item = Slot>| slots.map(|slot| lowered.tensor(slot).bytes).sum::<u64>();
    let added = bytes(&mut call.sum.iter().map(|mat| mat.slot)) + (block.rows * out_row_bytes) as u64;
    let seconds = |way: GatherWay| {
        let of_slice = (sources * way.columns * stored.byte_count()) as f64;
        let misses = locality.past_last_cache(lowered, block.indptr, of_slice);
        profile.kernel_s(way.instructions, way.l2_bytes, memory_bytes(sizes, way, misses) + added as f64)
    };
    let ways = gather_ways(sizes, profile.cache_bytes as usize, &gpu.architecture);
    ways.into_iter().filter_map(seconds).min_by(f64::total_cmp)
}

/// Returns the bytes that a gather reads from the memory if this share of its reads misses the L2 cache. Each slice reads the
/// graph, and each source at least once.
fn memory_bytes(sizes: GatherSizes, way: GatherWay, misses: f64) -> f64 {
    let GatherSizes { rows, edges, sources, d, stored, weighted, .. } = sizes;
    let graph = 8 * (rows + 1) + if weighted { 8 } else { 4 } * edges;
    let row_bytes = (d * stored.byte_count()) as f64;
    (graph * way.slices) as f64 + row_bytes * (misses * edges as f64).max(sources as f64)
}

#[cfg(test)]
mod tests {
    use lapidary_kernels::StorageType;

    use super::*;

    #[test]
    fn memory_has_the_graph_by_slice_and_each_source_once_or_as_often_as_it_misses() {
        let sizes =
            GatherSizes { rows: 10, edges: 100, sources: 20, d: 64, stored: StorageType::F32, weighted: false, split: false };
        let way = GatherWay { slices: 2, columns: 32, instructions: 1.0, l2_bytes: 1.0 };
        assert_eq!(memory_bytes(sizes, way, 0.0), 2.0 * (88.0 + 400.0) + 256.0 * 20.0);
        assert_eq!(memory_bytes(sizes, way, 0.5), 2.0 * (88.0 + 400.0) + 256.0 * 50.0);
        let weighted = GatherSizes { weighted: true, stored: StorageType::Bf16, ..sizes };
        assert_eq!(memory_bytes(weighted, way, 0.5), 2.0 * (88.0 + 800.0) + 128.0 * 50.0);
    }
}
