//! Runs one source on crate `socket2` and on ours. It compiles on both, so the API is the same, and
//! its assertions hold on both, so the behaviour is.

#![allow(clippy::duplicate_mod)]

mod original {
    use ::socket2 as api;
    include!("shape/socket2.rs");
    include!("shape/socket2_options.rs");
    include!("shape/socket2_unsafe.rs");
}

mod ours {
    use fs_compat::socket2 as api;
    include!("shape/socket2.rs");
    include!("shape/socket2_options.rs");
    include!("shape/socket2_unsafe.rs");
}
