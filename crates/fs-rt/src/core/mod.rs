//! A core: its state (`state`), its turn (`core_loop`, with the steps of `io`), its sleep (`park`),
//! and its interface for tasks (`core_ref`, `lease`).
//!
//! ## Access rules
//! 1. Everything here stays on one thread; nothing is `Send`.
//! 2. The stack, the wakers and the links are in `RefCell`s that are borrowed for one call at a
//!    time. While one is borrowed, no waker may be woken or dropped: both can drop a task, and with
//!    it sockets that call back into the stack. So wakers are moved out first, and woken or dropped
//!    after the borrows have ended.
//! 3. Only the reactor (`core_loop`) accesses the links.

mod core_loop;
mod core_ref;
mod gone_link;
mod inbox;
mod io;
mod lease;
mod park;
mod state;

pub use core_ref::{CoreRef, Counted, poll_budget, shut_down, shutdown_signal, spawn_local, spend_budget, turn};
pub(crate) use gone_link::GoneLink;
pub use io::CoreStack;
pub(crate) use io::{CoreIo, CoreLinks};
pub use lease::{KernelListen, PortLease};
pub(crate) use park::Reactor;
pub(crate) use state::CoreShared;
