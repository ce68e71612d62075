//! Leases of ports. A bound kernel socket in the daemon's namespace proves each: the kernel has
//! decided that the program may have the port.

use super::message::{Answer, MAX_DESCRIPTORS, Request};
use super::{SharedDevice, State};
use crate::ports::{Ephemeral, PortSink};
use crate::sys::reserve::Reservation;
use fs_core::Protocol;
use fs_xdp::Share;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Reserves an address with a kernel socket in the calling thread's namespace, as for a program
/// that has the device for itself.
///
/// # Errors
/// The errors of bind(2).
pub fn reserve(protocol: Protocol, at: SocketAddr, v6_only: bool) -> io::Result<OwnedFd> {
    Reservation::new(protocol, at, v6_only).map(Reservation::into_fd)
}

impl SharedDevice {
    /// Reserves an address in the daemon's namespace.
    pub(crate) fn reserve(&self, protocol: Protocol, at: SocketAddr, v6_only: bool) -> io::Result<Reservation> {
        if !self.is_foreign {
            return Reservation::new(protocol, at, v6_only);
        }
        let mut state = self.lock();
        let (_, mut sockets) = self.call(&mut state, &Request::Bind { protocol, at, v6_only }, &[])?;
        sockets.pop().map(Reservation::by).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Reserves up to `count` TCP ports from `first` upwards, without their leases.
    pub(crate) fn reserve_ephemeral(&self, first: u16, count: usize) -> io::Result<(Vec<u16>, Vec<OwnedFd>)> {
        let (mut ports, mut sockets) = (Vec::new(), Vec::new());
        let any: IpAddr = Ipv6Addr::UNSPECIFIED.into();
        for port in first..=u16::MAX {
            if ports.len() == count {
                break;
            }
            match self.reserve(Protocol::Tcp, SocketAddr::new(any, port), false) {
                // The kernel may have connections there, of a listener that is closed.
                Ok(reservation) if reservation.is_shared => {}
                Ok(reservation) => {
                    ports.push(port);
                    sockets.push(reservation.into_fd());
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => break,
                Err(error) => return Err(error),
            }
        }
        Ok((ports, sockets))
    }

    /// Leases what these sockets reserve. Returns which of them the daemon refuses: the kernel has
    /// connections at their ports.
    pub(crate) fn lease_ephemeral(&self, sockets: &[OwnedFd]) -> io::Result<Vec<bool>> {
        let mut state = self.lock();
        let mut refused = Vec::new();
        for batch in sockets.chunks(MAX_DESCRIPTORS) {
            let batch = super::wire::borrow(batch);
            let pieces = match self.lease(&mut state, &batch) {
                Ok(()) => {
                    refused.extend(batch.iter().map(|_| false));
                    continue;
                }
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => return Err(error),
                Err(_) => batch.chunks(1),
            };
            for piece in pieces {
                match self.lease(&mut state, piece) {
                    Ok(()) => refused.push(false),
                    Err(error) if error.kind() == io::ErrorKind::AddrInUse => refused.push(true),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(refused)
    }

    /// Keeps these leases for as long as the program runs.
    pub(crate) fn keep_ephemeral(&self, sockets: &Arc<[OwnedFd]>) {
        self.lock().held.ephemeral = sockets.clone();
    }

    fn lease(&self, state: &mut State, sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
        match self.call(state, &Request::Lease, sockets)? {
            (Answer::Done, _) => Ok(()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// The leases are the daemon's table, and only a program that it knows gets their packets. The
/// daemon knows the host's addresses itself.
impl PortSink for Arc<SharedDevice> {
    fn add(
        &self,
        protocol: Protocol,
        at: SocketAddr,
        _share: Share,
        reservation: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        // A port that another process holds for us has no proof.
        let socket = reservation.ok_or(io::ErrorKind::Unsupported)?;
        let mut state = self.lock();
        if let Some((times, _)) = state.held.ends.get_mut(&(protocol, at)) {
            *times += 1;
            return Ok(());
        }
        let socket = socket.try_clone_to_owned()?;
        self.lease(&mut state, &[socket.as_fd()])?;
        state.held.ends.insert((protocol, at), (1, socket));
        Ok(())
    }

    fn reserve(&self, protocol: Protocol, at: SocketAddr, v6_only: bool) -> io::Result<Reservation> {
        SharedDevice::reserve(self, protocol, at, v6_only)
    }

    fn share(&self, _protocol: Protocol, _at: SocketAddr, _share: Share) {}

    fn remove(&self, protocol: Protocol, at: SocketAddr) {
        let mut state = self.lock();
        let Some((times, _)) = state.held.ends.get_mut(&(protocol, at)) else { return };
        *times -= 1;
        if *times > 0 {
            return;
        }
        state.held.ends.remove(&(protocol, at));
        // The next daemon hears only of leases that are still held.
        if let Err(error) = self
            .resume(&mut state)
            .and_then(|socket| super::exchange(socket, &Request::Release { protocol, at }, &[]).map(drop))
        {
            state.give_up(&error);
            tracing::debug!(%at, %error, "no daemon to return a lease to");
        }
    }

    fn needs_proof(&self) -> bool {
        true
    }

    fn tend(&self) {
        let mut state = self.lock();
        if let Err(error) = self.resume(&mut state) {
            tracing::debug!(device = self.name, %error, "no daemon for the device");
        }
    }

    fn unguard(&self) {}

    fn set_addresses(&self, _addrs: &[IpAddr], _elsewhere: &[IpAddr]) -> io::Result<()> {
        Ok(())
    }
}

/// The ports of a runtime on shared devices.
pub(crate) fn ephemeral(devices: &[Arc<SharedDevice>], first: u16, count: usize) -> io::Result<Ephemeral> {
    let Some(one) = devices.first() else { return Ok(Ephemeral::default()) };
    let (mut ports, mut sockets) = one.reserve_ephemeral(first, count)?;
    for device in devices {
        let refused = device.lease_ephemeral(&sockets)?;
        let (mut of_port, mut of_socket) = (refused.iter(), refused.iter());
        ports.retain(|_| of_port.next() == Some(&false));
        sockets.retain(|_| of_socket.next() == Some(&false));
    }
    let sockets = sockets.into();
    devices.iter().for_each(|device| device.keep_ephemeral(&sockets));
    Ok(Ephemeral::of(ports))
}

#[cfg(test)]
mod tests {
    use super::super::{Control, Device, LeaseProofs, connect, wire};
    use super::*;
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with, socketpair};
    use std::path::Path;
    use std::sync::Mutex;
    use std::time::Duration;

    /// Receives the daemon's next request, if it is this one, and answers it.
    fn serve(socket: &OwnedFd, request: &Request) {
        let (record, _) = wire::receive(socket.as_fd(), |fd| fd).unwrap().unwrap();
        assert_eq!(Request::decode(&record).as_ref(), Some(request));
        wire::send(socket.as_fd(), &Answer::Done.encode(), &[]).unwrap();
    }

    /// Returns a program's connection to a daemon, and the daemon's end.
    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    /// Returns the listening socket of the next daemon.
    fn listen_at(control: &Path) -> OwnedFd {
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(control).unwrap()).unwrap();
        rustix::net::listen(&listener, 4).unwrap();
        listener
    }

    /// `XDG_RUNTIME_DIR` of a root shell may be that of the user who has called su(1).
    #[test]
    fn daemon_of_another_user_is_not_asked() {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("FS_TEST_MUST_RUN").is_none(), "not root, and FS_TEST_MUST_RUN is set");
            println!("skipped: not root (a daemon of another user)");
            return;
        }
        let listen_as = |user: u32| {
            let path = std::env::temp_dir().join(format!("fs-daemon-of-{user}-{}", std::process::id()));
            let user = rustix::process::Uid::from_raw(user);
            let listen = || {
                rustix::thread::set_thread_res_uid(user, user, user).unwrap();
                listen_at(&path)
            };
            let listener = std::thread::scope(|scope| scope.spawn(listen).join().unwrap());
            (path, listener)
        };
        for (user, is_trusted) in [(0, true), (65_534, false)] {
            let (path, _listener) = listen_as(user);
            let error =
                |is_of_user| connect(&Control { path: path.clone(), is_of_user }).err().map(|error| error.kind());
            assert_eq!(error(true), (!is_trusted).then_some(io::ErrorKind::PermissionDenied));
            assert_eq!(error(false), None);
            std::fs::remove_file(&path).unwrap();
        }
    }

    /// Only an answer that is late makes a connection useless.
    #[test]
    fn connection_is_used_after_other_errors() {
        let (ours, _daemon) = pair();
        let held = LeaseProofs::default();
        let mut state = State { socket: Some(ours), pair: None, held, late: Vec::new() };
        state.give_up(&io::Error::from_raw_os_error(libc::EMFILE));
        assert!(state.socket.is_some() && state.late.is_empty());
        state.give_up(&io::ErrorKind::WouldBlock.into());
        assert!(state.socket.is_none() && state.late.len() == 1);
    }

    /// A late answer to a request that was given up does not answer the next one. The connection stays
    /// open until the next one has replaced it: the daemon would take its end for the program's.
    #[test]
    fn connection_with_a_late_answer_is_replaced() {
        let directory = std::env::temp_dir().join(format!("fs-late-{}", std::process::id()));
        // Of a failed test whose process had the same id.
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let control = directory.join("control.sock");
        let listener = listen_at(&control);
        let (ours, daemon) = pair();
        set_socket_timeout(&ours, Timeout::Recv, Some(Duration::from_millis(1))).unwrap();
        let proof = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = proof.local_addr().unwrap();
        let mut held = LeaseProofs::default();
        held.ends.insert((Protocol::Udp, at), (1, proof.into()));
        let (slot, token) = (7, [8, 9]);
        let shared = Arc::new(SharedDevice {
            name: "none".into(),
            device: Device { namespace: (0, 0), index: 1, mtu: 1500, mac: [2; 6], queues: 1 },
            is_foreign: false,
            control: Control { path: control, is_of_user: false },
            state: Mutex::new(State { socket: Some(ours), pair: Some((slot, token)), held, late: Vec::new() }),
        });
        // The daemon is stopped.
        PortSink::remove(&shared, Protocol::Udp, at);
        assert!(shared.lock().socket.is_none());
        PortSink::tend(&shared);
        assert!(!wire::is_closed(daemon.as_fd()), "the daemon takes the program's pair away");
        assert!(!wire::is_readable(listener.as_fd()), "a connection in each second");
        // It goes on.
        serve(&daemon, &Request::Release { protocol: Protocol::Udp, at });
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let next = rustix::net::accept(&listener).unwrap();
                rustix::net::recv(&next, &mut [0; 32], rustix::net::RecvFlags::empty()).unwrap();
                serve(&next, &Request::Resume { slot, token });
                assert!(!wire::is_closed(daemon.as_fd()));
                serve(&next, &Request::Resumed);
            });
            PortSink::tend(&shared);
        });
        assert!(shared.lock().socket.is_some());
        assert!(wire::is_closed(daemon.as_fd()));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
