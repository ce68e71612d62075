//! A user-space TCP/IP stack over AF_XDP and shared memory.
//!
//! | | |
//! |---|---|
//! | [`run`], [`block_on`], [`main`](macro@main) | a start in one line, with a tokio runtime of several threads |
//! | [`net`] | shaped like `tokio::net`, for any thread: axum, tonic, quinn, `tokio::spawn` |
//! | [`local`] | the same on a core, without a copy and without a lock: none of them is `Send` |
//! | [`Runtime`] | one pinned thread per core, each with a queue of every device, a shard of the TCP engine and a tokio runtime |
//! | [`blocking`], [`socket2`] | shaped like `std::net` and the crate socket2: any thread, by shared memory or the daemon's wire, else the kernel's |
//! | `daemon` (feature `daemon`) | the daemon, in a program of one's own |
//! | `metrics` (feature `metrics`) | what the cores count, for recorders of the crate `metrics` |
//! | `links` (features `tap`, `xsk-rs`) | devices, opened by hand |
//!
//! Connections that pass a device of the runtime are its own TCP's; all others (loopback, the host's own addresses, other devices,
//! and all where there is no device or no right to it) are the kernel's, behind the same types: [`Carrier`].
//!
//! ```no_run
//! use fastsock::{Runtime, local::TcpListener};
//! use tokio::io::AsyncWriteExt;
//!
//! let runtime = Runtime::builder().device("eth0").or_kernel().build()?;
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

mod run;

pub use fastsock_macros::main;
pub use fs_compat::{
    BorrowedBytes, CongestionControl, Keepalive, SendBuffer, TcpInfo, TcpOptions, ToSocketAddrs, UdpMeta, blocking,
    socket2, use_daemon,
};
pub use fs_rt::{
    BuildError, Builder, Carrier, CoreCtx, CoreRef, CoreStats, Handle, LinkChoice, RunError, Runtime, RuntimeStats,
    SpawnError, Standalone, Why, XdpMode, shutdown_signal, spawn_local, turn,
};
#[doc(hidden)]
pub use run::__main;
pub use run::{block_on, run};

/// Sockets that any thread may use: those of [`fs_compat::send`].
pub mod net {
    pub use fs_compat::send::*;
    pub use tokio::net::ToSocketAddrs;
}

/// Sockets of a core, which stay on it: those of [`fs_compat::net`](mod@fs_compat::net).
pub mod local {
    pub use fs_compat::net::*;
}

/// The former name of [`net`].
#[deprecated(note = "it is `fastsock::net` now")]
pub mod send {
    pub use fs_compat::send::*;
}

macro_rules! former {
    ($($name:ident)*) => {
        $(
            #[doc = concat!("The former name of [`local::", stringify!($name), "`].")]
            #[deprecated(note = "it is in `fastsock::local` now; `fastsock::net` has one that any thread may use")]
            pub type $name = local::$name;
        )*
    };
}

former! { OwnedReadHalf OwnedWriteHalf TcpListener TcpSocket TcpStream UdpSocket }

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
