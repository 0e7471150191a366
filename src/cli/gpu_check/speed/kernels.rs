//! The GPU's memory, its link to the host, launches, gathers as a share of the memory bandwidth, and products.

use lapidary_kernels::op::Linear;
use lapidary_kernels::reference::{Dense, linear};
use lapidary_kernels::{Call, Error as DeviceError, Matmul, cpu};
use serde_json::json;

use super::super::budget::Budget;
use super::super::section::{Finished, Row, Section, lacks_memory, spread};
use super::super::shapes::{Graphs, PRODUCTS, REDDIT, SHAPES, Shape};
use super::super::{Scope, Size};
use super::NEXT;
use crate::error::{Error, Result};
use crate::profile::gpu::Bench;

/// Measures bytes per second within the device and in both directions to the host, and seconds per launch. Also gives
/// the profile that plans are made with.
pub(in super::super) fn device(scope: &Scope, budget: Budget) -> Finished {
    let size = scope.size;
    let mut section = Section::new(scope, "device", 1, NEXT, Some(budget));
    section.row("rates", || {
        let bench = Bench::open(scope.gpu)?;
        let [to_device, to_host] = bench.copy_rates((1 << 28) / size.divisor(), size.runs())?;
        let [waited_s, queued_s] = bench.launch_seconds(if size == Size::Tiny { 20 } else { 2000 })?;
        let device_bytes_per_s = bench.memory_rate((1 << 20) / size.divisor(), size.runs())?;
        drop(bench);
        let profile = crate::profile::load(&scope.device())?;
        Ok(Row::new(json!({
            "device_bytes_per_s": device_bytes_per_s,
            "to_device_bytes_per_s": to_device, "to_host_bytes_per_s": to_host,
            "launch_seconds": { "each_waited_for": waited_s, "one_behind_the_other": queued_s },
            "profile": profile,
        })))
    });
    section.finish()
}

/// Measures gathers of published shapes, in seconds and as a share of the bandwidth. A share above 1 is due to caches.
pub(in super::super) fn gathers(scope: &Scope, graphs: &Graphs, budget: Budget) -> Finished {
    let size = scope.size;
    let count = SHAPES.iter().map(|shape| shape.widths.len()).sum();
    let mut section = Section::new(scope, "gathers", count, NEXT, Some(budget));
    let mut bandwidth = None;
    for shape in SHAPES {
        for &d in shape.widths {
            section.row(&format!("{} width {d}", shape.name), || {
                let graph = graphs.of(shape);
                let (n, e) = (graph.vertex_count(), graph.edge_count());
                if let Some(row) =
                    lacks_memory(scope.gpu, cpu::gather_bytes(n as u64, e as u64, 0) + 8 * (n * d) as u64)
                {
                    return Ok(row);
                }
                let bench = Bench::open(scope.gpu)?;
                let bandwidth = match bandwidth {
                    Some(known) => known,
                    None => *bandwidth.insert(bench.memory_rate((1 << 20) / size.divisor(), size.runs())?),
                };
                let block = bench.block(&graph)?;
                let (own, out) = (bench.matrix(2, n, d)?, bench.room(3, n, d)?);
                let call = Call::gather(block, None, own, None, out);
                let [seconds, least, most] = spread(bench.seconds(&call, size.runs())?);
                let bytes_per_s = cpu::gather_bytes(n as u64, e as u64, d as u64) as f64 / seconds;
                Ok(Row::new(json!({
                    "shape": shape.name, "vertices": n, "edges": e, "width": d,
                    "seconds": seconds, "seconds_range": [least, most],
                    "bytes_per_s": bytes_per_s, "share_of_bandwidth": bytes_per_s / bandwidth,
                    "choices": bench.choices(),
                })))
            });
        }
    }
    section.finish()
}

/// Products of the networks that are trained: the graph whose vertices are rows, and the columns before and after.
const LAYERS: [(&Shape, [usize; 2]); 3] = [(&REDDIT, [602, 256]), (&PRODUCTS, [256, 256]), (&REDDIT, [256, 41])];

/// Measures products in each way of multiplying f32 matrices, and how far they are off.
pub(in super::super) fn products(scope: &Scope, budget: Budget) -> Finished {
    const WAYS: [Matmul; 3] = [Matmul::F32, Matmul::Tf32x3, Matmul::Tf32];
    let mut section = Section::new(scope, "products", LAYERS.len() * WAYS.len(), NEXT, Some(budget));
    for (shape, [d_in, d_out]) in LAYERS {
        for way in WAYS {
            section.row(&format!("{} {d_in}-{d_out} in {way}", shape.name), || {
                let rows = (shape.vertices / scope.size.divisor()).max(20);
                match Bench::multiplying(scope.gpu, way) {
                    Ok(bench) => product(scope, &bench, (shape.name, way), [rows, d_in, d_out]),
                    Err(Error::Device { source, .. }) if matches!(*source, DeviceError::NoTf32 { .. }) => {
                        Ok(Row::NotHere(source.to_string()))
                    }
                    Err(error) => Err(error),
                }
            });
        }
    }
    section.finish()
}

fn product(scope: &Scope, bench: &Bench, (name, way): (&str, Matmul), [rows, d_in, d_out]: [usize; 3]) -> Result<Row> {
    if let Some(row) = lacks_memory(scope.gpu, 4 * (rows * (d_in + d_out) + d_in * d_out) as u64) {
        return Ok(row);
    }
    let weight = bench.matrix(0, d_out, d_in)?;
    let (x, out) = (bench.matrix(1, rows, d_in)?, bench.room(2, rows, d_out)?);
    let [seconds, least, most] =
        spread(bench.seconds(&Call::new(Linear::Product, [x, weight], [out]), scope.size.runs())?);
    let some = rows.min(64);
    let (x, out) = (bench.matrix(3, some, d_in)?, bench.room(4, some, d_out)?);
    bench.run(&Call::new(Linear::Product, [x, weight], [out]))?;
    let error = largest_error(&bench.get(out)?, d_in, d_out);
    // A number of TF32 has 11 bits, so a product of two may be off by 2^-10. By 3xTF32, it is off by 2^-21 at most, and sums
    // are rounded once for 16 terms: far less than without one of the rests.
    let most_off = match way {
        Matmul::Tf32 => 1e-3,
        Matmul::Tf32x3 => 4e-6,
        Matmul::F32 | Matmul::Bf16 => (d_in + 2) as f64 * f64::from(f32::EPSILON),
    };
    let facts = json!({
        "shape": name, "rows": rows, "columns": [d_in, d_out], "matmul": way.name(),
        "seconds": seconds, "seconds_range": [least, most],
        "flops_per_s": 2.0 * (rows * d_in * d_out) as f64 / seconds, "largest_error": error,
    });
    Ok(Row::new(facts)
        .expect(error <= most_off, || format!("a cell is off by {error:e} of its terms, not by {most_off:e}")))
}

/// Returns the largest error of a product of two matrices of [`Bench::cell`], as a share of the sum of the terms' magnitudes.
fn largest_error(got: &[f32], d_in: usize, d_out: usize) -> f64 {
    let matrix = |rows: usize| Dense::from_fn(rows, d_in, |r, c| f64::from(Bench::cell(r * d_in + c)));
    let (x, weight) = (matrix(got.len() / d_out), matrix(d_out));
    let (want, magnitude) = (linear(&x, &weight), linear(&x.map(f64::abs), &weight.map(f64::abs)));
    let cells = got.iter().zip(&want.data).zip(&magnitude.data);
    let errors =
        cells.map(|((&got, want), magnitude)| (f64::from(got) - want).abs() / magnitude.max(f64::MIN_POSITIVE));
    errors.fold(0.0, |most: f64, error| if error > most || error.is_nan() { error } else { most })
}
