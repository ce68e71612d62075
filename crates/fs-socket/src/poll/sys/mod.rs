//! System calls and a lock: `unsafe` of this folder's module lives here only.
#![allow(unsafe_code)]

pub(super) mod kernel;
pub(super) mod lock;
pub(super) mod page;
