//! Everything that can go wrong, as one type.

mod lock_holder;
mod tasks_file;

use std::path::PathBuf;

use crate::dataset;
use crate::host::told_apart;
use crate::model::{ModelError, WeightsError};
use crate::program::{PassesError, ProgramError};

pub use lock_holder::LockHolder;
pub use tasks_file::TasksFileError;

/// The result of everything that a user calls.
pub type Result<T> = std::result::Result<T, Error>;

/// Why something failed: each message is one sentence that says what was found, what was expected, and what to do.
///
/// Messages use the words of the library: option `device_memory` is what a builder's method of that name sets. The command puts
/// its flags in their place.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A data set that cannot be read, made or written.
    #[error(transparent)]
    Dataset(#[from] dataset::Error),
    /// A model that cannot be built.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Weights that cannot be read, written or used.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A list of passes that was not understood.
    #[error(transparent)]
    Passes(#[from] PassesError),
    /// An option with a value that it cannot have.
    #[error("option `{option}` cannot be `{value}`: {expected}")]
    Value {
        /// The name of the method or field that sets it.
        option: &'static str,
        /// Its value.
        value: String,
        /// What it could be.
        expected: String,
    },
    /// The data set lacks something that the work needs.
    #[error("the data set `{dataset}` has no {what}; {needed_by}")]
    DataLacks {
        /// Its name.
        dataset: String,
        /// What is missing.
        what: &'static str,
        /// What needs it.
        needed_by: &'static str,
    },
    /// Labels outside what the model can tell apart.
    #[error("the data set `{dataset}` has {data} classes, but the model makes {model}")]
    ClassCount {
        /// The data set's name.
        dataset: String,
        /// Its classes.
        data: usize,
        /// The model's last width.
        model: usize,
    },
    /// The device has too little memory.
    #[error("{device} has {}; give it more memory, or make the model narrower", shortage(*.have_bytes, *.need_bytes))]
    DoesNotFit {
        /// Which device.
        device: String,
        /// What is needed.
        need_bytes: u64,
        /// What there is.
        have_bytes: u64,
    },
    /// A device call failed.
    #[error("{device}: {op} failed")]
    Device {
        /// Which device.
        device: String,
        /// What it was doing.
        op: String,
        /// Why.
        source: Box<lapidary_kernels::Error>,
    },
    /// GPUs were asked for, and the driver cannot even say which there are.
    #[error("option `{option}` is `{value}`, but no GPU can be found; {instead}")]
    NoGpus {
        /// As in [`Error::Value`].
        option: &'static str,
        /// Its value.
        value: String,
        /// What does without.
        instead: String,
        /// Why.
        source: Box<lapidary_kernels::Error>,
    },
    /// Devices whose rows cannot go straight from one to the other.
    #[error(
        "option `exchange` cannot be `peer`, which needs devices that reach each other's memory: {why}; choose `auto` or `host`"
    )]
    Unreachable {
        /// Which cannot.
        why: String,
    },
    /// Some of a GPU's checks did not pass.
    #[error("the GPU did not pass: {parts}; the results say what was wrong")]
    CheckFailed {
        /// Which.
        parts: String,
    },
    /// Checks of a GPU that there was no time for. The others passed.
    #[error("the check of the GPU is incomplete: there was no time for all of {parts}")]
    CheckIncomplete {
        /// In which parts something is missing.
        parts: String,
    },
    /// A file that holds no ranges.
    #[error("{} holds no partition: {why}", path.display())]
    PartitionFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Ranges that do not cut the graph at hand into a part for each device.
    #[error("these parts do not fit: {why}; parts are one range a device, each beginning where the one before ends")]
    Parts {
        /// What is wrong.
        why: String,
    },
    /// Gradients that no step has kept.
    #[error("there are no gradients yet; build the trainer with `keep_gradients(true)` and run a step first")]
    NoGradients,
    /// A worker failed earlier, and said why.
    #[error("the workers have stopped after an earlier failure; start the run anew")]
    WorkersGone,
    /// A file that is no device profile.
    #[error("{} cannot be used", path.display())]
    Profile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: lapidary_cost_model::ProfileError,
    },
    /// A file of a checkpoint that is no cost model.
    #[error("{} cannot be used; delete it, and its line in B3SUMS, to learn anew", path.display())]
    CostModel {
        /// The file.
        path: PathBuf,
        /// Why.
        source: lapidary_cost_model::FileError,
    },
    /// Training went wrong numerically.
    #[error("the loss of epoch {epoch} is {loss}; training diverged, so try a smaller learning rate")]
    Diverged {
        /// Which epoch.
        epoch: u64,
        /// Its loss.
        loss: f64,
    },
    /// The first forward pass went wrong numerically, before any training.
    #[error(
        "the loss is {loss} before anything was trained; features or weights are too large for f32, so scale them down"
    )]
    NotFiniteAtStart {
        /// The loss.
        loss: f64,
    },
    /// A checkpoint that cannot be read or written.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A folder that holds no checkpoint.
    #[error("{} holds no checkpoint; expected `best/` or `epoch-<N>/`, or one of those folders itself", path.display())]
    NoCheckpoint {
        /// The folder.
        path: PathBuf,
    },
    /// A folder that holds the checkpoints of an earlier run.
    #[error("{} holds the checkpoints of a run up to epoch {epoch}; name another folder, or resume that run", path.display())]
    CheckpointInTheWay {
        /// The folder.
        path: PathBuf,
        /// The newest epoch.
        epoch: u64,
    },
    /// A checkpoint folder that another run writes into.
    #[error("{} is in use by {}; {remedy}", path.display(),
        holder.as_ref().map_or_else(|| "another run".into(), ToString::to_string))]
    FolderInUse {
        /// The folder.
        path: PathBuf,
        /// Which run, if its lock says.
        holder: Option<LockHolder>,
        /// What to do.
        remedy: String,
    },
    /// A checkpoint whose files are not those that were written.
    #[error("{} {why}; use another checkpoint, or weights from elsewhere", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Data that is not what a checkpoint was trained on.
    #[error("{}: the checkpoint was trained on other {what} than the data set `{dataset}` has now; \
        put the data back as it was, or begin a new run in another folder", path.display())]
    DataChanged {
        /// The run record.
        path: PathBuf,
        /// The data set's name.
        dataset: String,
        /// What changed: `graph`, `features`, `labels`, `splits`, or several of them.
        what: String,
    },
    /// A run record that is not what this version writes.
    #[error("{} is not a run record of this version", path.display())]
    RunRecord {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// A checkpoint of another run than the one to be resumed.
    #[error("{}: the checkpoint was made with {what} {saved}, but this run has {asked}", path.display())]
    OtherRun {
        /// The run record.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// In the checkpoint.
        saved: String,
        /// In this run.
        asked: String,
    },
    /// A file that holds no task graph.
    #[error("{} holds no task graph: {reason}", path.display())]
    Tasks {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: TasksFileError,
    },
    /// A plan that does not pass the check that every plan passes before it is used.
    #[error("the plan of policy `{policy}` is wrong, which is a bug of this program: {reason}")]
    PlanBroken {
        /// The policy.
        policy: &'static str,
        /// The rule that it breaks.
        reason: String,
    },
    /// A checkpoint of a model that is the user's own.
    #[error("the checkpoint is of the model `{name}`, which is not built in; open it with Predictor::open_with")]
    CustomModel {
        /// The model.
        name: String,
    },
}

/// What there is and what is needed; the latter in bytes as well, since that much is enough.
fn shortage(have_bytes: u64, need_bytes: u64) -> String {
    let [have, need] = told_apart(have_bytes, need_bytes);
    let exact = if need.ends_with(" bytes") { String::new() } else { format!(" ({need_bytes} bytes)") };
    format!("{have} of memory, but this needs {need}{exact}")
}

impl From<ProgramError> for Error {
    fn from(error: ProgramError) -> Self {
        Self::Model(error.into())
    }
}
