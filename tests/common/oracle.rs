//! Runs lowered programs in f64 on the serial reference kernels: an independent answer to what a device computes.

use std::collections::BTreeMap;

use lapidary::lower::{Contents, FoldArray, Inputs, Lifetime, Lowered, LoweredStep, Supply};
use lapidary::program::Origin;
use lapidary_kernels::Slot;
use lapidary_kernels::op::oracle::{self, Array};

/// The contents of all slots.
#[derive(Clone, Debug)]
pub struct Oracle {
    slots: BTreeMap<Slot, Array>,
}

impl Oracle {
    /// Sets constants, zeroes the state, and runs the setup.
    pub fn new(lowered: &Lowered, inputs: &Inputs) -> Self {
        let mut oracle = Self::of_part(lowered, &mut Supply::new(inputs), 0);
        oracle.run(&lowered.setup);
        oracle
    }

    /// Sets one part's constants, zeroes the state, and runs nothing.
    pub fn of_part(lowered: &Lowered, supply: &mut Supply<'_>, part: usize) -> Self {
        let mut oracle = Self { slots: BTreeMap::new() };
        for (index, tensor) in lowered.tensors.iter().enumerate() {
            let slot = Slot(index as u32);
            let host = tensor.contents.as_ref().map(|contents| (contents, supply.get(part, tensor.tile, contents)));
            let cells = match host {
                Some((
                    Contents::Indptr(_)
                    | Contents::Fold(_, _, FoldArray::Indptr)
                    | Contents::Origin(Origin::EdgePermutation(_)),
                    host,
                )) => Array::U64(host.to_vec()),
                Some((
                    Contents::Indices(_)
                    | Contents::Fold(_, _, FoldArray::Indices)
                    | Contents::PackedRows(..)
                    | Contents::FetchedRows(..),
                    host,
                )) => Array::U32(host.to_vec()),
                Some((Contents::Origin(Origin::Labels | Origin::Split | Origin::SourceIds(_)), host)) => {
                    Array::U32(host.to_vec())
                }
                Some((Contents::Origin(Origin::Targets), host)) => Array::U8(host.to_vec()),
                Some((Contents::Rounded(_), host)) => {
                    Array::Float(host.to_vec::<half::bf16>().into_iter().map(f64::from).collect())
                }
                Some((_, host)) => Array::Float(host.to_vec::<f32>().into_iter().map(f64::from).collect()),
                None if &*tensor.name == "clock" => Array::U64(vec![1, 1]),
                None if tensor.kind == Lifetime::State => Array::Float(vec![0.0; tensor.bytes as usize / 4]),
                None => Array::Float(Vec::new()),
            };
            oracle.slots.insert(slot, cells);
        }
        oracle
    }

    pub fn write(&mut self, slot: Slot, values: &[f64]) {
        self.slots.insert(slot, Array::Float(values.to_vec()));
    }

    pub fn float(&self, slot: Slot) -> &[f64] {
        self.slots[&slot].floats()
    }

    pub fn u32s(&self, slot: Slot) -> &[u32] {
        self.slots[&slot].u32s()
    }

    /// Runs the steps, except those that take other parts: the caller writes what these make.
    pub fn run(&mut self, steps: &[LoweredStep]) {
        for step in steps.iter().filter(|step| !step.call.is_exchange()) {
            let made = oracle::run(&step.call, |slot| &self.slots[&slot]);
            self.slots.extend(made);
        }
    }
}
