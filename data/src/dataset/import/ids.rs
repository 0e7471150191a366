//! The original names of vertices in an imported file.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use crate::dataset::error::Result;
use crate::dataset::names::{NAMES_FILE, NUMBERS_FILE};
use crate::dataset::npy::{self, Dtype};
use crate::dataset::write::put_file;

/// The original names of the vertices 0, 1, ....
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ids {
    /// Numbers, ascending: `vertex_ids.npy`, i64 `[vertices]`.
    Numbers(Vec<u64>),
    /// Other names, in order of first appearance: `vertex_names.txt`, one line per vertex.
    Names(Vec<Arc<str>>),
}

impl Ids {
    /// Keeps the names of the vertices that are kept.
    pub(super) fn select(&mut self, kept: &[bool]) {
        let mut kept = kept.iter().copied();
        let mut next = || kept.next().unwrap_or(false);
        match self {
            Self::Numbers(ids) => ids.retain(|_| next()),
            Self::Names(names) => names.retain(|_| next()),
        }
    }

    /// Writes the names to a dataset directory.
    pub(super) fn write(&self, dir: &Path) -> Result<()> {
        match self {
            Self::Numbers(ids) => put_file(&dir.join(NUMBERS_FILE), |to| npy::write(to, Dtype::I64, &[ids.len()], ids)),
            Self::Names(names) => {
                put_file(&dir.join(NAMES_FILE), |to| names.iter().try_for_each(|name| writeln!(to, "{name}")))
            }
        }
    }
}

/// A set of small numbers with ranks.
#[derive(Default)]
pub(super) struct Ranks {
    words: Vec<u64>,
    /// The number of members before each eighth word.
    before: Vec<u32>,
}

impl Ranks {
    pub(super) fn insert(&mut self, id: u32) {
        let word = id as usize / 64;
        if word >= self.words.len() {
            let len = (word + 1).next_power_of_two();
            self.words.resize(len, 0);
        }
        self.words[word] |= 1 << (id % 64);
    }

    pub(super) fn contains(&self, id: u32) -> bool {
        self.words.get(id as usize / 64).is_some_and(|word| word >> (id % 64) & 1 == 1)
    }

    /// Returns the greatest number.
    pub(super) fn max(&self) -> Option<u32> {
        let word = self.words.iter().rposition(|&word| word != 0)?;
        Some((word * 64) as u32 + 63 - self.words[word].leading_zeros())
    }

    /// Computes the ranks, and returns how many numbers there are.
    pub(super) fn count(&mut self) -> usize {
        let mut sum = 0;
        self.before.clear();
        for words in self.words.chunks(8) {
            self.before.push(sum);
            sum += words.iter().map(|word| word.count_ones()).sum::<u32>();
        }
        sum as usize
    }

    /// Returns how many numbers are below `id`. Call [`Ranks::count`] first.
    pub(super) fn rank(&self, id: u32) -> u32 {
        let word = id as usize / 64;
        let within: u32 = self.words[word / 8 * 8..word].iter().map(|word| word.count_ones()).sum();
        self.before[word / 8] + within + (self.words[word] & ((1 << (id % 64)) - 1)).count_ones()
    }

    /// Returns all numbers, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        self.words.iter().enumerate().flat_map(|(at, &word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at as u64 * 64 + bit)
        })
    }
}

/// Numbers keys in order of first appearance.
pub(super) struct Interner<K> {
    numbers: HashMap<K, u32>,
    pub keys: Vec<K>,
}

impl<K: std::hash::Hash + Eq + Clone> Interner<K> {
    pub(super) fn new() -> Self {
        Self { numbers: HashMap::new(), keys: Vec::new() }
    }

    /// Returns the number of a key, or `None` if there are more than a graph can have.
    pub(super) fn number<Q>(&mut self, key: &Q) -> Option<u32>
    where
        K: std::borrow::Borrow<Q> + for<'q> From<&'q Q>,
        Q: std::hash::Hash + Eq + ?Sized,
    {
        if let Some(&number) = self.numbers.get(key) {
            return Some(number);
        }
        let number = u32::try_from(self.keys.len()).ok().filter(|&number| number < u32::MAX - 1)?;
        let key = K::from(key);
        self.keys.push(key.clone());
        if let Entry::Vacant(slot) = self.numbers.entry(key) {
            slot.insert(number);
        }
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_count_what_is_below() {
        let ids = [0u32, 1, 63, 64, 65, 511, 512, 513, 100_000];
        let mut ranks = Ranks::default();
        ids.iter().rev().for_each(|&id| ranks.insert(id));
        assert_eq!((ranks.count(), ranks.max()), (ids.len(), Some(100_000)));
        assert!(ids.iter().enumerate().all(|(rank, &id)| ranks.rank(id) == rank as u32));
        assert!(ranks.iter().eq(ids.iter().map(|&id| u64::from(id))));
        assert!(ranks.contains(513) && !ranks.contains(514) && !ranks.contains(u32::MAX));
    }
}
