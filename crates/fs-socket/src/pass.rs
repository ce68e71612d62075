//! Descriptors passed over Unix sockets (SCM_RIGHTS).

use crate::types::Fd;

/// Before a `sendmsg` that carries these descriptors: sockets of ours among them are held by the daemon until the receiver
/// claims them. Costs a table look-up each when none is ours.
pub fn share(_fds: &[Fd]) {}

/// After a `recvmsg` that brought these descriptors: those that are sockets of ours in the sender become ours here.
pub fn claim(_fds: &[Fd]) {}
