//! Whether the kernel would let this process connect: asked by connect(2) of another socket, with the SYN put off until data is
//! sent on it (TCP_FASTOPEN_CONNECT), which never is. It passes all that a connection passes before its first packet: security modules
//! (Landlock, SELinux, AppArmor), programs of the cgroup, and routes with their rules for this user.

use core::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use fs_shm::control::{Error, KernelReason};
use rustix::{fd::AsRawFd, io::Errno};

use crate::{
    address,
    descriptor::numbers,
    sys::{self, call},
};

/// A thread has confined itself: what others may says nothing of it.
static CONFINED: AtomicBool = AtomicBool::new(false);

/// A thread of this process is about to give up rights to connect (landlock_restrict_self(2)): from here on each connection is asked
/// about.
pub fn restrict() {
    CONFINED.store(true, Relaxed);
}

/// Whether each connection is to be asked about, not only the first of a kind.
pub(crate) fn is_restricted() -> bool {
    CONFINED.load(Relaxed)
}

/// Why a connection is the kernel's, who refuses it or leads it nowhere; `None`: it would be made.
pub(crate) fn refused(to: SocketAddr) -> Option<KernelReason> {
    let asked = numbers::make(|| ask(to).map_err(Error::System));
    match asked.err()? {
        Error::System(Errno::ACCESS | Errno::PERM) => Some(KernelReason::Firewall),
        // All that looks at it has let it pass, and no port is left for one more.
        Error::System(Errno::ADDRNOTAVAIL) => None,
        // net.ipv4.tcp_fastopen is off: there is no way to ask.
        Error::System(Errno::OPNOTSUPP) => None,
        Error::System(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => Some(KernelReason::Limit),
        _ => Some(KernelReason::NotServed),
    }
}

fn ask(to: SocketAddr) -> Result<(), Errno> {
    use libc::{SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM, SOL_TCP, TCP_FASTOPEN_CONNECT, TCP_FASTOPEN_NO_COOKIE};
    let family = if to.is_ipv4() { address::AF_INET } else { address::AF_INET6 };
    let socket = sys::owned(call::socket(family as i32, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)?);
    for name in [TCP_FASTOPEN_NO_COOKIE, TCP_FASTOPEN_CONNECT] {
        call::setsockopt(socket.as_raw_fd(), SOL_TCP, name, &1_i32.to_ne_bytes())?;
    }
    call::connect(socket.as_raw_fd(), address::raw(to, family).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_nowhere_is_refused_and_nothing_is_sent() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(refused(listener.local_addr().unwrap()), None);
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        // Broadcast: the kernel says EACCES or ENETUNREACH, by its routes.
        assert!(refused("255.255.255.255:9".parse().unwrap()).is_some());
    }
}
