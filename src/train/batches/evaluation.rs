//! An evaluation on mini-batches.

use std::time::Instant;

use super::{EVALUATION_EPOCH, Feeder, Sources, StageSeconds};
use crate::error::Result;
use crate::infer::{Accuracy, Counts};
use crate::runtime::{Done, Session};
use crate::train::embedding::Embedding;
use crate::train::running::{EVALUATE_PHASE, EVALUATION};

impl Feeder {
    /// Evaluates the parameters on the batches of an evaluation. Returns the accuracy, the sums over all
    /// batches, and the seconds of the stages.
    ///
    /// # Errors
    /// [`crate::Error::Batch`]; [`crate::Error::Device`].
    pub(in crate::train) fn evaluate(
        &self,
        session: &mut Session,
        mut embedding: Option<&mut Embedding>,
        is_timed: bool,
    ) -> Result<(Accuracy, Done, StageSeconds)> {
        let began = Instant::now();
        let contents = session.batch_contents(EVALUATION);
        let metrics = Accuracy::metrics(EVALUATE_PHASE);
        let (mut counts, mut all) = (Counts::default(), Done::default());
        let numbers = 0..self.drawing.count();
        let pulls = self.store.as_ref().map(|store| store.begin());
        let edges = self.drawing.begin_drawing();
        let from = Sources { supply: &self.supply, contents: &contents, pulls: pulls.as_ref(), edges: edges.as_ref() };
        let learned = session.learned_slot();
        let (mut stages, _) = self.drawing.each(EVALUATION_EPOCH, numbers, &from, |number, mut batch| {
            if let Some((table, slot)) = embedding.as_deref_mut().zip(learned) {
                table.give(&mut batch, slot, number as u64, pulls.as_ref())?;
            }
            let done = session.run_batch(EVALUATION, &metrics, &[], batch, [is_timed, false])?;
            counts.add(&done, 0);
            all.add(done);
            Ok(true)
        })?;
        if let Some(table) = embedding {
            table.count_into(&mut stages);
        }
        all.seconds = [began.elapsed().as_secs_f64(), 0.0];
        Ok((counts.accuracy(), all, stages))
    }
}
