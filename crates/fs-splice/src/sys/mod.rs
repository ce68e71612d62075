//! System calls that no crate has, each behind a safe function.
#![allow(unsafe_code)]

mod tcp;

pub(crate) use tcp::{
    Info, Queue, Repair, has_urgent, info, outgoing, queue_end, repair, set_queue_end, stamp, throttle, unread,
};
