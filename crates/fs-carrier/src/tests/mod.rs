//! The rules over a model of the kernel's socket: by loom in every order, without loom and under
//! Miri with real threads.

#[cfg(not(loom))]
pub(crate) mod between;
mod fake;
#[cfg(not(loom))]
mod hostile;
#[cfg(loom)]
mod orders;
#[cfg(not(loom))]
mod races;
#[cfg(not(loom))]
mod registrations;
#[cfg(not(loom))]
mod reports;
#[cfg(not(loom))]
mod rules;
#[cfg(not(loom))]
mod sets;
#[cfg(loom)]
pub(crate) mod touched;
