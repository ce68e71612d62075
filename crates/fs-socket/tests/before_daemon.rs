//! A process that is older than the daemon: its threads that wait already get the connections that come by memory once another thread has
//! found the daemon.

mod common;

use std::time::Duration;

use common::{
    Way,
    servers::{self, By, forked, serve},
};

#[test]
fn connections_by_memory_are_taken_by_who_waited_before_the_daemon_was_there() {
    let daemon = common::daemon();
    daemon.kill();
    // Nothing of this process was attached to that one.
    let ways = [By::Accept, By::Poll, By::Epoll];
    let listeners = ways.map(|by| (Way::Ours.listener(0), by));
    let servers = listeners.map(|((listener, _), by)| std::thread::spawn(move || serve(listener, by)));
    let watched = Way::Ours.listener(0);
    let child = forked(watched.0, By::Epoll);
    std::thread::sleep(Duration::from_millis(1200));
    daemon.start_again();
    // Whoever calls first finds it.
    Way::Ours.listener(0);
    for ((_, at), by) in listeners {
        assert!(servers::is_served(at), "nobody takes the connection to {at}: {by:?}");
    }
    let served = servers::is_served(watched.1);
    if !served {
        servers::kill(child);
    }
    assert!(served, "no child takes the connection");
    servers::end(child);
    for server in servers {
        server.join().unwrap();
    }
}
