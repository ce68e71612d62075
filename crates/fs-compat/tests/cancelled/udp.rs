//! Programs of one UDP socket.

use crate::actors::{Actors, turn};
use crate::flow::{Flow, TO_PROGRAM, datagram};
use crate::kinds::{Kind, Op};
use crate::{Trace, World};
use std::net::SocketAddr;
use std::rc::Rc;
use tokio::io::Interest;

/// Datagrams on their way to the program. All sockets have room for them.
const MOST: u64 = 20;

pub(crate) async fn program<K: Kind>(world: &World, random: &mut fastrand::Rng, trace: &Rc<Trace>) {
    trace.add("datagrams");
    let mut actors = Actors::default();
    let (peer, stranger) = (world.peers.udp().await, world.peers.udp().await);
    let socket = Rc::new(K::bind_udp(world.runtime.clone(), SocketAddr::new(world.at, 0)).await.unwrap());
    let (at, to) = (SocketAddr::new(world.at, K::udp_addr(&socket).port()), peer.addr());
    let flow = Rc::new(Flow::default());
    flow.peer.set(Some(to));
    let connected = random.bool();
    if connected {
        K::connect_udp(socket.clone(), to).await;
    }
    let (mut sent, mut arrived) = (0, 0);
    for _ in 0..random.usize(5..60) {
        match random.u8(..16) {
            0..=6 => {
                let is_split = random.bool();
                let op = Op::draw(random, is_split);
                let (polls, drops) = (random.usize(..4), random.u8(..4) == 0);
                // Of several calls of `net` that poll, only the last one is woken.
                let polled = matches!(op, Op::PollPeek(_) | Op::Borrowed | Op::Closed);
                let name = if polled && K::NAME == "net" { "poll in" } else { "call" };
                if name == "call" || actors.waits_for(name) == 0 {
                    trace.add((name, op, polls, drops));
                    let waits = op.waits().or(Some(Interest::READABLE));
                    let call = K::udp_call(socket.clone(), flow.clone(), op, to);
                    actors.start(format!("{name} {op:?}"), waits, call, polls, drops);
                }
            }
            7..=9 if sent < flow.read.get() + MOST => {
                trace.add(("peer sends", sent));
                peer.send(&datagram(TO_PROGRAM, sent), at);
                sent += 1;
            }
            10 if connected => {
                trace.add("a stranger sends");
                stranger.send(trace.head.as_bytes(), at);
            }
            11 | 12 => trace.add(("cancelled", actors.cancel(random))),
            13 => trace.add(("moved", actors.moves(random))),
            _ => {
                trace.add("all are woken");
                actors.all_woken(|interest| K::is_udp_ready(&socket, interest)).await;
            }
        }
        for _ in 0..random.usize(..3) {
            actors.run();
            turn(random.u8(..4) == 0).await;
        }
        arrived += peer.drain(arrived);
    }
    trace.add(("the end", flow.read.get(), flow.written.get()));
    // Each call that waits gets a datagram; then all are read.
    while actors.len() > 0 {
        peer.send(&datagram(TO_PROGRAM, sent), at);
        sent += 1;
        let before = actors.len();
        actors.until("a call", |actors| actors.len() < before || flow.read.get() == sent).await;
    }
    while flow.read.get() < sent {
        let read = flow.read.get();
        actors.start("last".into(), None, K::udp_call(socket.clone(), flow.clone(), Op::Read(0), to), 1, false);
        actors.until("the last datagrams", |_| flow.read.get() > read).await;
    }
    let all = |_: &mut Actors| {
        arrived += peer.drain(arrived);
        arrived == flow.written.get()
    };
    actors.until("the peer's datagrams", all).await;
    drop(Rc::into_inner(socket).expect("a call has kept its socket"));
    actors.no_waker_is_left().await;
}
