//! Where a number first was not finite.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The first number of an epoch that is not finite: NaN or infinite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NotFinite {
    /// The call that made it, as in a trace.
    pub op: String,
    /// The tensor that has it.
    pub tensor: String,
    /// The number.
    #[serde(with = "bits")]
    pub value: f32,
    /// Its row in the tensor of this part.
    pub row: usize,
    /// Its column.
    pub column: usize,
    /// Number of the call in the epoch, from 0.
    pub step: usize,
    /// The part, from 0.
    pub part: usize,
}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, tensor, value, row, column, step, part } = self;
        write!(f, "{value} first appeared in step {step}, `{op}`, on part {part}, ")?;
        if tensor != op {
            write!(f, "in `{tensor}`, ")?;
        }
        write!(f, "row {row}, column {column}")
    }
}

/// Writes a number as its bits, since JSON has no NaN.
mod bits {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &f32, to: S) -> Result<S::Ok, S::Error> {
        value.to_bits().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f32, D::Error> {
        u32::deserialize(from).map(f32::from_bits)
    }
}
