//! System calls that rustix has no safe form of.

mod credentials;
mod receive;

pub(crate) use credentials::{Credentials, netns_cookie, peer, raw_option};
pub(crate) use receive::receive;
