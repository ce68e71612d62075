//! System calls that rustix has no safe form of.
#![allow(unsafe_code)]

mod alarm;
mod cgroup;
mod credentials;
mod life;
mod receive;
mod signal;
mod signals;

pub(crate) use alarm::Alarm;
pub(crate) use cgroup::{has_programs, hierarchy};
pub(crate) use credentials::{Credentials, netns_cookie, peer, raw_option};
pub(crate) use life::hold;
pub(crate) use receive::receive;
pub(crate) use signal::EventfdSignal;
pub(crate) use signals::ignore_file_size_signal;
