//! A cost model as a JSON file.

use serde::{Deserialize, Serialize};

use crate::feature::{FEATURES, Features};
use crate::model::{CostModel, Learned};
use crate::op::{Operation, Weights};
use crate::profile::{Profile, ProfileError};
use crate::sample::{self, Sample};

/// The first field of a file, without the version.
const FORMAT: &str = "lapidary cost model ";

/// The version that is written and read.
const VERSION: u64 = 1;

/// Why a file is not a valid cost model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file is not JSON, or not the JSON of a cost model.
    #[error("this is no cost model")]
    Json(#[from] serde_json::Error),
    /// A newer version of this program wrote the file.
    #[error(
        "the cost model is of version {found}, and this program reads versions up to {newest}: update Lapidary to read it"
    )]
    Newer {
        /// The version of the file.
        found: u64,
        /// The newest version that can be read.
        newest: u64,
    },
    /// The file is of another format, or of a version that learned from other features.
    #[error("the cost model's {what} is `{found}`, expected `{expected}`")]
    Version {
        /// `format` or `list of features`.
        what: &'static str,
        /// The value in the file.
        found: String,
        /// The value that this version writes.
        expected: String,
    },
    /// The profile is invalid.
    #[error("the cost model's profile cannot be used")]
    Profile(#[from] ProfileError),
    /// An operation is invalid.
    #[error("the cost model's operation `{op}` has {what}")]
    Operation {
        /// The operation's name.
        op: String,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// The field with the version.
#[derive(Deserialize)]
struct Stated {
    format: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    features: Vec<String>,
    profile: Profile,
    ops: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    op: Operation,
    per_call_s: f64,
    per_feature_s: [f64; FEATURES.len()],
    samples: Vec<Sample<Features>>,
}

impl CostModel {
    /// Returns the model in the format that [`CostModel::from_json`] reads. Every number is exact to the last bit.
    ///
    /// # Panics
    /// Never: the file has only numbers and names.
    pub fn to_json(&self) -> String {
        let entry = |(op, learned): (&Operation, &Learned)| Entry {
            op: op.clone(),
            per_call_s: learned.weights.per_call_s,
            per_feature_s: learned.weights.per_feature_s,
            samples: learned.samples.clone(),
        };
        let ops = self.ops.iter().map(entry).collect();
        let file = File { format: format(VERSION), features: names(), profile: self.profile.clone(), ops };
        serde_json::to_string(&file).expect("numbers and names are JSON")
    }

    /// Reads a model. The file is not trusted: anything that [`CostModel::to_json`] would not write is rejected.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn from_json(json: &str) -> Result<Self, FileError> {
        // First: a newer version may have other fields.
        let Stated { format: found } = serde_json::from_str(json)?;
        match found.strip_prefix(FORMAT).and_then(|version| version.parse().ok()) {
            Some(found) if found > VERSION => return Err(FileError::Newer { found, newest: VERSION }),
            _ => expect("format", found, format(VERSION))?,
        }
        let file: File = serde_json::from_str(json)?;
        expect("list of features", file.features.join(", "), names().join(", "))?;
        let mut model = Self::new(file.profile)?;
        for Entry { op, per_call_s, per_feature_s, samples } in file.ops {
            let bad = |what| Err(FileError::Operation { op: op.name.clone(), what });
            if per_feature_s.iter().chain([&per_call_s]).any(|weight| !(weight.is_finite() && *weight >= 0.0)) {
                return bad("a weight that is negative or not finite");
            }
            if !samples.iter().all(Sample::is_valid) {
                return bad("a sample without seconds, with too many, or with some that are not above 0");
            }
            if samples.len() > sample::MOST {
                return bad("more samples than a model keeps");
            }
            if model.ops.contains_key(&op) {
                return bad("two entries");
            }
            model.ops.insert(op, Learned { weights: Weights { per_call_s, per_feature_s }, samples });
        }
        Ok(model)
    }
}

fn format(version: u64) -> String {
    format!("{FORMAT}{version}")
}

fn names() -> Vec<String> {
    FEATURES.map(|feature| feature.name().to_owned()).to_vec()
}

fn expect(what: &'static str, found: String, expected: String) -> Result<(), FileError> {
    if found == expected { Ok(()) } else { Err(FileError::Version { what, found, expected }) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::op::Work;

    fn model(samples: &[(u64, f64)]) -> CostModel {
        let mut model = CostModel::new(Profile::named("h200").expect("it is built in")).expect("its rates are good");
        for &(count, seconds) in samples {
            let ops = [
                Operation::new("gather", Work::Gather { width: 41 }),
                Operation::new("linear", Work::Product { k: 602, m: 16 }),
            ];
            for op in ops {
                let features = [count / 9, count, count / 2, count / 3, u64::MAX - count, 0, count, count / 4];
                model.observe(&op, &features, seconds).expect("it is a number");
            }
        }
        model.refit();
        model
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn a_round_trip_is_exact(samples in proptest::collection::vec((0u64..1 << 60, 1e-300f64..1e300), 0..20)) {
            let model = model(&samples);
            let json = model.to_json();
            let read = CostModel::from_json(&json).expect("it reads what it writes");
            prop_assert_eq!(read.to_json(), json);
            prop_assert_eq!(read, model);
        }

        #[test]
        fn a_corrupted_file_is_one_error_or_a_good_model(at in 0usize..10_000, byte in 0x20u8..0x7f) {
            let mut json = model(&[(1000, 1e-3), (5000, 4e-3)]).to_json().into_bytes();
            let at = at % json.len();
            json[at] = byte;
            let json = String::from_utf8(json).expect("it is ASCII");
            match CostModel::from_json(&json) {
                Err(error) => prop_assert!(!error.to_string().is_empty()),
                // A changed digit gives another model, which must still be usable and writable.
                Ok(read) => prop_assert_eq!(CostModel::from_json(&read.to_json()).expect("it is good"), read),
            }
        }
    }

    #[test]
    fn what_no_model_has_is_refused() {
        let json = model(&[(1000, 1e-3)]).to_json();
        CostModel::from_json(&json).expect("it is whole");
        let broken = |from: &str, to: &str| {
            assert!(json.contains(from), "{from} is not in {json}");
            CostModel::from_json(&json.replacen(from, to, 1)).expect_err("it is broken").to_string()
        };
        assert!(broken("model 1", "model 2").contains("version 2, and this program reads versions up to 1: update"));
        assert!(broken("model 1", "model 0").contains("format"));
        assert!(broken("lapidary cost model 1\"", "lapidary cost model 7\",\"later\":1").contains("version 7"));
        assert!(broken("\"runs\"", "\"walks\"").contains("list of features"));
        assert!(broken("\"launch_s\":5e-6", "\"launch_s\":0").contains("profile"));
        assert!(broken("\"per_call_s\":", "\"per_call_s\":-").contains("a weight"));
        assert!(broken("[0.001]", "[]").contains("a sample"));
        assert!(broken("[0.001]", "[-0.001]").contains("a sample"));
        assert!(broken("[0.001]", "[1e999]").contains("no cost model"));
        assert!(broken("\"width\":41", "\"width\":-41").contains("no cost model"));
        assert!(broken("\"profile\"", "\"extra\":1,\"profile\"").contains("no cost model"));
        assert!(CostModel::from_json(&json[..json.len() / 2]).is_err());
        let (head, tail) = json.split_once("{\"op\"").expect("it has operations");
        let (first, _) = tail.split_once(",{\"op\"").expect("it has two");
        let twice = format!("{head}{{\"op\"{first},{{\"op\"{first}]}}");
        assert!(CostModel::from_json(&twice).expect_err("it is there twice").to_string().contains("two entries"));
    }
}
