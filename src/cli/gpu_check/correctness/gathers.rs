//! Gathers of published shapes: some rows, bit for bit those of the CPU.

use lapidary_kernels::op::Move;
use lapidary_kernels::{Arg, BlockView, Call, Mat, MatMut, MatView, cpu};
use rayon::prelude::*;
use serde_json::json;

use super::super::Scope;
use super::super::section::{Finished, Row, Section, lacks_memory};
use super::super::shapes::{Graphs, SHAPES, Shape};
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::profile::gpu::Bench;

const NEXT: &str = "Report it with results.json: it is a bug of a kernel, or the GPU's memory is faulty \
    (`nvidia-smi -q -d ECC`). Until then, train with `--devices cpu`.";

/// Rows that are compared, of all rows.
const ROWS: usize = 1000;

/// Compares rows of each published gather with the CPU.
pub(in super::super) fn published(scope: &Scope, graphs: &Graphs) -> Finished {
    let count = SHAPES.iter().map(|shape| shape.widths.len()).sum();
    let mut section = Section::new(scope, "gather bits", count, NEXT, None);
    for shape in SHAPES {
        for &d in shape.widths {
            section.row(&format!("{} width {d}", shape.name), || compare(scope.gpu, graphs, shape, d));
        }
    }
    section.finish()
}

fn compare(gpu: u32, graphs: &Graphs, shape: &Shape, d: usize) -> Result<Row> {
    let graph = graphs.of(shape);
    let (n, e) = (graph.vertex_count(), graph.edge_count());
    let need_bytes = 8 * (n * d) as u64 + 8 * n as u64 + 4 * e as u64 + (64 << 20);
    if let Some(row) = lacks_memory(gpu, need_bytes) {
        return Ok(row);
    }
    let some = some_rows(&graph);
    let want = on_the_cpu(&graph, &some, d)?;
    let row_of = |cells: &[f32], i: usize| -> Vec<u32> { cells[i * d..][..d].iter().map(|x| x.to_bits()).collect() };
    let mut wrong = Vec::new();
    let mut check = |bench: &Bench, runs: &[&str]| -> Result<()> {
        let block = bench.block(&graph)?;
        let (own, out) = (bench.matrix(2, n, d)?, bench.room(3, n, d)?);
        let (rows, few) = (bench.put(4, some.clone())?, bench.room(5, some.len(), d)?);
        let gather = Call::gather(block, None, own, None, out);
        let pack = Call::new(Move::Pack, [Arg::Mat(out), Arg::Slot(rows)], [few]);
        for run in runs {
            let got = gathered(bench, &gather, &pack, few)?;
            let differs = |&i: &usize| row_of(&got, i) != row_of(&want, i);
            let others: Vec<u32> = (0..some.len()).filter(differs).map(|i| some[i]).collect();
            if let Some(row) = others.first() {
                let [count, all] = [others.len(), some.len()];
                wrong.push(format!("{run} run: {count} of {all} rows are not those of the CPU, such as row {row}"));
            }
        }
        Ok(())
    };
    // Where groups of columns may be faster, the first run does both ways, by groups last. The second takes the faster one.
    let bench = Bench::open(gpu)?;
    check(&bench, &["first", "second"])?;
    let choices = bench.choices();
    drop(bench);
    if choices.iter().any(|choice| choice.contains("columns at a time")) {
        check(&Bench::by_whole_rows(gpu)?, &["whole-row"])?;
    }
    let facts = json!({ "shape": shape.name, "width": d, "rows_compared": some.len(), "choices": choices });
    Ok(Row::Done { facts, wrong })
}

fn gathered(bench: &Bench, gather: &Call, pack: &Call, few: Mat) -> Result<Vec<f32>> {
    bench.run(gather)?;
    bench.run(pack)?;
    bench.get(few)
}

/// Returns rows in all places, the last one and the longest one.
fn some_rows(graph: &Graph) -> Vec<u32> {
    let n = graph.vertex_count();
    let count = ROWS.min(n);
    let longest = (0..n).max_by_key(|&v| graph.edges(v).len());
    let spread = (0..count).map(|i| (i * (n - 1) / (count - 1).max(1)) as u32);
    spread.chain(longest.map(|v| v as u32)).collect()
}

/// Returns rows of the gather over the matrix of [`Bench::matrix`], each computed from its own sources.
fn on_the_cpu(graph: &Graph, rows: &[u32], d: usize) -> Result<Vec<f32>> {
    let row = |&v: &u32| {
        let sources = &graph.indices()[graph.edges(v as usize)];
        let m = sources.len();
        let cells = sources.iter().flat_map(|&u| (0..d).map(move |c| Bench::cell(u as usize * d + c)));
        let (own, mut out): (Vec<f32>, _) = (cells.collect(), vec![f32::NAN; d]);
        let (indptr, indices): ([u64; 2], Vec<u32>) = ([0, m as u64], (0..m as u32).collect());
        let block = BlockView { indptr: &indptr, indices: &indices, own_sources: m, halo_sources: 0 };
        let own = MatView::new(&own, m, d).expect("a row for each source");
        cpu::gather(block, None, own, None, MatMut::new(&mut out, 1, d).expect("one row"))?;
        Ok(out)
    };
    let rows: lapidary_kernels::Result<Vec<Vec<f32>>> = rows.par_iter().map(row).collect();
    let failed = |source| Error::Device { device: "cpu".into(), op: "gather".into(), source: Box::new(source) };
    rows.map(|rows| rows.concat()).map_err(failed)
}
