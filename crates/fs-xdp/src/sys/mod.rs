//! System calls and memory shared with the kernel, behind safe functions.
#![allow(unsafe_code)]

pub(crate) mod bpf;
pub(crate) mod capabilities;
pub(crate) mod eventfd;
pub(crate) mod holes;
pub(crate) mod ioctl;
pub(crate) mod merged_io;
pub(crate) mod packet;
pub(crate) mod packet_io;
pub(crate) mod ring_memory;
pub(crate) mod tun;
pub(crate) mod xsk;
#[cfg(feature = "xsk-rs")]
pub(crate) mod xsk_rs;
