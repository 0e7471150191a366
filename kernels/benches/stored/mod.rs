//! Times calls on matrices stored as f32 and as bf16, one after the other.

use std::time::Instant;

use lapidary_kernels::op::Linear;
use lapidary_kernels::{
    Arg, BlockSlots, Call, CpuDevice, DType, Device, HostSlot, Lane, Mat, Matmul, Op, Part, RowStep, Shared, Slot,
    linear_weight_grad_workspace_bytes, storage_type,
};

use super::{Graph, Numbers};

/// Runs of each call, in turns, after those in which a device stores what makes later ones faster.
const ROUNDS: usize = 9;
const WARM_UP: usize = 9;

/// A device, and the operands that were put on it.
struct Rig {
    device: CpuDevice,
    next: u32,
    dtype: DType,
}

impl Rig {
    fn put<T: bytemuck::Pod>(&mut self, values: &[T]) -> Slot {
        let slot = Slot(self.next);
        self.next += 1;
        self.device.alloc(slot, size_of_val(values) as u64).expect("the device has room");
        let values = HostSlot::staged(values).expect("the host has memory");
        self.device.copy_in(Lane::CopyIn, slot, &values, &[]).expect("the sizes agree");
        slot
    }

    /// Puts an array that never changes, as those of graphs are put.
    fn put_constant<T: bytemuck::Pod + Send + Sync>(&mut self, values: &[T]) -> Slot {
        let (slot, bytes) = (Slot(self.next), Shared::from(values.to_vec()).to_bytes());
        self.next += 1;
        self.device.alloc(slot, bytes.len() as u64).expect("the device has room");
        self.device.copy_in(Lane::CopyIn, slot, &HostSlot::Constant(bytes), &[]).expect("the sizes agree");
        slot
    }

    fn mat(&mut self, rows: usize, cols: usize) -> Mat {
        let numbers = Numbers(7).matrix(rows, cols);
        let slot = if self.dtype == DType::Bf16 {
            let mut stored = vec![half::bf16::ZERO; numbers.len()];
            storage_type::round(&numbers, &mut stored);
            self.put(&stored)
        } else {
            self.put(&numbers)
        };
        Mat { dtype: self.dtype, ..Mat::f32(slot, rows, cols) }
    }
}

/// Prints one line: the median milliseconds of a call in each type, and how many times as fast it is in bf16. A product
/// has a second line, with bf16 numbers multiplied as they are, if the machine can.
fn time(name: &str, shape: &str, make: impl Fn(&mut Rig) -> Call) {
    time_with(Matmul::F32, name, shape, &make);
    let multiplies = name.contains("linear") || name.contains("gradient");
    if multiplies && Matmul::Bf16.supported() {
        time_with(Matmul::Bf16, &format!("{name}, by pairs"), shape, &make);
    }
}

fn time_with(matmul: Matmul, name: &str, shape: &str, make: &dyn Fn(&mut Rig) -> Call) {
    let mut rigs = [DType::F32, DType::Bf16].map(|dtype| {
        let device = CpuDevice::new(None, u64::MAX).expect("the host has threads");
        let device = device.matmul(matmul).expect("the machine can");
        let mut rig = Rig { device, next: 0, dtype };
        let call = make(&mut rig);
        (rig, call, Vec::new())
    });
    for _ in 0..WARM_UP + ROUNDS {
        for (rig, call, seconds) in &mut rigs {
            let start = Instant::now();
            rig.device.launch(Lane::Compute, call, &[]).expect("the call is valid");
            seconds.push(1e3 * start.elapsed().as_secs_f64());
        }
    }
    let [wide, stored] = rigs.map(|(_, _, seconds)| {
        let mut seconds = seconds[WARM_UP..].to_vec();
        seconds.sort_by(f64::total_cmp);
        seconds[ROUNDS / 2]
    });
    println!("| {name} | {shape} | {wide:.1} | {stored:.1} | {:.2} |", wide / stored);
}

/// Times the calls whose name contains one of `words`; all, if there are none.
pub fn run(wants: impl Fn(&str) -> bool) {
    println!("\n| call | shape | f32 ms | bf16 ms | f32 / bf16 |\n| --- | --- | ---: | ---: | ---: |");
    let over = |op: Op, block: Option<BlockSlots>, inputs: &[Arg], out: Mat| {
        Call::over(op, Part::default(), block, inputs.iter().copied(), [out])
    };
    if wants("stored_gather") {
        for (rows, degree) in [(58_000, 250.0), (170_000, 14.0)] {
            let graph = Graph::power_law(rows, degree);
            for d in [16, 41, 64, 128, 256] {
                let edges = graph.indices.len();
                let block = |rig: &mut Rig| BlockSlots {
                    indptr: rig.put_constant(&graph.indptr),
                    indices: rig.put_constant(&graph.indices),
                    rows,
                    own_sources: rows,
                    halo_sources: 0,
                    edges,
                };
                let shape = format!("{rows} rows, {edges} edges, {d}");
                time("gather", &shape, |rig| {
                    let (own, out) = (rig.mat(rows, d), rig.mat(rows, d));
                    Call::gather(block(rig), None, own, None, out)
                });
                time("gather, weighted, relu", &shape, |rig| {
                    let (own, out) = (rig.mat(rows, d), rig.mat(rows, d));
                    let weights = rig.put(&Numbers(3).matrix(edges, 1));
                    Call::gather(block(rig), Some(weights), own, None, out)
                        .followed_by([RowStep::Relu], std::iter::empty::<Arg>())
                });
            }
        }
    }
    for (n, d_in, d_out) in [(100_000, 602, 256), (100_000, 256, 256), (170_000, 128, 256), (170_000, 256, 40)] {
        let shape = format!("{n} x {d_in} x {d_out}");
        if wants("stored_linear") {
            time("linear", &shape, |rig| {
                let (x, weight, out) = (rig.mat(n, d_in), rig.mat(d_out, d_in), rig.mat(n, d_out));
                over(Linear::Product.into(), None, &[x.into(), weight.into()], out)
            });
            time("input gradient, relu gradient", &shape, |rig| {
                let (grad, weight, out) = (rig.mat(n, d_out), rig.mat(d_out, d_in), rig.mat(n, d_in));
                let y = rig.mat(n, d_in);
                over(Linear::InputGrad.into(), None, &[grad.into(), weight.into()], out)
                    .followed_by([RowStep::ReluGrad], [y])
            });
            time("weight gradient", &shape, |rig| {
                let (grad, x) = (rig.mat(n, d_out), rig.mat(n, d_in));
                let out = rig.put(&vec![0f32; d_in * d_out]);
                let bytes = linear_weight_grad_workspace_bytes(n as u64, d_in as u64, d_out as u64);
                let workspace = Some(rig.put(&vec![0u8; bytes as usize]));
                let inputs = [grad.into(), x.into()];
                Call { workspace, ..over(Linear::WeightGrad.into(), None, &inputs, Mat::f32(out, d_out, d_in)) }
            });
        }
    }
    for d in [16, 256] {
        let n = 25_600_000 / d;
        let shape = format!("{n} x {d}");
        if wants("stored_rows") {
            time("relu", &shape, |rig| {
                let (x, out) = (rig.mat(n, d), rig.mat(n, d));
                over(RowStep::Relu.into(), None, &[x.into()], out)
            });
            time("add", &shape, |rig| {
                let (x, y, out) = (rig.mat(n, d), rig.mat(n, d), rig.mat(n, d));
                over(RowStep::Add.into(), None, &[x.into(), y.into()], out)
            });
            time("column sum", &shape, |rig| {
                let x = rig.mat(n, d);
                let out = rig.put(&vec![0f32; d]);
                over(Linear::ColumnSum.into(), None, &[x.into()], Mat::f32(out, 1, d))
            });
        }
    }
}
