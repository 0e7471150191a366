//! Bandwidth, gathers, epochs, and training with less memory than it needs.

use std::time::Instant;

use bytesize::ByteSize;
use lapidary_kernels::{BlockSlots, Call, Device, Event, HostSlot, Lane, Mat, Shared, Slot, cpu, cuda};
use ndarray::Array2;
use serde_json::{Value, json};

use super::{DEVICE, Size, median};
use crate::dataset::{Arrays, Dataset};
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::model::Model;
use crate::runtime::{Devices, MemoryPolicy};
use crate::train::{Adam, Trainer};

/// Timed runs of a kernel, after one that is not.
const RUNS: usize = 9;

/// A published shape: vertices, edges with both directions, and the widths of its gathers.
struct Shape {
    name: &'static str,
    vertices: usize,
    edges: usize,
    widths: &'static [usize],
    /// Layers of the networks that are trained on it.
    networks: &'static [&'static [usize]],
}

const SHAPES: [Shape; 3] = [
    Shape { name: "pubmed", vertices: 19_717, edges: 88_648, widths: &[3, 16, 500], networks: &[&[500, 16, 3]] },
    Shape {
        name: "reddit",
        vertices: 232_965,
        edges: 114_615_892,
        widths: &[16, 41, 256, 602],
        networks: &[&[602, 16, 41], &[602, 256, 41]],
    },
    Shape {
        name: "products",
        vertices: 2_449_029,
        edges: 123_718_280,
        widths: &[47, 104, 256],
        networks: &[&[104, 256, 256, 47]],
    },
];

impl Shape {
    /// A symmetric graph in which some vertices have many more edges than others.
    fn graph(&self, size: Size) -> Result<Graph> {
        let vertices = (self.vertices / size.divisor()).max(20);
        let pairs = (self.edges / 2 / size.divisor()).max(40);
        let mut numbers = Numbers(1);
        let mut end = || ((numbers.unit().powi(2) * vertices as f64) as usize * 77_773 % vertices) as u32;
        let edges: Vec<(u32, u32)> = (0..pairs).map(|_| (end(), end())).flat_map(|(u, v)| [(u, v), (v, u)]).collect();
        Ok(Graph::from_edges(vertices, &edges).expect("the ends are vertices"))
    }

    fn data(&self, graph: Graph, network: &[usize]) -> Result<Dataset> {
        let n = graph.vertex_count();
        let (width, classes) = (network[0], network[network.len() - 1]);
        let mut numbers = Numbers(2);
        let features = Array2::from_shape_fn((n, width), |_| numbers.unit() as f32 - 0.5);
        let labels: Vec<i64> = (0..n).map(|v| (v * 7 % classes) as i64).collect();
        let train: Vec<i64> = (0..n as i64).collect();
        let arrays =
            Arrays::new(graph).name(self.name).directed(false).features(features).labels(&labels).train(&train);
        Ok(Dataset::from_arrays(arrays)?)
    }
}

/// A small generator (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The GPU with its memory, to be filled by hand.
struct Bench(Box<dyn Device>);

impl Bench {
    fn open() -> Result<Self> {
        cuda::open(DEVICE, 0, u64::MAX).map(Self).map_err(|source| failed("opening it", source))
    }

    fn put<T: bytemuck::Pod + Send + Sync>(&self, slot: u32, values: Vec<T>) -> Result<Slot> {
        let (slot, values) = (Slot(slot), Shared::from(values));
        let host = HostSlot::constant(&values);
        let copied = self.0.alloc(slot, host.len() as u64);
        let copied = copied.and_then(|()| self.0.copy_in(Lane::CopyIn, slot, &host, &[]));
        copied.and_then(|event| self.0.wait(event)).map_err(|source| failed("filling it", source))?;
        Ok(slot)
    }

    fn matrix(&self, slot: u32, rows: usize, cols: usize) -> Result<Mat> {
        let mut numbers = Numbers(3);
        let values: Vec<f32> = (0..rows * cols).map(|_| numbers.unit() as f32 - 0.5).collect();
        Ok(Mat { slot: self.put(slot, values)?, rows, cols })
    }

    fn room(&self, slot: u32, rows: usize, cols: usize) -> Result<Mat> {
        let slot = Slot(slot);
        self.0.alloc(slot, 4 * (rows * cols) as u64).map_err(|source| failed("taking memory", source))?;
        Ok(Mat { slot, rows, cols })
    }

    fn free(&self, slot: Slot) -> Result<()> {
        self.0.free(slot).map_err(|source| failed("giving memory back", source))
    }

    /// The median of several launches, by the GPU's own clock.
    fn seconds(&self, call: &Call) -> Result<f64> {
        let launch = || -> lapidary_kernels::Result<Event> {
            let event = self.0.launch(Lane::Compute, call, &[])?;
            self.0.wait(event)?;
            Ok(event)
        };
        launch().map_err(|source| failed(call.name(), source))?;
        self.0.record(true);
        for _ in 0..RUNS {
            launch().map_err(|source| failed(call.name(), source))?;
        }
        self.0.record(false);
        Ok(median(self.0.take_spans().iter().map(|span| (span.end - span.start).as_secs_f64()).collect()))
    }
}

fn failed(op: &str, source: lapidary_kernels::Error) -> Error {
    Error::Device { device: DEVICE.into(), op: op.into(), source: Box::new(source) }
}

/// What the GPU's memory can do: a kernel that reads and writes each cell once.
pub(super) fn bandwidth(size: Size) -> Result<Value> {
    let bench = Bench::open()?;
    Ok(json!({ "device_bytes_per_s": copy_rate(&bench, size)? }))
}

fn copy_rate(bench: &Bench, size: Size) -> Result<f64> {
    let rows = (1 << 20) / size.divisor();
    let (x, out) = (bench.matrix(0, rows, 256)?, bench.room(1, rows, 256)?);
    let seconds = bench.seconds(&Call::Relu { x, out })?;
    bench.free(x.slot)?;
    bench.free(out.slot)?;
    Ok(cpu::elementwise_bytes(1, rows as u64, 256) as f64 / seconds)
}

/// Gathers of published shapes, in seconds and as a share of the bandwidth. More than 1 is what the caches give.
pub(super) fn gathers(size: Size) -> Result<Value> {
    let bench = Bench::open()?;
    let copy_rate = copy_rate(&bench, size)?;
    let mut rows = Vec::new();
    for shape in &SHAPES {
        let graph = shape.graph(size)?;
        let (n, e) = (graph.vertex_count(), graph.edge_count());
        let block = BlockSlots {
            indptr: bench.put(0, graph.indptr().to_vec())?,
            indices: bench.put(1, graph.indices().to_vec())?,
            rows: n,
            own_sources: n,
            halo_sources: 0,
            edges: e,
        };
        for &d in shape.widths {
            let (own, out) = (bench.matrix(2, n, d)?, bench.room(3, n, d)?);
            let seconds = bench.seconds(&Call::Gather { block, weights: None, own, halo: None, out })?;
            let bytes_per_s = cpu::gather_bytes(n as u64, e as u64, d as u64) as f64 / seconds;
            rows.push(json!({
                "shape": shape.name, "vertices": n, "edges": e, "width": d, "seconds": seconds,
                "bytes_per_s": bytes_per_s, "share_of_bandwidth": bytes_per_s / copy_rate,
            }));
            bench.free(own.slot)?;
            bench.free(out.slot)?;
        }
        bench.free(block.indptr)?;
        bench.free(block.indices)?;
    }
    Ok(rows.into())
}

/// The seconds of a steady epoch of some trainings: the median of those after the second.
fn epoch_seconds(trainer: &mut Trainer, epochs: usize) -> Result<f64> {
    trainer.step()?;
    trainer.step()?;
    let seconds: Vec<f64> = (0..epochs).map(|_| Ok(trainer.step()?.seconds)).collect::<Result<_>>()?;
    Ok(median(seconds))
}

/// A GCN on all labels without dropout, as MG-GCN's measurements are.
fn trainer(model: &Model, data: &Dataset, memory: Option<u64>, policy: MemoryPolicy) -> Result<Trainer> {
    let builder = Trainer::builder(model, data)
        .devices(Devices::parse(DEVICE)?)
        .memory(policy)
        .optimizer(Adam::new(0.01))
        .eval_every(0);
    match memory {
        Some(memory) => builder.device_memory(ByteSize::b(memory)).build(),
        None => builder.build(),
    }
}

/// Epochs of published shapes.
pub(super) fn epochs(size: Size) -> Result<Value> {
    let mut rows = Vec::new();
    for shape in &SHAPES {
        let graph = shape.graph(size)?;
        for network in shape.networks {
            let data = shape.data(graph.clone(), network)?;
            let start = Instant::now();
            let mut made = trainer(&Model::gcn(network), &data, None, MemoryPolicy::Optimal)?;
            let setup_seconds = start.elapsed().as_secs_f64();
            let seconds = epoch_seconds(&mut made, 9)?;
            rows.push(json!({
                "shape": shape.name, "network": network, "epoch_seconds": seconds, "setup_seconds": setup_seconds,
                "peak_bytes": made.peak_device_bytes(),
            }));
        }
    }
    Ok(rows.into())
}

/// Reddit's shape with a share of the memory that it needs, by policy: ROC's figure 10.
pub(super) fn capacity(size: Size) -> Result<Value> {
    let shape = &SHAPES[1];
    let network = shape.networks[1];
    let data = shape.data(shape.graph(size)?, network)?;
    let model = Model::gcn(network);
    let whole = trainer(&model, &data, None, MemoryPolicy::Optimal)?.planned_peak_device_bytes()[0];
    let mut rows = Vec::new();
    for percent in [50, 25, 10] {
        for (name, policy) in [
            ("none", MemoryPolicy::None),
            ("lru", MemoryPolicy::Lru),
            ("roc", MemoryPolicy::Roc),
            ("optimal", MemoryPolicy::Optimal),
        ] {
            let memory = whole * percent / 100;
            let row = match trainer(&model, &data, Some(memory), policy) {
                Ok(mut made) => {
                    let seconds = epoch_seconds(&mut made, 3)?;
                    let last = made.step()?;
                    let moved = [last.bytes_to_device, last.bytes_to_host];
                    json!({ "epoch_seconds": seconds, "bytes": moved, "ok": moved == last.planned_bytes })
                }
                Err(Error::DoesNotFit { need_bytes, .. }) => json!({ "needed_bytes": need_bytes }),
                Err(error) => return Err(error),
            };
            let mut all = json!({ "percent": percent, "policy": name, "device_memory": memory });
            all.as_object_mut().expect("it is one").extend(row.as_object().cloned().expect("it is one"));
            rows.push(all);
        }
    }
    Ok(rows.into())
}
