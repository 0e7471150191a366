//! Times a gather over tiles beside the same gather in one piece.
//!
//! The rows are cut into tiles, and the sources into as many; a call sums one tile of rows over some of the tiles of
//! sources. Both do the same additions. Prints a Markdown table with the median of several rounds: the time that passed,
//! and that of all cores, which other programs disturb less.
//!
//! ```text
//! cargo run --release -p lapidary-bench --bin tiled_gather -- DIR [WIDTH]...
//! ```

use std::time::Instant;

use lapidary::Dataset;
use lapidary_kernels::cpu::{Window, gather, gather_window};
use lapidary_kernels::{BlockView, MatMut, MatView};
use rustix::time::{ClockId, clock_gettime};

const ROUNDS: usize = 9;

/// Numbers of tiles, and how many of them a call reads.
const CASES: [(usize, usize); 8] = [(3, 3), (6, 6), (6, 3), (12, 12), (12, 6), (12, 3), (16, 16), (16, 1)];

fn main() -> lapidary::Result<()> {
    let mut args = std::env::args().skip(1);
    let data = Dataset::load(&args.next().expect("a dataset directory"))?;
    let widths: Vec<usize> = args.map(|width| width.parse().expect("a width is a number")).collect();
    println!("| width | tiles | read at once | ms | of one piece | ms of cores | of one piece |");
    println!("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    let (indptr, indices) = (&data.graph().indptr()[..], &data.graph().indices()[..]);
    for d in if widths.is_empty() { vec![64, 128, 256] } else { widths } {
        table(indptr, indices, d);
    }
    Ok(())
}

fn table(indptr: &[u64], indices: &[u32], d: usize) {
    let n = indptr.len() - 1;
    let x: Vec<f32> = (0..n * d).map(|i| ((i * 37) % 101) as f32 / 101.0).collect();
    let block = BlockView { indptr, indices, own_sources: n, halo_sources: 0 };
    let view =
        |rows: std::ops::Range<usize>| MatView::new(&x[rows.start * d..rows.end * d], rows.len(), d).expect("fits");
    let mut want = vec![0.0; n * d];
    let whole = median(|| {
        let out = MatMut::new(&mut want, n, d).expect("fits");
        gather(block, None, view(0..n), None, out).expect("a gather");
    });
    let row = |tiles: usize, at_once: usize, [passed, cores]: [f64; 2]| {
        let [of_passed, of_cores] = [passed / whole[0], cores / whole[1]];
        let [passed, cores] = [1e3 * passed, 1e3 * cores];
        println!("| {d} | {tiles} | {at_once} | {passed:.1} | {of_passed:.2} | {cores:.1} | {of_cores:.2} |");
    };
    row(1, 1, whole);
    for (tiles, at_once) in CASES {
        // Each tile is an allocation of its own, as on a device.
        let ends: Vec<usize> = (0..=tiles).map(|tile| n * tile / tiles).collect();
        let sources: Vec<Vec<f32>> = ends.windows(2).map(|ends| x[ends[0] * d..ends[1] * d].to_vec()).collect();
        let blocks: Vec<Vec<u64>> = ends
            .windows(2)
            .map(|ends| indptr[ends[0]..=ends[1]].iter().map(|edge| edge - indptr[ends[0]]).collect())
            .collect();
        let mut got: Vec<[Vec<f32>; 2]> = sources.iter().map(|tile| [tile.clone(), tile.clone()]).collect();
        let seconds = median(|| {
            for (tile, out) in got.iter_mut().enumerate() {
                let rows = ends[tile]..ends[tile + 1];
                let edges = indptr[rows.start] as usize..indptr[rows.end] as usize;
                let block = BlockView { indptr: &blocks[tile], indices: &indices[edges], ..block };
                for (first, group) in (0..tiles).step_by(at_once).zip(sources.chunks(at_once)) {
                    out.reverse();
                    let [out, sum] = out;
                    let sum = (first > 0).then(|| MatView::new(sum, rows.len(), d).expect("fits"));
                    let group: Vec<MatView<'_>> =
                        group.iter().map(|tile| MatView::new(tile, tile.len() / d, d).expect("fits")).collect();
                    let out = MatMut::new(out, rows.len(), d).expect("fits");
                    let window = Window { first: ends[first], sum };
                    gather_window(block, None, window, &group, &[], out).expect("a gather");
                }
            }
        });
        let got: Vec<f32> = got.iter().flat_map(|[out, _]| out).copied().collect();
        assert!(got == want, "the bits are the same");
        row(tiles, at_once, seconds);
    }
}

/// Returns the median seconds of some rounds: those that passed, and those that all cores worked.
fn median(mut work: impl FnMut()) -> [f64; 2] {
    let mut seconds = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        let (start, cores) = (Instant::now(), cores_s());
        work();
        seconds[0].push(start.elapsed().as_secs_f64());
        seconds[1].push(cores_s() - cores);
    }
    seconds.map(|mut seconds| {
        seconds.sort_by(f64::total_cmp);
        seconds[ROUNDS / 2]
    })
}

/// Returns the seconds that all threads of this process have run.
fn cores_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}
