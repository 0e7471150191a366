//! Graph convolutional networks.
//!
//! `H' = ReLU(S (A + I) S H W^T + b)` with `S = D^-1/2` and D the in-degrees of `A + I`; no ReLU after the last layer.
//!
//! # Source
//! Kipf & Welling, Semi-supervised classification with graph convolutional networks, ICLR 2017, equation 9. The
//! parameter names and the in-degree on both sides are those of PyG's `GCNConv`.

use super::builtin::{aggregate, stack};
use super::{Init, ModelConfig, ModelError, Network, Norm, Value};

/// Adds one graph convolution over `A + I`, with the parameters `{name}.lin.weight` `[out, in]` and `{name}.bias`
/// `[out]`.
///
/// # Errors
/// [`ModelError::ParameterTwice`].
pub fn gcn_conv(net: &mut Network, x: Value, name: &str, out: usize, norm: Norm) -> Result<Value, ModelError> {
    let h = net.product(x, &format!("{name}.lin.weight"), out, Init::Glorot)?;
    let h = aggregate(net, h, norm, true)?;
    net.bias(h, &format!("{name}.bias"), Init::Zeros)
}

pub(super) fn forward(net: &mut Network, x: Value, config: &ModelConfig, norm: Norm) -> Result<Value, ModelError> {
    stack(net, x, config, |net, h, name, out| gcn_conv(net, h, name, out, norm))
}
