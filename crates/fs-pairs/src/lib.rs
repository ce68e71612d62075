//! The match service: it finds the two ends of a kernel TCP connection among the processes of a
//! host, and gives both one carrier region.
//!
//! A process offers a duplicate of a socket's descriptor. The service reads from the kernel what
//! the socket is, waits a moment for an offer whose addresses mirror it, and gives both processes
//! the same sealed file. The service relies on no claim of a process: addresses, namespace and
//! state come from the kernel, and the duplicate proves that the process holds the socket.
//!
//! The service holds no connection. Without it no further connection gets a ring; rings that exist continue.
//!
//! | module | what it is |
//! |---|---|
//! | [`message`] | seven messages of 32 bytes |
//! | `place` | where the service's socket is |
//! | [`client`] | the half in a preloaded process |
//! | `facts` | what the kernel says of an offered socket |
//! | [`listing`] | the list of pairs and of refused offers |
//! | [`counters`] | what the service counts |
//! | [`closing`] | threads of each user, which close and read descriptors that its processes have sent |
//! | `inbox` | messages of a process as they are received |
//! | `outbox` | answers that a process has not read yet |
//! | `ask` | the client's half of `listing` and `counters`, for `fastsock ss` and `stat` |
//! | `registry` | offers that wait, pairs that were found, and their bounds |
//! | [`service`] | the loop over the socket |

mod ask;
pub mod client;
pub mod closing;
pub mod counters;
mod facts;
mod inbox;
pub mod listing;
pub mod message;
mod outbox;
mod place;
mod registry;
pub mod service;
mod sys;

pub use client::{Client, Offered};
pub use message::{Number, Reason};
pub use place::{CONTROL_VARIABLE, SYSTEM_CONTROL, USER_CONTROL};
pub use service::{Handle, Service};
