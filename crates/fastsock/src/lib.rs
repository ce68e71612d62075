//! A user-space TCP/IP stack over AF_XDP.
//!
//! | | |
//! |---|---|
//! | [`run`], [`block_on`], [`main`](macro@main) | start in one line, with a tokio runtime of several threads |
//! | [`net`] | sockets with the methods of `tokio::net`, for any thread: axum, tonic, quinn, `tokio::spawn` |
//! | [`local`] | the same on a core, without the extra copy; they are not `Send` |
//! | [`Runtime`] | one pinned thread (a *core*) per CPU that it uses, each with device queues, a part of the TCP engine and a tokio runtime |
//! | [`blocking`], [`socket2`] | the types of `std::net` and the crate `socket2`: kernel sockets for any thread |
//! | `metrics` (feature `metrics`) | the counters of the cores, for recorders of the crate `metrics` |
//! | `links` (features `tap`, `xsk-rs`) | links that you open yourself |
//!
//! A connection through a device of the runtime uses the runtime's own TCP. The kernel carries all
//! others behind the same types: loopback, the host's own addresses, other devices, and everything
//! if there is no device. See [`Carrier`].
//!
//! ```no_run
//! use fastsock::{Runtime, local::TcpListener};
//! use tokio::io::AsyncWriteExt;
//!
//! let runtime = Runtime::builder().device("eth0").or_kernel().build()?;
//! runtime.run(|core| async move {
//!     let listener = TcpListener::bind("0.0.0.0:7777").await.expect("port 7777");
//!     loop {
//!         match listener.accept().await {
//!             Ok((mut stream, _peer)) => {
//!                 fastsock::spawn_local(async move { stream.write_all(b"hello\n").await });
//!             }
//!             Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => return, // A shutdown.
//!             // For example too many open files: the next ones may work.
//!             Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
//!         }
//!     }
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate re-exports items of [`fs_rt`] and [`fs_compat`].

// They panic if the output is a full disk or a pipe that nobody reads.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod run;

pub use fastsock_macros::main;
pub use fs_compat::{
    BorrowedBytes, CaState, CongestionControl, IfaceId, Keepalive, Linger, SendBuffer, TcpInfo, TcpOptions, TcpState,
    ToSocketAddrs, UdpMeta, blocking, socket2,
};
pub use fs_rt::{
    BuildError, Builder, Carrier, Cidr, CoreCtx, CoreRef, CoreStats, Ecn, FastOpen, Handle, Limits, LinkChoice,
    PollPolicy, PortLease, RunError, Runtime, RuntimeStats, Secret, Share, SpawnError, Standalone, TcpConfig, Why,
    XdpMode, shutdown_signal, spawn_local, turn,
};
#[doc(hidden)]
pub use run::__main;
pub use run::{block_on, run};

/// Sockets for any thread, from [`fs_compat::net`].
pub mod net {
    pub use fs_compat::net::*;
    pub use tokio::net::ToSocketAddrs;
}

/// Sockets that stay on their core, from [`fs_compat::local`](mod@fs_compat::local).
pub mod local {
    pub use fs_compat::local::*;
}

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
