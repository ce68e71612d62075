//! A user-space TCP/IP stack over AF_XDP and shared memory.
//!
//! | | |
//! |---|---|
//! | [`Runtime`] | one pinned thread per core, each with device queues, a part of the TCP engine and a tokio runtime |
//! | [`TcpListener`], [`TcpStream`], [`TcpSocket`], [`UdpSocket`] | sockets with the methods of `tokio::net`, on a core |
//! | [`send`] | the same for any thread, for axum, tonic, quinn and `tokio::spawn` |
//! | [`blocking`], [`socket2`] | sockets with the methods of `std::net` and the crate socket2, for any thread; over shared memory, the daemon's TCP or the kernel |
//! | `daemon` (feature `daemon`) | the daemon, to run in your own program |
//! | `metrics` (feature `metrics`) | the counters of the cores, for recorders of the crate `metrics` |
//! | `links` (features `tap`, `xsk-rs`) | links that you open yourself |
//!
//! ```no_run
//! use fastsock::{Runtime, TcpListener};
//! use tokio::io::AsyncWriteExt;
//!
//! let runtime = Runtime::builder().device("eth0").cores([0, 1]).build()?;
//! runtime.run(|core| async move {
//!     let listener = TcpListener::bind("0.0.0.0:7777").await.expect("port 7777");
//!     while let Ok((mut stream, _peer)) = listener.accept().await {
//!         fastsock::spawn_local(async move { stream.write_all(b"hello\n").await });
//!     }
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate re-exports items of [`fs_rt`] and [`fs_compat`].

pub use fs_compat::{
    BorrowedBytes, CongestionControl, Keepalive, OwnedReadHalf, OwnedWriteHalf, ReadHalf, SendBuffer, TcpInfo,
    TcpListener, TcpOptions, TcpSocket, TcpStream, ToSocketAddrs, UdpMeta, UdpSocket, WriteHalf, blocking, net, send,
    socket2, use_daemon,
};
pub use fs_rt::{
    BuildError, Builder, CoreCtx, CoreRef, CoreStats, Handle, LinkChoice, RunError, Runtime, RuntimeStats, SpawnError,
    Standalone, XdpMode, shutdown_signal, spawn_local, turn,
};

#[cfg(feature = "daemon")]
pub use fs_daemon as daemon;

#[cfg(feature = "metrics")]
pub use fs_rt::metrics;

/// Contains links that a program opens itself, such as TAP devices.
#[cfg(any(feature = "tap", feature = "xsk-rs"))]
pub mod links {
    pub use fs_xdp::Link;
    #[cfg(feature = "xsk-rs")]
    pub use fs_xdp::XdpDevice;
    #[cfg(feature = "tap")]
    pub use fs_xdp::{TapConfig, TapKind, TapLink};
}
