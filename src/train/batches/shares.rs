//! The shares of a batch: which part has which seeds.

use std::fmt;
use std::str::FromStr;

/// How the seeds of a batch are spread over the parts. With one part, both are the same.
///
/// A seed is *local* in the part that owns its vertex: the rows of its neighbours are likely to be there, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SeedShares {
    /// Each part has equally many seeds, or one more than others. As many as possible are local.
    #[default]
    Balanced,
    /// Each part has its local seeds: more or fewer than other parts, or none.
    Own,
}

/// The error of a text that is not the name of a [`SeedShares`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write balanced or own")]
pub struct ParseSeedSharesError;

impl FromStr for SeedShares {
    type Err = ParseSeedSharesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "balanced" => Ok(Self::Balanced),
            "own" => Ok(Self::Own),
            _ => Err(ParseSeedSharesError),
        }
    }
}

impl fmt::Display for SeedShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Balanced => "balanced",
            Self::Own => "own",
        })
    }
}

impl SeedShares {
    /// Returns the seeds of each part, in the order that they have in the batch. Part `p` owns the vertices from
    /// `starts[p]` to the next start.
    ///
    /// With [`SeedShares::Balanced`], a part keeps the first of its local seeds, as many as it may have. The others go to
    /// the parts that lack seeds, in the order of the batch and of the parts.
    ///
    /// # Cost
    /// O(seeds log parts).
    pub(super) fn split(self, seeds: &[u32], starts: &[usize]) -> Vec<Vec<u32>> {
        let parts = starts.len();
        // Of several parts with this start, only the last one has vertices.
        let owner = |seed: &u32| starts.partition_point(|&start| start <= *seed as usize) - 1;
        let mut part_of: Vec<usize> = seeds.iter().map(owner).collect();
        if self == Self::Balanced {
            let mut room: Vec<usize> =
                (0..parts).map(|part| seeds.len() * (part + 1) / parts - seeds.len() * part / parts).collect();
            let mut surplus = Vec::new();
            for (place, &part) in part_of.iter().enumerate() {
                match room[part] {
                    0 => surplus.push(place),
                    _ => room[part] -= 1,
                }
            }
            let lacking = (0..parts).flat_map(|part| std::iter::repeat_n(part, room[part]));
            surplus.into_iter().zip(lacking).for_each(|(place, part)| part_of[place] = part);
        }
        let mut shares = vec![Vec::new(); parts];
        seeds.iter().zip(part_of).for_each(|(&seed, part)| shares[part].push(seed));
        shares
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn surplus_seeds_move_to_parts_that_lack_some() {
        let seeds = [9, 1, 0, 2, 8, 3, 4];
        // The second part has no vertices.
        let starts = [0, 5, 5];
        assert_eq!(SeedShares::Own.split(&seeds, &starts), [vec![1, 0, 2, 3, 4], vec![], vec![9, 8]]);
        // They may have 2, 2 and 3: the seeds 2, 3 and 4 are surplus.
        assert_eq!(SeedShares::Balanced.split(&seeds, &starts), [vec![1, 0], vec![2, 3], vec![9, 8, 4]]);
        for shares in [SeedShares::Own, SeedShares::Balanced] {
            assert_eq!(shares.split(&seeds, &[0]), [seeds.to_vec()]);
            assert_eq!(shares.split(&[], &starts), vec![Vec::<u32>::new(); 3]);
            assert_eq!(shares.to_string().parse(), Ok(shares));
        }
        assert_eq!("even".parse::<SeedShares>(), Err(ParseSeedSharesError));
    }

    proptest! {
        #[test]
        fn each_seed_is_in_one_share_and_as_many_as_possible_are_local(
            seeds in proptest::collection::btree_set(0u32..100, 0..40),
            mut starts in proptest::collection::vec(0usize..101, 0..6),
            turn in 0usize..40,
        ) {
            starts.sort_unstable();
            starts.insert(0, 0);
            let mut seeds: Vec<u32> = seeds.into_iter().collect();
            let turn = turn % seeds.len().max(1);
            seeds.rotate_left(turn);
            let ends: Vec<usize> = starts[1..].iter().copied().chain([101]).collect();
            let is_local = |part: usize, seed: u32| (starts[part]..ends[part]).contains(&(seed as usize));
            let own: Vec<usize> =
                (0..starts.len()).map(|part| seeds.iter().filter(|&&seed| is_local(part, seed)).count()).collect();
            for shares in [SeedShares::Own, SeedShares::Balanced] {
                let split = shares.split(&seeds, &starts);
                let mut all = split.concat();
                all.sort_unstable();
                let mut want = seeds.clone();
                want.sort_unstable();
                prop_assert_eq!(all, want);
                for (part, share) in split.iter().enumerate() {
                    let place = |seed: u32| seeds.iter().position(|&other| other == seed);
                    prop_assert!(share.iter().map(|&seed| place(seed)).is_sorted());
                    let local = share.iter().filter(|&&seed| is_local(part, seed)).count();
                    match shares {
                        SeedShares::Own => prop_assert_eq!([share.len(), local], [own[part]; 2]),
                        SeedShares::Balanced => {
                            prop_assert!((seeds.len() / starts.len()..=seeds.len().div_ceil(starts.len())).contains(&share.len()));
                            prop_assert_eq!(local, own[part].min(share.len()));
                        }
                    }
                }
            }
        }
    }
}
