//! The daemon in the same process as the program that uses fs-compat's blocking types and socket2's: nothing else runs.

use fs_compat::blocking::{TcpListener, TcpStream};
use fs_compat::socket2::{Domain, SockRef, Socket, Type};
use fs_daemon::Daemon;
use fs_shm::control::{Client, CounterRow, Request};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

fn counter(daemon: &Daemon, name: &str) -> u64 {
    let client = Client::connect(daemon.path().as_os_str().as_encoded_bytes()).unwrap();
    let mut found = None;
    let take = |row: CounterRow| {
        if row.name.as_str() == name {
            found = Some(row.value);
        }
    };
    client.rows(|cursor| Request::Counters { cursor }, take).unwrap();
    found.unwrap_or_else(|| panic!("no counter {name}"))
}

/// One test, as a process names its daemon once.
#[test]
fn connections_within_one_process_are_memory() {
    let path = std::env::temp_dir().join(format!("fs-daemon-inside-{}/control.sock", std::process::id()));
    let daemon = Daemon::builder(&path).start().unwrap();
    assert!(fs_compat::use_daemon(&path));
    assert!(!fs_compat::use_daemon("/elsewhere"), "it is named once");

    streams(&daemon);
    options_and_errors();
    sockets_go_to_std_and_come_back(&daemon);

    daemon.handle().stop();
    daemon.join().unwrap();
    // The kernel goes on alone.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.write_all(b"x").unwrap();
    assert_eq!(listener.accept().unwrap().0.read(&mut [0; 2]).unwrap(), 1);
}

fn streams(daemon: &Daemon) {
    let before = counter(daemon, "local_connections");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        for stream in listener.incoming().take(3) {
            let mut stream = stream.unwrap();
            std::io::copy(&mut stream.try_clone().unwrap(), &mut stream).unwrap();
        }
    });
    let sent: Vec<u8> = (0..1_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for _ in 0..3 {
        let mut client = TcpStream::connect(addr).unwrap();
        assert_eq!(client.peer_addr().unwrap(), addr);
        let mut writing = client.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                writing.write_all(&sent).unwrap();
                writing.shutdown(Shutdown::Write).unwrap();
            });
            let mut got = Vec::new();
            client.read_to_end(&mut got).unwrap();
            assert!(got == sent);
        });
    }
    server.join().unwrap();
    assert_eq!(counter(daemon, "local_connections") - before, 3);
    assert!(counter(daemon, "local_bytes") >= 6_000_000);
}

fn options_and_errors() {
    let listener = TcpListener::bind("[::1]:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let client = TcpStream::connect_timeout(&addr, Duration::from_secs(10)).unwrap();
    let (server, _) = listener.accept().unwrap();
    client.set_nodelay(true).unwrap();
    assert!(SockRef::from(&client).tcp_nodelay().unwrap());
    client.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    assert_eq!((&client).read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    (&server).write_all(b"abc").unwrap();
    assert_eq!(client.peek(&mut [0; 8]).unwrap(), 3);
    drop(client);
    // Unread bytes: the peer is reset.
    assert_eq!((&server).read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    drop(listener);
    assert_eq!(TcpStream::connect(addr).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

/// A socket that std gets works there; one that comes from std is accelerated.
fn sockets_go_to_std_and_come_back(daemon: &Daemon) {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&any.into()).unwrap();
    socket.listen(8).unwrap();
    let std: std::net::TcpListener = socket.into();
    let addr = std.local_addr().unwrap();
    let mut client = TcpStream::connect(addr).unwrap();
    let (mut server, _) = std.accept().unwrap();
    client.write_all(b"over the kernel").unwrap();
    assert_eq!(server.read(&mut [0; 64]).unwrap(), 15);

    let before = counter(daemon, "local_connections");
    let ours = TcpListener::from(std);
    let mut client = TcpStream::connect(addr).unwrap();
    let (mut server, _) = ours.accept().unwrap();
    client.write_all(b"through memory").unwrap();
    assert_eq!(server.read(&mut [0; 64]).unwrap(), 14);
    assert_eq!(counter(daemon, "local_connections") - before, 1);

    // A connection in memory can be given away and taken back, not used by std.
    let std: std::net::TcpStream = Socket::from(client).into();
    assert_eq!((&std).write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
    let mut client = TcpStream::from(std);
    client.write_all(b"again").unwrap();
    assert_eq!(server.read(&mut [0; 64]).unwrap(), 5);

    // What std closes is known to be gone when its number comes back.
    let std: std::net::TcpStream = Socket::from(client).into();
    drop(std);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    assert!(SockRef::from(&listener).is_listener().unwrap());
    assert_eq!(SockRef::from(&listener).local_addr().unwrap().as_socket(), listener.local_addr().ok());
}
