//! System calls for which rustix has no function, and a descriptor type that calls close(2)
//! directly.
#![allow(unsafe_code)]

mod descriptor;
mod option;

pub(crate) use descriptor::{Quiet, Weak, contains_descriptors, receive};
pub(crate) use option::{Credentials, bound_device, credentials, netns_cookie};
