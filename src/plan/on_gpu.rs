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
    let (d, stored) = (call.out().cols, call.inputs[0].float());
    let sizes = GatherSizes { rows: block.rows, edges: edges as usize, sources, d, stored, weighted, split };
    let bytes = |slots: &mut dyn Iterator<Item = Slot>| slots.map(|slot| lowered.tensor(slot).bytes).sum::<u64>();
    let added = bytes(&mut call.sum.iter().map(|mat| mat.slot)) + (block.rows * out_row_bytes) as u64;
    let seconds = |way: GatherWay| {
        let misses = locality.past_last_cache(lowered, block.indptr, sizes.slice_bytes(&way));
        profile.kernel_s(way.instructions, way.l2_bytes, sizes.memory_bytes(&way, misses) + added as f64)
    };
    let ways = gather_ways(sizes, profile.cache_bytes as usize, &gpu.architecture);
    ways.into_iter().filter_map(seconds).min_by(f64::total_cmp)
}
