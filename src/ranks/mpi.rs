//! Ranks that `mpirun` has started.
//!
//! One thread makes all calls of MPI. It posts every send as soon as it is asked to, takes what arrives, and asks for
//! progress as long as something is on its way: some MPIs move data only while they are called.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lapidary_kernels::sync::{Builder, Receiver, Sender, bounded, unbounded};
use lapidary_kernels::{AlignedBytes, Shared, SpareArrays};
use mpi::point_to_point::{Message, Status};
use mpi::request::{Request, StaticScope};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, Destination, Equivalence, Source};

use super::post_office::PostOffice;
use super::{Ranks, Transport, host};
use crate::error::{Error, Result};

/// MPI counts bytes in 31 bits. A longer message is sent in pieces.
const PIECE: usize = 1 << 30;

/// The tags of a message's last piece, and of the others.
const LAST: i32 = 0;
const MORE: i32 = 1;

/// The shortest and the longest pause between calls. A pause grows with the time in which nothing has happened, to
/// [`SHARE`] of it, but not while something is on its way.
const SHORT: Duration = Duration::from_micros(20);
const LONG: Duration = Duration::from_micros(500);
const SHARE: u32 = 8;

/// How long a rank that failed waits for the others.
const FAREWELL: Duration = Duration::from_secs(5);

/// The most buffers of messages that are kept while nobody reads them. An epoch has the same messages as the one before.
const MOST_SPARE: usize = 4;

/// While something is on its way, there is no pause for this long: between processes of one machine, data moves in
/// pieces of some KiB, and each call moves a few.
const EAGER: Duration = Duration::from_millis(2);

/// What the thread is asked to do.
enum Order {
    Send(usize, Vec<u8>),
    /// End when everything has been sent.
    End,
}

struct Mpi {
    orders: Sender<Order>,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
    failed: AtomicBool,
}

impl Transport for Mpi {
    fn send(&self, to: usize, message: Vec<u8>) {
        // The thread ends only with this value.
        drop(self.orders.send(Order::Send(to, message)));
    }

    fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }
}

impl Drop for Mpi {
    /// Waits until everything has been sent and all ranks leave the job. A rank that failed waits for [`FAREWELL`]: if
    /// others are still busy then, it leaves without them, and `mpirun` ends them.
    fn drop(&mut self) {
        drop(self.orders.send(Order::End));
        if self.failed.load(Ordering::Relaxed) {
            let _ = self.ended.recv_timeout(FAREWELL);
        } else {
            let _ = self.ended.recv();
        }
    }
}

/// Joins the job that this process was started for.
pub(super) fn join(rank: usize) -> Result<Ranks> {
    let office = Arc::<PostOffice>::default();
    let (orders, asked) = unbounded();
    let (ready, started) = bounded(1);
    let (end, ended) = bounded::<()>(1);
    let failed = |why: String| Error::Mpi { why };
    let to = office.clone();
    let thread = Builder::new().name("mpi".into()).spawn(move || {
        // Dropped when the thread ends.
        let _end = end;
        // The panic was printed; whoever waits for other ranks must notice.
        if catch_unwind(AssertUnwindSafe(|| run(&asked, &ready, &to))).is_err() {
            to.fail(rank, host(), "its MPI thread panicked".into());
        }
    });
    thread.map_err(|error| failed(format!("there is no thread for it: {error}")))?;
    match started.recv() {
        Ok(Some((rank, count))) => {
            Ok(Ranks::new(rank, count, Box::new(Mpi { orders, ended, failed: AtomicBool::new(false) }), office))
        }
        _ => Err(failed("it was started before in this process".into())),
    }
}

/// Starts MPI, reports rank and count, and carries messages until the end.
fn run(asked: &Receiver<Order>, ready: &Sender<Option<(usize, usize)>>, office: &PostOffice) {
    let started = mpi::initialize_with_threading(mpi::Threading::Funneled);
    let numbers = started.as_ref().map(|(universe, _)| universe.world());
    let numbers = numbers.map(|world| (world.rank() as usize, world.size() as usize));
    let (Ok(()), Some((universe, _))) = (ready.send(numbers), started) else { return };
    Carrier::new(universe.world()).carry(asked, office);
    // Leaving MPI waits for the other ranks.
    drop(universe);
}

/// A send or receive that MPI has been asked for, and the value whose bytes it reads or writes.
struct Transfer<T: 'static> {
    request: Request<'static, [u8], StaticScope>,
    /// Leaked from a box, for as long as the request needs its bytes.
    value: NonNull<T>,
}

impl<T: 'static> Transfer<T> {
    /// Lends a value to a request.
    fn new(value: T, ask: impl FnOnce(&'static mut T) -> Request<'static, [u8], StaticScope>) -> Self {
        let value = NonNull::from(Box::leak(Box::new(value)));
        // SAFETY: the pointer is from a leaked box. This is the only reference to the value until `test` takes the box
        // back, after the request that holds the reference is done.
        #[allow(unsafe_code)]
        let lent = unsafe { &mut *value.as_ptr() };
        Self { request: ask(lent), value }
    }

    /// Returns the value, if the transfer is done.
    fn test(self) -> std::result::Result<T, Self> {
        match self.request.test() {
            Ok(_) => {
                // SAFETY: the pointer is from a box that `new` leaked. The request was the only one with a reference
                // to it, and is gone; `self` is consumed, so this happens once.
                #[allow(unsafe_code)]
                let value = unsafe { Box::from_raw(self.value.as_ptr()) };
                Ok(*value)
            }
            Err(request) => Err(Self { request, value: self.value }),
        }
    }
}

/// A piece of a message that arrives.
enum Piece {
    Coming(Transfer<AlignedBytes>),
    Here(Shared<u8>),
}

/// Carries messages.
struct Carrier {
    world: SimpleCommunicator,
    sends: Vec<Transfer<Vec<u8>>>,
    /// For each rank, the pieces that arrive from it, in order. The flag says that it is the last of its message.
    arriving: Vec<VecDeque<(bool, Piece)>>,
    spare: SpareArrays,
}

impl Carrier {
    fn new(world: SimpleCommunicator) -> Self {
        let arriving = (0..world.size()).map(|_| VecDeque::new()).collect();
        Self { world, sends: Vec::new(), arriving, spare: SpareArrays::new(MOST_SPARE) }
    }

    /// Carries messages until it is asked to end and everything was sent.
    fn carry(mut self, asked: &Receiver<Order>, office: &PostOffice) {
        let (mut ends, mut last) = (false, Instant::now());
        loop {
            let mut active = false;
            while let Ok(order) = asked.try_recv() {
                active = true;
                ends |= self.obey(order);
            }
            while let Some((message, status)) = self.world.any_process().immediate_matched_probe() {
                active = true;
                self.receive(message, &status);
            }
            active |= self.complete(office);
            let on_its_way = !self.sends.is_empty() || self.arriving.iter().any(|pieces| !pieces.is_empty());
            if ends && !on_its_way && asked.is_empty() {
                return;
            }
            if active {
                last = Instant::now();
                continue;
            }
            if on_its_way && last.elapsed() < EAGER {
                std::thread::yield_now();
                continue;
            }
            let pause = if on_its_way { SHORT } else { (last.elapsed() / SHARE).clamp(SHORT, LONG) };
            if let Ok(order) = asked.recv_timeout(pause) {
                last = Instant::now();
                ends |= self.obey(order);
            }
        }
    }

    /// Posts a send. Returns whether the order was to end.
    fn obey(&mut self, order: Order) -> bool {
        let Order::Send(to, message) = order else { return true };
        let reader = self.world.process_at_rank(to as i32);
        let mut send = |piece: Vec<u8>, tag| {
            let ask = |piece: &'static mut Vec<u8>| reader.immediate_send_with_tag(StaticScope, &piece[..], tag);
            self.sends.push(Transfer::new(piece, ask));
        };
        if message.len() <= PIECE {
            send(message, LAST);
            return false;
        }
        let mut pieces = message.chunks(PIECE).peekable();
        while let Some(piece) = pieces.next() {
            send(piece.to_vec(), if pieces.peek().is_some() { MORE } else { LAST });
        }
        false
    }

    /// Posts the receive of a piece.
    fn receive(&mut self, message: Message, status: &Status) {
        let bytes = status.count(u8::equivalent_datatype()) as usize;
        let buffer = self.spare.take(bytes).expect("the host has memory for a message");
        let ask = |buffer: &'static mut AlignedBytes| {
            message.immediate_matched_receive_into(StaticScope, buffer.as_mut_slice::<u8>())
        };
        let coming = Piece::Coming(Transfer::new(buffer, ask));
        self.arriving[status.source_rank() as usize].push_back((status.tag() == LAST, coming));
    }

    /// Delivers messages that are complete. Returns whether anything was.
    fn complete(&mut self, office: &PostOffice) -> bool {
        let before = self.sends.len();
        self.sends = std::mem::take(&mut self.sends).into_iter().filter_map(|send| send.test().err()).collect();
        let mut any = self.sends.len() < before;
        for (from, pieces) in self.arriving.iter_mut().enumerate() {
            let tested = std::mem::take(pieces).into_iter().map(|(is_last, piece)| match piece {
                Piece::Coming(coming) => match coming.test() {
                    Ok(bytes) => (is_last, Piece::Here(self.spare.lend(bytes))),
                    Err(coming) => (is_last, Piece::Coming(coming)),
                },
                here => (is_last, here),
            });
            *pieces = tested.collect();
            while let Some(message) = next_message(pieces) {
                office.deliver(from, &message);
                any = true;
            }
        }
        any
    }
}

/// Takes the first message of a rank, if all of its pieces are here.
fn next_message(pieces: &mut VecDeque<(bool, Piece)>) -> Option<Shared<u8>> {
    let end = pieces.iter().position(|(is_last, _)| *is_last)?;
    if !pieces.iter().take(end + 1).all(|(_, piece)| matches!(piece, Piece::Here(_))) {
        return None;
    }
    let here = pieces.drain(..=end).filter_map(|(_, piece)| match piece {
        Piece::Here(bytes) => Some(bytes),
        Piece::Coming(_) => None,
    });
    let here: Vec<Shared<u8>> = here.collect();
    if let [one] = &here[..] {
        return Some(one.clone());
    }
    let joined = Shared::filled(here.iter().map(|piece| piece.len()).sum(), |mut bytes: &mut [u8]| {
        for piece in &here {
            let (to, rest) = std::mem::take(&mut bytes).split_at_mut(piece.len());
            to.copy_from_slice(piece);
            bytes = rest;
        }
    });
    Some(joined.expect("the host has memory for a message"))
}
