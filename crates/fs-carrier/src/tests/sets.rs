//! E1 to E6 and poll(2) one by one, over a kernel set in memory. Miri runs these.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::fake::{Fake, Pipe};
use super::rules::PACING;
use crate::kernel::{Errno, Event, KernelSet, Machine, RecvMode, Registration};
use crate::pair::Pair;
use crate::poll::{Ask, Poller, Watched};
use crate::region::{End, Region, SideTable};
use crate::set::{EPOLLET, EPOLLIN, EPOLLRDNORM, Member, Set};

mod deferred;

const INTERRUPT: u64 = u64::MAX;
const EPOLLOUT: u32 = 4;
const EPOLLPRI: u32 = 2;
type AtSleep = Box<dyn FnMut() + Send>;

/// The kernel's set, and what happens when a thread sleeps in it.
#[derive(Default)]
pub(super) struct FakeSet {
    sockets: Mutex<Vec<(Arc<Pipe>, u64)>>,
    pub(super) is_edge_triggered: AtomicBool,
    pub(super) is_interrupted: AtomicBool,
    waits: AtomicU32,
    pub(super) now_ns: AtomicU64,
    at_sleep: Mutex<Option<AtSleep>>,
    /// Calls of epoll_ctl(2) that were put off.
    registered: Mutex<Vec<Registration>>,
    /// The next of them does not return.
    jumps: AtomicBool,
    /// The members that the caller of the set keeps.
    pub(super) members: Mutex<Vec<Arc<Member<Fake>>>>,
}

impl FakeSet {
    fn registered(&self) -> Vec<Registration> {
        std::mem::take(&mut self.registered.lock().unwrap())
    }
}

impl FakeSet {
    pub(super) fn at_sleep(&self, call: impl FnMut() + Send + 'static) {
        *self.at_sleep.lock().unwrap() = Some(Box::new(call));
    }

    fn ready(&self, into: &mut [Event]) -> usize {
        let sockets = self.sockets.lock().unwrap();
        let by_edge = self.is_edge_triggered.load(Ordering::Relaxed);
        let is_ready = |pipe: &Pipe| if by_edge { pipe.take_edge() } else { pipe.is_readable() };
        let ready = sockets.iter().filter(|(pipe, _)| is_ready(pipe));
        let mut all: Vec<u64> = ready.take(into.len()).map(|&(_, data)| data).collect();
        if self.is_interrupted.load(Ordering::Relaxed) {
            all.push(INTERRUPT);
        }
        for (place, &data) in into.iter_mut().zip(&all) {
            *place = Event { events: EPOLLIN, data };
        }
        all.len().min(into.len())
    }
}

impl KernelSet for FakeSet {
    fn wait(&self, into: &mut [Event], timeout_ns: Option<u64>) -> Result<usize, Errno> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        if timeout_ns != Some(0) {
            let call = self.at_sleep.lock().unwrap().take();
            if let Some(mut call) = call {
                call();
            }
        }
        match self.ready(into) {
            0 => {
                let slept = timeout_ns.expect("asleep for ever");
                self.now_ns.fetch_add(slept, Ordering::Relaxed);
                Ok(0)
            }
            n => Ok(n),
        }
    }

    fn interrupt(&self) -> Result<(), Errno> {
        assert!(!self.is_interrupted.swap(true, Ordering::Relaxed));
        Ok(())
    }

    fn end_interrupt(&self) {
        assert!(self.is_interrupted.swap(false, Ordering::Relaxed));
    }

    fn disarm(&self, _descriptor: i32, data: u64) {
        self.sockets.lock().unwrap().retain(|(_, registered)| *registered != data);
    }

    fn register(&self, registration: Registration) {
        assert!(!self.jumps.swap(false, Ordering::Relaxed), "out of epoll_ctl(2)");
        self.registered.lock().unwrap().push(registration);
    }

    fn has_nothing(&self) -> bool {
        let sockets = self.sockets.lock().unwrap();
        !self.is_interrupted.load(Ordering::Relaxed) && sockets.iter().all(|(pipe, _)| !pipe.is_readable())
    }

    fn is_interrupt(&self, data: u64) -> bool {
        data == INTERRUPT
    }
}

impl Machine for FakeSet {
    fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed)
    }

    fn pause(&self) {}

    // Time passes, or a spin would not end.
    fn yield_now(&self) {
        self.now_ns.fetch_add(10_000, Ordering::Relaxed);
    }

    fn thread(&self) -> u32 {
        2
    }

    fn is_gone(&self, _thread: u32) -> bool {
        false
    }
}

/// A connection whose end `b` is in the set.
pub(super) struct Connection {
    pub(super) a: Arc<Pair<Fake>>,
    pub(super) b: Arc<Pair<Fake>>,
    pub(super) forth: Arc<Pipe>,
}

impl Connection {
    pub(super) fn new() -> Self {
        let (forth, back) = (Pipe::new(), Pipe::new());
        let (region_a, region_b) = Region::in_memory(64);
        let sides = SideTable::in_memory(2);
        let promote =
            |fake, region, end, i| Arc::new(Pair::promote(fake, region, end, sides.side(i).unwrap(), PACING).unwrap());
        let a = Fake { outgoing: forth.clone(), incoming: back.clone(), thread: 1 };
        let b = Fake { outgoing: back, incoming: forth.clone(), thread: 2 };
        Connection { a: promote(a, region_a, End::A, 0), b: promote(b, region_b, End::B, 1), forth }
    }

    pub(super) fn send(&self, text: &[u8]) {
        assert_eq!(self.a.send(text, false), Ok(text.len()));
    }

    pub(super) fn receive(&self) -> Vec<u8> {
        let mut piece = [0; 40];
        let n = self.b.recv(&mut piece, RecvMode::NOW).unwrap_or(0);
        piece[..n].to_vec()
    }

    pub(super) fn enter(&self, set: &Arc<Set<Fake>>, kernel: &FakeSet, events: u32, data: u64) -> Arc<Member<Fake>> {
        kernel.sockets.lock().unwrap().push((self.forth.clone(), data));
        let member = set.add(kernel, &self.b, events, data).unwrap();
        kernel.members.lock().unwrap().push(member.clone());
        member
    }

    /// In a set, and its ring carries.
    pub(super) fn hot(set: &Arc<Set<Fake>>, kernel: &FakeSet, events: u32, data: u64) -> (Self, Arc<Member<Fake>>) {
        let connection = Connection::new();
        let member = connection.enter(set, kernel, events, data);
        assert!(connection.b.try_set_ring());
        (connection, member)
    }

    pub(super) fn is_kernel(&self) -> bool {
        self.b.words()[1].is_kernel_only()
    }
}

pub(super) fn wait(set: &Set<Fake>, kernel: &FakeSet, timeout_ns: Option<u64>) -> Vec<(u64, u32)> {
    let mut events = [Event::default(); 4];
    let n = set.wait(kernel, &mut events, timeout_ns).unwrap();
    events[..n].iter().map(|event| (event.data, event.events)).collect()
}

pub(super) fn world() -> (Arc<Set<Fake>>, Arc<FakeSet>) {
    (Set::new(PACING), Arc::new(FakeSet::default()))
}

#[test]
fn e1_ring_bytes_are_reported_until_they_are_read() {
    let (set, kernel) = world();
    let (connection, _member) = Connection::hot(&set, &kernel, EPOLLIN | EPOLLRDNORM, 7);
    assert_eq!(wait(&set, &kernel, Some(0)), []);
    connection.send(b"bytes");
    for _ in 0..3 {
        assert_eq!(wait(&set, &kernel, None), [(7, EPOLLIN | EPOLLRDNORM)]);
    }
    assert_eq!(connection.receive(), b"bytes");
    assert_eq!(wait(&set, &kernel, Some(0)), []);
    assert!(!connection.is_kernel());
}

#[test]
fn e1_room_to_send_is_reported_with_bytes() {
    for by_edge in [0, EPOLLET] {
        let (set, kernel) = world();
        let (connection, member) = Connection::hot(&set, &kernel, EPOLLIN | EPOLLOUT | by_edge, 1);
        connection.send(b"x");
        assert_eq!(wait(&set, &kernel, None), [(1, EPOLLIN | EPOLLOUT)]);
        set.change(&*kernel, &member, EPOLLIN | by_edge, 1).unwrap();
        assert_eq!(wait(&set, &kernel, None), [(1, EPOLLIN)]);
    }
}

#[test]
fn e1_scan_continues_where_it_stopped() {
    let (set, kernel) = world();
    let all: Vec<_> = (0..3).map(|i| Connection::hot(&set, &kernel, EPOLLIN, i)).collect();
    for (connection, _) in &all {
        connection.send(b"x");
    }
    let mut seen = Vec::new();
    for _ in 0..6 {
        let mut events = [Event::default(); 1];
        assert_eq!(set.wait(&*kernel, &mut events, None), Ok(1));
        seen.push(events[0].data);
    }
    assert_eq!(seen, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn e1_scan_reports_a_connection_once() {
    let (set, kernel) = world();
    let all: Vec<_> = (0..4).map(|i| Connection::hot(&set, &kernel, EPOLLIN, i)).collect();
    for (connection, _) in &all[..2] {
        connection.send(b"x");
        assert_eq!(set.wait(&*kernel, &mut [Event::default(); 1], None), Ok(1));
        assert_eq!(connection.receive(), b"x");
    }
    // The next scan begins with the third, and drops the first after it has reported the last,
    // which takes the place of the first.
    assert!(all[0].0.b.try_idle());
    for (connection, _) in &all[1..] {
        connection.send(b"x");
    }
    let seen: Vec<u64> = wait(&set, &kernel, None).iter().map(|event| event.0).collect();
    assert_eq!(seen, [2, 3, 1]);
}

#[test]
fn e2_before_a_sleep_the_kernel_becomes_the_carrier() {
    let (set, kernel) = world();
    let (connection, _member) = Connection::hot(&set, &kernel, EPOLLIN, 1);
    let (a, b) = (connection.a.clone(), connection.b.clone());
    kernel.at_sleep(move || {
        assert!(b.words()[1].is_kernel_only());
        // C5: the ring is not taken over a sleeper.
        assert!(!b.try_set_ring());
        assert_eq!(a.send(b"wakes", false), Ok(5));
    });
    assert_eq!(wait(&set, &kernel, None), [(1, EPOLLIN)]);
    assert_eq!(connection.a.counts().kernel_sends, 1);
    assert_eq!(connection.receive(), b"wakes");
    // A short read has found the kernel's queue empty, and the next wait looks.
    assert!(!connection.is_kernel());
    connection.send(b"ring");
    assert_eq!(connection.a.counts().ring_sends, 1);
    assert_eq!(wait(&set, &kernel, None), [(1, EPOLLIN)]);
}

#[test]
fn e2_ring_bytes_forbid_the_sleep() {
    let (set, kernel) = world();
    let (connection, _member) = Connection::hot(&set, &kernel, EPOLLIN, 1);
    connection.send(b"x");
    let waits = kernel.waits.load(Ordering::Relaxed);
    assert_eq!(wait(&set, &kernel, None), [(1, EPOLLIN)]);
    assert_eq!(kernel.waits.load(Ordering::Relaxed), waits);
}

#[test]
fn e4_kernel_events_are_joined_every_32_calls_and_as_long_as_there_are_some() {
    let (set, kernel) = world();
    let (connection, _member) = Connection::hot(&set, &kernel, EPOLLIN, 1);
    let other = Connection::new();
    other.enter(&set, &kernel, EPOLLIN, 2);
    connection.send(b"x");
    other.forth.inject(b'!');
    let lengths: Vec<usize> = (0..40).map(|_| wait(&set, &kernel, None).len()).collect();
    assert_eq!(lengths, [[1; 31].as_slice(), &[2; 9]].concat());
    assert_eq!(other.receive(), b"!");
    let waits = kernel.waits.load(Ordering::Relaxed);
    for _ in 0..3 {
        assert_eq!(wait(&set, &kernel, None).len(), 1);
    }
    assert_eq!(kernel.waits.load(Ordering::Relaxed), waits + 1);
}

#[test]
fn e4_a_call_that_does_not_wait_reports_everything() {
    let (set, kernel) = world();
    let (connection, _member) = Connection::hot(&set, &kernel, EPOLLIN, 1);
    let other = Connection::new();
    other.enter(&set, &kernel, EPOLLIN, 2);
    connection.send(b"x");
    other.forth.inject(b'!');
    assert_eq!(wait(&set, &kernel, None), [(1, EPOLLIN)]);
    assert_eq!(wait(&set, &kernel, Some(0)), [(1, EPOLLIN), (2, EPOLLIN)]);
}

#[test]
fn e4_an_event_of_the_kernel_for_a_hot_connection_is_one_event() {
    let (set, kernel) = world();
    let (connection, _member) = Connection::hot(&set, &kernel, EPOLLIN | EPOLLRDNORM, 1);
    connection.send(b"last");
    connection.forth.end();
    let events: Vec<_> = (0..32).map(|_| wait(&set, &kernel, None)).collect();
    assert!(events.iter().all(|events| events.len() == 1), "{events:?}");
    assert_eq!(connection.receive(), b"last");
    // C9: the kernel's report makes the next receive ask for the end.
    assert_eq!(connection.b.recv(&mut [0], RecvMode::NOW), Ok(0));
}

#[test]
fn c9_a_receive_asks_the_kernel_only_if_something_was_reported() {
    let (set, kernel) = world();
    let (connection, _member) = Connection::hot(&set, &kernel, EPOLLIN, 1);
    connection.forth.end();
    assert_eq!(connection.b.recv(&mut [0], RecvMode::NOW), Err(Errno::AGAIN));
    assert!(!connection.is_kernel());
    assert_eq!(wait(&set, &kernel, Some(0)), [(1, EPOLLIN)]);
    assert_eq!(connection.b.recv(&mut [0], RecvMode::NOW), Ok(0));
}

#[test]
fn edge_is_reported_once_per_arrival() {
    let (set, kernel) = world();
    let (connection, _member) = Connection::hot(&set, &kernel, EPOLLIN | EPOLLET, 1);
    connection.send(b"one");
    assert_eq!(wait(&set, &kernel, Some(0)), [(1, EPOLLIN)]);
    assert_eq!(wait(&set, &kernel, Some(0)), []);
    connection.send(b"two");
    assert_eq!(wait(&set, &kernel, Some(0)), [(1, EPOLLIN)]);
    assert_eq!(wait(&set, &kernel, Some(0)), []);
    assert_eq!(connection.receive(), b"onetwo");
}

#[test]
fn any_edge_reports_what_is_unread() {
    let (set, kernel) = world();
    kernel.is_edge_triggered.store(true, Ordering::Relaxed);
    let (connection, member) = Connection::hot(&set, &kernel, EPOLLIN | EPOLLRDNORM | EPOLLET, 1);
    connection.send(b"one");
    assert_eq!(wait(&set, &kernel, Some(0)), [(1, EPOLLIN | EPOLLRDNORM)]);
    assert_eq!(wait(&set, &kernel, Some(0)), []);
    set.repeat_edge(&*kernel, &member);
    assert_eq!(wait(&set, &kernel, Some(0)), [(1, EPOLLIN | EPOLLRDNORM)]);
    // The kernel's edge, which the fake set reports as EPOLLIN alone.
    connection.forth.inject(b'!');
    assert_eq!(wait(&set, &kernel, Some(0)), [(1, EPOLLIN | EPOLLRDNORM)]);
    assert_eq!(wait(&set, &kernel, Some(0)), []);
}

#[test]
fn set_in_a_set_is_readable_while_a_ring_has_bytes() {
    let (set, kernel) = world();
    let (connection, _member) = Connection::hot(&set, &kernel, EPOLLIN, 1);
    set.show_rest(&*kernel).unwrap();
    assert!(!kernel.is_interrupted.load(Ordering::Relaxed));
    connection.send(b"x");
    connection.b.pin();
    set.show_rest(&*kernel).unwrap();
    set.show_rest(&*kernel).unwrap();
    assert!(kernel.is_interrupted.load(Ordering::Relaxed));
    assert_eq!(wait(&set, &kernel, Some(0)), [(1, EPOLLIN)]);
    assert_eq!(connection.receive(), b"x");
    assert_eq!(wait(&set, &kernel, Some(0)), []);
    assert!(!kernel.is_interrupted.load(Ordering::Relaxed));
}

#[test]
fn edge_is_reported_for_bytes_that_were_there_before() {
    for by_edge in [0, EPOLLET] {
        let (set, kernel) = world();
        let connection = Connection::new();
        assert!(connection.b.try_set_ring());
        connection.send(b"early");
        connection.enter(&set, &kernel, EPOLLIN | by_edge, 1);
        assert_eq!(wait(&set, &kernel, Some(0)), [(1, EPOLLIN)]);
    }
}

#[test]
fn sleep_over_a_reported_edge_leaves_the_rest_to_the_kernel() {
    let (set, kernel) = world();
    let (connection, _member) = Connection::hot(&set, &kernel, EPOLLIN | EPOLLET, 1);
    connection.send(b"one");
    assert_eq!(wait(&set, &kernel, Some(0)), [(1, EPOLLIN)]);
    let (a, b) = (connection.a.clone(), connection.b.clone());
    kernel.at_sleep(move || {
        assert!(b.words()[1].is_kernel_only() && b.has_ring_bytes());
        assert_eq!(a.send(b"two", false), Ok(3));
    });
    assert_eq!(wait(&set, &kernel, None), [(1, EPOLLIN)]);
    // One receive: a short count would say that nothing is left, and no second edge comes.
    assert_eq!(connection.receive(), b"onetwo");
}

#[test]
fn connection_without_epollin_does_not_keep_a_thread_awake() {
    let (set, kernel) = world();
    let (connection, member) = Connection::hot(&set, &kernel, 0, 1);
    connection.send(b"x");
    assert_eq!(wait(&set, &kernel, Some(1)), []);
    assert!(connection.is_kernel());
    set.change(&*kernel, &member, EPOLLIN, 2).unwrap();
    assert_eq!(wait(&set, &kernel, None), [(2, EPOLLIN)]);
}

#[test]
fn e4_busy_rings_do_not_take_all_places() {
    let (set, kernel) = world();
    let (connection, _member) = Connection::hot(&set, &kernel, EPOLLIN, 1);
    let other = Connection::new();
    other.enter(&set, &kernel, EPOLLIN, 2);
    connection.send(b"x");
    other.forth.inject(b'!');
    let one = || {
        let mut events = [Event::default(); 1];
        assert_eq!(set.wait(&*kernel, &mut events, None), Ok(1));
        events[0].data
    };
    let seen: Vec<u64> = (0..70).map(|_| one()).collect();
    assert!(seen[..32].iter().all(|data| *data == 1), "{seen:?}");
    assert!(seen[32..].chunks(2).all(|two| two == [2, 1]), "{seen:?}");
}

#[test]
fn idle_connections_leave_a_long_list() {
    let (set, kernel) = world();
    let all: Vec<_> = (0..70).map(|i| Connection::hot(&set, &kernel, EPOLLIN, i)).collect();
    let (busy, _) = &all[69];
    for _ in 0..1024 + 70 * 2 {
        busy.send(b"x");
        assert_eq!(wait(&set, &kernel, None)[0].0, 69);
        assert_eq!(busy.receive(), b"x");
    }
    assert!(!busy.is_kernel());
    let cold = all.iter().filter(|(connection, _)| connection.is_kernel()).count();
    // The list stays at the length up to which keeping it short does not pay.
    assert_eq!(cold, 6);
}

#[test]
fn kernel_events_that_are_there_already_make_looks_pay() {
    let (set, kernel) = world();
    let connection = Connection::new();
    let member = connection.enter(&set, &kernel, EPOLLIN, 1);
    for _ in 0..4 {
        assert!(connection.b.try_set_ring());
        assert_eq!(wait(&set, &kernel, Some(1)), []);
    }
    assert!(!member.would_spin());
    connection.send(b"kernel");
    assert_eq!(wait(&set, &kernel, None), [(1, EPOLLIN)]);
    assert!(member.would_spin());
    assert_eq!(connection.receive(), b"kernel");
    assert!(!connection.is_kernel());
}

#[test]
fn poll_reports_ring_bytes_and_sleeps_in_the_kernel() {
    let connection = Connection::new();
    let (machine, poller) = (FakeSet::default(), Poller::new(PACING));
    let wait = |timeout, asleep: &mut dyn FnMut()| {
        let mut list = [Watched::new(&connection.b)];
        let n = poller.wait(&machine, &mut list, timeout, |how| {
            if !matches!(how, Ask::Call(Some(0)) | Ask::AlsoReady) {
                asleep();
            }
            Ok(usize::from(connection.forth.is_readable()))
        });
        (n, list[0].is_ready())
    };
    // The spin makes the ring the carrier, the sleep gives it back.
    let mut slept = 0;
    assert_eq!(
        wait(None, &mut || {
            slept += 1;
            assert!(connection.is_kernel() && !connection.b.try_set_ring());
            connection.send(b"wakes");
        }),
        (Ok(1), false)
    );
    assert_eq!((slept, connection.b.counts().to_ring), (1, 1));
    assert_eq!(connection.receive(), b"wakes");
    assert!(connection.b.try_set_ring());
    connection.send(b"ring");
    assert_eq!(wait(None, &mut || panic!("asleep with ring bytes")), (Ok(0), true));
    assert_eq!(connection.receive(), b"ring");
    assert_eq!(wait(Some(0), &mut || panic!("asleep")), (Ok(0), false));
}
