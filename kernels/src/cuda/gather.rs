//! Launches of gathers.

use super::args::{self, MOST_STEPS};
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
    /// Prepares a gather, or a window of one, and the steps that follow it. If the sources are in several matrices, each
    /// has a launch, which adds to what the one before wrote.
    pub(super) fn gather(&mut self, call: &Call) -> Result<()> {
        let name = call.name_of_head();
        let (block, BlockAddresses { indptr, indices }) = self.block_of(call)?;
        let (own, out, windowed) = (call.inputs[0], call.out(), call.first_source.is_some());
        let weights = call.head_inputs().get(1).map_or(Ok(0), |&weights| self.mat(weights))?;
        let (own_at, out_at) = (self.mat(own)?, self.mat(out)?);
        let (n, d) = (block.rows, out.cols);
        let end = call.sources().fold(call.first_source.unwrap_or(0), |end, tile| end.saturating_add(tile.rows));
        if end > block.own_sources {
            let (index, limit) = (end as u64, block.own_sources as u64 + 1);
            return Err(Error::Index { call: name, operand: "the window's end", index, limit });
        }
        let steps = self.steps(call)?;
        let (first, rest) = steps.split_at(steps.len().min(MOST_STEPS));
        let limit = block.own_sources as u64 + block.halo_sources as u64;
        if limit > u64::from(u32::MAX) {
            let want = "fewer than 2^32 on a GPU";
            return Err(Error::Argument { call: name, operand: "sources", want, got: limit as f64 });
        }
        let args = args::Gather {
            indptr,
            indices,
            weights,
            own: own_at,
            halo: call.halo.map_or(Ok(0), |halo| self.mat(halo))?,
            sum: call.sum.map_or(Ok(0), |sum| self.mat(sum))?,
            out: out_at,
            fault: self.lookup(lookup(name, block, limit)),
            rows: n as u64,
            edges: block.edges as u64,
            first_source: call.first_source.unwrap_or(0) as u64,
            own_sources: own.rows as u64,
            sources: if windowed { 0 } else { limit },
            windowed: u64::from(windowed),
            d: columns(name, d)?,
            lanes: 0,
            most_edges: 0,
            hub_groups: 0,
            hub_slices: 0,
            unused: 0,
            steps: pack_steps(first, out.float()),
        };
        let held = own.rows + block.halo_sources;
        let weighted = weights != 0;
        let shape = Shape { rows: n, edges: block.edges, sources: held, d, stored: own.float(), weighted };
        let (mut sum, mut first_source) = (args.sum, args.first_source);
        let count = call.sources().count();
        for (i, tile) in call.sources().enumerate() {
            let steps = if i + 1 == count { first } else { &[] };
            let (own, own_sources) = (self.mat(tile)?, tile.rows as u64);
            let steps = pack_steps(steps, out.float());
            let shape = Shape { sources: if count > 1 { tile.rows } else { held }, ..shape };
            self.launch_gather(shape, args::Gather { own, own_sources, sum, first_source, steps, ..args });
            (sum, first_source) = (out_at, first_source + own_sources);
        }
        self.steps_in_place(call, out_at, rest)
    }

    /// Launches the gather by whole rows, or by groups of columns if only those fit the cache and that is faster.
    fn launch_gather(&mut self, shape: Shape, args: args::Gather) {
        // The kernels for one matrix read a row in place of a source that does not exist, so they need one.
        let split = args.windowed != 0 || args.sources != args.own_sources || args.own_sources == 0;
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
                ..args
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
