//! Times kernels, and prints each time beside the least time that this machine could take.

use std::time::Instant;

use super::machine::Machine;

/// The least work of a kernel: the bytes of its operands and results, each counted once, and its floating-point
/// operations.
#[derive(Clone, Copy)]
pub struct WorkCount {
    pub bytes: u64,
    pub flops: u64,
}

/// The requested benchmarks, and the rates of the machine.
pub struct Report {
    machine: Machine,
    words: Vec<String>,
    timed: bool,
}

impl Report {
    /// Parses the command line: words that select kernels, and cargo's `--bench`. Without `--bench`, every kernel runs
    /// only once.
    pub fn new(words: Vec<String>) -> Self {
        let (flags, words): (Vec<_>, Vec<_>) = words.into_iter().partition(|word| word.starts_with("--"));
        let timed = flags.iter().any(|flag| flag == "--bench");
        let machine = Machine::measure(timed);
        let report = Self { machine, words, timed };
        match report.timed && flags.iter().any(|flag| flag == "--json") {
            true => println!("{}", report.machine.json()),
            false => report.head(),
        }
        report
    }

    fn head(&self) {
        println!("{}\n", self.machine);
        println!("| kernel | shape | ms | fastest - slowest | GB/s | GFLOP/s | floor ms | of the floor |");
        println!("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    }

    /// Whether this kernel was requested.
    pub fn wants(&self, kernel: &str) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| kernel.contains(word.as_str()))
    }

    /// Prints one line: the median of 11 runs, the rates of `work`, and floor time over median. The latter is above 1
    /// if a cache had data that the floor reads from memory.
    pub fn time(&self, kernel: &str, shape: &str, work: WorkCount, mut run: impl FnMut()) {
        let once = || {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64()
        };
        let mut seconds: Vec<f64> = std::iter::repeat_with(once).take(if self.timed { 11 } else { 1 }).collect();
        seconds.sort_by(f64::total_cmp);
        let [fastest, median, slowest] = [0, seconds.len() / 2, seconds.len() - 1].map(|i| seconds[i]);
        let floor = self.machine.floor_s(work);
        println!(
            "| {kernel} | {shape} | {:.2} | {:.2} - {:.2} | {:.1} | {:.1} | {:.2} | {:.2} |",
            median * 1e3,
            fastest * 1e3,
            slowest * 1e3,
            work.bytes as f64 / median / 1e9,
            work.flops as f64 / median / 1e9,
            floor * 1e3,
            floor / median
        );
    }
}
