//! The error type of this crate.

mod lock_holder;
mod not_finite;
mod tasks_file;

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use crate::dataset;
use crate::host::told_apart;
use crate::model::{ModelError, WeightsError};
use crate::program::{PassesError, ProgramError};

pub use lock_holder::LockHolder;
pub use not_finite::NotFinite;
pub use tasks_file::TasksFileError;

/// The result of all fallible public functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Parses the value of an option.
///
/// # Errors
/// [`Error::Value`], which says what the error of the parser says.
pub fn parse_option<T: FromStr<Err: Display>>(option: &'static str, text: &str) -> Result<T> {
    text.parse().map_err(|error: T::Err| Error::Value { option, value: text.into(), expected: error.to_string() })
}

/// Why something failed. Each message is one sentence that says what was found, what was expected, and what to do.
///
/// Messages name options of the library: option `device_memory` is set by the builder method of that name. The command
/// replaces option names by its flags.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A dataset cannot be read, made or written.
    #[error(transparent)]
    Dataset(#[from] dataset::Error),
    /// A model cannot be built.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Weights cannot be read, written or used.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A list of passes cannot be parsed.
    #[error(transparent)]
    Passes(#[from] PassesError),
    /// An option has an invalid value.
    #[error("option `{option}` cannot be `{value}`: {expected}")]
    Value {
        /// The name of the method or field that sets it.
        option: &'static str,
        /// The value.
        value: String,
        /// The values that are valid.
        expected: String,
    },
    /// An option that the model does not have.
    #[error("option `{option}` is for {models}, not for {model}")]
    NotForModel {
        /// The name of the method or field that sets it.
        option: &'static str,
        /// The model.
        model: String,
        /// The models that have it.
        models: &'static str,
    },
    /// The dataset lacks something that is needed.
    #[error("the dataset `{dataset}` has no {what}; {needed_by}")]
    DataLacks {
        /// The name of the dataset.
        dataset: String,
        /// What is missing.
        what: &'static str,
        /// What needs it.
        needed_by: &'static str,
    },
    /// The weights of a vertex's in-edges cannot be divided by.
    #[error(
        "the dataset `{dataset}`: the weights of the in-edges of vertex {vertex} add up to {sum}, but the model divides \
             by the sum, which has to be above 0; set option `edge_weights` to ignore, or take another norm"
    )]
    EdgeWeights {
        /// The name of the dataset.
        dataset: String,
        /// The vertex.
        vertex: usize,
        /// The sum, with the self-loop that the model adds.
        sum: f64,
    },
    /// The data and the model have different numbers of features.
    #[error("the dataset `{dataset}` has {data} features per vertex, but the model reads {model}")]
    FeatureWidth {
        /// The name of the dataset.
        dataset: String,
        /// Number of features of the data.
        data: usize,
        /// The first width of the model.
        model: usize,
    },
    /// The data and the model have different numbers of classes.
    #[error("the dataset `{dataset}` has {data} classes, but the model makes {model}")]
    ClassCount {
        /// The name of the dataset.
        dataset: String,
        /// Number of classes of the data.
        data: usize,
        /// The last width of the model.
        model: usize,
    },
    /// A device has too little memory.
    #[error("{device} has {}; give it more memory, or make the model narrower", shortage(*.have_bytes, *.need_bytes))]
    DoesNotFit {
        /// The device.
        device: String,
        /// The memory needed, in bytes.
        need_bytes: u64,
        /// The memory that the device has, in bytes.
        have_bytes: u64,
    },
    /// A device call failed.
    #[error("{device}: {op} failed")]
    Device {
        /// The device.
        device: String,
        /// The operation that failed.
        op: String,
        /// The cause.
        source: Box<lapidary_kernels::Error>,
    },
    /// GPUs were requested, but the driver cannot list them.
    #[error("option `{option}` is `{value}`, but no GPU can be found; {instead}")]
    NoGpus {
        /// As in [`Error::Value`].
        option: &'static str,
        /// Its value.
        value: String,
        /// An alternative that needs no GPU.
        instead: String,
        /// The cause.
        source: Box<lapidary_kernels::Error>,
    },
    /// Rows cannot be copied directly between the devices, since they do not reach each other's memory.
    #[error(
        "option `exchange` cannot be `peer` or `staged`, which need devices that reach each other's memory: {why}; \
         choose `auto` or `host`"
    )]
    Unreachable {
        /// The devices that cannot, and why.
        why: String,
    },
    /// A file does not contain vertex ranges.
    #[error("{} holds no partition: {why}", path.display())]
    PartitionFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The ranges do not split the graph into one part per device.
    #[error("these parts do not fit: {why}; give one range per device, each beginning where the previous one ends")]
    Parts {
        /// What is wrong with them.
        why: String,
    },
    /// No step has kept its gradients.
    #[error("there are no gradients yet; build the trainer with `keep_gradients(true)` and run a step first")]
    NoGradients,
    /// A worker failed in an earlier call, which returned the cause.
    #[error("the workers have stopped after an earlier failure; start the run again")]
    WorkersGone,
    /// Another rank of the job failed.
    #[error("rank {rank} on {host} failed: {message}")]
    OtherRank {
        /// The rank.
        rank: usize,
        /// The name of its machine.
        host: String,
        /// Its error.
        message: String,
    },
    /// A message of another rank cannot be used.
    #[error("rank {rank} sent a wrong message: {why}")]
    WrongLetter {
        /// The rank.
        rank: usize,
        /// What is wrong.
        why: String,
    },
    /// The ranks of a job were started with different settings or data.
    #[error("rank {rank} on {host} has another {what} than rank 0: {other}, not {first}; start all ranks alike")]
    RanksDiffer {
        /// What differs.
        what: &'static str,
        /// The first rank that differs.
        rank: usize,
        /// The name of its machine.
        host: String,
        /// The value on rank 0.
        first: String,
        /// The value on that rank.
        other: String,
    },
    /// A rank of another version has sent something.
    #[error("another rank of this job runs another version of this program; start the same one on all machines")]
    OtherVersion {
        /// The cause.
        source: serde_json::Error,
    },
    /// The process is one of several, but the program was built without MPI.
    #[error(
        "this process was started as rank {rank} of {count}, but the program was built without MPI; \
        install MPI (Debian: libopenmpi-dev openmpi-bin libclang-dev) and build it with the feature `mpi`"
    )]
    NoMpi {
        /// The rank.
        rank: usize,
        /// The number of ranks.
        count: usize,
    },
    /// The network between ranks is to be measured, but there is one rank.
    #[error("there is no network to measure, since this process is the only rank; start several ranks with mpirun")]
    Alone,
    /// MPI cannot be started.
    #[error("MPI cannot be started: {why}")]
    Mpi {
        /// The reason.
        why: String,
    },
    /// A file is not a valid device profile.
    #[error("{} cannot be used", path.display())]
    Profile {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: lapidary_cost_model::ProfileError,
    },
    /// A file of a checkpoint is not a valid cost model.
    #[error("{} cannot be used; delete it, and its line in B3SUMS, to learn anew", path.display())]
    CostModel {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: lapidary_cost_model::FileError,
    },
    /// Training diverged: the loss, a parameter or a moment of the optimizer is not finite.
    #[error("{what} in epoch {epoch}{}; training diverged, so try a smaller learning rate", origin(.first.as_deref()))]
    Diverged {
        /// The epoch.
        epoch: u64,
        /// What is not finite.
        what: String,
        /// Where a number first was not finite. `None` if another run of the epoch found none.
        first: Option<Box<NotFinite>>,
    },
    /// The loss of the first forward pass, or a weight before it, is not finite.
    #[error("{what} before training{}; features or weights are too large for f32, so scale them down",
        origin(.first.as_deref()))]
    NotFiniteAtStart {
        /// What is not finite.
        what: String,
        /// As in [`Error::Diverged`].
        first: Option<Box<NotFinite>>,
    },
    /// A file or folder cannot be read or written.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A folder contains no checkpoint.
    #[error("{} holds no checkpoint; it has neither `best/` nor an `epoch-<N>/`; name a folder that has one, or the folder of a checkpoint itself", path.display())]
    NoCheckpoint {
        /// The folder.
        path: PathBuf,
    },
    /// A folder contains the checkpoints of an earlier run.
    #[error("{} holds the checkpoints of a run up to {newest}; name another folder, or resume that run", path.display())]
    CheckpointInTheWay {
        /// The folder.
        path: PathBuf,
        /// The newest checkpoint, as in `epoch 3`.
        newest: String,
    },
    /// Another run uses the checkpoint folder.
    #[error("{} is in use by {}; {remedy}", path.display(),
        holder.as_ref().map_or_else(|| "another run".into(), ToString::to_string))]
    FolderInUse {
        /// The folder.
        path: PathBuf,
        /// The process of that run, if the lock names it.
        holder: Option<LockHolder>,
        /// The remedy.
        remedy: String,
    },
    /// A file of a checkpoint has changed since it was written, or is missing.
    #[error("{} {why}; use another checkpoint, or weights from elsewhere", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The data differs from the data that the checkpoint was trained on.
    #[error("{}: the checkpoint was trained on other {what} than the dataset `{dataset}` has now; \
        restore the data, or begin a new run in another folder", path.display())]
    DataChanged {
        /// The run record.
        path: PathBuf,
        /// The name of the dataset.
        dataset: String,
        /// What changed: `graph`, `features`, `labels`, `splits`, or several of them.
        what: String,
    },
    /// A model has a learned row for each vertex of another graph.
    #[error(
        "the model has learned a row for each vertex of {trained}, and has none for those of the dataset `{dataset}`: \
        {why}; use the graph that it was trained on, or a model that was trained on features"
    )]
    OtherGraph {
        /// The name of the dataset.
        dataset: String,
        /// The dataset that the model was trained on.
        trained: String,
        /// What differs.
        why: String,
    },
    /// A file is not a run record of this version.
    #[error("{} is not a run record of this version", path.display())]
    RunRecord {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
    /// A newer version of this program wrote a file, in a format that this one does not know.
    #[error(
        "{} is a {what} of version {found}, and this program reads versions up to {newest}: update Lapidary to read it",
        path.display()
    )]
    NewerFile {
        /// The file.
        path: PathBuf,
        /// The kind of file.
        what: &'static str,
        /// Its version.
        found: u64,
        /// The newest version that can be read.
        newest: u32,
    },
    /// A stage failed that prepares mini-batches.
    #[error("{stage} mini-batch {batch} of the epoch failed")]
    Batch {
        /// What was done.
        stage: &'static str,
        /// Number of the batch in its epoch, from 1.
        batch: u64,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A checkpoint was made with other settings than the run that resumes it.
    #[error("{}: the checkpoint has another {what} than this run: {saved}, not {asked}", path.display())]
    OtherRun {
        /// The run record.
        path: PathBuf,
        /// The setting that differs.
        what: &'static str,
        /// The value in the checkpoint.
        saved: String,
        /// The value in this run.
        asked: String,
    },
    /// A file does not contain a valid task graph.
    #[error("{} holds no task graph: {reason}", path.display())]
    Tasks {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: TasksFileError,
    },
    /// A plan fails the check that each plan must pass before it is used.
    #[error("the plan of policy `{policy}` is wrong, which is a bug of this program: {reason}")]
    PlanBroken {
        /// The policy.
        policy: &'static str,
        /// The rule that it breaks.
        reason: String,
    },
    /// A checkpoint is of a custom model, which has to be given when it is opened.
    #[error("the checkpoint is of the model `{name}`, which is not built in; open it with Predictor::open_with")]
    CustomModel {
        /// The name of the model.
        name: String,
    },
}

/// Formats where a number first was not finite, if that is known.
fn origin(first: Option<&NotFinite>) -> String {
    first.map(|first| format!(": {first}")).unwrap_or_default()
}

/// Formats the available and the needed memory. The needed memory is also given in bytes, since exactly that much is
/// enough.
fn shortage(have_bytes: u64, need_bytes: u64) -> String {
    let [have, need] = told_apart(have_bytes, need_bytes);
    let exact = if need.ends_with(" bytes") { String::new() } else { format!(" ({need_bytes} bytes)") };
    format!("{have} of memory, but this needs {need}{exact}")
}

impl Error {
    /// Returns a function for `map_err` that adds the action and the path to an I/O error.
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}

impl From<ProgramError> for Error {
    fn from(error: ProgramError) -> Self {
        Self::Model(error.into())
    }
}
