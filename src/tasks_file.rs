//! Reads task graphs from JSON files, for `lapidary plan --tasks`.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use lapidary_planner::tasks::{Task, TaskGraph, Tensor, TensorId, TensorKind};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

pub use crate::error::TasksFileError;
use crate::error::{Error, Result};
use crate::plain_file;

/// The largest file that is read. A graph of a million operations takes about 100 MB.
const MOST_BYTES: u64 = 256 << 20;

/// Reads a task graph from a file.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read, [`Error::Tasks`] if it is not a valid task graph.
pub fn read(path: &Path) -> Result<TaskGraph> {
    let read = plain_file::read_text(path, MOST_BYTES);
    let text = read.map_err(Error::io("read the task graph", path))?;
    parse(&text).map_err(|reason| Error::Tasks { path: path.into(), reason })
}

/// Reads a task graph from JSON.
///
/// # Errors
/// [`TasksFileError`].
pub fn parse(text: &str) -> std::result::Result<TaskGraph, TasksFileError> {
    let file: TasksFile = serde_json::from_str(text).map_err(|reason| TasksFileError::Json { reason })?;
    let made: std::collections::HashSet<&str> =
        file.ops.iter().flat_map(|op| op.outputs.iter().map(String::as_str)).collect();
    let tensors: Vec<Tensor> = file
        .tensors
        .iter()
        .map(|t| {
            let kind = match t.kind {
                Some(KindName::Constant) => TensorKind::Constant,
                Some(KindName::Fresh) => TensorKind::Fresh,
                Some(KindName::Local) => TensorKind::Local,
                None if made.contains(t.name.as_str()) => TensorKind::Local,
                None => TensorKind::Constant,
            };
            Tensor { name: t.name.as_str().into(), bytes: t.bytes, kind, publish: t.publish }
        })
        .collect();
    let mut ids: HashMap<&str, TensorId> = HashMap::new();
    for (i, t) in file.tensors.iter().enumerate() {
        // If a name occurs twice, `TaskGraph::new` reports it.
        ids.insert(&t.name, TensorId(u32::try_from(i).unwrap_or(u32::MAX)));
    }
    let mut ops = Vec::with_capacity(file.ops.len());
    for op in &file.ops {
        let id = |tensor: &String| {
            let unknown = || TasksFileError::UnknownTensor { op: op.name.clone(), tensor: tensor.clone() };
            ids.get(tensor.as_str()).copied().ok_or_else(unknown)
        };
        ops.push(Task {
            name: op.name.as_str().into(),
            inputs: op.inputs.iter().map(id).collect::<std::result::Result<_, TasksFileError>>()?,
            outputs: op.outputs.iter().map(id).collect::<std::result::Result<_, TasksFileError>>()?,
            next: op
                .next
                .0
                .iter()
                .map(|(y, x)| Ok((id(y)?, id(x)?)))
                .collect::<std::result::Result<_, TasksFileError>>()?,
        });
    }
    Ok(TaskGraph::new(tensors, ops)?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TasksFile {
    tensors: Vec<TensorEntry>,
    ops: Vec<OpEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TensorEntry {
    name: String,
    bytes: u64,
    kind: Option<KindName>,
    #[serde(default)]
    publish: bool,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum KindName {
    Constant,
    Fresh,
    Local,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OpEntry {
    name: String,
    inputs: Vec<String>,
    outputs: Vec<String>,
    #[serde(default)]
    next: Pairs,
}

/// A JSON object as a list of pairs, so that a repeated key is not lost.
#[derive(Default)]
struct Pairs(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object {\"output\": \"input\"}")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests {
    use lapidary_planner::tasks::TaskError;

    use super::*;

    #[test]
    fn kinds_follow_from_the_ops() {
        let graph = parse(
            r#"{"tensors":[{"name":"x","bytes":3},{"name":"h","bytes":2,"kind":"fresh"},{"name":"y","bytes":3,"publish":true}],
                "ops":[{"name":"f","inputs":["x","h"],"outputs":["y"],"next":{"y":"x"}}]}"#,
        )
        .expect("the graph is good");
        let kinds: Vec<TensorKind> = graph.tensors().iter().map(|t| t.kind).collect();
        assert_eq!(kinds, [TensorKind::Constant, TensorKind::Fresh, TensorKind::Local]);
        assert_eq!(graph.next_value(TensorId(0)), Some(TensorId(2)));
        assert!(graph.tensors()[2].publish);
    }

    #[test]
    fn a_repeated_key_of_next_is_found() {
        let text = r#"{"tensors":[{"name":"x","bytes":3},{"name":"z","bytes":3},{"name":"y","bytes":3}],
            "ops":[{"name":"f","inputs":["x","z"],"outputs":["y"],"next":{"y":"x","y":"z"}}]}"#;
        assert!(matches!(parse(text), Err(TasksFileError::Graph(TaskError::WrongNext { .. }))));
    }
}
