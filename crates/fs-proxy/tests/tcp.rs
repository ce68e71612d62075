//! L4 over loopback, on kernel sockets.

mod common;

use common::*;
use fs_stacks::testing::{PATIENCE, eventually};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Reads everything, then responds with a mark and the same bytes. Works only if half-closes are
/// passed on.
fn reverse_backend() -> SocketAddr {
    backend(|mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all)?;
        stream.write_all(b"got:")?;
        stream.write_all(&all)?;
        stream.shutdown(Shutdown::Write)
    })
}

#[test]
fn half_close_is_passed_on_and_every_byte_arrives() {
    let proxy = Proxy::start("tcp", &[reverse_backend()], "", "");
    for len in [0, 1, 65_537, 16 << 20] {
        let body = pattern(len);
        let mut stream = proxy.connect();
        stream.write_all(&body).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        assert!(got.starts_with(b"got:") && got[4..] == body, "{len}: {}", got.len());
    }
}

#[test]
fn both_directions_at_once_with_a_slow_reader() {
    let echo = backend(|mut stream| std::io::copy(&mut stream.try_clone()?, &mut stream).map(drop));
    let proxy = Proxy::start("tcp", &[echo], "", "");
    let body = pattern(32 << 20);
    let stream = proxy.connect();
    let mut got = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (&stream).write_all(&body).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        });
        std::thread::sleep(Duration::from_millis(300));
        let mut chunk = vec![0; 1 << 20];
        while let len @ 1.. = (&stream).read(&mut chunk).unwrap() {
            got.extend_from_slice(&chunk[..len]);
        }
    });
    assert!(got == body, "{} of {}", got.len(), body.len());
}

#[test]
fn reset_is_passed_on() {
    let addr = backend(|mut stream| {
        stream.read_exact(&mut [0])?;
        // Unread bytes turn the close into a reset.
        std::thread::sleep(Duration::from_millis(100));
        Ok(())
    });
    let proxy = Proxy::start("tcp", &[addr], "", "");
    let mut stream = proxy.connect();
    stream.write_all(b"more than one byte").unwrap();
    let error = stream.read(&mut [0]).expect_err("a reset, not an end");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

/// Connects, sends `bytes`, and returns the result of a read. A reset may come before any of these calls
/// returns.
fn end_of(proxy: SocketAddr, bytes: &[u8]) -> std::io::Result<usize> {
    let mut stream = TcpStream::connect(proxy)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // A write that fails has consumed the reset. The read returns 0 then.
    let _ = stream.write_all(bytes);
    stream.read(&mut [0])
}

#[test]
fn unreachable_server_is_a_reset_and_a_log_line() {
    let down = nobody();
    let proxy = Proxy::start("tcp", &[down], "", "");
    assert_eq!(end_of(proxy.addr(), b"").expect_err("a reset").kind(), ErrorKind::ConnectionReset);
    proxy.program.says(&down.to_string());
}

#[test]
fn idle_connections_are_closed() {
    let silent = backend(|mut stream| std::io::copy(&mut stream, &mut std::io::sink()).map(drop));
    let proxy = Proxy::start("tcp", &[silent], "timeouts = { idle = \"200ms\" }", "");
    // The end arrives as FIN or as RST.
    match end_of(proxy.addr(), b"x") {
        Ok(length) => assert_eq!(length, 0),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

/// A backend that sends its number and keeps the connection.
fn numbered(number: u8) -> SocketAddr {
    backend(move |mut stream| {
        stream.write_all(&[number])?;
        std::io::copy(&mut stream, &mut std::io::sink()).map(drop)
    })
}

fn number_of(stream: &mut TcpStream) -> u8 {
    let mut byte = [0];
    stream.read_exact(&mut byte).unwrap();
    byte[0]
}

#[test]
fn round_robin_takes_turns() {
    let proxy = Proxy::start("tcp", &[numbered(0), numbered(1), numbered(2)], "", "");
    let mut seen = [0; 3];
    for _ in 0..9 {
        seen[usize::from(number_of(&mut proxy.connect()))] += 1;
    }
    assert_eq!(seen, [3, 3, 3]);
}

#[test]
fn least_connections_fills_the_empty_server() {
    let proxy = Proxy::start("tcp", &[numbered(0), numbered(1)], "", "balance = \"least_connections\"");
    let mut held: Vec<(u8, TcpStream)> = (0..8)
        .map(|_| {
            let mut stream = proxy.connect();
            (number_of(&mut stream), stream)
        })
        .collect();
    assert_eq!(held.iter().filter(|(number, _)| *number == 0).count(), 4);
    held.retain(|(number, _)| *number == 1);
    // The proxy must first notice the four closed connections.
    eventually("new connections go to the empty one", || {
        let mut probe = [proxy.connect(), proxy.connect(), proxy.connect()];
        probe.iter_mut().all(|stream| number_of(stream) == 0)
    });
}

/// A stop loses no connection that is in a queue, whose first bytes have arrived too.
#[test]
fn connections_in_the_queue_are_served_at_a_stop() {
    let echo = backend(|mut stream| std::io::copy(&mut stream.try_clone()?, &mut stream).map(drop));
    for (accept_proxy, header) in [(false, ""), (true, "PROXY UNKNOWN\r\n")] {
        let config = write_config(&format!(
            "timeouts = {{ drain = \"60s\", connect = \"30s\" }}\n[[listener]]\naddress = \"127.0.0.1:0\"\nmode = \"tcp\"\n\
             upstream = \"u\"\naccept_proxy = {accept_proxy}\n[[upstream]]\nname = \"u\"\nservers = [\"{echo}\"]\n"
        ));
        let mut proxy = Proxy { program: start_program(&config), config };
        let process = Pid::from_raw(proxy.program.id().cast_signed()).unwrap();
        kill_process(process, Signal::STOP).unwrap();
        let mut streams: Vec<TcpStream> = (0..300).map(|_| proxy.connect()).collect();
        for stream in &mut streams {
            write!(stream, "{header}echo").unwrap();
        }
        proxy.terminate();
        kill_process(process, Signal::CONT).unwrap();
        for (number, stream) in streams.iter_mut().enumerate() {
            let mut back = [0; 4];
            stream.read_exact(&mut back).unwrap_or_else(|error| panic!("{header:?} {number}: {error}"));
            assert_eq!(&back, b"echo");
        }
        drop(streams);
        assert!(proxy.program.wait().success());
    }
}

#[test]
fn sigterm_waits_for_open_connections_within_the_deadline() {
    let served = Arc::new(AtomicUsize::new(0));
    let counter = served.clone();
    let echo = backend(move |mut stream| {
        counter.fetch_add(1, Ordering::SeqCst);
        std::io::copy(&mut stream.try_clone()?, &mut stream).map(drop)
    });
    let mut proxy = Proxy::start("tcp", &[echo], "timeouts = { drain = \"60s\" }", "");
    let mut stream = proxy.connect();
    stream.write_all(b"before").unwrap();
    stream.read_exact(&mut [0; 6]).unwrap();
    proxy.program.terminate();
    eventually("new connections are refused", || TcpStream::connect(proxy.addr()).is_err());
    stream.write_all(b"after!").unwrap();
    stream.read_exact(&mut [0; 6]).unwrap();
    drop(stream);
    assert!(proxy.program.wait().success());
    assert!(served.load(Ordering::SeqCst) >= 1);
}
