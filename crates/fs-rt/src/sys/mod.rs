//! System calls that std does not have, each behind a safe function.
#![allow(unsafe_code)]

mod affinity;
mod clock;
mod contention;
mod descriptors;
mod eventfd;
mod fork;
mod netlink;
mod poll;
mod preempted;
pub(crate) mod reserve;
mod rlimit;
mod sleep;
mod user;
mod watch;

pub(crate) use affinity::{Cpus, online_cpus, pin_to_cpu};
pub(crate) use clock::{Clock, from_now};
pub(crate) use contention::{Contention, ContentionProbe};
pub(crate) use descriptors::own_descriptor_table;
pub(crate) use eventfd::EventFd;
pub(crate) use fork::after_fork_in_child;
pub(crate) use netlink::{netlink_of, own_netlink};
pub(crate) use poll::wait_readable;
pub(crate) use rlimit::raise_open_files;
pub(crate) use sleep::{exact_timers, sleep_for};
pub(crate) use user::{effective_user, is_privileged, peer_user};
pub(crate) use watch::watch_readable;
