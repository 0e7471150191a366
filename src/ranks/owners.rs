//! Which rank owns which ids: rows of features, or vertices.

use std::ops::Range;

use bytemuck::pod_collect_to_vec;
use rayon::prelude::*;

use super::Ranks;
use crate::error::{Error, Result};

/// The ids of each rank, which are a range.
#[derive(Debug)]
pub(super) struct Owners {
    rank: usize,
    /// The first id of each rank, and the end of the last one.
    // Invariant: ascending, one more than there are ranks.
    offsets: Vec<usize>,
}

impl Owners {
    /// Creates the owners of ids: rank `r` has `offsets[r]..offsets[r + 1]`.
    ///
    /// # Panics
    /// If `offsets` do not have the right length, or are not in order.
    pub(super) fn new(ranks: &Ranks, offsets: Vec<usize>) -> Self {
        assert!(offsets.len() == ranks.count() + 1 && offsets.is_sorted(), "there is one range of ids for each rank");
        Self { rank: ranks.rank(), offsets }
    }

    /// Returns the number of this rank.
    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks.
    pub(super) fn count(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Returns the ids of this rank.
    pub(super) fn own(&self) -> Range<usize> {
        self.offsets[self.rank]..self.offsets[self.rank + 1]
    }

    /// Returns the rank that owns an id.
    pub(super) fn owner(&self, id: u32) -> usize {
        // Of several ranks with this start, only the last one has ids.
        self.offsets.partition_point(|&start| start <= id as usize) - 1
    }

    /// Returns the distinct ids of each other rank among these, ascending; and for each id of another rank, its place in
    /// that list.
    ///
    /// # Cost
    /// O(ids log ids).
    pub(super) fn asked(&self, ids: &[u32]) -> (Vec<Vec<u32>>, Vec<u32>) {
        let (mut asked, mut places) = (vec![Vec::new(); self.count()], vec![0; ids.len()]);
        let own = self.own();
        let others = ids.iter().enumerate().filter(|(_, id)| !own.contains(&(**id as usize)));
        let mut keys: Vec<u64> = others.map(|(at, &id)| u64::from(id) << 32 | at as u64).collect();
        keys.par_sort_unstable();
        let mut owner = 0;
        for key in keys {
            let (id, at) = ((key >> 32) as u32, key as u32);
            while id as usize >= self.offsets[owner + 1] {
                owner += 1;
            }
            let asked: &mut Vec<u32> = &mut asked[owner];
            if asked.last() != Some(&id) {
                asked.push(id);
            }
            places[at as usize] = asked.len() as u32 - 1;
        }
        (asked, places)
    }

    /// Reads the ids that another rank asks for.
    ///
    /// # Errors
    /// [`Error::WrongLetter`] unless all are of this rank.
    pub(super) fn wanted(&self, from: usize, content: &[u8]) -> Result<Vec<u32>> {
        let wrong = |why: String| Err(Error::WrongLetter { rank: from, why });
        if !content.len().is_multiple_of(size_of::<u32>()) {
            return wrong(format!("{} bytes are no list of vertices", content.len()));
        }
        let (wanted, own): (Vec<u32>, _) = (pod_collect_to_vec(content), self.own());
        match wanted.iter().find(|&&v| !own.contains(&(v as usize))) {
            Some(v) => wrong(format!("it asks for vertex {v}, which is not of this rank")),
            None => Ok(wanted),
        }
    }
}
