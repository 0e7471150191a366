//! The layer builder, with which models are written.

use std::collections::BTreeMap;

use super::{AttentionConfig, Init, ModelError, WeightedMean};
use crate::program::{
    Attention, AttentionPass, BlockSpec, CLOCK, DType, Degree, Gather, Linear, LoopWeight, Norm, Op, Origin, Program,
    RowSpace, RowStep, Score, TensorId, TensorType, WeightDropout,
};
use lapidary_kernels::StorageType;
use serde::{Deserialize, Serialize};

/// The purpose of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Training: dropout is applied.
    Train,
    /// Evaluation: dropout does nothing.
    Evaluate,
}

/// The layout of the features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureKind {
    /// A dense matrix with one row per vertex.
    Dense {
        /// Number of columns.
        width: usize,
    },
    /// The non-zeros in CSR.
    Sparse {
        /// Number of columns.
        width: usize,
    },
    /// No features: a learned row for each vertex, in f32.
    Learned {
        /// Number of columns.
        width: usize,
    },
}

impl FeatureKind {
    /// Returns the number of features per vertex.
    pub fn width(self) -> usize {
        match self {
            Self::Dense { width } | Self::Sparse { width } | Self::Learned { width } => width,
        }
    }
}

/// The kind of label, which decides the default loss and the accuracy metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LabelKind {
    /// One class per vertex: softmax cross-entropy, accuracy.
    #[serde(rename = "single")]
    Class,
    /// Several classes per vertex: sigmoid cross-entropy, micro-F1.
    #[serde(rename = "multi")]
    Multi,
}

/// A parameter that a network declares.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Name; the same as in PyG if PyG has the layer.
    pub name: String,
    /// Shape: `[out, in]` of a weight, `[d]` of a bias.
    pub shape: Vec<usize>,
    /// Initial values.
    pub init: Init,
    /// Whether it is trained. If not, it is 0: PyG saves such parameters, and only the value 0 is supported.
    pub trained: bool,
}

impl Parameter {
    /// Returns the numbers of rows and columns; a vector is one row.
    pub fn rows_cols(&self) -> (usize, usize) {
        match self.shape[..] {
            [rows, cols] => (rows, cols),
            _ => (1, self.shape.iter().product()),
        }
    }

    /// Returns the layer of the parameter: the first number in its dotted name (0 in `convs.0.lin.weight`).
    pub fn layer(&self) -> Option<usize> {
        self.name.split('.').find_map(|part| part.parse().ok())
    }
}

/// Input or output of a layer, with one row per vertex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// A dense matrix.
    Dense(TensorId),
    /// Sparse features with these values at the non-zeros. Only dropout, linear layers and [`Network::dense`] accept
    /// them.
    Sparse {
        /// One number per non-zero.
        values: TensorId,
        /// Number of columns.
        width: usize,
    },
}

/// A network under construction: its program so far, and the parameters that it declares.
#[derive(Clone, Debug)]
pub struct Network {
    program: Program,
    parameters: Vec<Parameter>,
    mode: Mode,
    /// Storage type of matrices with one row per vertex.
    dtype: StorageType,
    dropouts: u32,
    /// Whether the weights of edges are used, and what a mean divides by.
    edge_weights: (bool, WeightedMean),
    /// Tensors that inference can return, by name.
    outputs: BTreeMap<String, TensorId>,
}

impl Network {
    /// Returns an empty network and its input: the features.
    pub(super) fn new(features: FeatureKind, mode: Mode, dtype: StorageType) -> Result<(Self, Value), ModelError> {
        let mut program = Program::new();
        let x = match features {
            FeatureKind::Dense { width } => {
                let ty = TensorType { rows: RowSpace::Vertices, width, dtype: dtype.into() };
                Value::Dense(program.input(Origin::Features, ty)?)
            }
            FeatureKind::Learned { width } => {
                Value::Dense(program.input(Origin::Embedding, TensorType::f32(RowSpace::Vertices, width))?)
            }
            FeatureKind::Sparse { width } => {
                let edges = RowSpace::Edges(BlockSpec::Features { width, transposed: false });
                Value::Sparse { values: program.input(Origin::FeatureValues, TensorType::f32(edges, 1))?, width }
            }
        };
        Ok((
            Self {
                program,
                parameters: Vec::new(),
                mode,
                dtype,
                dropouts: 0,
                edge_weights: (false, WeightedMean::Sum),
                outputs: BTreeMap::new(),
            },
            x,
        ))
    }

    pub(super) fn use_edge_weights(&mut self, on: bool, mean: WeightedMean) {
        self.edge_weights = (on, mean);
    }

    /// Whether the network uses the weights of edges: see [`Model::edge_weights`](super::Model::edge_weights).
    pub fn uses_edge_weights(&self) -> bool {
        self.edge_weights.0
    }

    pub(super) fn weighted_mean(&self) -> WeightedMean {
        self.edge_weights.1
    }

    /// Returns the program so far.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Returns the program and the parameters.
    pub fn into_parts(self) -> (Program, Vec<Parameter>) {
        (self.program, self.parameters)
    }

    /// Returns the parameters declared so far, in the order of declaration.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Names a value, so that inference can return it beside the logits: see
    /// [`Predictor::outputs`](crate::Predictor::outputs). A named value that is not requested costs nothing.
    ///
    /// In the built-in models, `hidden` is the input of the last layer.
    ///
    /// # Errors
    /// [`ModelError::OutputTwice`]; [`ModelError::SparseInput`].
    pub fn output(&mut self, name: &str, x: Value) -> Result<(), ModelError> {
        let x = dense(x, "a named output")?;
        match self.outputs.insert(name.into(), x) {
            None => Ok(()),
            Some(_) => Err(ModelError::OutputTwice { name: name.into() }),
        }
    }

    /// Returns the value of this name: see [`Network::output`].
    ///
    /// # Errors
    /// [`ModelError::UnknownOutput`].
    pub fn named(&self, name: &str) -> Result<Value, ModelError> {
        let unknown = || ModelError::UnknownOutput { name: name.into(), known: self.outputs.keys().cloned().collect() };
        self.outputs.get(name).map(|&x| Value::Dense(x)).ok_or_else(unknown)
    }

    /// Returns the number of columns of a value.
    pub fn width(&self, x: Value) -> usize {
        match x {
            Value::Dense(tensor) => self.program.tensor(tensor).ty.width,
            Value::Sparse { width, .. } => width,
        }
    }

    /// Declares a parameter, or returns the one that already has this name: layers with the same name share it.
    ///
    /// # Errors
    /// [`ModelError::ParameterTwice`] if it was declared with another shape.
    pub fn parameter(&mut self, name: &str, shape: &[usize], init: Init) -> Result<TensorId, ModelError> {
        let parameter = Parameter { name: name.into(), shape: shape.to_vec(), init, trained: true };
        let (rows, cols) = parameter.rows_cols();
        self.declare(parameter)?;
        let ty = TensorType::f32(RowSpace::Param(rows), cols);
        Ok(self.program.input(Origin::Parameter(name.into()), ty)?)
    }

    /// Declares an array of zeros that is saved with the weights but not trained.
    ///
    /// # Errors
    /// [`ModelError::ParameterTwice`] if it was declared with another shape.
    pub fn zeros(&mut self, name: &str, shape: &[usize]) -> Result<(), ModelError> {
        self.declare(Parameter { name: name.into(), shape: shape.to_vec(), init: Init::Zeros, trained: false })
    }

    fn declare(&mut self, parameter: Parameter) -> Result<(), ModelError> {
        let (name, shape) = (&parameter.name, &parameter.shape);
        if shape.contains(&0) {
            return Err(ModelError::EmptyParameter { name: name.clone(), shape: shape.clone() });
        }
        match self.parameters.iter().find(|p| p.name == *name) {
            Some(known) if known.shape != *shape => {
                let (name, first, second) = (name.clone(), known.shape.clone(), shape.clone());
                return Err(ModelError::ParameterTwice { name, first, second });
            }
            Some(_) => {}
            None => self.parameters.push(parameter),
        }
        Ok(())
    }

    /// Appends `x W^T`, plus `b` if `bias` is set. Declares `{name}.weight` `[out, in]` and `{name}.bias` `[out]`,
    /// initialised as in `torch.nn.Linear`.
    ///
    /// Sparse features stay sparse: the work is proportional to their non-zeros.
    ///
    /// # Errors
    /// [`ModelError::ParameterTwice`].
    pub fn linear(&mut self, x: Value, name: &str, out: usize, bias: bool) -> Result<Value, ModelError> {
        let init = Init::FanIn(self.width(x));
        let y = self.product(x, &format!("{name}.weight"), out, init)?;
        if bias { self.bias(y, &format!("{name}.bias"), init) } else { Ok(y) }
    }

    /// Appends `x W^T` with the parameter `{name}` `[out, in]`.
    ///
    /// # Errors
    /// [`ModelError::ParameterTwice`].
    pub fn product(&mut self, x: Value, name: &str, out: usize, init: Init) -> Result<Value, ModelError> {
        let weight = self.parameter(name, &[out, self.width(x)], init)?;
        self.product_with(x, weight)
    }

    /// Appends an operation on parameters.
    pub(super) fn push(&mut self, op: impl Into<Op>, inputs: &[TensorId]) -> Result<TensorId, ModelError> {
        Ok(self.program.push1(op, inputs)?)
    }

    /// Appends `x W^T` with a weight `[out, in]`.
    pub(super) fn product_with(&mut self, x: Value, weight: TensorId) -> Result<Value, ModelError> {
        Ok(Value::Dense(match x {
            Value::Dense(x) => {
                let weight = self.as_stored(weight)?;
                self.program.push1(Linear::Product, &[x, weight])?
            }
            Value::Sparse { values, width } => {
                let columns = self.program.push1(Linear::Transpose, &[weight])?;
                let columns = self.as_stored(columns)?;
                let block = BlockSpec::Features { width, transposed: false };
                self.program.push1(Gather::weighted(block), &[columns, values])?
            }
        }))
    }

    /// Rounds a parameter to the storage type of the rows that it is multiplied with.
    fn as_stored(&mut self, parameter: TensorId) -> Result<TensorId, ModelError> {
        match self.dtype {
            StorageType::F32 => Ok(parameter),
            StorageType::Bf16 => Ok(self.program.push1(Linear::Round, &[parameter])?),
        }
    }

    /// Appends `x + b` in every row, with the parameter `{name}` `[d]`.
    ///
    /// # Errors
    /// [`ModelError::SparseInput`], [`ModelError::ParameterTwice`].
    pub fn bias(&mut self, x: Value, name: &str, init: Init) -> Result<Value, ModelError> {
        let x = dense(x, "a bias")?;
        let width = self.program.tensor(x).ty.width;
        let bias = self.parameter(name, &[width], init)?;
        self.add_bias(Value::Dense(x), bias)
    }

    /// Appends `x + b` in every row.
    pub(super) fn add_bias(&mut self, x: Value, bias: TensorId) -> Result<Value, ModelError> {
        let x = dense(x, "a bias")?;
        Ok(Value::Dense(self.program.push1(RowStep::AddBias, &[x, bias])?))
    }

    /// Centres each row and divides it by its standard deviation, then multiplies by `{name}.weight` `[d]` and adds
    /// `{name}.bias` `[d]`.
    ///
    /// # Errors
    /// [`ModelError::SparseInput`], [`ModelError::ParameterTwice`].
    /// # Source
    /// Ba, Kiros & Hinton 2016; `torch.nn.LayerNorm` with its default eps of 1e-5.
    pub fn layer_norm(&mut self, x: Value, name: &str) -> Result<Value, ModelError> {
        let x = dense(x, "a layer norm")?;
        let width = self.program.tensor(x).ty.width;
        let gain = self.parameter(&format!("{name}.weight"), &[width], Init::Ones)?;
        let bias = self.parameter(&format!("{name}.bias"), &[width], Init::Zeros)?;
        Ok(Value::Dense(self.program.push1(Norm::Layer { eps: 1e-5 }, &[x, gain, bias])?))
    }

    /// Converts a value to a dense one.
    ///
    /// # Errors
    /// Sparse features cause no error here.
    /// # Cost
    /// For sparse features, a matrix of `n d` numbers and an identity matrix of `d^2` numbers.
    pub fn dense(&mut self, x: Value) -> Result<Value, ModelError> {
        let Value::Sparse { values, width } = x else { return Ok(x) };
        let identity = self.program.input(Origin::Identity(width), TensorType::f32(RowSpace::Param(width), width))?;
        let identity = self.as_stored(identity)?;
        let block = BlockSpec::Features { width, transposed: false };
        Ok(Value::Dense(self.program.push1(Gather::weighted(block), &[identity, values])?))
    }

    /// Appends `max(x, 0)`.
    ///
    /// # Errors
    /// [`ModelError::SparseInput`].
    pub fn relu(&mut self, x: Value) -> Result<Value, ModelError> {
        let x = dense(x, "a ReLU")?;
        Ok(Value::Dense(self.program.push1(RowStep::Relu, &[x])?))
    }

    /// Appends `x` where `x > 0`, otherwise `alpha * (e^x - 1)`.
    ///
    /// # Errors
    /// [`ModelError::SparseInput`]; [`ModelError::Activation`] if `alpha` is below 0.
    /// # Source
    /// Clevert et al., ICLR 2016; `torch.nn.ELU`.
    pub fn elu(&mut self, x: Value, alpha: f32) -> Result<Value, ModelError> {
        let (x, alpha) = (dense(x, "an ELU")?, factor("an ELU", alpha)?);
        Ok(Value::Dense(self.program.push1(RowStep::Elu { alpha }, &[x])?))
    }

    /// Appends `x` where `x > 0`, otherwise `slope * x`.
    ///
    /// # Errors
    /// [`ModelError::SparseInput`]; [`ModelError::Activation`] if `slope` is below 0.
    /// # Source
    /// Maas et al., ICML workshop 2013; `torch.nn.LeakyReLU`.
    pub fn leaky_relu(&mut self, x: Value, slope: f32) -> Result<Value, ModelError> {
        let (x, slope) = (dense(x, "a leaky ReLU")?, factor("a leaky ReLU", slope)?);
        Ok(Value::Dense(self.program.push1(RowStep::LeakyRelu { slope }, &[x])?))
    }

    /// Appends `by * x`.
    ///
    /// # Errors
    /// [`ModelError::SparseInput`].
    pub fn multiply(&mut self, x: Value, by: f32) -> Result<Value, ModelError> {
        let x = dense(x, "a multiplication")?;
        Ok(Value::Dense(self.program.push1(RowStep::Multiply { by }, &[x])?))
    }

    /// Appends `a + b`.
    ///
    /// # Errors
    /// [`ModelError::SparseInput`]; [`ModelError::Program`] if the widths differ.
    pub fn add(&mut self, a: Value, b: Value) -> Result<Value, ModelError> {
        let (a, b) = (dense(a, "an addition")?, dense(b, "an addition")?);
        Ok(Value::Dense(self.program.push1(RowStep::Add, &[a, b])?))
    }

    /// Appends dropout: in training, sets each cell to 0 with probability `rate` and scales the others by
    /// `1 / (1 - rate)`. Does nothing in evaluation. Sparse features drop the same cells as the same features stored
    /// densely.
    ///
    /// # Errors
    /// [`ModelError::DropoutRate`].
    pub fn dropout(&mut self, x: Value, rate: f32) -> Result<Value, ModelError> {
        if !(0.0..1.0).contains(&rate) {
            return Err(ModelError::DropoutRate { rate });
        }
        let salt = self.dropouts;
        self.dropouts += 1;
        if self.mode == Mode::Evaluate || rate == 0.0 {
            return Ok(x);
        }
        let clock = self.program.input(Origin::Clock, CLOCK)?;
        let op = RowStep::Dropout { rate, salt, first_column: 0 };
        Ok(match x {
            Value::Dense(x) => Value::Dense(self.program.push1(op, &[x, clock])?),
            Value::Sparse { values, width } => {
                Value::Sparse { values: self.program.push1(op, &[values, clock])?, width }
            }
        })
    }

    /// Appends the sum over in-neighbours; with `self_loops`, over `A + I`.
    ///
    /// # Errors
    /// [`ModelError::SparseInput`].
    pub fn gather(&mut self, x: Value, self_loops: bool) -> Result<Value, ModelError> {
        let x = dense(x, "a gather")?;
        let block = BlockSpec::Graph { self_loops, transposed: false };
        Ok(Value::Dense(self.program.push1(Gather::over(block), &[x])?))
    }

    /// Appends the sum over in-neighbours, multiplied by the weights of the edges; with `self_loops`, over `A + I`, where
    /// a self-loop that the graph does not have weighs 1. Without weights in the data, all weights are 1.
    ///
    /// # Errors
    /// [`ModelError::SparseInput`].
    pub fn weighted_gather(&mut self, x: Value, self_loops: bool) -> Result<Value, ModelError> {
        let x = dense(x, "a gather")?;
        let block = BlockSpec::Graph { self_loops, transposed: false };
        let weights = self.edge_weights(block, LoopWeight::One)?;
        Ok(Value::Dense(self.program.push1(Gather::weighted(block), &[x, weights])?))
    }

    fn edge_weights(&mut self, block: BlockSpec, loops: LoopWeight) -> Result<TensorId, ModelError> {
        let ty = TensorType::f32(RowSpace::Edges(block), 1);
        Ok(self.program.input(Origin::EdgeWeights(block, loops), ty)?)
    }

    /// Appends attention over `A + I`. `ends` are the rows of the sources and of the destinations: see [`Score`]. `edge`
    /// is the vector by which the weight of an edge is multiplied.
    pub(super) fn attention(
        &mut self,
        score: Score,
        ends: [Value; 2],
        a: Option<TensorId>,
        edge: Option<TensorId>,
        config: &AttentionConfig,
    ) -> Result<Value, ModelError> {
        let dropout = config.dropout.unwrap_or(0.0);
        if !(0.0..1.0).contains(&dropout) {
            return Err(ModelError::DropoutRate { rate: dropout });
        }
        let block = BlockSpec::Graph { self_loops: true, transposed: false };
        let salt = self.dropouts;
        self.dropouts += 1;
        let dropout = (self.mode == Mode::Train && dropout > 0.0).then_some(WeightDropout { rate: dropout, salt });
        let mut inputs = vec![dense(ends[0], "attention")?, dense(ends[1], "attention")?];
        inputs.extend(a);
        if let Some(edge) = edge {
            inputs.extend([self.edge_weights(block, LoopWeight::Mean)?, edge]);
        }
        if dropout.is_some() {
            let ids = TensorType { rows: RowSpace::Sources(block), width: 1, dtype: DType::U32 };
            let ids = self.program.input(Origin::SourceIds(block), ids)?;
            inputs.extend([self.program.input(Origin::Clock, CLOCK)?, ids]);
        }
        let op = Attention {
            block,
            score,
            heads: config.heads,
            slope: config.negative_slope,
            dropout,
            edge_values: edge.is_some(),
            pass: AttentionPass::Forward,
        };
        Ok(Value::Dense(self.program.push1(op, &inputs)?))
    }

    /// Appends the mean over heads that are side by side.
    pub(super) fn mean_of_heads(&mut self, x: Value, heads: usize) -> Result<Value, ModelError> {
        let width = self.width(x) / heads;
        let ty = TensorType::f32(RowSpace::Param(width), heads * width);
        let mean = self.program.input(Origin::HeadMean { heads, width }, ty)?;
        self.product_with(x, mean)
    }

    /// Multiplies each vertex's row by a power of its in-degree.
    ///
    /// # Errors
    /// [`ModelError::SparseInput`].
    pub fn scale_by_degree(&mut self, x: Value, degree: Degree) -> Result<Value, ModelError> {
        let x = dense(x, "a row scale")?;
        let scale = self.program.input(Origin::Scale(degree), TensorType::f32(RowSpace::Vertices, 1))?;
        Ok(Value::Dense(self.program.push1(RowStep::Scale, &[x, scale])?))
    }
}

/// Checks the factor of an activation below 0.
fn factor(activation: &'static str, factor: f32) -> Result<f32, ModelError> {
    if factor.is_finite() && factor >= 0.0 { Ok(factor) } else { Err(ModelError::Activation { activation, factor }) }
}

fn dense(x: Value, op: &'static str) -> Result<TensorId, ModelError> {
    match x {
        Value::Dense(tensor) => Ok(tensor),
        Value::Sparse { .. } => Err(ModelError::SparseInput { op }),
    }
}
