//! The daemon is killed under an application, and started again.

mod common;

use common::Way;
use fs_socket::{Errno, descriptor::table, socket::Watch};

fn is_ours(fd: i32) -> bool {
    table::socket(fd).is_some_and(|socket| socket.watch() == Watch::Channel)
}

#[test]
fn connections_end_calls_go_on_and_a_new_daemon_serves_again() {
    let daemon = common::daemon();
    let way = Way::Ours;
    let (listener, at) = way.listener(0);
    let connect = || {
        let client = way.socket(0);
        way.connect(client, at).unwrap();
        (client, way.accept(listener, 0).unwrap().0)
    };
    let (client, server) = connect();
    assert!(is_ours(client) && is_ours(server));

    // A reader that waits is not left waiting; who reads and writes afterwards is told too.
    let blocked = std::thread::spawn(move || way.recv(server, &mut [0; 8], 0));
    std::thread::sleep(std::time::Duration::from_millis(50));
    daemon.kill();
    assert_eq!(blocked.join().unwrap(), Err(Errno::CONNRESET));
    assert_eq!(way.send(client, b"x", 0), Err(Errno::CONNRESET));
    assert_eq!(way.send(client, b"x", 0), Err(Errno::PIPE));
    assert_eq!(way.recv(client, &mut [0; 8], 0), Ok(0));
    way.close(client).unwrap();
    way.close(server).unwrap();

    // Without a daemon everything is the kernel's, on the same listener.
    let (client, server) = connect();
    assert!(!is_ours(client) && !is_ours(server));
    way.send(client, b"kernel", 0).unwrap();
    assert_eq!(way.recv(server, &mut [0; 8], 0), Ok(6));

    // A new one is found, and the listener announced to it, at one of the next calls (one try a second).
    daemon.start_again();
    loop {
        let (client, server) = connect();
        let ours = is_ours(client);
        assert_eq!(ours, is_ours(server));
        way.send(server, b"again", 0).unwrap();
        assert_eq!(way.recv(client, &mut [0; 8], 0), Ok(5));
        way.close(client).unwrap();
        way.close(server).unwrap();
        if ours {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    // What went over the kernel meanwhile goes on.
    way.send(server, b"still", 0).unwrap();
    assert_eq!(way.recv(client, &mut [0; 8], 0), Ok(5));
}
