//! What a listener of a core accepts beside the connections of the runtime's devices: those that come to the kernel's socket of
//! its address, from this host and by other devices.
//!
//! The socket is the one that reserves the port. The cores that listen there share it and its queue: each connection is accepted
//! by the first core that asks, in the order in which they came, and none is lost when one of the cores closes its listener.

use crate::net::kernel_options::{apply, set_fast_open};
use fs_core::{Listen, TcpOptions};
use fs_rt::{CoreRef, KernelListen, PortLease};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::task::{Context, Poll};
use tokio::net::{TcpListener, TcpStream};

#[derive(Debug)]
pub(super) struct KernelListener {
    /// Before what keeps it listening: dropped first, so that no descriptor is left when the socket stops to listen.
    socket: TcpListener,
    lease: PortLease,
    _listens: KernelListen,
}

impl KernelListener {
    /// `None` where no socket of the runtime is the kernel's, or another process has the port there.
    pub(super) fn of(core: &CoreRef, lease: &PortLease, listen: &Listen) -> io::Result<Option<Self>> {
        let Some((fd, listens)) = lease.listen_in_kernel(listen.backlog)? else { return Ok(None) };
        let this = Self { socket: TcpListener::from_std(fd.into())?, lease: lease.clone(), _listens: listens };
        this.set_options(core, &TcpOptions::default(), &listen.options)?;
        if listen.fast_open > 0 {
            this.set_fast_open(listen.fast_open)?;
        }
        Ok(Some(this))
    }

    pub(super) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        self.socket.poll_accept(cx)
    }

    /// Of the socket itself: what its connections have from the start, and when they are offered.
    pub(super) fn set_options(&self, core: &CoreRef, old: &TcpOptions, new: &TcpOptions) -> io::Result<()> {
        // That of a listener would be inherited, and reset what its connections still send when they are dropped.
        let new = TcpOptions { linger: old.linger, ..*new };
        apply(core, self.socket.as_fd(), old, &new)
    }

    pub(super) fn set_backlog(&self, backlog: u32) -> io::Result<()> {
        self.lease.set_kernel_backlog(backlog)
    }

    pub(super) fn set_fast_open(&self, pending: u32) -> io::Result<()> {
        set_fast_open(self.socket.as_raw_fd(), pending)
    }
}
