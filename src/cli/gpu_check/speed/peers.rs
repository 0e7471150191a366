//! PyTorch, PyTorch Geometric and cuSPARSE on the same graphs, if Python has them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::budget::Budget;
use super::super::goals::text;
use super::super::section::{Finished, Row, Section};
use super::super::shapes::{self, Graphs, SHAPES, Shape};
use super::super::{Scope, Size};
use super::NEXT;
use crate::cli::failure;
use crate::error::{Error, Result};

/// The program that times the others.
const SCRIPT: &str = include_str!("gpu_peers.py");

/// Seconds that the program may take beyond its budget, for the work that is running then.
const GRACE_S: f64 = 60.0;

/// Whether there is something to compare with.
pub(in super::super) enum Peers {
    /// The Python that has PyTorch, and its version.
    Found { python: PathBuf, version: String },
    /// Why nothing is compared.
    Missing(String),
}

impl Peers {
    /// Asks the Python of `PYTHON`, by default `python3`, for a PyTorch that sees the GPU.
    pub(in super::super) fn find() -> Self {
        const QUESTION: &str = "import torch; assert torch.cuda.is_available(); print(torch.__version__)";
        let python = PathBuf::from(std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into()));
        match Command::new(&python).args(["-W", "ignore", "-c", QUESTION]).output() {
            Ok(output) if output.status.success() => {
                let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
                Self::Found { python, version }
            }
            Ok(_) => Self::Missing(format!("{} has no PyTorch that sees the GPU", python.display())),
            Err(error) => Self::Missing(format!("{} does not run: {error}", python.display())),
        }
    }
}

/// Measures the others, if there are any. Writes the graphs into a temporary folder for that time. That another program
/// fails is not a failure of the check.
pub(in super::super) fn others(scope: &Scope, graphs: &Graphs, peers: &Peers, budget: Budget) -> Finished {
    let mut section = Section::new(scope, "peers", 1, NEXT, Some(budget));
    match peers {
        Peers::Missing(why) => section.add("all", Row::NotHere(format!("{why}; PYTHON names another one"))),
        Peers::Found { python, .. } => {
            let mut answer = None;
            section.row("all", || {
                Ok(match ask(scope, graphs, python, budget) {
                    Ok((answered, ended)) => {
                        answer = Some(answered);
                        ended.map_or_else(|| Row::new(json!({})), Row::NotHere)
                    }
                    Err(error) => Row::NotHere(failure::in_one_line(&error)),
                })
            });
            answer.iter().for_each(|answer| add(&mut section, answer));
        }
    }
    section.finish()
}

/// Adds the program's answer row by row.
fn add(section: &mut Section<'_>, answer: &Value) {
    for kind in ["epochs", "gathers"] {
        for row in answer[kind]["rows"].as_array().into_iter().flatten() {
            let what = if kind == "epochs" { &row["network"] } else { &row["width"] };
            let name = format!("{kind} {} {what} {}", text(&row["shape"]), text(&row["peer"]));
            section.add(&name, Row::new(row.clone()));
        }
        for name in answer[kind]["left_out"].as_array().into_iter().flatten() {
            section.leave_out(&format!("{kind} {}", text(name)), "no time was left");
        }
    }
}

/// Returns what the program measured, and why it ended if it did not end by itself.
fn ask(scope: &Scope, graphs: &Graphs, python: &Path, budget: Budget) -> Result<(Value, Option<String>)> {
    let folder = tempfile::tempdir().map_err(Error::io("make", std::env::temp_dir()))?;
    write_graphs(&folder, graphs)?;
    let script = folder.path().join("gpu_peers.py");
    std::fs::write(&script, SCRIPT).map_err(Error::io("write", &script))?;
    let mut command = Command::new(python);
    command.args(["-W", "ignore"]).arg(&script).arg(folder.path()).arg(format!("{:.0}", budget.left_s()));
    command.env("CUDA_VISIBLE_DEVICES", visible(scope.gpu)).stdout(Stdio::null());
    let said = folder.path().join("stderr");
    command.stderr(File::create(&said).map_err(Error::io("make", &said))?);
    let child = command.spawn().map_err(Error::io("run", python))?;
    let most = Duration::from_secs_f64(budget.left_s() + GRACE_S);
    let status = wait(child, most).map_err(Error::io("wait for", python))?;
    let said = std::fs::read(&said).map_err(Error::io("read", &said))?;
    let ended = (!status.success()).then(|| how_it_ended(status, &String::from_utf8_lossy(&said)));
    let path = folder.path().join("peers.json");
    let answer = std::fs::read(&path).map_err(Error::io("read", &path))?;
    let answer = serde_json::from_slice(&answer).map_err(|error| Error::io("read", &path)(error.into()))?;
    Ok((answer, ended))
}

/// Says how the program ended, with the last line that it wrote.
fn how_it_ended(status: ExitStatus, said: &str) -> String {
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    format!("the rest: the program that times the others ended with {status}: {last}")
}

/// Returns the value of `CUDA_VISIBLE_DEVICES` with which the only GPU is number `gpu` of this process.
fn visible(gpu: u32) -> String {
    let here = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let named = here.and_then(|list| list.split(',').nth(gpu as usize).map(|name| name.trim().to_owned()));
    named.unwrap_or_else(|| gpu.to_string())
}

/// Waits for a process, and ends it when its time is over. What it has written until then is kept.
fn wait(mut child: Child, most: Duration) -> std::io::Result<ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if start.elapsed() >= most {
            child.kill()?;
            return child.wait();
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Writes the measured graphs, and `graphs.json` with the widths and networks of each.
fn write_graphs(folder: &TempDir, graphs: &Graphs) -> Result<()> {
    let row = |shape: &Shape| json!({ "shape": shape.name, "widths": shape.widths, "networks": shape.networks });
    let list: Vec<Value> = SHAPES.iter().map(|shape| row(shape)).collect();
    SHAPES.iter().try_for_each(|shape| shapes::write(folder.path(), shape.name, &graphs.of(shape)))?;
    let path = folder.path().join("graphs.json");
    std::fs::write(&path, json!(list).to_string()).map_err(Error::io("write", &path))
}

/// Returns the bytes that the graphs take on disk.
pub(in super::super) fn graph_bytes(size: Size) -> ByteSize {
    let bytes = SHAPES.iter().map(|shape| 4 * shape.edges as u64 + 8 * shape.vertices as u64).sum::<u64>();
    ByteSize::b(bytes / size.divisor() as u64)
}
