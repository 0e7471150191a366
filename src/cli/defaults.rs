//! Values of flags that were not given.

use serde_json::{Map, Value, json};

use super::model::{DefaultsArg, ModelArgs};
use super::train::TrainArgs;
use crate::dataset::Dataset;
use crate::error::Result;
use crate::train::Suggested;

/// The flags that were chosen for a dataset, with their values.
#[derive(Debug, Default)]
pub(super) struct Chosen(Vec<(&'static str, Value)>);

impl Chosen {
    /// Returns a line for people; `None` if nothing was chosen.
    pub(super) fn line(&self) -> Option<String> {
        let flag = |(name, value): &(&str, Value)| match value {
            Value::Bool(true) => format!("--{name}"),
            Value::String(text) => format!("--{name} {text}"),
            value => format!("--{name} {value}"),
        };
        let flags: Vec<String> = self.0.iter().map(flag).collect();
        (!flags.is_empty())
            .then(|| format!("chosen for this data: {} (--defaults plain: none of these)", flags.join(" ")))
    }

    /// Returns the flags as a JSON object.
    pub(super) fn json(&self) -> Value {
        Value::Object(self.0.iter().map(|(name, value)| (name.replace('-', "_"), value.clone())).collect::<Map<_, _>>())
    }
}

/// Returns the flags of a model, with values that suit the dataset for those that were not given, and these.
pub(super) fn chosen_model(
    args: &ModelArgs,
    (name, width): (&str, usize),
    data: &Dataset,
) -> Result<(ModelArgs, Chosen)> {
    let (mut model, mut chosen) = (args.clone(), Vec::new());
    if let Some([_, suggested]) = args.suggested(name, width, data)? {
        chosen = model.fill(&suggested);
    }
    Ok((model, Chosen(chosen)))
}

/// Gives the flags of a training that were not given the values that suit the dataset. Returns them. A run that starts from
/// given weights keeps the plain ones, since the weights come from a network that somebody has chosen.
pub(super) fn choose(args: &mut TrainArgs, data: &Dataset) -> Result<Chosen> {
    let mut chosen = Vec::new();
    if args.training.weights.is_some() {
        return Ok(Chosen(chosen));
    }
    let Some([plain, suggested]) = args.model.suggested(&args.data, args.batches.input_width(data), data)? else {
        return Ok(Chosen(chosen));
    };
    chosen.extend(args.model.fill(&suggested));
    let training = &mut args.training;
    // The epochs of mini-batches have many steps each; and without evaluations, nothing would end the run early.
    if training.epochs.is_none() && args.batches.batch.is_none() && training.eval_every > 0 {
        training.epochs = Some(suggested.epochs);
        if suggested.epochs != plain.epochs {
            chosen.push(("epochs", json!(suggested.epochs)));
        }
        if let (None, Some(patience)) = (training.early_stop, suggested.early_stop) {
            training.early_stop = Some(patience);
            chosen.push(("early-stop", json!(patience)));
        }
    }
    // A learned embedding takes the place of features.
    if training.feature_norm.is_none() && args.batches.embedding.is_none() {
        training.feature_norm = Some(suggested.feature_norm.to_string());
        if suggested.feature_norm != plain.feature_norm {
            chosen.push(("feature-norm", json!(suggested.feature_norm.to_string())));
        }
    }
    // A resumed run has the rate of its checkpoint.
    let keeps_rate = args.checkpoints.resume || training.optimizer == "sgd";
    if training.lr.is_none() && !keeps_rate && suggested.learning_rate != plain.learning_rate {
        training.lr = Some(suggested.learning_rate);
        chosen.push(("lr", json!(suggested.learning_rate)));
    }
    Ok(Chosen(chosen))
}

impl ModelArgs {
    /// Returns the plain settings and those that suit the dataset; `None` for the built-in graphs, and if plain ones are asked
    /// for.
    fn suggested(&self, name: &str, width: usize, data: &Dataset) -> Result<Option<[Suggested; 2]>> {
        if self.defaults == DefaultsArg::Plain || Dataset::is_builtin(name) {
            return Ok(None);
        }
        let (plain, model) = (Suggested::plain(data), self.model(width, data.class_count())?);
        Ok(Some([plain, plain.suited(model.config(), data)]))
    }
}
