//! The models that have a name, and what their layers have in common.

use super::{ModelConfig, ModelError, Network, Norm, Value, gcn, gin, mean, resgcn};

/// A model that a command can name.
#[derive(Debug)]
pub(super) struct Builtin {
    name: &'static str,
    /// The first is the default; the others may be asked for.
    norms: &'static [Norm],
    /// What follows `convs.<layer>.` in the name of the weight that a layer's input meets first.
    weight: &'static str,
    forward: fn(&mut Network, Value, &ModelConfig, Norm) -> Result<Value, ModelError>,
}

static BUILTINS: [Builtin; 6] = [
    Builtin { name: "gcn", norms: &[Norm::Sym, Norm::Mean, Norm::Sum], weight: "lin.weight", forward: gcn::forward },
    Builtin { name: "gin", norms: &[Norm::Sum], weight: "nn.lins.0.weight", forward: gin::forward },
    Builtin {
        name: "commnet",
        norms: &[Norm::Mean, Norm::Sym, Norm::Sum],
        weight: "lin_h.weight",
        forward: mean::commnet_forward,
    },
    Builtin {
        name: "resgcn",
        norms: &[Norm::Sym, Norm::Mean, Norm::Sum],
        weight: "lin.weight",
        forward: resgcn::forward,
    },
    Builtin { name: "sage", norms: &[Norm::Mean], weight: "lin_l.weight", forward: mean::sage_forward },
    Builtin { name: "graphconv", norms: &[Norm::Sum], weight: "lin_rel.weight", forward: mean::graphconv_forward },
];

/// The output that holds the rows which the last layer reads.
pub(super) const HIDDEN: &str = "hidden";

/// The names of the built-in models, for messages.
pub(super) fn names() -> String {
    BUILTINS.each_ref().map(|b| b.name).join(", ")
}

impl Builtin {
    /// The model of this name.
    pub(super) fn find(name: &str) -> Option<&'static Self> {
        BUILTINS.iter().find(|b| b.name == name)
    }

    /// The name of the weight of a layer that says its widths.
    pub(super) fn weight_name(&self, layer: usize) -> String {
        format!("convs.{layer}.{}", self.weight)
    }

    /// Writes the model into a network.
    pub(super) fn forward(&self, net: &mut Network, x: Value, config: &ModelConfig) -> Result<Value, ModelError> {
        let norm = config.norm.unwrap_or(self.norms[0]);
        if !self.norms.contains(&norm) {
            return Err(ModelError::NormNotTaken { model: self.name, norm });
        }
        (self.forward)(net, x, config, norm)
    }
}

/// The convolutions `convs.0`, `convs.1`, ... of the model's widths, with dropout before each and, after all but the
/// last, layer norm if asked for and ReLU.
pub(super) fn stack(
    net: &mut Network,
    x: Value,
    config: &ModelConfig,
    conv: impl Fn(&mut Network, Value, &str, usize) -> Result<Value, ModelError>,
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

/// Layer norm, if asked for, and ReLU.
pub(super) fn activate(net: &mut Network, h: Value, config: &ModelConfig, layer: usize) -> Result<Value, ModelError> {
    let h = if config.layer_norm { net.layer_norm(h, &format!("norms.{layer}"))? } else { h };
    net.relu(h)
}

/// The weighted sum over in-neighbours, by itself; `self_loops` says whether over `A + I`.
pub(super) fn aggregate(net: &mut Network, h: Value, norm: Norm, self_loops: bool) -> Result<Value, ModelError> {
    use crate::program::Degree;
    let scaled = match norm {
        Norm::Sym => net.scale_by_degree(h, Degree::InverseRoot { self_loops })?,
        Norm::Mean | Norm::Sum => h,
    };
    let sum = net.gather(scaled, self_loops)?;
    match norm {
        Norm::Sym => net.scale_by_degree(sum, Degree::InverseRoot { self_loops }),
        Norm::Mean => net.scale_by_degree(sum, Degree::Inverse { self_loops }),
        Norm::Sum => Ok(sum),
    }
}
