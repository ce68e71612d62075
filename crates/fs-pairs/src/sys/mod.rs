//! System calls that rustix has no form of, and descriptors that are closed by the system call itself.
#![allow(unsafe_code)]

mod descriptor;
mod option;

pub(crate) use descriptor::{Quiet, Weak, receive};
pub(crate) use option::{Credentials, bound_device, credentials, netns_cookie};
