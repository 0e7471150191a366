//! Fan-outs: how many in-edges of a vertex are drawn in each layer.

use std::fmt;
use std::str::FromStr;

/// How many in-edges of each vertex a layer draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fanout {
    /// All of them.
    All,
    /// At most so many.
    AtMost(u32),
}

/// The fan-outs of all layers, from the seeds outwards: the first one is that of the seeds, as in PyTorch Geometric's
/// `NeighborLoader`. (DGL lists them from the input to the seeds.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fanouts(pub Vec<Fanout>);

/// A text that is no list of fan-outs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write numbers of neighbours, from the seeds outwards, as in 15,10,5; -1: all")]
pub struct ParseFanoutsError;

impl FromStr for Fanouts {
    type Err = ParseFanoutsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fanout = |number: &str| match number.trim() {
            "-1" => Some(Fanout::All),
            number => number.parse().ok().map(Fanout::AtMost),
        };
        let all: Option<Vec<Fanout>> = text.split(',').map(fanout).collect();
        all.map(Self).ok_or(ParseFanoutsError)
    }
}

impl fmt::Display for Fanouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fanout) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match fanout {
                Fanout::All => write!(f, "{comma}-1")?,
                Fanout::AtMost(count) => write!(f, "{comma}{count}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written() {
        for text in ["15,10,5", "-1", "0,3,-1"] {
            assert_eq!(text.parse::<Fanouts>().map(|fanouts| fanouts.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(" 2, 3".parse(), Ok(Fanouts(vec![Fanout::AtMost(2), Fanout::AtMost(3)])));
        for text in ["", "5,", "-2", "a", "4294967296", "1.5"] {
            assert!(text.parse::<Fanouts>().is_err(), "{text}");
        }
    }
}
