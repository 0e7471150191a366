//! Task graphs of training epochs in tiles: few kinds of ops, over many tiles of rows and sources.

use lapidary_planner::tasks::{Task, TaskGraph, Tensor, TensorId, TensorKind};

/// Returns the task graph of a training epoch of a GCN in `tiles` tiles. A gather adds `group` tiles of sources to one
/// tile of rows at a time. `rows` is the number of rows of a tile and `edges` that of its edges.
pub fn tiled_graph(layers: usize, tiles: usize, group: usize, rows: u64, edges: u64, width: u64) -> TaskGraph {
    let mut b = Builder { tensors: Vec::new(), ops: Vec::new(), group };
    let matrix = 4 * rows * width;
    let blocks: Vec<TensorId> = (0..tiles).map(|i| b.input(format!("edges.{i}"), 8 * rows + 4 * edges)).collect();
    let labels: Vec<TensorId> = (0..tiles).map(|i| b.input(format!("labels.{i}"), 8 * rows)).collect();
    let mut inputs = vec![(0..tiles).map(|i| b.input(format!("x.{i}"), matrix)).collect::<Vec<TensorId>>()];
    let weights: Vec<TensorId> = (0..layers).map(|l| b.input(format!("w.{l}"), 4 * width * width)).collect();
    for (l, weight) in weights.iter().enumerate() {
        let products: Vec<TensorId> = inputs[l].clone().iter().map(|h| b.op("z", &[*h, *weight], matrix)).collect();
        let sums = b.gather(&blocks, &products, matrix);
        inputs.push(sums.iter().map(|sum| b.op("h", &[*sum], matrix)).collect());
    }
    let mut grads: Vec<TensorId> =
        (0..tiles).map(|i| b.op("dlogits", &[inputs[layers][i], labels[i]], matrix)).collect();
    for (l, weight) in weights.iter().enumerate().rev() {
        let relu: Vec<TensorId> = (0..tiles).map(|i| b.op("drelu", &[grads[i], inputs[l + 1][i]], matrix)).collect();
        let sums = b.gather(&blocks, &relu, matrix);
        let mut gradient: Option<TensorId> = None;
        for i in 0..tiles {
            let operands: Vec<TensorId> = [inputs[l][i], sums[i]].into_iter().chain(gradient).collect();
            gradient = Some(b.op("dw", &operands, 4 * width * width));
        }
        if l > 0 {
            grads = sums.iter().map(|sum| b.op("dh", &[*sum, *weight], matrix)).collect();
        }
        b.adam(*weight, gradient.expect("there are tiles"), l, 4 * width * width);
    }
    TaskGraph::new(b.tensors, b.ops).expect("the program is good")
}

struct Builder {
    tensors: Vec<Tensor>,
    ops: Vec<Task>,
    group: usize,
}

impl Builder {
    fn tensor(&mut self, name: String, bytes: u64, kind: TensorKind) -> TensorId {
        self.tensors.push(Tensor { name: name.into(), bytes, kind, publish: false });
        TensorId(self.tensors.len() as u32 - 1)
    }

    fn input(&mut self, name: String, bytes: u64) -> TensorId {
        self.tensor(name, bytes, TensorKind::Constant)
    }

    fn op(&mut self, name: &str, inputs: &[TensorId], bytes: u64) -> TensorId {
        let output = self.tensor(format!("{name}.{}", self.tensors.len()), bytes, TensorKind::Local);
        let name = format!("{name} {}", self.ops.len());
        self.ops.push(Task { name: name.into(), inputs: inputs.to_vec(), outputs: vec![output], next: Vec::new() });
        output
    }

    fn gather(&mut self, blocks: &[TensorId], sources: &[TensorId], bytes: u64) -> Vec<TensorId> {
        let group = self.group;
        let sum = |b: &mut Self, block: &TensorId| {
            sources.chunks(group).fold(None, |sum: Option<TensorId>, sources| {
                let operands: Vec<TensorId> = [*block].into_iter().chain(sources.to_vec()).chain(sum).collect();
                Some(b.op("sum", &operands, bytes))
            })
        };
        blocks.iter().map(|block| sum(self, block).expect("there are sources")).collect()
    }

    fn adam(&mut self, weight: TensorId, gradient: TensorId, layer: usize, bytes: u64) {
        let moments = ["m", "v"].map(|name| self.input(format!("{name}.{layer}"), bytes));
        let mut op = Task {
            name: format!("adam {layer}").into(),
            inputs: vec![weight, gradient, moments[0], moments[1]],
            ..Task::default()
        };
        for state in [weight, moments[0], moments[1]] {
            let next = self.tensor(format!("{}'", self.tensors[state.index()].name), bytes, TensorKind::Local);
            op.outputs.push(next);
            op.next.push((next, state));
        }
        self.ops.push(op);
    }
}
