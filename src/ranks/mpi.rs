//! Ranks that `mpirun` has started.
//!
//! One thread makes all calls of MPI. It posts every send as soon as it is asked to, takes what arrives, and asks for
//! progress as long as something is on its way: some MPIs move data only while they are called.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lapidary_kernels::sync::{Builder, JoinHandle, Receiver, Sender, bounded, unbounded};
use mpi::point_to_point::{Message, Status};
use mpi::request::{LocalScope, Request};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, Destination, Equivalence, Source};
use typed_arena::Arena;

use super::post_office::PostOffice;
use super::{Ranks, Transport};
use crate::error::{Error, Result};

/// MPI counts bytes in 31 bits. A longer message is sent in pieces.
const PIECE: usize = 1 << 30;

/// The tags of a message's last piece, and of the others.
const LAST: i32 = 0;
const MORE: i32 = 1;

/// Pauses between calls: while something is on its way, and while nothing is. The second one is taken after nothing
/// has happened for [`QUIET`].
const SHORT: Duration = Duration::from_micros(20);
const LONG: Duration = Duration::from_micros(500);
const QUIET: Duration = Duration::from_millis(20);

/// What the thread is asked to do.
enum Order {
    Send(usize, Vec<u8>),
    /// End when everything has been sent.
    End,
}

struct Mpi {
    orders: Sender<Order>,
    thread: Option<JoinHandle<()>>,
}

impl Transport for Mpi {
    fn send(&self, to: usize, message: Vec<u8>) {
        // The thread ends only with this value.
        drop(self.orders.send(Order::Send(to, message)));
    }
}

impl Drop for Mpi {
    /// Waits until everything has been sent, and leaves the job.
    fn drop(&mut self) {
        drop(self.orders.send(Order::End));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Joins the job that this process was started for.
pub(super) fn join() -> Result<Ranks> {
    let office = Arc::<PostOffice>::default();
    let (orders, asked) = unbounded();
    let (ready, started) = bounded(1);
    let failed = |why: String| Error::Mpi { why };
    let to = office.clone();
    let thread = Builder::new().name("mpi".into()).spawn(move || run(&asked, &ready, &to));
    let thread = thread.map_err(|error| failed(format!("there is no thread for it: {error}")))?;
    match started.recv() {
        Ok(Some((rank, count))) => Ok(Ranks::new(rank, count, Box::new(Mpi { orders, thread: Some(thread) }), office)),
        _ => Err(failed("it was started before in this process".into())),
    }
}

/// Starts MPI, reports rank and count, and carries messages until the end.
fn run(asked: &Receiver<Order>, ready: &Sender<Option<(usize, usize)>>, office: &PostOffice) {
    let started = mpi::initialize_with_threading(mpi::Threading::Funneled);
    let numbers = started.as_ref().map(|(universe, _)| universe.world());
    let numbers = numbers.map(|world| (world.rank() as usize, world.size() as usize));
    let (Ok(()), Some((universe, _))) = (ready.send(numbers), started) else { return };
    let world = universe.world();
    let mut ended = false;
    while !ended {
        // Buffers live until nothing is on its way.
        let buffers = Arena::new();
        ended = mpi::request::scope(|scope| Carrier::new(&world, scope, &buffers).carry(asked, office));
    }
    // Leaving MPI waits for the other ranks.
    drop(universe);
}

type Pending<'s, 'a> = Request<'a, [u8], &'s LocalScope<'a>>;

/// A piece of a message that arrives.
enum Piece<'s, 'a> {
    Coming(Pending<'s, 'a>),
    Here(&'a [u8]),
}

/// Carries messages from when the first one is on its way until none is.
struct Carrier<'s, 'a> {
    world: &'s SimpleCommunicator,
    scope: &'s LocalScope<'a>,
    buffers: &'a Arena<Vec<u8>>,
    sends: Vec<Pending<'s, 'a>>,
    /// For each rank, the pieces that arrive from it, in order. The flag says that it is the last of its message.
    arriving: Vec<VecDeque<(bool, Piece<'s, 'a>)>>,
}

impl<'s, 'a> Carrier<'s, 'a> {
    fn new(world: &'s SimpleCommunicator, scope: &'s LocalScope<'a>, buffers: &'a Arena<Vec<u8>>) -> Self {
        let arriving = (0..world.size()).map(|_| VecDeque::new()).collect();
        Self { world, scope, buffers, sends: Vec::new(), arriving }
    }

    /// Carries messages. Returns, when none is on its way, whether this is the end.
    fn carry(mut self, asked: &Receiver<Order>, office: &PostOffice) -> bool {
        let (mut ends, mut last, mut carried) = (false, Instant::now(), false);
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
            carried |= active;
            let on_its_way = !self.sends.is_empty() || self.arriving.iter().any(|pieces| !pieces.is_empty());
            if !on_its_way && (ends || carried) && asked.is_empty() {
                return ends;
            }
            if active {
                last = Instant::now();
                continue;
            }
            let pause = if on_its_way || last.elapsed() < QUIET { SHORT } else { LONG };
            if let Ok(order) = asked.recv_timeout(pause) {
                last = Instant::now();
                carried = true;
                ends |= self.obey(order);
            }
        }
    }

    /// Posts a send. Returns whether the order was to end.
    fn obey(&mut self, order: Order) -> bool {
        let Order::Send(to, message) = order else { return true };
        let message: &'a [u8] = self.buffers.alloc(message);
        let reader = self.world.process_at_rank(to as i32);
        let mut pieces = message.chunks(PIECE).peekable();
        while let Some(piece) = pieces.next() {
            let tag = if pieces.peek().is_some() { MORE } else { LAST };
            self.sends.push(reader.immediate_send_with_tag(self.scope, piece, tag));
        }
        false
    }

    /// Posts the receive of a piece.
    fn receive(&mut self, message: Message, status: &Status) {
        let bytes = status.count(u8::equivalent_datatype()) as usize;
        let buffer = self.buffers.alloc(vec![0; bytes]);
        let coming = message.immediate_matched_receive_into(self.scope, &mut buffer[..]);
        let from = status.source_rank() as usize;
        self.arriving[from].push_back((status.tag() == LAST, Piece::Coming(coming)));
    }

    /// Delivers messages that are complete. Returns whether anything was.
    fn complete(&mut self, office: &PostOffice) -> bool {
        let before = self.sends.len();
        self.sends = std::mem::take(&mut self.sends).into_iter().filter_map(|send| send.test().err()).collect();
        let mut any = self.sends.len() < before;
        for (from, pieces) in self.arriving.iter_mut().enumerate() {
            let tested = std::mem::take(pieces).into_iter().map(|(is_last, piece)| match piece {
                Piece::Coming(request) => match request.test_with_data() {
                    Ok((_, bytes)) => (is_last, Piece::Here(bytes)),
                    Err(request) => (is_last, Piece::Coming(request)),
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
fn next_message<'a>(pieces: &mut VecDeque<(bool, Piece<'_, 'a>)>) -> Option<Cow<'a, [u8]>> {
    let end = pieces.iter().position(|(is_last, _)| *is_last)?;
    let here = |(_, piece): &(bool, Piece<'_, '_>)| matches!(piece, Piece::Here(_));
    if !pieces.iter().take(end + 1).all(here) {
        return None;
    }
    let bytes = pieces.drain(..=end).filter_map(|(_, piece)| match piece {
        Piece::Here(bytes) => Some(bytes),
        Piece::Coming(_) => None,
    });
    let bytes: Vec<&[u8]> = bytes.collect();
    Some(if let [one] = bytes[..] { one.into() } else { bytes.concat().into() })
}
