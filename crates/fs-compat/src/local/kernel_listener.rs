//! Connections that a core's listener accepts from the kernel: those from this host and through
//! devices that the runtime does not have.
//!
//! The socket is the one that reserves the port. The cores that listen at the address share it and
//! its queue. The first core that asks gets the oldest connection. A connection is not lost if one
//! of the cores closes its listener.

use crate::local::kernel_options::{apply, set_fast_open};
use crate::local::waiting::Waiting;
use fs_core::{Listen, TcpOptions};
use fs_rt::{CoreRef, KernelListen, PortLease};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::net::{TcpListener, TcpStream};

#[derive(Debug)]
pub(super) struct KernelListener {
    /// Declared before the lease that keeps the socket listening, so that it is dropped first and
    /// no descriptor is left when the socket stops listening.
    socket: TcpListener,
    lease: PortLease,
    waiting: Arc<Waiting>,
    _listens: KernelListen,
}

impl KernelListener {
    /// Returns `None` if the runtime has no kernel sockets, or another process has the port in the
    /// kernel.
    pub(super) fn of(core: &CoreRef, lease: &PortLease, listen: &Listen) -> io::Result<Option<Self>> {
        let Some((fd, listens)) = lease.listen_in_kernel(listen.backlog)? else { return Ok(None) };
        let socket = TcpListener::from_std(fd.into())?;
        let this = Self { socket, lease: lease.clone(), waiting: Arc::default(), _listens: listens };
        this.set_options(core, &TcpOptions::default(), &listen.options)?;
        if listen.fast_open > 0 {
            this.set_fast_open(listen.fast_open)?;
        }
        Ok(Some(this))
    }

    pub(super) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        self.waiting.poll(cx, |cx| self.socket.poll_accept(cx))
    }

    /// Sets the options of the listening socket: its connections inherit them, and they decide when
    /// a connection is offered.
    pub(super) fn set_options(&self, core: &CoreRef, old: &TcpOptions, new: &TcpOptions) -> io::Result<()> {
        // A connection would inherit the listener's SO_LINGER, and a drop would reset data that it
        // still sends.
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
