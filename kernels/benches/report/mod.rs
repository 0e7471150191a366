//! Times kernels, and prints each beside the least time that this machine could take for it.

use std::time::Instant;

use super::machine::Machine;

/// The least that a kernel must do: the bytes of its operands and results, each once, and its floating-point operations.
#[derive(Clone, Copy)]
pub struct WorkCount {
    pub bytes: u64,
    pub flops: u64,
}

/// What was asked for, and the machine that it runs on.
pub struct Report {
    machine: Machine,
    words: Vec<String>,
    timed: bool,
}

impl Report {
    /// Of the command line: words that name kernels, and cargo's `--bench`, without which every kernel runs only once.
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

    /// Whether this kernel was asked for.
    pub fn wants(&self, kernel: &str) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| kernel.contains(word.as_str()))
    }

    /// Prints one line: the median of 11 runs, the rates of `work`, and the share of the floor that was reached: above
    /// 1 where a cache held what the floor reads from memory.
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
