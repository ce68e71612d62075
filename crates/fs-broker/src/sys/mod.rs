//! System calls that no crate has, each behind a safe function.
#![allow(unsafe_code)]

pub(crate) mod bpf;
mod namespace;
mod option;

pub(crate) use namespace::enter_new_namespace;
pub use option::peer_runs;
pub(crate) use option::{bound_device, namespace_cookie, port_range};
