//! Launches of gathers.

use bytemuck::Zeroable;

use super::args::{self, MOST_MATRICES, MOST_STEPS};
use super::autotune::{Shape, columns_to_try};
use super::compile::File;
use super::edges::lookup;
use super::engine::Task;
use super::hubs::Hubs;
use super::prepare::{BlockAddresses, Plan, kernel_call};
use super::rows::{columns, pack_steps};
use crate::cuda::gather_kernel::{Division, GatherKind};
use crate::error::{Error, Result};
use crate::op::call::Call;

/// Most blocks in the second dimension of a grid.
const MOST_SLICES: u32 = 65_535;

impl Plan<'_> {
    /// Prepares a gather, or a window of one, and the steps that follow it. If the sources are in more matrices than a
    /// launch takes, there are several launches; each adds to what the one before wrote.
    pub(super) fn gather(&mut self, call: &Call) -> Result<()> {
        let name = call.name_of_head();
        let (block, BlockAddresses { indptr, indices }) = self.block_of(call)?;
        let (first, out) = (call.first_source.unwrap_or(0), call.out());
        let weights = call.head_inputs().get(1).map_or(Ok(0), |&weights| self.mat(weights))?;
        let out_at = self.mat(out)?;
        let (n, d) = (block.rows, out.cols);
        let end = call.sources().fold(first, |end, tile| end.saturating_add(tile.rows));
        if end > block.own_sources {
            let (index, limit) = (end as u64, block.own_sources as u64 + 1);
            return Err(Error::Index { call: name, operand: "the window's end", index, limit });
        }
        let steps = self.steps(call)?;
        let (fused, rest) = steps.split_at(steps.len().min(MOST_STEPS));
        let limit = block.own_sources as u64 + block.halo_sources as u64;
        if limit > u64::from(u32::MAX) {
            let want = "fewer than 2^32 on a GPU";
            return Err(Error::Argument { call: name, operand: "sources", want, got: limit as f64 });
        }
        let mut args = args::Gather {
            indptr,
            indices,
            weights,
            sum: call.sum.map_or(Ok(0), |sum| self.mat(sum))?,
            out: out_at,
            fault: self.lookup(lookup(name, block, limit)),
            rows: n as u64,
            edges: block.edges as u64,
            d: columns(name, d)?,
            ..args::Gather::zeroed()
        };
        let stored = call.inputs[0].float();
        let matrices = call.sources().chain(call.halo).map(|matrix| Ok((self.mat(matrix)?, matrix.rows as u32)));
        let mut matrices: Vec<_> = matrices.collect::<Result<_>>()?;
        matrices.retain(|&(_, rows)| rows > 0);
        let mut groups: Vec<_> = matrices.chunks(MOST_MATRICES).collect();
        if groups.is_empty() {
            groups.push(&[]);
        }
        let mut end = first as u32;
        for (i, group) in groups.iter().enumerate() {
            let last = i + 1 == groups.len();
            args.matrices = group.len() as u32;
            args.firsts[0] = end;
            for (k, &(address, rows)) in group.iter().enumerate() {
                end += rows;
                (args.sources[k], args.firsts[k + 1]) = (address, end);
            }
            // Without a window, the matrices have all sources; one behind them does not exist, which is reported.
            let windowed = call.first_source.is_some() || groups.len() > 1;
            args.sources_before = u32::from(args.firsts[0] > 0);
            args.sources_behind = u32::from(windowed && (!last || u64::from(end) < limit));
            args.steps = pack_steps(if last { fused } else { &[] }, out.float());
            let sources = (end - args.firsts[0]) as usize;
            // A window has about its share of the edges.
            let edges = (block.edges as u128 * sources as u128 / u128::from(limit.max(1))) as usize;
            let shape = Shape { rows: n, edges, sources, d, stored, weighted: weights != 0 };
            self.launch_gather(shape, &args);
            args.sum = out_at;
        }
        self.steps_in_place(call, out_at, rest)
    }

    /// Launches the gather by whole rows, or by groups of columns if only those fit the cache and that is faster.
    fn launch_gather(&mut self, shape: Shape, args: &args::Gather) {
        // The kernels for one matrix read a row in place of a source that does not exist, so they need one.
        let split = args.sources_before + args.sources_behind > 0 || args.matrices != 1;
        let kind = GatherKind { weighted: shape.weighted, split };
        let launch = |columns: usize| {
            if shape.d == 0 {
                return None;
            }
            let division = Division::of(shape.d, shape.stored, columns);
            let hubs = Hubs::of(shape.rows, shape.edges, division.columns);
            let blocks = [hubs.blocks() + shape.rows.div_ceil(division.width.rows_of_block()), division.slices];
            let args = args::Gather {
                lanes: division.width.lanes as u32,
                most_edges: hubs.most_edges,
                hub_groups: hubs.groups,
                hub_slices: hubs.slices,
                ..*args
            };
            kernel_call(File::Gather(kind).over(shape.stored), kind.kernel(&division), blocks, &args)
        };
        let engine = self.engine();
        let narrow = match engine.autotune.fastest(&shape) {
            // A trial runs twice, which a launch that adds to its own output must not.
            _ if args.sum == args.out => Vec::new(),
            Some(fastest) => return launch(fastest).into_iter().for_each(|call| self.add(Task::Kernel(call))),
            None => columns_to_try(&shape, engine.cache_bytes),
        };
        let ways = std::iter::once(shape.d).chain(narrow).filter_map(|columns| Some((columns, launch(columns)?)));
        let mut ways: Vec<_> = ways.filter(|(_, call)| call.grid.1 <= MOST_SLICES).collect();
        match ways.len() {
            0 => {}
            1 => self.add(Task::Kernel(ways.remove(0).1)),
            _ => self.add(Task::Trial { shape, ways }),
        }
    }
}
