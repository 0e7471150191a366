//! Memory and graphs as the driver counts them, beside the plan and the program's own counts.

use bytesize::ByteSize;
use lapidary_kernels::cuda;
use serde_json::json;

use super::super::section::{Finished, Row, Section};
use super::super::shapes::{Graphs, SHAPES, Shape};
use super::super::{Scope, driver};
use crate::error::Result;
use crate::model::Model;
use crate::runtime::Devices;
use crate::train::{Adam, Trainer};

const NEXT: &str = "Train with less memory than the GPU has (`--device-memory`), and report it with results.json.";

/// More epochs than are needed until an epoch is launched as a graph.
const EPOCHS: usize = 12;

/// Bytes that the driver may have in use beside the slots: partial sums, and what it rounds up.
const BESIDE: u64 = 256 << 20;

/// Trains on each shape, and compares what the driver counted with the plan.
pub(in super::super) fn against_the_driver(scope: &Scope, graphs: &Graphs) -> Finished {
    let mut section = Section::new(scope, "memory", SHAPES.len(), NEXT, None);
    for shape in SHAPES {
        section.row(shape.name, || train(scope.gpu, graphs, shape));
    }
    section.finish()
}

fn train(gpu: u32, graphs: &Graphs, shape: &Shape) -> Result<Row> {
    let network = shape.networks[0];
    let (data, model) = (shape.data(graphs.of(shape), network)?, Model::gcn(network));
    let count = || driver("counting memory", cuda::counts(gpu));
    let devices = || Devices::parse(&format!("cuda:{gpu}"));
    let before = count()?;
    driver("counting memory", cuda::forget_most(gpu))?;
    let builder = Trainer::builder(&model, &data).devices(devices()?).optimizer(Adam::new(0.01)).eval_every(0);
    let mut trainer = builder.build()?;
    let mut last = trainer.step()?;
    for _ in 1..EPOCHS {
        last = trainer.step()?;
    }
    let (loss, copies_nothing) = (last.loss, last.planned_bytes == [0, 0]);
    let after = count()?;
    let (peak, planned) = (trainer.peak_device_bytes()[0], trainer.planned_peak_device_bytes()[0]);
    let graphs = after.graphs_launched - before.graphs_launched;
    let refused = after.captures_refused - before.captures_refused;
    let facts = json!({
        "shape": shape.name, "network": network, "loss": loss, "planned_peak_bytes": planned, "peak_bytes": peak,
        "driver_most_used_bytes": after.most_used_bytes, "driver_most_reserved_bytes": after.most_reserved_bytes,
        "driver_free_bytes": [before.free_bytes, after.free_bytes],
        "graphs_launched": graphs, "captures_refused": refused, "epochs": EPOCHS, "tiles": trainer.tiles(),
    });
    let shown = |bytes: u64| ByteSize::b(bytes);
    let most = peak + peak / 2 + BESIDE;
    let used = after.most_used_bytes.unwrap_or(peak);
    Ok(Row::new(facts)
        .expect(loss.is_finite(), || format!("the loss is {loss}"))
        .expect(peak <= planned, || format!("the peak is {}, but {} were planned", shown(peak), shown(planned)))
        .expect((peak..=most).contains(&used), || {
            format!("the driver had {} in use, but the program counts {}", shown(used), shown(peak))
        })
        .expect(refused == 0, || format!("the driver refused to capture {refused} graphs"))
        .expect(graphs > 0 || !copies_nothing, || {
            format!("no graph was launched in {EPOCHS} epochs that copy nothing")
        }))
}
