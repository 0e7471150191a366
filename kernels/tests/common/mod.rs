//! Shared by the tests: random numbers, hostile graphs, a checked device, and comparisons with derived tolerances.

#![allow(missing_docs, clippy::too_many_arguments)]

use std::cell::{Cell, RefCell};
use std::num::NonZeroUsize;
use std::rc::Rc;

use bytemuck::Pod;
use lapidary_kernels::op::{BlockSpec, EdgeOp, Optimizer};
use lapidary_kernels::reference::Dense;
use lapidary_kernels::{
    BlockSlots, BlockView, Call, CpuDevice, Device, DropoutKey, HostSlot, Lane, Mat, MatView, Matmul, Part, Result,
    RowStep, Slot, Window,
};

#[cfg(feature = "cuda")]
pub mod emulator;

/// Widths that cover every path through the column tiles.
pub const WIDTHS: [usize; 11] = [0, 1, 3, 7, 16, 17, 32, 41, 64, 100, 602];

/// A small generator (SplitMix64), so that tests are the same on every machine.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Returns a number in `[-1, 1)`.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn units(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.unit()).collect()
    }

    pub fn matrix(&mut self, rows: usize, cols: usize) -> Matrix {
        Matrix { rows, cols, data: self.units(rows * cols) }
    }
}

/// A matrix on the host.
#[derive(Clone, Debug)]
pub struct Matrix {
    pub rows: usize,
    pub cols: usize,
    pub data: Vec<f32>,
}

impl Matrix {
    pub fn view(&self) -> MatView<'_> {
        MatView::new(&self.data, self.rows, self.cols).unwrap()
    }

    pub fn dense(&self) -> Dense {
        self.view().into()
    }
}

pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

pub fn absolute(values: &[f64]) -> Vec<f64> {
    values.iter().map(|x| x.abs()).collect()
}

/// A block that owns its arrays.
#[derive(Clone, Debug)]
pub struct Graph {
    pub name: &'static str,
    pub indptr: Vec<u64>,
    pub indices: Vec<u32>,
    pub own_sources: usize,
    pub halo_sources: usize,
}

impl Graph {
    pub fn from_rows(name: &'static str, rows: &[Vec<u32>], own_sources: usize, halo_sources: usize) -> Self {
        let mut indptr = vec![0];
        let mut indices = Vec::new();
        for row in rows {
            indices.extend(row);
            indptr.push(indices.len() as u64);
        }
        Self { name, indptr, indices, own_sources, halo_sources }
    }

    pub fn view(&self) -> BlockView<'_> {
        BlockView {
            indptr: &self.indptr,
            indices: &self.indices,
            own_sources: self.own_sources,
            halo_sources: self.halo_sources,
        }
    }

    pub fn rows(&self) -> usize {
        self.indptr.len() - 1
    }

    pub fn edges(&self) -> usize {
        self.indices.len()
    }

    /// Returns the block with its edges reversed, and the original index of each edge.
    pub fn transpose(&self) -> (Graph, Vec<u64>) {
        let sources = self.own_sources + self.halo_sources;
        let mut rows = vec![Vec::new(); sources];
        let mut places = vec![Vec::new(); sources];
        for v in 0..self.rows() {
            for edge in self.view().edges(v) {
                rows[self.indices[edge] as usize].push(v as u32);
                places[self.indices[edge] as usize].push(edge as u64);
            }
        }
        (Graph::from_rows("transposed", &rows, self.rows(), 0), places.concat())
    }

    pub fn random(numbers: &mut Numbers, rows: usize, own: usize, halo: usize, edges: usize) -> Self {
        let mut lists = vec![Vec::new(); rows];
        for _ in 0..edges {
            let u = numbers.below(own + halo) as u32;
            lists[numbers.below(rows)].push(u);
        }
        Graph::from_rows("random", &lists, own, halo)
    }
}

/// Returns graphs of every shape that has broken a kernel somewhere.
pub fn hostile_graphs() -> Vec<Graph> {
    let numbers = &mut Numbers(7);
    let n = 300;
    let all = || (0..n as u32).collect::<Vec<_>>();
    let mut hub = vec![Vec::new(); n];
    hub[17] = [all(), all(), all()].concat();
    // Longer rows than one group of GPU threads sums.
    let mut heavy: Vec<Vec<u32>> = (0..40).map(|v| vec![v; v as usize % 4]).collect();
    heavy[7] = (0..2500).map(|i| i * 7 % 60).collect();
    heavy[8] = (0..1025).map(|i| i % 60).collect();
    let mut tail: Vec<Vec<u32>> = (0..n).map(|_| (0..5).map(|_| numbers.below(200) as u32).collect()).collect();
    tail[200..].fill(Vec::new());
    let mut random = Graph::random(numbers, 3000, 3000, 0, 20_000);
    random.name = "random";
    let mut halo = Graph::random(numbers, 900, 900, 130, 7000);
    halo.name = "with a halo";
    let mut only_halo = Graph::random(numbers, 40, 0, 20, 300);
    only_halo.name = "halo alone";
    vec![
        Graph::from_rows("empty", &[], 0, 0),
        Graph::from_rows("one vertex", &[vec![]], 1, 0),
        Graph::from_rows("one vertex with a self-loop", &[vec![0]], 1, 0),
        Graph::from_rows("no edges", &vec![vec![]; 5], 5, 0),
        Graph::from_rows("self-loops", &(0..40).map(|v| vec![v]).collect::<Vec<_>>(), 40, 0),
        Graph::from_rows("multi-edges", &(0..40).map(|v| vec![v / 2; 9]).collect::<Vec<_>>(), 40, 0),
        Graph::from_rows("hub with every edge", &hub, n, 0),
        Graph::from_rows("heavy hubs", &heavy, 40, 20),
        Graph::from_rows("isolated tail", &tail, n, 0),
        random,
        halo,
        only_halo,
    ]
}

/// Returns a call of an operation over matrices, and slots whose sizes follow from theirs.
macro_rules! call {
    ($op:expr, [$($input:expr),*], [$($output:expr),*]) => {
        call!($op, [$($input),*], [$($output),*], lapidary_kernels::Part::default())
    };
    ($op:expr, [$($input:expr),*], [$($output:expr),*], $part:expr) => {{
        let inputs = [$(lapidary_kernels::Arg::from($input)),*];
        Call::over($op, $part, None, inputs, [$(lapidary_kernels::Arg::from($output)),*])
    }};
}

/// A split name for operations whose call has the selection.
pub const TRAIN: lapidary_kernels::op::SplitName = lapidary_kernels::op::SplitName::Train;

const GRAPH: BlockSpec = BlockSpec::Graph { self_loops: false, transposed: false };

/// Returns a part that selects the rows of a split.
pub fn selected(select: u32, count: u64) -> Part {
    Part { select, count, ..Part::default() }
}

/// Returns a part with the seed and first row of a dropout key.
pub fn keyed(DropoutKey { seed, first_row, .. }: DropoutKey) -> Part {
    Part { seed, first_row, ..Part::default() }
}

pub fn drop_cells(key: DropoutKey, x: Mat, clock: Slot, out: Mat) -> Call {
    call!(
        RowStep::Dropout { rate: key.rate, salt: key.op, first_column: key.first_column },
        [x, clock],
        [out],
        keyed(key)
    )
}

pub fn drop_edges(key: DropoutKey, block: BlockSlots, values: Slot, clock: Slot, out: Slot) -> Call {
    let op = EdgeOp::Dropout { block: GRAPH, rate: key.rate, salt: key.op };
    Call::over(op, keyed(key), Some(block), [values, clock], [out])
}

pub fn permute_edges(values: Slot, permutation: Slot, out: Slot, edges: usize) -> Call {
    call!(EdgeOp::Permute { block: GRAPH }, [Mat::f32(values, edges, 1), permutation], [out])
}

pub fn sgd_call(
    param: Slot,
    grad: Slot,
    moment: Option<[Slot; 2]>,
    out: Slot,
    window: Window,
    clock: Slot,
    rate: Slot,
    momentum: f64,
    weight_decay: f64,
) -> Call {
    let [old, new] = [0, 1].map(|which| moment.map(|moment| moment[which]));
    let inputs = [param, grad, clock, rate].into_iter().chain(old);
    let part = Part { window, ..Part::default() };
    Call::over(Optimizer::Sgd { momentum, weight_decay }, part, None, inputs, std::iter::once(out).chain(new))
}

pub fn adam_call(
    inputs: [Slot; 6],
    out: [Slot; 3],
    window: Window,
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    decoupled: bool,
) -> Call {
    let op = Optimizer::Adam { beta1, beta2, eps, weight_decay, decoupled };
    Call::over(op, Part { window, ..Part::default() }, None, inputs, out)
}

/// A row step, with the operand that it reads beside the row.
pub type FusedStep = (RowStep, Option<Slot>);

pub fn step(step: RowStep, beside: Slot) -> FusedStep {
    (step, Some(beside))
}

/// Appends steps to a call.
pub fn then(head: Call, steps: Vec<FusedStep>) -> Call {
    let operands: Vec<Slot> = steps.iter().filter_map(|step| step.1).collect();
    head.followed_by(steps.into_iter().map(|step| step.0), operands)
}

/// Whether the tests run on a GPU instead of the CPU.
pub fn on_gpu() -> bool {
    std::env::var_os("LAPIDARY_TEST_DEVICE").is_some_and(|device| device == "cuda")
}

/// Opens the device under test.
pub fn open_device(threads: usize, capacity_bytes: u64) -> Box<dyn Device> {
    if on_gpu() {
        return lapidary_kernels::cuda::open("cuda:0", 0, capacity_bytes).unwrap();
    }
    Box::new(CpuDevice::new(NonZeroUsize::new(threads), capacity_bytes).unwrap())
}

thread_local! {
    /// Opening a GPU takes long, so a test opens one, and its rigs use different slots of it.
    static GPU: (Rc<dyn Device>, Cell<u32>) = (Rc::from(open_device(1, u64::MAX)), Cell::new(1000));
}

/// A device whose slots are numbered in order.
pub struct Rig {
    pub device: Rc<dyn Device>,
    next: Cell<u32>,
    used: RefCell<Vec<Slot>>,
}

impl Rig {
    pub fn new(threads: usize) -> Self {
        let used = RefCell::default();
        if on_gpu() {
            return GPU.with(|(device, next)| Self { device: device.clone(), next: next.clone(), used });
        }
        Self { device: Rc::from(open_device(threads, u64::MAX)), next: Cell::new(0), used }
    }

    /// Returns a rig whose bf16 matrices are multiplied as bf16; `None` on a GPU, and if the machine cannot.
    pub fn multiplying_bf16(threads: usize) -> Option<Self> {
        if on_gpu() {
            return None;
        }
        if !Matmul::Bf16.supported() {
            println!("SKIPPED: this machine's CPU has no AVX512-BF16");
            return None;
        }
        let device = CpuDevice::new(NonZeroUsize::new(threads), u64::MAX).unwrap().matmul(Matmul::Bf16).unwrap();
        Some(Self { device: Rc::new(device), next: Cell::new(0), used: RefCell::default() })
    }

    pub fn put<T: Pod>(&self, values: &[T]) -> Slot {
        let slot = Slot(self.next.replace(self.next.get() + 1));
        self.used.borrow_mut().push(slot);
        self.device.alloc(slot, size_of_val(values) as u64).unwrap();
        let copied = self.device.copy_in(Lane::CopyIn, slot, &HostSlot::staged(values).unwrap(), &[]).unwrap();
        self.device.wait(copied).unwrap();
        slot
    }

    pub fn mat(&self, matrix: &Matrix) -> Mat {
        Mat::f32(self.put(&matrix.data), matrix.rows, matrix.cols)
    }

    pub fn block(&self, graph: &Graph) -> BlockSlots {
        BlockSlots {
            indptr: self.put(&graph.indptr),
            indices: self.put(&graph.indices),
            rows: graph.rows(),
            own_sources: graph.own_sources,
            halo_sources: graph.halo_sources,
            edges: graph.edges(),
        }
    }

    /// Creates an output, full of NaN until a kernel writes it.
    pub fn out(&self, rows: usize, cols: usize) -> Mat {
        Mat::f32(self.put(&vec![f32::NAN; rows * cols]), rows, cols)
    }

    pub fn launch(&self, call: &Call) -> Result<()> {
        let event = self.device.launch(Lane::Compute, call, &[])?;
        self.device.wait(event)
    }

    pub fn get<T: Pod>(&self, slot: Slot, len: usize) -> Vec<T> {
        let host = HostSlot::staging(len * size_of::<T>()).unwrap();
        let copied = self.device.copy_out(Lane::CopyOut, slot, &host, &[]).unwrap();
        self.device.wait(copied).unwrap();
        host.to_vec()
    }

    /// Runs a call and returns the matrix that it wrote.
    pub fn run(&self, out: Mat, call: &Call) -> Vec<f32> {
        self.launch(call).unwrap();
        self.get(out.slot, out.rows * out.cols)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if on_gpu() {
            GPU.with(|(_, next)| next.set(self.next.get()));
            // The test may have freed some of them.
            self.used.take().into_iter().for_each(|slot| drop(self.device.free(slot)));
        }
    }
}

/// Returns what `f` computes on one thread, after checking that three threads compute the same bits.
pub fn on_any_threads(what: &str, f: impl Fn(&Rig) -> Vec<f32>) -> Vec<f32> {
    let one = f(&Rig::new(1));
    let three = f(&Rig::new(3));
    assert!(same_bits(&one, &three), "{what}: 1 and 3 threads differ");
    one
}

/// The entries of two lists of the same length, pair by pair.
#[track_caller]
pub fn pairs<'a, A, B>(a: &'a [A], b: &'a [B]) -> impl Iterator<Item = (&'a A, &'a B)> {
    assert_eq!(a.len(), b.len(), "lists of different lengths");
    a.iter().zip(b)
}

pub fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Returns an error unless every cell is as close to the oracle as arithmetic on `terms` terms must be.
///
/// `k` rounded terms in any order err by at most about `k * eps * sum |terms|`; `magnitude` is that sum.
pub fn compare(got: &[f32], want: &[f64], magnitude: &[f64], terms: usize) -> std::result::Result<(), String> {
    if got.len() != want.len() || want.len() != magnitude.len() {
        return Err(format!("{} cells, not {}", got.len(), want.len()));
    }
    let factor = (terms as f64 + 2.0) * f64::from(f32::EPSILON);
    for (i, ((&got, &want), &magnitude)) in got.iter().zip(want).zip(magnitude).enumerate() {
        let allowed = factor * magnitude + 1e-36;
        let error = (f64::from(got) - want).abs();
        if error.is_nan() || error > allowed {
            return Err(format!("cell {i} is {got}, not {want}: off by {error:e}, allowed {allowed:e}"));
        }
    }
    Ok(())
}

#[track_caller]
pub fn assert_close(what: &str, got: &[f32], want: &[f64], magnitude: &[f64], terms: usize) {
    if let Err(objection) = compare(got, want, magnitude, terms) {
        panic!("{what}: {objection}");
    }
}
