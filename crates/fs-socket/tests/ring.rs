//! A ring of io_uring(7) that the program made while the daemon was away.

mod common;

use std::time::{Duration, Instant};

use common::Way;
use fs_socket::{descriptor::table, process, socket::Watch};

#[test]
fn who_has_made_a_ring_without_a_daemon_stays_with_the_kernel() {
    let daemon = common::daemon();
    let (listener, at) = Way::Ours.listener(0);
    let is_ours = || {
        let client = Way::Ours.socket(0);
        Way::Ours.connect(client, at).unwrap();
        let (server, _) = Way::Ours.accept(listener, 0).unwrap();
        let ours = [client, server].map(|fd| table::socket(fd).is_some_and(|socket| socket.watch() == Watch::Channel));
        Way::Ours.send(client, b"there", 0).unwrap();
        assert_eq!(Way::Ours.recv(server, &mut [0; 8], 0), Ok(5));
        Way::Ours.close(client).unwrap();
        Way::Ours.close(server).unwrap();
        assert_eq!(ours[0], ours[1]);
        ours[0]
    };
    assert!(is_ours());
    assert_eq!(process::make_ring(|| unreachable!("there is a daemon")), None);
    daemon.kill();
    while process::current().is_some_and(|attachment| attachment.check()) {
        std::thread::sleep(Duration::from_millis(10));
    }
    // One that the kernel refuses changes nothing.
    assert_eq!(process::make_ring(|| false), Some(false));
    daemon.start_again();
    while !is_ours() {
        std::thread::sleep(Duration::from_millis(50));
    }
    daemon.kill();
    while process::current().is_some_and(|attachment| attachment.check()) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(process::make_ring(|| true), Some(true));
    daemon.start_again();
    // Longer than it would take to find it.
    let end = Instant::now() + Duration::from_millis(2500);
    while Instant::now() < end {
        assert!(!is_ours());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(process::make_ring(|| true), Some(true));
}
