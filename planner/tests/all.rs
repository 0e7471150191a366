//! The tests of the planner over many task graphs, as one program. A file of this folder is a module of it.

mod common;
#[path = "common/tiled.rs"]
mod tiled;
#[path = "common/training.rs"]
mod training;

mod advance;
mod checker;
mod exhaustive;
mod properties;
mod stays;
