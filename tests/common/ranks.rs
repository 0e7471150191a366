//! Ranks that are threads of the test, and what their runs write.

use std::collections::BTreeMap;
use std::path::Path;

use lapidary::{Devices, Partition, Ranks, RunOptions};

/// Runs `work` on each of `count` ranks, and returns the results by rank.
pub fn on_ranks<T: Send>(count: usize, work: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = Ranks::threads(count).into_iter().map(|ranks| scope.spawn(move || work(ranks))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Returns the options of a rank with so many simulated devices, whose parts have equal numbers of edges.
pub fn simulated(devices: usize, ranks: Ranks) -> RunOptions {
    RunOptions::new().devices(Devices::sim(devices)).partition(Partition::parse("edges").unwrap()).ranks(ranks)
}

/// Returns the bytes of all files of a checkpoint folder.
pub fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in folder.read_dir().unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        match entry.path() {
            path if path.is_dir() => all.extend(files(&path).into_iter().map(|(of, b)| (format!("{name}/{of}"), b))),
            path => drop(all.insert(name, std::fs::read(path).unwrap())),
        }
    }
    all
}
