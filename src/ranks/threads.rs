//! Ranks that are threads of one process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lapidary_kernels::Shared;
use lapidary_kernels::sync::{Builder, Sender, unbounded};

use super::post_office::PostOffice;
use super::{Letter, Ranks, Subject, Transport};

/// Hands messages over in memory.
struct Handover {
    rank: usize,
    offices: Arc<[Arc<PostOffice>]>,
    /// Takes messages that arrive later, if there are such.
    later: Option<Sender<Delayed>>,
}

struct Delayed {
    sent: Instant,
    to: usize,
    message: Shared<u8>,
}

impl Transport for Handover {
    fn send(&self, to: usize, message: Vec<u8>) {
        let copied = Shared::filled(message.len(), |bytes: &mut [u8]| bytes.copy_from_slice(&message));
        let message = copied.expect("the host has memory for a message");
        if let Some(later) = self.later.as_ref().filter(|_| is_of_a_pull(&message)) {
            // The thread that takes it ends only with this sender.
            drop(later.send(Delayed { sent: Instant::now(), to, message }));
        } else {
            self.offices[to].deliver(self.rank, &message);
        }
    }
}

fn is_of_a_pull(message: &Shared<u8>) -> bool {
    let subject = Letter::open(message).and_then(|(letter, _)| letter.subject());
    matches!(subject, Some(Subject::Ids | Subject::Pulled | Subject::Frontier | Subject::Drawn))
}

/// Returns the ranks of a job of `count` threads. Letters of pulls, of rows and of edges, arrive `latency` after they were
/// sent.
pub(super) fn join(count: usize, latency: Duration) -> Vec<Ranks> {
    let offices: Arc<[Arc<PostOffice>]> = (0..count).map(|_| Arc::default()).collect();
    let rank = |rank: usize| {
        let later = (!latency.is_zero()).then(|| deliver_later(rank, offices.clone(), latency));
        let transport = Box::new(Handover { rank, offices: offices.clone(), later });
        Ranks::new(rank, count, transport, offices[rank].clone())
    };
    (0..count).map(rank).collect()
}

/// Starts the thread that delivers a rank's late messages, in the order in which they were sent.
fn deliver_later(rank: usize, offices: Arc<[Arc<PostOffice>]>, latency: Duration) -> Sender<Delayed> {
    let (later, delayed) = unbounded::<Delayed>();
    let deliver = move || {
        while let Ok(Delayed { sent, to, message }) = delayed.recv() {
            std::thread::sleep((sent + latency).saturating_duration_since(Instant::now()));
            offices[to].deliver(rank, &message);
        }
    };
    Builder::new().spawn(deliver).expect("a thread can be started");
    later
}
