//! Socket calls of an ordinary program with `libfastsock.so`: both ends of a connection in one
//! thread, which never waits.
//!
//! The counting program contains the daemon of fs-socket's tests. The counted program finds it
//! through its environment.

#[path = "../../../../../crates/fs-socket/tests/common/mini.rs"]
#[allow(dead_code, reason = "what fs-socket's tests ask of it besides")]
mod mini;

use crate::poll_unsafe::readable;
use anyhow::{Result, ensure};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Returns the environment of a program that fastsock serves.
pub(crate) fn environment() -> Result<[(&'static str, PathBuf); 2]> {
    static CONTROL: OnceLock<PathBuf> = OnceLock::new();
    let control = CONTROL.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("fs-icount-{}", std::process::id()));
        mini::Mini::start(&path);
        path
    });
    let library = std::env::current_exe()?.with_file_name("libfastsock.so");
    ensure!(library.exists(), "{} is not there: cargo xtask icount builds it", library.display());
    Ok([("LD_PRELOAD", library), (fs_shm::control::PATH_VARIABLE, control.clone())])
}

/// Removes the files of [`environment`].
pub(crate) fn clear() {
    let path = std::env::temp_dir().join(format!("fs-icount-{}", std::process::id()));
    // It exists only if a scenario has used it.
    let _ = std::fs::remove_file(path);
}

/// Returns client and server as files, whose `write` and `read` in std are the C library's.
fn pair() -> Result<[File; 2]> {
    let began = Instant::now();
    loop {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let client = TcpStream::connect(listener.local_addr()?)?;
        let (server, _) = listener.accept()?;
        // Asks the kernel directly, which has no connection if it is fastsock's. On a busy machine
        // the daemon may answer too late, so this retries after a second.
        if rustix::net::getpeername(&client).is_err() {
            return Ok([client, server].map(|stream| File::from(OwnedFd::from(stream))));
        }
        ensure!(began.elapsed() < Duration::from_secs(60), "the connection is the kernel's");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Performs `n` exchanges of `len` bytes each way, by `write` and `read`.
pub(crate) fn exchanges(n: u64, len: usize) -> Result<u64> {
    let mut ends = pair()?;
    let mut message = vec![7; len];
    for _ in 0..n {
        counted_turn(&mut ends, &mut message)?;
    }
    Ok(n)
}

/// `icount` counts by this function's name.
#[inline(never)]
fn counted_turn([client, server]: &mut [File; 2], message: &mut [u8]) -> Result<()> {
    client.write_all(message)?;
    server.read_exact(message)?;
    server.write_all(message)?;
    client.read_exact(message)?;
    Ok(())
}

/// As [`exchanges`], but the server waits by poll(2) before it reads.
pub(crate) fn poll_exchanges(n: u64, len: usize) -> Result<u64> {
    let mut ends = pair()?;
    let mut message = vec![7; len];
    for _ in 0..n {
        counted_turn_poll(&mut ends, &mut message)?;
    }
    Ok(n)
}

#[inline(never)]
fn counted_turn_poll([client, server]: &mut [File; 2], message: &mut [u8]) -> Result<()> {
    client.write_all(message)?;
    readable(server.as_fd())?;
    server.read_exact(message)?;
    server.write_all(message)?;
    client.read_exact(message)?;
    Ok(())
}

/// Opens `n` connections and sends a byte each way on each, as `local_pair connect` does. Each is
/// ready when accept is called, so a wait's cost is not included.
pub(crate) fn connections(n: u64) -> Result<u64> {
    // Ensures that the daemon answers in time.
    drop(pair()?);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let to = listener.local_addr()?;
    is_ours(&listener, to)?;
    for _ in 0..n {
        counted_turn_connect(&listener, to)?;
    }
    is_ours(&listener, to)?;
    Ok(n)
}

/// Checks that connections to the listener are fastsock's, before and after the counted ones.
fn is_ours(listener: &TcpListener, to: SocketAddr) -> Result<()> {
    let client = TcpStream::connect(to)?;
    drop(listener.accept()?);
    // As in `pair`.
    ensure!(rustix::net::getpeername(&client).is_err(), "the connection is the kernel's");
    Ok(())
}

#[inline(never)]
fn counted_turn_connect(listener: &TcpListener, to: SocketAddr) -> Result<()> {
    let mut byte = [7];
    let mut client = TcpStream::connect(to)?;
    client.write_all(&byte)?;
    let (mut server, _) = listener.accept()?;
    server.read_exact(&mut byte)?;
    server.write_all(&byte)?;
    client.read_exact(&mut byte)?;
    drop(server);
    socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO))?;
    Ok(())
}
