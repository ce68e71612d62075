//! Over loopback, on kernel sockets.

use fs_stacks::testing::{PATIENCE, Program, output};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};

const EXE: &str = env!("CARGO_BIN_EXE_fs-echo");

fn start(extra: &[&str]) -> Program {
    Program::start(EXE, &[&["--listen", "127.0.0.1:0"], extra].concat())
}

#[test]
fn echo_returns_every_byte_and_sees_half_close() {
    let program = start(&["--cores", "0,1"]);
    let stream = TcpStream::connect(program.addrs[0]).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let sent: Vec<u8> = (0..8 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut got = Vec::new();
    std::thread::scope(|scope| {
        // At first the client only writes: the server must wait, and lose nothing.
        let writer = scope.spawn(|| {
            (&stream).write_all(&sent).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        });
        std::thread::sleep(std::time::Duration::from_millis(100));
        (&stream).read_to_end(&mut got).unwrap();
        writer.join().unwrap();
    });
    assert!(got == sent);
}

#[test]
fn sink_reads_everything_and_closes() {
    let program = start(&["--sink"]);
    let mut stream = TcpStream::connect(program.addrs[0]).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&vec![1; 4 << 20]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn source_sends_until_the_peer_ends() {
    let program = start(&["--source"]);
    let mut stream = TcpStream::connect(program.addrs[0]).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut buffer = vec![0; 1 << 20];
    stream.read_exact(&mut buffer).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    while stream.read(&mut buffer).unwrap() > 0 {}
}

#[test]
fn datagrams_come_back() {
    let program = start(&["--udp"]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    for len in [0, 1, 1400, 60_000] {
        let sent = vec![len as u8; len];
        socket.send_to(&sent, program.addrs[0]).unwrap();
        let mut buffer = vec![0; 65_536];
        assert_eq!(socket.recv(&mut buffer).unwrap(), len);
        assert_eq!(&buffer[..len], sent);
    }
}

#[test]
fn sigterm_ends_it() {
    let mut program = start(&[]);
    let _open = TcpStream::connect(program.addrs[0]).unwrap();
    program.terminate();
    assert!(program.wait().success());
}

/// SIGTERM may arrive as soon as the program has printed its address.
#[test]
fn sigterm_right_after_start_ends_it_cleanly() {
    for _ in 0..30 {
        let mut program = start(&[]);
        program.terminate();
        assert!(program.wait().success());
    }
}

#[test]
fn contradicting_options_are_refused() {
    let udp_on_two = ["--udp", "--cores", "0,1", "--listen", "127.0.0.1:0"];
    let no_such_cpu = ["--cores", "1000", "--listen", "127.0.0.1:0"];
    let not_ours = ["--listen", "192.0.2.1:80"];
    let no_device = ["--stack", "fastsock", "--listen", "127.0.0.1:0"];
    for args in [&udp_on_two[..], &no_such_cpu, &not_ours, &no_device] {
        let output = output(EXE, args);
        assert!(!output.status.success(), "{args:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("Error: "), "{args:?}");
    }
}
