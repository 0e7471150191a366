//! Splits: the vertices for training, validation and testing.

use std::borrow::Cow;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::build::RawLabels;
use super::error::{Error, Result};

/// A vertex in no split.
pub const NONE: u32 = 0;
/// The training vertices, whose labels the loss uses.
pub const TRAIN: u32 = 1;
/// The validation vertices, which decide the best epoch.
pub const VAL: u32 = 2;
/// The test vertices, which measure the model of the best epoch.
pub const TEST: u32 = 3;

/// File names of the splits, from [`TRAIN`] on.
pub(crate) const NAMES: [&str; 3] = ["train", "val", "test"];

/// One split as it was given.
#[derive(Clone, Debug)]
pub(crate) enum Members {
    Ids(Vec<i64>),
    Mask(Vec<bool>),
}

const SHARES: &str = "the random split";

/// A random split.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomSplit {
    /// Shares for training, validation and testing: not negative, with a sum of at most 1.
    pub shares: [f64; 3],
    /// Whether each class is split separately, so that every split has the same share of it.
    pub stratified: bool,
    /// Seed: the same seed gives the same splits.
    pub seed: u64,
}

impl RandomSplit {
    /// Parses three shares separated by commas, such as `0.6,0.2,0.2`. The seed is 0, and the split is not stratified.
    ///
    /// # Errors
    /// [`Error::Option`] for anything else, and for shares that are negative or have a sum above 1.
    pub fn parse(text: &str) -> Result<Self> {
        let shares: Option<Vec<f64>> = text.split(',').map(|share| share.trim().parse().ok()).collect();
        let shares = shares.and_then(|shares| <[f64; 3]>::try_from(shares).ok());
        match shares.filter(are_shares) {
            Some(shares) => Ok(Self { shares, stratified: false, seed: 0 }),
            None => Err(Error::Option {
                option: SHARES,
                found: format!("`{text:.40}`"),
                expected: "three shares for train, val and test, together at most 1, as in 0.6,0.2,0.2".into(),
            }),
        }
    }

    /// Draws the members of the three splits. They are drawn from the vertices that have a label, or from all vertices
    /// if there are no labels or several labels per vertex.
    ///
    /// # Errors
    /// [`Error::Option`] for invalid shares; [`Error::NotForThisData`] for a stratified split without one label per vertex.
    /// # Cost
    /// O(vertices log vertices).
    #[cfg_attr(not(feature = "import"), allow(dead_code))] // only importers use it
    pub(crate) fn draw(&self, vertices: usize, labels: Option<&RawLabels>) -> Result<[Members; 3]> {
        if !are_shares(&self.shares) {
            let expected = Cow::Borrowed("shares that are together at most 1");
            return Err(Error::Option { option: SHARES, found: format!("{:?}", self.shares), expected });
        }
        let classes = match labels {
            Some(RawLabels::Class(classes)) => Some(classes),
            _ => None,
        };
        if self.stratified && classes.is_none() {
            let found = "true for a dataset without one label per vertex".into();
            let expected = Cow::Borrowed("labels, one class per vertex");
            return Err(Error::NotForThisData { option: "stratified", found, expected });
        }
        let mut among: Vec<i64> = match classes {
            Some(classes) => (0i64..).zip(classes.iter()).filter(|(_, class)| **class >= 0).map(|(v, _)| v).collect(),
            None => (0..vertices as i64).collect(),
        };
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        among.shuffle(&mut random);
        if let Some(classes) = classes.filter(|_| self.stratified) {
            among.sort_by_key(|&v| classes.get(v as usize).copied());
        }
        let mut splits = [const { Vec::new() }; 3];
        let same = |a: &i64, b: &i64| !self.stratified || classes.is_none_or(|c| c[*a as usize] == c[*b as usize]);
        for class in among.chunk_by(same) {
            let (mut share, mut from) = (0.0, 0);
            for (split, part) in splits.iter_mut().zip(self.shares) {
                share += part;
                let to = ((class.len() as f64 * share).round() as usize).clamp(from, class.len());
                split.extend_from_slice(&class[from..to]);
                from = to;
            }
        }
        Ok(splits.map(|mut ids| {
            ids.sort_unstable();
            Members::Ids(ids)
        }))
    }
}

/// Returns whether shares are not negative and have a sum of at most 1, up to rounding.
fn are_shares(shares: &[f64; 3]) -> bool {
    shares.iter().all(|share| (0.0..=1.0).contains(share)) && shares.iter().sum::<f64>() <= 1.0 + 1e-9
}

/// Marks each vertex with its split. `lists` are train, val and test, each with the name of its file.
///
/// # Errors
/// An id that is not a vertex, an id twice in one list, or an id in two lists.
/// # Cost
/// O(vertices + ids).
pub(crate) fn mark(vertices: usize, lists: [Option<(&Members, String)>; 3]) -> Result<Vec<u32>> {
    let mut split = vec![NONE; vertices];
    for (which, list) in (TRAIN..).zip(&lists) {
        let Some((members, file)) = list else { continue };
        let mut put = |position: usize, id: i64| {
            let slot = usize::try_from(id).ok().and_then(|id| split.get_mut(id));
            match slot {
                None => Err(Error::SplitId { file: file.clone(), position, found: id, vertices }),
                Some(slot) if *slot == NONE => {
                    *slot = which;
                    Ok(())
                }
                Some(slot) if *slot == which => {
                    Err(Error::SplitDuplicate { file: file.clone(), vertex: id as u32, position })
                }
                Some(slot) => {
                    let other = &lists[*slot as usize - 1];
                    let first = other.as_ref().map_or_else(String::new, |(_, file)| file.clone());
                    Err(Error::SplitOverlap { vertex: id as u32, first, second: file.clone() })
                }
            }
        };
        match members {
            Members::Ids(ids) => ids.iter().enumerate().try_for_each(|(at, &id)| put(at, id))?,
            Members::Mask(mask) if mask.len() != vertices => {
                let expected = format!("[{vertices}] (one element per vertex)");
                return Err(Error::Shape { file: file.clone(), found: vec![mask.len()], expected });
            }
            Members::Mask(mask) => {
                let on = mask.iter().enumerate().filter(|&(_, &on)| on);
                on.into_iter().try_for_each(|(at, _)| put(at, at as i64))?;
            }
        }
    }
    Ok(split)
}

/// Returns the ids marked `which`, ascending.
pub(crate) fn ids(split: &[u32], which: u32) -> Vec<i64> {
    split.iter().enumerate().filter(|&(_, &s)| s == which).map(|(v, _)| v as i64).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn drawn(split: &str, stratified: bool, seed: u64, classes: &[i64]) -> [Vec<i64>; 3] {
        let split = RandomSplit { stratified, seed, ..RandomSplit::parse(split).unwrap() };
        let labels = RawLabels::Class(classes.to_vec().into());
        split.draw(classes.len(), Some(&labels)).unwrap().map(|members| match members {
            Members::Ids(ids) => ids,
            Members::Mask(_) => unreachable!("ids are drawn"),
        })
    }

    #[test]
    fn shares_are_kept_to_one_vertex_and_nobody_is_in_two() {
        let classes: Vec<i64> = (0..1003).map(|v| if v % 100 == 99 { -1 } else { v % 3 }).collect();
        let splits = drawn("0.6,0.2,0.1", false, 1, &classes);
        assert_eq!(splits.each_ref().map(Vec::len), [596, 198, 100], "993 vertices have a label");
        let mut all: Vec<i64> = splits.concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 894);
        assert!(all.iter().all(|&v| classes[v as usize] >= 0));
        assert_eq!(splits, drawn("0.6,0.2,0.1", false, 1, &classes));
        assert_ne!(splits, drawn("0.6,0.2,0.1", false, 2, &classes));
    }

    #[test]
    fn a_stratified_split_gives_each_class_its_share() {
        let classes: Vec<i64> = (0..1000).map(|v| i64::from(v < 50)).collect();
        let splits = drawn("0.6,0.2,0.2", true, 3, &classes);
        let rare = |ids: &Vec<i64>| ids.iter().filter(|&&v| classes[v as usize] == 1).count();
        assert_eq!(splits.each_ref().map(rare), [30, 10, 10]);
        assert_eq!(splits.each_ref().map(Vec::len), [600, 200, 200]);
    }

    #[test]
    fn what_are_no_shares_is_refused() {
        for bad in ["", "0.5", "0.5,0.5", "0.9,0.2,0.1", "-0.1,0.5,0.5", "a,b,c", "nan,0,0", "1,0,0,0"] {
            assert!(RandomSplit::parse(bad).is_err(), "{bad}");
        }
        assert!(RandomSplit::parse("0.6, 0.2, 0.2").is_ok());
        let all = RandomSplit { stratified: true, ..RandomSplit::parse("1,0,0").unwrap() };
        assert!(all.draw(3, None).is_err());
    }
}
