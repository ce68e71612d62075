//! Tasks fork. These tests have their own process.
#![allow(unsafe_code)]

#[path = "common/mod.rs"]
mod common;

use common::{both, server};
use fs_compat::{TcpListener, TcpStream, UdpSocket};
use fs_rt::{LinkChoice, Runtime};
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

/// Both processes share the kernel's side of the socket, and its queue.
#[test]
fn datagrams_of_the_parent_stay_in_a_forked_child() {
    let receives = || async {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.send_to(b"of the parent", socket.local_addr().unwrap()).unwrap();
        socket.readable().await.unwrap();
        // SAFETY: the child calls nothing that takes a lock, and ends by _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let received = socket.try_recv_from(&mut [0; 16]);
            let refused = received.is_err_and(|error| error.raw_os_error() == Some(libc::EBADF));
            // SAFETY: ends the process without running destructors of the parent's objects.
            unsafe { libc::_exit(if refused { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: `status` is valid to write to, and the child is ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child's receive");
        assert_eq!(socket.try_recv_from(&mut [0; 16]).unwrap(), (13, sender.local_addr().unwrap()));
    };
    let runtime = Runtime::builder().link(LinkChoice::Kernel).cores([0]).pin(false).build().unwrap();
    runtime.run(move |_| receives()).unwrap();
}
