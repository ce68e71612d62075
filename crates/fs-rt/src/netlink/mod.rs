//! rtnetlink: dumps, requests, change notifications, neighbour resolution, and routes of
//! connections. sock_diag: the kernel's connections.

mod route;
mod socket;
mod sockets;

pub use route::{Flow, KernelRoute};
pub(crate) use route::{Hop, ip};
pub use socket::{GROUPS, Netlink, Notices};
pub(crate) use socket::{Known, NEIGHBOURS};
pub(crate) use sockets::has_connection;
pub use sockets::{Connection, each_connection};
