use std::net::{TcpListener, TcpStream};

use fs_carrier::exact::Carried;

use super::*;
use crate::closing::Users;

/// Offers this socket as the first offer of a client.
fn offer(registry: &mut Registry, client: u64, socket: &TcpStream) -> Outcome {
    let user = Users::default().get(rustix::process::geteuid().as_raw());
    let fd = user.own(socket.try_clone().unwrap().into());
    let seen = Seen::read(fd.as_fd(), Carried::default());
    registry.offer(Key { client, number: Number(1) }, fd, seen, Instant::now())
}

const HOUR: Duration = Duration::from_secs(3600);

/// Returns a registry with three clients, and the ends of a connection. The first client has offered
/// the first end.
fn world(wait: Duration) -> (Registry, TcpStream, TcpStream) {
    let mut registry = Registry::new(Limits { wait, ..Limits::default() });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (b, _) = listener.accept().unwrap();
    for client in 1..=3 {
        assert!(registry.join(client, Process::new(1, 1, b"test")));
    }
    assert!(matches!(offer(&mut registry, 1, &a), Outcome::Waits));
    (registry, a, b)
}

/// The thread that reads the first offer's socket may wait for longer than both offers may.
#[test]
fn offers_end_by_time_while_their_match_is_decided() {
    let (mut registry, _a, b) = world(Limits::default().wait);
    let Outcome::Again(again, socket) = offer(&mut registry, 2, &b) else { panic!("no match") };
    let late = Instant::now() + Limits::default().wait;
    assert_eq!(registry.expire(late).len(), 2);
    assert!(registry.next_released(late).is_none() && registry.next_deadline().is_none());
    assert!(registry.is_deciding(1) && !registry.is_deciding(2), "a thread reads the first one");
    let seen = Seen::read(socket.as_fd(), Carried::default());
    assert!(registry.seen_again(again, seen, late).is_empty());
    assert!(!registry.is_deciding(1));
}

/// The thread that reads the first offer's socket may wait for long. Then that offer's process ends.
#[test]
fn second_offer_is_matched_although_the_first_is_gone() {
    let (mut registry, a, b) = world(HOUR);
    let Outcome::Again(stale, _) = offer(&mut registry, 2, &b) else { panic!("no match") };
    assert!(registry.is_deciding(1) && registry.is_deciding(2));
    assert!(registry.next_released(Instant::now()).is_none());
    registry.leave(1);
    let released = registry.next_released(Instant::now());
    assert!(matches!(released, Some((Key { client: 2, .. }, Outcome::Waits))), "{released:?}");
    assert!(!registry.is_deciding(2));
    // The same socket of another process.
    let Outcome::Again(again, socket) = offer(&mut registry, 3, &a) else { panic!("no match") };
    // What the thread has read at last.
    let seen = Seen::read(a.as_fd(), Carried::default());
    assert!(registry.seen_again(stale, seen, Instant::now()).is_empty());
    let seen = Seen::read(socket.as_fd(), Carried::default());
    let outcomes = registry.seen_again(again, seen, Instant::now());
    assert!(matches!(outcomes[..], [(Key { client: 3, .. }, Outcome::Matched(Key { client: 2, .. }))]), "{outcomes:?}");
    assert!(!registry.is_deciding(2) && !registry.is_deciding(3));
}

/// A process that waits for its earlier offers, and closes a socket, may bind its port again at once.
#[test]
fn socket_that_a_thread_still_reads_is_not_decided() {
    let (mut registry, _a, b) = world(HOUR);
    let Outcome::Again(again, socket) = offer(&mut registry, 2, &b) else { panic!("no match") };
    assert!(registry.forget(Key { client: 1, number: Number(1) }));
    assert!(matches!(registry.next_released(Instant::now()), Some((Key { client: 2, .. }, Outcome::Waits))));
    assert!(registry.is_deciding(1) && !registry.is_deciding(2));
    drop(socket);
    assert!(registry.seen_again(again, Err(Reason::NotEstablished), Instant::now()).is_empty());
    assert!(!registry.is_deciding(1));
}
