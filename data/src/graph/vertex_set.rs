//! A set of vertices with ranks.

/// A set of vertices as a bitmap with ranks: 1.5 bits per vertex of the graph, whatever the number of members.
#[derive(Clone, Debug)]
pub struct VertexSet {
    words: Vec<u64>,
    // Invariant: entry `i` is the number of members below word `i`.
    ranks: Vec<u32>,
}

impl VertexSet {
    /// Makes a set of `vertices`, which may come in any order and repeat.
    ///
    /// # Cost
    /// O(n / 64 + vertices).
    /// # Panics
    /// If a vertex is not below `n`.
    pub fn of(n: usize, vertices: impl Iterator<Item = u32>) -> Self {
        let mut words = vec![0u64; n.div_ceil(64)];
        for v in vertices {
            words[v as usize / 64] |= 1 << (v % 64);
        }
        let mut below = 0;
        let ranks = words.iter().map(|word| {
            below += word.count_ones();
            below - word.count_ones()
        });
        Self { ranks: ranks.collect(), words }
    }

    /// Returns the number of members below `v`.
    pub fn rank(&self, v: usize) -> usize {
        let (word, bit) = (v / 64, v % 64);
        match self.words.get(word) {
            Some(bits) => self.ranks[word] as usize + (bits & ((1u64 << bit) - 1)).count_ones() as usize,
            None => self.words.last().map_or(0, |last| self.ranks[word - 1] as usize + last.count_ones() as usize),
        }
    }

    /// Returns the members, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.words.iter().enumerate().flat_map(|(word, &bits)| {
            let mut left = bits;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(word as u32 * 64 + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_count_the_members_below() {
        for n in [0usize, 1, 63, 64, 65, 128, 200] {
            let members: Vec<u32> = (0..n as u32).filter(|v| v % 3 == 1 || v % 64 == 63).collect();
            let set = VertexSet::of(n, members.iter().rev().chain(&members).copied());
            assert_eq!(set.iter().collect::<Vec<_>>(), members);
            for v in 0..=n {
                assert_eq!(set.rank(v), members.iter().filter(|&&m| (m as usize) < v).count(), "rank of {v} of {n}");
            }
        }
    }
}
