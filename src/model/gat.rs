//! Graph attention networks: GAT and GATv2.
//!
//! `H'[v] = sum over in-neighbours u of v, and v itself, of alpha[v, u] W H[u]`, where alpha is the softmax over u of a
//! score that both ends decide, for each head. Hidden layers concatenate the heads, the last layer averages them.
//!
//! # Source
//! Veličković et al., Graph attention networks, ICLR 2018; Brody, Alon & Yahav, How attentive are graph attention
//! networks?, ICLR 2022; with the parameter names of PyG's `GATConv` and `GATv2Conv`.

use serde::{Deserialize, Serialize};

use super::builtin::stack;
use super::{Init, ModelConfig, ModelError, Network, Norm, Value};
use crate::program::{AttentionRows, Linear, Score, TensorId};

/// Settings of attention layers, with the names and defaults of PyG's `GATConv`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionConfig {
    /// Number of heads.
    pub heads: usize,
    /// Slope of the leaky ReLU of the scores, below 0.
    pub negative_slope: f32,
    /// Dropout rate of the attention weights; by default that of the model's hidden layers, or 0 in a layer by itself.
    pub dropout: Option<f32>,
    /// Whether a linear layer of the vertex itself is added.
    pub residual: bool,
    /// Whether the weights of edges are part of the scores, as PyG's `edge_attr` with `edge_dim=1`.
    pub edge_weights: bool,
}

impl Default for AttentionConfig {
    fn default() -> Self {
        Self { heads: 1, negative_slope: 0.2, dropout: None, residual: false, edge_weights: false }
    }
}

/// How the heads of a layer become its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heads {
    /// Side by side.
    Concat,
    /// Their mean.
    Mean,
}

/// Adds one GAT convolution over `A + I`. `out` is the width of one head. The parameters: `{name}.lin.weight`
/// `[heads * out, in]`; `{name}.att_src` and `{name}.att_dst` `[1, heads, out]`; `{name}.bias`; with `residual`,
/// `{name}.res.weight`; with `edge_weights`, `{name}.lin_edge.weight` `[heads * out, 1]` and `{name}.att_edge`
/// `[1, heads, out]`.
///
/// # Shapes
/// The result is `[n, heads * out]` ([`Heads::Concat`]) or `[n, out]` ([`Heads::Mean`]).
/// # Errors
/// [`ModelError::ParameterTwice`], [`ModelError::DropoutRate`], [`ModelError::Heads`].
/// # Cost
/// Memory is in proportion to the vertices, whatever the number of edges: the weights are computed again backward.
pub fn gat_conv(
    net: &mut Network,
    x: Value,
    name: &str,
    out: usize,
    heads: Heads,
    config: &AttentionConfig,
) -> Result<Value, ModelError> {
    let k = check(config)?;
    let vector = [1, k, out];
    let weight = net.parameter(&format!("{name}.lin.weight"), &[k * out, net.width(x)], Init::Glorot)?;
    let source = net.parameter(&format!("{name}.att_src"), &vector, Init::Glorot)?;
    let target = net.parameter(&format!("{name}.att_dst"), &vector, Init::Glorot)?;
    let edge = edge_vector(net, name, &vector, config)?;
    let edge = match edge {
        Some(edge) => {
            let a = net.parameter(&format!("{name}.att_edge"), &vector, Init::Glorot)?;
            Some(net.push(AttentionRows::HeadDots { heads: k }, &[edge, a])?)
        }
        None => None,
    };
    // One product makes the values and both parts of the scores.
    let scored = net.push(AttentionRows::ScoreWeight { heads: k }, &[weight, source, target])?;
    let rows = net.product_with(x, scored)?;
    let y = net.attention(Score::Gat, [rows, rows], None, edge, config)?;
    finish(net, x, y, name, out, heads, config)
}

/// Adds one GATv2 convolution over `A + I`. `out` is the width of one head. The parameters: `{name}.lin_l.weight` and
/// `{name}.lin_r.weight` `[heads * out, in]`, of the source and of the destination, each with a bias; `{name}.att`
/// `[1, heads, out]`; `{name}.bias`; with `residual`, `{name}.res.weight`; with `edge_weights`,
/// `{name}.lin_edge.weight` `[heads * out, 1]`.
///
/// # Shapes
/// As in [`gat_conv`].
/// # Errors
/// As in [`gat_conv`].
pub fn gatv2_conv(
    net: &mut Network,
    x: Value,
    name: &str,
    out: usize,
    heads: Heads,
    config: &AttentionConfig,
) -> Result<Value, ModelError> {
    let k = check(config)?;
    let (input, op) = (net.width(x), AttentionRows::Alternate { heads: k, inverse: false });
    // Attention reads rows whose heads alternate, which costs nothing if the weights' rows do.
    let mut end = |end: &str| {
        let weight = net.parameter(&format!("{name}.{end}.weight"), &[k * out, input], Init::Glorot)?;
        let weight = net.push(op, &[weight])?;
        let y = net.product_with(x, weight)?;
        let bias = net.parameter(&format!("{name}.{end}.bias"), &[k * out], Init::FanIn(input))?;
        let bias = alternating(net, bias, k)?;
        net.add_bias(y, bias)
    };
    let (source, target) = (end("lin_l")?, end("lin_r")?);
    let a = net.parameter(&format!("{name}.att"), &[1, k, out], Init::Glorot)?;
    let a = alternating(net, a, k)?;
    let edge = match edge_vector(net, name, &[1, k, out], config)? {
        Some(edge) => Some(alternating(net, edge, k)?),
        None => None,
    };
    let y = net.attention(Score::Gatv2, [source, target], Some(a), edge, config)?;
    finish(net, x, y, name, out, heads, config)
}

fn check(config: &AttentionConfig) -> Result<usize, ModelError> {
    if config.heads == 0 { Err(ModelError::NoHeads) } else { Ok(config.heads) }
}

/// Returns the vector `[1, heads * out]` with alternating heads.
fn alternating(net: &mut Network, vector: TensorId, heads: usize) -> Result<TensorId, ModelError> {
    let column = net.push(Linear::Transpose, &[vector])?;
    let column = net.push(AttentionRows::Alternate { heads, inverse: false }, &[column])?;
    net.push(Linear::Transpose, &[column])
}

/// Returns the vector by which the weight of an edge is multiplied, `[1, heads * out]`.
fn edge_vector(
    net: &mut Network,
    name: &str,
    vector: &[usize],
    config: &AttentionConfig,
) -> Result<Option<TensorId>, ModelError> {
    if !config.edge_weights {
        return Ok(None);
    }
    let width = vector.iter().product();
    let column = net.parameter(&format!("{name}.lin_edge.weight"), &[width, 1], Init::Glorot)?;
    net.push(Linear::Transpose, &[column]).map(Some)
}

/// Adds what follows the sum: the mean over heads, the residual, the bias.
fn finish(
    net: &mut Network,
    x: Value,
    y: Value,
    name: &str,
    out: usize,
    heads: Heads,
    config: &AttentionConfig,
) -> Result<Value, ModelError> {
    let mut y = match heads {
        Heads::Mean if config.heads > 1 => net.mean_of_heads(y, config.heads)?,
        _ => y,
    };
    let width = if heads == Heads::Mean { out } else { config.heads * out };
    if config.residual {
        let own = net.product(x, &format!("{name}.res.weight"), width, Init::Glorot)?;
        y = net.add(y, own)?;
    }
    net.bias(y, &format!("{name}.bias"), Init::Zeros)
}

type Conv = fn(&mut Network, Value, &str, usize, Heads, &AttentionConfig) -> Result<Value, ModelError>;

fn forward_of(net: &mut Network, x: Value, config: &ModelConfig, conv: Conv) -> Result<Value, ModelError> {
    let last = config.widths.len() - 2;
    let attention = AttentionConfig { dropout: config.attention.dropout.or(Some(config.dropout)), ..config.attention };
    let mut layer = 0..;
    stack(net, x, config, |net, h, name, width| {
        let (out, heads) = match layer.next() == Some(last) {
            true => (width, Heads::Mean),
            false if width.is_multiple_of(attention.heads) => (width / attention.heads, Heads::Concat),
            false => return Err(ModelError::Heads { width, heads: attention.heads }),
        };
        conv(net, h, name, out, heads, &attention)
    })
}

pub(super) fn gat_forward(net: &mut Network, x: Value, config: &ModelConfig, _: Norm) -> Result<Value, ModelError> {
    forward_of(net, x, config, gat_conv)
}

pub(super) fn gatv2_forward(net: &mut Network, x: Value, config: &ModelConfig, _: Norm) -> Result<Value, ModelError> {
    forward_of(net, x, config, gatv2_conv)
}
