//! The device under test, with slots that are numbered in order.

use std::cell::{Cell, RefCell};
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::OnceLock;

use bytemuck::Pod;
use lapidary_kernels::{BlockSlots, Call, CpuDevice, Device, HostSlot, Lane, Mat, Matmul, Result, Slot, cuda};

use super::graphs::Graph;
use super::numbers::Matrix;

/// The GPU under test, if it is not the CPU.
static GPU: OnceLock<Option<u32>> = OnceLock::new();

/// Makes GPU `ordinal` the device under test, for the rest of the process.
///
/// # Panics
/// If checks have run on another device.
pub fn select_gpu(ordinal: u32) {
    assert_eq!(*GPU.get_or_init(|| Some(ordinal)), Some(ordinal), "another device is under test");
}

/// Returns the number of the GPU under test; `None` if the CPU is. Tests select GPU 0 by `LAPIDARY_TEST_DEVICE=cuda`.
pub fn gpu() -> Option<u32> {
    *GPU.get_or_init(|| std::env::var_os("LAPIDARY_TEST_DEVICE").is_some_and(|device| device == "cuda").then_some(0))
}

/// Whether a GPU is under test.
pub fn on_gpu() -> bool {
    gpu().is_some()
}

/// Whether kernels run with few shapes.
static FEW_SHAPES: OnceLock<bool> = OnceLock::new();

/// Makes checks run with [few shapes](shapes_are_few), for the rest of the process.
///
/// # Panics
/// If checks have run with all shapes.
pub fn select_few_shapes() {
    assert!(*FEW_SHAPES.get_or_init(|| true), "checks have run with all shapes");
}

/// Whether kernels run with few shapes, for devices on which they take long. Then graphs are small, and a second run of the
/// same kernel, which could show a race, is left out. Tests select it by `LAPIDARY_TEST_SHAPES=few`.
pub fn shapes_are_few() -> bool {
    *FEW_SHAPES.get_or_init(|| std::env::var_os("LAPIDARY_TEST_SHAPES").is_some_and(|shapes| shapes == "few"))
}

/// Opens the device under test.
pub fn open_device(threads: usize, capacity_bytes: u64) -> Box<dyn Device> {
    match gpu() {
        Some(ordinal) => cuda::open(&format!("cuda:{ordinal}"), ordinal, capacity_bytes).unwrap(),
        None => Box::new(CpuDevice::new(NonZeroUsize::new(threads), capacity_bytes).unwrap()),
    }
}

thread_local! {
    /// Opening a GPU takes long, so a thread opens one, and its rigs use different slots of it.
    static OPENED: (Rc<dyn Device>, Cell<u32>) = (Rc::from(open_device(1, u64::MAX)), Cell::new(1000));
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
            return OPENED.with(|(device, next)| Self { device: device.clone(), next: next.clone(), used });
        }
        Self { device: Rc::from(open_device(threads, u64::MAX)), next: Cell::new(0), used }
    }

    /// Returns a rig on a device of its own. If it is a GPU, it works as if its L2 cache had `cache_bytes` bytes.
    pub fn with_cache(cache_bytes: u64) -> Self {
        let device = match gpu() {
            Some(ordinal) => {
                let options = cuda::Options { cache_bytes: Some(cache_bytes), ..cuda::Options::default() };
                cuda::open_with(&format!("cuda:{ordinal}"), ordinal, u64::MAX, &options, None).unwrap()
            }
            None => open_device(1, u64::MAX),
        };
        Self::on(device)
    }

    /// Returns a rig on this device.
    pub fn on(device: Box<dyn Device>) -> Self {
        Self { device: Rc::from(device), next: Cell::new(0), used: RefCell::default() }
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
        Some(Self::on(Box::new(device)))
    }

    /// Allocates bytes that a call will write.
    pub fn room(&self, bytes: u64) -> Slot {
        let slot = Slot(self.next.replace(self.next.get() + 1));
        self.used.borrow_mut().push(slot);
        self.device.alloc(slot, bytes).unwrap();
        slot
    }

    pub fn put<T: Pod>(&self, values: &[T]) -> Slot {
        let slot = self.room(size_of_val(values) as u64);
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
            OPENED.with(|(opened, next)| {
                if Rc::ptr_eq(opened, &self.device) {
                    next.set(self.next.get());
                }
            });
            // The test may have freed some of them.
            self.used.take().into_iter().for_each(|slot| drop(self.device.free(slot)));
        }
    }
}
