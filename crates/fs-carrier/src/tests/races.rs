//! One end acts between any two accesses of the other end's call: the stream keeps its order.

use core::cell::{Cell, RefCell};
use std::rc::Rc;

use super::between::{Access, act_before, record};
use super::rules::World;
use crate::kernel::{Kernel, RecvMode};
use crate::layout::Direction;

/// Both ends, the bytes sent, and the bytes received. A byte is its position in the stream.
struct Stream {
    world: World,
    sent: Cell<u8>,
    got: RefCell<Vec<u8>>,
}

impl Stream {
    /// The ring carries, and has `unread` bytes that follow `by_kernel` bytes of the kernel.
    fn new(unread: u8) -> Rc<Self> {
        let stream = Stream { world: World::by_ring(), sent: Cell::new(0), got: RefCell::default() };
        if unread > 0 {
            stream.send(unread);
        }
        Rc::new(stream)
    }

    fn next(&self, n: u8) -> Vec<u8> {
        let sent = self.sent.get();
        self.sent.set(sent + n);
        (sent..sent + n).collect()
    }

    fn send(&self, n: u8) {
        assert_eq!(self.world.a.send(&self.next(n), false), Ok(n.into()));
    }

    /// As sendfile(2): the kernel carries from here on.
    fn send_by_kernel(&self, n: u8) {
        let bytes = self.next(n);
        assert_eq!(self.world.a.send_by_kernel(false, |kernel| kernel.send(&bytes, false)), Ok(n.into()));
    }

    /// Returns whether there were bytes.
    fn receive(&self, most: usize) -> bool {
        let mut piece = vec![0; most];
        let received = self.world.b.recv(&mut piece, RecvMode::NOW);
        let n = received.unwrap_or(0);
        self.got.borrow_mut().extend_from_slice(&piece[..n]);
        n > 0
    }

    fn peek(&self, most: usize) {
        let mut piece = vec![0; most];
        let n = self.world.b.recv(&mut piece, RecvMode::PEEK).unwrap_or(0);
        let got = self.got.borrow().len() as u8;
        assert!(piece[..n].iter().copied().eq(got..got + n as u8), "{:?} after {got}", &piece[..n]);
    }

    fn receive_all(&self) {
        while self.receive(7) {}
        assert!(self.got.borrow().iter().copied().eq(0..self.sent.get()), "{:?}", self.got);
    }
}

type Act = fn(&Stream);

/// What the sender does meanwhile. The ring has 64 bytes and takes pieces of 16.
const SENDS: [(&str, Act); 4] = [
    ("a piece", |stream| stream.send(5)),
    ("more than the ring has room for: P3", |stream| stream.send(100)),
    ("a piece, then by the kernel", |stream| {
        stream.send(5);
        stream.send_by_kernel(6);
    }),
    ("by the kernel, then the receiver's next bytes", |stream| {
        stream.send_by_kernel(6);
        stream.send(5);
    }),
];

/// What the receiver does.
const RECEIVES: [(&str, Act); 8] = [
    ("receives a byte", |stream| _ = stream.receive(1)),
    ("receives", |stream| _ = stream.receive(9)),
    ("receives all", |stream| _ = stream.receive(200)),
    ("peeks", |stream| stream.peek(9)),
    ("peeks at all", |stream| stream.peek(200)),
    ("pins", |stream| stream.world.b.pin()),
    ("is about to sleep", |stream| _ = stream.world.b.before_sleep()),
    ("asks for the ring", |stream| _ = stream.world.b.consumer().set_ring()),
];

/// Runs `action` before each access of `call`, for streams of which some bytes are unread.
fn every_access(call: (&str, Act), action: (&str, Act)) {
    // Miri runs a part.
    let all: &[u8] = if cfg!(miri) { &[3] } else { &[0, 3, 20, 64] };
    for &unread in all {
        for n in 1.. {
            let stream = Stream::new(unread);
            let other = Rc::clone(&stream);
            let has_acted = act_before(n, move || action.1(&other), || call.1(&stream));
            if !has_acted {
                assert!(n > 3, "{} has no accesses", call.0);
                break;
            }
            println!("{unread} unread bytes, {}; before access {n}: {}", call.0, action.0);
            stream.receive_all();
            // What follows, too.
            let _ = stream.world.b.consumer().set_ring();
            stream.send(2);
            stream.receive_all();
        }
    }
}

#[test]
fn sender_acts_between_any_two_accesses_of_the_receiver() {
    for call in RECEIVES {
        for action in SENDS {
            every_access(call, action);
        }
    }
}

#[test]
fn receiver_acts_between_any_two_accesses_of_the_sender() {
    for call in SENDS {
        for action in RECEIVES {
            every_access(call, action);
        }
    }
}

/// A processor with a weak memory order may show the peer a word before the bytes that it stands
/// for. The message in the word's line is the only one that needs no order of its own.
#[test]
fn words_that_the_peer_reads_are_released_and_acquired() {
    for action in SENDS.into_iter().chain(RECEIVES) {
        let stream = Stream::new(20);
        let calls = record(|| {
            action.1(&stream);
            stream.receive_all();
            let _ = stream.world.b.consumer().set_ring();
            stream.send(50);
            stream.receive(30);
            stream.send(50);
            stream.receive_all();
        });
        let direction = stream.world.b.consumer().direction;
        let base = core::ptr::from_ref(direction).addr();
        let inline = core::ptr::from_ref(&direction.line_a.inline).addr();
        let is_shared = |address: usize| {
            (base..base + size_of::<Direction>()).contains(&address)
                && !(inline..inline + size_of_val(&direction.line_a.inline)).contains(&address)
        };
        let shared: Vec<_> = calls.iter().filter(|access| is_shared(access.address)).collect();
        let weak: Vec<_> =
            shared.iter().filter(|access| !access.is_ordered).map(|access| access.address - base).collect();
        assert!(shared.len() > 20 && weak.is_empty(), "{}: offsets of {} accesses: {weak:?}", action.0, shared.len());
    }
}

/// A thread that sends tells the peer how far another thread of its end has copied.
#[test]
fn head_that_the_credit_tells_is_released_and_acquired() {
    for n in [5, 50] {
        let stream = Stream::new(n);
        let (world, piece) = (&stream.world, vec![0; n.into()]);
        let head = core::ptr::from_ref(&world.b.consumer().side.receive.head).addr();
        let orders = |calls: Vec<Access>| {
            let of_head = calls.into_iter().filter(|access| access.address == head);
            of_head.map(|access| access.is_ordered).collect::<Vec<_>>()
        };
        let received = orders(record(|| stream.receive_all()));
        assert!(received.contains(&true), "{n}: {received:?}");
        assert!(world.a.consumer().set_ring());
        let sent = orders(record(|| assert_eq!(world.b.send(&piece, false), Ok(n.into()))));
        assert!(!sent.is_empty() && !sent.contains(&false), "{n}: {sent:?}");
    }
}
