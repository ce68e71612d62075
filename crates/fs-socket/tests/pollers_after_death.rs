//! What is slept on does not become more with each daemon that ends.

mod common;

use std::{os::fd::RawFd, time::Duration};

use common::Way;
use fs_socket::{
    descriptor::table,
    poll::{self, PollFd},
    socket::Watch,
};

const WAY: Way = Way::Ours;

/// The epoll sets of this process, which are the library's pollers and the daemon's ends of them.
fn pollers() -> usize {
    let links =
        std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links.filter(|link| link.to_string_lossy().contains("eventpoll")).count()
}

/// A connection that is waited for in accept, and one byte of it in a poll of two; true: it is no kernel's.
fn once(listener: RawFd, at: std::net::SocketAddr) -> bool {
    let acceptor = std::thread::spawn(move || WAY.accept(listener, 0).unwrap().0);
    std::thread::sleep(Duration::from_millis(30));
    let client = WAY.socket(0);
    WAY.connect(client, at).unwrap();
    let server = acceptor.join().unwrap();
    let ours = table::socket(client).is_some_and(|socket| socket.watch() == Watch::Channel);
    let mut entries = [client, server].map(|fd| PollFd { fd, events: 1, revents: 0 });
    // Of the kernel's sockets nothing is said.
    let waited = poll::poll(&mut entries, Some(Duration::from_millis(30)), None);
    assert_eq!(waited, ours.then_some(Ok(0)));
    WAY.close(client).unwrap();
    WAY.close(server).unwrap();
    ours
}

#[test]
fn a_daemons_end_leaves_no_pollers() {
    let daemon = common::daemon();
    let (listener, at) = WAY.listener(0);
    assert!(once(listener, at));
    let mut counts = vec![pollers()];
    for _ in 0..3 {
        daemon.kill();
        daemon.start_again();
        // A client of the kernel's queue at first.
        while !once(listener, at) {
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(once(listener, at));
        counts.push(pollers());
    }
    assert!(counts[3] <= counts[1], "{counts:?}");
}
