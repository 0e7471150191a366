//! The steps of one operation: one step, or one per tile.

use std::sync::Arc;

use lapidary_kernels::op::{Linear, Move};
use lapidary_kernels::{Arg, Call, Mat, Slot, Window};

use super::bind::Binder;
use super::runs::Steps;
use super::table::{block_name, tile_name};
use super::tiling::Grouping;
use super::{Crossing, Exchange, Lifetime, LoweredStep, Lowering, Slots};
use crate::program::{BlockSpec, DType, Op, OpId, Program, TensorId};

/// One tile of the rows that a gather reads: its slot, its number of rows, and the index of its first row among all
/// sources.
pub(super) struct SourceTile {
    pub(super) slot: Slot,
    pub(super) rows: usize,
    pub(super) first: usize,
}

impl Lowering<'_> {
    /// Returns the steps of an operation, for each tile of its operands.
    pub(super) fn steps(&mut self, program: &Program, op: OpId, slots: &Slots) -> Steps {
        if matches!(program.op(op), Op::Optimizer(_)) {
            return Steps { tiles: vec![self.update(program, op, slots)], group: 1 };
        }
        let pieces = |lowering: &Self, tensor| lowering.table.pieces(program.tensor(tensor).ty.rows);
        let outputs = program.op_outputs(op);
        let made = pieces(self, outputs[0]);
        let read = program.inputs(op).into_iter().map(|tensor| pieces(self, tensor)).max().unwrap_or(1);
        let mut tiles = Vec::new();
        let mut group = 1;
        // Sum over the tiles so far, if the operation sums over tiles.
        let mut sum = None;
        for tile in 0..made.max(read) {
            let mut call = Binder { program, op, slots, table: &mut self.table, tile, seed: self.seed }.call();
            let target = call.out().slot;
            let mut name = self.table.name(target).clone();
            if made < read {
                name = tile_name(&name, tile, if tile + 1 == read { 1 } else { read }).into();
                call = self.add_to(&mut sum, &name, target, call);
            }
            let mut steps = match program.op(op).block().filter(|_| program.op(op).gathers()) {
                Some(block @ BlockSpec::Graph { .. }) => match self.folds(program, op, block, &call) {
                    true => self.gather_and_fold(block, &name, call),
                    false => {
                        group = self.grouping(&call).rows as usize;
                        self.gather(block, &slots[&program.inputs(op)[0]], &name, call)
                    }
                },
                _ => vec![LoweredStep::new(name, call)],
            };
            self.add_workspace(&mut steps);
            tiles.push(steps);
        }
        Steps { tiles, group }
    }

    /// Returns the steps of an optimizer update: one, or one per window of the parameter and one that joins the new
    /// values.
    fn update(&mut self, program: &Program, op: OpId, slots: &Slots) -> Vec<LoweredStep> {
        let outputs = program.op_outputs(op);
        let updated = slots[&outputs[0]][0];
        let name = self.table.name(updated).clone();
        let next = |outputs: &[TensorId], window: usize| {
            let next = outputs.iter().filter_map(|t| Some((slots[t][window], slots[program.next().get(t)?][window])));
            next.collect::<Vec<_>>()
        };
        let windows = self.table.tiling().windows(self.table.numbers(program.tensor(outputs[0]).ty));
        if let [whole] = windows[..] {
            let call = self.window(program, op, slots, 0, whole);
            return vec![LoweredStep { next: next(&outputs, 0), ..LoweredStep::new(name, call) }];
        }
        let mut steps = Vec::new();
        let mut parts = Vec::new();
        for (i, &window) in windows.iter().enumerate() {
            let call = self.window(program, op, slots, i, window);
            let name = tile_name(&name, i, windows.len());
            let part = self.table.push(name.clone(), 4 * window.len as u64, Lifetime::Local);
            let call = call.renamed(|slot| if slot == updated { part } else { slot });
            steps.push(LoweredStep { next: next(&outputs[1..], i), ..LoweredStep::new(name, call) });
            parts.push((part, window.len));
        }
        let joined = LoweredStep::new(name, Call::concat(&parts, updated));
        steps.push(LoweredStep { next: next(&outputs[..1], 0), ..joined });
        steps
    }

    /// Returns the update of one window of a parameter.
    fn window(&mut self, program: &Program, op: OpId, slots: &Slots, tile: usize, window: Window) -> Call {
        Binder { program, op, slots, table: &mut self.table, tile, seed: self.seed }.update(window)
    }

    /// Makes `call` add to the running sum. `call` writes `target`, a sum over the rows of all tiles. It adds to `sum`,
    /// and its output becomes the new `sum`.
    fn add_to(&mut self, sum: &mut Option<Slot>, name: &Arc<str>, target: Slot, call: Call) -> Call {
        let so_far = match self.table.name(target) == name {
            true => target,
            false => self.table.push_like(target, name.clone()),
        };
        let call = call.renamed(|slot| if slot == target { so_far } else { slot });
        let before = sum.replace(so_far);
        // The tile's own block, whose sources are all on the device.
        let first_source = call.op.gathers().then_some(0);
        let call = Call { first_source, ..call };
        let call = before.into_iter().fold(call, Call::added_to);
        // Row steps after the sum need the complete sum.
        if so_far == target { call } else { call.apart().0 }
    }

    /// Returns the steps of one tile's gather over the graph. First come the steps that pack rows. Then there is one
    /// step per group of tiles of the sources, or a single step with the halo as second operand if nothing is tiled.
    fn gather(&mut self, block: BlockSpec, own: &[Slot], name: &Arc<str>, call: Call) -> Vec<LoweredStep> {
        let block = self.table.tiling().part.canonical(block);
        let own_mat = call.inputs[0];
        if self.table.tiling().is_staged() {
            return self.gather_in_stages(block, own[0], name, &call);
        }
        let mut steps = Vec::new();
        let halos = match self.table.tiling().has_halo() {
            true => self.exchange(block, own, own_mat, &mut steps),
            false => Vec::new(),
        };
        if let [_] = own {
            let rows = self.table.tiling().part.cut(block).halo as usize;
            steps.push(match halos.first() {
                Some(&slot) => LoweredStep::with_halo(name.clone(), call, Mat { slot, rows, ..own_mat }),
                None => LoweredStep::new(name.clone(), call),
            });
            return steps;
        }
        let sources = self.sources(block, own, &halos);
        steps.extend(self.windows(&sources, name, &call));
        steps
    }

    /// Returns the steps of a gather, one for each group of tiles of its sources. Each adds to the sum of the one before.
    pub(super) fn windows(&mut self, sources: &[SourceTile], name: &Arc<str>, call: &Call) -> Vec<LoweredStep> {
        let (own, partial) = (call.inputs[0], call.clone().partial());
        let at_once = self.grouping(call).sources as usize;
        let count = sources.len().div_ceil(at_once);
        let mut sum = None;
        let step = |(i, group): (usize, &[SourceTile])| {
            let last = i + 1 == count;
            let step_name: Arc<str> = if last { name.clone() } else { format!("{name}[until {i}]").into() };
            let mut window = if last { call.clone() } else { partial.clone() }.window(group[0].first, sum);
            let mut tiles = group.iter().map(|source| Mat { slot: source.slot, rows: source.rows, ..own });
            window.inputs[0] = tiles.next().expect("a group has a tile");
            window.more_sources = tiles.collect();
            if !last {
                let out = &mut window.outputs[0];
                out.slot = self.table.push_sum(*out, out.cols, step_name.clone());
                sum = Some(*out);
            }
            LoweredStep::new(step_name, window)
        };
        sources.chunks(at_once).enumerate().map(step).collect()
    }

    /// Returns how a gather goes through its tiles.
    fn grouping(&self, call: &Call) -> Grouping {
        // Only plain sums in f32 read several tiles in one call.
        let joins = matches!(call.op.head(), Op::Gather(_)) && call.out().dtype == DType::F32;
        let edge_bytes = if call.head_inputs().len() > 1 { 8 } else { 4 };
        self.table.tiling().grouping(call.sum_cols().saturating_mul(4), edge_bytes, joins)
    }

    /// Returns the tiles that a gather reads, in the order of the whole graph.
    fn sources(&self, block: BlockSpec, own: &[Slot], halos: &[Slot]) -> Vec<SourceTile> {
        let tiling = self.table.tiling();
        let own_rows = own.iter().zip(&tiling.tiles).map(|(&slot, tile)| (slot, tile.vertices));
        let own_rows: Vec<(Slot, u64)> = own_rows.collect();
        let mut rows = own_rows;
        if !halos.is_empty() {
            let [low, high] = tiling.halo_rows(block);
            let tiles = |slots: &[Slot], rows: Vec<std::ops::Range<u64>>| -> Vec<(Slot, u64)> {
                slots.iter().copied().zip(rows.into_iter().map(|rows| rows.end - rows.start)).collect()
            };
            let (low_slots, high_slots) = halos.split_at(low.len());
            rows = [tiles(low_slots, low), rows, tiles(high_slots, high)].concat();
        }
        let mut first = 0;
        let placed = rows.into_iter().map(|(slot, rows)| {
            let source = SourceTile { slot, rows: rows as usize, first };
            first += source.rows;
            source
        });
        placed.collect()
    }

    /// Returns the tiles of the halo of `own` over `block`; its rows have the type of those of `like`. Appends the
    /// steps that pack the rows for other parts, unless they were packed before.
    fn exchange(&mut self, block: BlockSpec, own: &[Slot], like: Mat, steps: &mut Vec<LoweredStep>) -> Vec<Slot> {
        if let Some(halo) = self.halos.get(&(own[0], block)) {
            return halo.clone();
        }
        let tiling = self.table.tiling();
        let bytes = |rows: u64| rows.saturating_mul(like.cols as u64).saturating_mul(like.dtype.byte_count());
        let mut packed = Vec::new();
        for (tile, (&slot, sizes)) in own.iter().zip(&tiling.tiles).enumerate() {
            let name = format!("pack {}.{}", self.table.name(slot), block_name(block));
            let rows = self.table.packed_rows(block, tile);
            let count = sizes.cut(block).packed;
            let out = self.table.push(name.clone(), bytes(count), Lifetime::Local);
            let x = Mat { slot, rows: sizes.vertices as usize, ..like };
            let out = Mat { slot: out, rows: count as usize, ..like };
            let call = Call::new(Move::Pack, [x.into(), Arg::Slot(rows)], [out]);
            steps.push(LoweredStep::new(name, call));
            packed.push(out.slot);
        }
        let name = format!("halo {}.{}", self.table.name(own[0]), block_name(block));
        if tiling.fetches() {
            let rows = tiling.part.cut(block).halo;
            let slot = self.table.push(name.clone(), bytes(rows), Lifetime::Local);
            let out = Mat { slot, rows: rows as usize, ..like };
            let lent = Mat { slot: packed[0], rows: tiling.part.cut(block).packed as usize, ..like };
            let crossing = Crossing::Pull(block);
            let rows = self.table.fetched_rows(crossing);
            let call = Call::new(Move::Fetch, [lent.into(), Arg::Slot(rows)], [out]);
            steps.push(LoweredStep::new(name, call));
            self.exchanges.push(Exchange::Fetch { packed: packed[0], halo: slot, crossing, owner: None });
            self.halos.insert((own[0], block), vec![slot]);
            return vec![slot];
        }
        let [low, high] = tiling.halo_rows(block);
        let halo: Vec<Slot> = match own {
            [_] => vec![self.table.push(name, bytes(tiling.part.cut(block).halo), Lifetime::Received)],
            _ => {
                let tiles: Vec<_> = [low, high].concat();
                let push = |(i, rows): (usize, &std::ops::Range<u64>)| {
                    self.table.push(tile_name(&name, i, own.len()), bytes(rows.end - rows.start), Lifetime::Received)
                };
                tiles.iter().enumerate().map(push).collect()
            }
        };
        let (width, float) = (like.cols, like.float());
        self.exchanges.push(Exchange::Halo {
            packed,
            halo: halo.clone(),
            crossing: Crossing::Pull(block),
            width,
            float,
        });
        self.halos.insert((own[0], block), halo.clone());
        halo
    }

    /// Adds a workspace for the partial sums of weight gradients.
    fn add_workspace(&mut self, steps: &mut [LoweredStep]) {
        for LoweredStep { name, call, .. } in steps {
            if call.op == Op::Linear(Linear::WeightGrad) {
                let (grad, x) = (call.inputs[0], call.inputs[1]);
                Arc::make_mut(call).workspace =
                    self.table.workspace(name, [x.rows, x.cols, grad.cols].map(|size| size as u64));
            }
        }
    }
}
