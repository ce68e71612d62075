//! The successor's side: the sockets that were open before this process.

use super::message::{END, Passed, Role, SERVING, VARIABLE, parse_weight, receive, send};
use crate::stats::OtherWeight;
use anyhow::{Context, ensure};
use fs_stacks::cores::adopt;
use fs_stacks::{Listener, StackKind};
use listenfd::ListenFd;
use rustix::io::{FdFlags, fcntl_setfd};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Sockets that were open before this process. Those that the configuration does not use are closed
/// when it serves.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    sockets: Mutex<Vec<Passed>>,
    /// Weights that were set at the predecessor's admin socket.
    pub(crate) weights: Vec<OtherWeight>,
    /// The predecessor, which waits until this process serves.
    predecessor: Option<OwnedFd>,
}

impl Inherited {
    /// Receives the predecessor's sockets or those of systemd, if there are any.
    ///
    /// # Errors
    /// If the predecessor has ended. If systemd has passed something else than TCP listeners, or
    /// the stack cannot use them.
    pub(crate) fn receive(stack: StackKind) -> anyhow::Result<Self> {
        let this = match std::env::var_os(VARIABLE) {
            Some(_) => Self::from_predecessor()?,
            None => Self::from_systemd()?,
        };
        ensure!(
            this.lock().is_empty() || this.has_predecessor() || stack == StackKind::Kernel,
            "systemd has passed listening sockets, and only --stack kernel can use them"
        );
        Ok(this)
    }

    /// Returns true if this process was started by one that still serves, and still has its devices.
    pub(crate) fn has_predecessor(&self) -> bool {
        self.predecessor.is_some()
    }

    fn from_predecessor() -> anyhow::Result<Self> {
        let predecessor = io::stdin().as_fd().try_clone_to_owned()?;
        let (mut sockets, mut weights) = (Vec::new(), Vec::new());
        loop {
            let (text, socket) = receive(&predecessor).context("the previous process")?;
            if text == END {
                return Ok(Self { sockets: Mutex::new(sockets), weights, predecessor: Some(predecessor) });
            }
            if let Some(weight) = parse_weight(&text) {
                weights.push(weight);
                continue;
            }
            let role = Role::parse(&text).with_context(|| format!("the previous process said {text:?}"))?;
            sockets.push(Passed { role, socket: socket.context("the previous process has passed no socket")? });
        }
    }

    fn from_systemd() -> anyhow::Result<Self> {
        let mut passed = ListenFd::from_env();
        let mut sockets = Vec::new();
        for number in 0..passed.len() {
            let listener = passed.take_tcp_listener(number).context("a socket of systemd")?;
            let listener = listener.context("a socket of systemd is missing")?;
            // systemd's descriptors are inherited, and a successor gets its own.
            fcntl_setfd(&listener, FdFlags::CLOEXEC)?;
            sockets.push(Passed { role: Role::Listener(listener.local_addr()?, 0), socket: listener.into() });
        }
        Ok(Self { sockets: Mutex::new(sockets), ..Self::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Passed>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a core's share of the sockets of a listener. With fewer sockets than cores, some
    /// cores share one; on fastsock they always do.
    pub(crate) fn listeners(
        &self,
        role: Role,
        (core, cores): (usize, usize),
        stack: StackKind,
    ) -> io::Result<Vec<Listener>> {
        let all = self.lock();
        let sockets: Vec<&OwnedFd> =
            all.iter().filter(|passed| passed.role == role).map(|passed| &passed.socket).collect();
        let shared = sockets.len().min(cores);
        let mine = sockets.iter().enumerate().filter(|(number, _)| shared > 0 && number % cores == core % shared);
        mine.map(|(_, socket)| adopt(stack, TcpListener::from(socket.try_clone()?))).collect()
    }

    /// Returns the metrics' socket.
    pub(crate) fn metrics(&self, address: SocketAddr) -> io::Result<Option<TcpListener>> {
        let all = self.lock();
        let passed = all.iter().find(|passed| passed.role == Role::Metrics(address));
        passed.map(|passed| passed.socket.try_clone().map(TcpListener::from)).transpose()
    }

    /// Called when all cores serve: closes the sockets that are left, and notifies the predecessor.
    ///
    /// # Errors
    /// If the predecessor has ended. It was told to, or killed, and nobody knows this process.
    pub(crate) fn serving(&self) -> anyhow::Result<()> {
        self.lock().clear();
        let told = self.predecessor.as_ref().map(|predecessor| send(predecessor, SERVING, None));
        told.transpose().context("the previous process has ended before this one served").map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every socket is accepted from by at least one core, and every core has a socket.
    #[tokio::test]
    async fn sockets_are_shared_out() {
        let role = Role::Listener("127.0.0.1:0".parse().unwrap(), 0);
        for (sockets, cores) in [(1, 1), (1, 3), (2, 3), (3, 3), (5, 2)] {
            let open = |_| Passed { role, socket: TcpListener::bind("127.0.0.1:0").unwrap().into() };
            let inherited = Inherited { sockets: Mutex::new((0..sockets).map(open).collect()), ..Inherited::default() };
            let mut served = std::collections::BTreeSet::new();
            for core in 0..cores {
                let mine = inherited.listeners(role, (core, cores), StackKind::Kernel).unwrap();
                assert!(!mine.is_empty(), "{sockets} {cores}: {core}");
                served.extend(mine.iter().map(|listener| listener.local_addr().unwrap()));
            }
            assert_eq!(served.len(), sockets, "{cores}");
            let other = Role::Listener("127.0.0.1:0".parse().unwrap(), 1);
            assert!(inherited.listeners(other, (0, cores), StackKind::Kernel).unwrap().is_empty());
        }
    }
}
