//! Talking rtnetlink: dumps, questions, change notices, the request to resolve a neighbour, and the way of a connection.

mod route;
mod socket;

pub use route::{Flow, KernelRoute};
pub use socket::{GROUPS, Netlink, Notices};
pub(crate) use socket::{Known, NEIGHBOURS};
