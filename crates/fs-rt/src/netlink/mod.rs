//! rtnetlink: dumps, requests, change notifications, neighbour resolution, and routes of
//! connections.

mod route;
mod socket;

pub use route::{Flow, KernelRoute};
pub use socket::{GROUPS, Netlink, Notices};
pub(crate) use socket::{Known, NEIGHBOURS};
