//! The residual GCN.
//!
//! `H' = ReLU(GCN(H)) + H`, or `+ H W^T` where widths differ; the last layer has its shortcut too, but no ReLU. Dropout is on
//! what a convolution reads, not on the shortcut, so that depth does not thin it out.
//!
//! # Source
//! ROC (Jia et al., MLSys 2020), section 7.5, after He et al., CVPR 2016.

use super::builtin::{HIDDEN, activate};
use super::{Init, ModelConfig, ModelError, Network, Norm, Value, gcn_conv};

/// The shortcut of a residual layer: `x` itself where it has `out` columns, else `x W^T` with the parameter `{name}.weight`.
///
/// # Errors
/// [`ModelError::ParameterTwice`].
pub fn shortcut(net: &mut Network, x: Value, name: &str, out: usize) -> Result<Value, ModelError> {
    if net.width(x) == out {
        return net.dense(x);
    }
    let init = Init::FanIn(net.width(x));
    net.product(x, &format!("{name}.weight"), out, init)
}

pub(super) fn forward(net: &mut Network, x: Value, config: &ModelConfig, norm: Norm) -> Result<Value, ModelError> {
    let layers = config.widths.len() - 1;
    let mut h = x;
    for layer in 0..layers {
        let out = config.widths[layer + 1];
        let rate = if layer == 0 { config.input_dropout_for(x) } else { config.dropout };
        let read = net.dropout(h, rate)?;
        let mut branch = gcn_conv(net, read, &format!("convs.{layer}"), out, norm)?;
        if layer + 1 < layers {
            branch = activate(net, branch, config, layer)?;
        }
        let kept = shortcut(net, h, &format!("res.{layer}"), out)?;
        h = net.add(branch, kept)?;
        if layer + 2 == layers {
            net.output(HIDDEN, h)?;
        }
    }
    Ok(h)
}
