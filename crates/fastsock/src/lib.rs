//! A user-space TCP/IP stack over AF_XDP and shared memory.
//!
//! | | |
//! |---|---|
//! | [`Runtime`] | one pinned thread per core, each with a queue of every device, a shard of the TCP engine and a tokio runtime |
//! | [`TcpListener`], [`TcpStream`], [`TcpSocket`], [`UdpSocket`] | shaped like `tokio::net`, on a core |
//! | [`send`] | the same for any thread: for axum, tonic, quinn and `tokio::spawn` |
//! | [`blocking`], [`socket2`] | shaped like `std::net` and the crate socket2: any thread, by shared memory or the daemon's wire, else the kernel's |
//! | `daemon` (feature `daemon`) | the daemon, in a program of one's own |
//! | `metrics` (feature `metrics`) | what the cores count, for recorders of the crate `metrics` |
//! | `links` (features `tap`, `xsk-rs`) | devices, opened by hand |
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
//! It re-exports: what is here is [`fs_rt`]'s and [`fs_compat`]'s.

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

/// Devices, opened by hand.
#[cfg(any(feature = "tap", feature = "xsk-rs"))]
pub mod links {
    pub use fs_xdp::Link;
    #[cfg(feature = "xsk-rs")]
    pub use fs_xdp::XdpDevice;
    #[cfg(feature = "tap")]
    pub use fs_xdp::{TapConfig, TapKind, TapLink};
}
