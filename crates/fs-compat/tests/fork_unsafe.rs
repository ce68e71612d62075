//! A task forks. This test has its own process.
#![allow(unsafe_code)]

#[path = "common/mod.rs"]
mod common;

use common::{both, server};
use fs_compat::{TcpListener, TcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[test]
fn writes_of_a_forked_child_are_refused() {
    let (status, ..) = both(
        |_| async {
            let listener = TcpListener::bind(server(7)).await.unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            assert_eq!(all, b"of the parent");
            stream.write_all(b"heard").await.unwrap();
        },
        |_| async {
            let mut stream = TcpStream::connect(server(7)).await.unwrap();
            // SAFETY: the child calls nothing that takes a lock, and ends by _exit.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let wrote = stream.try_write(b"of the child");
                let refused = wrote.is_err_and(|error| error.raw_os_error() == Some(libc::EBADF));
                // SAFETY: ends the process without running destructors of the parent's objects.
                unsafe { libc::_exit(if refused { 0 } else { 1 }) };
            }
            let mut status = -1;
            // SAFETY: `status` is valid to write to, and the child is ours.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            stream.write_all(b"of the parent").await.unwrap();
            stream.shutdown().await.unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            assert_eq!(all, b"heard");
            status
        },
    );
    assert_eq!(status, 0, "the child's write");
}
