//! GraphSAGE, CommNet and GraphConv: a linear layer of the vertex itself plus a linear layer of the mean or sum over
//! its in-neighbours.
//!
//! `H' = ReLU(H W_self^T + M H W_mean^T + b)`. M is the mean over in-neighbours (0 if there are none), in GraphConv the
//! sum. No ReLU after the last layer. The models differ in parameter names, and in which linear layer has the bias.
//!
//! # Source
//! Hamilton et al., Inductive representation learning on large graphs, NeurIPS 2017, with PyG's names (`SAGEConv`);
//! Sukhbaatar et al., Learning multiagent communication with backpropagation, NeurIPS 2016, equation 2, with a bias;
//! Morris et al., Weisfeiler and Leman go neural, AAAI 2019, with PyG's names (`GraphConv`).

use super::builtin::{aggregate, stack};
use super::{Init, ModelConfig, ModelError, Network, Norm, Value};

/// Adds one GraphSAGE convolution, with the parameters `{name}.lin_l.weight` and `{name}.lin_l.bias` for the mean, and
/// `{name}.lin_r.weight` for the vertex itself.
///
/// # Errors
/// [`ModelError::ParameterTwice`].
pub fn sage_conv(net: &mut Network, x: Value, name: &str, out: usize) -> Result<Value, ModelError> {
    let names = Names { own: "lin_r", neighbours: "lin_l", bias: "lin_l" };
    conv(net, x, name, out, Norm::Mean, &names)
}

/// Adds one CommNet step, with the parameters `{name}.lin_h.weight` and `{name}.lin_h.bias` for the vertex itself, and
/// `{name}.lin_c.weight` for its in-neighbours.
///
/// # Errors
/// [`ModelError::ParameterTwice`].
pub fn comm_conv(net: &mut Network, x: Value, name: &str, out: usize, norm: Norm) -> Result<Value, ModelError> {
    let names = Names { own: "lin_h", neighbours: "lin_c", bias: "lin_h" };
    conv(net, x, name, out, norm, &names)
}

/// Adds one GraphConv, with the parameters `{name}.lin_rel.weight` and `{name}.lin_rel.bias` for the sum over
/// in-neighbours, and `{name}.lin_root.weight` for the vertex itself.
///
/// # Errors
/// [`ModelError::ParameterTwice`].
pub fn graph_conv(net: &mut Network, x: Value, name: &str, out: usize) -> Result<Value, ModelError> {
    let names = Names { own: "lin_root", neighbours: "lin_rel", bias: "lin_rel" };
    conv(net, x, name, out, Norm::Sum, &names)
}

/// Names of the linear layers.
struct Names {
    own: &'static str,
    neighbours: &'static str,
    bias: &'static str,
}

fn conv(net: &mut Network, x: Value, name: &str, out: usize, norm: Norm, names: &Names) -> Result<Value, ModelError> {
    let init = Init::FanIn(net.width(x));
    let gathered = net.product(x, &format!("{name}.{}.weight", names.neighbours), out, init)?;
    let gathered = aggregate(net, gathered, norm, false)?;
    let own = net.product(x, &format!("{name}.{}.weight", names.own), out, init)?;
    let sum = net.add(gathered, own)?;
    net.bias(sum, &format!("{name}.{}.bias", names.bias), init)
}

pub(super) fn sage_forward(net: &mut Network, x: Value, config: &ModelConfig, _: Norm) -> Result<Value, ModelError> {
    stack(net, x, config, sage_conv)
}

pub(super) fn graphconv_forward(
    net: &mut Network,
    x: Value,
    config: &ModelConfig,
    _: Norm,
) -> Result<Value, ModelError> {
    stack(net, x, config, graph_conv)
}

pub(super) fn commnet_forward(
    net: &mut Network,
    x: Value,
    config: &ModelConfig,
    norm: Norm,
) -> Result<Value, ModelError> {
    stack(net, x, config, |net, h, name, out| comm_conv(net, h, name, out, norm))
}
