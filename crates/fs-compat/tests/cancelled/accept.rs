//! Programs of one listener, with several calls that accept at once.

use crate::actors::{Actors, turn};
use crate::kinds::{Kind, Later, Made};
use crate::peer::Peer;
use crate::{Trace, World};
use std::net::SocketAddr;
use std::rc::Rc;

pub(crate) async fn program<K: Kind>(world: &World, random: &mut fastrand::Rng, trace: &Rc<Trace>) {
    trace.add("a listener");
    let mut actors = Actors::default();
    let listener = Rc::new(K::listen(world.runtime.clone(), SocketAddr::new(world.at, 0)).await.unwrap());
    let to = SocketAddr::new(world.at, K::listens_at(&listener).port());
    let accepted: Made<K> = Rc::default();
    let mut peers: Vec<Peer> = Vec::new();
    let accept = |polls: bool| {
        let (accepted, accept): (_, Later<_>) = (accepted.clone(), K::accept(listener.clone(), polls));
        Box::pin(async move {
            let next = accept.await.unwrap();
            accepted.borrow_mut().push(next);
        })
    };
    for _ in 0..random.usize(5..40) {
        match random.u8(..10) {
            0..=3 => {
                // Of several calls of `net` that poll, only the last one is woken.
                let polls = random.bool() && (K::NAME == "local" || actors.waits_for("polls") == 0);
                let (times, drops) = (random.usize(..4), random.u8(..4) == 0);
                trace.add(("accepts", polls, times, drops));
                let what = if polls { "polls" } else { "accepts" };
                actors.start(what.into(), None, accept(polls), times, drops);
            }
            4 | 5 => trace.add(("cancelled", actors.cancel(random))),
            6 => trace.add(("moved", actors.moves(random))),
            7 => {
                trace.add("peers connect");
                for _ in 0..random.usize(1..4) {
                    peers.push(world.peers.connect(to).await);
                }
            }
            _ => {
                // A connection that waits wakes a call that waits.
                trace.add("none waits");
                actors.until("accept", |actors| actors.len() == 0 || accepted.borrow().len() >= peers.len()).await;
            }
        }
        actors.run();
        turn(random.u8(..4) == 0).await;
    }
    trace.add("all are accepted");
    while accepted.borrow().len() + actors.len() < peers.len() {
        actors.start("accepts".into(), None, accept(false), 0, false);
    }
    while accepted.borrow().len() + actors.len() > peers.len() {
        peers.push(world.peers.connect(to).await);
        actors.run();
    }
    actors.until("the last accepts", |actors| actors.len() == 0 && accepted.borrow().len() == peers.len()).await;
    let mut from: Vec<_> = accepted.borrow().iter().map(|(_, from)| *from).collect();
    let mut expected: Vec<_> = peers.iter().map(Peer::local_addr).collect();
    from.sort();
    expected.sort();
    assert_eq!(from, expected);
    accepted.borrow_mut().clear();
    drop(Rc::into_inner(listener).expect("a call has kept its listener"));
    actors.no_waker_is_left().await;
}
