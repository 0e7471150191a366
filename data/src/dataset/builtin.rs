//! Built-in datasets, and the dataset names of the command line.

use std::path::Path;

use super::Dataset;
use super::arrays::Arrays;
use super::error::{Error, Result};
use super::generate::{PlantedOptions, planted};

/// What the names of built-in datasets begin with on the command line.
const PREFIX: &str = "builtin:";

/// The built-in datasets.
const NAMES: [&str; 2] = ["karate", "planted"];

/// The 78 friendships of the club, each listed once. Members are numbered from 0.
const KARATE_TIES: [(u32, &[u32]); 26] = [
    (0, &[1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 17, 19, 21, 31]),
    (1, &[2, 3, 7, 13, 17, 19, 21, 30]),
    (2, &[3, 7, 8, 9, 13, 27, 28, 32]),
    (3, &[7, 12, 13]),
    (4, &[6, 10]),
    (5, &[6, 10, 16]),
    (6, &[16]),
    (8, &[30, 32, 33]),
    (9, &[33]),
    (13, &[33]),
    (14, &[32, 33]),
    (15, &[32, 33]),
    (18, &[32, 33]),
    (19, &[33]),
    (20, &[32, 33]),
    (22, &[32, 33]),
    (23, &[25, 27, 29, 32, 33]),
    (24, &[25, 27, 31]),
    (25, &[31]),
    (26, &[29, 33]),
    (27, &[33]),
    (28, &[31, 33]),
    (29, &[32, 33]),
    (30, &[32, 33]),
    (31, &[32, 33]),
    (32, &[33]),
];

/// The members who went with the instructor when the club split.
const KARATE_INSTRUCTORS: [usize; 17] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 16, 17, 19, 21];

impl Dataset {
    /// Returns a dataset that needs no file.
    ///
    /// - `karate`: the 34 members of a karate club and their 78 friendships. The class is the faction that a member
    ///   joined when the club split (0: the instructor's, 1: the president's). The feature matrix is the identity.
    /// - `planted`: a graph of 3,000 vertices in 7 planted classes with weak features. It is generated in milliseconds,
    ///   and is always the same.
    ///
    /// # Errors
    /// [`Error::Builtin`] for any other name.
    /// # Source
    /// W. W. Zachary, "An information flow model for conflict and fission in small groups", 1977.
    pub fn builtin(name: &str) -> Result<Self> {
        match name {
            "karate" => karate(),
            "planted" => planted(&PlantedOptions::default()),
            other => Err(Error::Builtin { name: other.into() }),
        }
    }

    /// Loads a dataset by its name on the command line: `builtin:karate`, `builtin:planted` or a directory.
    ///
    /// # Errors
    /// Those of [`Dataset::builtin`] and [`Dataset::open`]; [`Error::Option`] for the bare name of a built-in dataset, if there is
    /// no directory of that name.
    pub fn load(spec: &str) -> Result<Self> {
        match spec.strip_prefix(PREFIX) {
            Some(name) => Self::builtin(name),
            None if NAMES.contains(&spec) && !Path::new(spec).exists() => {
                let expected =
                    format!("a folder, but there is no such folder; the built-in graph is {PREFIX}{spec}").into();
                Err(Error::Option { option: "the path of the dataset", found: spec.into(), expected })
            }
            None => Self::open(spec),
        }
    }

    /// Returns whether [`Dataset::load`] takes this for the name of a built-in dataset, and not for a directory.
    pub fn is_builtin(spec: &str) -> bool {
        spec.starts_with(PREFIX)
    }
}

fn karate() -> Result<Dataset> {
    const MEMBERS: usize = 34;
    let edges: Vec<(u32, u32)> =
        KARATE_TIES.iter().flat_map(|&(u, friends)| friends.iter().flat_map(move |&v| [(u, v), (v, u)])).collect();
    let mut labels = [1i64; MEMBERS];
    for member in KARATE_INSTRUCTORS {
        labels[member] = 0;
    }
    let (train, val) = ([0i64, 33], [3i64, 10, 24, 30]);
    let test: Vec<i64> = (0..MEMBERS as i64).filter(|id| !train.contains(id) && !val.contains(id)).collect();
    let offsets: Vec<u64> = (0..=MEMBERS as u64).collect();
    let columns: Vec<u32> = (0..MEMBERS as u32).collect();
    Dataset::from_arrays(
        Arrays::edges(MEMBERS, &edges)
            .name("karate")
            .directed(false)
            .sparse_features(offsets, columns, vec![1f32; MEMBERS], MEMBERS)
            .labels(&labels)
            .train(&train)
            .val(&val)
            .test(&test)
            .source("W. W. Zachary, An information flow model for conflict and fission in small groups, 1977"),
    )
}
