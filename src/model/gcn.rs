//! Graph convolutional networks.
//!
//! `H' = ReLU(S (A + I) S H W^T + b)` with `S = D^-1/2` and D the in-degrees of `A + I`; no ReLU after the last layer.
//!
//! # Source
//! Kipf & Welling, Semi-supervised classification with graph convolutional networks, ICLR 2017, equation 9; the names
//! and the in-degree on both sides are those of PyG's `GCNConv`.

use super::{ModelConfig, ModelError, Network, Norm, Value};
use crate::program::Degree;

/// One graph convolution over `A + I`: the parameters `{name}.lin.weight` `[out, in]` and `{name}.bias` `[out]`.
///
/// # Errors
/// [`ModelError::ParameterTwice`].
pub fn gcn_conv(net: &mut Network, x: Value, name: &str, out: usize, norm: Norm) -> Result<Value, ModelError> {
    let self_loops = true;
    let mut h = net.linear(x, &format!("{name}.lin"), out, false)?;
    if norm == Norm::Sym {
        h = net.scale_by_degree(h, Degree::InverseRoot { self_loops })?;
    }
    h = net.gather(h, self_loops)?;
    match norm {
        Norm::Sym => h = net.scale_by_degree(h, Degree::InverseRoot { self_loops })?,
        Norm::Mean => h = net.scale_by_degree(h, Degree::Inverse { self_loops })?,
        Norm::Sum => {}
    }
    net.bias(h, &format!("{name}.bias"))
}

/// The layers `convs.0`, `convs.1`, ... of the model's widths.
pub(super) fn forward(net: &mut Network, x: Value, config: &ModelConfig) -> Result<Value, ModelError> {
    let norm = config.norm.unwrap_or(Norm::Sym);
    let mut h = net.dropout(x, config.input_dropout_for(x))?;
    let layers = config.widths.len() - 1;
    for layer in 0..layers {
        h = gcn_conv(net, h, &format!("convs.{layer}"), config.widths[layer + 1], norm)?;
        if layer + 1 < layers {
            h = net.relu(h)?;
            h = net.dropout(h, config.dropout)?;
        }
    }
    Ok(h)
}

/// The weight of layer `layer`.
pub(super) fn weight_name(layer: usize) -> String {
    format!("convs.{layer}.lin.weight")
}
