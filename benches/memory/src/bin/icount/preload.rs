//! Socket calls of an ordinary program under `libfastsock.so`: both ends of a connection in one thread, which never waits.
//!
//! The daemon is that of fs-socket's tests, in the program that counts; the one that is counted finds it by its environment.

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

/// What a program is given in its environment to be served by us.
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

/// Removes what [`environment`] has left.
pub(crate) fn clear() {
    let path = std::env::temp_dir().join(format!("fs-icount-{}", std::process::id()));
    // It is there only if a scenario had use for it.
    let _ = std::fs::remove_file(path);
}

/// Client and server, as files: std's `write` and `read` of these are the C library's.
fn pair() -> Result<[File; 2]> {
    let began = Instant::now();
    loop {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let client = TcpStream::connect(listener.local_addr()?)?;
        let (server, _) = listener.accept()?;
        // Asked of the kernel itself, which knows of no connection where it is ours. On a busy machine the daemon may not have
        // answered in time; it is asked again after a second.
        if rustix::net::getpeername(&client).is_err() {
            return Ok([client, server].map(|stream| File::from(OwnedFd::from(stream))));
        }
        ensure!(began.elapsed() < Duration::from_secs(60), "the connection is the kernel's");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// `n` exchanges of `len` bytes there and back, by `write` and `read`.
pub(crate) fn exchanges(n: u64, len: usize) -> Result<u64> {
    let mut ends = pair()?;
    let mut message = vec![7; len];
    for _ in 0..n {
        counted_turn(&mut ends, &mut message)?;
    }
    Ok(n)
}

/// Its name is what `icount` counts by.
#[inline(never)]
fn counted_turn([client, server]: &mut [File; 2], message: &mut [u8]) -> Result<()> {
    client.write_all(message)?;
    server.read_exact(message)?;
    server.write_all(message)?;
    client.read_exact(message)?;
    Ok(())
}

/// The same; before it reads, the server waits by poll(2).
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

/// `n` connections, a byte each way on each, as `local_pair connect` makes them. Each is there when accept is called: what a wait
/// costs is not in it.
pub(crate) fn connections(n: u64) -> Result<u64> {
    // The daemon answers in time.
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

/// Whether connections to it are, before and after those that count.
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
