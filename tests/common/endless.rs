//! Trainings that go on until something ends them.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::command::LAPIDARY;

/// A number of epochs that no test reaches.
pub const ENDLESS: &str = "100000000";

/// Returns a training without an end. All checkpoints in `dir` are kept, so that one that a test waits for does not go.
pub fn endless(data: &Path, dir: &Path) -> Command {
    let mut command = Command::new(LAPIDARY);
    command.args(["train", "--epochs", ENDLESS, "--keep", "0", "--data"]).arg(data).arg("--checkpoint").arg(dir);
    command
}

/// Starts a training of a small graph without an end, and returns it once it has written a checkpoint to `dir`.
pub fn started(dir: &Path) -> Child {
    let mut command = endless(Path::new("builtin:karate"), dir);
    command.args(["--checkpoint-every", "5"]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    wait_for(&mut child, &dir.join("epoch-00000005"));
    child
}

/// Waits until a path exists.
///
/// # Panics
/// If it does not come within five minutes, or if the process ends.
pub fn wait_for(child: &mut Child, path: &Path) {
    let start = Instant::now();
    while !path.exists() {
        assert!(start.elapsed() < Duration::from_secs(300), "{} never came", path.display());
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sends a signal, such as `-TERM`.
pub fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}
