//! Times gathers over a block of long rows, and over its edges stored window by window.

use std::time::Instant;

use lapidary_kernels::{MatMut, MatView, cpu};

use super::{Graph, Numbers, on_device};

/// Runs of each gather, in turns.
const ROUNDS: usize = 9;

/// Prints for each width the fastest and the median milliseconds of both gathers.
pub fn run() {
    let graph = Graph::power_law(58_000, 490.0);
    let (n, e) = (graph.rows(), graph.indices.len());
    let start = Instant::now();
    let windows = cpu::EdgeWindows::new(graph.view()).expect("the block is valid").expect("its rows are long");
    let stored = 1e3 * start.elapsed().as_secs_f64();
    let bytes = cpu::EdgeWindows::bytes([n, e, n]) as f64;
    println!("\n{n} rows, {e} edges; stored in {stored:.0} ms and {:.2} bytes per edge\n", bytes / e as f64);
    let weights = on_device(&Numbers(3).matrix(e, 1));
    println!(
        "| d | weights | block, ms | windows, ms | fastest | median |\n| ---: | --- | ---: | ---: | ---: | ---: |"
    );
    for (d, weighted) in [16, 32, 41, 64, 128, 256].into_iter().flat_map(|d| [(d, false), (d, true)]) {
        let weights = weighted.then(|| weights.as_slice());
        let x = on_device(&Numbers(2).matrix(n, d));
        let own = MatView::new(x.as_slice(), n, d).expect("the size is right");
        let mut outs = [0, 1].map(|_| on_device(&vec![f32::NAN; n * d]));
        let mut times = [const { Vec::new() }; 2];
        for _ in 0..=ROUNDS {
            for (i, (out, times)) in outs.iter_mut().zip(&mut times).enumerate() {
                let out = MatMut::new(out.as_mut_slice(), n, d).expect("the size is right");
                let start = Instant::now();
                match i {
                    0 => cpu::gather(graph.view(), weights, own, None, out),
                    _ => windows.gather_then(weights, own, &[], out),
                }
                .expect("the block is valid");
                times.push(1e3 * start.elapsed().as_secs_f64());
            }
        }
        assert!(outs[0].as_slice::<u32>() == outs[1].as_slice::<u32>(), "the bits differ");
        let [block, windows] = times.map(|times| {
            let mut times = times[1..].to_vec();
            times.sort_by(f64::total_cmp);
            [times[0], times[ROUNDS / 2]]
        });
        let cells = [block, windows].map(|[fastest, median]| format!("{fastest:.1} ({median:.1})"));
        let ratios = [0, 1].map(|i| format!("{:.2}", block[i] / windows[i]));
        let weights = if weighted { "yes" } else { "no" };
        println!("| {d} | {weights} | {} | {} |", cells.join(" | "), ratios.join(" | "));
    }
}
