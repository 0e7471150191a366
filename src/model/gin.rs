//! Graph isomorphism networks.
//!
//! `H' = ReLU(MLP(H + A H))`, where the MLP is two linear layers with a ReLU between them. No ReLU after the last
//! layer.
//!
//! # Source
//! Xu et al., How powerful are graph neural networks?, ICLR 2019, equation 4.1 with eps = 0. The parameter names are
//! those of PyG's `GINConv` over its `MLP`.

use super::builtin::{aggregate, stack};
use super::{Init, ModelConfig, ModelError, Network, Norm, Value};

/// Adds one GIN convolution, with the parameters `{name}.nn.lins.0` `[out, in]` and `{name}.nn.lins.1` `[out, out]`,
/// each `.weight` and `.bias`, and `{name}.eps` `[1]`, which is 0 and not trained.
///
/// The first linear layer commutes with the sum over neighbours, and is applied before it.
///
/// # Errors
/// [`ModelError::ParameterTwice`].
pub fn gin_conv(net: &mut Network, x: Value, name: &str, out: usize) -> Result<Value, ModelError> {
    net.zeros(&format!("{name}.eps"), &[1])?;
    let first = format!("{name}.nn.lins.0");
    let init = Init::FanIn(net.width(x));
    let h = net.product(x, &format!("{first}.weight"), out, init)?;
    let sum = aggregate(net, h, Norm::Sum, false)?;
    let h = net.add(h, sum)?;
    let h = net.bias(h, &format!("{first}.bias"), init)?;
    let h = net.relu(h)?;
    net.linear(h, &format!("{name}.nn.lins.1"), out, true)
}

pub(super) fn forward(net: &mut Network, x: Value, config: &ModelConfig, _: Norm) -> Result<Value, ModelError> {
    stack(net, x, config, gin_conv)
}
