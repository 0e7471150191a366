//! Errors of task files.

use lapidary_planner::tasks::TaskError;

/// Why a file is not a valid task graph.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TasksFileError {
    /// The text is not JSON of the right form.
    #[error(
        "{reason}; expected {{\"tensors\": [{{\"name\", \"bytes\", ..}}], \"ops\": [{{\"name\", \"inputs\", \"outputs\", ..}}]}}"
    )]
    Json {
        /// The parser's error, with line and column.
        reason: serde_json::Error,
    },
    /// An op names a tensor that is not listed.
    #[error("op `{op}` names tensor `{tensor}`, which is not among the tensors")]
    UnknownTensor {
        /// The op.
        op: String,
        /// The tensor.
        tensor: String,
    },
    /// The tensors and ops do not form a task graph.
    #[error(transparent)]
    Graph(#[from] TaskError),
}
