//! What a call does, in the quantities that its time depends on.

use std::sync::Arc;

use lapidary_cost_model::{BF16, IN_WINDOWS, KernelWork, OF_LONG_ROWS, OVER_TILES, Profile, Quantity, WITH_HALO};
use lapidary_kernels::op::{Attention, EdgeOp, Op, head_groups};
use lapidary_kernels::{Call, DType, Price, RowStep, Slot, StorageType, cpu};

use super::Script;
use crate::graph::{Graph, Reuse};
use crate::host;
use crate::lower::{Contents, Lowered};
use crate::profile::CPU;
use crate::program::BlockSpec;

/// Share of the last cache that rows of a gather can use: other operands and other programs need space as well.
const USABLE: f64 = 0.75;

/// What a gather reads for each edge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gathered {
    pub(super) columns: usize,
    pub(super) stored: StorageType,
    /// Whether edges have weights.
    pub(super) weighted: bool,
    /// Whether the sources of each row ascend.
    pub(super) ascend: bool,
    /// Whether it reads all sources of its block.
    pub(super) whole: bool,
}

/// Caches of a device, and how a graph's gathers use them.
#[derive(Clone, Debug)]
pub struct Locality {
    /// Bytes of the cache that each core has for itself; 0 if there is none.
    near_bytes: f64,
    /// The same of all cores.
    all_near_bytes: f64,
    /// Bytes of the last cache that are usable.
    last_bytes: f64,
    /// Whether gathers may run in passes, which copy what they read into the last cache.
    in_passes: bool,
    /// Whether calls run in the host's memory, one after the other on the thread that asks for them. Gathers over a graph
    /// then run over windows of long rows.
    in_place: bool,
    /// Reuse of rows by gathers over the graph, and over the transposed graph.
    graph: [Arc<Reuse>; 2],
    random: Arc<Reuse>,
}

impl Locality {
    /// Returns the caches of a device. `word` is the name of its profile. Sources are read at random.
    pub(crate) fn new(word: &str, profile: &Profile) -> Self {
        let is_host = word == CPU;
        let near_bytes = if is_host { host::core_cache_bytes() as f64 } else { 0.0 };
        let random = Arc::new(Reuse::random());
        Self {
            near_bytes,
            all_near_bytes: near_bytes * rayon::current_num_threads() as f64,
            last_bytes: USABLE * profile.cache_bytes as f64,
            in_passes: is_host,
            in_place: false,
            graph: [random.clone(), random.clone()],
            random,
        }
    }

    /// Sets whether the device computes in the host's memory.
    pub(crate) fn with_place(self, in_place: bool) -> Self {
        Self { in_place: self.in_passes && in_place, ..self }
    }

    /// Whether the device computes in the host's memory.
    pub(super) fn is_in_place(&self) -> bool {
        self.in_place
    }

    /// Looks at the order in which gathers over a graph read their sources.
    ///
    /// # Cost
    /// O(e), twice for a graph that is not symmetric.
    pub(crate) fn of_graph(mut self, graph: &Graph) -> Self {
        let reuse = |graph: &Graph| Arc::new(Reuse::of(graph.indices(), graph.vertex_count()));
        let forward = reuse(graph);
        let backward = if graph.is_symmetric() { forward.clone() } else { reuse(&graph.transpose().graph) };
        self.graph = [forward, backward];
        self
    }

    /// Returns the reuse of the rows that a call gathers.
    fn reuse(&self, lowered: &Lowered, indptr: Slot) -> &Reuse {
        match lowered.tensor(indptr).contents {
            Some(
                Contents::Indptr(BlockSpec::Graph { transposed, .. })
                | Contents::Fold(BlockSpec::Graph { transposed, .. }, ..),
            ) => &self.graph[usize::from(transposed)],
            _ => &self.random,
        }
    }

    /// Returns the share of a gather's reads that miss the last cache, if the part of its sources that it reads again and
    /// again has so many bytes.
    pub(super) fn past_last_cache(&self, lowered: &Lowered, indptr: Slot, source_bytes: f64) -> f64 {
        misses(self.reuse(lowered, indptr), self.last_bytes, source_bytes)
    }

    /// Returns the work of a gather that makes `rows` rows from `edges` edges and `sources` sources, with this reuse.
    pub(super) fn gather(&self, reuse: &Reuse, [rows, edges, sources]: [usize; 3], gathered: Gathered) -> KernelWork {
        let Gathered { columns, stored, ascend, .. } = gathered;
        let (sizes, row_bytes) = ([rows, edges, sources], columns * stored.byte_count());
        let over_windows = self.over_windows(sizes, gathered);
        let passes = || self.in_passes.then(|| cpu::gather_passes(sizes, ascend, row_bytes)).flatten();
        let Some([pass_bytes, of_pass]) = over_windows.or_else(passes) else {
            return self.gather_in_one_pass(reuse, sizes, row_bytes);
        };
        let (by_column, by_source) = (row_bytes.div_ceil(pass_bytes), sources.div_ceil(of_pass));
        let near = misses(reuse, self.near_bytes, (of_pass * pass_bytes) as f64);
        // Sums are f32 between two passes.
        let (source_bytes, sum_bytes) = ((sources * row_bytes) as f64, (4 * rows * columns) as f64);
        self.gathered([rows, edges], row_bytes, [near, 0.0])
            .with(Quantity::PassEdges, edges as f64 * by_column as f64)
            .with(Quantity::PassRows, (rows * by_column * by_source) as f64)
            .with(Quantity::PassBytes, 2.0 * source_bytes + 2.0 * sum_bytes * (by_source - 1) as f64)
    }

    /// Returns how many bytes of how many sources a pass over stored windows copies, if the gather runs over windows.
    fn over_windows(&self, sizes: [usize; 3], gathered: Gathered) -> Option<[usize; 2]> {
        let Gathered { columns, stored, weighted, ascend, whole } = gathered;
        if !(self.in_place && ascend && whole) {
            return None;
        }
        let [columns, sources] = cpu::repeated_gather_passes(sizes, columns, stored, weighted)?;
        Some([columns * stored.byte_count(), sources])
    }

    /// Returns the work of a gather that follows its edges in their order, as in [`Locality::gather`].
    fn gather_in_one_pass(&self, reuse: &Reuse, [rows, edges, sources]: [usize; 3], row_bytes: usize) -> KernelWork {
        let past = [self.near_bytes, self.last_bytes].map(|cache| misses(reuse, cache, (sources * row_bytes) as f64));
        self.gathered([rows, edges], row_bytes, past)
    }

    /// Returns the work of reading the sources of all edges, of which these shares miss a core's own cache and the last one.
    fn gathered(&self, [rows, edges]: [usize; 2], row_bytes: usize, [near, last]: [f64; 2]) -> KernelWork {
        let of_row = if self.in_passes { lines_of_row(row_bytes) * LINE } else { row_bytes as f64 };
        let gathered = edges as f64 * of_row;
        KernelWork::call()
            .with(Quantity::Rows, rows as f64)
            .with(Quantity::Edges, edges as f64)
            .with(Quantity::GatheredBytes, gathered)
            .with(Quantity::PastNearCache, gathered * near)
            .with(Quantity::PastLastCache, gathered * last)
    }

    /// Returns the reuse of rows by gathers over the graph, and over the transposed graph.
    pub(super) fn reuses(&self) -> [&Reuse; 2] {
        self.graph.each_ref().map(|reuse| &**reuse)
    }

    /// Returns the work of a gather if caches missed nothing.
    pub(super) fn without_misses(&self, work: KernelWork) -> KernelWork {
        let work = work.with(Quantity::PastLastCache, 0.0);
        if self.near_bytes > 0.0 { work.with(Quantity::PastNearCache, 0.0) } else { work }
    }

    /// Returns the share of `bytes` bytes that caches of `cache` bytes do not hold if they are used in sequence.
    fn streamed_past(bytes: f64, cache: f64) -> f64 {
        if cache <= 0.0 { 1.0 } else { (bytes / cache - 1.0).clamp(0.0, 1.0) }
    }
}

/// Returns the share of reads that miss a cache, if rows of `source_bytes` bytes are read again and again.
fn misses(reuse: &Reuse, cache_bytes: f64, source_bytes: f64) -> f64 {
    if source_bytes > 0.0 { reuse.misses((cache_bytes / source_bytes).min(1.0)) } else { 0.0 }
}

/// Bytes of a cache line.
const LINE: f64 = 64.0;

/// Most bytes of a row that a processor reads number by number; of a longer one it reads vectors as long as a line.
const FEW: usize = 16;

/// Returns the number of cache lines that a processor reads for a source row, on average. Rows that are no multiple of a line
/// begin anywhere in one, so most of them end in a line more.
fn lines_of_row(row_bytes: usize) -> f64 {
    match row_bytes as f64 / LINE {
        lines if lines.fract() == 0.0 => lines,
        lines if row_bytes <= FEW => 1.0 + lines,
        lines => lines.max(1.0) + 1.0,
    }
}

/// Returns the name under which a call's time is learned, and its work.
pub(crate) fn kernel_work(lowered: &Lowered, call: &Call, locality: &Locality) -> (String, KernelWork) {
    let bytes =
        |slots: &mut dyn Iterator<Item = Slot>| slots.map(|slot| lowered.tensor(slot).bytes).sum::<u64>() as f64;
    let all_bytes = bytes(&mut call.reads().chain(call.writes()));
    // A sum over rows makes few rows of many.
    let rows = call.head_inputs().iter().chain(&call.outputs).map(|mat| mat.rows).max().unwrap_or(0);
    let mut work = KernelWork::call().with(Quantity::Rows, rows as f64);
    let mut streamed = all_bytes;
    let mut name = call.name_of_head().to_owned();
    match call.price() {
        Price::Gather { block, edges, weighted, row_bytes, .. } => {
            let of_window: usize = call.sources().map(|tile| tile.rows).sum();
            let sources = if call.first_source.is_some() { of_window } else { block.own_sources + block.halo_sources };
            // A window of some sources looks for their edges in each row; with several matrices, each edge for its own.
            match (call.first_source, call.more_sources.is_empty()) {
                (Some(_), _) if of_window < block.own_sources => name += IN_WINDOWS,
                (Some(_), false) => name += OVER_TILES,
                _ => {}
            }
            if call.halo.is_some() {
                name += WITH_HALO;
            }
            streamed = (all_bytes - (sources * row_bytes) as f64).max(0.0);
            let reuse = locality.reuse(lowered, block.indptr);
            let sizes = [block.rows, edges as usize, sources];
            work = match call.op.head() {
                Op::Attention(op) => attention_work(op, locality.gather_in_one_pass(reuse, sizes, row_bytes)),
                _ => {
                    let stored = call.stored().float().unwrap_or(StorageType::F32);
                    let gathered = Gathered {
                        columns: row_bytes / stored.byte_count(),
                        stored,
                        weighted,
                        ascend: call.halo.is_none(),
                        whole: call.first_source.is_none(),
                    };
                    if locality.over_windows(sizes, gathered).is_some() {
                        name += OF_LONG_ROWS;
                    }
                    locality.gather(reuse, sizes, gathered)
                }
            };
            if !call.more_sources.is_empty() {
                // A row goes on to another matrix at most as often as it has edges.
                let matrices = (block.rows * (1 + call.more_sources.len())) as f64;
                work = work.with(Quantity::PassRows, matrices.min(edges as f64));
            }
            if weighted {
                work = work.with(Quantity::WeightedEdges, edges as f64);
            }
        }
        Price::Product { rows, k, m } => {
            let (rows, k, m) = (rows as f64, k as f64, m as f64);
            work = work.with(Quantity::Flops, 2.0 * rows * k * m).with(Quantity::ProductCells, rows * (k + m));
        }
        Price::Rows { .. } | Price::Nothing => {}
    }
    let is_dropout = |step: &RowStep| matches!(step, RowStep::Dropout { .. });
    if call.op.steps().iter().any(is_dropout) || matches!(call.op.head(), Op::Row(step) if is_dropout(step)) {
        work = work.with(Quantity::DrawnCells, call.out().numbers() as f64);
    }
    if matches!(call.op.head(), Op::Edge(EdgeOp::Dropout { block, .. }) if block.is_transposed()) {
        name += " transposed";
    }
    if call.stored() == DType::Bf16 {
        name += BF16;
    }
    (name, with_stream(work, streamed, all_bytes, locality))
}

/// Returns what the time between two calls of a script depends on: the bytes that a call makes and the copies beside it,
/// on average.
pub(crate) fn between_work(lowered: &Lowered, script: &Script) -> KernelWork {
    let made = script.actions.iter().flat_map(|action| action.call.writes());
    let bytes: f64 = made.map(|slot| lowered.tensor(slot).bytes as f64).sum();
    let calls = script.actions.len().max(1) as f64;
    KernelWork::call()
        .with(Quantity::StreamedBytes, bytes / calls)
        .with(Quantity::Copies, script.copies() as f64 / calls)
}

/// Adds what attention does beside a gather: a pass over the edges for each group of heads, and for each edge and head an
/// exponential and maybe a draw.
fn attention_work(op: &Attention, gather: KernelWork) -> KernelWork {
    let [rows, edges] = [Quantity::Rows, Quantity::Edges].map(|quantity| gather.get(quantity));
    let (groups, cells) = (head_groups(op.heads).count() as f64, edges * op.heads as f64);
    gather
        .with(Quantity::PassEdges, edges * groups)
        .with(Quantity::PassRows, rows * groups)
        .with(Quantity::WeightedEdges, cells)
        .with(Quantity::DrawnCells, if op.dropout.is_some() { cells } else { 0.0 })
}

/// Returns the work of copying a tensor of `bytes` bytes.
pub(crate) fn copy_work(bytes: u64, locality: &Locality) -> KernelWork {
    with_stream(KernelWork::call(), bytes as f64, 2.0 * bytes as f64, locality)
}

/// Sets the bytes that are read and written in sequence by a call that uses `all` bytes.
fn with_stream(work: KernelWork, streamed: f64, all: f64, locality: &Locality) -> KernelWork {
    let past = |cache| streamed * Locality::streamed_past(all, cache);
    work.with(Quantity::StreamedBytes, streamed)
        .with(Quantity::StreamedPastNearCache, past(locality.all_near_bytes))
        .with(Quantity::StreamedPastLastCache, past(locality.last_bytes))
}

#[cfg(test)]
mod tests {
    use lapidary_kernels::op::{AttentionPass, Score, WeightDropout};

    use super::*;

    #[test]
    fn attention_works_for_each_head_and_follows_the_edges_for_each_group() {
        let block = BlockSpec::Graph { self_loops: false, transposed: false };
        let op = |heads, dropout| Attention {
            block,
            score: Score::Gat,
            heads,
            slope: 0.2,
            dropout,
            edge_values: false,
            pass: AttentionPass::Forward,
        };
        let gather = KernelWork::call().with(Quantity::Rows, 10.0).with(Quantity::Edges, 70.0);
        let draws = Some(WeightDropout { rate: 0.5, salt: 0 });
        // 11 heads are groups of 8, 2 and 1.
        for (heads, groups, dropout, drawn) in [(1, 1.0, None, 0.0), (8, 1.0, draws, 560.0), (11, 3.0, draws, 770.0)] {
            let work = attention_work(&op(heads, dropout), gather);
            let got = [Quantity::WeightedEdges, Quantity::PassEdges, Quantity::PassRows, Quantity::DrawnCells];
            let want = [70.0 * heads as f64, 70.0 * groups, 10.0 * groups, drawn];
            assert_eq!(got.map(|quantity| work.get(quantity)), want, "{heads} heads");
        }
    }
}
