//! Where the terms of sums over parts are added.

use std::fmt;
use std::str::FromStr;

use lapidary_kernels::op::Move;
use lapidary_kernels::{Call, Mat, Slot, StorageType};

use super::{Exchange, Lifetime, Lowered, LoweredStep};
use crate::error::{Error, Result};

/// How the terms of a gradient, one for each device, are added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SumMode {
    /// By the host, in the order of the parts. The bits are the same in each run, on any devices.
    #[default]
    Parts,
    /// From GPU to GPU, by NVIDIA's NCCL, in an order of its own. So the last bits differ.
    Nccl,
}

impl SumMode {
    /// Returns the name that the command uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Parts => "parts",
            Self::Nccl => "nccl",
        }
    }
}

impl fmt::Display for SumMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for SumMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = [Self::Parts, Self::Nccl].into_iter().find(|mode| mode.name() == text);
        let expected = || "write parts or nccl".into();
        found.ok_or_else(|| Error::Value { option: "sum", value: text.into(), expected: expected() })
    }
}

impl Lowered {
    /// Returns the same programs with their sums over parts added like this.
    ///
    /// # Cost
    /// O(steps) for each sum.
    pub fn with_sums(mut self, mode: SumMode) -> Self {
        if mode == SumMode::Parts {
            return self;
        }
        for exchange in &mut self.exchanges {
            let Exchange::Sum { term, sum } = *exchange else { continue };
            let read = self.phases.iter_mut().find_map(|phase| {
                let first = phase.steps.iter().position(|step| step.call.reads().any(|slot| slot == sum))?;
                let made = made_by(&phase.steps[..first], term)?;
                Some((&mut phase.steps, first, made))
            });
            // The driver adds what is no gradient.
            let Some((steps, first, made)) = read.filter(|(.., made)| made.dtype.float() == Some(StorageType::F32))
            else {
                continue;
            };
            let call = Call::new(Move::AllReduce, [made], [Mat { slot: sum, ..made }]);
            let name = self.tensors[sum.0 as usize].name.clone();
            steps.insert(first, LoweredStep { phase: steps[first].phase, ..LoweredStep::new(name, call) });
            self.tensors[sum.0 as usize].kind = Lifetime::Local;
            *exchange = Exchange::Reduce { term, sum };
        }
        self
    }
}

/// Returns the matrix that the last of the steps to write a slot makes there.
fn made_by(steps: &[LoweredStep], slot: Slot) -> Option<Mat> {
    steps.iter().rev().find_map(|step| step.call.outputs.iter().copied().find(|made| made.slot == slot))
}
