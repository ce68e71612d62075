//! Programs of one connection.

use crate::actors::{Actors, turn};
use crate::flow::Flow;
use crate::kinds::{Kind, Lent, Made, Op};
use crate::peer::{BUFFER, Peer, Peers, drain};
use crate::{Trace, World};
use std::cell::RefCell;
use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;
use tokio::io::Interest;

/// One connection of the program, whole or in halves.
enum Ours<K: Kind> {
    Whole(Rc<K::Stream>),
    Split(Rc<RefCell<Option<K::Reader>>>, Rc<RefCell<Option<K::Writer>>>),
}

/// Connects, after a few connects (or accepts) that are cancelled.
async fn join<K: Kind>(
    world: &World,
    random: &mut fastrand::Rng,
    actors: &mut Actors,
    trace: &Trace,
) -> (K::Stream, Peer) {
    let done: Made<K> = Rc::default();
    let (connects, cancelled) = (random.bool(), random.usize(..3));
    trace.add(("connects", connects, "after", cancelled));
    if connects {
        let listener = world.peers.listen().await;
        for n in 0..=cancelled {
            let (done, connect) = (done.clone(), K::connect(world.runtime.clone(), listener.addr()));
            let connect = Box::pin(async move {
                let stream = connect.await.unwrap();
                let from = K::local_addr(&stream);
                done.borrow_mut().push((stream, from));
            });
            actors.start("connect".into(), None, connect, random.usize(..4), n < cancelled);
            turn(random.bool()).await;
        }
        actors.until("connect", |_| !done.borrow().is_empty()).await;
        let (stream, from) = done.borrow_mut().pop().unwrap();
        actors.cancel_all();
        done.borrow_mut().clear();
        loop {
            // Cancelled connects may arrive too.
            let (peer, at) = listener.accept().await;
            if at == from {
                return (stream, peer);
            }
        }
    }
    let at = SocketAddr::new(world.at, 0);
    let listener = Rc::new(K::listen(world.runtime.clone(), at).await.unwrap());
    let to = SocketAddr::new(world.at, K::listens_at(&listener).port());
    let mut peer = None;
    let when = random.usize(..=cancelled);
    for n in 0..=cancelled {
        if n == when {
            peer = Some(world.peers.connect(to).await);
        }
        let (done, accept) = (done.clone(), K::accept(listener.clone(), random.bool()));
        let accept = Box::pin(async move {
            let accepted = accept.await.unwrap();
            done.borrow_mut().push(accepted);
        });
        actors.start("accept".into(), None, accept, random.usize(..4), n < cancelled);
        turn(random.bool()).await;
    }
    actors.until("accept", |_| !done.borrow().is_empty()).await;
    let (stream, from) = done.borrow_mut().pop().unwrap();
    let peer = peer.unwrap();
    assert_eq!(from, peer.local_addr());
    actors.cancel_all();
    (stream, peer)
}

/// Asks a half that no call uses.
fn is_ready<K: Kind>(ours: &Ours<K>, interest: Interest) -> bool {
    match ours {
        Ours::Whole(stream) => K::is_ready(stream, interest),
        Ours::Split(reader, writer) => {
            let (reader, writer) = (reader.borrow(), writer.borrow());
            let stream = reader.as_ref().map(K::reader).or(writer.as_ref().map(K::writer));
            stream.is_some_and(|stream| K::is_ready(stream, interest))
        }
    }
}

/// What has happened to the connection.
#[derive(Default)]
struct State {
    peer: Option<Peer>,
    peer_sent: u64,
    peer_read: u64,
    peer_fin: bool,
    /// Bytes may be lost, and calls may fail: a side closed early, or reset the connection.
    broken: bool,
    was_urgent: bool,
    shut_write: bool,
}

fn start<K: Kind>(
    ours: &Ours<K>,
    flow: &Rc<Flow>,
    world: &World,
    random: &mut fastrand::Rng,
    actors: &mut Actors,
) -> String {
    let op = Op::draw(random, matches!(ours, Ours::Split(..)));
    let is_net = K::NAME == "net";
    let (polls, drops) = (random.usize(..4), random.u8(..4) == 0);
    // On the kernel a cancelled `send_buffer` may have sent a part.
    let is_kernel = matches!(world.peers, Peers::Kernel);
    let op = if matches!(op, Op::SendBuffer(_)) && is_kernel { Op::Writable(500) } else { op };
    let name = match op {
        // Of calls that poll, only the last one is woken in `net` and on the kernel.
        Op::PollPeek(_) if is_net || is_kernel => "poll in",
        Op::Closed if is_kernel && !is_net => "closed",
        Op::Borrowed | Op::Closed if is_net => "poll in",
        Op::SendBuffer(_) if is_net => "poll out",
        // Its bytes are chosen when it starts.
        Op::SendBuffer(_) => "whole",
        _ if op.writes() => "write",
        _ => "call",
    };
    let writes = |actors: &Actors| actors.waits_for("write") + actors.waits_for("whole");
    let is_busy = match name {
        "poll in" | "poll out" | "closed" => actors.waits_for(name) > 0,
        "whole" => writes(actors) > 0,
        "write" => actors.waits_for("whole") > 0,
        _ => false,
    };
    if is_busy {
        return format!("busy: {op:?}");
    }
    let what = format!("{name} {op:?}");
    let (waits, call) = match ours {
        Ours::Whole(stream) => (op.waits(), K::call(stream.clone(), flow.clone(), op)),
        Ours::Split(_, writer) if op.writes() => match Lent::of(writer) {
            Some(half) => (op.waits(), K::write_call(half, flow.clone(), op)),
            None => return format!("busy: {op:?}"),
        },
        Ours::Split(reader, _) => match Lent::of(reader) {
            Some(half) => (op.waits(), K::read_call(half, flow.clone(), op)),
            None => return format!("busy: {op:?}"),
        },
    };
    actors.start(what.clone(), waits, call, polls, drops);
    format!("{what}, polled {polls} times{}", if drops { " and dropped" } else { "" })
}

impl State {
    fn act(&mut self, flow: &Flow, random: &mut fastrand::Rng) -> String {
        let Some(mut peer) = self.peer.take() else { return "no peer".into() };
        let said = match random.u8(..24) {
            0..=8 if !self.peer_fin => match peer.send(self.peer_sent, random.usize(1..20_000)) {
                Ok(n) => {
                    self.peer_sent += n as u64;
                    format!("peer sends {n}")
                }
                Err(error) => {
                    assert!(self.broken, "the peer cannot send: {error}");
                    "peer cannot send".into()
                }
            },
            9..=17 => {
                let end = drain(&mut peer, flow, &mut self.peer_read, random.usize(1..60_000));
                assert!(end.is_none() || self.shut_write || self.broken, "the peer reads {end:?}");
                format!("peer has read {}", self.peer_read)
            }
            18 if !self.peer_fin => {
                peer.fin();
                self.peer_fin = true;
                "peer ends".into()
            }
            19 => {
                self.broken = true;
                drop(peer);
                return "peer closes".into();
            }
            20 => {
                self.broken = true;
                peer.reset();
                return "peer resets".into();
            }
            21 if !self.peer_fin && !self.was_urgent => {
                self.was_urgent = peer.urgent();
                "peer is urgent".into()
            }
            _ => "peer rests".into(),
        };
        self.peer = Some(peer);
        said
    }
}

pub(crate) async fn program<K: Kind>(world: &World, random: &mut fastrand::Rng, trace: &Rc<Trace>) {
    let mut actors = Actors::default();
    let (stream, peer) = join::<K>(world, random, &mut actors, trace).await;
    if random.bool() {
        trace.add("small buffers");
        K::limit_buffers(&stream, BUFFER);
        peer.limit_buffers();
    }
    let flow = Rc::new(Flow::default());
    let mut state = State { peer: Some(peer), ..State::default() };
    let mut ours = if random.u8(..3) == 0 {
        trace.add("split");
        let (reader, writer) = K::split(stream);
        Ours::<K>::Split(Rc::new(RefCell::new(Some(reader))), Rc::new(RefCell::new(Some(writer))))
    } else {
        Ours::Whole(Rc::new(stream))
    };
    for _ in 0..random.usize(5..60) {
        match random.u8(..20) {
            0..=7 => trace.add(start(&ours, &flow, world, random, &mut actors)),
            8..=12 => trace.add(state.act(&flow, random)),
            13 | 14 => trace.add(("cancelled", actors.cancel(random))),
            15 | 16 => trace.add(("moved", actors.moves(random))),
            17 if random.u8(..3) == 0 => shut(&ours, &flow, &mut state, random, &mut actors, trace),
            _ => {
                trace.add("all are woken");
                actors.all_woken(|interest| is_ready(&ours, interest)).await;
            }
        }
        for _ in 0..random.usize(..3) {
            actors.run();
            turn(random.u8(..4) == 0).await;
        }
    }
    trace.add(("the end", random.u8(..6) == 0, flow.read.get(), flow.written.get()));
    if random.u8(..5) == 0 {
        state.broken = true;
    } else {
        finish(&mut ours, &flow, &mut state, random, &mut actors).await;
    }
    trace.add("closes");
    actors.cancel_all();
    let is_whole = close(ours, random);
    trace.add(("closed", is_whole));
    ends_at_the_peer(&flow, &mut state, &mut actors).await;
    actors.no_waker_is_left().await;
}

/// One direction's end by the program itself.
fn shut<K: Kind>(
    ours: &Ours<K>,
    flow: &Flow,
    state: &mut State,
    random: &mut fastrand::Rng,
    actors: &mut Actors,
    trace: &Trace,
) {
    match ours {
        Ours::Whole(stream) => {
            let how = [Shutdown::Read, Shutdown::Write, Shutdown::Both][random.usize(..3)];
            if K::shut(stream, how) {
                trace.add(how);
                state.shut_write |= how != Shutdown::Read;
                if how != Shutdown::Write {
                    flow.any_bytes.set(true);
                    state.broken = true;
                }
            }
        }
        Ours::Split(_, writer) => {
            if let Some(half) = Lent::of(writer) {
                trace.add("the half shuts");
                state.shut_write = true;
                actors.start("shut".into(), None, K::shut_half(half), 1, false);
            }
        }
    }
}

/// The peer sends its last bytes and ends, and reads all. Every call of the program ends by that.
async fn finish<K: Kind>(
    ours: &mut Ours<K>,
    flow: &Rc<Flow>,
    state: &mut State,
    random: &mut fastrand::Rng,
    actors: &mut Actors,
) {
    let resets = random.u8(..4) == 0;
    let mut left = random.usize(..5000);
    let was_shut = state.shut_write;
    let is_over = |actors: &mut Actors| {
        if let Some(peer) = &mut state.peer {
            if left > 0 && !state.peer_fin {
                match peer.send(state.peer_sent, left) {
                    Ok(n) => {
                        left -= n;
                        state.peer_sent += n as u64;
                    }
                    Err(_) => left = 0,
                }
            } else if resets && flow.read.get() == state.peer_sent {
                state.broken = true;
                state.peer.take().unwrap().reset();
            } else {
                peer.fin();
                state.peer_fin = true;
            }
        }
        if let Some(peer) = &mut state.peer {
            let end = drain(peer, flow, &mut state.peer_read, usize::MAX);
            assert!(end.is_none() || state.shut_write || state.broken, "the peer reads {end:?}");
        }
        // A reader takes everything, to the end.
        if flow.ended.get().is_none() && actors.waits_for("last") == 0 {
            let call = match ours {
                Ours::Whole(stream) => Some(K::call(stream.clone(), flow.clone(), Op::Readable(9000))),
                Ours::Split(reader, _) => Lent::of(reader).map(|half| K::read_call(half, flow.clone(), Op::Read(9000))),
            };
            if let Some(call) = call {
                actors.start("last".into(), Some(Interest::READABLE), call, 0, false);
            }
        }
        // Calls that wait for the whole connection's end need the program's. It would fail calls that write.
        let writes = ["write", "whole", "poll out"].iter().any(|name| actors.waits_for(name) > 0);
        if flow.ended.get().is_some() && !state.shut_write && !writes {
            state.shut_write = match ours {
                Ours::Whole(stream) => K::shut(stream, Shutdown::Write),
                Ours::Split(..) => false,
            };
        }
        flow.ended.get().is_some() && actors.len() == 0
    };
    actors.until("the last calls", is_over).await;
    if !state.broken {
        assert_eq!((flow.ended.get(), flow.read.get()), (Some(true), state.peer_sent));
        let failed = flow.failed.borrow();
        assert!(failed.is_empty() || was_shut, "calls have failed: {failed:?}");
    }
}

/// Closes the program's connection. Halves are joined first, or not.
fn close<K: Kind>(ours: Ours<K>, random: &mut fastrand::Rng) -> bool {
    match ours {
        Ours::Whole(stream) => drop(Rc::into_inner(stream).expect("a call has kept its socket")),
        Ours::Split(reader, writer) => {
            let (reader, writer) = (reader.take().unwrap(), writer.take().unwrap());
            if random.bool() {
                drop(K::reunite(reader, writer));
                return true;
            }
        }
    }
    false
}

/// The peer has every byte that was written, unless the connection broke, and the end.
async fn ends_at_the_peer(flow: &Flow, state: &mut State, actors: &mut Actors) {
    let Some(mut peer) = state.peer.take() else { return };
    let mut end = None;
    let is_over = |_: &mut Actors| {
        end = drain(&mut peer, flow, &mut state.peer_read, usize::MAX);
        end.is_some()
    };
    actors.until("the peer's end", is_over).await;
    if !state.broken {
        assert!(matches!(end, Some(Ok(()))), "the peer reads {end:?}");
        assert_eq!(state.peer_read, flow.written.get(), "bytes of the program are lost");
    }
}
