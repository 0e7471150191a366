//! Which vertices are for training, validation and testing.

use super::error::{Error, Result};

/// In no split.
pub const NONE: u32 = 0;
/// The vertices whose labels the loss sees.
pub const TRAIN: u32 = 1;
/// The vertices by which an epoch is chosen.
pub const VAL: u32 = 2;
/// The vertices by which the choice is judged.
pub const TEST: u32 = 3;

/// The splits' file names, from [`TRAIN`] on.
pub(crate) const NAMES: [&str; 3] = ["train", "val", "test"];

/// One split as it was given.
#[derive(Clone, Debug)]
pub(crate) enum Members {
    Ids(Vec<i64>),
    Mask(Vec<bool>),
}

/// Marks each vertex with its split.
///
/// `lists` are train, val and test, each with the name of its file.
///
/// # Errors
/// An id that is no vertex, one that stands twice in a list, one in two lists.
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
                let expected = format!("[{vertices}] (one element a vertex)");
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

/// The ids marked `which`, ascending.
pub(crate) fn ids(split: &[u32], which: u32) -> Vec<i64> {
    split.iter().enumerate().filter(|&(_, &s)| s == which).map(|(v, _)| v as i64).collect()
}
