//! What can be wrong with a file of tasks.

use lapidary_planner::tasks::TaskError;

/// Why a file holds no task graph.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TasksFileError {
    /// It is not JSON of the right form.
    #[error(
        "{reason}; expected {{\"tensors\": [{{\"name\", \"bytes\", ..}}], \"ops\": [{{\"name\", \"inputs\", \"outputs\", ..}}]}}"
    )]
    Json {
        /// What the parser says, with line and column.
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
    /// The tensors and ops are no task graph.
    #[error(transparent)]
    Graph(#[from] TaskError),
}
