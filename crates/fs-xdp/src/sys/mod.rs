//! System calls and memory shared with the kernel, behind safe functions.

pub(crate) mod eventfd;
