//! Gather: sums over in-neighbours. Graph networks spend most of their time in this kernel.
//!
//! Rows are split into tasks of nearly equal edges + rows. Each row is summed in vector registers (`gather_rows.rs`,
//! `row_sum.rs`). Wide gathers run in passes whose sources fit a cache (`passes.rs`; `windows.rs` if rows are long and
//! gathers repeat). The edges of a row are added one after the other in the block's order. So the bits of the result do
//! not depend on the threads, the vector width, the passes, or the split of the graph into parts.

use std::ops::Range;

use half::bf16;

use super::edge_windows::EdgeWindows;
use super::element::{Element, write};
use super::gather_rows::Rows;
use super::near::Near;
use super::parallel::{balanced_rows, for_rows, split_at_ends, task_count, try_for_each};
use super::passes::{Passes, copy_columns, points};
use super::rows::{RowWork, Steps};
use super::slots::{Open, Vector};
use super::sources::{CALL, Cuts, Pass, Sources, Start, Tiles, check_block};
use super::weights::{Unweighted, Weighted};
use super::window_rows::WindowNumber;
use crate::error::{Error, Result, check_shape};
use crate::memory::zeroed;
use crate::op::call::Call;
use crate::storage_type::StorageType;
use crate::view::{BlockView, MatMut, MatView};

/// Fewest cell additions of a task.
const LEAST_WORK: usize = 1 << 15;

pub(super) fn launch(slots: &Open<'_>, call: &Call, steps: &[RowWork<'_>]) -> Result<()> {
    match [call.inputs[0].float(), call.out().float()] {
        [StorageType::F32, _] => launch_as::<f32, f32>(slots, call, steps),
        [StorageType::Bf16, StorageType::F32] => launch_as::<bf16, f32>(slots, call, steps),
        [StorageType::Bf16, StorageType::Bf16] => launch_as::<bf16, bf16>(slots, call, steps),
    }
}

/// Runs a gather over the windows of its block, if they are stored or are stored now.
fn launch_over_windows<E: WindowNumber, O: Element>(
    slots: &Open<'_>,
    call: &Call,
    steps: &[RowWork<'_>],
) -> Result<bool> {
    let (own, out, weights) = (call.inputs[0], call.out(), call.head_inputs().get(1));
    let sizes = call.block.map(|block| [block.rows, block.edges, block.own_sources]);
    let pays = sizes.is_some_and(|sizes| EdgeWindows::pass(sizes, out.cols, E::STORED, weights.is_some()).is_some());
    if !pays || call.first_source.is_some() || call.halo.is_some() {
        return Ok(false);
    }
    let Some(windows) = slots.windows(&slots.block_of(call)?, out.cols) else { return Ok(false) };
    let weights = weights.map(|&weights| slots.numbers(weights)).transpose()?;
    let weights = weights.as_ref().map(Vector::view);
    let own_rows = slots.numbers::<E>(own)?;
    let mut out_rows = slots.numbers_mut::<O>(out)?;
    windows.gather_then_as(weights, own_rows.matrix(own), steps, out_rows.matrix(out))?;
    Ok(true)
}

/// Does [`launch`] for sources of type `E` and sums that are stored as `O`.
fn launch_as<E: WindowNumber, O: Element>(slots: &Open<'_>, call: &Call, steps: &[RowWork<'_>]) -> Result<()> {
    if launch_over_windows::<E, O>(slots, call, steps)? {
        return Ok(());
    }
    let block = slots.block_of(call)?;
    let weights = call.head_inputs().get(1).map(|&weights| slots.numbers(weights)).transpose()?;
    let sources = call.sources().map(|tile| Ok((slots.numbers::<E>(tile)?, tile))).collect::<Result<Vec<_>>>()?;
    let halo = call.halo.map(|mat| Ok((slots.numbers::<E>(mat)?, mat))).transpose()?;
    let sum = call.sum.map(|mat| Ok((slots.numbers::<f32>(mat)?, mat))).transpose()?;
    let mut out = slots.numbers_mut::<O>(call.out())?;
    let out = out.matrix(call.out());
    let (weights, halo) = (weights.as_ref().map(Vector::view), halo.as_ref().map(|(halo, mat)| halo.matrix(*mat)));
    let sources: Vec<MatView<'_, E>> = sources.iter().map(|(tile, mat)| tile.matrix(*mat)).collect();
    match call.first_source {
        None => gather_then_as(block.view(), weights, sources[0], halo, steps, out),
        Some(first) => {
            let window = Window { first, sum: sum.as_ref().map(|(sum, mat)| sum.matrix(*mat)) };
            gather_window_as(block.view(), weights, window, &sources, steps, out)
        }
    }
}

/// Returns the bytes that [`gather`] reads and writes if no source row is found in a cache; with weights, `4 e` more.
pub fn gather_bytes(n: u64, e: u64, d: u64) -> u64 {
    8 * (n + 1) + 4 * e * (1 + d) + 4 * n * d
}

/// Returns how many bytes of how many sources a pass of [`gather`] copies into a cache, for a block of `rows` rows, `edges` edges
/// and `sources` sources of `row_bytes` bytes; `None` if it reads the sources in place. `ascend` says whether the sources of each row
/// ascend, as they do without a halo.
pub fn gather_passes([rows, edges, sources]: [usize; 3], ascend: bool, row_bytes: usize) -> Option<[usize; 2]> {
    let passes = Passes::new([rows, edges, sources], ascend, row_bytes)?;
    Some([passes.width, passes.sources])
}

/// Returns how many columns of how many sources a pass copies if a gather repeats on one device over a block that does not change,
/// without a halo: it runs over windows of the edges, if the rows are long enough. `sizes` are numbers of rows, edges and sources;
/// the sources have `d` columns, `stored` so.
pub fn repeated_gather_passes(sizes: [usize; 3], d: usize, stored: StorageType, weighted: bool) -> Option<[usize; 2]> {
    EdgeWindows::pass(sizes, d, stored, weighted)
}

/// Sums over in-neighbours: `out[v] = sum_{u -> v} weights[edge] * x[u]`; without weights, the sum of `x[u]`.
///
/// # Shapes
/// `block`: `n` rows, `m` own sources, `h` halo rows, `e` edges; `weights`: `[e]`; `own`: `[m, d]`; `halo`: `[h, d]`,
/// may be absent when `h` is 0; `out`: `[n, d]`, overwritten.
/// # Cost
/// `e * d` additions; [`gather_bytes`] bytes moved. It allocates a few words per task and, where passes pay, 16 MiB
/// plus 8 bytes for each row and window of sources.
/// # Errors
/// [`Error::Shape`], with `out` unchanged; [`Error::Index`] if the edge range of a row or a source is invalid, and
/// `out` must then not be read.
/// # Order
/// The edges of a row are added one by one in the block's order, starting from 0, with a rounding after each product.
/// The bits are the same for any number of threads, any vector width and any split into parts.
/// # Source
/// Kipf & Welling 2017, eq. 2, without the degree scaling.
pub fn gather(
    block: BlockView<'_>,
    weights: Option<&[f32]>,
    own: MatView<'_>,
    halo: Option<MatView<'_>>,
    out: MatMut<'_>,
) -> Result<()> {
    gather_then(block, weights, own, halo, &[], out)
}

/// The sources of a gather's window, and the sum over the sources before it.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    /// First source of the window.
    pub first: usize,
    /// Sum over the sources before the window, `[n, d]`; 0 if absent.
    pub sum: Option<MatView<'a>>,
}

/// Computes `out[v] = sum[v] + sum of x[u]` over the sources `u` of `v` in the window: [`gather_then`], restricted to a
/// window of sources. The window begins at `first` and has the rows of all `sources`, one matrix after the other.
///
/// # Shapes
/// `block`: `n` rows, no halo, the sources of each row ascend; `sources`: `[.., d]` each, together `[window sources, d]`;
/// the rest as in [`gather`].
/// # Cost
/// O(n log(edges of a row)) to find the edges, `d` additions per edge; a copy of a few thousand edges per task.
/// # Errors
/// As in [`gather_then`]. A source beyond the block is not detected if it is outside the window.
/// # Order
/// A sequence of consecutive windows gives the same bits as one gather over all of them.
pub fn gather_window(
    block: BlockView<'_>,
    weights: Option<&[f32]>,
    window: Window<'_>,
    sources: &[MatView<'_>],
    steps: &[RowWork<'_>],
    out: MatMut<'_>,
) -> Result<()> {
    gather_window_as(block, weights, window, sources, steps, out)
}

/// Does [`gather_window`] for sources and a result of any types.
fn gather_window_as<E: Element, O: Element>(
    block: BlockView<'_>,
    weights: Option<&[f32]>,
    window: Window<'_>,
    sources: &[MatView<'_, E>],
    steps: &[RowWork<'_>],
    out: MatMut<'_, O>,
) -> Result<()> {
    let end = sources.iter().fold(window.first, |end, tile| end.saturating_add(tile.rows()));
    if end > block.own_sources {
        let (index, limit) = (end as u64, block.own_sources as u64 + 1);
        return Err(Error::Index { call: CALL, operand: "the window's end", index, limit });
    }
    if let Some(sum) = window.sum {
        check_shape(CALL, "sum", [block.rows(), out.cols()], [sum.rows(), sum.cols()])?;
    }
    check_shape(CALL, "halo", [0, out.cols()], [block.halo_sources, out.cols()])?;
    for tile in sources {
        check_shape(CALL, "own", [tile.rows(), out.cols()], [tile.rows(), tile.cols()])?;
    }
    let sources: Vec<&[E]> = sources.iter().map(MatView::data).collect();
    gather_sources(block, &sources, Some(window.first..end), window.sum, weights, steps, out)
}

/// Does [`gather`], and applies `steps` to each row while it is in a cache.
///
/// # Shapes
/// As in [`gather`]; the steps' rows are those of `out`.
/// # Errors
/// As in [`gather`], and [`Error::Argument`], with `out` unchanged.
/// # Order
/// Each cell has the same bits as if the kernels ran one after the other.
pub fn gather_then(
    block: BlockView<'_>,
    weights: Option<&[f32]>,
    own: MatView<'_>,
    halo: Option<MatView<'_>>,
    steps: &[RowWork<'_>],
    out: MatMut<'_>,
) -> Result<()> {
    gather_then_as(block, weights, own, halo, steps, out)
}

/// Does [`gather_then`] for sources and a result of any types.
fn gather_then_as<E: Element, O: Element>(
    block: BlockView<'_>,
    weights: Option<&[f32]>,
    own: MatView<'_, E>,
    halo: Option<MatView<'_, E>>,
    steps: &[RowWork<'_>],
    out: MatMut<'_, O>,
) -> Result<()> {
    let d = out.cols();
    check_shape(CALL, "own", [block.own_sources, d], [own.rows(), own.cols()])?;
    if halo.is_some() || block.halo_sources > 0 {
        let got = halo.map_or([0, 0], |halo| [halo.rows(), halo.cols()]);
        check_shape(CALL, "halo", [block.halo_sources, d], got)?;
    }
    let halo = halo.map_or(&[][..], |halo| halo.data());
    gather_sources(block, &[own.data(), halo], None, None, weights, steps, out)
}

/// Adds to `sum`, or to 0, in as many passes as pay. `tiles` are the sources, one matrix after the other; `window` has
/// their numbers, if the gather is windowed.
fn gather_sources<E: Element, O: Element>(
    block: BlockView<'_>,
    tiles: &[&[E]],
    window: Option<Range<usize>>,
    sum: Option<MatView<'_>>,
    weights: Option<&[f32]>,
    steps: &[RowWork<'_>],
    mut out: MatMut<'_, O>,
) -> Result<()> {
    let (n, e, d) = (block.rows(), block.indices.len(), out.cols());
    check_block(CALL, block)?;
    check_shape(CALL, "out", [n, d], [out.rows(), out.cols()])?;
    if let Some(weights) = weights {
        check_shape(CALL, "weights", [e, 1], [weights.len(), 1])?;
    }
    let steps = Steps::new(CALL, steps, n, d)?;
    if n == 0 || d == 0 {
        return Ok(());
    }
    let start = sum.map_or(Start::Zero, Start::Sum);
    let tiles: Vec<&[E]> = tiles.iter().copied().filter(|tile| !tile.is_empty()).collect();
    let all = tiles.iter().map(|tile| tile.len() / d).sum::<usize>();
    // A halo comes after the part's own rows, wherever its vertices are.
    let ascend = window.is_some() || tiles.len() < 2;
    let passes = Passes::new([n, e, all], ascend, d * size_of::<E>());
    // A window of all sources is the whole gather.
    let window = window.filter(|window| window.len() < block.own_sources);
    let (first, end) = window.map_or((0, None), |window| (window.start, Some(window.end)));
    // First source of each window of a pass, and the end of the last one if the gather is windowed.
    let step = passes.as_ref().map_or(all, |passes| passes.sources).max(1);
    let windows = (0..all.max(1)).step_by(step).map(|window| first + window).skip(usize::from(end.is_none()));
    let limits: Vec<usize> = windows.chain(end).collect();
    let passes = passes.and_then(|passes| Some((passes, points(block, &limits, end.is_none())?)));
    let Some((passes, points)) = passes else {
        let joined = (tiles.len() > 1).then(|| Tiles::new(&tiles, d));
        let own = tiles.first().copied().unwrap_or(&[]);
        let cuts = end.map_or(Cuts::All, |end| Cuts::Window { first, end });
        let sources = Sources { block, own, tiles: joined.as_ref(), d };
        return pass(&Pass { sources, cuts, weights, columns: 0..d, start, d }, Some(&steps), out.data());
    };
    let cuts = |window: usize, first: usize| match points.is_empty() {
        true => Cuts::All,
        false => {
            let window = window + usize::from(end.is_some());
            Cuts::Points { points: &points, stride: limits.len() + 1, window, first }
        }
    };
    // The sums between two passes are f32.
    let mut wide = zeroed(if O::ROUNDS { 4 * n * d } else { 0 })?;
    let width = passes.width / size_of::<E>();
    let mut copy = zeroed(passes.sources * passes.width)?;
    for column in (0..d).step_by(width) {
        let columns = column..(column + width).min(d);
        for (i, window) in (0..all).step_by(passes.sources).enumerate() {
            let rows = window..window + passes.sources.min(all - window);
            copy_columns(&tiles, d, rows.clone(), columns.clone(), copy.as_mut_slice(), width);
            let cuts = cuts(i, first + window);
            let sources = Sources { block, own: copy.as_slice::<E>(), tiles: None, d: width };
            let start = if window == 0 { start } else { Start::Out };
            let steps = Some(&steps).filter(|_| columns.end == d && rows.end == all);
            let sums = O::as_f32_mut(out.data()).unwrap_or_else(|| wide.as_mut_slice());
            pass(&Pass { sources, cuts, weights, columns: columns.clone(), start, d }, steps, sums)?;
        }
    }
    if O::ROUNDS {
        let wide = wide.as_slice();
        for_rows(out.data(), d, |first, out| O::round(&wide[first * d..][..out.len()], out));
    }
    Ok(())
}

/// Splits the rows into tasks and runs them.
fn pass<E: Element, O: Element>(pass: &Pass<'_, E>, steps: Option<&Steps<'_>>, out: &mut [O]) -> Result<()> {
    let (block, d) = (pass.sources.block, pass.d);
    let task = |rows: Range<usize>, out: &mut [O]| {
        if matches!(pass.cuts, Cuts::All) {
            return sum_rows(pass, rows.clone(), rows.start, steps, out);
        }
        let (mut near, mut first, mut out) = (Near::default(), rows.start, out);
        while first < rows.end {
            let (pass, count) = near.copy(pass, first..rows.end)?;
            let (group, rest) = out.split_at_mut(count * d);
            sum_rows(&pass, 0..count, first, steps, group)?;
            (first, out) = (first + count, rest);
        }
        Ok(())
    };
    let work = (block.rows() + block.indices.len()).saturating_mul(pass.columns.len());
    let ranges = balanced_rows(block.indptr, task_count(work, LEAST_WORK));
    if let [all] = &ranges[..] {
        return task(all.clone(), out);
    }
    let parts = split_at_ends(out, ranges.iter().map(|range| range.end * d));
    try_for_each(ranges.into_iter().zip(parts), |(rows, out)| task(rows, out))
}

/// Sums rows of the pass's block on this thread. `first` is the number of the first among the rows that the steps know.
fn sum_rows<E: Element, O: Element>(
    pass: &Pass<'_, E>,
    rows: Range<usize>,
    first: usize,
    steps: Option<&Steps<'_>>,
    out: &mut [O],
) -> Result<()> {
    let group = steps.map_or(rows.len().max(1), Steps::group::<O>);
    let mut room = Vec::new();
    for (start, out) in rows.clone().step_by(group).zip(out.chunks_mut(group * pass.d)) {
        let (begins, number) = (start == rows.start, first + start - rows.start);
        let rows = start..(start + group).min(rows.end);
        write(out, &mut room, |out| {
            let weights = pass.weights.map(Weighted);
            let sums = &mut *out;
            match (weights, pass.sources.tiles.is_none()) {
                (None, true) => Rows::<_, _, false> { pass, weights: Unweighted, rows, begins, out: sums }.run(),
                (None, false) => Rows::<_, _, true> { pass, weights: Unweighted, rows, begins, out: sums }.run(),
                (Some(weights), true) => Rows::<_, _, false> { pass, weights, rows, begins, out: sums }.run(),
                (Some(weights), false) => Rows::<_, _, true> { pass, weights, rows, begins, out: sums }.run(),
            }?;
            steps.iter().for_each(|steps| steps.apply(number, out));
            Ok(())
        })?;
    }
    Ok(())
}
