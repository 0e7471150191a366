//! The letters that ranks send each other.

use bytemuck::{Pod, Zeroable};
use lapidary_kernels::Shared;

/// What a letter is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// What this rank gives to a round that all ranks take part in.
    Round,
    /// This rank fails: the name of its machine and the error, as JSON.
    Failure,
    /// Rows that a part of this rank has packed for another part.
    Rows,
    /// A term of a sum over all parts, or a slice of it.
    Term,
    /// A slice of a sum over all parts, from the rank that added it.
    Sum,
    /// The report of a part that has finished its script.
    Report,
    /// A letter whose time is measured.
    Probe,
    /// The ids of the rows that this rank asks another one for, and its note to all.
    Ids,
    /// The rows that another rank has asked for.
    Pulled,
    /// The vertices whose in-edges this rank asks another one to draw.
    Frontier,
    /// The edges that were drawn for another rank.
    Drawn,
    /// The ids of the learned rows that this rank asks another one for.
    LearnedIds,
    /// The learned rows that another rank has asked for.
    LearnedRows,
    /// The gradients of learned rows, for the rank that holds the rows.
    LearnedTerms,
}

const SUBJECTS: [Subject; 14] = [
    Subject::Round,
    Subject::Failure,
    Subject::Rows,
    Subject::Term,
    Subject::Sum,
    Subject::Report,
    Subject::Probe,
    Subject::Ids,
    Subject::Pulled,
    Subject::Frontier,
    Subject::Drawn,
    Subject::LearnedIds,
    Subject::LearnedRows,
    Subject::LearnedTerms,
];

/// What a letter says beside its content. As a message, it stands behind the content, which is then aligned as the
/// message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Letter {
    /// The number of its subject; see [`Letter::subject`].
    pub subject: u64,
    /// The round, the session, or the series of exchanges.
    pub number: u64,
    /// The exchange that rows and terms belong to; of a series, its number there.
    pub exchange: u64,
    /// The part that it comes from; of a sum, the rank.
    pub part: u64,
    /// The part that rows go to.
    pub to: u64,
    /// The tile of the sender that rows come from.
    pub tile: u64,
}

impl Letter {
    /// Creates a letter of a round, a session or a series.
    pub(crate) fn new(subject: Subject, number: u64) -> Self {
        Self { subject: subject as u64, number, ..Self::zeroed() }
    }

    /// Returns the subject; `None` if a rank of another version has written it.
    pub(crate) fn subject(&self) -> Option<Subject> {
        SUBJECTS.into_iter().find(|subject| *subject as u64 == self.subject)
    }

    /// Returns content and letter as one message. The content comes in pieces, together `bytes` long.
    pub(super) fn sealed<'c>(&self, bytes: usize, content: impl Iterator<Item = &'c [u8]>) -> Vec<u8> {
        let mut message = Vec::with_capacity(size_of::<Self>() + bytes);
        content.for_each(|piece| message.extend_from_slice(piece));
        message.extend_from_slice(bytemuck::bytes_of(self));
        message
    }

    /// Takes a message apart, without a copy; `None` if it is too short.
    pub(super) fn open(message: &Shared<u8>) -> Option<(Self, Shared<u8>)> {
        let end = message.len().checked_sub(size_of::<Self>())?;
        Some((bytemuck::pod_read_unaligned(&message[end..]), message.slice(0..end)))
    }
}
