//! Task graphs of training epochs, at the granularity of single layer functions: forward, backward and Adam.

use lapidary_planner::tasks::{Task, TaskGraph, Tensor, TensorId, TensorKind};

/// The model that is trained.
#[derive(Clone, Copy, Debug)]
pub enum Model {
    Gcn,
    Gin,
    CommNet,
    ResGcn,
}

/// Returns the task graph of a training epoch with `layers` layers of the given widths, over `n` vertices and `e`
/// edges.
pub fn training_graph(
    model: Model,
    layers: usize,
    n: u64,
    e: u64,
    features: u64,
    hidden: u64,
    classes: u64,
) -> TaskGraph {
    let mut b = Builder { n, tensors: Vec::new(), ops: Vec::new() };
    let graph = b.input("graph", 8 * (n + 1) + 4 * e);
    let labels = b.input("labels", 8 * n);
    let x = b.input("features", 4 * n * features);
    let mut layer_inputs = vec![x];
    let mut undo: Vec<Undo> = Vec::new();
    for l in 0..layers {
        let d_in = if l == 0 { features } else { hidden };
        let d_out = if l + 1 == layers { classes } else { hidden };
        let h = layer_inputs[l];
        let out = b.layer(model, l, graph, h, d_in, d_out, l + 1 < layers, &mut undo);
        layer_inputs.push(out);
    }
    let logits = layer_inputs[layers];
    let mut grad = b.op("loss", &[logits, labels], "dlogits", 4 * n * classes);
    while let Some(step) = undo.pop() {
        grad = b.undo(step, graph, grad, x);
    }
    TaskGraph::new(b.tensors, b.ops).expect("the program is good")
}

/// A forward step, for the backward pass.
enum Undo {
    Relu {
        out: TensorId,
        width: u64,
    },
    Gather {
        width: u64,
    },
    Linear {
        input: TensorId,
        weight: TensorId,
        bias: Option<TensorId>,
        d_in: u64,
        d_out: u64,
        name: String,
    },
    /// Runs the branches `a` and `b` backward on the same gradient, and adds their results.
    Both {
        a: Vec<Undo>,
        b: Vec<Undo>,
        width: u64,
    },
}

struct Builder {
    n: u64,
    tensors: Vec<Tensor>,
    ops: Vec<Task>,
}

impl Builder {
    fn tensor(&mut self, name: String, bytes: u64, kind: TensorKind) -> TensorId {
        self.tensors.push(Tensor { name: name.into(), bytes, kind, publish: false });
        TensorId(self.tensors.len() as u32 - 1)
    }

    fn input(&mut self, name: &str, bytes: u64) -> TensorId {
        self.tensor(name.into(), bytes, TensorKind::Constant)
    }

    fn op(&mut self, name: &str, inputs: &[TensorId], output: &str, bytes: u64) -> TensorId {
        let count = self.tensors.len();
        let output = self.tensor(format!("{output}.{count}"), bytes, TensorKind::Local);
        let name = format!("{name}.{}", self.ops.len());
        self.ops.push(Task { name: name.into(), inputs: inputs.to_vec(), outputs: vec![output], next: Vec::new() });
        output
    }

    fn linear(
        &mut self,
        h: TensorId,
        name: String,
        d_in: u64,
        d_out: u64,
        bias: bool,
        undo: &mut Vec<Undo>,
    ) -> TensorId {
        let weight = self.input(&format!("{name}.weight"), 4 * d_in * d_out);
        let bias = bias.then(|| self.input(&format!("{name}.bias"), 4 * d_out));
        let mut inputs = vec![h, weight];
        inputs.extend(bias);
        let out = self.op("linear", &inputs, "z", 4 * self.n * d_out);
        undo.push(Undo::Linear { input: h, weight, bias, d_in, d_out, name });
        out
    }

    fn relu(&mut self, z: TensorId, width: u64, undo: &mut Vec<Undo>) -> TensorId {
        let out = self.op("relu", &[z], "h", 4 * self.n * width);
        undo.push(Undo::Relu { out, width });
        out
    }

    fn gather(&mut self, graph: TensorId, h: TensorId, width: u64, undo: &mut Vec<Undo>) -> TensorId {
        undo.push(Undo::Gather { width });
        self.op("gather", &[graph, h], "a", 4 * self.n * width)
    }

    #[allow(clippy::too_many_arguments)]
    fn layer(
        &mut self,
        model: Model,
        l: usize,
        graph: TensorId,
        h: TensorId,
        d_in: u64,
        d_out: u64,
        relu: bool,
        undo: &mut Vec<Undo>,
    ) -> TensorId {
        let bytes = 4 * self.n * d_out;
        let mut out = match model {
            Model::Gcn => {
                let z = self.linear(h, format!("convs.{l}.lin"), d_in, d_out, true, undo);
                self.gather(graph, z, d_out, undo)
            }
            Model::Gin => {
                let a = self.gather(graph, h, d_in, undo);
                let z = self.linear(a, format!("convs.{l}.nn.0"), d_in, d_out, true, undo);
                let r = self.relu(z, d_out, undo);
                self.linear(r, format!("convs.{l}.nn.2"), d_out, d_out, true, undo)
            }
            Model::CommNet => {
                let (mut own, mut far) = (Vec::new(), Vec::new());
                let a = self.linear(h, format!("convs.{l}.lin_h"), d_in, d_out, true, &mut own);
                let z = self.linear(h, format!("convs.{l}.lin_c"), d_in, d_out, false, &mut far);
                let c = self.gather(graph, z, d_out, &mut far);
                undo.push(Undo::Both { a: own, b: far, width: d_in });
                self.op("add", &[a, c], "s", bytes)
            }
            Model::ResGcn => {
                let (mut skip, mut conv) = (Vec::new(), Vec::new());
                let z = self.linear(h, format!("convs.{l}.lin"), d_in, d_out, true, &mut conv);
                let mut c = self.gather(graph, z, d_out, &mut conv);
                if relu {
                    c = self.relu(c, d_out, &mut conv);
                }
                let s =
                    if d_in == d_out { h } else { self.linear(h, format!("res.{l}"), d_in, d_out, false, &mut skip) };
                undo.push(Undo::Both { a: skip, b: conv, width: d_in });
                return self.op("add", &[c, s], "h", bytes);
            }
        };
        if relu {
            out = self.relu(out, d_out, undo);
        }
        out
    }

    /// Appends the backward ops of a step. Takes the gradient of its output and returns the gradient of its input.
    /// Parameters are updated on the way.
    fn undo(&mut self, step: Undo, graph: TensorId, grad: TensorId, features: TensorId) -> TensorId {
        let n = self.n;
        match step {
            Undo::Relu { out, width } => self.op("drelu", &[grad, out], "dz", 4 * n * width),
            Undo::Gather { width } => self.op("dgather", &[graph, grad], "da", 4 * n * width),
            Undo::Linear { input, weight, bias, d_in, d_out, name } => {
                let dw = self.op("dweight", &[input, grad], "dw", 4 * d_in * d_out);
                self.adam(weight, dw, &name, 4 * d_in * d_out);
                if let Some(bias) = bias {
                    let db = self.op("dbias", &[grad], "db", 4 * d_out);
                    self.adam(bias, db, &format!("{name}.b"), 4 * d_out);
                }
                // Features need no gradient.
                if input == features { grad } else { self.op("dinput", &[grad, weight], "dh", 4 * n * d_in) }
            }
            Undo::Both { a, b, width } => {
                let mut ends = Vec::new();
                for mut branch in [a, b] {
                    let mut at = grad;
                    while let Some(step) = branch.pop() {
                        at = self.undo(step, graph, at, features);
                    }
                    ends.push(at);
                }
                if ends[0] == ends[1] { ends[0] } else { self.op("dadd", &ends, "dh", 4 * n * width) }
            }
        }
    }

    fn adam(&mut self, weight: TensorId, grad: TensorId, name: &str, bytes: u64) {
        let m = self.input(&format!("{name}.m"), bytes);
        let v = self.input(&format!("{name}.v"), bytes);
        let mut op = Task {
            name: format!("adam.{}", self.ops.len()).into(),
            inputs: vec![weight, grad, m, v],
            ..Task::default()
        };
        for state in [weight, m, v] {
            let name = format!("{}'", self.tensors[state.index()].name);
            let next = self.tensor(name, bytes, TensorKind::Local);
            op.outputs.push(next);
            op.next.push((next, state));
        }
        self.ops.push(op);
    }
}
