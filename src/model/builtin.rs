//! The built-in models, and what their layers have in common.

use super::{Activation, ModelConfig, ModelError, Network, Norm, Value, WeightedMean, gat, gcn, gin, mean, resgcn};

/// A built-in model.
#[derive(Debug)]
pub(super) struct Builtin {
    name: &'static str,
    /// The normalisations that the model takes. The first is the default.
    norms: &'static [Norm],
    /// The weight that a layer applies to its input first: the part of its name after `convs.<layer>.`.
    weight: &'static str,
    /// Whether its layers are attention layers.
    pub(super) attention: bool,
    forward: fn(&mut Network, Value, &ModelConfig, Norm) -> Result<Value, ModelError>,
}

/// What most models have.
const PLAIN: Builtin =
    Builtin { name: "", norms: &[Norm::Sum], weight: "lin.weight", attention: false, forward: gcn::forward };

static BUILTINS: [Builtin; 8] = [
    Builtin { name: "gcn", norms: &[Norm::Sym, Norm::Mean, Norm::Sum], forward: gcn::forward, ..PLAIN },
    Builtin { name: "gat", attention: true, forward: gat::gat_forward, ..PLAIN },
    Builtin { name: "gatv2", weight: "lin_l.weight", attention: true, forward: gat::gatv2_forward, ..PLAIN },
    Builtin { name: "gin", weight: "nn.lins.0.weight", forward: gin::forward, ..PLAIN },
    Builtin { name: "sage", norms: &[Norm::Mean], weight: "lin_l.weight", forward: mean::sage_forward, ..PLAIN },
    Builtin { name: "graphconv", weight: "lin_rel.weight", forward: mean::graphconv_forward, ..PLAIN },
    Builtin {
        name: "commnet",
        norms: &[Norm::Mean, Norm::Sym, Norm::Sum],
        weight: "lin_h.weight",
        forward: mean::commnet_forward,
        ..PLAIN
    },
    Builtin { name: "resgcn", norms: &[Norm::Sym, Norm::Mean, Norm::Sum], forward: resgcn::forward, ..PLAIN },
];

/// Name of the output that holds the input rows of the last layer.
pub(super) const HIDDEN: &str = "hidden";

/// Returns the names of the built-in models, for messages.
pub(super) fn names() -> String {
    BUILTINS.each_ref().map(|b| b.name).join(", ")
}

impl Builtin {
    /// Returns the model of this name.
    pub(super) fn find(name: &str) -> Option<&'static Self> {
        BUILTINS.iter().find(|b| b.name == name)
    }

    /// Returns the normalisation that the model has by default.
    pub(super) fn default_norm(&self) -> Norm {
        self.norms[0]
    }

    /// Returns the name of the weight whose shape gives a layer's widths.
    pub(super) fn weight_name(&self, layer: usize) -> String {
        format!("convs.{layer}.{}", self.weight)
    }

    /// Adds the model to a network.
    pub(super) fn forward(&self, net: &mut Network, x: Value, config: &ModelConfig) -> Result<Value, ModelError> {
        let norm = config.norm.unwrap_or(self.default_norm());
        if !self.norms.contains(&norm) {
            return Err(ModelError::NormNotTaken { model: self.name, norm });
        }
        (self.forward)(net, x, config, norm)
    }
}

/// Adds the convolutions `convs.0`, `convs.1`, ... of the model's widths. Dropout comes before each of them. Layer norm
/// (if requested) and ReLU follow each but the last.
pub(super) fn stack(
    net: &mut Network,
    x: Value,
    config: &ModelConfig,
    mut conv: impl FnMut(&mut Network, Value, &str, usize) -> Result<Value, ModelError>,
) -> Result<Value, ModelError> {
    let mut h = net.dropout(x, config.input_dropout_for(x))?;
    let layers = config.widths.len() - 1;
    for layer in 0..layers {
        h = conv(net, h, &format!("convs.{layer}"), config.widths[layer + 1])?;
        if layer + 1 < layers {
            h = activate(net, h, config, layer)?;
            if layer + 2 == layers {
                net.output(HIDDEN, h)?;
            }
            h = net.dropout(h, config.dropout)?;
        }
    }
    Ok(h)
}

/// Adds layer norm, if requested, and the activation.
pub(super) fn activate(net: &mut Network, h: Value, config: &ModelConfig, layer: usize) -> Result<Value, ModelError> {
    let h = if config.layer_norm { net.layer_norm(h, &format!("norms.{layer}"))? } else { h };
    match config.activation {
        Activation::Relu => net.relu(h),
        Activation::Elu => net.elu(h, 1.0),
    }
}

/// Adds the sum over in-neighbours: weighted by the edges if the network uses their weights, and normalised. With
/// `self_loops`, the sum is over `A + I`.
pub(super) fn aggregate(net: &mut Network, h: Value, norm: Norm, self_loops: bool) -> Result<Value, ModelError> {
    use crate::program::Degree;
    let weighted = net.uses_edge_weights();
    let scaled = match norm {
        Norm::Sym => net.scale_by_degree(h, Degree::InverseRoot { self_loops, weighted })?,
        Norm::Mean | Norm::Sum => h,
    };
    let sum = if weighted { net.weighted_gather(scaled, self_loops)? } else { net.gather(scaled, self_loops)? };
    match norm {
        Norm::Sym => net.scale_by_degree(sum, Degree::InverseRoot { self_loops, weighted }),
        Norm::Mean => {
            let weighted = weighted && net.weighted_mean() == WeightedMean::Sum;
            net.scale_by_degree(sum, Degree::Inverse { self_loops, weighted })
        }
        Norm::Sum => Ok(sum),
    }
}
