//! The same source on crate `socket2` and on ours: it compiles, so the shape is the same, and asserts, so the answers are.

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
