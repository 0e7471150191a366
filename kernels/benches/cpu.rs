//! Benchmarks of the CPU kernels that take most of an epoch. Each time is printed beside the least time that this
//! machine could take.
//!
//! `cargo bench -p lapidary-kernels --bench cpu` runs all, `-- gather` one kind. `-- machine --json` runs none and
//! prints the measured rates behind the floors. `RAYON_NUM_THREADS` sets the number of threads. Each benchmark compares
//! one cell of its result with a sum in `f64` before it measures. `-- stored` compares calls in f32 and bf16, `-- windows`
//! gathers over a block and over its windows.
//!
//! The floor of a kernel is the time to move every operand and result once at memory bandwidth, or the time of its
//! operations at the peak rate of fused multiply-adds, whichever is longer. Both rates are measured in the same run.
//! The floor of a gather reads each source row only once; an addition counts as a multiply-add.

mod machine;
mod report;
mod stored;
mod windows;

use std::cell::RefCell;

use lapidary_kernels::RowStep;
use lapidary_kernels::cpu::{RowWork, linear_weight_grad_workspace_bytes};
use lapidary_kernels::{AlignedBytes, BlockView, DropoutKey, MatMut, MatView, MultiTargets, Targets, cpu, reference};
use report::{Report, WorkCount};

fn main() {
    let report = Report::new(std::env::args().skip(1).collect());
    gathers(&report);
    products(&report);
    for d in [16, 256] {
        for kernel in ["add", "relu", "relu_grad", "add_bias", "row_scale", "dropout", "column_sum"] {
            elementwise(&report, kernel, d);
        }
    }
    for d in [16, 41, 256] {
        for kernel in ["forward", "input_grad", "gain_grad"] {
            layer_norm(&report, kernel, d);
        }
    }
    for kernel in ["loss", "grad", "count"] {
        for classes in [100, 121] {
            multi_label(&report, kernel, classes);
        }
        for classes in [3, 41] {
            softmax(&report, kernel, classes);
        }
    }
    stored::run(|kernel| report.wants(kernel));
    if report.wants("windows") {
        windows::run();
    }
}

/// A small generator (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn matrix(&mut self, rows: usize, cols: usize) -> Vec<f32> {
        (0..rows * cols).map(|_| self.unit() as f32 - 0.5).collect()
    }
}

/// Copies the values to memory that is aligned like a device's.
fn on_device(values: &[f32]) -> AlignedBytes {
    let mut bytes = AlignedBytes::zeroed(size_of_val(values)).expect("the host has memory");
    bytes.as_mut_slice().copy_from_slice(values);
    bytes
}

struct Graph {
    indptr: Vec<u64>,
    indices: Vec<u32>,
}

impl Graph {
    /// Returns a graph with power-law degrees and source popularity. Ranks are scattered over the ids.
    fn power_law(n: usize, mean_degree: f64) -> Self {
        let numbers = &mut Numbers(1);
        let scatter = |rank: usize| (rank * 77_773) % n;
        let (mut indptr, mut indices) = (vec![0], Vec::new());
        for v in 0..n {
            let share = (scatter(v) as f64 + 1.0) / n as f64;
            let degree = (0.5 * mean_degree * share.powf(-0.5)).min(n as f64 / 10.0) as usize;
            let first = indices.len();
            indices.extend((0..degree).map(|_| scatter((numbers.unit().powi(2) * n as f64) as usize) as u32));
            indices[first..].sort_unstable();
            indptr.push(indices.len() as u64);
        }
        Self { indptr, indices }
    }

    fn view(&self) -> BlockView<'_> {
        BlockView { indptr: &self.indptr, indices: &self.indices, own_sources: self.rows(), halo_sources: 0 }
    }

    fn rows(&self) -> usize {
        self.indptr.len() - 1
    }
}

/// Panics if the two differ by more than rounding.
fn check(got: f32, want: f64, magnitude: f64) {
    assert!((f64::from(got) - want).abs() <= 1e-4 * magnitude, "{got} is not {want}");
}

fn gathers(report: &Report) {
    if !report.wants("gather") {
        return;
    }
    let graph = Graph::power_law(200_000, 20.0);
    for weighted in [false, true] {
        for d in [3, 16, 32, 41, 64, 128, 256, 602] {
            gather(report, &graph, weighted, d);
        }
    }
}

fn gather(report: &Report, graph: &Graph, weighted: bool, d: usize) {
    let (n, e) = (graph.rows(), graph.indices.len());
    let numbers = &mut Numbers(2);
    let x = on_device(&numbers.matrix(n, d));
    let weights = weighted.then(|| numbers.matrix(e, 1));
    let mut out = on_device(&vec![f32::NAN; n * d]);
    let out = out.as_mut_slice::<f32>();
    let own = MatView::new(x.as_slice::<f32>(), n, d).expect("the size is right");
    let run = |out: &mut [f32]| {
        let out = MatMut::new(out, n, d).expect("the size is right");
        cpu::gather(graph.view(), weights.as_deref(), own, None, out).expect("the block is valid");
    };
    run(out);
    let row = n / 2;
    let terms = graph.view().edges(row).map(|edge| {
        let factor = weights.as_ref().map_or(1.0, |weights| f64::from(weights[edge]));
        factor * f64::from(own.data()[graph.indices[edge] as usize * d + d - 1])
    });
    let terms: Vec<f64> = terms.collect();
    check(out[row * d + d - 1], terms.iter().sum(), terms.iter().map(|x| x.abs()).sum());
    let arrays = if weighted { 2 } else { 1 };
    let bytes = 8 * (n + 1) + 4 * e * arrays + 8 * n * d;
    let work = WorkCount { bytes: bytes as u64, flops: 2 * (e * d) as u64 };
    report.time(if weighted { "gather, weighted" } else { "gather" }, &d.to_string(), work, || run(out));
}

const SHAPES: [(usize, usize, usize); 5] =
    [(100_000, 602, 256), (58_000, 602, 128), (100_000, 256, 256), (200_000, 128, 16), (200_000, 256, 41)];

fn products(report: &Report) {
    type Product = fn(&Report, (usize, usize, usize));
    let kinds: [(&str, Product); 3] =
        [("linear", linear), ("linear_input_grad", linear_input_grad), ("linear_weight_grad", linear_weight_grad)];
    for (name, product) in kinds {
        if report.wants(name) {
            SHAPES.into_iter().for_each(|shape| product(report, shape));
        }
    }
}

/// Times one of the three products.
fn time_product(
    report: &Report,
    kernel: &str,
    (n, d_in, d_out): (usize, usize, usize),
    [rows, cols]: [usize; 2],
    run: impl Fn(MatView<'_>, MatView<'_>, MatView<'_>, MatMut<'_>),
    last: impl Fn(&[f32], &[f32], &[f32]) -> f64,
) {
    let numbers = &mut Numbers(3);
    let (x, weight, grad) = (numbers.matrix(n, d_in), numbers.matrix(d_out, d_in), numbers.matrix(n, d_out));
    let mut out = vec![f32::NAN; rows * cols];
    let view = |data, rows, cols| MatView::new(data, rows, cols).expect("the size is right");
    let views = (view(&x, n, d_in), view(&weight, d_out, d_in), view(&grad, n, d_out));
    let run = |out: &mut [f32]| {
        run(views.0, views.1, views.2, MatMut::new(out, rows, cols).expect("the size is right"));
    };
    run(&mut out);
    let want = last(&x, &weight, &grad);
    check(out[rows * cols - 1], want, want.abs() + (d_in.max(d_out) as f64).sqrt());
    let bytes = 4 * (n * d_in + d_in * d_out + n * d_out) as u64;
    let work = WorkCount { bytes, flops: cpu::linear_flops(n as u64, d_in as u64, d_out as u64) };
    report.time(kernel, &format!("{n} x {d_in} x {d_out}"), work, || run(&mut out));
}

fn linear(report: &Report, shape: (usize, usize, usize)) {
    let (n, d_in, d_out) = shape;
    let run = |x: MatView<'_>, weight: MatView<'_>, _: MatView<'_>, out: MatMut<'_>| {
        cpu::linear(x, weight, out).expect("the shapes agree");
    };
    time_product(report, "linear", shape, [n, d_out], run, |x, weight, _| {
        let (row, column) = (&x[(n - 1) * d_in..], &weight[(d_out - 1) * d_in..]);
        row.iter().zip(column).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    });
}

fn linear_input_grad(report: &Report, shape: (usize, usize, usize)) {
    let (n, d_in, d_out) = shape;
    let run = |_: MatView<'_>, weight: MatView<'_>, grad: MatView<'_>, out: MatMut<'_>| {
        cpu::linear_input_grad(grad, weight, out).expect("the shapes agree");
    };
    time_product(report, "linear_input_grad", shape, [n, d_in], run, |_, weight, grad| {
        let term = |k: usize| f64::from(grad[(n - 1) * d_out + k]) * f64::from(weight[k * d_in + d_in - 1]);
        (0..d_out).map(term).sum()
    });
}

fn linear_weight_grad(report: &Report, shape: (usize, usize, usize)) {
    let (n, d_in, d_out) = shape;
    let bytes = linear_weight_grad_workspace_bytes(n as u64, d_in as u64, d_out as u64);
    let workspace = RefCell::new(vec![0.0; bytes as usize / 4]);
    let run = |x: MatView<'_>, _: MatView<'_>, grad: MatView<'_>, out: MatMut<'_>| {
        cpu::linear_weight_grad(grad, x, out, &mut workspace.borrow_mut()).expect("the shapes agree");
    };
    time_product(report, "linear_weight_grad", shape, [d_out, d_in], run, |x, _, grad| {
        let term = |k: usize| f64::from(grad[k * d_out + d_out - 1]) * f64::from(x[k * d_in + d_in - 1]);
        (0..n).map(term).sum()
    });
}

fn elementwise(report: &Report, kernel: &str, d: usize) {
    if !report.wants(&format!("elementwise_{kernel}")) {
        return;
    }
    let n = 12_800_000 / d;
    let numbers = &mut Numbers(4);
    let (a, b) = (numbers.matrix(n, d), numbers.matrix(n, d));
    let vector = numbers.matrix(n, 1);
    let mut out = vec![f32::NAN; n * d];
    let (a, b) = (MatView::new(&a, n, d).expect("the size"), MatView::new(&b, n, d).expect("the size"));
    let key = DropoutKey { seed: 1, op: 2, first_row: 3, first_column: 0, rate: 0.5 };
    let (inputs, outputs) = match kernel {
        "add" | "relu_grad" => (2, 1),
        "column_sum" => (1, 0),
        _ => (1, 1),
    };
    let run = |data: &mut [f32]| {
        if kernel == "column_sum" {
            return cpu::column_sum(a, &mut data[..d]).expect("the shapes agree");
        }
        let out = MatMut::new(data, n, d).expect("the size");
        match kernel {
            "add" => cpu::rows_then(a, &[RowWork::new(RowStep::Add, b.data())], out),
            "relu" => cpu::rows_then(a, &[RowWork::new(RowStep::Relu, &[])], out),
            "relu_grad" => cpu::rows_then(a, &[RowWork::new(RowStep::ReluGrad, b.data())], out),
            "add_bias" => cpu::rows_then(a, &[RowWork::new(RowStep::AddBias, &vector[..d])], out),
            "row_scale" => cpu::rows_then(a, &[RowWork::new(RowStep::Scale, &vector)], out),
            _ => cpu::dropout(a, key, 5, out),
        }
        .expect("the shapes agree");
    };
    run(&mut out);
    let (x, y) = (f64::from(a.row(n - 1)[d - 1]), f64::from(b.row(n - 1)[d - 1]));
    let (got, bias) = (out[n * d - 1], f64::from(vector[d - 1]));
    match kernel {
        "add" => check(got, x + y, 1.0),
        "relu" => check(got, x.max(0.0), 1.0),
        "relu_grad" => check(got, if y > 0.0 { x } else { 0.0 }, 1.0),
        "add_bias" => check(got, x + bias, 1.0),
        "row_scale" => check(got, x * f64::from(vector[n - 1]), 1.0),
        "column_sum" => check(out[d - 1], reference::column_sum(&a.into())[d - 1], n as f64),
        _ => assert!(got == 0.0 || f64::from(got) == 2.0 * x),
    }
    let bytes = if outputs == 0 { 4 * n * d } else { cpu::elementwise_bytes(inputs, n as u64, d as u64) as usize };
    let work = WorkCount { bytes: bytes as u64, flops: 0 };
    report.time(kernel, &format!("{n} x {d}"), work, || run(&mut out));
}

fn layer_norm(report: &Report, kernel: &str, d: usize) {
    if !report.wants(&format!("layer_norm_{kernel}")) {
        return;
    }
    let n = 6_400_000 / d;
    let numbers = &mut Numbers(5);
    let (x, grad) = (numbers.matrix(n, d), numbers.matrix(n, d));
    let (gain, bias) = (numbers.matrix(d, 1), numbers.matrix(d, 1));
    let (eps, last) = (1e-5, n * d - 1);
    let view = |data| MatView::new(data, n, d).expect("the size");
    let (x, grad) = (view(&x), view(&grad));
    let mut out = vec![f32::NAN; n * d];
    let run = |data: &mut [f32]| {
        match kernel {
            "gain_grad" => cpu::layer_norm_gain_grad(grad, x, eps, &mut data[..d]),
            "forward" => cpu::layer_norm(x, &gain, &bias, eps, MatMut::new(data, n, d).expect("the size")),
            _ => cpu::layer_norm_input_grad(grad, x, &gain, eps, MatMut::new(data, n, d).expect("the size")),
        }
        .expect("the shapes agree");
    };
    run(&mut out);
    let (dx, dg, wide) = (x.into(), grad.into(), |v: &[f32]| v.iter().copied().map(f64::from).collect::<Vec<_>>());
    let eps = f64::from(eps);
    match kernel {
        "gain_grad" => check(out[d - 1], reference::layer_norm_gain_grad(&dg, &dx, eps)[d - 1], n as f64),
        "forward" => check(out[last], reference::layer_norm(&dx, &wide(&gain), &wide(&bias), eps).data[last], 1.0),
        _ => check(out[last], reference::layer_norm_input_grad(&dg, &dx, &wide(&gain), eps).data[last], 1.0),
    }
    let cells = if kernel == "input_grad" { 3 } else { 2 };
    let work = WorkCount { bytes: (4 * cells * n * d) as u64, flops: 0 };
    report.time(&format!("layer norm, {kernel}"), &format!("{n} x {d}"), work, || run(&mut out));
}

fn multi_label(report: &Report, kernel: &str, classes: usize) {
    if !report.wants(&format!("multi_label_{kernel}")) {
        return;
    }
    let n = 6_400_000 / classes;
    let numbers = &mut Numbers(6);
    let logits = numbers.matrix(n, classes);
    let cells: Vec<u8> = logits.iter().map(|_| (numbers.bits() & 1) as u8).collect();
    let targets = MultiTargets { targets: &cells, classes, split: &vec![0; n], select: 0 };
    let logits = MatView::new(&logits, n, classes).expect("the size");
    let mut out = vec![f32::NAN; n * classes];
    let run = |data: &mut [f32]| match kernel {
        "loss" => data[0] = cpu::sigmoid_cross_entropy(logits, targets, n as u64).expect("the shapes agree"),
        "count" => data[0] = cpu::count_micro(logits, targets).expect("the shapes agree")[0] as f32,
        _ => {
            let out = MatMut::new(data, n, classes).expect("the size");
            cpu::sigmoid_cross_entropy_grad(logits, targets, n as u64, out).expect("the shapes agree");
        }
    };
    run(&mut out);
    let dense = logits.into();
    match kernel {
        "loss" => check(out[0], reference::sigmoid_cross_entropy(&dense, targets, n as u64), 1.0),
        "count" => check(out[0], reference::count_micro(&dense, targets)[0] as f64, n as f64),
        _ => check(out[0], reference::sigmoid_cross_entropy_grad(&dense, targets, n as u64).data[0], 1e-6),
    }
    // Each cell's logit and target are read, and for the gradient a cell is written.
    let bytes = if kernel == "grad" { 9 } else { 5 } * n * classes;
    let work = WorkCount { bytes: bytes as u64, flops: 0 };
    report.time(&format!("sigmoid, {kernel}"), &format!("{n} x {classes}"), work, || run(&mut out));
}

fn softmax(report: &Report, kernel: &str, classes: usize) {
    if !report.wants(&format!("softmax_{kernel}")) {
        return;
    }
    let n = 6_400_000 / classes;
    let numbers = &mut Numbers(7);
    let logits = numbers.matrix(n, classes);
    let labels: Vec<u32> = (0..n).map(|_| (numbers.bits() % classes as u64) as u32).collect();
    let split: Vec<u32> = (0..n).map(|v| u32::from(v % 2 == 0)).collect();
    let targets = Targets { labels: &labels, split: &split, select: 0 };
    let logits = MatView::new(&logits, n, classes).expect("the size");
    let mut out = vec![f32::NAN; n * classes];
    let run = |data: &mut [f32]| match kernel {
        "loss" => data[0] = cpu::softmax_cross_entropy(logits, targets, None, n as u64).expect("the shapes agree"),
        "count" => data[0] = cpu::count_correct(logits, targets).expect("the shapes agree")[0] as f32,
        _ => {
            let out = MatMut::new(data, n, classes).expect("the size");
            cpu::softmax_cross_entropy_grad(logits, targets, None, n as u64, out).expect("the shapes agree");
        }
    };
    run(&mut out);
    let dense = logits.into();
    match kernel {
        "loss" => check(out[0], reference::softmax_cross_entropy(&dense, targets, None, n as u64), 1.0),
        "count" => check(out[0], reference::count_correct(&dense, targets)[0] as f64, n as f64),
        _ => {
            let want = reference::softmax_cross_entropy_grad(&dense, targets, None, n as u64).data[classes + 1];
            check(out[classes + 1], want, 1e-6);
        }
    }
    let bytes = if kernel == "grad" { 8 } else { 4 } * n * classes + 8 * n;
    let work = WorkCount { bytes: bytes as u64, flops: 0 };
    report.time(&format!("softmax, {kernel}"), &format!("{n} x {classes}"), work, || run(&mut out));
}
