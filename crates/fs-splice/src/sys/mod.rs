//! System calls that no crate has, each behind a safe function.
#![allow(unsafe_code)]

mod tcp;

#[cfg(test)]
pub(crate) use tcp::unsent_limit;
pub(crate) use tcp::{
    Info, Queue, Repair, choose_port, has_urgent, info, outgoing, queue_end, repair, set_queue_end, stamp, throttle,
    unread,
};
