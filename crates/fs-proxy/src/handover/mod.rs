//! Listening sockets that pass from one process to the next: from a predecessor of the same program
//! (SIGUSR2), or from systemd.
//!
//! A passed descriptor refers to the same socket, with the same queue. So no connection is refused
//! or lost while both processes have it.
//!
//! | file | content |
//! |---|---|
//! | `message` | the messages between the two processes |
//! | `give` | the predecessor's side |
//! | `inherited` | the successor's side |

mod give;
mod inherited;
mod message;

pub(crate) use give::Starting;
pub(crate) use inherited::Inherited;
pub(crate) use message::{Passed, Role};
